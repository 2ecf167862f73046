"""Say at which steps a monitor measures: early ones, then every so many, and fewer if that takes too much of the training."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

EARLY = (0, 1, 2, 5, 10, 20, 50)
REMEMBERED = 5  # measurements whose cost decides; the first compiles and fills caches


def stride(every: int, seconds: float, seconds_a_step: float, budget: float | None) -> int:
    """Return the multiple of `every` at which measurements take at most `budget` of the time that training takes.

    Parameters
    ----------
    every : int
        Steps between measurements that were asked for.
    seconds : float
        What a measurement takes.
    seconds_a_step : float
        What a step of the training takes.
    budget : float or None
        Share of the training's time; None for no limit.
    """
    if budget is None or not seconds_a_step > 0:
        return every
    return every * max(1, math.ceil(seconds / (budget * seconds_a_step * every)))


@dataclass
class Schedule:
    """The steps at which to measure, and what measuring has cost.

    Attributes
    ----------
    every : int
    early : frozenset of int
        Steps that are measured whatever it costs.
    budget : float or None
    stride : int
        Steps between measurements now: a multiple of `every`.
    """

    every: int
    early: frozenset[int]
    budget: float | None
    stride: int = 0
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _steps: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _last: tuple[int, float] | None = None  # the step that was measured last, and when that ended

    def __post_init__(self) -> None:
        self.stride = self.stride or self.every

    def due(self, step: int) -> bool:
        """Return whether to measure at a step."""
        return step in self.early or step % self.stride == 0

    def note(self, step: int, began: float, ended: float) -> None:
        """Note a measurement by the times at which it began and ended, in seconds, and stretch the stride to the budget."""
        self._seconds.append(ended - began)
        if self._last is not None and step > self._last[0]:
            self._steps.append((began - self._last[1]) / (step - self._last[0]))
        self._last = step, ended
        if self._steps:
            self.stride = stride(self.every, self.seconds, self.seconds_a_step, self.budget)

    @property
    def seconds(self) -> float:
        """What a measurement takes, in seconds; NaN before the first."""
        return median(self._seconds) if self._seconds else math.nan

    @property
    def seconds_a_step(self) -> float:
        """What a step of the training takes, in seconds; NaN before the second measurement."""
        return median(self._steps) if self._steps else math.nan

    @property
    def share(self) -> float:
        """The share of the training's time that measuring takes at this stride; NaN before the second measurement."""
        return self.seconds / (self.stride * self.seconds_a_step) if self._steps and self.seconds_a_step else math.nan
