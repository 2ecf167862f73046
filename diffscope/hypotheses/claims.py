"""What others have published, beside what was measured here: the same sign, the other one, or a question that cannot be asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from diffscope.hypotheses.declared import TESTS
from diffscope.hypotheses.inference import Estimate
from diffscope.hypotheses.rules import ABOVE, BELOW, NONE, Quantity
from diffscope.hypotheses.verdicts import Verdict

SAME = "same sign"
OTHER = "other sign"
UNDECIDED = "undecided"
MIXED = "same and other sign"
NOT_ASKED = "cannot be asked"
NOT_MEASURED = "not measured"
WITHIN = "within"
OUTSIDE = "outside"
Says = Literal["above", "below", "none"]


@dataclass(frozen=True)
class Bearing:
    """A quantity of a test that bears on a claim, and what the claim says of it.

    Attributes
    ----------
    test, quantity : str
    says : {"above", "below", "none"} or (float, float)
        Above 0, below 0, within ± the smallest effect that matters, or in a range.
    """

    test: str
    quantity: str
    says: Says | tuple[float, float]


@dataclass(frozen=True)
class Claim:
    """What a source says, and what of this study bears on it.

    Attributes
    ----------
    id, source, says : str
    published : str
        The figures that the source gives, if any.
    bearings : tuple of Bearing
        None of a claim that cannot be asked here.
    limits : str
        In what the question here is another one, or why it cannot be asked.
    """

    id: str
    source: str
    says: str
    published: str
    bearings: tuple[Bearing, ...]
    limits: str


@dataclass(frozen=True)
class Measured:
    """One quantity beside a claim.

    Attributes
    ----------
    bearing : Bearing
    quantity : Quantity
    estimate : Estimate or None
        None where the test could not run; `why` says what it needs.
    answer : str
    why : str
    """

    bearing: Bearing
    quantity: Quantity
    estimate: Estimate | None
    answer: str
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
        """One word for all of its quantities: where some are undecided, that of the others is said of them alone."""
        if not self.claim.bearings:
            return NOT_ASKED
        signs = list(dict.fromkeys(each.answer for each in self.measured))
        if len(signs) == 1:
            return signs[0]
        counts = [f"{sum(each.answer == sign for each in self.measured)} {sign}" for sign in signs]
        return f"of {len(self.measured)}: {', '.join(counts)}"


def compare(claims: Sequence[Claim], boards: Sequence[Sequence[Verdict]]) -> list[Compared]:
    """Set claims beside the estimates of boards; what the first board lacks is taken from a later one.

    An answer is of a 95 % interval, not corrected for how many claims there are: it has the claimed sign where all of it is on
    the claimed side of 0, the other sign where all of it is on the other side. Of a claim that there is nothing, the interval
    lies within ± the smallest effect that matters, or outside of it; the same of a claimed range.

    Parameters
    ----------
    claims : sequence of Claim
    boards : sequence of boards
        Each a sequence of Verdict.
    """
    verdicts = [verdict for board in boards for verdict in board]
    return [Compared(claim, tuple(_measured(bearing, verdicts) for bearing in claim.bearings)) for claim in claims]


def _measured(bearing: Bearing, verdicts: Sequence[Verdict]) -> Measured:
    quantity = TESTS[bearing.test].quantities[bearing.quantity]
    of_test = [verdict for verdict in verdicts if verdict.test.id == bearing.test]
    estimates = [verdict.estimates[bearing.quantity] for verdict in of_test if bearing.quantity in verdict.estimates]
    if not estimates:
        lacking = [verdict.shown for verdict in of_test if not verdict.estimates]
        return Measured(bearing, quantity, None, NOT_MEASURED, lacking[0] if lacking else f"{bearing.test} was not run")
    estimate = estimates[0]
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return Measured(bearing, quantity, estimate, NOT_MEASURED, estimate.why or "it has no interval")
    return Measured(bearing, quantity, estimate, answered(bearing.says, estimate, quantity.no_effect))


def answered(says: Says | tuple[float, float], estimate: Estimate, margin: float) -> str:
    """What an interval answers to a claim; `margin` is what counts as nothing on either side of 0."""
    if says in (ABOVE, BELOW):
        sign = 1 if says == ABOVE else -1
        low, high = sorted((sign * estimate.low, sign * estimate.high))
        return SAME if low > 0 else OTHER if high < 0 else UNDECIDED
    low, high = (-margin, margin) if says == NONE else says  # type: ignore[misc]
    if low <= estimate.low and estimate.high <= high:
        return WITHIN
    return OUTSIDE if estimate.high < low or estimate.low > high else UNDECIDED
