"""Keep what is finished of a training, so that it can go on elsewhere: ``python tools/keep_runs.py runs/laptop KEPT``.

Copies the scores of runs, with those that choose a rate, and of each run its evidence and what it was made with.
No weights, checkpoints or states. A folder that holds the copy goes on as the original
would, whatever versions run there: ``cp -r KEPT runs/laptop``, then the same ``diffscope train`` trains what is not in it. An arm
that continues another one needs that one's weights: remove that one's folder first, and it is trained again too.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from diffscope.errors import DiffscopeError
from diffscope.evidence.runs import EVIDENCE
from diffscope.files import replacing
from diffscope.lab.training.run import RUN
from diffscope.lab.training.runs import SCORES, TUNING

RUNS = "*/seed-*"
KEPT = (f"{RUNS}/{SCORES}", f"{TUNING}/*/{RUNS}/{SCORES}", f"{RUNS}/{EVIDENCE}", f"{RUNS}/{RUN}")
LARGEST = 200_000  # bytes of a file


def keep_runs(run: Path, target: Path, largest: int = LARGEST) -> list[str]:
    """Copy the results and the evidence of finished runs.

    Parameters
    ----------
    run : Path
        The folder that ``diffscope train`` trains into.
    target : Path
        Gets the files that it lacks, or has otherwise.
    largest : int
        Bytes of a file.

    Returns
    -------
    list of str
        The files that were copied.

    Raises
    ------
    DiffscopeError
        Nothing is finished, or a file is larger than is kept.
    """
    finished = sorted(path for pattern in KEPT for path in run.glob(pattern) if _belongs_to_finished(path))
    if not finished:
        raise DiffscopeError(f"nothing in {run} is finished; train with: diffscope train RECIPE --out {run}")
    if large := [path for path in finished if path.stat().st_size > largest]:
        raise DiffscopeError(f"{large[0]} has {large[0].stat().st_size:,} bytes; at most {largest:,} of a file are kept")
    copied = []
    for path in finished:
        copy = target / path.relative_to(run)
        if not copy.is_file() or copy.read_bytes() != path.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            with replacing(copy) as unfinished:
                shutil.copyfile(path, unfinished)
            copied.append(str(path.relative_to(run)))
    return copied


def _belongs_to_finished(path: Path) -> bool:
    """Whether a file is a result, or of a run that has its evidence."""
    return path.name == SCORES or (path.parent / EVIDENCE).is_file()


def main() -> None:
    """Copy as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    try:
        copied = keep_runs(options.run, options.target)
    except DiffscopeError as error:
        sys.exit(f"error: {error}")
    print(f"copied {len(copied)} files into {options.target}")


if __name__ == "__main__":
    main()
