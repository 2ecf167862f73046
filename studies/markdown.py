"""Markdown of a study's pages: means with intervals, and what a page quotes.

A page quotes a table between ``<!-- NAME -->`` and ``<!-- end -->``; what stands between them is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.intervals import students_t
from diffscope.numbers import minus

QUOTED = re.compile(r"(<!-- (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.S)


def mean_in_words(values: np.ndarray | Sequence[float], digits: int = 2) -> str:
    """Write the mean of single values, and its 95 % interval by Student's t."""
    values = np.asarray(values, dtype=float)
    (low, high), _, _ = students_t(values)
    mean, low, high = (minus(f"{value:.{digits}f}") for value in (values.mean(), low, high))
    return f"{mean} ({low} to {high})"


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
