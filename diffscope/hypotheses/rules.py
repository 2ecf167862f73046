"""What a test declares before anything is measured, and how its verdict follows from estimates: one rule for all tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from diffscope.accounts import ACCOUNTS, AGAINST, FOR, OPEN, SILENT
from diffscope.errors import DiffscopeError
from diffscope.hypotheses.statistics import Estimate, LeaveOneOut, Sample
from diffscope.stats.intervals import LEVEL

IDLE = 0.5  # nats of the answer's log-odds: the smallest effect that matters; a second map that costs less explains nothing
ABOVE = "above"
BELOW = "below"
NONE = "none"
AS_NULL = "as untrained"
BEYOND_MARGIN = "far"
BETWEEN = "between"
FEWEST = 5  # seeds, of which it is said what one of them decides
MEASURED = "measured"  # what is shown in place of a verdict, which a measurement has not, and of a state that no rule uses
UNITS = ("octaves", "nats", "nats per doubling", "dB")
Measure = Callable[[Any], Mapping[str, Sample | Estimate]]
Needs = Literal["model", "pair", "checkpoints", "cohort"]
Kind = Literal["primary", "mechanism", "measurement"]


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

    def excludes(self, wanted: str, low: float, high: float) -> bool:
        """Whether a 95 % interval excludes a prediction: no value in it is as predicted."""
        return {
            ABOVE: high < self.margin,
            BELOW: low > -self.margin,
            NONE: low >= self.no_effect or high <= -self.no_effect,
        }[wanted]

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


@dataclass(frozen=True)
class Cost:
    """What the answer loses without the second map of the heads that a test is about.

    Attributes
    ----------
    value, low, high : float
        Rise of the loss of the answer, in nats, and its 95 % interval.
    of : {"A2", "whole heads"}
        What was taken out: the second map alone, or, where only that is known, the head with both of its maps.
    """

    value: float
    low: float
    high: float
    of: str = "A2"

    @property
    def idle(self) -> bool:
        """Whether it is less than the smallest effect that matters, so that there is nothing for an account to explain.

        Only of A2 alone: what whole heads cost is no bound on that, since to lose A2 leaves A1 as it was not trained to stand.
        """
        return self.of == "A2" and self.value < IDLE


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
    measure : callable
        Gives what was observed of every quantity of such a subject, by name; raises :class:`Missing` where that cannot be.
    limits : str
        What it cannot say, whatever comes out.
    kind : {"primary", "mechanism", "measurement"}
        Primaries are corrected among themselves (Holm), mechanism tests among themselves (Benjamini–Hochberg), measurements not.
    of : str
        Of which heads and queries it is.
    inside : bool
        Whether it looks inside heads. Then it says nothing where their second map costs the answer less than :data:`IDLE`.
    without_a2 : str
        The quantity that is itself what the second maps cost there, of a test that takes them out; by default the mean over
        heads as they count, which of many heads that stand in for each other is small though all of them together are needed.
    """

    id: str
    question: str
    asks: Mapping[str, str]
    source: str
    statistic: str
    controls: tuple[str, ...]
    quantities: Mapping[str, Quantity]
    needs: Needs
    measure: Measure
    limits: str = ""
    kind: Kind = "measurement"
    of: str = ""
    inside: bool = False
    without_a2: str = ""

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
    """Quantities of which accounts predict something, and what follows for each account from how they come out.

    Attributes
    ----------
    predictions : dict of {"NC", "SP", "SH"} to dict of str to {"above", "below", "none"}
        What each account predicts of the quantities; one that predicts nothing is left out.
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
            never = "" if self.own(account) else f" (never for {account}: {self.shared(account)})"
            parts.append(f"{account} predicts that {' and '.join(conditions)}{never}")
        return "; ".join(parts)

    def own(self, account: str) -> list[str]:
        """The quantities of which an account predicts an effect that no other account predicts: these alone can bear it out.

        That there is no effect is predicted by whoever thinks that nothing happens, so it is nobody's own.
        """
        others = [predicted for other, predicted in self.predictions.items() if other != account]
        return [
            name
            for name, wanted in self.predictions.get(account, {}).items()
            if wanted != NONE and all(predicted.get(name) != wanted for predicted in others)
        ]

    def shared(self, account: str) -> str:
        """Who else predicts what an account predicts, in words, of an account that has no prediction of its own."""
        predicted = self.predictions[account]
        effects = {name: wanted for name, wanted in predicted.items() if wanted != NONE}
        if not effects:
            return "no effect at all would look the same"
        others = [
            other
            for other, theirs in self.predictions.items()
            if other != account and any(theirs.get(name) == wanted for name, wanted in effects.items())
        ]
        return f"{' and '.join(others)} {'predicts' if len(others) == 1 else 'predict'} the same"

    @property
    def tells_apart(self) -> bool:
        """Whether it can be for an account."""
        return any(self.own(account) for account in self.predictions)

    def holds(self, account: str, states: Mapping[str, str]) -> bool:
        """Whether all that an account predicts came out."""
        predicted = self.predictions.get(account, {})
        return bool(predicted) and all(
            states[name] == wanted or (wanted == NONE and states[name] == AS_NULL) for name, wanted in predicted.items()
        )

    def failures(self, account: str, estimates: Mapping[str, Estimate]) -> list[str]:
        """The quantities whose intervals exclude what an account predicts of them."""
        return [
            name
            for name, wanted in self.predictions.get(account, {}).items()
            if self.quantities[name].excludes(wanted, estimates[name].low, estimates[name].high)
        ]

    def judge(self, estimates: Mapping[str, Estimate], states: Mapping[str, str], cost: Cost | None = None) -> dict[str, str]:
        """A word of each account: for, against, open or silent.

        Parameters
        ----------
        estimates : mapping of str to Estimate
        states : mapping of str to str
            By quantity, as :func:`state` says.
        cost : Cost, optional
            What the second map of these heads costs.
        """
        return {account: self._word(account, estimates, states, cost) for account in ACCOUNTS}

    def _word(self, account: str, estimates: Mapping[str, Estimate], states: Mapping[str, str], cost: Cost | None) -> str:
        if account not in self.predictions or self.idle(cost):
            return SILENT
        if self.failures(account, estimates):
            return AGAINST
        if not self.holds(account, states):
            return OPEN
        return FOR if self.own(account) else SILENT

    def idle(self, cost: Cost | None) -> bool:
        """Whether the test looks inside heads whose second map costs less than what matters."""
        return self.inside and cost is not None and cost.idle

    def reasons(self, estimates: Mapping[str, Estimate], states: Mapping[str, str], cost: Cost | None = None) -> dict[str, str]:
        """Why each account has its word, in words."""
        return {account: self._reason(account, estimates, states, cost) for account in ACCOUNTS}

    def _reason(self, account: str, estimates: Mapping[str, Estimate], states: Mapping[str, str], cost: Cost | None) -> str:
        if account not in self.predictions:
            return "predicts nothing here"
        if self.idle(cost):
            return (
                f"A2 is idle in these heads: without it the answer loses {in_nats(cost)}, and less than {IDLE:g} does not matter"
            )
        if failed := self.failures(account, estimates):
            return "; ".join(self.quantities[name].is_not(self.predictions[account][name]) for name in failed)
        if not self.holds(account, states):
            return "its prediction is neither met nor excluded"
        return "as it predicts, and no other account does" if self.own(account) else f"as it predicts, but {self.shared(account)}"


def in_nats(cost: Cost) -> str:
    """A cost with its interval."""
    value, low, high = (f"{number:.3g}".replace("-", "−") for number in (cost.value, cost.low, cost.high))
    return f"{value} nats (95 % {low} to {high})"


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
    of: str = "",
    inside: bool | None = None,
    without_a2: str = "",
) -> Callable[[Measure], Declared]:
    """Make a function that observes quantities a :class:`Test`, or a :class:`Measurement` where nothing is predicted of them.

    The parameters are the attributes of these two. What cannot tell the accounts apart is a measurement, and `unable` says why.
    A test of models, pairs or checkpoints looks inside heads unless it says otherwise; one of cohorts does only if it says so.

    Raises
    ------
    DiffscopeError
        There is nothing of that name to measure; something is asked or predicted of a quantity that is not estimated; or a test
        does not say of which heads and queries it is.
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

    if without_a2 and without_a2 not in quantities:
        raise DiffscopeError(f"the test {id!r} has no quantity {without_a2!r}; there are {', '.join(quantities)}")
    judges = bool(predictions) and not unable
    if judges and not of:
        raise DiffscopeError(f"the test {id!r} does not say of which heads and queries it is; give it as of=…")

    def declared(measure: Measure) -> Declared:
        fields = {
            "id": id,
            "question": question,
            "asks": asks,
            "source": source,
            "statistic": statistic,
            "controls": controls,
            "quantities": quantities,
            "needs": needs,
            "measure": measure,
            "limits": " ".join(filter(None, (limits, unable and f"It cannot tell the accounts apart: {unable}."))),
            "of": of,
            "inside": judges and (needs != "cohort" if inside is None else inside),
            "without_a2": without_a2,
        }
        return Test(**fields, predictions=predictions, kind=kind) if judges else Measurement(**fields)

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
        return AS_NULL if estimate.untrained and p > LEVEL else NONE
    if p <= LEVEL and estimate.low > 0 and estimate.value - max(middle, 0) >= margin:
        return ABOVE
    if p <= LEVEL and estimate.high < 0 and estimate.value - min(middle, 0) <= -margin:
        return BELOW
    if estimate.low >= margin or estimate.high <= -margin:
        return BEYOND_MARGIN
    between = within <= estimate.low <= estimate.high < margin or -margin < estimate.low <= estimate.high <= -within
    return BETWEEN if between else OPEN


def decisive(estimate: Estimate, quantity: Quantity) -> list[LeaveOneOut]:
    """The seeds and heads without which an estimate would show something else, by its interval and size alone.

    Of what is left of fewer than five seeds nothing is said: their interval is wide whichever is left out.
    """
    whole = by_interval(estimate, quantity)
    few = estimate.seeds < FEWEST
    return [
        left
        for left in estimate.leave_one_out
        if not (few and left.unit == "seed") and by_interval(replace(estimate, **_numbers(left)), quantity) != whole
    ]


def by_interval(estimate: Estimate, quantity: Quantity) -> str:
    """What an estimate shows by its interval and size alone, as :func:`state` says, whatever its p."""
    return state(estimate, 0.0, quantity.margin, quantity.no_effect)


def _numbers(left: LeaveOneOut) -> dict[str, float]:
    return {"value": left.value, "low": left.low, "high": left.high}
