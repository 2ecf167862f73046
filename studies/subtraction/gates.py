"""What λ became in models of ``sinks``, ``lookup`` and ``text``, and how many rows of D are 0; read of the weights themselves.

    python -m studies.subtraction.gates sinks FOLDER
    python -m studies.subtraction.gates text FOLDER --text CORPUS

takes the models of a part that are trained in the folder and writes what it finds of each into ``gates.json``, which the report
quotes, since weights are not kept. What it says of other models stays. A model that is trained again is the one that was read if
it has the same losses: on the kind of processor that it was first trained on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from diffscope import numbers
from diffscope.attention.layer import LayerAttention
from diffscope.errors import DiffscopeError
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.run import WEIGHTS
from diffscope.lab.training.runs import SCORES
from diffscope.lab.training.scores import LOSSES
from diffscope.render import pipe_table
from diffscope.scope import load
from diffscope.storage.atomic import write_json
from diffscope.storage.statistics import open_statistics
from diffscope.tasks.prompt import Prompt
from studies.subtraction.evidence import held_out_text, task_of
from studies.subtraction.train import cohort as cohort_of

FILE = Path(__file__).with_suffix(".json")
READ = Path(__file__).with_name("evidence")
ARMS = {"sinks": ("diff", "d-plus"), "lookup": ("diff", "plus", "d-plus", "shared-a2"), "text": ("diff", "plus")}
ALL, ANSWERING = "at all queries", "at the answering query"
QUERIES = {"sinks": ("dormant", "triggers"), "lookup": (ALL, ANSWERING), "text": (ALL, ANSWERING)}
ALONG = ("text",)  # parts of which λ is read of the checkpoints too
PARTS = tuple(ARMS)

Found = Mapping[str, Sequence[Mapping]]  # of a part: by arm, what :func:`of_model` finds of each seed, in their order


def at(prompt: Prompt, queries: str) -> Sequence[int]:
    """Return the places of a prompt's queries of a kind."""
    if queries == ALL:
        return range(len(prompt.ids))
    return [len(prompt.ids) - 1] if queries == ANSWERING else prompt.spans[queries]


def of_model(part: str, folder: Path, seed: int, recipe: Recipe) -> dict:
    """Return ``lambda`` of each layer, in D = A1 − λ·A2, and by kind of queries the share of rows of D that are 0.

    λ of a model that adds its second map is below 0 here. The share is the mean over prompts and layers. Of parts in ``ALONG``
    there is ``along`` too: λ of each layer by the step of the checkpoint.
    """
    scope = load(folder)
    prompts = task_of(part, scope, seed, held_out_text(recipe, scope)).prompts
    layers = scope.capture([prompt.ids for prompt in prompts]).layers
    found: dict = {"lambda": lambdas(layers)}
    if part in ALONG:
        found["along"] = {str(step): lambdas(scope.at(step).capture(prompts[0].ids).layers) for step in scope.checkpoints}
    for name in QUERIES[part]:
        rows = [layer.prompt(index).rows(at(prompt, name)).d for layer in layers for index, prompt in enumerate(prompts)]
        found[name] = float(np.mean([(each == 0).all(-1).double().mean().item() for each in rows]))  # each (head, query, key)
    return found


def lambdas(layers: Sequence[LayerAttention]) -> list[float]:
    """Return λ of each layer, the mean over its heads and queries."""
    return [float(layer.lam.double().mean()) for layer in layers]


def of_folder(part: str, home: Path, text: Path | None = None) -> dict[str, list[dict]]:
    """Return what :func:`of_model` finds of the models in a folder, by arm, and as ``same`` whether their losses are those read.

    Raises
    ------
    DiffscopeError
        There is no model, or the part's evidence, with which models are compared, lacks an arm.
    """
    evidence = READ / f"{part}.nc"
    again = f"take it with: python -m studies.subtraction.evidence {part} {home}"
    if not evidence.is_file():
        raise DiffscopeError(f"{evidence.name} is not there; {again}")
    losses = lowered(open_statistics(evidence))  # (arm, seed, step)
    recipe, found = cohort_of(part, home, text).recipe, {}
    for arm in ARMS[part]:
        folders = {seed: home / part / arm / f"seed-{seed}" for seed in recipe.seeds}
        trained = {seed: folder for seed, folder in folders.items() if (folder / WEIGHTS).is_file()}
        if trained and arm not in losses["arm"]:
            raise DiffscopeError(f"{evidence.name} lacks {arm}; {again}")
        found[arm] = [
            {"seed": seed, **of_model(part, folder, seed, recipe), "same": alike(folder, losses.sel(arm=arm, seed=seed))}
            for seed, folder in trained.items()
        ]
    if not any(found.values()):
        raise DiffscopeError(
            f"no model is in {home / part}; train them with: python -m studies.subtraction.train {home} --part {part}"
        )
    return found


def alike(folder: Path, losses: xr.DataArray) -> bool:
    """Whether a run has logged the losses that its part's evidence has of it, (step,), at the same steps."""
    own, known = (each.dropna("step") for each in (lowered(open_statistics(folder / SCORES)), losses))
    return known.size > 0 and np.array_equal(own["step"], known["step"]) and np.array_equal(own, known)


def lowered(scores: xr.Dataset) -> xr.DataArray:
    """Return the losses of trainings by step: of all that a step lowers, or else of answers, or else of text."""
    return next(scores[name] for name in LOSSES if name in scores and bool(scores[name].notnull().any()))


def merged(known: Found, found: Found) -> dict[str, list[dict]]:
    """Return what is known of a part's models, with what was found now in the place of what was known of the same seeds."""
    by_arm = {}
    for arm in dict.fromkeys((*known, *found)):
        models = {model["seed"]: dict(model) for model in (*known.get(arm, ()), *found.get(arm, ()))}
        by_arm[arm] = [models[seed] for seed in sorted(models)]
    return by_arm


def table(part: str, found: Found) -> str:
    """List by arm λ of each layer, the least and the largest over seeds, and how many rows of D are 0, with the mean too."""
    layers = len(next(iter(found.values()))[0]["lambda"])
    rows = []
    for arm, models in found.items():
        lambdas = np.array([model["lambda"] for model in models])  # (seed, layer)
        shares = ([model[name] for model in models] for name in QUERIES[part])
        cells = (f"{numbers.percent(float(np.mean(each)))} ({numbers.between(each, numbers.percent)})" for each in shares)
        same = sum(model["same"] for model in models)
        rows.append(
            (arm, str(len(models)), str(same), *(numbers.between(each, numbers.two_figures) for each in lambdas.T), *cells)
        )
    return pipe_table(
        (
            "arm",
            "seeds",
            "with the losses that were read",
            *(["λ"] if layers == 1 else [f"λ in A1 − λ·A2, layer {layer}" for layer in range(layers)]),
            *(f"rows of D that are 0, {name}: mean (range)" for name in QUERIES[part]),
        ),
        rows,
    )


def course(found: Found) -> str:
    """List λ of each layer along the training by arm, the least and the largest over seeds, at steps that all have."""
    rows = []
    for arm, models in found.items():
        for step in [step for step in models[0]["along"] if all(step in model["along"] for model in models)]:
            by_layer = np.transpose([model["along"][step] for model in models])  # (layer, seed)
            rows.append((arm, step, *(numbers.between(lams, numbers.two_figures) for lams in by_layer)))
    layers = range(len(next(iter(found.values()))[0]["lambda"]))
    return pipe_table(("arm", "step", *(f"λ in A1 − λ·A2, layer {layer}" for layer in layers)), rows)


def read(part: str, trained: Mapping[str, Sequence[int]]) -> dict[str, list[dict]]:
    """Return what was found of a part's models, as it is committed.

    Parameters
    ----------
    part : str
    trained : dict of str to sequence of int
        The seeds of which there is a model, by arm; arms that are not asked about are left out.

    Raises
    ------
    DiffscopeError
        It is of other seeds.
    """
    known = _committed().get(part, {})
    found = {arm: known.get(arm, []) for arm in ARMS[part] if arm in trained}
    if wrong := [arm for arm, models in found.items() if [model["seed"] for model in models] != list(trained[arm])]:
        raise DiffscopeError(f"{FILE.name} is not of all models of {wrong[0]} in {part}; measure those that are missing")
    return found


def _committed() -> dict[str, dict[str, list[dict]]]:
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}


def main() -> None:
    """Measure the models of a folder, and print how many are known of."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text", type=Path, help="the folder of the corpus, for the part that was trained on it")
    options = parser.parse_args()
    known = _committed()
    try:
        known[options.part] = merged(known.get(options.part, {}), of_folder(options.part, options.folder, options.text))
        write_json(FILE, known, indent=1)
    except DiffscopeError as error:
        sys.exit(f"error: {error}")
    counts = ", ".join(f"{arm} {len(models)}" for arm, models in known[options.part].items())
    print(f"{options.part}: seeds that {FILE.name} has: {counts}")


if __name__ == "__main__":
    main()
