"""Write numbers, and lists of them, as sentences and tables print them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

ABSENT = "–"
DIGITS = 3  # of a number without uncertainty
UNCERTAIN = 2  # digits of an uncertainty
SMALLEST = -4  # power of ten below which a number is written with it
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NAMED = 4  # members of a list; the others are counted
LEAST = 1e-4  # nats: differences of log-odds below it are rounding

# Numbers in sentences. NaN has no words: it raises ValueError.


def percent(share: float) -> str:
    """Write a share as a percentage, 76 %; only 0 is printed as 0, and only 1 as 100."""
    _check(share)
    if 0 < abs(share) <= 0.005:
        return "under 1 %"
    if 0.995 <= share < 1:
        return "over 99 %"
    return minus(f"{100 * share:.0f} %")


def decimal(value: float) -> str:
    """Write two decimals without a leading 0: .97, 1.00, −.31."""
    _check(value)
    if math.isinf(value):
        return _infinite(value)
    text = f"{abs(value):.2f}".removeprefix("0")
    return f"−{text}" if value < 0 and text != ".00" else text


def two_figures(value: float) -> str:
    """Write two significant figures: 0.39, 1.2, 21, 4700."""
    _check(value)
    if math.isinf(value):
        return _infinite(value)
    if value == 0:
        return "0"
    rounded = float(f"{value:.1e}")
    digits = 1 - math.floor(math.log10(abs(rounded)))
    return minus(f"{rounded:.{max(digits, 0)}f}")


def decibels(value: float) -> str:
    """Write one decimal: 12.9, −0.3."""
    _check(value)
    return _infinite(value) if math.isinf(value) else minus(f"{value:.1f}")


def duration(seconds: float) -> str:
    """Write a time: 20 s, 3 min, 2.5 h."""
    _check(seconds)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def short_duration(seconds: float) -> str:
    """Write a time that may be short: 0.35 s, 12 s, 3 min."""
    return f"{seconds:.2g} s" if seconds < 99.5 else duration(seconds)


def change_in_nats(nats: float, error: float) -> str:
    """Write a change with its standard error if that is defined: +0.39 ± 0.12 nats; what is rounding as under 0.0001 nats."""
    _check(nats)
    known = error >= LEAST or (abs(nats) >= LEAST and error >= 0)
    within = f" ± {_size(error)}" if known else ""
    sign = "+" if nats >= LEAST else ""
    return f"{sign}{_size(nats)}{within} nats"


def print_alike(first: float, second: float) -> bool:
    """Return whether two changes in nats are the same as they are printed."""
    return two_figures(first) == two_figures(second) or max(abs(first), abs(second)) < LEAST


def course(before: float, after: float, plural: bool = False) -> str:
    """Write both ends of a change, so that neither is taken for its size: falls from 10.8 to 1.6, rises from, stays at."""
    first, last = two_figures(before), two_figures(after)
    if first == last:
        return f"{'stay' if plural else 'stays'} at {last}"
    verb = "rise" if after > before else "fall"
    return f"{verb}{'' if plural else 's'} from {first} to {last}"


def between(values: Iterable[float], printed: Callable[[float], str] = decimal) -> str:
    """Write the least and the largest: .38 to .67; one of them if both print alike."""
    ordered = sorted(values)
    least, largest = (printed(float(value)) for value in (ordered[0], ordered[-1]))
    return least if least == largest else f"{least} to {largest}"


# Numbers in tables. An undefined one is a dash.


def significant(value: float | int | None, digits: int = DIGITS) -> str:
    """Write a number to so many significant digits, integers in full."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if isinstance(value, int) or value == 0:
        return minus(f"{value:d}" if isinstance(value, int) else "0")
    power = math.floor(math.log10(abs(value)))
    if SMALLEST <= power < 6:
        return minus(f"{value:.{max(0, digits - 1 - power)}f}")
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return minus(f"{mantissa}·10{str(int(exponent)).translate(RAISED)}")


def with_interval(value: float, low: float, high: float) -> str:
    """Write ``0.123 [0.101, 0.147]``, to two digits of half the interval; a dash in brackets without an interval."""
    if not math.isfinite(value):
        return ABSENT
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{significant(value)} [{ABSENT}]"
    places = _places((high - low) / 2)
    if places is None:
        return f"{significant(value)} [{significant(low)}, {significant(high)}]"
    return f"{_fixed(value, places)} [{_fixed(low, places)}, {_fixed(high, places)}]"


def with_spread(value: float, spread: float) -> str:
    """Write ``0.123 ± 0.023``, to two digits of the spread; a dash after the sign without a spread."""
    if not math.isfinite(value):
        return ABSENT
    if not math.isfinite(spread):
        return f"{significant(value)} ± {ABSENT}"
    places = _places(spread)
    if places is None:
        return f"{significant(value)} ± {significant(spread)}"
    return f"{_fixed(value, places)} ± {_fixed(spread, places)}"


def minus(text: str) -> str:
    """Return a printed number with a true minus sign; zero has no sign."""
    return text.replace("-", "−") if any(digit in "123456789∞" for digit in text) else text.lstrip("-")


# Lists


def stretches(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and one past the last of each stretch of numbers that follow each other, in ascending order."""
    members = {int(number) for number in numbers}
    starts = sorted(number for number in members if number - 1 not in members)
    stops = sorted(number + 1 for number in members if number + 1 not in members)
    return list(zip(starts, stops))


def ranges(numbers: Iterable[int]) -> str:
    """Write numbers as ranges for tables and labels: 0–3, 5."""
    return ", ".join(str(start) if stop == start + 1 else f"{start}–{stop - 1}" for start, stop in stretches(numbers))


def runs(numbers: Iterable[int]) -> str:
    """Write numbers as ranges for sentences, two neighbours one by one: 0 to 3, 5 and 6."""
    words = []
    for start, stop in stretches(numbers):
        words += [f"{start} to {stop - 1}"] if stop > start + 2 else map(str, range(start, stop))
    return listed(words)


def numbered(what: str, numbers: Iterable[int]) -> str:
    """Write a noun with the numbers that it has: layer 3; layers 0 to 3 and 5."""
    members = set(numbers)
    return f"{what}{'s' if len(members) > 1 else ''} {runs(members)}"


def counted(count: int, noun: str) -> str:
    """Write a count with its noun: 1 head, 8 heads."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def layers_by_heads(layers: int, heads: int | str) -> str:
    """Write the shape of a model's attention: 3 layers × 2 heads; heads may be a range, 4 to 8."""
    return f"{counted(layers, 'layer')} × {heads} head{'' if heads == 1 else 's'}"


def head_name(layer: int, head: int) -> str:
    """Name a head by its layer and number: L1H3."""
    return f"L{int(layer)}H{int(head)}"


def listed(words: Sequence[str]) -> str:
    """Join words: a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def shortened(words: Sequence[str]) -> str:
    """Join the first words and count the others if there are several: a, b, c, d and 3 others."""
    more = len(words) - NAMED
    return listed([*words[:NAMED], counted(more, "other")] if more > 1 else words)


def capital(text: str) -> str:
    """Return a text that begins with a capital."""
    return text[:1].upper() + text[1:]


def _size(nats: float) -> str:
    return f"under {LEAST:.4f}" if 0 < abs(nats) < LEAST else two_figures(nats)


def _infinite(value: float) -> str:
    return "infinite" if value > 0 else "minus infinity"


def _check(value: float) -> None:
    if math.isnan(value):
        raise ValueError("what is undefined is not printed as a number")


def _places(width: float) -> int | None:
    """Return how many decimals (negative: tens, hundreds) show two digits of a width; None if it is 0 or very small."""
    if width == 0 or (power := math.floor(math.log10(width))) < SMALLEST:
        return None
    # Rounding may carry a digit over: 0.0996 to two digits is 0.10.
    power = math.floor(math.log10(round(width, UNCERTAIN - 1 - power)))
    return UNCERTAIN - 1 - power


def _fixed(value: float, places: int) -> str:
    rounded = round(value, places)
    return minus(f"{rounded:.{max(0, places)}f}")
