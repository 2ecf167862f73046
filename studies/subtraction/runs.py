"""Finished runs of the study in one file, so that they are there where their weights are not.

    python -m studies.subtraction.runs pack FOLDER      # adds to runs.zip what has been finished in FOLDER
    python -m studies.subtraction.runs unpack FOLDER    # puts into FOLDER what is not finished there

A run is packed with its scores, its evidence and what it was made with, once ``studies.subtraction.evidence`` has taken its
evidence; a run that chose a learning rate, or diverged, as soon as it is finished. Nothing of them is printed.
"""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path, PurePosixPath

from diffscope.lab.training.run import WEIGHTS
from diffscope.lab.training.runs import SCORES
from studies import packed_runs
from studies.subtraction.evidence import FILE as EVIDENCE
from studies.subtraction.train import PARTS

RUNS = Path(__file__).with_name("runs.zip")


def pack(folder: Path, archive: Path = RUNS) -> int:
    """Pack the finished runs of a folder beside those of the archive, and return how many it has then."""
    unpack(folder, archive)
    files = [path for part in PARTS for path in packed_runs.files_of_runs(folder / part) if _is_complete(path.parent)]
    return sum(name.endswith(f"/{SCORES}") for name in packed_runs.pack(files, folder, archive))


def _is_complete(run: Path) -> bool:
    """Return whether all that is read of a run is there: its evidence too, if it has a model and is not for choosing a rate."""
    needs_evidence = (run / WEIGHTS).is_file() and "tuning" not in run.parts
    return (run / SCORES).is_file() and ((run / EVIDENCE).is_file() or not needs_evidence)


def unpack(folder: Path, archive: Path = RUNS) -> int:
    """Put the runs of the archive that are not finished in a folder into it, and return how many these are."""
    if not archive.is_file():
        return 0
    with zipfile.ZipFile(archive) as packed:
        names = [PurePosixPath(name) for name in packed.namelist()]
        missing = {name.parent for name in names if name.name == SCORES and not (folder / name).is_file()}
        for name in sorted(names, key=lambda name: name.name == SCORES):  # a run is finished once its scores are there
            if name.parent in missing:
                packed.extract(str(name), folder)
    return len(missing)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("pack", "unpack"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.action == "pack":
        print(f"{RUNS.name} has {pack(options.folder)} finished runs")
    else:
        print(f"{unpack(options.folder)} finished runs were put into {options.folder}")


if __name__ == "__main__":
    main()
