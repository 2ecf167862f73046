"""Which rows of a long map are measured: a stratified sample of queries, and what averages over it are worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from diffscope.errors import DiffscopeError
from diffscope.stats import STATISTICS

WEIGHT, STRATUM = "query_weight", "query_stratum"
A_STRATUM = 2  # queries: the fewest whose spread can be estimated


class Drawn(NamedTuple):
    """Queries in ascending order, the stretch of the prompt each is from, and how many queries each stands for."""

    queries: Tensor  # int64 (query,)
    stratum: Tensor  # int64 (query,)
    weight: Tensor  # float64 (query,)


@dataclass(frozen=True)
class Sample:
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

    def __post_init__(self):
        if not (isinstance(self.rows, int) and isinstance(self.seed, int) and self.seed >= 0):
            raise DiffscopeError(f"{self!r}: rows and seed are whole numbers, and the seed is not negative")
        if self.rows < A_STRATUM:
            raise DiffscopeError(f"a sample of {self.rows} queries has no standard error; take at least {A_STRATUM}")

    def draw(self, n: int) -> Drawn | None:
        """Queries of a prompt of n; None where that is all of them."""
        if n <= self.rows:
            return None
        strata = self.rows // A_STRATUM
        edges = np.arange(strata + 1) * n // strata
        taken = np.full(strata, A_STRATUM)
        taken[-1] += self.rows % A_STRATUM
        random = np.random.default_rng(self.seed)
        queries = [np.sort(random.choice(np.arange(a, b), k, replace=False)) for a, b, k in zip(edges, edges[1:], taken)]
        weight = np.repeat(np.diff(edges) / taken, taken)
        stratum = np.repeat(np.arange(strata), taken)
        return Drawn(*map(torch.from_numpy, (np.concatenate(queries), stratum, weight)))


def mean(values: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray | None]:
    """The mean over queries, and its standard error where the queries are a sample.

    Rows without a value (NaN) are left out. Of a sample it is the ratio of two stratified totals, what the rows that have a value
    add up to and how many there are; its error is that of the residuals, linearised, with the finite-population correction
    (Cochran 1977, sections 5.4 and 6.11).

    Parameters
    ----------
    values : DataArray
        With a dimension ``query``.

    Returns
    -------
    mean : DataArray
    standard_error : DataArray or None
        None where all of the chosen queries were measured: then the mean has no error.
    """
    if WEIGHT not in values.coords:
        return values.mean("query", keep_attrs=True), None
    by_query = values.transpose(..., "query")
    y, weight, stratum = by_query.values, values[WEIGHT].values, values[STRATUM].values
    there = ~np.isnan(y)
    whole = (weight * there).sum(-1)  # how many queries have a value
    with np.errstate(invalid="ignore", divide="ignore"):
        middle = (np.where(there, y, 0) * weight).sum(-1) / whole
        residual = np.where(there, y - middle[..., None], 0)
        starts = np.flatnonzero(np.diff(stratum, prepend=stratum[:1] - 1))
        count, size = np.add.reduceat(np.ones_like(weight), starts), np.add.reduceat(weight, starts)
        sums, squares = (np.add.reduceat(x, starts, axis=-1) for x in (residual, residual**2))
        spread = (squares - sums**2 / count) / (count - 1)  # within a stratum
        error = np.sqrt((size**2 * (1 - count / size) / count * spread.clip(0)).sum(-1)) / whole
    template = by_query.isel(query=0, drop=True)
    said = {"units": values.attrs.get("units", "1"), "long_name": f"standard error of the mean of {values.name}"}
    error = xr.DataArray(error, template.coords, template.dims, attrs=said)
    return template.copy(data=middle), error


def average(dataset: xr.Dataset) -> xr.Dataset:
    """Means over queries of everything that has queries, each of a sample with its standard error as ``NAME_se``.

    Parameters
    ----------
    dataset : Dataset
        What ``measure`` returned.

    Returns
    -------
    Dataset
        What has no queries stays as it is; positions and decibels, of which a mean says nothing, are left out.
    """
    out = {}
    for name, values in dataset.data_vars.items():
        if "query" in values.dims and not (name not in STATISTICS or STATISTICS[name].averageable):
            continue
        out[name], error = mean(values) if "query" in values.dims else (values, None)
        if error is not None:
            out[f"{name}_se"] = error
    return xr.Dataset(out, attrs=dataset.attrs)
