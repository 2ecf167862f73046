"""Figures of a swept dataset: any variable of it along any of its dimensions, or any field of its prompts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Unpack

import numpy as np
import xarray as xr

from diffscope.capture.captions import count_of_prompts
from diffscope.errors import DiffscopeError, check_choice
from diffscope.figures.declaration import Drawing, Printing, figure
from diffscope.figures.values import curves
from diffscope.stats.averaging import averaged, error_end, mean_over_prompts, rule
from diffscope.stats.labels import is_unsigned, told_unsigned, usual_label
from diffscope.stats.negative_mass import WHATEVER

FIRST = ("length", "distractors", "needles", "n")  # fields of prompts that are drawn along, before others
HEADS = ("layer", "head")
NAMELESS = (
    "model",
    "map",
    "span",
    "normalisation",
    "lambda_value",
    "definition",
    "control",
    "ranked_map",
)  # labels tell what they are


@figure(wide=False)
def sweep(
    dataset: xr.Dataset,
    *,
    statistic: str,
    x: str | None = None,
    series: str | None = None,
    panels: str | None = None,
    where: Mapping[str, str | float] | None = None,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw a variable of a sweep along any of its dimensions, or along a field of its prompts such as their length.

    What plays no role is averaged: over heads, then layers, then the prompts, by the statistic's own rule, which for ratios
    without a bound is the median. Means have one standard error over prompts, medians the quartiles of prompts, and a place with
    one prompt neither. Every head, averaged over the prompts, is a point behind them. What is undefined is left out of averages.

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
    where : mapping of str to str or number, optional
        Which label along any other dimension: by default D, the span "answer" (else the sink), "share", or the first. Also one
        layer or head, or the prompts whose field has this value, such as ``{"length": 96}``; by default all.

    Returns
    -------
    Figure
        ``value``, ``low``, ``high`` (panel, series, x), and ``points`` where it is by head.

    Raises
    ------
    DiffscopeError
        It is no swept dataset; there is no such variable, dimension, field or label; one of `where` is drawn along; the statistic
        has no mean (positions, decibels); a model or step has no role; or all is undefined.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures, tasks
    >>> texts = [example.text for example in tasks.examples()]
    >>> dataset = diffscope.load("mini-diff").measure(texts, ["gini"], queries=[20]).isel(query=0)
    >>> swept = dataset.assign_coords(distractors=("prompt", [len(example.distractors) for example in tasks.examples()]))
    >>> figures.sweep(swept, statistic="gini", series="map")
    <diffscope figure 'sweep' of value, low, high, points (panel: 1, series: 3, x: 3, point: 6)>
    """
    if not isinstance(dataset, xr.Dataset) or "prompt" not in dataset.dims:
        raise DiffscopeError("this figure is of a swept dataset, which has a dimension prompt; diffscope.open opens one")
    check_choice("swept statistic", statistic, [str(name) for name, values in dataset.items() if "prompt" in values.dims])
    values = dataset[statistic]
    if rule(values) == "not":
        units = values.attrs.get("units", "1")
        raise DiffscopeError(f"{statistic} [{units}] has no mean that would say anything; choose another statistic")
    values, words = _where(values, where or {}, [role for role in (x, series, panels) if role])
    fields = _fields(values)
    x = x or _along(values, fields)
    if series is None and values.sizes.get("model", 1) > 1 and "model" not in (x, panels):
        series = "model"
    roles = [role for role in (x, series, panels) if role]
    for role in roles:
        check_choice("dimension or field", role, _known(values, fields))
    values, usual = _usual(values, roles)
    selection = ", ".join(told_unsigned([*usual, *words]))
    left = [dim for dim in HEADS if dim in values.dims and dim not in roles]
    over_heads = averaged(values, left).values if left else values
    by = rule(values)
    mean = _by_field(over_heads, fields, roles, partial(mean_over_prompts, by=by))
    low, high = (_by_field(over_heads, fields, roles, partial(error_end, by=by, side=side)) for side in (-1, 1))
    if not mean.notnull().any():
        raise DiffscopeError(f"there is nothing to draw: {statistic} is undefined everywhere")
    words = values.attrs.get("long_name", statistic) + (f": {selection}" if selection else "")
    counts = _by_field(over_heads.notnull(), fields, roles, lambda defined: defined.sum("prompt"))
    mean, low, high = (_named(each, [series, panels]) for each in (mean, low, high))
    points = _named(_by_field(values, fields, roles, partial(mean_over_prompts, by=by)), [series, panels]) if left else None
    drawing = curves.drawing(
        mean.assign_attrs(long_name=words, units=values.attrs.get("units", "1")),
        x=x,
        series=series,
        panels=panels,
        low=low,
        high=high,
        points=points,
        style="lines" if mean[x].dtype.kind in "if" else "points",
    )
    over = ", then ".join([*(f"{dim}s" for dim in reversed(left)), f"{count_of_prompts(counts.values.ravel())} a place"])
    errors = {"mean": ", ± standard error over prompts", "median": ", with the quartiles of prompts"}[by]
    caption = f"{words}, by {x}: {by} over {over}{errors if low.notnull().any() else ''}."
    if is_unsigned(selection):
        caption = f"{caption} {WHATEVER}."
    models = ", ".join(map(str, np.atleast_1d(values["model"].values))) if "model" in values.coords else ""
    edits = str(dataset.attrs.get("edits") or "")
    facts = {"statistic": statistic, "selection": selection, "prompts": values.sizes["prompt"]}
    return drawing.described(caption, edits=edits, model=models or dataset.attrs.get("model", ""), **facts)


def _fields(values: xr.DataArray) -> dict[str, np.ndarray]:
    """Return values of every prompt (prompt,), by the name of the field."""
    return {str(name): each.values for name, each in values.coords.items() if each.dims == ("prompt",) and name != "prompt"}


def _known(values: xr.DataArray, fields: Mapping[str, np.ndarray]) -> list[str]:
    """Return what values differ along: dimensions, and fields of prompts."""
    return [str(dim) for dim in values.dims if dim != "prompt"] + list(fields)


def _along(values: xr.DataArray, fields: Mapping[str, np.ndarray]) -> str:
    """Return what a variable is drawn along by default."""
    if values.sizes.get("step", 1) > 1:
        return "step"
    differing = [name for name, column in fields.items() if len(set(column.tolist())) > 1]
    named = [name for name in FIRST if name in differing] + differing
    if not named and "layer" not in values.dims:
        raise DiffscopeError(
            f"{values.name} is one number a prompt, and prompts do not differ; there is nothing to draw it along"
        )
    return named[0] if named else "layer"


def _where(values: xr.DataArray, where: Mapping[str, str | float], roles: list[str]) -> tuple[xr.DataArray, list[str]]:
    """Return values at the labels that were chosen, of dimensions and of fields of prompts, and what has to be said of these."""
    words = []
    for name, wanted in where.items():
        fields = _fields(values)
        check_choice("dimension or field", name, _known(values, fields))
        if name in roles:
            raise DiffscopeError(f"{name} is drawn along, so that no label of it can be chosen; leave it out of where")
        labels = [_told(label) for label in values[name].values.tolist()]
        at = [number for number, label in enumerate(labels) if label == _told(wanted)]
        check_choice(name, _told(wanted), dict.fromkeys(labels))
        if name in fields:
            values = values.isel(prompt=at)
        else:
            values = values.isel({name: at[0]})
        words += [_named_label(name, wanted)]
    return values, words


def _named_label(name: str, label: str | float) -> str:
    """Return a label along a dimension, with the name of the dimension unless the label tells it."""
    return _told(label) if name in NAMELESS else f"{name} {_told(label)}"


def _told(label: str | float) -> str:
    """Return a label as it is printed: 96 of 96.0."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _usual(values: xr.DataArray, roles: list[str]) -> tuple[xr.DataArray, list[str]]:
    """Return the usual label along every dimension that has no role and is not averaged over, and these labels."""
    words = []
    for dim in [str(dim) for dim in values.dims]:
        if dim in roles or dim in ("prompt", *HEADS):
            continue
        labels = [str(label) for label in values[dim].values.tolist()]
        if dim in ("model", "step") and len(labels) > 1:
            raise DiffscopeError(f"there are several of {dim}; draw it along x, series or panels, or choose one with where=")
        label = usual_label(labels, dim)
        values = values.isel({dim: labels.index(label)}, drop=dim != "model")
        words += [_named_label(dim, label)] if dim not in ("model", "step") else []
    return values, words


def _by_field(values: xr.DataArray, fields: Mapping[str, np.ndarray], roles: list[str], summary) -> xr.DataArray:
    """Return what `summary` makes of the prompts, for every combination of those fields that are drawn along."""
    chosen = [role for role in roles if role in fields]
    if chosen:  # prompts of tasks that have these fields
        known = np.flatnonzero(np.all([values[name].notnull() for name in chosen], axis=0))
        values, fields = values.isel(prompt=known), {name: labels[known] for name, labels in fields.items()}
    labels = [sorted(set(fields[name].tolist())) for name in chosen]
    cells = []
    for combination in product(*labels):
        chosen_prompts = (
            np.all([fields[name] == label for name, label in zip(chosen, combination)], axis=0) if chosen else slice(None)
        )
        some = values.isel(prompt=np.flatnonzero(chosen_prompts) if chosen else slice(None)).reset_coords(drop=True)
        cells.append(summary(some).expand_dims({name: [label] for name, label in zip(chosen, combination)}))
    return xr.combine_by_coords([cell.rename("value") for cell in cells])["value"] if chosen else cells[0]


def _named(values: xr.DataArray, roles: list[str | None]) -> xr.DataArray:
    """Return values with labels of fields that are numbers as they are printed: length 96."""
    numbers = [role for role in roles if role and values[role].dtype.kind in "if"]
    return values.assign_coords({role: [f"{role} {label:g}" for label in values[role].values] for role in numbers})
