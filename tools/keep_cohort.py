"""Keep what a cohort has become in little room: ``python tools/keep_cohort.py runs/laptop benchmarks/results/laptop``.

Models that were trained and scored, in half precision, opened as usual, with their curves; scores and dataset as they
are, so that ``diffscope train RECIPE --out FOLDER --report`` tells of the copy what it tells of the original, and training goes
on from it with the runs that are missing. What a run needs to go on within itself stays behind.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

from diffscope.errors import DiffscopeError
from diffscope.lab.training.cohort import CURVES, DATASET
from diffscope.lab.training.train import RUN, WEIGHTS
from diffscope.store import open_statistics, replacing

BESIDE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "metrics.jsonl", RUN)


def keep(run: Path, target: Path) -> list[str]:
    """Copy the scored models of a cohort and what was measured of it.

    Parameters
    ----------
    run : Path
        What ``diffscope train`` trained into.
    target : Path
        Gets the copy; what is there of the same runs is replaced.

    Returns
    -------
    list of str
        The runs that were copied, ``ARM/seed-N``.

    Raises
    ------
    DiffscopeError
        There is no dataset of the cohort, which says which models were scored: their scores are those of full precision.
    """
    if not (run / DATASET).is_file():
        raise DiffscopeError(
            f"no run in {run} is finished yet, or none was reported: diffscope train RECIPE --out {run} --report"
        )
    there = open_statistics(run / DATASET)["finished"].to_series()
    scored = [run / arm / f"seed-{seed}" for arm, seed in there[there == 1].index]
    if gone := [str(folder) for folder in scored if not (folder / WEIGHTS).is_file()]:
        raise DiffscopeError(
            f"the scores of {gone[0]} are there and its model is not; train it again, or report without its scores"
        )
    for folder in scored:
        copy = target / folder.relative_to(run)
        copy.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.half() for name, tensor in load_file(folder / WEIGHTS).items()}
        with replacing(copy / WEIGHTS) as unfinished:
            save_file(tensors, unfinished, metadata={"format": "pt"})
        for name in BESIDE:
            shutil.copyfile(folder / name, copy / name)
    (target / "shards").mkdir(exist_ok=True)
    for file in (*(run / "shards").glob("[!.]*.nc"), run / DATASET, run / CURVES):
        shutil.copyfile(file, target / file.relative_to(run))
    return [str(folder.relative_to(run)) for folder in scored]


if __name__ == "__main__":
    kept = keep(*map(Path, sys.argv[1:]))
    sys.stdout.write(f"{len(kept)} runs kept in {sys.argv[2]}\n")
