"""Runs of a study in one archive: scores, evidence and facts of every run, without weights.

An archive holds the files under the names that training gives them: ``COHORT/ARM/seed-N/{scores.nc,evidence.nc,run.json}``, and
``COHORT/tuning/rate-R/ARM/seed-N/scores.nc`` of the runs that chose a learning rate. Unpacked, they are what ``diffscope train``
takes for finished.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from diffscope.storage.atomic import replacing

PACKED = ("*/seed-*/scores.nc", "*/seed-*/evidence.nc", "*/seed-*/run.json", "tuning/*/*/seed-*/scores.nc")
EPOCH = (1980, 1, 1, 0, 0, 0)  # equal files make equal archives, whenever they are packed


def files_of_runs(cohort: Path) -> Iterator[Path]:
    """Yield the files of a cohort's runs that an archive takes, in the order of their names."""
    yield from sorted(path for pattern in PACKED for path in cohort.glob(pattern))


def pack(files: Iterable[Path], folder: Path, archive: Path) -> list[str]:
    """Pack files that lie below a folder, and return their names in the archive, which replaces an earlier one."""
    names = [path.relative_to(folder).as_posix() for path in files]
    with replacing(archive) as unfinished, zipfile.ZipFile(unfinished, "w") as packed:
        for name in names:
            entry = zipfile.ZipInfo(name, EPOCH)
            packed.writestr(entry, (folder / name).read_bytes(), zipfile.ZIP_DEFLATED, 9)
    return names
