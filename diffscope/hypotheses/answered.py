"""What estimates answer to the question of their test: a word by the interval of each, and the numbers beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from diffscope.hypotheses.rules import ABOVE, Declared, Quantity
from diffscope.hypotheses.statistics import Estimate

YES = "yes"
NO = "no"
OPEN = "not told apart from 0"
ABSENT = "not measured"
UNTRAINED = "within the range of untrained models"


def word(estimate: Estimate, side: str) -> str:
    """Return what an estimate answers to a question that is answered with yes on one side of 0.

    The word is about the interval alone: whether an effect is as large as matters, and survives the correction of p, is for the
    verdict.

    Parameters
    ----------
    estimate : Estimate
    side : {"above", "below"}
        On which side of 0 the answer is yes.

    Returns
    -------
    {"yes", "no", "not told apart from 0", "not measured"}
        Yes or no where the whole 95 % interval lies on one side of 0.
    """
    if undefined(estimate):
        return ABSENT
    over, under = (estimate.low > 0, estimate.high < 0)
    if over == under:
        return OPEN
    return YES if over == (side == ABOVE) else NO


def undefined(estimate: Estimate) -> bool:
    """Whether there is no number with an interval: an end may be infinite, and then the finite one decides."""
    ends = (estimate.low, estimate.high)
    return math.isnan(estimate.value) or any(map(math.isnan, ends)) or all(map(math.isinf, ends))


def answers(test: Declared, estimates: Mapping[str, Estimate]) -> dict[str, str]:
    """Return the answer to the question of a test: each word, and the numbers and intervals that it is derived from.

    Parameters
    ----------
    test : Test or Measurement
    estimates : mapping of str to Estimate
        By quantity; those that a question asks of and that were not taken are left out, but where none was, that is the answer.

    Returns
    -------
    dict of str to str
        Such as ``{"no": "−0.0464 (95 % −0.0652 to −0.0276)"}``; of several quantities each with its name, those of one word
        together.
    """
    asked = {name: side for name, side in test.asks.items() if name in estimates}
    if not asked:
        labels = ", ".join(test.quantities[name].label for name in test.asks)
        return {ABSENT: f"because nothing was taken of what is asked: {labels}"}
    several = len(test.asks) > 1
    groups: dict[str, list[str]] = {YES: [], NO: [], OPEN: [], ABSENT: []}
    for name, side in asked.items():
        quantity = test.quantities[name]
        called = quantity.short or name.replace("_", " ")
        numbers = in_numbers(estimates[name], quantity)
        groups[word(estimates[name], side)].append(f"{called} {numbers}" if several else numbers)
    return {of: ", ".join(numbers) for of, numbers in groups.items() if numbers}


def in_numbers(estimate: Estimate, quantity: Quantity) -> str:
    """Return an estimate with its units and its interval, and whether untrained models show as much; or why there is none."""
    if undefined(estimate):
        return estimate.why or "undefined"
    units = f" {quantity.units}" if quantity.units else ""
    alike = estimate.untrained and estimate.null_low <= estimate.value <= estimate.null_high
    interval = f"95 % {end(estimate.low)} to {end(estimate.high)}"
    return f"{end(estimate.value)}{units} ({interval}{f'; {UNTRAINED}' if alike else ''})"


def number(value: float) -> str:
    """Return three digits with a minus sign, which is longer than a hyphen, or a dash for what is undefined."""
    return "–" if not math.isfinite(value) else f"{value:.3g}".replace("-", "−")


def end(value: float) -> str:
    """Return an end of an interval, which may be infinite."""
    return number(value) if math.isfinite(value) else f"{value:g}".replace("inf", "∞").replace("-", "−")
