"""Whether arms form at another learning rate than the one that was chosen for them: exploratory, and no part of the study.

    python -m studies.laptop.other_rate no-norm --rate 0.002

The first stage alone of the laptop's cohort, with the seeds of its side arms, in as many steps as a tuning run has. Runs are kept
in ``runs/other-rate`` and go on where they stopped; the result ``other_rate`` has what is finished: step at which the lookup
circuit formed, by arm, rate and seed, null where it did not.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from diffscope.errors import DiffscopeError
from diffscope.lab.items import lock, torch_threads
from diffscope.lab.training.formation import formation
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.run import read_metrics
from diffscope.lab.training.runs import place_of
from diffscope.lab.training.train import train_run
from studies.laptop.results import write_result

PROCESSES = 2


def formed_at(arm: str, rate: float, seed: int, folder: Path) -> int | None:
    """Return the step at which a run forms, None if it does not; train it first if it is not trained yet."""
    recipe = Recipe.load("laptop").tuned(rate)
    out = folder / f"rate-{rate:g}"
    run = out / arm / f"seed-{seed}"
    with lock(out, place_of(arm, seed)), torch_threads(1):
        train_run(recipe, arm, seed, run, "cpu")
    return formation(read_metrics(run), recipe)


def main() -> None:
    """Train what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arms", nargs="+")
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--folder", type=Path, default=Path("runs/other-rate"))
    options = parser.parse_args()
    recipe = Recipe.load("laptop")
    seeds = recipe.minor.seeds if recipe.minor else recipe.seeds
    planned = [(arm, seed) for seed in seeds for arm in options.arms]
    record = {
        "rate": options.rate,
        "steps": recipe.tuning.steps if recipe.tuning else None,
        "formed_at": {arm: {} for arm in options.arms},
    }
    try:
        with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
            runs = {run: pool.submit(formed_at, run[0], options.rate, run[1], options.folder) for run in planned}
            for (arm, seed), run in runs.items():
                record["formed_at"][arm][str(seed)] = run.result()
                write_result("other_rate", record)
                print(f"{arm}, seed {seed}: {record['formed_at'][arm][str(seed)] or 'never'}", flush=True)
    except DiffscopeError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
