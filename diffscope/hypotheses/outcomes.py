"""What the arms of a trained cohort came to, seed by seed: the numbers whose differences primary tests take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from diffscope.errors import Missing
from diffscope.files import plain
from diffscope.hypotheses.cohort import formed, log_odds, measured, steps_to_form, went_on, with_distractors
from diffscope.hypotheses.intervals import students_t

FEWEST = 3  # seeds of which there is an interval
FORMATION = "formation"


def outcomes(cohort: xr.Dataset) -> list[dict[str, Any]]:
    """Of every arm each seed, and their mean with its 95 % interval (Student's t over seeds), not corrected.

    The means of two arms may be over other seeds, where not the same ones formed; primary tests take differences, seed by seed.

    Parameters
    ----------
    cohort : Dataset
        What ``diffscope train`` measured.

    Returns
    -------
    list of dict
        ``arm``; ``quantity``: "formation", steps until the lookup circuit forms, where a run in which it never does counts with
        the steps after which it was given up, averaged as a logarithm (not of arms that continue another's model); "answers",
        log-odds in nats, mean over prompts, then the lengths that hold them, then 24 and 48 distractors; "log_odds" in nats and
        "exact" as a share, of one cell each; ``length``, ``distractors`` (None where it is no cell); ``value``, ``low``, ``high``
        (None of no seeds; no interval of fewer than three, nor of a formation that some seed did not reach; that of shares is
        cut at 0 and 1); ``each``, the value of every seed by its name; ``runs``, how many are finished; ``never``, the seeds of
        these in which the circuit did not form, of which only formation has a value.
    """
    rows = []
    for quantity, values in _quantities(cohort).items():
        for arm in cohort["arm"].values:
            of_arm = values.sel(arm=arm)
            cells = (
                of_arm.stack(cell=("length", "distractors")).transpose("cell", "seed") if "length" in values.dims else [of_arm]
            )
            rows += [_row(cohort, quantity, cell) for cell in cells if _scored(cohort, quantity, values, cell)]
    return plain(rows)


def _quantities(cohort: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return the quantities that were measured, (arm, seed) or (arm, seed, length, distractors)."""
    known = {}
    for name, values in ((FORMATION, steps_to_form), ("answers", with_distractors), ("log_odds", log_odds), ("exact", _exact)):
        try:
            known[name] = values(cohort)
        except Missing:
            continue
    return known


def _exact(cohort: xr.Dataset) -> xr.DataArray:
    """Return the share of exact answers, (arm, seed, length, distractors), of formed models."""
    return measured(cohort, "exact_match").astype(float).mean("prompt", skipna=False)


def _scored(cohort: xr.Dataset, quantity: str, values: xr.DataArray, cell: xr.DataArray) -> bool:
    """Whether an arm was to have a value: formation where it continues no other, cells where some arm was scored."""
    arm = str(cell["arm"].item())
    if not (cohort["finished"].sel(arm=arm) == 1).any() or (quantity == FORMATION and arm in went_on(cohort)):
        return False
    place = {name: cell[name].item() for name in ("length", "distractors") if name in cell.coords}
    return bool(values.sel(place).notnull().any())


def _row(cohort: xr.Dataset, quantity: str, values: xr.DataArray) -> dict[str, Any]:
    """One arm's values, (seed,)."""
    known = values.dropna("seed")
    arm = str(values["arm"].item())
    ended = cohort["finished"].sel(arm=arm).values == 1
    never = cohort["seed"].values[ended & ~formed(cohort).sel(arm=arm).values]
    censored = quantity == FORMATION and len(never) > 0
    value, low, high = _mean(known.values, logarithm=quantity == FORMATION)
    if quantity == "exact":
        low, high = max(low, 0.0), min(high, 1.0)
    place = {name: int(values[name]) if name in values.coords else None for name in ("length", "distractors")}
    return {
        "arm": arm,
        "quantity": quantity,
        **place,
        "value": value,
        "low": np.nan if censored else low,
        "high": np.nan if censored else high,
        "each": {str(seed): number for seed, number in zip(known["seed"].values, known.values)},
        "runs": int(ended.sum()),
        "never": [int(seed) for seed in never],
    }


def _mean(numbers: Sequence[float] | np.ndarray, logarithm: bool) -> tuple[float, float, float]:
    """Return the mean, or the geometric mean, and the ends of its interval; NaN of too few."""
    if not len(numbers):
        return np.nan, np.nan, np.nan
    values = np.log(numbers) if logarithm else np.asarray(numbers)
    ends = students_t(values)[0] if len(values) >= FEWEST else (np.nan, np.nan)
    value, low, high = (float(np.exp(end) if logarithm else end) for end in (values.mean(), *ends))
    return value, low, high
