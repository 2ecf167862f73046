"""The arms of a trained cohort side by side: what was measured of each, seed by seed, and what has to be said of a comparison."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import xarray as xr

from diffscope.errors import Missing
from diffscope.hypotheses.statistics import Sample
from diffscope.lab.training.onsets import Criterion, onset

MANY = (24, 48)  # distractors


def measured(cohort: xr.Dataset, name: str) -> xr.DataArray:
    """A variable of the cohort, or Missing."""
    if name not in cohort:
        raise Missing(f"a cohort whose {name} was measured")
    return cohort[name]


def of_arm(values: xr.DataArray, arm: str) -> xr.DataArray:
    """The values of one arm, or Missing."""
    if arm not in values["arm"].values:
        raise Missing(f"a cohort with the arm {arm!r}")
    return values.sel(arm=arm, drop=True)


def finished(cohort: xr.Dataset) -> xr.DataArray:
    """Which runs ended, (arm, seed)."""
    return measured(cohort, "finished") == 1


def formed(cohort: xr.Dataset) -> xr.DataArray:
    """In which runs the lookup circuit formed, (arm, seed): those that say when, and those that went on from another's."""
    formed = np.isfinite(measured(cohort, "formation").transpose("arm", "seed").values)
    if "log_odds" in cohort:
        went_on = np.isfinite(cohort["log_odds"].transpose("arm", "seed", ...).values)
        formed = formed | went_on.any(tuple(range(2, went_on.ndim)))
    ended = finished(cohort).transpose("arm", "seed")
    return ended.copy(data=formed & ended.values)


def steps_to_form(cohort: xr.Dataset) -> xr.DataArray:
    """Steps until the circuit formed, (arm, seed); of a run in which it did not, those after which it was given up.

    NaN where a run is missing, of arms that continue another, and everywhere if no run formed: of when, that says nothing.
    """
    steps = measured(cohort, "formation")
    if not np.isfinite(steps.values).any():
        raise Missing("a cohort in which the circuit formed in some run")
    limit = float(measured(cohort, "formation_limit"))
    own = ~cohort["arm"].isin(went_on(cohort))
    return xr.where(formed(cohort), steps, limit).where(finished(cohort) & own)


def onsets(cohort: xr.Dataset, criterion: Criterion) -> xr.DataArray:
    """Steps until the curve of exact answers meets a criterion, (arm, seed); inf of a run that never does.

    NaN where a run is missing, and of arms that continue another's formed model.
    """
    curves = measured(cohort, "retrieval").transpose("arm", "seed", "step")
    steps = curves["step"].values
    reached = [[onset(steps, curve, criterion) for curve in of_seeds] for of_seeds in curves.values]
    own = ~cohort["arm"].isin(went_on(cohort))
    return curves.isel(step=0, drop=True).copy(data=reached).where(finished(cohort) & own)


def octaves_of_steps(cohort: xr.Dataset, steps: xr.DataArray, arm: str, other: str) -> np.ndarray:
    """log2 of one arm's steps over another's, (seed,), of seeds that both have; a run that never gets there has the limit's."""
    given = steps.clip(max=float(measured(cohort, "formation_limit")))
    differences = np.log2((of_arm(given, arm) / of_arm(given, other)).values)
    return differences[np.isfinite(differences)]


def went_on(cohort: xr.Dataset) -> list[str]:
    """The arms that continue another's formed model, so that they have no formation of their own."""
    return list(json.loads(cohort.attrs.get("recipe", "{}")).get("continued", {}))


def log_odds(cohort: xr.Dataset) -> xr.DataArray:
    """Log-odds of the answer against all distractors, mean over prompts, (arm, seed, length, distractors); of formed models."""
    return measured(cohort, "log_odds").astype(float).mean("prompt")


def with_distractors(cohort: xr.Dataset, counts: Sequence[int] = MANY) -> xr.DataArray:
    """The same at some numbers of distractors, mean over them and over the lengths that hold them, (arm, seed)."""
    values = log_odds(cohort)
    if lacking := set(counts) - {int(count) for count in values["distractors"].values}:
        raise Missing(f"a cohort scored with {min(lacking)} distractors")
    return values.sel(distractors=list(counts)).mean("length").mean("distractors")


def text_loss(cohort: xr.Dataset, token: str) -> xr.DataArray:
    """Loss on text, (arm, seed), of tokens that are given away (hit) or not (other)."""
    return measured(cohort, "text").astype(float).sel(token=token, drop=True)


def common(cohort: xr.Dataset, *values: xr.DataArray) -> np.ndarray:
    """The seeds, by their places, of which all arms have a value; Missing if they are fewer than two."""
    seeds = np.logical_and.reduce([np.isfinite(of.values) for of in values])
    if seeds.sum() < 2:
        raise Missing("two seeds at least in which all arms that it compares have a value")
    return np.flatnonzero(seeds)


def minus(cohort: xr.Dataset, values: xr.DataArray, arm: str, other: str) -> Sample:
    """One arm minus another, seed by seed, of values (arm, seed)."""
    left, right = of_arm(values, arm), of_arm(values, other)
    places = common(cohort, left, right)
    difference = (left - right).values[places]
    return observed(cohort, difference, places, (arm, other))


def observed(cohort: xr.Dataset, differences: np.ndarray, places: np.ndarray, arms: Sequence[str]) -> Sample:
    """What was observed of seeds, each with prompts of its own; and, in words, which are left out and how arms were trained."""
    seeds = tuple(int(seed) for seed in cohort["seed"].values[places])
    return Sample(differences[:, None], prompts="nested", seeds=seeds, note=remarks(cohort, places, arms))


def remarks(cohort: xr.Dataset, places: np.ndarray, arms: Sequence[str]) -> str:
    """Which seeds of some arms are left out and why, and at which learning rates the arms were trained."""
    return ". ".join(filter(None, (_left_out(cohort, places, arms), rates(cohort, arms))))


def _left_out(cohort: xr.Dataset, places: np.ndarray, arms: Sequence[str]) -> str:
    names = [_name(arm) for arm in arms]
    rows = [cohort["arm"].values.tolist().index(arm) for arm in arms]
    started = finished(cohort).transpose("arm", "seed").values[rows]
    missing = np.setdiff1d(np.flatnonzero(started.any(0)), places)
    if not missing.size:
        return ""
    failed = started & ~formed(cohort).transpose("arm", "seed").values[rows]
    words = []
    for place in missing:
        reasons = [f"{name} never formed" for name, of in zip(names, failed[:, place]) if of]
        reasons += [f"{name} was not trained" for name, of in zip(names, started[:, place]) if not of]
        words.append(f"seed {int(cohort['seed'].values[place])} ({', '.join(reasons) or 'without a value'})")
    return f"left out of {' − '.join(names)}: {', '.join(words)}"


def rates(cohort: xr.Dataset, arms: Sequence[str]) -> str:
    """At which tuned learning rates arms were trained."""
    if "rate" not in cohort:
        return ""
    every = dict(zip(cohort["arm"].values.tolist(), cohort["rate"].values.tolist()))
    of = {_name(arm): every[arm] for arm in arms if np.isfinite(every[arm])}
    if not of:
        return ""
    words = f"learning rates: {', '.join(f'{name} {rate:g}' for name, rate in of.items())}"
    return words if len(set(of.values())) == 1 else f"{words}, each arm's best, so what differs is in part the rate"


def _name(arm: str) -> str:
    return "DIFF" if arm == "diff" else arm
