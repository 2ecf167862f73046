"""Markdown of a study's pages: means with intervals, and what a page quotes.

A page quotes a table between ``<!-- NAME -->`` and ``<!-- end -->``; what stands between them is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from diffscope import numbers
from diffscope.errors import DiffscopeError
from diffscope.hypotheses.intervals import students_t

QUOTED = re.compile(r"(<!-- (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.S)


def mean(values: np.ndarray | Sequence[float] | xr.DataArray) -> str:
    """Write the mean of the values that are defined, and its 95 % interval by Student's t.

    A dash if fewer than two are defined; how many they are if not all are. Each value is of one seed, unless all are defined.
    """
    each = np.asarray(values, dtype=float)
    known = each[np.isfinite(each)]
    if len(known) < 2:
        return numbers.ABSENT
    (low, high), _, _ = students_t(known)
    of_seeds = f", {len(known)} seeds" if len(known) < len(each) else ""
    return numbers.with_interval(float(known.mean()), low, high) + of_seeds


def quoted(page: str, known: Mapping[str, str]) -> str:
    """Return a page with what it quotes made anew.

    Raises
    ------
    DiffscopeError
        It quotes something that there is not.
    """

    def anew(match: re.Match) -> str:
        if match["name"] not in known:
            raise DiffscopeError(f"the page quotes {match['name']!r}; there are {', '.join(known)}")
        return f"{match[1]}\n{known[match['name']]}\n{match[3]}"

    return QUOTED.sub(anew, page)
