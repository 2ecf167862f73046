"""Quantities by layer: λ with its initial value, and the error of the capture beside its tolerance."""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.capture.captions import edits_of
from diffscope.errors import DiffscopeError
from diffscope.figures import line_data, line_print, line_screen, theme
from diffscope.figures.figure import Chart
from diffscope.figures.inputs import any_capture


def lambdas_data(cap) -> xr.Dataset:
    """Return λ by layer: mean, smallest and largest over heads and queries, and the initial value where there is one."""
    cap = any_capture(cap).only()
    if not cap.differential:
        raise DiffscopeError("standard attention has no λ")
    lam = cap.lam
    others = [dim for dim in lam.dims if dim != "layer"]
    dataset = xr.Dataset({"lam": lam.mean(others), "lowest": lam.min(others), "highest": lam.max(others)})
    if np.isfinite(cap.lam_init.values).any():
        dataset["lam_init"] = cap.lam_init
    return dataset.drop_attrs(deep=False).assign_attrs(model=cap.model_name, edits=edits_of({"": cap}))


def fidelity_data(cap) -> xr.Dataset:
    """Return error of the rebuilt attention output and its tolerance, by layer."""
    dataset = any_capture(cap).fidelity[["error", "tolerance"]]
    return dataset.drop_attrs(deep=False).assign_attrs(model=cap.model_name, edits=edits_of({"": cap}))


#: what is drawn of each variable: its name, its colour, and how its line is broken
LINES = {
    "lam": ("λ", theme.SERIES[0], "solid"),
    "lam_init": ("λ at initialisation", theme.MUTED, "dash"),
    "error": ("error", theme.SERIES[0], "solid"),
    "tolerance": ("tolerance", theme.MUTED, "dash"),
}
ENDS = "range of heads and tokens"
HEADINGS = {"lam": "λ by layer", "error": "relative error of the rebuilt attention output"}


def has_range(data: xr.Dataset) -> bool:
    """Return whether λ differs between heads or tokens."""
    return "lowest" in data and bool(np.nanmax(data["highest"].values - data["lowest"].values, initial=0) > 1e-6)


def _as_curves(data: xr.Dataset) -> xr.Dataset:
    """Return data as of curves: a series a variable, and the range of λ where heads or tokens differ."""
    drawn = {words: data[name] for name, (words, _, _) in LINES.items() if name in data}
    series = xr.DataArray(list(drawn), dims="series", name="series")
    values = xr.concat(list(drawn.values()), series, combine_attrs="drop").assign_attrs(long_name="")
    ends = {}
    if has_range(data):
        of_lam = values["series"] == "λ"
        ends = {"low": data["lowest"].where(of_lam), "high": data["highest"].where(of_lam)}
    looks = {words: (colour, dash) for words, colour, dash in LINES.values() if words in drawn}
    return line_data.data(values, "layer", "series", looks=looks, **ends)


def _style(data: xr.Dataset, title: str | None) -> dict:
    variable = "lam" if "lam" in data else "error"
    heading = HEADINGS[variable] if title is None else title
    return {"title": heading, "log": "y" if variable == "error" else "", "extremes": ["λ"]}


def on_screen(data: xr.Dataset, title: str | None = None, height: int = 240, selected: int | None = None):
    """Draw for the screen; `selected` is a layer to mark."""
    return line_screen.on_screen(_as_curves(data), height=height, marked=selected, ends=ENDS, **_style(data, title))


def in_print(data: xr.Dataset, width: float, title: str | None = None):
    """Draw for print."""
    return line_print.in_print(_as_curves(data), width, **_style(data, title))


CHART = Chart(on_screen, in_print)
