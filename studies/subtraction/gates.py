"""What λ became in models of ``sinks``, and how many rows of D are 0 altogether: looked at after the part was read.

    python -m studies.subtraction.gates FOLDER

takes the models of DIFF and D⁺ in the folder that the study was trained into and writes what it finds of every seed into
``gates.json``, which the report quotes, since weights are not kept. A model that is trained again is the one that was read if it
has the same losses: on the kind of processor that it was first trained on.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from diffscope import numbers
from diffscope.errors import DiffscopeError
from diffscope.lab.training.run import WEIGHTS
from diffscope.lab.training.runs import SCORES
from diffscope.render import pipe_table
from diffscope.scope import load
from diffscope.storage.atomic import write_json
from diffscope.storage.statistics import open_statistics
from studies.subtraction.evidence import task_of
from studies.subtraction.train import recipe_of

PART = "sinks"
FILE = Path(__file__).with_suffix(".json")
READ = Path(__file__).with_name("evidence") / f"{PART}.nc"
ARMS = ("diff", "d-plus")
QUERIES = ("dormant", "triggers")


def of_model(folder: Path, seed: int) -> dict[str, float]:
    """Return λ of a model's only layer, and the share of its rows of D that are 0, at dormant queries and at triggers."""
    scope = load(folder)
    prompts = task_of(PART, scope, seed).prompts
    (layer,) = scope.capture([prompt.ids for prompt in prompts]).layers
    found: dict[str, float] = {"lambda": float(layer.lam.mean())}
    for name in QUERIES:
        rows = [layer.prompt(index).rows(prompt.spans[name]).d for index, prompt in enumerate(prompts)]  # (head, query, key)
        found[name] = float(np.mean([(each == 0).all(-1).double().mean().item() for each in rows]))
    return found


def of_folder(home: Path) -> dict[str, list[dict[str, float]]]:
    """Return what :func:`of_model` finds, by arm, of every seed, and as ``same`` whether its losses are those that were read.

    Raises
    ------
    DiffscopeError
        A model is not there.
    """
    losses = open_statistics(READ)["answer_loss"]  # (arm, seed, step)
    folders = {arm: [home / PART / arm / f"seed-{seed}" for seed in recipe_of(PART).seeds] for arm in ARMS}
    if lacking := [folder for each in folders.values() for folder in each if not (folder / WEIGHTS).is_file()]:
        raise DiffscopeError(
            f"{lacking[0]} has no {WEIGHTS}; train the models with: python -m studies.subtraction.train {home} --part {PART}"
        )
    found = {}
    for arm, each in folders.items():
        found[arm] = [{"seed": seed} | of_model(folder, seed) for seed, folder in zip(recipe_of(PART).seeds, each)]
        for folder, model, read in zip(each, found[arm], losses.sel(arm=arm).values):
            model["same"] = np.array_equal(open_statistics(folder / SCORES)["answer_loss"].values, read, equal_nan=True)
    return found


def table(found: dict[str, list[dict[str, float]]]) -> str:
    """List λ and empty rows by arm: λ from the least to the largest over seeds, the others with their mean."""
    rows = []
    for arm, models in found.items():
        values = {name: [model[name] for model in models] for name in ("lambda", *QUERIES)}
        shares = (
            f"{numbers.percent(float(np.mean(values[name])))} ({numbers.between(values[name], numbers.percent)})"
            for name in QUERIES
        )
        same = sum(model["same"] for model in models)
        rows.append((arm, str(len(models)), str(same), numbers.between(values["lambda"], numbers.two_figures), *shares))
    return pipe_table(
        (
            "arm",
            "seeds",
            "with the losses that were read",
            "λ",
            *(f"rows of D that are 0, {name}: mean (range)" for name in QUERIES),
        ),
        rows,
    )


def main() -> None:
    """Measure the models of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    try:
        write_json(FILE, of_folder(parser.parse_args().folder), indent=1)
    except DiffscopeError as error:
        sys.exit(f"error: {error}")
    print(table(read()))


def read() -> dict[str, list[dict[str, float]]]:
    """Return what was found of the models, as it is committed.

    Raises
    ------
    DiffscopeError
        It is not of the seeds of the recipe.
    """
    found = json.loads(FILE.read_text(encoding="utf-8"))
    if any([model["seed"] for model in found[arm]] != list(recipe_of(PART).seeds) for arm in ARMS):
        raise DiffscopeError(f"{FILE.name} is of other seeds than {PART}.toml; measure its models again")
    return found


if __name__ == "__main__":
    main()
