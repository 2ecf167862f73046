"""What the fields of a record that was read from a file have to be: a table of them, and one line on the first that is not."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

LARGEST = 2**63 - 1  # what every integer type of 64 bits holds, and float32 comes near to


class Kind(NamedTuple):
    """What a field has to be.

    Attributes
    ----------
    words : str
        As the end of a sentence: "a whole number".
    holds : callable
        Whether a value is of this kind.
    """

    words: str
    holds: Callable[[Any], bool]


def check_fields(what: str, record: Any, kinds: Mapping[str, Kind], optional: Collection[str] = ()) -> None:
    """Refuse a record of which a field is missing, unknown or of another kind.

    Parameters
    ----------
    what : str
        What the record describes, for the message.
    record : dict
    kinds : mapping of str to Kind
        By the name of the field.
    optional : collection of str
        The fields that it may lack.

    Raises
    ------
    ValueError
        One line that names the field, its value and what it has to be.
    """
    if not isinstance(record, dict):
        raise ValueError(f"{what} is {shown(record)}, and has to be a table of fields")
    has, lacks = ("have", "lack") if what.endswith("s") else ("has", "lacks")
    if unknown := next((name for name in record if name not in kinds), None):
        raise ValueError(f"{what} {has} the field {shown(unknown)}, which cannot be there")
    for name, kind in kinds.items():
        if name in record:
            check(f"{name} of {what}", record[name], kind)
        elif name not in optional:
            raise ValueError(f"{what} {lacks} the field {name} ({kind.words})")


def check(what: str, value: Any, kind: Kind) -> None:
    """Refuse a value of another kind.

    Raises
    ------
    ValueError
    """
    if not kind.holds(value):
        raise ValueError(f"{what} is {shown(value)}, and has to be {kind.words}")


def shown(value: Any) -> str:
    """How a value begins, in one line and without control characters, for messages."""
    return " ".join(reprlib.repr(value).split())


def whole(least: int = 0, most: int = LARGEST) -> Kind:
    """A whole number from `least` to `most`."""
    words = f"a whole number from {least}" + (f" to {most}" if most < LARGEST else "")
    return Kind(words, lambda value: type(value) is int and least <= value <= most)


def finite(least: float = -LARGEST, most: float = LARGEST) -> Kind:
    """A finite number from `least` to `most`."""
    at_least = f" from {least:g}" if least > -LARGEST else ""
    at_most = f" to {most:g}" if most < LARGEST else ""
    return Kind(f"a finite number{at_least}{at_most}", lambda value: _is_number(value) and least <= value <= most)


def or_nan(kind: Kind) -> Kind:
    """What is of a kind, or NaN."""
    return Kind(f"{kind.words}, or NaN", lambda value: kind.holds(value) or (type(value) is float and math.isnan(value)))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and (type(value) is int or math.isfinite(value))


def _is_float_or_int(value: Any) -> bool:
    """Whether it is a float, or an integer that fits into 64 bits."""
    return type(value) is float or (type(value) is int and abs(value) <= LARGEST)


def one_of(*values: Any) -> Kind:
    """One of a few values."""
    return Kind(f"one of {', '.join(map(str, values))}", lambda value: any(type(value) is type(x) and value == x for x in values))


def maybe(kind: Kind) -> Kind:
    """A value of this kind, or none."""
    return Kind(f"{kind.words}, or null", lambda value: value is None or kind.holds(value))


def listed(kind: Kind, length: int | None = None) -> Kind:
    """A list of values of this kind."""
    words = f"a list of {'values' if length is None else length}, each {kind.words}"

    def holds(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and length in (None, len(value)) and all(map(kind.holds, value))

    return Kind(words, holds)


def each_of(*kinds: Kind) -> Kind:
    """A list of as many values, each of its own kind."""
    words = f"a list of {'; '.join(kind.words for kind in kinds)}"

    def holds(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and len(value) == len(kinds) and all(k.holds(x) for k, x in zip(kinds, value))

    return Kind(words, holds)


def by_name(kind: Kind) -> Kind:
    """A table of values of this kind by name."""

    def holds(value: Any) -> bool:
        return isinstance(value, dict) and all(TEXT.holds(name) and kind.holds(each) for name, each in value.items())

    return Kind(f"a table by name, each {kind.words}", holds)


def _is_text(value: Any) -> bool:
    """Whether it is text that can be written: half a character of UTF-16 cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


ANY = Kind("anything", lambda value: True)
TEXT = Kind("text", _is_text)
TABLE = Kind("a table of fields", lambda value: isinstance(value, dict))
FLAG = Kind("true or false", lambda value: type(value) is bool)
WIDTH = Kind("a number from 0, infinity or NaN", lambda value: _is_float_or_int(value) and not value < 0)
NUMBER_OR_NAN = or_nan(finite())
