"""A trained cohort by the evidence that was kept of its runs: what takes it, and what tests are made on then."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import xarray as xr

from diffscope.hypotheses.evidence.of_run import EVIDENCE, keep_evidence, open_evidence
from diffscope.hypotheses.kept import KeptModels, for_cohort, kept_of, open_kept
from diffscope.lab.training.recipe import Recipe
from diffscope.tasks.retrieval import TEMPLATE


def take_evidence(folder: Path, recipe: Recipe, seed: int) -> Path:
    """Take the evidence of a finished run, on prompts of the sentence that it is scored with, and keep it in its folder."""
    return keep_evidence(folder, TEMPLATE if recipe.grid is None else recipe.grid.template, seed)


def with_evidence(cohort: xr.Dataset, folder: Path) -> xr.Dataset:
    """A cohort's dataset with what its primary tests read of the evidence, over (arm, seed); NaN where a run has none."""
    runs = {
        (str(arm), int(seed)): for_cohort(open_evidence(path))
        for arm in cohort["arm"].values
        for seed in cohort["seed"].values
        if (path := folder / str(arm) / f"seed-{seed}" / EVIDENCE).is_file()
    }
    if not runs:
        return cohort
    missing = xr.Dataset({"cmrr_over_paired": np.nan})
    rows = [
        xr.concat([runs.get((str(arm), int(seed)), missing) for seed in cohort["seed"].values], "seed", join="outer")
        for arm in cohort["arm"].values
    ]
    read = xr.concat(rows, "arm", join="outer").assign_coords(arm=cohort["arm"], seed=cohort["seed"])
    return cohort.merge(read.drop_vars([name for name in read.data_vars if name in cohort]))


def kept_models(folder: Path, seeds: Collection[int]) -> tuple[KeptModels, KeptModels | None, list[KeptModels]] | None:
    """DIFF's runs of some seeds by their evidence: their ends, those of standard attention beside them, and each one's steps.

    None where no run of DIFF has any.
    """
    (alone,) = _of_seeds(kept_of(folder, "diff"), seeds)
    if not alone:
        return None
    diff, standard = _of_seeds(kept_of(folder, "diff", "standard"), seeds)
    beside = open_kept(standard) if standard else None
    return open_kept(diff if standard else alone), beside, [open_kept([path], series=True) for path in alone]


def _of_seeds(paths: list[list[Path]], seeds: Collection[int]) -> list[list[Path]]:
    return [[path for path in of_arm if int(path.parent.name.removeprefix("seed-")) in seeds] for of_arm in paths]
