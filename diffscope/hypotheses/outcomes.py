"""What the arms of a trained cohort came to, seed by seed: the numbers that primary tests compare, to be drawn and listed."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from diffscope.files import plain
from diffscope.hypotheses.arms import formed, log_odds, measured, steps_to_form, with_distractors
from diffscope.hypotheses.intervals import students_t
from diffscope.hypotheses.rules import Missing

FEWEST = 3  # seeds of which there is an interval


def outcomes(cohort: xr.Dataset) -> list[dict[str, Any]]:
    """Of every arm each seed, and their mean with its 95 % interval (Student's t over seeds), not corrected.

    Parameters
    ----------
    cohort : Dataset
        What ``diffscope train`` measured.

    Returns
    -------
    list of dict
        ``arm``; ``quantity``: "formation" in steps, where a run that never formed counts with the steps after which it was given
        up, averaged as a logarithm; "answers", log-odds in nats as the primary test takes them; "log_odds" in nats and "exact"
        as a share, of one cell each; ``length``, ``distractors`` (None where it is no cell); ``value``, ``low``, ``high`` (None
        of fewer than three seeds); ``each``, the value of every seed by its name; ``never``, the seeds that did not form.
    """
    quantities = {"formation": (steps_to_form, True), "answers": (with_distractors, False)}
    rows = []
    for quantity, (values_of, logarithm) in quantities.items():
        try:
            values = values_of(cohort)
        except Missing:
            continue
        rows += [_row(cohort, quantity, values.sel(arm=arm), logarithm) for arm in cohort["arm"].values]
    for quantity, cells in _cells(cohort).items():
        flat = cells.stack(cell=("length", "distractors")).transpose("arm", "cell", "seed")
        rows += [_row(cohort, quantity, values) for of_arm in flat for values in of_arm]
    return plain([row for row in rows if row["each"]])


def _cells(cohort: xr.Dataset) -> dict[str, xr.DataArray]:
    """What is scored by length and number of distractors, (arm, seed, length, distractors), of formed models."""
    cells = {}
    if "log_odds" in cohort:
        cells["log_odds"] = log_odds(cohort)
    if "exact_match" in cohort:
        cells["exact"] = measured(cohort, "exact_match").astype(float).mean("prompt", skipna=False)
    return cells


def _row(cohort: xr.Dataset, quantity: str, values: xr.DataArray, logarithm: bool = False) -> dict[str, Any]:
    """One arm's values, (seed,)."""
    known = values.dropna("seed")
    numbers = np.log(known.values) if logarithm else known.values
    mean = numbers.mean() if len(numbers) else np.nan
    low, high = students_t(numbers)[0] if len(numbers) >= FEWEST else (np.nan, np.nan)
    value, low, high = np.exp([mean, low, high]) if logarithm else (mean, low, high)
    arm = str(values["arm"].item())
    did = formed(cohort).sel(arm=arm, seed=known["seed"]).values
    place = {name: int(values[name]) if name in values.coords else None for name in ("length", "distractors")}
    each = {str(seed): number for seed, number in zip(known["seed"].values, known.values)}
    never = [int(seed) for seed in known["seed"].values[~did]]
    return {"arm": arm, "quantity": quantity, **place, "value": value, "low": low, "high": high, "each": each, "never": never}
