"""From estimates of a part's primaries to what each account's prediction came to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from diffscope.errors import Missing
from diffscope.hypotheses.accounts import ACCOUNTS, OPEN, SILENT
from diffscope.hypotheses.intervals import holm
from diffscope.hypotheses.rules import Cost, Test, state
from diffscope.hypotheses.statistics import Estimate, as_estimate
from studies.subtraction.primaries import PARTS, Part

Estimates = Mapping[str, Mapping[str, Estimate]]  # by primary and quantity
NOT_TESTED = "not tested: one before it in the order was not detected"


@dataclass(frozen=True)
class Judged:
    """What came of one primary.

    Attributes
    ----------
    test : Test
    estimates : dict of str to Estimate
        By quantity; empty if it could not be read, and then `note` says what it needs.
    p : float
        Corrected as its part says; of several quantities the largest. NaN in a fixed order after one that was not detected.
    states : dict of str to str
        By quantity, as :func:`diffscope.hypotheses.rules.state` says.
    words : dict of account to {"for", "against", "open", "silent"}
    note : str
    """

    test: Test
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    p: float = math.nan
    states: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def detected(self) -> bool:
        """Whether there is an effect on the side that the primary asks about."""
        return _as_asked(self.test, self.states)


def judge(name: str, dataset: xr.Dataset, cost: Cost | None = None) -> list[Judged]:
    """Read and judge the primaries of a part off its dataset over (arm, seed).

    Parameters
    ----------
    name : {"mechanism", "lookup", "text", "sinks", "sinks-tied"}
    dataset : Dataset
    cost : Cost, optional
        What the second map costs in the heads that tests inside heads are about.
    """
    estimates = {}
    notes = {}
    for test in PARTS[name].tests:
        try:
            estimates[test.id] = {name: as_estimate(of) for name, of in test.measure(dataset).items()}
        except Missing as error:
            notes[test.id] = f"needs {error}"
    return judged(PARTS[name], estimates, notes, cost)


def judged(part: Part, estimates: Estimates, notes: Mapping[str, str] | None = None, cost: Cost | None = None) -> list[Judged]:
    """Judge the estimates of a part's primaries; one that has none keeps its place in the correction with a p of 1."""
    rows = []
    for test, p in zip(part.tests, corrected(part, estimates)):
        if test.id not in estimates:
            idle = test.idle(cost)
            words = dict.fromkeys(ACCOUNTS, SILENT) if idle else {}
            rows.append(Judged(test, words=words, note="A2 is idle" if idle else (notes or {}).get(test.id, "")))
            continue
        of_test = estimates[test.id]
        states = _states(test, of_test, p)
        words = test.judge(of_test, states, cost if test.inside else None)
        if math.isnan(p):
            words = {account: SILENT if word == SILENT else OPEN for account, word in words.items()}
        rows.append(Judged(test, of_test, p, states, words, NOT_TESTED if math.isnan(p) else ""))
    return rows


def corrected(part: Part, estimates: Estimates) -> list[float]:
    """p of a part's primaries as its correction says; NaN in a fixed order after one that was not detected."""
    p = [_p(estimates[test.id]) if test.id in estimates else 1.0 for test in part.tests]
    if part.correction == "Holm":
        return holm(p)
    if part.correction == "none":
        return p
    rest = []
    detected = True
    for test, of_test in zip(part.tests, p):
        rest.append(of_test if detected else math.nan)
        states = _states(test, estimates[test.id], of_test) if test.id in estimates else {}
        detected = detected and _as_asked(test, states)
    return rest


def _as_asked(test: Test, states: Mapping[str, str]) -> bool:
    """Whether every quantity that a primary asks about is on the side that it asks for; not if there is none."""
    return bool(states) and all(states[name] == wanted for name, wanted in test.asks.items())


def _p(estimates: Mapping[str, Estimate]) -> float:
    """Return the largest p of a primary's quantities; one without p counts as 1."""
    return max(1.0 if math.isnan(estimate.p) else estimate.p for estimate in estimates.values())


def _states(test: Test, estimates: Mapping[str, Estimate], p: float) -> dict[str, str]:
    states = {}
    for name, quantity in test.quantities.items():
        states[name] = state(estimates[name], 1.0 if math.isnan(p) else p, quantity.margin, quantity.no_effect)
    return states


def shares(readings: Sequence[Sequence[Judged]]) -> dict[str, dict[str, float]]:
    """Of many simulated readings of a part: by primary, the share in which it was detected, and that of each account's words."""
    table: dict[str, dict[str, float]] = {}
    for number, first in enumerate(readings[0]):
        column = [rows[number] for rows in readings]
        cells = {"detected": float(np.mean([row.detected for row in column]))}
        for account in first.words:
            for word in ("for", "against"):
                cells[f"{account} {word}"] = float(np.mean([row.words[account] == word for row in column]))
        table[first.test.id] = cells
    return table
