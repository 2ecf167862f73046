"""Check the fields of a record from a file against a table of kinds, and name the first that does not fit in one line."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

LARGEST = 2**63 - 1  # the largest integer of 64 bits


class Kind(NamedTuple):
    """Kind of a field's value.

    Attributes
    ----------
    words : str
        Name of the kind, as the end of a sentence: "a whole number".
    holds : callable
        Whether a value is of this kind.
    """

    words: str
    holds: Callable[[Any], bool]


def check_fields(what: str, record: Any, kinds: Mapping[str, Kind], optional: Collection[str] = ()) -> None:
    """Raise ValueError if a field of a record is missing, unknown or of another kind.

    Parameters
    ----------
    what : str
        Name of the record in the message.
    record : dict
    kinds : mapping of str to Kind
        The kind of each field, by name.
    optional : collection of str
        The fields that may be missing.

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
    """Raise ValueError if a value is of another kind."""
    if not kind.holds(value):
        raise ValueError(f"{what} is {shown(value)}, and has to be {kind.words}")


def shown(value: Any) -> str:
    """Return the beginning of a value, in one line without control characters, for messages."""
    return " ".join(reprlib.repr(value).split())


def whole(least: int = 0, most: int = LARGEST) -> Kind:
    """Return the kind of whole numbers from `least` to `most`."""
    words = f"a whole number from {least}" + (f" to {most}" if most < LARGEST else "")
    return Kind(words, lambda value: type(value) is int and least <= value <= most)


def finite(least: float = -LARGEST, most: float = LARGEST) -> Kind:
    """Return the kind of finite numbers from `least` to `most`."""
    at_least = f" from {least:g}" if least > -LARGEST else ""
    at_most = f" to {most:g}" if most < LARGEST else ""
    return Kind(f"a finite number{at_least}{at_most}", lambda value: _is_number(value) and least <= value <= most)


def or_nan(kind: Kind) -> Kind:
    """Return the kind of values of a kind, or NaN."""
    return Kind(f"{kind.words}, or NaN", lambda value: kind.holds(value) or (type(value) is float and math.isnan(value)))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and (type(value) is int or math.isfinite(value))


def _is_float_or_int(value: Any) -> bool:
    """Return whether a value is a float, or an integer of at most 64 bits."""
    return type(value) is float or (type(value) is int and abs(value) <= LARGEST)


def one_of(*values: Any) -> Kind:
    """Return the kind of a few values, which match by type and value."""
    return Kind(f"one of {', '.join(map(str, values))}", lambda value: any(type(value) is type(x) and value == x for x in values))


def maybe(kind: Kind) -> Kind:
    """Return the kind of values of a kind, or None."""
    return Kind(f"{kind.words}, or null", lambda value: value is None or kind.holds(value))


def listed(kind: Kind, length: int | None = None) -> Kind:
    """Return the kind of lists whose values are all of one kind."""
    words = f"a list of {'values' if length is None else length}, each {kind.words}"

    def holds(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and length in (None, len(value)) and all(map(kind.holds, value))

    return Kind(words, holds)


def each_of(*kinds: Kind) -> Kind:
    """Return the kind of lists with one value of each of these kinds, in order."""
    words = f"a list of {'; '.join(kind.words for kind in kinds)}"

    def holds(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and len(value) == len(kinds) and all(k.holds(x) for k, x in zip(kinds, value))

    return Kind(words, holds)


def by_name(kind: Kind) -> Kind:
    """Return the kind of tables from names to values of one kind."""

    def holds(value: Any) -> bool:
        return isinstance(value, dict) and all(TEXT.holds(name) and kind.holds(each) for name, each in value.items())

    return Kind(f"a table by name, each {kind.words}", holds)


def _is_text(value: Any) -> bool:
    """Return whether a value is text that can be encoded: lone surrogates cannot."""
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
