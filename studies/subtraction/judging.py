"""From estimates of a part's primaries to what each account's prediction came to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from diffscope.hypotheses.inference import Estimate, as_estimate
from diffscope.hypotheses.intervals import LEVEL, holm
from diffscope.accounts import ACCOUNTS, OPEN, SILENT
from diffscope.hypotheses.rules import ABOVE, BELOW, Cost, Declared, Missing, Test, state
from studies.subtraction.primaries import PARTS, Part

NOT_TESTED = "not tested: one before it in the order was not found"


@dataclass(frozen=True)
class Judged:
    """What came of one primary.

    Attributes
    ----------
    test : Test
    estimate : Estimate or None
        None if it could not be read; then `note` says what it needs.
    p : float
        Corrected as its part says.
    state : str
        As :func:`diffscope.hypotheses.rules.state` says; empty if it could not be read.
    words : dict of account to {"for", "against", "open", "silent"}
    note : str
    """

    test: Test
    estimate: Estimate | None
    p: float = math.nan
    state: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def judge(name: str, dataset: xr.Dataset, cost: Cost | None = None) -> list[Judged]:
    """Read and judge the primaries of a part off its dataset over (arm, seed).

    Parameters
    ----------
    name : {"mechanism", "lookup", "text", "sinks"}
    dataset : Dataset
    cost : Cost, optional
        What the second map costs in the heads that tests inside heads are about.
    """
    estimates: dict[str, Estimate] = {}
    notes = {}
    for test in PARTS[name].tests:
        try:
            (observed,) = test.observe(dataset).values()
            estimates[test.id] = as_estimate(observed)
        except Missing as error:
            notes[test.id] = f"needs {error}"
    return judged(PARTS[name], estimates, notes, cost)


def judged(
    part: Part, estimates: Mapping[str, Estimate], notes: Mapping[str, str] | None = None, cost: Cost | None = None
) -> list[Judged]:
    """Judge the estimates of a part's primaries; one that has none keeps its place in the correction with a p of 1."""
    p = corrected(part, [estimates.get(test.id) for test in part.tests])
    rows = []
    for test, of_test in zip(part.tests, p):
        assert isinstance(test, Test)
        if test.id not in estimates:
            rows.append(Judged(test, None, note=(notes or {}).get(test.id, "")))
            continue
        estimate = estimates[test.id]
        shown = _state(test, estimate, of_test)
        if math.isnan(of_test):
            words = {account: OPEN if account in test.predictions else SILENT for account in ACCOUNTS}
            rows.append(Judged(test, estimate, of_test, shown, words, NOT_TESTED))
            continue
        (quantity,) = test.quantities
        words = test.judge({quantity: estimate}, {quantity: shown}, cost if test.inside else None)
        rows.append(Judged(test, estimate, of_test, shown, words))
    return rows


def corrected(part: Part, estimates: Sequence[Estimate | None]) -> list[float]:
    """p of a part's primaries as its correction says; NaN in a fixed order after one that was not found."""
    p = [1.0 if estimate is None or math.isnan(estimate.p) else estimate.p for estimate in estimates]
    if part.correction == "Holm":
        return holm(p)
    if part.correction == "none":
        return p
    rest = []
    found = True
    for test, estimate, of_test in zip(part.tests, estimates, p):
        rest.append(of_test if found else math.nan)
        found = found and estimate is not None and _found(test, estimate, of_test)
    return rest


def _found(test: Declared, estimate: Estimate, p: float) -> bool:
    """Whether the effect that the primary is about is there."""
    (wanted,) = test.asks.values()
    return p <= LEVEL and _state(test, estimate, p) == wanted


def _state(test: Declared, estimate: Estimate, p: float) -> str:
    (quantity,) = test.quantities.values()
    return state(estimate, 1.0 if math.isnan(p) else p, quantity.margin, quantity.no_effect)


def found(row: Judged) -> bool:
    """Whether a primary found an effect on the side that it asks about."""
    return row.estimate is not None and row.state in (ABOVE, BELOW) and row.state in row.test.asks.values()


def shares(rows: Sequence[Sequence[Judged]]) -> dict[str, dict[str, float]]:
    """Of many simulated readings of a part: by primary, the share in which it was found, and of each account's word."""
    table: dict[str, dict[str, float]] = {}
    for number, first in enumerate(rows[0]):
        column = [row[number] for row in rows]
        cells = {"found": float(np.mean([found(row) for row in column]))}
        for account in first.words:
            for word in ("for", "against"):
                cells[f"{account} {word}"] = float(np.mean([row.words[account] == word for row in column]))
        table[first.test.id] = cells
    return table
