"""The runs of the study in one file: scores, evidence and facts of every run, without weights.

python -m studies.laptop.runs unpack runs        # into runs/laptop and runs/laptop-text
python -m studies.laptop.runs pack runs          # the inverse, after training
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from pathlib import Path

from diffscope.errors import DiffscopeError
from studies import packed_runs

RUNS = Path(__file__).with_name("runs.zip")
COHORTS = ("laptop", "laptop-text")


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
    files = []
    for cohort in COHORTS:
        of_cohort = list(packed_runs.files_of_runs(folder / cohort))
        if not of_cohort:
            home = folder / cohort
            raise DiffscopeError(f"{home} holds no runs; train them with: diffscope train {cohort} --out {home}")
        files += of_cohort
    return packed_runs.pack(files, folder, archive)


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
