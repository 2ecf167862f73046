"""What a test declares before anything is measured, and how its verdict follows from estimates: one rule for all tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.inference import LEVEL, Estimate, Observed

ACCOUNTS = {"NC": "noise cancellation", "SP": "sparsification"}
ABOVE = "above"
BELOW = "below"
NONE = "none"
ALIKE = "as untrained"
FAR = "far"
OPEN = "open"
MEASURED = "measured"
WORDS = {ABOVE: "more than {margin:g}", BELOW: "less than −{margin:g}", NONE: "within ±{margin:g} of 0"}
Observer = Callable[[Any], Mapping[str, Observed | Estimate]]
Needs = Literal["model", "pair", "checkpoints", "cohort"]


class Missing(DiffscopeError):
    """A test lacks something; the message says what it needs."""


@dataclass(frozen=True)
class Quantity:
    """One number that a test estimates, with its controls taken off.

    Attributes
    ----------
    label : str
        In words.
    margin : float
        The smallest effect that matters; anything within ± of it is no effect.
    """

    label: str
    margin: float

    def is_(self, state: str) -> str:
        """That it is in a predicted state, in words."""
        return f"{self.label} is {WORDS[state].format(margin=self.margin)}"

    def is_not(self, state: str) -> str:
        """That it is not, in words."""
        return f"{self.label} is not {WORDS[state].format(margin=self.margin)}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Measurement:
    """Quantities of which neither account predicts anything: they are estimated and shown, and not judged.

    Attributes
    ----------
    id, claim, source, statistic : str
    controls : tuple of str
    quantities : dict of str to Quantity
        What is estimated.
    needs : {"model", "pair", "checkpoints", "cohort"}
        What it is observed on.
    observe : callable
        Gives what was observed of every quantity of such a subject, by name; raises :class:`Missing` where that cannot be.
    limits : str
        What it cannot say, whatever comes out.
    """

    id: str
    claim: str
    source: str
    statistic: str
    controls: tuple[str, ...]
    quantities: Mapping[str, Quantity]
    needs: Needs
    observe: Observer
    limits: str = ""

    unable: ClassVar[str] = ""
    tells_apart: ClassVar[str] = "–"

    @property
    def judged(self) -> tuple[str, ...]:
        """Names of the quantities that the rule uses."""
        return ()

    @property
    def rule(self) -> str:
        """The decision rule in words."""
        return "neither account predicts anything: measured, not judged"

    def judge(self, states: Mapping[str, str]) -> str:
        """The verdict that follows from the states of the quantities."""
        return MEASURED

    def conclusions(self, states: Mapping[str, str]) -> list[str]:
        """What follows for each account, in words."""
        return ["neither account predicts anything of it"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Test(Measurement):
    """A measurement of which at least one account predicts something.

    Attributes
    ----------
    predictions : dict of {"NC", "SP"} to dict of str to {"above", "below", "none"}
        What noise cancellation and sparsification predict of the quantities; an account that predicts nothing is left out.
    unable : str
        Why the test cannot tell the two accounts apart, where it cannot: it comes out for one where the other was planted, or
        both predict the same. Its verdict is about its own prediction only.
    """

    __test__ = False  # pytest's own tests have this name too

    predictions: Mapping[str, Mapping[str, str]]
    unable: str = ""

    @property
    def tells_apart(self) -> str:
        """Whether its verdict tells the two accounts apart: "yes" or "no"."""
        return "no" if self.unable else "yes"

    @property
    def judged(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for predicted in self.predictions.values() for name in predicted))

    @property
    def rule(self) -> str:
        parts = []
        for account, predicted in self.predictions.items():
            conditions = (self.quantities[name].is_(wanted) for name, wanted in predicted.items())
            parts.append(f"{account} if {' and '.join(conditions)}")
        return "; ".join(parts)

    def judge(self, states: Mapping[str, str]) -> str:
        """NC, SP or both where all that is predicted holds; neither where each prediction fails in one point; or inconclusive."""
        holds = [account for account, predicted in self.predictions.items() if _holds(predicted, states)]
        if holds:
            return "both" if len(holds) == 2 else holds[0]
        fails = [account for account, predicted in self.predictions.items() if _failures(predicted, states)]
        return "neither" if len(fails) == len(self.predictions) else "inconclusive"

    def conclusions(self, states: Mapping[str, str]) -> list[str]:
        return [self._conclusion(account, predicted, states) for account, predicted in self.predictions.items()]

    def _conclusion(self, account: str, predicted: Mapping[str, str], states: Mapping[str, str]) -> str:
        if _holds(predicted, states):
            return f"as {ACCOUNTS[account]} predicts"
        failures = [self.quantities[name].is_not(predicted[name]) for name in _failures(predicted, states)]
        if failures:
            return f"against {ACCOUNTS[account]}: {'; '.join(failures)}"
        return f"{ACCOUNTS[account]} is neither borne out nor ruled out"


def declare(
    *,
    id: str,
    claim: str,
    source: str,
    statistic: str,
    controls: tuple[str, ...],
    quantities: Mapping[str, Quantity],
    needs: Needs,
    predictions: Mapping[str, Mapping[str, str]] | None = None,
    limits: str = "",
    unable: str = "",
) -> Callable[[Observer], Measurement]:
    """Make a function that observes quantities a :class:`Test`, or a :class:`Measurement` where nothing is predicted of them.

    The parameters are the attributes of these two.

    Raises
    ------
    DiffscopeError
        There is nothing of that name to observe, or something is predicted of a quantity that is not estimated.
    """
    if needs not in get_args(Needs):
        raise DiffscopeError(f"the test {id!r} needs {needs!r}; it has to be one of {', '.join(get_args(Needs))}")
    for account, predicted in (predictions or {}).items():
        if account not in ACCOUNTS or not set(predicted) <= set(quantities) or not set(predicted.values()) <= set(WORDS):
            raise DiffscopeError(
                f"the test {id!r} predicts {account}: {dict(predicted)}; accounts are {', '.join(ACCOUNTS)}, its quantities "
                f"{', '.join(quantities)}, states {', '.join(WORDS)}"
            )

    def declared(observe: Observer) -> Measurement:
        fields = {
            "id": id,
            "claim": claim,
            "source": source,
            "statistic": statistic,
            "controls": controls,
            "quantities": quantities,
            "needs": needs,
            "observe": observe,
            "limits": limits,
        }
        return Test(**fields, predictions=predictions, unable=unable) if predictions else Measurement(**fields)

    return declared


def state(estimate: Estimate, p: float, margin: float) -> str:
    """What an estimate shows: an effect of at least `margin` above or below 0, none of that size, something, or nothing yet.

    An effect is there (above, below) when its interval excludes 0, `p` (adjusted for all tests of the board) is at most 0.05, and
    it is at least `margin` away from 0, and from what untrained models show on the same side. There is none when the whole
    interval is within ± `margin`; where untrained models show as little (p above 0.05) nothing was learned: "as untrained". It is
    far from 0, without being more than chance or random weights show, when the whole interval is beyond `margin`.
    """
    middle = (estimate.null_low + estimate.null_high) / 2
    if -margin < estimate.low and estimate.high < margin:
        return ALIKE if estimate.untrained and p > LEVEL else NONE
    if p <= LEVEL and estimate.low > 0 and estimate.value - max(middle, 0) >= margin:
        return ABOVE
    if p <= LEVEL and estimate.high < 0 and estimate.value - min(middle, 0) <= -margin:
        return BELOW
    return FAR if estimate.low >= margin or estimate.high <= -margin else OPEN


def _holds(predicted: Mapping[str, str], states: Mapping[str, str]) -> bool:
    return all(states[name] == wanted for name, wanted in predicted.items())


def _failures(predicted: Mapping[str, str], states: Mapping[str, str]) -> list[str]:
    """The quantities whose states rule the prediction out: what is far from 0 may yet be an effect, and is not none."""
    return [name for name, wanted in predicted.items() if states[name] not in {wanted, OPEN, ALIKE if wanted == NONE else FAR}]
