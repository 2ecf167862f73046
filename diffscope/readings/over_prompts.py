"""What values of several prompts come to: their average by a statistic's own rule, and how far it may be off."""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.stats.sample import averaged
from diffscope.stats.statistic import Averaged


def middle(values: xr.DataArray, by: Averaged) -> xr.DataArray:
    """Mean or median over ``prompt`` of what is finite."""
    return averaged(values.rename(prompt="query"), ["query"], by).values.drop_attrs()


def end(values: xr.DataArray, by: Averaged, side: int) -> xr.DataArray:
    """The mean and its standard error over prompts, or the quartile below (-1) or above (1) a median; NaN of fewer than two."""
    finite = values.where(np.isfinite(values))
    if by == "median":
        quartile = finite.quantile(0.5 + side / 4, "prompt").drop_vars("quantile")
        return quartile.where(finite.notnull().sum("prompt") > 1)
    return middle(values, by) + side * error_of_mean(finite)


def error_of_mean(values: xr.DataArray) -> xr.DataArray:
    """Standard error of the mean over prompts, of those that are defined; NaN of fewer than two."""
    count = values.notnull().sum("prompt")
    if values.sizes["prompt"] < 2:
        return values.isel(prompt=0, drop=True).where(False)
    return (values.var("prompt", ddof=1) / count.where(count > 1)) ** 0.5
