"""One bar over everything that a run of tests does; it moves from the first second and never jumps back."""

from __future__ import annotations

from collections.abc import Sequence

from diffscope.hypotheses.rules import Measurement
from diffscope.hypotheses.subjects import Progress

OPENING = 5.0  # of 100, for the models to be opened
READING = 4.0  # a test that is the first on its subject, and reads the models, counts as so many others


class Job:
    """Gathers what models and tests tell into (done, 100, words) of the whole.

    Each test has its share of the bar. How much there is to do within a test shows only as it is done, phase by phase (a model
    that is read, say): each phase takes its part of what is left of the share, and the end of the test all of it.

    Parameters
    ----------
    progress : callable, optional
        Called with (done, 100, words).
    """

    def __init__(self, progress: Progress | None):
        self._progress = progress
        self._shares = [1.0]
        self._names = [""]
        self._phases = 1
        self._number = -1  # of the test, −1 while models are opened
        self._settled = 0.0  # of its share, by phases that are over
        self._within = 0.0
        self._last: tuple[str, int] = ("", 0)

    def opening(self, done: int, total: int, words: str) -> None:
        """So many of the models are open, and what is done with the next; nothing once tests are running."""
        if self._number < 0:
            self._report(OPENING * done / max(1, total), words)

    def plan(self, tests: Sequence[Measurement], phases: int) -> None:
        """The tests that are to be run, and how many models are read for each."""
        seen = {test.needs: test.id for test in reversed(tests)}  # the first of each
        self._shares = [READING if seen[test.needs] == test.id and test.needs != "cohort" else 1.0 for test in tests]
        self._names = [test.id for test in tests]
        self._phases = max(1, phases)

    def test(self, number: int, total: int, name: str) -> None:
        """A test begins, and those before it are over."""
        self._number = number
        self._settled = self._within = 0.0
        self._last = ("", 0)
        self._report(self._done(), name)

    def end(self) -> None:
        """All is done."""
        self._report(100, "")

    def tell(self, done: int, total: int, words: str) -> None:
        """Within a test, so much of a phase is done."""
        if words != self._last[0] or done < self._last[1]:
            self._settled = self._within
        self._last = (words, done)
        self._within = self._settled + (1 - self._settled) / self._phases * done / max(1, total)
        name = f"{self._names[self._number]}: " if self._number >= 0 else ""
        self._report(self._done(), f"{name}{words}, {done} of {total}")

    def _done(self) -> float:
        before = sum(self._shares[: max(0, self._number)])
        share = self._shares[self._number] * self._within if self._number >= 0 else 0.0
        return OPENING + (100 - OPENING) * (before + share) / sum(self._shares)

    def _report(self, done: float, words: str) -> None:
        if self._progress:
            self._progress(done, 100, words)
