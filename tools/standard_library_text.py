"""Write the text that models are trained on and asked about: the documentation strings of a Python's standard library.

``python tools/standard_library_text.py`` takes those of the Python that runs it. The file in the repository is Python 3.11.7's;
another would change every prompt that is drawn, and with it every score.
"""

import ast
import gzip
import hashlib
import json
import platform
import sysconfig
from pathlib import Path

TARGET = Path(__file__).parents[1] / "diffscope" / "tasks" / "standard_library.json.gz"
HELD_OUT_PERCENT = 8
SKIPPED = {"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__", "dist-packages"}


def docstrings(source: str) -> list[str]:
    """Documentation strings of a module, its classes and functions, each as one line of single-spaced text."""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = (ast.get_docstring(node, clean=True) for node in ast.walk(ast.parse(source)) if isinstance(node, holders))
    return [" ".join(text.split()) for text in texts if text and len(text) > 40]


def is_held_out(name: str) -> bool:
    """Whether a module, named by its path, is of the 8 % that training never sees."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 100 < HELD_OUT_PERCENT


def library_text(root: Path, held_out: bool) -> list[str]:
    """Documentation strings of all modules below a folder that are, or are not, held out, duplicates removed."""
    texts: dict[str, None] = {}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if SKIPPED.isdisjoint(name.parts) and is_held_out(name.as_posix()) == held_out:
            try:
                texts.update(dict.fromkeys(docstrings(path.read_text(encoding="utf-8"))))
            except (SyntaxError, UnicodeDecodeError):  # templates that are not Python source
                continue
    return list(texts)


if __name__ == "__main__":
    root = Path(sysconfig.get_paths()["stdlib"])
    text = {name: library_text(root, name == "held_out") for name in ("training", "held_out")}
    document = json.dumps({"source": f"Python {platform.python_version()}", **text}, ensure_ascii=False, indent=0)
    TARGET.write_bytes(gzip.compress(document.encode(), 9, mtime=0))
    print(TARGET, *(f"{name}: {len(texts)}" for name, texts in text.items()))
