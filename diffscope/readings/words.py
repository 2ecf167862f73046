"""Numbers as a sentence prints them; what is undefined has no words, and asking for them is a mistake of the caller."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

NAMED = 4  # of a list; the others are counted
LEAST = 1e-4  # nats: differences of log-odds below it are rounding


def percent(share: float) -> str:
    """76 %; what is not 0 is never printed as 0, and what is not all never as all."""
    _check(share)
    if 0 < abs(share) < 0.005:
        return "under 1 %"
    if 0.995 <= share < 1:
        return "over 99 %"
    return f"{100 * share:.0f} %".replace("-", "−")


def decimal(value: float) -> str:
    """Two decimals without a leading 0: .97, 1.00, −.31."""
    _check(value)
    if math.isinf(value):
        return endless(value)
    text = f"{abs(value):.2f}".removeprefix("0")
    return f"−{text}" if value < 0 and text != ".00" else text


def endless(value: float) -> str:
    """infinite, or minus infinity."""
    return "infinite" if value > 0 else "minus infinity"


def figures(value: float) -> str:
    """Two significant figures: 0.39, 1.2, 21, 4700."""
    _check(value)
    if math.isinf(value):
        return endless(value)
    if value == 0:
        return "0"
    rounded = float(f"{value:.1e}")
    digits = 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(digits, 0)}f}".replace("-", "−")


def change_in_nats(nats: float, error: float) -> str:
    """+0.39 ± 0.12 nats, with the standard error where it is defined; of what is no more than rounding: under 0.0001 nats."""
    _check(nats)
    known = error >= LEAST or (abs(nats) >= LEAST and error >= 0)
    within = f" ± {_size(error)}" if known else ""
    sign = "+" if nats >= LEAST else ""
    return f"{sign}{_size(nats)}{within} nats"


def alike(first: float, second: float) -> bool:
    """Whether two changes in nats cannot be told apart as they are printed."""
    return figures(first) == figures(second) or max(abs(first), abs(second)) < LEAST


def course(before: float, after: float, printed: Callable[[float], str] = figures, plural: bool = False) -> str:
    """falls from 10.8 to 1.6; rises from, stays at: both ends of a change, so that neither is taken for its size."""
    first, last = printed(before), printed(after)
    if first == last:
        return f"{'stay' if plural else 'stays'} at {last}"
    verb = "rise" if after > before else "fall"
    return f"{verb}{'' if plural else 's'} from {first} to {last}"


def counted(count: int, noun: str) -> str:
    """1 head, 8 heads."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def between(values: Sequence[float] | np.ndarray, printed: Callable[[float], str] = decimal) -> str:
    """.38 to .67; one value where both print alike."""
    least, largest = (printed(float(value)) for value in (min(values), max(values)))
    return least if least == largest else f"{least} to {largest}"


def listed(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def shortened(words: Sequence[str]) -> str:
    """a, b, c, d and 3 others; nothing is saved by counting a single one."""
    more = len(words) - NAMED
    return listed([*words[:NAMED], counted(more, "other")] if more > 1 else words)


def runs(numbers: Iterable[int]) -> str:
    """Numbers in ascending order, three and more that follow each other by their ends: 0 to 3, 5 and 6."""
    members = set(numbers)
    starts = sorted(number for number in members if number - 1 not in members)
    ends = sorted(number for number in members if number + 1 not in members)
    words = []
    for start, end in zip(starts, ends):
        words += [f"{start} to {end}"] if end > start + 1 else [str(number) for number in range(start, end + 1)]
    return listed(words)


def numbered(what: str, numbers: Iterable[int]) -> str:
    """Layer 3; layers 0 to 3 and 5."""
    members = set(numbers)
    return f"{what}{'s' if len(members) > 1 else ''} {runs(members)}"


def capital(text: str) -> str:
    """The same beginning with a capital."""
    return text[:1].upper() + text[1:]


def _size(nats: float) -> str:
    return f"under {LEAST:.4f}" if 0 < abs(nats) < LEAST else figures(nats)


def _check(value: float) -> None:
    if math.isnan(value):
        raise ValueError("what is undefined is not printed as a number")
