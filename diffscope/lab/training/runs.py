"""The runs of a cohort as items of a queue: those that choose each arm's learning rate, and those that use it.

A run is found by what it is: its result lies in its folder, ``ARM/seed-N/scores.nc``, and names what it was trained and scored
by. Versions of programs are recorded in it, and are never part of what it is found by.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.lab.items import Item
from diffscope.lab.training.recipe import Recipe, without_defaults
from diffscope.lab.training.run import check_same, differences, recipe_text
from diffscope.lab.training.stages import FORMED_IN_ALL, LEAST_LOSS
from diffscope.storage.statistics import open_statistics

SCORES = "scores.nc"  # a run's result, in its folder
NEAR = (0, 2, 4, 6)  # near-duplicates among the distractors, at the middle length of the grid
TUNING = "tuning"  # the folder of runs that choose a rate


def source_arm(recipe: Recipe, arm: str) -> str:
    """Return the arm that has chosen an arm's rate: the one that it continues, or itself."""
    return recipe.continued[arm].arm if arm in recipe.continued else arm


def tuning_run(recipe: Recipe, arm: str, rate: float, seed: int) -> Item:
    """Return the run that shows how well an arm does at a rate."""
    return run_of({"tuning": True, **_spec(recipe.tuned(rate), arm, seed)})


def scored_run(recipe: Recipe, arm: str, rate: float, seed: int) -> Item:
    """Return the run of an arm at its rate, which is scored in the end."""
    parts = {name: part for name in ("grid", "plain_text") if (part := getattr(recipe, name)) is not None}
    scored = {name: without_defaults(part) for name, part in parts.items()}
    tuned = replace(recipe, learning_rate=rate)
    return run_of({**_spec(tuned, arm, seed), "scoring": json.dumps({**scored, "near": NEAR}, sort_keys=True)})


def _spec(recipe: Recipe, arm: str, seed: int) -> dict:
    return {"arm": arm, "seed": seed, "rate": recipe.learning_rate, "recipe": recipe_text(recipe, arm)}


def run_of(spec: dict) -> Item:
    """Return the run of a spec, with the place of its result."""
    above = f"{TUNING}/rate-{spec['rate']:g}/" if "tuning" in spec else ""
    return Item(above + place_of(spec["arm"], spec["seed"]), spec)


def place_of(arm: str, seed: int) -> str:
    """Return where the result of an arm's run lies below the folder of its cohort."""
    return f"{arm}/seed-{seed}/{SCORES}"


def run_folder(out: Path, run: Item) -> Path:
    """Return the folder in which a run is trained."""
    return run.result(out).parent


def identity(run: Item) -> dict:
    """Return the attributes by which a result names its run, and what it was trained and scored by."""
    return {name: run.spec[name] for name in ("arm", "seed", "rate", "recipe", "scoring") if name in run.spec}


def results(out: Path, planned: Sequence[Item]) -> dict[str, xr.Dataset]:
    """Open the results of those runs that are finished.

    Raises DiffscopeError if a result is of another run, or was trained by another recipe, or scored on other prompts.

    Returns
    -------
    dict of str to Dataset
        By the place of the run.
    """
    opened = {}
    for run in planned:
        path = run.result(out)
        if path.is_file():
            opened[run.place] = _opened(path, path.stat().st_mtime_ns)
            of = opened[run.place].attrs
            _check_which(path, of, run)
            check_same(path.parent, of.get("recipe"), run.spec["recipe"])
            if "scoring" in run.spec and (differing := differences(of.get("scoring"), run.spec["scoring"])):
                raise DiffscopeError(
                    f"{path} was scored on other prompts ({differing}); give another folder, or remove this file: the run is "
                    "then scored again, and trained again if its model is not there"
                )
    return opened


def diverged_runs(out: Path, planned: Sequence[Item]) -> set[tuple[str, int]]:
    """Return arm and seed of the finished runs that diverged, or continue one that never formed: there is no final model."""
    return {(of.attrs["arm"], of.attrs["seed"]) for of in results(out, planned).values() if "parameters" not in of}


def _check_which(path: Path, of: Mapping, run: Item) -> None:
    """Refuse a result of another arm, seed or rate than the run in whose folder it lies."""
    if wrong := [key for key in ("arm", "seed", "rate") if of.get(key) != run.spec[key]]:
        found, wanted = (", ".join(f"{key} {facts.get(key)}" for key in wrong) for facts in (of, run.spec))
        raise DiffscopeError(
            f"{path} is the result of another run ({found} instead of {wanted}); put it into that run's folder, or remove it: "
            "the run is then scored again, and trained again if its model is not there"
        )


@lru_cache(maxsize=1024)  # read again and again while a cohort is trained
def _opened(path: Path, changed: int) -> xr.Dataset:
    return open_statistics(path)


def run_label(run: Item) -> str:
    """Return the name of a run for people: its arm and seed, and the rate of one that is to choose it."""
    rate = f", rate {run.spec['rate']:g}" if "tuning" in run.spec else ""
    return f"{run.spec['arm']}, seed {run.spec['seed']}{rate}"


def chosen_rates(table: xr.Dataset, rule: str = LEAST_LOSS) -> dict[str, float]:
    """Choose the rate of each arm whose tuning runs are all there.

    By the rule "least loss" it is the rate with the least area, mean over the tuning seeds. By "formed in all" it is that among
    the rates at which all seeds formed; if there is none, among those at which most did, and :func:`unformed` names the arm.

    Raises DiffscopeError if an arm diverged at every rate.
    """
    area = table["tuning_area"].mean("tuning_seed", skipna=False)  # (arm, rate)
    formed = _formed(table)  # (arm, rate)
    rates = {}
    for arm in area["arm"].values:
        values = area.sel(arm=arm).values
        if np.isinf(values).all():
            raise DiffscopeError(f"arm {arm} diverges at every rate of [tuning]; give smaller ones")
        if np.isnan(values).any():
            continue
        if rule == FORMED_IN_ALL:
            counts = np.where(np.isinf(values), -1, formed.sel(arm=arm).values)
            values = np.where(counts == counts.max(), values, np.inf)
        rates[str(arm)] = float(area["rate"].values[values.argmin()])
    return rates


def unformed(table: xr.Dataset, rates: Mapping[str, float]) -> dict[str, int]:
    """Return the arms that did not form with every tuning seed at their rate, with the number of seeds with which they did."""
    counts = {arm: int(_formed(table).sel(arm=arm, rate=rate)) for arm, rate in rates.items()}
    return {arm: count for arm, count in counts.items() if count < table.sizes["tuning_seed"]}


def _formed(table: xr.Dataset) -> xr.DataArray:
    """Count with how many tuning seeds an arm formed at a rate, (arm, rate)."""
    return table["tuning_formation"].notnull().sum("tuning_seed")
