"""Figures of any labelled values, whatever they are of: curves, strips of points, cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Unpack

import xarray as xr

from diffscope.errors import DiffscopeError, check_choice
from diffscope.figures import cell_chart as _cell_chart
from diffscope.figures import line_data as _line_data
from diffscope.figures import strip_chart as _strip_chart
from diffscope.figures.declaration import Drawing, Printing, figure
from diffscope.figures.figure import Chart, Figure
from diffscope.figures.line_print import in_print
from diffscope.figures.line_screen import on_screen

LINES = Chart(on_screen, in_print)


@figure(wide=False)
def curves(
    values: xr.DataArray,
    *,
    x: str = "layer",
    series: str | None = None,
    panels: str | None = None,
    low: xr.DataArray | None = None,
    high: xr.DataArray | None = None,
    references: Mapping[str, float] | None = None,
    at: xr.DataArray | None = None,
    diagonal: str = "",
    controls: str | Sequence[str] = (),
    within: tuple[float, float] | None = None,
    points: xr.DataArray | None = None,
    looks: Mapping[str, tuple[str, str]] | None = None,
    extremes: str | Sequence[str] = (),
    style: Literal["lines", "points", "bars", "stacked"] = "lines",
    log: Literal["", "x", "y", "xy"] = "",
    scale: Literal["shared", "own"] = "shared",
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw any labelled values along one dimension, a colour for each label of another, a panel for each of a third.

    Parameters
    ----------
    values : xarray.DataArray
        Its ``long_name`` and ``units`` name the axis.
    x, series, panels : str
        Its dimensions; it has no others.
    low, high : xarray.DataArray, optional
        The ends of a range around the values, with their dimensions.
    references : mapping of str to float, optional
        Values that a line is drawn at, by what they are.
    at : xarray.DataArray, optional
        Where points stand along the horizontal axis, with dimensions of `values`; its ``long_name`` and ``units`` name that axis,
        and the labels of `x` are told of each point. Of style "points" alone.
    diagonal : str
        A line is drawn where both axes are the same, and this says what it is.
    controls : str or sequence of str
        Labels of `series` that are drawn in grey.
    within : (float, float), optional
        The ends of the vertical axis, above 0 if it is logarithmic. A point beyond stands at the end as a triangle, so that one
        ratio with next to nothing below the line does not make all others look alike.
    points : xarray.DataArray, optional
        Single values that each value stands for, such as heads behind their mean: its dimensions and more. They are drawn small
        and behind it. Of lines and points.
    looks : mapping of str to (str, str), optional
        Colour of a series, and "solid", "dash" or "dot", by its label; by default every series has a colour of its own.
    extremes : str or sequence of str
        Labels of `series` whose ranges go from the least to the largest of single values: their ends are drawn as small points,
        not as whiskers, which are read as intervals.
    style : {"lines", "points", "bars", "stacked"}
    log : {"", "x", "y", "xy"}
        Which axes are logarithmic.
    scale : {"shared", "own"}
        One vertical scale of all panels, or one each.

    Returns
    -------
    Figure

    Raises
    ------
    DiffscopeError
        There is no such dimension, or one without a role; `at` is given for another style than points; an end of a logarithmic
        axis is not above 0; or there is no such style or axis.
    """
    check_choice("style", style, _line_data.STYLES)
    check_choice("logarithmic axis", log or "x", ("x", "y", "xy"))
    if at is not None and style != "points":
        raise DiffscopeError(f'only points stand along another axis, not {style}; choose style="points", or leave at out')
    if within and "y" in log and min(within) <= 0:
        raise DiffscopeError(f"a logarithmic axis cannot end at {min(within):g}; give ends within which are above 0")
    if points is not None and (style not in ("lines", "points") or at is not None):
        raise DiffscopeError("single values are drawn behind lines and points along x; leave points out")
    ranges = {"low": low, "high": high, "at": at, "within": within, "points": points}
    marks = {"references": references, "diagonal": diagonal, "controls": _labels(controls), "looks": looks}
    data = _line_data.data(values, x, series, panels, **ranges, **marks)
    return Drawing(LINES, data, {"style": style, "log": log, "scale": scale, "extremes": _labels(extremes)})


@figure(wide=False)
def strips(
    values: xr.DataArray,
    *,
    x: str = "layer",
    series: str = "side",
    points: str = "head",
    joined: bool = False,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw single values as strips of points: one strip a label of a dimension, side by side at every place along another.

    Parameters
    ----------
    values : xarray.DataArray
        Its ``long_name`` and ``units`` name the axis.
    x, series, points : str
        Its dimensions; it has no others.
    joined : bool
        Whether a point of one strip is the same thing as that of the next: lines lead from one to the other.

    Returns
    -------
    Figure

    Raises
    ------
    DiffscopeError
        There is no such dimension, one without a role, or no value at all.
    """
    return Drawing(_strip_chart.CHART, _strip_chart.data(values, x, series, points, joined))


@figure()
def cells(
    values: xr.DataArray,
    *,
    x: str = "head",
    y: str = "layer",
    panels: str | None = None,
    error: xr.DataArray | None = None,
    **printing: Unpack[Printing],
) -> Drawing:
    """Draw any labelled values as coloured cells with their numbers, on one scale.

    Parameters
    ----------
    values : xarray.DataArray
        Its ``long_name`` and ``units`` name the colours.
    x, y, panels : str
        Its dimensions; it has no others.
    error : xarray.DataArray, optional
        What stands below each number with a ±, such as its standard error; with dimensions of `values`.

    Returns
    -------
    Figure

    Raises
    ------
    DiffscopeError
        There is no such dimension, or one without a role.
    """
    return Drawing(_cell_chart.CHART, _cell_chart.data(values, x, y, panels, error))


def _labels(labels: str | Sequence[str]) -> list[str]:
    """Return labels as a list, one as well as several."""
    return [labels] if isinstance(labels, str) else list(labels)


def panels_beside(parts: Mapping[str, Figure]) -> Drawing:
    """Return figures of curves that are drawn alike as one: panels of each beside those of the next, with its name."""
    figures = list(parts.values())
    data = figures[0].data if len(figures) == 1 else _beside({name: figure.data for name, figure in parts.items()})
    return Drawing(LINES, data, {word: value for word, value in figures[0].style.items() if word != "title"})


def _beside(parts: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Return data (panel, series, x) of several along ``panel``, with all series and places in the order in which they come."""
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
