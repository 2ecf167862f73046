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


def tuned_arms(recipe: Recipe, arms: Sequence[str] = ()) -> list[str]:
    """Return the arms whose rate is chosen, for some arms or for all: one that continues another has that one's rate."""
    if recipe.tuning is None:
        return []
    return list(dict.fromkeys(source_arm(recipe, arm) for arm in arms or recipe.arms))


def source_arm(recipe: Recipe, arm: str) -> str:
    """Return the arm that has chosen an arm's rate: the one that it continues, or itself."""
    return recipe.continued[arm].arm if arm in recipe.continued else arm


def tuning_runs(recipe: Recipe, arms: Sequence[str] = ()) -> list[Item]:
    """Return the runs that show how well each learning rate does, of some arms or of all."""
    return [
        run_of({"tuning": True, **_spec(recipe.tuned(rate), arm, seed)})
        for arm in tuned_arms(recipe, arms)
        for rate in recipe.tuning.rates
        for seed in recipe.tuning.seeds
    ]


def runs(
    recipe: Recipe,
    arms: Sequence[str] = (),
    seeds: Sequence[int] = (),
    rates: Mapping[str, float] | None = None,
) -> list[Item]:
    """Return the runs of a cohort, group by group, all arms of a seed before those of the next seed; by default all of them.

    Of a recipe with tuning, only the arms whose rates are given.

    Raises
    ------
    DiffscopeError
        The recipe has no such arm.
    """
    for arm in arms or recipe.arms:
        recipe.config(arm, recipe.vocab_size)
    planned = []
    for group, usual in recipe.groups:
        chosen = [arm for arm in group if not arms or arm in arms]
        for seed in dict.fromkeys(seeds or usual):
            planned += [_run(recipe, arm, seed, rates) for arm in chosen if _rate(recipe, arm, rates) is not None]
    return planned


def _rate(recipe: Recipe, arm: str, rates: Mapping[str, float] | None) -> float | None:
    return recipe.learning_rate if recipe.tuning is None else (rates or {}).get(source_arm(recipe, arm))


def _run(recipe: Recipe, arm: str, seed: int, rates: Mapping[str, float] | None) -> Item:
    tuned = replace(recipe, learning_rate=_rate(recipe, arm, rates))
    parts = {name: part for name in ("grid", "plain_text") if (part := getattr(recipe, name)) is not None}
    scored = {name: without_defaults(part) for name, part in parts.items()}
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

    Returns
    -------
    dict of str to Dataset
        By the place of the run.

    Raises
    ------
    DiffscopeError
        A result is of another run, or was trained by another recipe, or scored on other prompts.
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


def tuning_table(recipe: Recipe, out: Path, arms: Sequence[str] = ()) -> xr.Dataset:
    """Tabulate the results of the runs that choose a rate.

    Returns
    -------
    xarray.Dataset
        ``tuning_area`` (arm, rate, tuning_seed), the mean over steps of the loss that is lowered (on answers, or on text where
        there are none), in nats: infinite where it diverged, NaN where the run is missing; ``tuning_formation``, the step at
        which it formed, NaN where it did not.
    """
    chosen = tuned_arms(recipe, arms)
    coords = {"arm": chosen, "rate": list(recipe.tuning.rates), "tuning_seed": list(recipe.tuning.seeds)}
    shape = tuple(len(values) for values in coords.values())
    table = {name: np.full(shape, np.nan) for name in ("area", "formation")}
    planned = tuning_runs(recipe, arms)
    opened = results(out, planned)
    for index, run in enumerate(planned):
        if run.place in opened:
            for name, values in table.items():
                values.flat[index] = float(opened[run.place][name])
    return xr.Dataset({f"tuning_{name}": (tuple(coords), values) for name, values in table.items()}, coords)


def chosen_rates(table: xr.Dataset, rule: str = LEAST_LOSS) -> dict[str, float]:
    """Choose the rate of each arm whose tuning runs are all there.

    By the rule "least loss" it is the rate with the least area, mean over the tuning seeds. By "formed in all" it is that among
    the rates at which all seeds formed; if there is none, among those at which most did, and :func:`unformed` names the arm.

    Raises
    ------
    DiffscopeError
        An arm diverged at every rate.
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
