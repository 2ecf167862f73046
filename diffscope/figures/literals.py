"""Values as the Python that evaluates to them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def python_literal(value: Any, name: str) -> str:
    """Return a value as Python that evaluates to it; `name` stands for what has no such form, an array for example."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, slice):
        ends = (value.start, value.stop) if value.step is None else (value.start, value.stop, value.step)
        return f"slice({', '.join(python_literal(end, name) for end in ends)})"
    if isinstance(value, tuple):
        return f"({', '.join(python_literal(each, name) for each in value)}{',' * (len(value) == 1)})"
    if isinstance(value, (list, range)):
        return f"[{', '.join(python_literal(each, name) for each in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{python_literal(key, name)}: {python_literal(each, name)}' for key, each in value.items())}}}"
    return name
