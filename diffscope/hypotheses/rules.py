"""How a verdict follows from estimates: by one rule for all tests, applied to what each test declared beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.inference import LEVEL, Estimate

NAMES = {"NC": "noise cancellation", "SP": "sparsification"}
ABOVE, BELOW, NONE, ALIKE, FAR, OPEN = "above", "below", "none", "as untrained", "far", "open"
SAID = {ABOVE: "more than {margin:g}", BELOW: "less than −{margin:g}", NONE: "within ±{margin:g} of 0"}


class Missing(DiffscopeError):
    """A test cannot be made of what is there; the message says what it needs."""


@dataclass(frozen=True)
class Quantity:
    """One number that a test asks for, with its controls taken off.

    Attributes
    ----------
    label : str
        In words.
    margin : float
        The smallest effect that matters; anything within ± of it is no effect.
    """

    label: str
    margin: float


@dataclass(frozen=True, eq=False)
class Test:
    """A test as it was declared, before anything was looked at.

    Attributes
    ----------
    id, claim, source, statistic : str
    controls : tuple of str
    quantities : dict of str to Quantity
        What is estimated.
    predictions : dict of {"NC", "SP"} to dict of str to {"above", "below", "none"}
        What noise cancellation and sparsification say of the quantities; where one says nothing of any, it is left out.
    needs : {"model", "pair", "checkpoints", "cohort"}
    limits : str
        What the test cannot say, whatever comes out.
    unable : str
        Why the test cannot tell the two accounts apart, where it cannot: with a planted truth of one it answers for the other, or
        both predict the same. Its verdict is about its own prediction only.
    """

    __test__ = False  # pytest's own tests have this name too

    id: str
    claim: str
    source: str
    statistic: str
    controls: tuple[str, ...]
    quantities: Mapping[str, Quantity]
    predictions: Mapping[str, Mapping[str, str]]
    needs: str
    limits: str = ""
    unable: str = ""

    @property
    def rule(self) -> str:
        """The decision rule in words."""
        if not self.predictions:
            return "neither account predicts anything: measured, not judged"
        parts = []
        for hypothesis, wanted in self.predictions.items():
            said = (f"{self.quantities[name].label} is {words(state, self.quantities[name])}" for name, state in wanted.items())
            parts.append(f"{hypothesis} if {' and '.join(said)}")
        return "; ".join(parts)


def words(state: str, quantity: Quantity) -> str:
    return SAID[state].format(margin=quantity.margin)


def state(found: Estimate, p: float, margin: float) -> str:
    """What an estimate shows: an effect of at least `margin` above or below 0, none of that size, something, or nothing yet.

    An effect is there (above, below) when its interval excludes 0, `p` (adjusted for all tests of the board) is at most 0.05, and
    it is at least `margin` away from 0, and from what untrained models show on the same side. There is none when the whole
    interval is within ± `margin`; where untrained models show as little (p above 0.05) nothing was learned: "as untrained". It is
    far from 0, without being more than chance or random weights show, when the whole interval is beyond `margin`.
    """
    middle = (found.null_low + found.null_high) / 2
    if -margin < found.low and found.high < margin:
        return ALIKE if found.untrained and p > LEVEL else NONE
    if p <= LEVEL and found.low > 0 and found.value - max(middle, 0) >= margin:
        return ABOVE
    if p <= LEVEL and found.high < 0 and found.value - min(middle, 0) <= -margin:
        return BELOW
    return FAR if found.low >= margin or found.high <= -margin else OPEN


def against(found: str, predicted: str) -> bool:
    """Whether what was found rules a prediction out: what is far from 0 may yet be an effect, and is not none."""
    spared = {FAR} if predicted != NONE else {ALIKE}
    return found not in {predicted, OPEN, *spared}


def judge(test: Test, states: Mapping[str, str]) -> str:
    """NC, SP, both, neither or inconclusive: which predictions hold throughout, which fail in one point at least."""
    if not test.predictions:
        return "neither"
    holds = {one for one, wanted in test.predictions.items() if all(states[name] == what for name, what in wanted.items())}
    fails = {one for one, wanted in test.predictions.items() if any(against(states[name], what) for name, what in wanted.items())}
    if holds:
        return "both" if len(holds) == 2 else holds.pop()
    return "neither" if len(fails) == len(test.predictions) else "inconclusive"
