"""What a figure is of: captures or readings, of one model or of several by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from diffscope.capture.capture import Capture
from diffscope.capture.comparison import Comparison
from diffscope.errors import DiffscopeError
from diffscope.figures.escaping import short_name
from diffscope.figures.figure import Drawing, Figure
from diffscope.figures.line_chart import CHART
from diffscope.prompts.selection import is_last

Captures = Capture | Comparison | Mapping[str, Capture] | Sequence[Capture]
UNDEFINED = " (undefined)"  # behind the name of a series


def captures_of(subject: Any) -> dict[str, Capture]:
    """Captures by name, of anything that a figure of captures takes.

    Raises
    ------
    DiffscopeError
        It holds something else, or nothing.
    """
    named = _captures(subject)
    for name, cap in named.items():
        if not isinstance(cap, Capture):
            raise DiffscopeError(f"this figure is of captures, and {name} is a {type(cap).__name__}; make one with scope.capture")
    if not named:
        raise DiffscopeError("there is no capture to draw; give one, or several by name")
    return named


def _captures(subject: Any) -> dict[str, Any]:
    if isinstance(subject, Capture):
        return {short_name(subject.model_name): subject}
    if isinstance(subject, Comparison):
        return dict(zip(subject.names, subject.captures))
    if isinstance(subject, Mapping) and not isinstance(subject, xr.Dataset):
        return {str(name): cap for name, cap in subject.items()}
    if isinstance(subject, (list, tuple)):
        return dict(zip(_numbered([short_name(getattr(cap, "model_name", "?")) for cap in subject]), subject))
    raise DiffscopeError(f"this figure is of captures, not of a {type(subject).__name__}; make one with scope.capture(prompt)")


def _numbered(names: list[str]) -> list[str]:
    """Names of which none comes twice."""
    times = Counter(names)
    seen: Counter = Counter()
    labels = []
    for name in names:
        seen[name] += 1
        labels.append(name if times[name] == 1 else f"{name} ({seen[name]})")
    return labels


def estimates_of(subject: Any, needed: str, reading: str) -> dict[str, xr.Dataset]:
    """The estimates of readings by name, of anything that a figure of readings takes.

    Parameters
    ----------
    subject
        A Reading, its estimates, or a mapping of either.
    needed : str
        A variable that they have.
    reading : str
        How to make such a reading, for the error.

    Raises
    ------
    DiffscopeError
        It is something else.
    """
    several = isinstance(subject, Mapping) and not isinstance(subject, xr.Dataset)
    named = dict(subject) if several else {"": subject}
    datasets = {str(name): getattr(each, "estimates", each) for name, each in named.items()}
    for dataset in datasets.values():
        if not isinstance(dataset, xr.Dataset) or needed not in dataset:
            raise DiffscopeError(f"this figure is of {reading}, or of several by name: there is no {needed!r} in what was given")
    if not datasets:
        raise DiffscopeError(f"there is no reading to draw; give {reading}")
    if several:
        return datasets
    (dataset,) = datasets.values()
    return {short_name(str(dataset.attrs.get("model", ""))): dataset}


def together(parts: Mapping[str, xr.DataArray], dim: str = "model") -> xr.DataArray:
    """Arrays by name along a new dimension, with labels of all; NaN where one lacks a label of another.

    Raises
    ------
    DiffscopeError
        Every value is undefined.
    """
    names = xr.DataArray(list(parts), dims=dim, name=dim)
    values = xr.concat(list(parts.values()), names, join="outer", combine_attrs="override", coords="minimal", compat="override")
    check_defined(values)
    return values


def check_defined(values: xr.DataArray) -> None:
    """Raise DiffscopeError where every value is undefined."""
    if not values.notnull().any():
        raise DiffscopeError(f"there is nothing to draw: {values.attrs.get('long_name', values.name)} is undefined everywhere")


def undefined_said(values: xr.DataArray, dim: str) -> xr.DataArray:
    """Values with labels of a dimension that say where every value is undefined."""
    others = [other for other in values.dims if other != dim]
    known = values.notnull().any(others).values
    labels = [str(label) if defined else f"{label}{UNDEFINED}" for label, defined in zip(values[dim].values, known)]
    return values.assign_coords({dim: labels})


def checked_query(query: Any, *words: str) -> int | str:
    """A position, which "last" is too (-1), or one of some words.

    Raises
    ------
    DiffscopeError
        It is something else.
    """
    if is_last(query):
        return -1
    if query in words or (isinstance(query, (int, np.integer)) and not isinstance(query, bool)):
        return query
    others = "".join(f", or {word!r}" for word in words)
    raise DiffscopeError(f"there is no query {query!r}; give a position, 'last'{others}")


def panels_beside(parts: Mapping[str, Figure]) -> Drawing:
    """Return figures of curves that are drawn alike as one: panels of each beside those of the next, with its name."""
    figures = list(parts.values())
    data = figures[0].data if len(figures) == 1 else _beside({name: figure.data for name, figure in parts.items()})
    return Drawing(CHART, data, {word: value for word, value in figures[0].style.items() if word != "title"})


def _beside(parts: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Data (panel, series, x) of several along ``panel``, with all series and places in the order in which they come."""
    renamed = []
    for name, data in parts.items():
        panels = [f"{name}: {panel}" if panel else name for panel in map(str, data["panel"].values)]
        renamed.append(data.assign_coords(panel=panels))
    series = dict.fromkeys(str(label) for data in renamed for label in data["series"].values)
    places = dict.fromkeys(label for data in renamed for label in data["x"].values.tolist())
    order = {"series": list(series), "x": list(places)}
    references = {words: value for data in renamed for words, value in data.attrs["references"].items()}
    together = xr.concat(renamed, "panel", join="outer", combine_attrs="override")
    return together.sel(order).assign_attrs(references=references)
