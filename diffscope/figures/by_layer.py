"""How a statistic by layer is drawn: what its axis is called, and a colour for each model and a broken line for each control."""

from __future__ import annotations

from collections.abc import Mapping

import xarray as xr

from diffscope.figures import theme
from diffscope.figures.inputs import check_defined, undefined_said

UNIFORM = "uniform"  # how controls that know nothing begin


def shown(estimates: xr.Dataset) -> xr.Dataset:
    """Return what ``readings.by_layer`` estimates, with series that say where they are undefined.

    Raises
    ------
    DiffscopeError
        Every value is undefined.
    """
    heads = estimates["heads"]
    check_defined(heads)
    return estimates.assign_coords(series=undefined_said(heads, "series")["series"])


def titled(values: xr.DataArray) -> str:
    """Return what the axis of a statistic is called."""
    units = values.attrs.get("units", "1")
    return str(values.attrs["long_name"]) + ("" if units in ("", "1") else f", {units}")


def looks(tables: Mapping[str, xr.Dataset], models: list[str]) -> dict[str, tuple[str, str]]:
    """Return a colour for each model, and for its controls a grey and a broken line."""
    colours, greys = theme.model_colours(models), theme.control_colours(models)
    return {
        str(label): ((greys if control else colours).get(model, theme.MUTED), _dash(control))
        for table in tables.values()
        for label, model, control in zip(table["series"].values, table["model"].values.tolist(), table["control"].values.tolist())
    }


def _dash(control: str) -> str:
    if not control:
        return "solid"
    return "dot" if control.startswith(UNIFORM) else "dash"
