"""Run the Python of a page and compare what it prints with what the page says: ``python tools/readme.py README.md``.

A block of ``python`` that is followed by a block of ``text`` has to print that text; where its lines are broken does not matter.
At first only the standard library is imported, so that an environment that holds nothing but the package can run it.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import re
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.S | re.M)


def blocks(page: Path, language: str) -> list[str]:
    """Return the blocks of a page that are of one language, in order."""
    return [code for kind, code in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def examples(page: Path) -> list[tuple[str, str | None]]:
    """Return each block of Python of a page with the output that the page gives of it, if it gives one."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    after = [*found[1:], ("", "")]
    return [(code, text if kind == "text" else None) for (name, code), (kind, text) in zip(found, after) if name == "python"]


def run(code: str, name: str, names: dict[str, object]) -> None:
    """Run code that is in no file, where its lines are found by that name: nnsight reads those of whoever calls backward()."""
    linecache.cache[name] = len(code), None, code.splitlines(keepends=True), name
    exec(compile(code, name, "exec"), names)


def faults(page: Path) -> list[str]:
    """Run the Python of a page in the current folder, one block after the other, and say where it prints something else."""
    names: dict[str, object] = {}
    found = []
    for number, (code, expected) in enumerate(examples(page), 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            run(code, f"{page.name}, block {number}", names)
        if expected is not None and printed.getvalue().split() != expected.split():
            found.append(f"the page says\n{expected}\nand its code prints\n{printed.getvalue()}")
    return found


def main() -> int:
    """Run the page that the command line names in an empty folder; 1 if it prints something else than the page says."""
    page = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = faults(page)
        os.chdir(page.parent)
    print(*found or [f"{page.name}: its code runs, and prints what the page says"], sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
