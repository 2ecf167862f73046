"""How much of the absolute mass on a key set is negative, from statistics that are measured anyhow."""

from __future__ import annotations

import numpy as np
import xarray as xr

NEEDED = ("span_mass", "negative_share")
FORMULA = "sum_X max(-x, 0) / sum |x|"
WHATEVER = "Shares of |D| add absolute weights, so a negative weight counts like a positive one"
ROUNDING = 1e-5  # of a mass: what is less than that of it is no negative weight


def negative_mass(measured: xr.Dataset) -> xr.DataArray:
    """Return the part of each row's Σ|x| that negative weights on each key set have, from ``span_mass`` and ``negative_share``.

    It has the dimensions of ``span_mass`` but ``normalisation``, and is from 0 to its share; NaN where that is.
    """
    share, positive = (measured["span_mass"].sel(normalisation=kind, drop=True) for kind in ("share", "positive"))
    rows = measured["negative_share"]
    rows = rows.transpose(*(name for name in share.dims if name in rows.dims))
    by_row = rows.values.reshape([rows.sizes.get(name, 1) for name in share.dims])  # in numpy: a page asks it of every head
    given = positive.transpose(*share.dims).values * (1 - by_row)
    given[np.isnan(given)] = 0  # of rows without a positive weight nothing
    negative = np.clip(share.values - given, 0, None)
    negative[negative <= ROUNDING * share.values] = 0
    about = {"long_name": "negative weights on each key set", "units": "1", "definition": FORMULA, "averaged": "mean"}
    return xr.DataArray(negative, share.coords, share.dims, attrs=about)


def sums_sizes(values: xr.DataArray) -> bool:
    """Return whether masses of a statistic are of differential attention and include shares of |D|."""
    if not {"map", "normalisation"} <= set(values.dims) or not {"D", "A2"} <= set(values["map"].values.tolist()):
        return False
    return "share" in values["normalisation"].values and bool(values.sel(map="A2").notnull().any())
