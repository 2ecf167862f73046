"""Numbers as a paper prints them: rounded to what is uncertain in them."""

from __future__ import annotations

import math

ABSENT = "–"
DIGITS = 3  # of what has no uncertainty
UNCERTAIN = 2  # digits of an uncertainty
SMALLEST = -4  # power of ten below which a number is written with it
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(value: float | int | None, digits: int = DIGITS) -> str:
    """A number to so many significant digits; whole numbers as they are, a dash for what is undefined."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if isinstance(value, int) or value == 0:
        return _signed(f"{value:d}" if isinstance(value, int) else "0")
    power = math.floor(math.log10(abs(value)))
    if SMALLEST <= power < 6:
        return _signed(f"{value:.{max(0, digits - 1 - power)}f}")
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return _signed(f"{mantissa}·10{str(int(exponent)).translate(RAISED)}")


def with_interval(value: float, low: float, high: float) -> str:
    """``0.123 [0.101, 0.147]``, to two digits of half the interval; a dash in brackets where there is none."""
    if not math.isfinite(value):
        return ABSENT
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{plain(value)} [{ABSENT}]"
    places = _places((high - low) / 2)
    if places is None:
        return f"{plain(value)} [{plain(low)}, {plain(high)}]"
    return f"{_fixed(value, places)} [{_fixed(low, places)}, {_fixed(high, places)}]"


def with_spread(value: float, spread: float) -> str:
    """``0.123 ± 0.023``, to two digits of the spread; a dash after the sign where there is none."""
    if not math.isfinite(value):
        return ABSENT
    if not math.isfinite(spread):
        return f"{plain(value)} ± {ABSENT}"
    places = _places(spread)
    if places is None:
        return f"{plain(value)} ± {plain(spread)}"
    return f"{_fixed(value, places)} ± {_fixed(spread, places)}"


def _places(width: float) -> int | None:
    """Decimals (negative: tens, hundreds) that show two digits of a width; None where it is 0 or too small to be written out."""
    if width == 0 or (power := math.floor(math.log10(width))) < SMALLEST:
        return None
    # Rounding may carry a digit over: 0.0996 to two digits is 0.10.
    power = math.floor(math.log10(round(width, UNCERTAIN - 1 - power)))
    return UNCERTAIN - 1 - power


def _fixed(value: float, places: int) -> str:
    rounded = round(value, places)
    return _signed(f"{rounded:.{max(0, places)}f}")


def _signed(text: str) -> str:
    """With a minus that is one; zero has none."""
    return text.replace("-", "−") if any(digit in "123456789" for digit in text) else text.lstrip("-")
