"""What others have published, beside what was measured here: the same sign, the other one, or a question that cannot be asked."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from diffscope.hypotheses.rules import ABOVE, BELOW, NONE, Quantity
from diffscope.hypotheses.sentence import NO, NOT_TOLD_APART, YES, number, undefined, word
from diffscope.hypotheses.shipped import find_claims
from diffscope.hypotheses.statistics import Estimate
from diffscope.hypotheses.tests import TESTS
from diffscope.hypotheses.verdict import Verdict

SAME = "same sign"
OTHER = "other sign"
UNDECIDED = "open"
NOT_ASKED = "cannot be asked"
NOT_YET = "not yet tested"
NOT_MEASURED = "not measured"
WITHIN = "within"
OUTSIDE = "outside"
NOT_ABOVE = "not above"
NOT_BELOW = "not below"
BY_WORD = {YES: SAME, NO: OTHER, NOT_TOLD_APART: UNDECIDED}  # what an interval answers to a claimed sign
Says = Literal["above", "below", "none", "not above", "not below"]


@dataclass(frozen=True)
class Bearing:
    """A quantity of a test that bears on a claim, and what the claim says of it.

    Attributes
    ----------
    test, quantity : str
    says : {"above", "below", "none", "not above", "not below"} or (float, float)
        Above 0, below 0; within ± the smallest effect that matters, not above it, not below minus it; or in a range.
    """

    test: str
    quantity: str
    says: Says | tuple[float, float]

    @property
    def declared(self) -> Quantity:
        """The quantity as its test declares it."""
        return TESTS[self.test].quantities[self.quantity]

    @property
    def range(self) -> tuple[float, float]:
        """What is claimed, as a range."""
        margin = self.declared.no_effect
        ranges = {
            ABOVE: (0.0, math.inf),
            BELOW: (-math.inf, 0.0),
            NONE: (-margin, margin),
            NOT_ABOVE: (-math.inf, margin),
            NOT_BELOW: (-margin, math.inf),
        }
        return ranges[self.says] if isinstance(self.says, str) else self.says

    @property
    def claimed(self) -> str:
        """The same in words."""
        low, high = (number(end) for end in self.range)
        if math.isinf(self.range[0]):
            return f"below {high}"
        return f"above {low}" if math.isinf(self.range[1]) else f"{low} to {high}"


@dataclass(frozen=True)
class Claim:
    """What a source says, and what of this study bears on it.

    Attributes
    ----------
    id, source, says : str
        The source by its short name.
    published : str
        The figures that the source gives, if any.
    bearings : tuple of Bearing
        None of a claim that cannot be asked here, or is not yet.
    limits : str
        In what the question here is another one, or why it cannot be asked.
    open : bool
        Of a claim without bearings: a test could ask it, and none does yet. `limits` says what is known so far.
    """

    id: str
    source: str
    says: str
    published: str
    bearings: tuple[Bearing, ...]
    limits: str
    open: bool = False


@dataclass(frozen=True)
class Measured:
    """One quantity beside a claim.

    Attributes
    ----------
    bearing : Bearing
    estimate : Estimate or None
        None where the test could not run, or its value is undefined and there is no second view; `why` says what it needs.
    answer : str
    board : str
        Which board it is of.
    why : str
    """

    bearing: Bearing
    estimate: Estimate | None
    answer: str
    board: str = ""
    why: str = ""


@dataclass(frozen=True)
class Compared:
    """A claim beside what was measured.

    Attributes
    ----------
    claim : Claim
    measured : tuple of Measured
    """

    claim: Claim
    measured: tuple[Measured, ...]

    @property
    def answer(self) -> str:
        """The answer of all of its quantities where they agree, else how many have which."""
        if not self.claim.bearings:
            return NOT_YET if self.claim.open else NOT_ASKED
        answers = list(dict.fromkeys(each.answer for each in self.measured))
        if len(answers) == 1:
            return answers[0]
        counts = [f"{sum(each.answer == answer for each in self.measured)} {answer}" for answer in answers]
        return f"of {len(self.measured)}: {', '.join(counts)}"


def read_claims() -> tuple[dict[str, str], list[Claim]]:
    """Return the sources of the shipped study, by the short names that tables have for them, and what they claim."""
    record = tomllib.loads(find_claims().read_text(encoding="utf-8"))
    return record["sources"], [Claim(**{**claim, "bearings": _bearings(claim["bearings"])}) for claim in record["claims"]]


def _bearings(rows: Sequence[Mapping]) -> tuple[Bearing, ...]:
    """Return the bearings of a claim, one a quantity."""
    says = [row["says"] if isinstance(row["says"], str) else tuple(row["says"]) for row in rows]
    return tuple(Bearing(row["test"], quantity, of) for row, of in zip(rows, says) for quantity in row["quantities"])


def compare(claims: Sequence[Claim], boards: Mapping[str, Sequence[Verdict]]) -> list[Compared]:
    """Set claims beside the estimates of boards; what the first board lacks is taken from a later one.

    An answer is of a 95 % interval, not corrected for how many claims there are: it has the claimed sign where all of it is on
    the claimed side of 0, the other sign where all of it is on the other side. Of a claim that there is nothing, or no more than
    what matters, or of a claimed range, the whole interval is within it or outside of it.
    """
    return [Compared(claim, tuple(_measured(bearing, boards) for bearing in claim.bearings)) for claim in claims]


def _measured(bearing: Bearing, boards: Mapping[str, Sequence[Verdict]]) -> Measured:
    whys = []
    by_answer = None  # the first view is undefined, and the second is not
    for name, board in boards.items():
        for verdict in board:
            estimate = verdict.estimates.get(bearing.quantity) if verdict.test.id == bearing.test else None
            if estimate is not None and not undefined(estimate):
                return Measured(bearing, estimate, answered(bearing, estimate), name)
            if verdict.test.id == bearing.test:
                whys.append(verdict.shown if estimate is None else estimate.why or "it has no interval")
                by_answer = estimate if estimate is not None and estimate.by_answer else by_answer
    return Measured(bearing, by_answer, NOT_MEASURED, why=whys[0] if whys else f"{bearing.test} was not run")


def answered(bearing: Bearing, estimate: Estimate) -> str:
    """Return what an interval answers to what a claim says of a quantity."""
    low, high = bearing.range
    inside = low <= estimate.low and estimate.high <= high
    beyond = estimate.high < low or estimate.low > high
    if bearing.says in (ABOVE, BELOW):
        return BY_WORD[word(estimate, bearing.says)]
    if beyond:
        return f"{OUTSIDE}, {ABOVE if estimate.low > high else BELOW}"
    return WITHIN if inside else UNDECIDED
