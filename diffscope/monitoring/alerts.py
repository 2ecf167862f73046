"""Say when a number of a training leaves its bounds: once when it does, and again only after it was back within them."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.stats.averaging import INFINITE

SATURATING = 10.0  # a logit that may give one key nearly everything: smaller ones may grow
NOTHING = 1e-3  # of |A1|, what |D| is below if a head has nothing left
NOT_FINITE = "not finite"  # the rule of numbers that are no numbers
MAGNITUDES = {"logit_outliers": "attention logits", "layer_output_outliers": "outputs of a layer"}


class Alert(NamedTuple):
    """A bound that was left.

    Attributes
    ----------
    step : int
    rule : str
        The rule in words.
    text : str
        What happened, where.
    """

    step: int
    rule: str
    text: str


@dataclass
class Rule:
    """A rule of one statistic, in every head, or in every layer if it has no heads.

    Attributes
    ----------
    statistic : str
    select : dict of str to str or number
        Labels of the other dimensions, such as ``{"map": "D"}`` or ``{"k": 1}``.
    above, below : float, optional
        Bounds that the value may not leave.
    times : float, optional
        How many times a value of the last `within` steps it may not reach; with `above`, if it is above that as well.
    within : int, optional
    """

    statistic: str
    select: dict[str, str | float] = field(default_factory=dict)
    above: float | None = None
    below: float | None = None
    times: float | None = None
    within: int | None = None
    _past: deque[tuple[int, np.ndarray]] = field(default_factory=deque)
    _out: frozenset[tuple[int, ...]] = frozenset()  # places that are beyond a bound now

    def __post_init__(self) -> None:
        bounds = (self.above, self.below, self.times)
        if all(bound is None for bound in bounds):
            raise DiffscopeError("an alert needs a bound: above=, below=, or times= with within=")
        if (self.times is None) != (self.within is None):
            raise DiffscopeError("times= and within= go together: monitor.alert('logit_outliers', times=10, within=500)")

    def __str__(self) -> str:
        name = " ".join([self.statistic, *map(str, self.select.values())])
        bounds = [f"{word} {bound:g}" for word, bound in (("above", self.above), ("below", self.below)) if bound is not None]
        if self.times is not None:
            bounds.append(f"{self.times:g} times as large within {self.within} steps")
        return f"{name} {(' and ' if self.above is not None and self.times is not None else ' or ').join(bounds)}"

    def check(self, step: int, by_head: xr.Dataset) -> list[Alert]:
        """Return the alerts of a step: of places that were within the bounds at the last measurement.

        Parameters
        ----------
        by_head : xarray.Dataset
            Averaged over queries and prompts. A statistic that was not measured gives no alert.
        """
        if self.statistic not in by_head or any(label not in by_head[dim] for dim, label in self.select.items()):
            return []
        values = by_head[self.statistic].sel(self.select, drop=True).transpose("layer", ...)
        found = self._beyond(step, values)
        new = [place for place in found if place not in self._out]
        undefined = _places(np.isnan(values.values))  # of which nothing says that they are back
        self._out = frozenset(found) | self._out.intersection(undefined)
        return [Alert(step, str(self), f"{self._name()} of {_where(values, place)} {found[place]}") for place in new]

    def _name(self) -> str:
        return f"{self.statistic} ({', '.join(map(str, self.select.values()))})" if self.select else self.statistic

    def _beyond(self, step: int, values: xr.DataArray) -> dict[tuple[int, ...], str]:
        """Return in words what is beyond a bound, by place in the array."""
        array = values.values
        found: dict[tuple[int, ...], str] = {}
        if self.above is not None and self.times is None:
            found |= {at: f"is {_number(array[at])}, above {self.above:g}" for at in _places(array > self.above)}
        if self.below is not None:
            found |= {at: f"is {_number(array[at])}, below {self.below:g}" for at in _places(array < self.below)}
        if self.times is not None and self.within is not None:
            if self._past and self._past[-1][0] >= step:  # another course of the training
                self._past.clear()
            while self._past and self._past[0][0] < step - self.within:
                self._past.popleft()
            for before, past in self._past:
                grown = _places((array > self.times * past) & (past > 0) & (array > (self.above or 0)))
                found |= {at: f"has grown from {_number(past[at])} at step {before} to {_number(array[at])}" for at in grown}
            self._past.append((step, array))
        return found


def _number(value: float) -> str:
    return f"{value:.3g}"


def _places(mask: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(map(int, at)) for at in np.argwhere(mask)]


def _where(values: xr.DataArray, place: tuple[int, ...]) -> str:
    """Name a place as layer and head, and by labels of other dimensions."""
    labels = {str(dim): values[dim].values[at] if dim in values.coords else at for dim, at in zip(values.dims, place)}
    head = f"H{labels.pop('head')}" if "head" in labels else ""
    place_of_head = f"L{labels.pop('layer')}{head}"
    return " ".join([place_of_head, *map(str, labels.values())])


def default_rules() -> list[Rule]:
    """Return the rules that every monitor has: of λ, of a D that has gone, and of the largest logit."""
    return [
        Rule("lambda", {"lambda_value": "used"}, above=2.0, below=-1.0),
        Rule("noise_gain", {"span": "irrelevant"}, below=NOTHING),
        Rule("logit_outliers", {"outlier": "top_1"}, above=SATURATING, times=10.0, within=500),
    ]


def not_finite(step: int, by_head: xr.Dataset) -> list[Alert]:
    """Return an alert of logits and outputs of layers that are infinite, and of a largest logit that is not a number.

    Averages leave infinite values out and count them. Ratios may be infinite in a model that is well.
    """
    infinite = [words for name, words in MAGNITUDES.items() if name in by_head and by_head[name].attrs.get(INFINITE, 0)]
    found = [Alert(step, NOT_FINITE, f"{words} are infinite") for words in infinite]
    if "logit_outliers" in by_head:
        largest = by_head["logit_outliers"].sel(outlier="top_1").values
        if any(map(math.isnan, largest)):
            found.append(Alert(step, NOT_FINITE, "the largest logit is not a number"))
    return found
