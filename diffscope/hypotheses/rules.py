"""What a test declares before anything is measured, and how its verdict follows from estimates: one rule for all tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.accounts import ACCOUNTS, AGAINST, FOR, OPEN, SILENT
from diffscope.hypotheses.statistics import Estimate, LeaveOneOut, Sample
from diffscope.numbers import minus
from diffscope.stats.intervals import LEVEL

IDLE = 0.5  # nats of the answer's log-odds: the smallest effect that matters; a second map that costs less explains nothing
ABOVE = "above"
BELOW = "below"
NONE = "none"
AS_NULL = "as untrained"
BEYOND_MARGIN = "far"
BETWEEN = "between"
FEWEST = 5  # seeds, of which it is said what one of them decides
MEASURED = "measured"  # shown in place of the verdict of a measurement, and of the state of a quantity that no rule uses
UNITS = ("octaves", "nats", "nats per doubling", "dB")
Measure = Callable[[Any], Mapping[str, Sample | Estimate]]
Needs = Literal["model", "pair", "checkpoints", "cohort"]
CHECKPOINTS = 3  # of a training, at least
Kind = Literal["primary", "mechanism", "measurement"]
Weights = Literal["knock-out", "a2", "answer"]

KNOCK_OUT: Weights = "knock-out"
A2: Weights = "a2"
ANSWER: Weights = "answer"
#: how heads are weighted, by name; the first is the first view of every mechanism
BY: dict[str, str] = {
    KNOCK_OUT: "weighted by what the answer's loss rises by without each",
    A2: "weighted by what the answer's loss rises by without A2 of each",
    ANSWER: "weighted by A1's mass on the answer",
}
SECOND = f"heads {BY[ANSWER]}"


@dataclass(frozen=True)
class Place:
    """Where the number of a quantity is: in the evidence of a model, or in the scores of a cohort.

    Attributes
    ----------
    evidence : str
        ``LABEL.NAME`` of a number of every head, of trained and of untrained models.
    outcome : str
        Name of a number of the whole model.
    minus : str
        Another number of that kind, which is subtracted.
    heads : {"", "answering", "others"}
        Average only the heads that answer, or only the others, each alike.
    by_head : str
        Words under which the note tells what heads come to each for itself; empty for no such note.
    top_head : bool
        Take the head of the first layer that has most of it; the values by layer are those of each layer's such head.
    untrained : bool
        Whether untrained models are a comparison.
    lambda_by_layer : bool
        Whether the note has λ by layer.
    score : str
        Name of a score of runs, as :data:`diffscope.hypotheses.cohort.SCORES` has it.
    arm : str
        The arm of the cohort whose score it is,
    other : str or sequence of str
        and the arm whose score is subtracted; of several the one with the best mean.
    """

    evidence: str = ""
    outcome: str = ""
    minus: str = ""
    heads: Literal["", "answering", "others"] = ""
    by_head: str = ""
    top_head: bool = False
    untrained: bool = True
    lambda_by_layer: bool = False
    score: str = ""
    arm: str = ""
    other: str | tuple[str, ...] = ""


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

    def in_words(self, wanted: str, verb: str = "is") -> str:
        """Say that the quantity is as predicted, or with the verb "is not" that it is not."""
        state = {
            ABOVE: f"more than {self.margin:g}",
            BELOW: f"less than −{self.margin:g}",
            NONE: f"within ±{self.no_effect:g} of 0",
        }[wanted]
        return f"{self.label} {verb} {state}"


@dataclass(frozen=True)
class Cost:
    """What the answer loses without the second map of the heads that a test is about.

    Attributes
    ----------
    value, low, high : float
        Rise of the loss of the answer, in nats, and its 95 % interval, which a single prompt does not have (NaN).
    of : {"A2", "whole heads"}
        What was taken out: the second map alone, or, if only that is known, the head with both of its maps. Whole heads are no
        bound: to lose A2 leaves A1 as it was not trained to stand, which can cost more than to lose both.
    """

    value: float
    low: float
    high: float
    of: str = "A2"

    @property
    def idle(self) -> bool:
        """Whether it is less than the smallest effect that matters, so that there is nothing for an account to explain.

        Where only the cost of whole heads is known it is never so, since that is no bound on the cost of A2.
        """
        return self.of == "A2" and self.value < IDLE


@dataclass(frozen=True, eq=False, kw_only=True)
class Test:
    """What was written down before anything was looked at: what is estimated, of what, and what accounts predict of it.

    An account is *silent* if it predicts nothing, if A2 is idle, or if what it predicts came out and others predict it too;
    *against* if an interval excludes one of its predictions; *for* if all of them came out; *open* otherwise. Where nothing is
    predicted it is a measurement: quantities by which the accounts cannot be told apart are estimated and shown, and there is no
    verdict.

    Attributes
    ----------
    id, question, source, statistic : str
    asks : dict of str to {"above", "below"}
        The quantities that answer the question, and on which side of 0 each says yes.
    controls : tuple of str
    quantities : dict of str to Quantity
        What is estimated.
    needs : {"model", "pair", "checkpoints", "cohort"}
        What it is measured on.
    measure : callable
        From such a subject to the sample or estimate of every quantity by name; raises :class:`Missing` if it cannot be measured.
    predictions : dict of {"NC", "SP", "SH"} to dict of str to {"above", "below", "none"}
        What each account predicts of the quantities; one that predicts nothing is left out.
    limits : str
        What it cannot say, whatever comes out.
    kind : {"primary", "mechanism", "measurement"}
        Primaries are corrected among themselves (Holm), mechanism tests among themselves (Benjamini–Hochberg), measurements not.
    of : str
        Of which heads and queries it is.
    inside : bool
        Whether it looks inside heads. Then it says nothing if their second map costs the answer less than :data:`IDLE`.
    without_a2 : str
        The quantity that is itself what the second maps cost there, of a test that takes them out. By default the cost is the
        mean over heads as they count, which is small if many heads stand in for each other though all together are needed.

    Raises
    ------
    DiffscopeError
        The question does not end with a question mark; what is asked or predicted is of a quantity that is not estimated, or is
        no side named above; or what it needs, or its kind, is none of those above.
    """

    __test__ = False  # pytest's own tests have this name too

    id: str
    question: str
    asks: Mapping[str, str]
    source: str
    statistic: str
    controls: tuple[str, ...]
    quantities: Mapping[str, Quantity]
    needs: Needs
    measure: Measure
    predictions: Mapping[str, Mapping[str, str]]
    limits: str = ""
    kind: Kind = "mechanism"
    of: str = ""
    inside: bool = False
    without_a2: str = ""

    def __post_init__(self) -> None:
        whose, names = f"the test {self.id!r}", ", ".join(self.quantities)
        of_names, sides = set(self.asks) <= set(self.quantities), set(self.asks.values()) <= {ABOVE, BELOW}
        if not (self.question.endswith("?") and self.asks and of_names and sides):
            raise DiffscopeError(
                f"{whose} asks {self.question!r} of {dict(self.asks)}; give a question, and of one quantity at least of "
                f"{names} whether {ABOVE} or {BELOW} 0 is a yes"
            )
        kinds = get_args(Kind)[:2] if self.predictions else get_args(Kind)
        for name, word, words in (("needs", self.needs, get_args(Needs)), ("is of the kind", self.kind, kinds)):
            if word not in words:
                raise DiffscopeError(f"{whose} {name} {word!r}; it has to be one of {', '.join(words)}")
        states = (ABOVE, BELOW, NONE)
        for account, predicted in self.predictions.items():
            if account not in ACCOUNTS or not (set(predicted) <= set(self.quantities) and set(predicted.values()) <= set(states)):
                raise DiffscopeError(
                    f"{whose} predicts {account}: {dict(predicted)}; accounts are {', '.join(ACCOUNTS)}, its quantities "
                    f"{names}, states {', '.join(states)}"
                )
        if self.without_a2 and self.without_a2 not in self.quantities:
            raise DiffscopeError(f"{whose} has no quantity {self.without_a2!r}; there are {names}")

    @property
    def judged(self) -> tuple[str, ...]:
        """Names of the quantities that an account predicts something of; none of a measurement."""
        return tuple(dict.fromkeys(name for predicted in self.predictions.values() for name in predicted))

    @property
    def rule(self) -> str:
        """What each account predicts, and which of them the test can never be for; of a measurement that there is no rule."""
        parts = []
        for account, predicted in self.predictions.items():
            conditions = (self.quantities[name].in_words(wanted) for name, wanted in predicted.items())
            never = "" if self.own(account) else f" (never for {account}: {self.shared(account)})"
            parts.append(f"{account} predicts that {' and '.join(conditions)}{never}")
        return "; ".join(parts) or "a measurement: no verdict"

    @property
    def tells_apart(self) -> bool:
        """Whether it can be for an account."""
        return any(self.own(account) for account in self.predictions)

    def own(self, account: str) -> list[str]:
        """Name the quantities of which an account alone predicts an effect: only these can bear it out.

        That there is no effect is predicted by whoever thinks that nothing happens, so it is nobody's own.
        """
        others = [predicted for other, predicted in self.predictions.items() if other != account]
        effects = self._effects(account).items()
        return [name for name, wanted in effects if all(predicted.get(name) != wanted for predicted in others)]

    def shared(self, account: str) -> str:
        """Say who else predicts what an account predicts, of an account that has no prediction of its own."""
        effects = self._effects(account).items()
        if not effects:
            return "no effect at all would look the same"
        others = [
            other
            for other, predicted in self.predictions.items()
            if other != account and any(predicted.get(name) == wanted for name, wanted in effects)
        ]
        return f"{' and '.join(others)} {'predicts' if len(others) == 1 else 'predict'} the same"

    def _effects(self, account: str) -> dict[str, str]:
        """Return what an account predicts, without the effects that it says are not there."""
        return {name: wanted for name, wanted in self.predictions.get(account, {}).items() if wanted != NONE}

    def holds(self, account: str, states: Mapping[str, str]) -> bool:
        """Whether all that an account predicts came out."""
        predicted = self.predictions.get(account, {})
        return bool(predicted) and all(
            states[name] == wanted or (wanted == NONE and states[name] == AS_NULL) for name, wanted in predicted.items()
        )

    def failures(self, account: str, estimates: Mapping[str, Estimate]) -> list[str]:
        """Name the quantities whose intervals exclude what an account predicts of them."""
        return [
            name
            for name, wanted in self.predictions.get(account, {}).items()
            if self.quantities[name].excludes(wanted, estimates[name].low, estimates[name].high)
        ]

    def idle(self, cost: Cost | None) -> bool:
        """Whether the test looks inside heads whose second map costs less than what matters."""
        return self.inside and cost is not None and cost.idle

    def judge(self, estimates: Mapping[str, Estimate], states: Mapping[str, str], cost: Cost | None = None) -> dict[str, str]:
        """Return a word of each account: for, against, open or silent.

        Parameters
        ----------
        estimates : mapping of str to Estimate
        states : mapping of str to str
            By quantity, as :func:`state` says.
        cost : Cost, optional
            What the second map of these heads costs.
        """
        return {account: self._word(account, estimates, states, cost)[0] for account in ACCOUNTS}

    def reasons(self, estimates: Mapping[str, Estimate], states: Mapping[str, str], cost: Cost | None = None) -> dict[str, str]:
        """Say why each account has its word."""
        return {account: self._word(account, estimates, states, cost)[1] for account in ACCOUNTS}

    def _word(
        self, account: str, estimates: Mapping[str, Estimate], states: Mapping[str, str], cost: Cost | None
    ) -> tuple[str, str]:
        """Return the word of an account, and why."""
        if account not in self.predictions:
            return SILENT, "predicts nothing here"
        if cost is not None and self.idle(cost):
            lost = f"without it the answer loses {in_nats(cost)}, and less than {IDLE:g} does not matter"
            return SILENT, f"A2 is idle in these heads: {lost}"
        if failed := self.failures(account, estimates):
            predicted = self.predictions[account]
            return AGAINST, "; ".join(self.quantities[name].in_words(predicted[name], "is not") for name in failed)
        if not self.holds(account, states):
            return OPEN, "its prediction is neither met nor excluded"
        if self.own(account):
            return FOR, "as it predicts, and no other account does"
        return SILENT, f"as it predicts, but {self.shared(account)}"


def in_nats(cost: Cost) -> str:
    """Return a cost with its interval, if there is one."""
    value, low, high = (minus(f"{number:.3g}") for number in (cost.value, cost.low, cost.high))
    return f"{value} nats{'' if math.isnan(cost.low) else f' (95 % {low} to {high})'}"


def state(estimate: Estimate, p: float, margin: float, within: float | None = None) -> str:
    """Say what an estimate shows: an effect of at least `margin` above or below 0, none of that size, something, or nothing yet.

    ================  ==============================================================================================
    above, below      the interval excludes 0, `p` (corrected) is at most 0.05, and the value is at least `margin`
                      away from 0 and from what untrained models show on the same side
    none              the interval is within ± `within`, by default the margin
    as untrained      the same, and untrained models show as little (p above 0.05): nothing was learned
    far               the interval is beyond `margin`, but not above or below by p or by untrained models
    between           the interval is beyond `within` and below `margin`: more than none, less than what matters
    open              none of these
    ================  ==============================================================================================
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


def by_interval(estimate: Estimate, quantity: Quantity) -> str:
    """Return the :func:`state` of an estimate by its interval and size alone, whatever its p."""
    return state(estimate, 0.0, quantity.margin, quantity.no_effect)


def decisive(estimate: Estimate, quantity: Quantity) -> list[LeaveOneOut]:
    """List the seeds and heads whose removal changes what an estimate shows, p ignored.

    Seeds are skipped if there are fewer than five: the interval of the rest is wide whichever is left out.
    """
    whole = by_interval(estimate, quantity)
    few = estimate.seeds < FEWEST
    rests = ((left, replace(estimate, value=left.value, low=left.low, high=left.high)) for left in estimate.leave_one_out)
    return [left for left, rest in rests if not (few and left.unit == "seed") and by_interval(rest, quantity) != whole]


def words_by(words: str, weights: str) -> str:
    """Return what a test declares, in words that are of the first view, with heads weighted otherwise."""
    return words.replace(BY[KNOCK_OUT], BY[weights]) if weights else words
