"""Average statistics: over queries, then heads, then layers, then prompts, of what is finite.

There is one rule of averaging. What is undefined (NaN) or infinite is left out, and the result says how much that was. A ratio
without a bound is averaged by its median, because one token with next to nothing to divide by decides an arithmetic mean;
positions and decibels are not averaged. Which it is, each statistic declares, and ``measure`` says in the attribute ``averaged``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError, check_choice
from diffscope.stats.registry import STATISTICS
from diffscope.stats.sample import STRATUM, WEIGHT
from diffscope.stats.statistic import Averaged

UNDEFINED, INFINITE = LEFT_OUT = ("undefined_left_out", "infinite_left_out")  # attributes that count what averages leave out
PLURALS = {"query": "queries", "head": "heads", "layer": "layers", "prompt": "prompts"}
ORDER = tuple(PLURALS)  # in which averages are taken
OF_ONE_PROMPT = ORDER[:-1]


class Average(NamedTuple):
    """An average and its standard error.

    Attributes
    ----------
    values : DataArray
        Its attributes say by what it was ``averaged`` ("mean" or "median"), ``averaged_over`` what, and how many values were left
        out: ``undefined_left_out``, ``infinite_left_out``.
    error : DataArray or None
        The standard error, if the queries are a sample.
    words : list of str
        For each dimension: over how many it is, and how many values were left out.
    """

    values: xr.DataArray
    error: xr.DataArray | None
    words: list[str]


def average(dataset: xr.Dataset, over: str | Sequence[str] = "query") -> xr.Dataset:
    """Average every statistic that has the dimensions; averages of a sample come with their standard error as ``NAME_se``.

    Parameters
    ----------
    dataset : Dataset
        What ``measure`` returned.
    over : str or sequence of str
        "query", "head", "layer", "prompt" or some of them; always in this order.

    Returns
    -------
    Dataset
        Means, or medians of ratios without a bound, of what is finite: the attributes ``averaged``, ``averaged_over``,
        ``undefined_left_out`` and ``infinite_left_out`` say which, over what, and how many values were left out. Variables
        without these dimensions are returned unchanged. Positions and decibels are dropped, and so are standard errors from an
        earlier call: pass all dimensions in one call.

    Raises
    ------
    DiffscopeError
        There is no average over one of these, or it would be of layers of several kinds.
    """
    if not isinstance(dataset, xr.Dataset):
        raise DiffscopeError(f"averages are of what was measured, not of a {type(dataset).__name__}; give capture.measure([…])")
    dims = [over] if isinstance(over, str) else list(over)
    _check_dims(dims)
    kinds = list(dict.fromkeys(dataset["kind"].values.ravel().tolist())) if "kind" in dataset.coords else []
    if "layer" in dims and len(kinds) > 1:
        one = f"dataset.sel(layer=dataset.kind == {kinds[0]!r})"
        raise DiffscopeError(f"layers are of the kinds {', '.join(kinds)}; average those of one, such as {one}")
    averages = {}
    for name, values in dataset.data_vars.items():
        if str(name).endswith("_se") and str(name).removesuffix("_se") in dataset:
            continue  # heads and layers share the queries, so errors of averages over these do not follow from it
        if not set(dims) & set(values.dims):
            averages[name] = values
        elif rule(values) != "not":
            averages[name], error, _ = averaged(values, dims)
            if error is not None:
                averages[f"{name}_se"] = error
    return xr.Dataset(averages, attrs=dataset.attrs)


def rule(values: xr.DataArray) -> Averaged:
    """Return how values are averaged: by their attribute ``averaged``, as the statistic of that name declares, or by mean."""
    named = STATISTICS[values.name].averaged if values.name in STATISTICS else "mean"
    return values.attrs.get("averaged", named)


def averaged(values: xr.DataArray, dims: Sequence[str] = OF_ONE_PROMPT, by: Averaged | None = None) -> Average:
    """Average values over those of some dimensions that they have, in the order query, head, layer, prompt.

    `dims` are among ``ORDER``, and `by` is by default what :func:`rule` says. If values have dimensions "head" and "other_head",
    a head with itself is left out. DiffscopeError of positions and decibels, and of a dimension that is not averaged over.
    """
    by = by or rule(values)
    if by == "not":
        units = values.attrs.get("units", "1")
        raise DiffscopeError(f"{values.name} [{units}] is not averaged, its mean would say nothing; choose one query")
    _check_dims(dims)
    present = [dim for dim in ORDER if dim in dims and dim in values.dims]
    result = values
    words = []
    for dim in present:
        words.append(_words(result, dim))
        result = _middle(_others(result) if dim == "head" else result, dim, by)
    sampled = "query" in present and WEIGHT in values.coords
    error = None
    if sampled:  # heads and layers share the queries, so their errors do not average out: rows are averaged over them first
        rows = values
        for dim in present[1:]:
            rows = _middle(_others(rows) if dim == "head" else rows, dim, by)
        error = _standard_error(rows, result, by)
        words[0] = f"a sample of {words[0]}"
    if present:
        before = [values.attrs["averaged_over"]] if "averaged_over" in values.attrs else []
        result = result.assign_attrs(
            {
                UNDEFINED: int(values.isnull().sum()) + values.attrs.get(UNDEFINED, 0),
                INFINITE: int(np.isinf(values).sum()) + values.attrs.get(INFINITE, 0),
            },
            averaged=by,
            averaged_over=", then ".join([*before, *(PLURALS[dim] for dim in present)]),
        )
    return Average(result, error, words)


def _check_dims(dims: Sequence[str]) -> None:
    for dim in dims:
        check_choice("average over", dim, ORDER)


def _words(values: xr.DataArray, dim: str) -> str:
    """Say what an average is over, and how many values are left out."""
    undefined = "undefined or missing" if {"prompt", "query"} <= set(values.dims) else "undefined"  # prompts may be shorter
    counts = {undefined: int(values.isnull().sum()), "infinite": int(np.isinf(values).sum())}
    words = f"{values.sizes[dim]} {PLURALS[dim]}"
    if dim == "head" and "other_head" in values.dims:
        words = f"other heads ({values.sizes[dim] - 1})"
    if not sum(counts.values()):
        return words
    left_out = " and ".join(f"{count} {kind} value{'s' if count > 1 else ''}" for kind, count in counts.items() if count)
    return f"{words} ({left_out} left out)"


def _others(values: xr.DataArray) -> xr.DataArray:
    """Leave out the values of a head with itself."""
    return values.where(values["head"] != values["other_head"]) if "other_head" in values.dims else values


def _middle(values: xr.DataArray, dim: str, by: Averaged) -> xr.DataArray:
    """Return the mean or median of finite values along one dimension; a sample of queries is weighted."""
    finite = values.where(np.isfinite(values))
    if dim == "query" and WEIGHT in values.coords:
        y = finite.transpose(..., "query")
        weight = values[WEIGHT].values
        middle = _weighted_mean(y.values, weight) if by == "mean" else _quantile(y.values, weight, 0.5)
        return y.isel(query=0, drop=True).copy(data=middle)
    return finite.mean(dim, keep_attrs=True) if by == "mean" else finite.median(dim, keep_attrs=True)


def _weighted_mean(y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the mean over the last axis, y (..., query), NaN left out: the ratio of two stratified totals."""
    defined = ~np.isnan(y)
    with np.errstate(invalid="ignore"):
        return (np.where(defined, y, 0) * weight).sum(-1) / (weight * defined).sum(-1)


def _quantile(y: np.ndarray, weight: np.ndarray, level: float | np.ndarray) -> np.ndarray:
    """Return the weighted quantile over the last axis, y (..., query), NaN left out; of equal weights the ordinary median.

    If the weights add up to the level just at a value, it is the middle between that value and the next.
    """
    order = y.argsort(-1)  # NaN last
    ascending = np.take_along_axis(y, order, -1)
    defined = ~np.isnan(ascending)
    share = np.where(defined, weight[order], 0).cumsum(-1)
    with np.errstate(invalid="ignore"):
        share = share / share[..., -1:]
    last = np.maximum(defined.sum(-1) - 1, 0)
    level = np.asarray(level)[..., None]
    low, high = (np.minimum((share < bound).sum(-1), last)[..., None] for bound in (level - 1e-9, level + 1e-9))
    return (np.take_along_axis(ascending, low, -1) + np.take_along_axis(ascending, high, -1))[..., 0] / 2


def _standard_error(values: xr.DataArray, middle: xr.DataArray, by: Averaged) -> xr.DataArray:
    """Return the standard error of the average over a sample of queries.

    Of a mean it is that of the residuals of a stratified ratio estimate, linearised, with the finite-population correction
    (Sampling Techniques, Cochran 1977, sections 5.4 and 6.11). Of a median it is half the distance of the quantiles that lie one
    standard error of the share of smaller values to either side (Confidence Intervals for Medians, Woodruff 1952), which is on
    the safe side in a small sample.
    """
    rows = values.where(np.isfinite(values)).transpose(..., "query")
    y = rows.values
    weight = values[WEIGHT].values
    stratum = values[STRATUM].values
    if by == "mean":
        error = _error_of_mean(y, weight, stratum)
    else:
        below = np.where(np.isnan(y), np.nan, y <= _quantile(y, weight, 0.5)[..., None])
        width = _error_of_mean(below, weight, stratum)
        known = np.nan_to_num(width)
        half = (_quantile(y, weight, 0.5 + known) - _quantile(y, weight, 0.5 - known)) / 2
        error = np.where(np.isnan(width), np.nan, half)
    template = rows.isel(query=0, drop=True)
    attrs = {"units": values.attrs.get("units", "1"), "long_name": f"standard error of the {by} of {values.name}"}
    return xr.DataArray(error, template.coords, template.dims, attrs=attrs).transpose(*middle.dims)


def _error_of_mean(y: np.ndarray, weight: np.ndarray, stratum: np.ndarray) -> np.ndarray:
    """Return the standard error of :func:`_weighted_mean`, y (..., query), queries in the order of their strata."""
    defined = ~np.isnan(y)
    residual = np.where(defined, y - _weighted_mean(y, weight)[..., None], 0)
    starts = np.flatnonzero(np.diff(stratum, prepend=stratum[:1] - 1))
    count = np.add.reduceat(np.ones_like(weight), starts)
    size = np.add.reduceat(weight, starts)
    sums, squares = (np.add.reduceat(x, starts, axis=-1) for x in (residual, residual**2))
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = (squares - sums**2 / count) / (count - 1)  # within a stratum
        variance = (size**2 * (1 - count / size) / count * spread.clip(0)).sum(-1)
        return np.sqrt(variance) / (weight * defined).sum(-1)


def mean_over_prompts(values: xr.DataArray, by: Averaged = "mean") -> xr.DataArray:
    """Return the mean or median over ``prompt`` of what is finite, without attributes."""
    return averaged(values, ["prompt"], by).values.drop_attrs(deep=False)


def standard_error(values: xr.DataArray) -> xr.DataArray:
    """Return the standard error of the mean over ``prompt``, of prompts that have a value; NaN for fewer than two."""
    count = values.notnull().sum("prompt")
    if values.sizes["prompt"] < 2:
        return values.isel(prompt=0, drop=True).where(False)
    return (values.var("prompt", ddof=1) / count.where(count > 1)) ** 0.5


def error_end(values: xr.DataArray, by: Averaged, side: int) -> xr.DataArray:
    """Return the lower (side −1) or upper (1) end of an error bar over ``prompt``; NaN for fewer than two prompts.

    It is one standard error from a mean. Beside a median it is the quartile.
    """
    finite = values.where(np.isfinite(values))
    if by == "median":
        quartile = finite.quantile(0.5 + side / 4, "prompt").drop_vars("quantile")
        return quartile.where(finite.notnull().sum("prompt") > 1)
    return mean_over_prompts(values, by) + side * standard_error(finite)


def finite_mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the mean of finite values along an axis; NaN, without a warning, where there are none."""
    finite = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(finite, values, 0).sum(axis) / finite.sum(axis)


def finite_median(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the median of finite values along an axis; NaN, without a warning, where there are none."""
    ascending = np.sort(np.where(np.isfinite(values), values, np.nan), axis)  # NaN last
    if not values.shape[axis]:
        return np.full(ascending.sum(axis).shape, np.nan)
    count = np.isfinite(ascending).sum(axis, keepdims=True)
    low, high = (np.take_along_axis(ascending, at // 2, axis) for at in (np.maximum(count - 1, 0), count))
    return ((low + high) / 2).squeeze(axis)
