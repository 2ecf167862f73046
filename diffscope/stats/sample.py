"""Sample the queries of a long map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from diffscope.errors import DiffscopeError
from diffscope.prompts.selection import whole_number

WEIGHT = "query_weight"
STRATUM = "query_stratum"
PER_STRATUM = 2  # queries: the fewest whose spread can be estimated


class SampledQueries(NamedTuple):
    """A sample of queries in ascending order, the stretch of the prompt each is from, and how many queries each stands for."""

    queries: Tensor  # int64 (query,)
    stratum: Tensor  # int64 (query,)
    weight: Tensor  # float64 (query,)


@dataclass(frozen=True)
class QuerySample:
    """A stratified sample of a prompt's queries, in place of a choice of them.

    The prompt is cut into stretches of equal length, and two queries (three in the last if the number is odd) are drawn from
    each at random without replacement (Cochran 1977, ch. 5). A row's statistics drift with its position, so that this says more
    than as many queries drawn anywhere.

    Parameters
    ----------
    rows : int
        How many queries, at least two. A prompt that has no more is measured as a whole.
    seed : int
        The same seed draws the same queries.
    """

    rows: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rows", "seed"):
            number = whole_number(getattr(self, name), 0, math.inf, "a sample has whole numbers from 0 as rows and seed")
            object.__setattr__(self, name, number)
        if self.rows < PER_STRATUM:
            raise DiffscopeError(f"a sample of {self.rows} queries has no standard error; take at least {PER_STRATUM}")

    def draw(self, n: int) -> SampledQueries | None:
        """Draw queries of a prompt of n; return None if that is all of them."""
        if n <= self.rows:
            return None
        strata = self.rows // PER_STRATUM
        edges = np.arange(strata + 1) * n // strata
        taken = np.full(strata, PER_STRATUM)
        taken[-1] += self.rows % PER_STRATUM
        random = np.random.default_rng(self.seed)
        queries = [np.sort(random.choice(np.arange(a, b), k, replace=False)) for a, b, k in zip(edges, edges[1:], taken)]
        weight = np.repeat(np.diff(edges) / taken, taken)
        stratum = np.repeat(np.arange(strata), taken)
        return SampledQueries(*map(torch.from_numpy, (np.concatenate(queries), stratum, weight)))
