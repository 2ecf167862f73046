"""The runs of the study in one file: scores, evidence and facts of every run, without weights.

    python -m studies.laptop.runs unpack runs        # into runs/laptop and runs/laptop-text
    python -m studies.laptop.runs pack runs          # the inverse, after training

``runs.zip`` holds the files under the names that training gives them: ``COHORT/ARM/seed-N/{scores.nc,evidence.nc,run.json}``, and
``COHORT/tuning/rate-R/ARM/seed-N/scores.nc`` of the runs that chose a learning rate. Unpacked, they are what ``diffscope train``
takes for finished.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from pathlib import Path

from diffscope.errors import DiffscopeError
from diffscope.storage.atomic import replacing

RUNS = Path(__file__).with_name("runs.zip")
COHORTS = ("laptop", "laptop-text")
PACKED = ("*/seed-*/scores.nc", "*/seed-*/evidence.nc", "*/seed-*/run.json", "tuning/*/*/seed-*/scores.nc")
EPOCH = (1980, 1, 1, 0, 0, 0)  # equal files make equal archives, whenever they are packed


def pack(folder: Path, archive: Path = RUNS) -> list[str]:
    """Pack the runs of both cohorts, and return the names of their files.

    Parameters
    ----------
    folder : Path
        Holds a folder for each of :data:`COHORTS`.
    archive : Path
        An earlier one is replaced.

    Raises
    ------
    DiffscopeError
        A cohort has no runs.
    """
    names = []
    for cohort in COHORTS:
        of_cohort = sorted(path for pattern in PACKED for path in (folder / cohort).glob(pattern))
        if not of_cohort:
            home = folder / cohort
            raise DiffscopeError(f"{home} holds no runs; train them with: diffscope train {cohort} --out {home}")
        names += [path.relative_to(folder).as_posix() for path in of_cohort]
    with replacing(archive) as unfinished, zipfile.ZipFile(unfinished, "w") as packed:
        for name in names:
            entry = zipfile.ZipInfo(name, EPOCH)
            packed.writestr(entry, (folder / name).read_bytes(), zipfile.ZIP_DEFLATED, 9)
    return names


def unpack(folder: Path, archive: Path = RUNS) -> None:
    """Unpack the runs into a folder, which then holds one for each of :data:`COHORTS`.

    Raises
    ------
    DiffscopeError
        The folder already holds runs of a cohort.
    """
    if taken := [cohort for cohort in COHORTS if (folder / cohort).exists()]:
        raise DiffscopeError(f"{folder / taken[0]} is there already; unpack into a folder without it")
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("pack", "unpack"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    try:
        (pack if options.action == "pack" else unpack)(options.folder)
    except DiffscopeError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
