"""Choose of a monitored training the numbers that are shown by step, layer and head."""

from __future__ import annotations

from typing import Any

import xarray as xr

from diffscope.monitoring.flat import LOGGED, UNSAID

MAP = "D"


def courses(kept: xr.Dataset) -> xr.Dataset:
    """Return each statistic that every head has, by step, layer and head.

    Parameters
    ----------
    kept : xarray.Dataset
        As :func:`diffscope.open` reads it of a monitor's folder.

    Returns
    -------
    xarray.Dataset
        Of D, λ as it is in use, shares of |D|, and of two maps what they have on irrelevant keys; ``loss`` (step) if it is kept.
    """
    found = {}
    for name, values in kept.data_vars.items():
        if {"step", "layer", "head"} <= set(values.dims):
            chosen = {dim: _label(kept, str(name), str(dim)) for dim in values.dims if dim not in ("step", "layer", "head")}
            found[name] = values.sel(chosen, drop=True)
        elif name == "loss":
            found[name] = values
    return xr.Dataset(found, attrs=kept.attrs)


def _label(kept: xr.Dataset, name: str, dim: str) -> Any:
    known = kept[dim].values.tolist()
    if dim == "span":
        wanted = ("answer",) if name == "span_mass" else UNSAID
    else:
        wanted = {"map": (MAP,), **LOGGED}.get(dim, known)
    return next((label for label in wanted if label in known), known[0])
