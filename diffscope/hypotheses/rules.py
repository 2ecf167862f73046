"""What a test declares before anything is measured, and how its verdict follows from estimates: one rule for all tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.inference import Estimate, LeftOut, Observed
from diffscope.hypotheses.intervals import LEVEL

ACCOUNTS = {"NC": "noise cancellation", "SP": "sparsification", "SH": "signed heads"}
ABOVE = "above"
BELOW = "below"
NONE = "none"
ALIKE = "as untrained"
FAR = "far"
BETWEEN = "between"
OPEN = "open"
FEWEST = 5  # seeds, of which it is said what one of them decides
MEASURED = "measured"  # what is shown in place of a verdict, which a measurement has not, and of a state that no rule uses
UNITS = ("octaves", "nats", "nats per doubling", "dB")
Observer = Callable[[Any], Mapping[str, Observed | Estimate]]
Needs = Literal["model", "pair", "checkpoints", "cohort"]
Kind = Literal["primary", "mechanism", "measurement"]


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
        The smallest effect that matters.
    within : float, optional
        What counts as no effect is within ± of it; by default the margin.
    short : str
        A name for it among the quantities that a question asks of.
    """

    label: str
    margin: float
    within: float | None = None
    short: str = ""

    @property
    def units(self) -> str:
        """The units of its numbers, as its label ends with them; empty for a pure number."""
        return next((units for units in UNITS if self.label.endswith(f"({units})")), "")

    @property
    def no_effect(self) -> float:
        """What counts as no effect is within ± of it."""
        return self.margin if self.within is None else self.within

    def words(self, state: str) -> str:
        """What a state that can be predicted says of a quantity."""
        return {
            ABOVE: f"more than {self.margin:g}",
            BELOW: f"less than −{self.margin:g}",
            NONE: f"within ±{self.no_effect:g} of 0",
        }[state]

    def is_(self, state: str) -> str:
        """That it is in a predicted state, in words."""
        return f"{self.label} is {self.words(state)}"

    def is_not(self, state: str) -> str:
        """That it is not, in words."""
        return f"{self.label} is not {self.words(state)}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Declared:
    """What was written down before anything was looked at: what is estimated, of what, against what.

    Attributes
    ----------
    id, question, source, statistic : str
    asks : dict of str to {"above", "below"}
        The quantities that answer the question, and on which side of 0 each says yes.
    controls : tuple of str
    quantities : dict of str to Quantity
        What is estimated.
    needs : {"model", "pair", "checkpoints", "cohort"}
        What it is observed on.
    observe : callable
        Gives what was observed of every quantity of such a subject, by name; raises :class:`Missing` where that cannot be.
    limits : str
        What it cannot say, whatever comes out.
    kind : {"primary", "mechanism", "measurement"}
        Primaries are corrected among themselves (Holm), mechanism tests among themselves (Benjamini–Hochberg), measurements not.
    """

    id: str
    question: str
    asks: Mapping[str, str]
    source: str
    statistic: str
    controls: tuple[str, ...]
    quantities: Mapping[str, Quantity]
    needs: Needs
    observe: Observer
    limits: str = ""
    kind: Kind = "measurement"

    @property
    def judged(self) -> tuple[str, ...]:
        """Names of the quantities that a rule uses."""
        return ()

    @property
    def rule(self) -> str:
        """The decision rule in words."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False, kw_only=True)
class Measurement(Declared):
    """Quantities by which the accounts cannot be told apart: they are estimated and shown, and there is no verdict."""

    @property
    def rule(self) -> str:
        return "a measurement: no verdict"


@dataclass(frozen=True, eq=False, kw_only=True)
class Test(Declared):
    """Quantities of which the accounts predict something, and what follows from how they come out.

    Attributes
    ----------
    predictions : dict of {"NC", "SP"} to dict of str to {"above", "below", "none"}
        What noise cancellation and sparsification predict of the quantities; an account that predicts nothing is left out.
    """

    __test__ = False  # pytest's own tests have this name too

    predictions: Mapping[str, Mapping[str, str]]
    kind: Kind = "mechanism"

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

    @property
    def tells_apart(self) -> bool:
        """Whether the accounts predict different things, so that the verdict can be for one of them alone."""
        first, *others = self.predictions.values()
        return not others or first != others[0]

    def judge(self, states: Mapping[str, str]) -> str:
        """NC, SP or both where all that is predicted holds; neither where each prediction fails in one point; or inconclusive."""
        holds = [account for account, predicted in self.predictions.items() if _holds(predicted, states)]
        if holds:
            return "both" if len(holds) == 2 else holds[0]
        fails = [account for account, predicted in self.predictions.items() if _failures(predicted, states)]
        return "neither" if len(fails) == len(self.predictions) else "inconclusive"

    def conclusions(self, states: Mapping[str, str]) -> list[str]:
        """What follows for each account, in words."""
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
    question: str,
    asks: Mapping[str, str],
    source: str,
    statistic: str,
    controls: tuple[str, ...],
    quantities: Mapping[str, Quantity],
    needs: Needs,
    predictions: Mapping[str, Mapping[str, str]] | None = None,
    kind: Kind = "mechanism",
    limits: str = "",
    unable: str = "",
) -> Callable[[Observer], Declared]:
    """Make a function that observes quantities a :class:`Test`, or a :class:`Measurement` where nothing is predicted of them.

    The parameters are the attributes of these two. What cannot tell the accounts apart is a measurement, and `unable` says why.

    Raises
    ------
    DiffscopeError
        There is nothing of that name to observe; or something is asked or predicted of a quantity that is not estimated.
    """
    if not question.endswith("?") or not asks or not set(asks) <= set(quantities) or not set(asks.values()) <= {ABOVE, BELOW}:
        raise DiffscopeError(
            f"the test {id!r} asks {question!r} of {dict(asks)}; give a question, and of one quantity at least of "
            f"{', '.join(quantities)} whether {ABOVE} or {BELOW} 0 is a yes"
        )
    for name, word, words in (("needs", needs, get_args(Needs)), ("is of the kind", kind, ("primary", "mechanism"))):
        if word not in words:
            raise DiffscopeError(f"the test {id!r} {name} {word!r}; it has to be one of {', '.join(words)}")
    for account, predicted in (predictions or {}).items():
        states = (ABOVE, BELOW, NONE)
        if account not in ACCOUNTS or not set(predicted) <= set(quantities) or not set(predicted.values()) <= set(states):
            raise DiffscopeError(
                f"the test {id!r} predicts {account}: {dict(predicted)}; accounts are {', '.join(ACCOUNTS)}, its quantities "
                f"{', '.join(quantities)}, states {', '.join(states)}"
            )

    def declared(observe: Observer) -> Declared:
        fields = {
            "id": id,
            "question": question,
            "asks": asks,
            "source": source,
            "statistic": statistic,
            "controls": controls,
            "quantities": quantities,
            "needs": needs,
            "observe": observe,
            "limits": " ".join(filter(None, (limits, unable and f"It cannot tell the accounts apart: {unable}."))),
        }
        return Test(**fields, predictions=predictions, kind=kind) if predictions and not unable else Measurement(**fields)

    return declared


def state(estimate: Estimate, p: float, margin: float, within: float | None = None) -> str:
    """What an estimate shows: an effect of at least `margin` above or below 0, none of that size, something, or nothing yet.

    An effect is there (above, below) when its interval excludes 0, `p` (corrected as the test's kind says) is at most 0.05, and
    it is at least `margin` away from 0, and from what untrained models show on the same side. There is none when the whole
    interval is within ± `within`, by default the margin; where untrained models show as little (p above 0.05) nothing was
    learned: "as untrained". It is far from 0, without being more than chance or random weights show, when the whole interval is
    beyond `margin`; and between, when all of it is more than none and less than what matters.
    """
    within = margin if within is None else within
    middle = (estimate.null_low + estimate.null_high) / 2
    if -within < estimate.low and estimate.high < within:
        return ALIKE if estimate.untrained and p > LEVEL else NONE
    if p <= LEVEL and estimate.low > 0 and estimate.value - max(middle, 0) >= margin:
        return ABOVE
    if p <= LEVEL and estimate.high < 0 and estimate.value - min(middle, 0) <= -margin:
        return BELOW
    if estimate.low >= margin or estimate.high <= -margin:
        return FAR
    between = within <= estimate.low <= estimate.high < margin or -margin < estimate.low <= estimate.high <= -within
    return BETWEEN if between else OPEN


def deciding(estimate: Estimate, quantity: Quantity) -> list[LeftOut]:
    """The seeds and heads without which an estimate would show something else, by its interval and size alone.

    Of what is left of fewer than five seeds nothing is said: their interval is wide whichever is left out.
    """
    whole = by_interval(estimate, quantity)
    few = estimate.seeds < FEWEST
    return [
        left
        for left in estimate.without
        if not (few and left.unit == "seed") and by_interval(replace(estimate, **_numbers(left)), quantity) != whole
    ]


def by_interval(estimate: Estimate, quantity: Quantity) -> str:
    """What an estimate shows by its interval and size alone, as :func:`state` says, whatever its p."""
    return state(estimate, 0.0, quantity.margin, quantity.no_effect)


def _numbers(left: LeftOut) -> dict[str, float]:
    return {"value": left.value, "low": left.low, "high": left.high}


def _holds(predicted: Mapping[str, str], states: Mapping[str, str]) -> bool:
    return all(states[name] == wanted for name, wanted in predicted.items())


def _failures(predicted: Mapping[str, str], states: Mapping[str, str]) -> list[str]:
    """The quantities whose states rule the prediction out: what is far from 0 may yet be an effect, and is not none."""
    return [name for name, wanted in predicted.items() if states[name] not in {wanted, OPEN, ALIKE if wanted == NONE else FAR}]
