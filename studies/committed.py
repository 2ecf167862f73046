"""What a study makes beside what of it is committed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from diffscope.storage.atomic import replacing

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


def update(target: Path, alike: Callable[[Path, Path], bool], own: Iterable[Path], check: bool) -> None:
    """Copy the files that differ into the repository and name them, and those that are committed and no longer made.

    Parameters
    ----------
    target, alike
        As :func:`differing` takes them.
    own : iterable of Path
        The committed files that a study makes and no one writes by hand.
    check : bool
        Copy none, and exit with 1 if a file differs. A file that is no longer made exits with 1 in either case.
    """
    names = list(differing(target, alike))
    left = [name for name in sorted(path.relative_to(ROOT) for path in own) if not (target / name).is_file()]
    if not check:
        for name in names:
            with replacing(ROOT / name) as unfinished:
                shutil.copyfile(target / name, unfinished)
    lines = [*map(str, names), *(f"{name} is no longer made; remove it" for name in left)]
    print("\n".join(lines) or "nothing differs from what is committed")
    if left or (check and names):
        sys.exit(1)
