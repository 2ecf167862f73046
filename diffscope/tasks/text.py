"""Real text that every machine has: the documentation strings of the Python standard library."""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from functools import cache
from pathlib import Path

HELD_OUT_PERCENT = 8


def _docstrings(source: str) -> list[str]:
    """Documentation strings of a module, its classes and functions, each as one line of single-spaced text."""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node, clean=True) for node in ast.walk(ast.parse(source)) if isinstance(node, holders))
    return [" ".join(text.split()) for text in found if text and len(text) > 40]


def _held_out(name: str) -> bool:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 100 < HELD_OUT_PERCENT


@cache
def standard_library_text(held_out: bool) -> tuple[str, ...]:
    """Documentation strings of the running Python's standard library, in a fixed order.

    Parameters
    ----------
    held_out : bool
        Modules are split by a hash of their path; ``True`` gives the 8 % that training never sees.

    Returns
    -------
    tuple of str
        One string a docstring, white space collapsed, duplicates removed.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__", "dist-packages"}
    texts: dict[str, None] = {}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if skipped.isdisjoint(name.parts) and _held_out(name.as_posix()) == held_out:
            try:
                texts.update(dict.fromkeys(_docstrings(path.read_text(encoding="utf-8"))))
            except (SyntaxError, UnicodeDecodeError):  # templates that are not Python source
                continue
    return tuple(texts)


def fingerprint(texts: tuple[str, ...]) -> str:
    """SHA-256 of a body of text, for model cards: which text exactly was this trained on."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()
