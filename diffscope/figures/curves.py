"""Any labelled values as lines, points, bars or stacked bars: along one dimension, a colour for each label of another."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.base import register
from diffscope.figures.canvas import canvas, finish_print
from diffscope.figures.escaping import for_html, for_print
from diffscope.figures.labelled import along_title, by_role, in_roles, values_title

ROLES = ("panel", "series", "x")
STYLES = ("lines", "points", "bars", "stacked")
DASHES = ("dash", "dot", "dashdot", "longdash")


def data(
    values: xr.DataArray,
    x: str,
    series: str | None = None,
    panels: str | None = None,
    low: xr.DataArray | None = None,
    high: xr.DataArray | None = None,
    references: Mapping[str, float] | None = None,
) -> xr.Dataset:
    """Values (panel, series, x) with their range; parameters as of ``diffscope.figures.curves``."""
    chosen = by_role(values, {"x": x, "series": series, "panel": panels})
    arrays = {"value": values}
    if (low is None) != (high is None):
        raise DiffscopeError("a range has two ends: give low and high")
    if low is not None and high is not None:
        arrays |= {"low": low, "high": high}
    drawn = {name: in_roles(array, chosen, ROLES) for name, array in arrays.items()}
    dataset = xr.Dataset(drawn).drop_attrs()
    about = {
        "figure": "curves",
        "model": str(values.attrs.get("model", "")),
        "x": along_title(values, x),
        "y": values_title(values),
        "references": dict(references or {}),
    }
    return dataset.assign_attrs(about)


def _colours(names) -> dict[str, str]:
    """The colour of each series: that of a map, a span or a control where it is one."""
    known = theme.MAP_COLOURS | theme.SPAN_COLOURS
    others = cycle(theme.SERIES)
    controls = cycle(theme.CONTROL_COLOURS)
    return {name: known.get(name) or next(controls if name.startswith(theme.CONTROL) else others) for name in map(str, names)}


def _places(dataset: xr.Dataset) -> tuple[list, bool]:
    """Where values stand along x, and whether these are numbers."""
    places = dataset["x"].values.tolist()
    numbers = all(isinstance(place, (int, float)) for place in places)
    return (places if numbers else [str(place) for place in places]), numbers


def on_screen(dataset: xr.Dataset, style: str = "lines", title: str | None = None, log: str = "", height: int = 260):
    """The drawing for the screen."""
    from plotly.subplots import make_subplots

    panels = [str(name) for name in dataset["panel"].values]
    titles = [for_html(name) for name in panels] if any(panels) else None
    places, numbers = _places(dataset)
    places = places if numbers else [for_html(place) for place in places]
    figure = make_subplots(cols=len(panels), shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.03)
    colours = _colours(dataset["series"].values)
    for column in range(1, len(panels) + 1):
        for number, name in enumerate(colours):
            part = dataset.isel(panel=column - 1, series=number)
            for trace in _traces(part, places, name, colours[name], style):
                trace.showlegend = bool(name) and column == 1 and trace.name != ""
                figure.add_trace(trace, row=1, col=column)
        for (words, value), dash in zip(dataset.attrs["references"].items(), cycle(DASHES)):
            label = {"text": for_html(words), "textposition": "end", "font": {"size": 10, "color": theme.MUTED}}
            line = {"color": theme.MUTED, "dash": dash, "width": 1}
            figure.add_hline(y=value, line=line, label=label, row=1, col=column)
    legend = any(colours)
    ticks = {"tickmode": "array", "tickvals": places} if numbers and len(places) <= 16 else {}
    figure.update_xaxes(**theme.screen_axis(title_text=for_html(dataset.attrs["x"]), type=_scale("x" in log, numbers), **ticks))
    figure.update_yaxes(**theme.screen_axis(showgrid=True, gridcolor=theme.UNSEEN, type="log" if "y" in log else "linear"))
    figure.update_yaxes(title_text=for_html(dataset.attrs["y"]), col=1)
    top = (24 if legend else 8) + (22 if title else 0) + (20 if titles else 0)
    layout = theme.screen_layout(height=height, margin={"l": 8, "r": 8, "t": top, "b": 8}, hovermode="closest", bargap=0.15)
    layout["barmode"] = "relative" if style == "stacked" else "group"
    layout["plot_bgcolor"] = "rgba(0,0,0,0)"
    layout["legend"] = {"orientation": "h", "x": 0, "y": 1.02 + (0.1 if titles else 0), "yanchor": "bottom", "font": {"size": 11}}
    if title:
        layout["title"] = {"text": for_html(title), "x": 0, "y": 0.98, "yanchor": "top", "font": {"size": 13}}
    figure.update_layout(**layout)
    figure.update_annotations(font={"size": 11, "color": theme.MUTED})
    return figure


def _scale(log: bool, numbers: bool) -> str:
    if not numbers:
        return "category"
    return "log" if log else "linear"


def _traces(part: xr.Dataset, places: list, name: str, colour: str, style: str) -> list:
    """One series of one panel, (x,): its values, and its range where there is one."""
    import plotly.graph_objects as go

    values = part["value"].values
    label = for_html(name)
    words = f"{label}<br>" if name else ""
    hover = words + "%{x}: <b>%{y:.4g}</b><extra></extra>"
    ends = {}
    if "low" in part:
        up = (part["high"] - part["value"]).values
        down = (part["value"] - part["low"]).values
        ends = {"error_y": {"type": "data", "array": up, "arrayminus": down, "thickness": 1, "width": 3}}
    if style in ("bars", "stacked"):
        for end in ends.values():
            end["color"] = theme.MUTED
        return [go.Bar(x=places, y=values, name=label, marker={"color": colour}, hovertemplate=hover, **ends)]
    mode = "lines+markers" if style == "lines" else "markers"
    look = {"line": {"color": colour, "width": 2}, "marker": {"size": 6, "color": colour}, "mode": mode}
    return [go.Scatter(x=places, y=values, name=label, hovertemplate=hover, **look, **ends)]


def in_print(dataset: xr.Dataset, width: float, style: str = "lines", title: str | None = None, log: str = ""):
    """The drawing for print."""
    panels = [str(name) for name in dataset["panel"].values]
    figure = canvas(width, max(1.6, width / len(panels) * 0.5))
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    places, numbers = _places(dataset)
    at = np.asarray(places, float) if numbers and style in ("lines", "points") else np.arange(len(places), dtype=float)
    colours = _colours(dataset["series"].values)
    for ax, number in zip(axes, range(len(panels))):
        _bars_or_lines(ax, dataset.isel(panel=number), at, colours, style)
        for words, value in dataset.attrs["references"].items():
            ax.axhline(value, color=theme.MUTED, lw=0.6, ls="--", label=for_print(words))
        ax.set_title(for_print(panels[number]))
        ax.set_xlabel(for_print(dataset.attrs["x"]))
        if not (numbers and style in ("lines", "points")):
            ax.set_xticks(at, [for_print(str(place)) for place in places])
        ax.yaxis.grid(True)
        if "x" in log:
            ax.set_xscale("log")
        if "y" in log:
            ax.set_yscale("log")
    axes[0].set_ylabel(for_print(dataset.attrs["y"]))
    handles, labels = axes[0].get_legend_handles_labels()
    if any(labels):
        figure.legend(handles, labels, loc="outside lower left", ncols=4, columnspacing=1.2)
    finish_print(figure, title)
    return figure


def _bars_or_lines(ax, part: xr.Dataset, at: np.ndarray, colours: Mapping[str, str], style: str) -> None:
    """All series of one panel, (series, x)."""
    count = len(colours)
    above = np.zeros(len(at))
    below = np.zeros(len(at))
    for number, (name, colour) in enumerate(colours.items()):
        one = part.isel(series=number)
        values = one["value"].values
        ends = {}
        if "low" in one:
            ends = {"yerr": np.stack([values - one["low"].values, one["high"].values - values])}
        label = for_print(name) if name else None
        if style == "stacked":
            bottom = np.where(values < 0, below, above)
            ax.bar(at, values, 0.8, bottom=bottom, color=colour, label=label)
            above += np.nan_to_num(np.maximum(values, 0))
            below += np.nan_to_num(np.minimum(values, 0))
        elif style == "bars":
            wide = 0.8 / count
            ax.bar(at + (number - (count - 1) / 2) * wide, values, wide, color=colour, label=label, error_kw={"lw": 0.6}, **ends)
        else:
            line = "-" if style == "lines" else ""
            ax.errorbar(at, values, color=colour, ls=line, marker="o", ms=2.6, elinewidth=0.6, label=label, **ends)


register("curves", "labelled values as lines, points or bars", data=data, plotly=on_screen, matplotlib=in_print, wide=False)
