"""Figures of a swept dataset: any variable of it along any of its dimensions, or any field of its prompts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.figures.base import Figure
from diffscope.figures.heads import USUAL
from diffscope.figures.of_values import curves
from diffscope.figures.subjects import drawn
from diffscope.stats.averaging import averaged

FIRST = ("length", "distractors", "needles", "n")  # fields of prompts that are drawn along, before others
HEADS = ("layer", "head")


def sweep(
    dataset: xr.Dataset,
    *,
    statistic: str,
    x: str | None = None,
    series: str | None = None,
    panels: str | None = None,
    where: Mapping[str, str] | None = None,
    venue: str | None = None,
    wide: bool | None = None,
    width: float | None = None,
    title: str | None = None,
) -> Figure:
    """A variable of a sweep along any of its dimensions, or along a field of its prompts such as their length.

    What plays no role is averaged: over heads, then layers (by the statistic's own rule, which for ratios without a bound is the
    median), then the prompts. Lines have one standard error over prompts, and every head, mean over the prompts, is a point
    behind them. What is undefined is left out of averages.

    Parameters
    ----------
    dataset : xarray.Dataset
        What ``diffscope sweep`` measured; ``diffscope.open`` opens it.
    statistic : str
        One of its variables.
    x, series, panels : str, optional
        Dimensions, or fields of the prompts that are coordinates (length, distractors, …). By default x is the step where there
        are several, else the first field that differs between prompts, else the layer; and series the model where there are
        several.
    where : mapping of str to str, optional
        Which label along any other dimension: by default D, the span "answer" (else the sink), "share", or the first.
    venue, wide, width, title
        As of :func:`diffscope.figures.maps`.

    Returns
    -------
    Figure
        ``value``, ``low``, ``high`` (panel, series, x), and ``points`` where it is by head.

    Raises
    ------
    DiffscopeError
        It is no swept dataset; there is no such variable, dimension, field or label; the statistic has no mean (positions,
        decibels); a model or step has no role; or all is undefined.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures, tasks
    >>> texts = [example.text for example in tasks.examples()]
    >>> dataset = diffscope.load("mini-diff").measure(texts, ["gini"], queries=[20]).isel(query=0)
    >>> swept = dataset.assign_coords(distractors=("prompt", [len(example.distractors) for example in tasks.examples()]))
    >>> figures.sweep(swept, statistic="gini", series="map")
    <diffscope figure 'sweep' of value, low, high, points (panel: 1, series: 3, x: 3, point: 8)>
    """
    if not isinstance(dataset, xr.Dataset) or "prompt" not in dataset.dims:
        raise DiffscopeError("this figure is of a swept dataset, which has a dimension prompt; diffscope.open opens one")
    if statistic not in dataset or "prompt" not in dataset[statistic].dims:
        known = [str(name) for name, values in dataset.items() if "prompt" in values.dims]
        raise DiffscopeError(f"no {statistic!r} was swept: there are {', '.join(known)}")
    values = dataset[statistic]
    fields = _fields(values)
    x = x or _along(values, fields)
    if series is None and values.sizes.get("model", 1) > 1 and "model" not in (x, panels):
        series = "model"
    roles = [role for role in (x, series, panels) if role]
    for role in roles:
        if (role not in values.dims and role not in fields) or role == "prompt":
            known = [str(dim) for dim in values.dims if dim != "prompt"] + list(fields)
            raise DiffscopeError(f"{statistic} has no {role!r} to be drawn along; choose from {', '.join(known)}")
    values, selection = _selected(values, roles, where or {})
    left = [dim for dim in HEADS if dim in values.dims and dim not in roles]
    over_heads = averaged(values, left).values if left else values
    mean = _by_field(over_heads, fields, roles, _mean)
    error = _by_field(over_heads, fields, roles, _error).fillna(0)
    if not mean.notnull().any():
        raise DiffscopeError(f"there is nothing to draw: {statistic} is undefined everywhere")
    words = values.attrs.get("long_name", statistic) + (f": {selection}" if selection else "")
    mean, error = (_named(each, [series, panels]) for each in (mean, error))
    points = _named(_by_field(values, fields, roles, _mean), [series, panels]) if left else None
    figure = curves(
        mean.assign_attrs(long_name=words, units=values.attrs.get("units", "1")),
        x=x,
        series=series,
        panels=panels,
        low=mean - error,
        high=mean + error,
        points=points,
        style="lines" if mean[x].dtype.kind in "if" else "points",
        venue=venue,
        wide=wide,
        width=width,
        title=title,
    )
    over = ", then ".join([*(f"{dim}s" for dim in reversed(left)), f"{values.sizes['prompt']} prompts"])
    caption = f"{words}, by {x}: mean over {over}, ± standard error over prompts."
    models = ", ".join(map(str, np.atleast_1d(dataset["model"].values))) if "model" in dataset.coords else ""
    facts = {"statistic": statistic, "selection": selection, "prompts": values.sizes["prompt"]}
    return drawn("sweep", figure, caption, model=models or dataset.attrs.get("model", ""), **facts)


def _fields(values: xr.DataArray) -> dict[str, np.ndarray]:
    """Values of every prompt (prompt,), by the name of the field."""
    return {str(name): each.values for name, each in values.coords.items() if each.dims == ("prompt",) and name != "prompt"}


def _along(values: xr.DataArray, fields: Mapping[str, np.ndarray]) -> str:
    """What a variable is drawn along where nobody says."""
    if values.sizes.get("step", 1) > 1:
        return "step"
    differing = [name for name, column in fields.items() if len(set(column.tolist())) > 1]
    named = [name for name in FIRST if name in differing] + differing
    if not named and "layer" not in values.dims:
        raise DiffscopeError(
            f"{values.name} is one number a prompt, and prompts do not differ; there is nothing to draw it along"
        )
    return named[0] if named else "layer"


def _selected(values: xr.DataArray, roles: list[str], where: Mapping[str, str]) -> tuple[xr.DataArray, str]:
    """One label along every dimension that has no role and is not averaged over, and the labels in words."""
    words = []
    for dim in [str(dim) for dim in values.dims]:
        if dim in roles or dim in ("prompt", *HEADS):
            continue
        labels = [str(label) for label in values[dim].values.tolist()]
        if dim in ("model", "step") and len(labels) > 1 and dim not in where:
            raise DiffscopeError(f"there are several of {dim}; draw it along x, series or panels, or choose one with where=")
        usual = next((name for name in USUAL.get(dim, ()) if name in labels), labels[0])
        label = str(where.get(dim, usual))
        if label not in labels:
            raise DiffscopeError(f"there is no {dim} {label!r}; choose from {', '.join(labels)}")
        values = values.isel({dim: labels.index(label)}, drop=True)
        words += [label] if dim not in ("model", "step") else []
    return values, ", ".join(words)


def _by_field(values: xr.DataArray, fields: Mapping[str, np.ndarray], roles: list[str], middle) -> xr.DataArray:
    """What `middle` makes of the prompts, for every combination of those fields that are drawn along."""
    chosen = [role for role in roles if role in fields]
    labels = [sorted(set(fields[name].tolist())) for name in chosen]
    cells = []
    for combination in product(*labels):
        there = np.all([fields[name] == label for name, label in zip(chosen, combination)], axis=0) if chosen else slice(None)
        some = values.isel(prompt=np.flatnonzero(there) if chosen else slice(None)).reset_coords(drop=True)
        cells.append(middle(some).expand_dims({name: [label] for name, label in zip(chosen, combination)}))
    return xr.combine_by_coords([cell.rename("value") for cell in cells])["value"] if chosen else cells[0]


def _named(values: xr.DataArray, roles: list[str | None]) -> xr.DataArray:
    """With labels of fields that are numbers as they are printed: length 96."""
    numbers = [role for role in roles if role and values[role].dtype.kind in "if"]
    return values.assign_coords({role: [f"{role} {label:g}" for label in values[role].values] for role in numbers})


def _mean(values: xr.DataArray) -> xr.DataArray:
    return values.mean("prompt")


def _error(values: xr.DataArray) -> xr.DataArray:
    """Standard error of the mean over prompts; NaN of fewer than two."""
    count = values.notnull().sum("prompt")
    if values.sizes["prompt"] < 2:
        return values.mean("prompt").where(False)
    return (values.var("prompt", ddof=1) / count.where(count > 1)) ** 0.5
