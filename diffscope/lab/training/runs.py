"""The runs of a cohort as pieces of work: those that choose each arm's learning rate, and those that use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.lab.jobs import shards
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.run_folder import recipe_text
from diffscope.store import open_statistics, provenance

NEAR = (0, 2, 4, 6)  # near-duplicates among the distractors, at the middle length of the grid
TUNING = "tuning"  # the folder of runs that choose a rate


def tuned_arms(recipe: Recipe, arms: Sequence[str] = ()) -> list[str]:
    """The arms whose rate is chosen, for these arms or for all: one that continues another has that one's rate."""
    if recipe.tuning is None:
        return []
    return list(dict.fromkeys(_source(recipe, arm) for arm in arms or recipe.arms))


def _source(recipe: Recipe, arm: str) -> str:
    return recipe.continued[arm].arm if arm in recipe.continued else arm


def tuning_runs(recipe: Recipe, arms: Sequence[str] = (), device: str = "cpu") -> list[shards.Shard]:
    """The runs that show how well each learning rate does, of some arms or of all."""
    return [
        shards.Shard({"tuning": True, "seed": seed, **_spec(recipe.tuned(rate), arm, device)})
        for arm in tuned_arms(recipe, arms)
        for rate in recipe.tuning.rates
        for seed in recipe.tuning.seeds
    ]


def runs(
    recipe: Recipe,
    arms: Sequence[str] = (),
    seeds: Sequence[int] = (),
    device: str = "cpu",
    rates: Mapping[str, float] | None = None,
) -> list[shards.Shard]:
    """The runs of a cohort, group by group, all arms of a seed before those of the next seed; by default all of them.

    The grid, the kind of device and the versions of libraries are part of a run's spec: where one changes, its model is scored
    again. Of a recipe with tuning, only the arms whose rates are given.

    Raises
    ------
    DiffscopeError
        The recipe has no such arm, or nothing to score its models on.
    """
    if not recipe.scored:
        raise DiffscopeError(f"recipe {recipe.name!r} has no [grid] to score its models on; compare it with laptop.toml")
    for arm in arms or recipe.arms:
        recipe.config(arm, recipe.vocab_size)
    planned = []
    for group, usual in recipe.groups:
        chosen = [arm for arm in group if not arms or arm in arms]
        for seed in dict.fromkeys(seeds or usual):
            planned += [_run(recipe, arm, seed, device, rates) for arm in chosen if _rate(recipe, arm, rates) is not None]
    return planned


def _rate(recipe: Recipe, arm: str, rates: Mapping[str, float] | None) -> float | None:
    return recipe.learning_rate if recipe.tuning is None else (rates or {}).get(_source(recipe, arm))


def _run(recipe: Recipe, arm: str, seed: int, device: str, rates: Mapping[str, float] | None) -> shards.Shard:
    tuned = replace(recipe, learning_rate=_rate(recipe, arm, rates))
    scored = {name: recipe.as_dict()[name] for name in ("grid", "plain_text")}
    return shards.Shard({"seed": seed, **_spec(tuned, arm, device), **scored, "near": NEAR})


def _spec(recipe: Recipe, arm: str, device: str) -> dict:
    common = {"device": device.partition(":")[0], "made_with": provenance(False)}
    return {"arm": arm, "rate": recipe.learning_rate, "run": recipe_text(recipe, arm), **common}


def home(out: Path, run: shards.Shard) -> Path:
    """The folder in which a run is trained."""
    place = out / TUNING / f"rate-{run.spec['rate']:g}" if "tuning" in run.spec else out
    return place / run.spec["arm"] / f"seed-{run.spec['seed']}"


def name(run: shards.Shard) -> str:
    """A run as text: its arm and seed, and the rate of one that is to choose it."""
    rate = f", rate {run.spec['rate']:g}" if "tuning" in run.spec else ""
    return f"{run.spec['arm']}, seed {run.spec['seed']}{rate}"


def tuning_table(recipe: Recipe, out: Path, arms: Sequence[str] = (), device: str = "cpu") -> xr.Dataset:
    """What the runs that choose a rate came to.

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
    for index, run in enumerate(tuning_runs(recipe, arms, device)):
        path = shards.result(out, run, ".nc")
        if path.exists():
            outcome = open_statistics(path)
            for name, values in table.items():
                values.flat[index] = float(outcome[name])
    return xr.Dataset({f"tuning_{name}": (tuple(coords), values) for name, values in table.items()}, coords)


def chosen_rates(table: xr.Dataset) -> dict[str, float]:
    """The rate of each arm with the least area, mean over the tuning seeds; of those whose runs are all there.

    Raises
    ------
    DiffscopeError
        An arm diverged at every rate.
    """
    area = table["tuning_area"].mean("tuning_seed", skipna=False)  # (arm, rate)
    rates = {}
    for arm in area["arm"].values:
        values = area.sel(arm=arm).values
        if np.isinf(values).all():
            raise DiffscopeError(f"arm {arm} diverges at every rate of [tuning]; give smaller ones")
        if not np.isnan(values).any():
            rates[str(arm)] = float(area["rate"].values[values.argmin()])
    return rates
