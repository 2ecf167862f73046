"""The digest of the code that evidence is made by: words in comments and docstrings change nothing of it."""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from functools import cache
from pathlib import Path

PLACES = (
    "attention",
    "attribution",
    "edits",
    "hypotheses/evidence",
    "instruments",
    "stats/formulas",
    "lab/odds.py",
    "lab/scoring.py",
    "tasks/pieces.py",
    "tasks/retrieval.py",
    "tasks/tokenizer.py",
    "tasks/wording.py",
)


@cache
def code_digest() -> str:
    """SHA-256 over the lines of code of all modules that statistics of evidence are computed by, 16 characters."""
    home = Path(__file__).parents[2]
    files = [
        file for place in PLACES for file in ([home / place] if place.endswith(".py") else sorted((home / place).glob("*.py")))
    ]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(home).as_posix()}\n".encode())
        digest.update(lines_of_code(file.read_text(encoding="utf-8")).encode())
    return digest.hexdigest()[:16]


def lines_of_code(source: str) -> str:
    """A module's source without docstrings, comments and empty lines."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            for number in range(first.lineno - 1, first.end_lineno or first.lineno):
                lines[number] = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return "\n".join(line.rstrip() for line in lines if line.strip()) + "\n"
