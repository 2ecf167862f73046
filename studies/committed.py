"""What a study makes beside what of it is committed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def differing(target: Path, alike: Callable[[Path, Path], bool]) -> Iterator[Path]:
    """Yield the names of the files in a folder that say something else than those of the repository.

    Parameters
    ----------
    target : Path
        Has the files under the names that they have in the repository.
    alike : callable
        Whether a file that was made and the committed one say the same.
    """
    for path in sorted(path for path in target.rglob("*") if path.is_file()):
        name = path.relative_to(target)
        committed = ROOT / name
        if not committed.is_file() or not alike(path, committed):
            yield name


def update(target: Path, alike: Callable[[Path, Path], bool], check: bool) -> None:
    """Copy the files that differ into the repository and name them; with `check` copy none, and exit with 1 if there is one."""
    names = list(differing(target, alike))
    if not check:
        for name in names:
            shutil.copyfile(target / name, ROOT / name)
    print("\n".join(map(str, names)) or "nothing differs from what is committed")
    if check and names:
        sys.exit(1)
