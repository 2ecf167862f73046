"""A trained cohort by the evidence that was kept of its runs: what takes it, and what tests are made on then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr

from diffscope.evidence.at_end import A2_LOST
from diffscope.evidence.take import EVIDENCE, keep_evidence, open_evidence
from diffscope.hypotheses.a2_cost import WHOLE
from diffscope.hypotheses.arms import formed
from diffscope.hypotheses.kept import KeptModels, for_cohort, kept_of, open_kept
from diffscope.hypotheses.subjects import Pair
from diffscope.hypotheses.weights import KNOCK_OUT, Weights
from diffscope.lab.training.recipe import Recipe
from diffscope.tasks.retrieval import TEMPLATE


def take_evidence(folder: Path, recipe: Recipe, seed: int) -> Path:
    """Take the evidence of a finished run, on prompts of the sentence that it is scored with, and keep it in its folder."""
    template = TEMPLATE if recipe.grid is None else recipe.grid.template
    return keep_evidence(folder, template, seed, arm=folder.parent.name)


def with_evidence(cohort: xr.Dataset, folder: Path) -> xr.Dataset:
    """A cohort's dataset with what its primary tests read of the evidence, over (arm, seed); NaN where a run has none."""
    opened = {
        (str(arm), int(seed)): open_evidence(path)
        for arm in cohort["arm"].values
        for seed in cohort["seed"].values
        if (path := folder / str(arm) / f"seed-{seed}" / EVIDENCE).is_file()
    }
    known = all(A2_LOST in dataset["end_quantity"] for dataset in opened.values() if dataset.attrs["differential"])
    of = "A2" if known else WHOLE
    runs = {name: for_cohort(dataset, of) for name, dataset in opened.items()}
    if not runs:
        return cohort
    missing = xr.full_like(next(iter(runs.values())), np.nan)
    rows = [
        xr.concat([runs.get((str(arm), int(seed)), missing) for seed in cohort["seed"].values], "seed", join="outer")
        for arm in cohort["arm"].values
    ]
    read = xr.concat(rows, "arm", join="outer").assign_coords(arm=cohort["arm"], seed=cohort["seed"])
    read["a2_cost"].attrs["of"] = of
    return cohort.merge(read.drop_vars([name for name in read.data_vars if name in cohort]))


def kept_models(
    folder: Path, cohort: xr.Dataset, weights: Weights = KNOCK_OUT
) -> tuple[KeptModels, Pair | None, list[KeptModels]] | None:
    """A cohort's formed runs of DIFF by their evidence: their ends, beside those of standard attention, and each one's steps.

    None where no formed run of DIFF has any. Heads count with `weights`, as of :class:`~diffscope.hypotheses.kept.KeptModels`.
    """
    (alone,) = _formed(kept_of(folder, "diff"), cohort, "diff")
    if not alone:
        return None
    diff, standard = _formed(kept_of(folder, "diff", "standard"), cohort, "diff", "standard")
    pair = Pair(open_kept(diff, weights=weights), open_kept(standard, weights=weights)) if standard else None
    return open_kept(alone, weights=weights), pair, [open_kept([path], True, weights) for path in alone]


def _formed(paths: list[list[Path]], cohort: xr.Dataset, *arms: str) -> list[list[Path]]:
    """Those of the cohort's seeds in which the circuit formed in all of these arms: what has not formed answers with no head."""
    if set(arms) - {str(arm) for arm in cohort["arm"].values}:
        return [[] for _ in arms]
    together = formed(cohort).sel(arm=list(arms)).all("arm")
    seeds = {int(seed) for seed in cohort["seed"].values[together.values]}
    return [[path for path in of_arm if int(path.parent.name.removeprefix("seed-")) in seeds] for of_arm in paths]
