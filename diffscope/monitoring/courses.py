"""Choose of a monitored training the numbers that are shown by step, layer and head."""

from __future__ import annotations

from typing import Any

import xarray as xr

from diffscope.monitoring.flat import LOGGED, UNSAID
from diffscope.monitoring.measuring import CONTROL

MAP = "D"
#: what is shown of each statistic, in words that fit an axis, with the span that is chosen; of others it is their own name
WORDS = {
    "lambda": "λ",
    "entropy": "entropy of D",
    "gini": "Gini index of D",
    "sink_mass": "share of |D| on the sink",
    "noise_gain": "what is left of A1 on irrelevant keys",
    "negative_share": "share of |D| that is negative",
    "row_sum": "row sum of D",
    "logit_outliers": "largest logit of a layer",
    "largest_logit": "largest logit of A1",
    "layer_output_outliers": "largest output of a layer",
    "gradient_ratio": "gradient of A1 over that of A2",
    "span_mass": "share of |D| on {span}",
}


def courses(kept: xr.Dataset) -> xr.Dataset:
    """Return each statistic by step, layer and, if every head has one, head.

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
        if {"step", "layer"} <= set(values.dims):
            chosen = {dim: _label(kept, str(name), str(dim)) for dim in values.dims if dim not in ("step", "layer", "head")}
            shown = values.sel(chosen, drop=True)
            plain = str(name).removesuffix(CONTROL)
            words = WORDS.get(plain, shown.attrs.get("long_name", plain))
            found[name] = shown.assign_attrs(long_name=words.replace("{span}", f"the {chosen.get('span')}"))
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
