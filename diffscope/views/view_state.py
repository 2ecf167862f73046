"""How a view is looked at, as an address keeps it. Whatever else stands in an address is left out, and never an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MODES = ("maps", "lines")
SCALES = ("root", "raw", "log", "share")
LEAST = 8  # tokens a side of the smallest window


def checked_state(state: object, queries: int, keys: int, heads: int) -> dict[str, Any]:
    """Return the part of a state, or of anything else, that a view of so many queries, keys and heads can be set to.

    As far as they are given and can be: ``mode`` and ``scale``, names; ``robust``, ``sink``, ``parts`` and ``a2``, bools;
    ``window``, its ``top``, ``left`` and ``size`` in tokens; ``locked``, its ``rows`` and ``columns``, token positions;
    ``heads``, those whose lines are drawn.
    """
    if not isinstance(state, Mapping):
        return {}
    values = {
        "mode": _name(state.get("mode"), MODES),
        "scale": _name(state.get("scale"), SCALES),
        "robust": _flag(state.get("robust")),
        "sink": _flag(state.get("sink")),
        "parts": _flag(state.get("parts")),
        "a2": _flag(state.get("a2")),
        "window": _window(state.get("window"), max(queries, keys)),
        "locked": _locked(state.get("locked"), queries, keys),
        "heads": _positions(state.get("heads"), heads),
    }
    return {name: value for name, value in values.items() if value is not None}


def _name(value: object, names: tuple[str, ...]) -> str | None:
    return value if isinstance(value, str) and value in names else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _number(value: object, least: float, most: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if least <= value <= most else None  # neither is NaN


def _window(value: object, whole: int) -> dict[str, float] | None:
    if not isinstance(value, Mapping):
        return None
    size = _number(value.get("size"), min(LEAST, whole), whole)
    top = _number(value.get("top"), 0, whole)
    left = _number(value.get("left"), 0, whole)
    if size is None or top is None or left is None:
        return None
    return {"top": min(top, whole - size), "left": min(left, whole - size), "size": size}


def _positions(value: object, count: int) -> list[int] | None:
    if not isinstance(value, (list, tuple)):
        return None
    return [at for at in value if isinstance(at, int) and _number(at, 0, count - 1) is not None]


def _locked(value: object, queries: int, keys: int) -> dict[str, list[int]] | None:
    if not isinstance(value, Mapping):
        return None
    return {"rows": _positions(value.get("rows"), queries) or [], "columns": _positions(value.get("columns"), keys) or []}
