"""A test in words: the answer to its question, and what was measured, what was predicted of it, and what follows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from diffscope.hypotheses.accounts import ACCOUNTS, OPEN, SILENT
from diffscope.hypotheses.rules import ABOVE, SECOND, Cost, Quantity, Test, by_interval, decisive, in_nats, words_by
from diffscope.hypotheses.statistics import Estimate
from diffscope.hypotheses.tests import SUBJECTS
from diffscope.numbers import counted, minus

CORRECTIONS = {"primary": "Holm", "mechanism": "Benjamini–Hochberg"}
YES = "yes"
NO = "no"
NOT_TOLD_APART = "not told apart from 0"
ABSENT = "not measured"
UNTRAINED = "within the range of untrained models"


def word(estimate: Estimate, side: str) -> str:
    """Answer a question, whose yes is on one side of 0, by the interval of an estimate alone.

    Whether the effect is as large as matters, and survives the correction of p, is for the verdict.

    Parameters
    ----------
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
        return NOT_TOLD_APART
    return YES if over == (side == ABOVE) else NO


def undefined(estimate: Estimate) -> bool:
    """Whether there is no value with an interval; one end of it may be infinite."""
    ends = (estimate.low, estimate.high)
    return math.isnan(estimate.value) or any(map(math.isnan, ends)) or all(map(math.isinf, ends))


def answers(test: Test, estimates: Mapping[str, Estimate]) -> dict[str, str]:
    """Answer the question of a test: each word, and the numbers and intervals that it follows from.

    Parameters
    ----------
    estimates : mapping of str to Estimate
        By quantity. Quantities that were not measured are left out; where none was, that is the answer.

    Returns
    -------
    dict of str to str
        Such as ``{"no": "−0.0464 (95 % −0.0652 to −0.0276)"}``; several quantities with their names, grouped by word.
    """
    asked_of = {name: side for name, side in test.asks.items() if name in estimates}
    if not asked_of:
        labels = ", ".join(test.quantities[name].label for name in test.asks)
        return {ABSENT: f"because nothing was taken of what is asked: {labels}"}
    several = len(test.asks) > 1
    groups: dict[str, list[str]] = {YES: [], NO: [], NOT_TOLD_APART: [], ABSENT: []}
    for name, side in asked_of.items():
        quantity = test.quantities[name]
        called = quantity.short or name.replace("_", " ")
        numbers = in_numbers(estimates[name], quantity)
        groups[word(estimates[name], side)].append(f"{called} {numbers}" if several else numbers)
    return {of: ", ".join(numbers) for of, numbers in groups.items() if numbers}


def in_numbers(estimate: Estimate, quantity: Quantity) -> str:
    """Format an estimate with units and interval, and whether untrained models show as much; or why there is none."""
    if undefined(estimate):
        return estimate.why or "undefined"
    units = f" {quantity.units}" if quantity.units else ""
    alike = estimate.untrained and estimate.null_low <= estimate.value <= estimate.null_high
    interval = f"95 % {end(estimate.low)} to {end(estimate.high)}"
    return f"{end(estimate.value)}{units} ({interval}{f'; {UNTRAINED}' if alike else ''})"


def number(value: float) -> str:
    """Format with three digits and a minus sign; a dash for what is undefined."""
    return "–" if not math.isfinite(value) else minus(f"{value:.3g}")


def end(value: float) -> str:
    """Format an end of an interval, which may be infinite."""
    return number(value) if math.isfinite(value) else minus(f"{value:g}".replace("inf", "∞"))


def sentence(
    test: Test,
    estimates: Mapping[str, Estimate],
    corrected: Mapping[str, float],
    states: Mapping[str, str],
    cost: Cost | None = None,
) -> str:
    """Say what was measured, what was predicted and what follows; of a mechanism test only the quantities of its rule."""
    names = list(corrected if test.kind == "mechanism" else estimates)
    parts = [_in_words(test, name, estimates[name], corrected) for name in names]
    parts += _conclusions(test, estimates, states, cost) if test.judged else []
    notes = dict.fromkeys(part for name in names for part in estimates[name].note.split(". ") if part and test.judged)
    of = (
        [
            f"of {words_by(test.of, weighted_by(estimates.values()))}",
            *([f"what A2 costs there: {cost_in_words(cost)}"] if test.inside else []),
        ]
        if test.judged
        else []
    )
    texts = [
        f"{'. '.join(map(_capital, [*parts, *of]))}. From {'; '.join(_counted(test, estimates, names))}.",
        *(f"{_capital(note)}." for note in notes),
        test.limits,
    ]
    return " ".join(filter(None, texts))


def _conclusions(test: Test, estimates: Mapping[str, Estimate], states: Mapping[str, str], cost: Cost | None) -> list[str]:
    """Give the word of each account that predicts something, and why; once for all if the heads are idle."""
    words = test.judge(estimates, states, cost)
    reasons = test.reasons(estimates, states, cost)
    if test.idle(cost):
        return [f"all accounts: {SILENT} ({reasons[next(iter(test.predictions))]})"]
    return [f"{ACCOUNTS[account]}: {words[account]} ({reasons[account]})" for account in test.predictions]


def _in_words(test: Test, name: str, estimate: Estimate, corrected: Mapping[str, float]) -> str:
    quantity = test.quantities[name]
    if estimate.why:
        return f"{quantity.label}: undefined, {estimate.why}"
    words = f"{quantity.label}: {number(estimate.value)} (95 % {number(estimate.low)} to {number(estimate.high)}"
    words += f"; {SECOND} {second_view(estimate)}" if estimate.by_answer else ""
    if name not in corrected:
        p = f"; p = {number(uncorrected(test, estimate))}, not corrected" if test.judged else ""
        return f"{words}{p})"
    after = "" if whole(test) else f"; after {CORRECTIONS[test.kind]} {number(corrected[name])}"
    p = f"p = {number(uncorrected(test, estimate))}{_by_which_test(test, estimate)}{after}"
    return "; ".join(filter(None, (f"{words}; {p})", decided(estimate, quantity))))


def _by_which_test(test: Test, estimate: Estimate) -> str:
    """Say of a primary's p which test gives it, and what Student's t gives; nothing of other tests."""
    if by_signs(test, estimate):
        return f" by sign flips, {number(estimate.p_t)} by Student's t"
    if whole(test) and estimate.least_p > estimate.p:
        return f", the least of sign flips of {estimate.seeds} seeds, {number(estimate.p)} by Student's t"
    return ""


def second_view(estimate: Estimate) -> str:
    """Format the estimate and interval with heads weighted by A1's mass on the answer; empty without one."""
    if not estimate.by_answer:
        return ""
    value, low, high = map(number, estimate.by_answer)
    return f"{value}, {low} to {high}"


def decided(estimate: Estimate, quantity: Quantity) -> str:
    """Say which single seed or head decides what an estimate shows, or leaves it open; empty if none does."""
    rest = decisive(estimate, quantity)
    if not rest:
        return ""
    shown = by_interval(estimate, quantity)
    by = "left open by" if shown == OPEN else "decided by"
    if len(rest) > 3:
        return f"{by} any one of {len(rest)} ({', '.join(left.what for left in rest)})"
    each = (f"{left.what} (without it {number(left.value)}, {number(left.low)} to {number(left.high)})" for left in rest)
    return f"{by} {', '.join(each)}"


def _counted(test: Test, estimates: Mapping[str, Estimate], names: Iterable[str]) -> list[str]:
    """Count models, seeds and prompts of the estimates; where counts differ, by quantity."""
    singular, plural = SUBJECTS[test.needs]
    groups: dict[str, list[str]] = {}
    for name in names:
        counts = estimates[name]
        words = f"{counts.seeds} {plural}" if counts.seeds > 1 else f"one {singular}, {counted(counts.prompts, 'prompt')}"
        words += f", {counts.untrained} untrained {plural}" if counts.untrained else ""
        groups.setdefault(words, []).append(test.quantities[name].label)
    if len(groups) == 1:
        return list(groups)
    if not test.judged:
        fewest, most = (of(estimates[name].seeds for name in names) for of in (min, max))
        return [f"{fewest} {plural}" if fewest == most else f"{fewest} to {most} {plural}, as the table says"]
    return [f"{words} ({', '.join(labels)})" for words, labels in groups.items()]


def _capital(words: str) -> str:
    """Capitalise, except a symbol such as λ or d′."""
    return words if words[:1] == "λ" or words[1:2] == "′" else words[0].upper() + words[1:]


def weighted_by(estimates: Iterable[Estimate]) -> str:
    """Return what heads are weighted by, a key of :data:`diffscope.hypotheses.rules.BY`; empty without heads."""
    return next((estimate.weighted_by for estimate in estimates if estimate.weighted_by), "")


def cost_in_words(cost: Cost | None) -> str:
    """Format the cost of a second map with its interval; or that it was not measured."""
    if cost is None:
        return "not measured"
    return in_nats(cost) if cost.of == "A2" else f"{in_nats(cost)} for {cost.of}; for A2 alone not measured"


def whole(test: Test) -> bool:
    """Whether a test is corrected as a whole: its p belongs to the verdict, not to each quantity."""
    return test.kind == "primary"


def by_signs(test: Test, estimate: Estimate) -> bool:
    """Whether the p that is corrected is of the sign-flip test, and Student's t is shown beside it."""
    return test.kind == "primary" and not math.isnan(estimate.p_t)


def uncorrected(test: Test, estimate: Estimate) -> float:
    """Return the p that is corrected: of a primary no less than sign flips of its seeds can give."""
    p = estimate.p if math.isnan(estimate.p_t) or by_signs(test, estimate) else estimate.p_t
    return max(p, estimate.least_p) if test.kind == "primary" else p
