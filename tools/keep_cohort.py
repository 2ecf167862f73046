"""Copy a trained cohort: its dataset and, in half precision, its models.

``python tools/keep_cohort.py runs/laptop COPY --arm diff --arm standard --seed 0 --seed 1 --seed 2`` copies the models of these
arms and seeds; without ``--arm`` or ``--seed`` those of all. The dataset, ``cohort.nc``, is copied as it is, with the curves and
scores of all runs, so that ``diffscope train RECIPE --out COPY --report`` tells of the copy what it tells of
the original. Scores of single runs, checkpoints and states stay behind: nothing can be trained into a copy.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Collection
from pathlib import Path

from diffscope.errors import DiffscopeError
from diffscope.lab.training.cohort import DATASET, has_scores, open_dataset
from diffscope.lab.training.kept_weights import copy_in_half, copy_tokenizer
from diffscope.lab.training.run import WEIGHTS


def keep(run: Path, target: Path, arms: Collection[str] = (), seeds: Collection[int] = ()) -> list[str]:
    """Copy the dataset of a cohort and its scored models.

    Parameters
    ----------
    run : Path
        The folder that ``diffscope train`` trained into.
    target : Path
        Gets the copy, in place of what it holds of the same runs.
    arms : collection of str, optional
    seeds : collection of int, optional
        Which models are copied; by default all that are finished.

    Returns
    -------
    list of str
        The runs whose models were copied, ``ARM/seed-N``.

    Raises
    ------
    DiffscopeError
        There is no dataset of the cohort, which says which models were scored; or no finished run of an arm or seed; or a
        scored model is gone; or the target is a training's own folder.
    """
    if run.resolve() == target.resolve() or has_scores(target):
        raise DiffscopeError(f"{target} is what a training wrote; copy into another folder")
    finished = open_dataset(run)["finished"].to_series()
    scored = list(finished[finished == 1].index)  # (arm, seed)
    for wanted, known in ((arms, {arm for arm, _ in scored}), (seeds, {seed for _, seed in scored})):
        if absent := [name for name in wanted if name not in known]:
            raise DiffscopeError(f"{run} has no finished run of {absent[0]!r}; it has {', '.join(map(str, sorted(known)))}")
    chosen = [(arm, seed) for arm, seed in scored if (not arms or arm in arms) and (not seeds or seed in seeds)]
    folders = [run / arm / f"seed-{seed}" for arm, seed in chosen]
    if gone := [folder for folder in folders if not (folder / WEIGHTS).is_file()]:
        raise DiffscopeError(
            f"{gone[0]} was scored and its model is gone; train it again, or choose others with --arm and --seed"
        )
    for folder in folders:
        copy = target / folder.relative_to(run)
        copy.mkdir(parents=True, exist_ok=True)
        copy_in_half(folder, copy)
    target.mkdir(parents=True, exist_ok=True)
    if folders:
        copy_tokenizer(folders[0], target)
    shutil.copyfile(run / DATASET, target / DATASET)
    return [str(folder.relative_to(run)) for folder in folders]


def main() -> int:
    """Keep what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder that diffscope train trained into")
    parser.add_argument("target", type=Path, help="the folder of the copy")
    parser.add_argument("--arm", action="append", default=[], help="an arm whose models are copied; repeatable")
    parser.add_argument("--seed", action="append", default=[], type=int, help="a seed whose models are copied; repeatable")
    options = parser.parse_args()
    try:
        copied = keep(options.run, options.target, options.arm, options.seed)
    except DiffscopeError as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(f"{len(copied)} models copied to {options.target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
