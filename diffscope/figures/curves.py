"""Any labelled values as lines, points, bars or stacked bars: along one dimension, a colour for each label of another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
LABELS = 18  # of categories that fit below a printed figure
TALLEST = 2.2  # inches of a printed figure
GAP = 0.03  # between panels on the screen, of its width
SYMBOLS = {0: "circle", -1: "triangle-down-open", 1: "triangle-up-open"}  # of points within, below and above what is drawn
DASHES = ("dash", "dot", "dashdot", "longdash")


def data(
    values: xr.DataArray,
    x: str,
    series: str | None = None,
    panels: str | None = None,
    low: xr.DataArray | None = None,
    high: xr.DataArray | None = None,
    references: Mapping[str, float] | None = None,
    at: xr.DataArray | None = None,
    diagonal: str = "",
    controls: Sequence[str] = (),
    within: tuple[float, float] | None = None,
) -> xr.Dataset:
    """Values (panel, series, x) with their range; parameters as of ``diffscope.figures.curves``."""
    chosen = by_role(values, {"x": x, "series": series, "panel": panels})
    arrays = {"value": values}
    if (low is None) != (high is None):
        raise DiffscopeError("a range has two ends: give low and high")
    if low is not None and high is not None:
        arrays |= {"low": low, "high": high}
    if at is not None:
        arrays["at"] = at.broadcast_like(values)
    drawn = {name: in_roles(array, chosen, ROLES) for name, array in arrays.items()}
    dataset = xr.Dataset(drawn).drop_attrs()
    about = {
        "figure": "curves",
        "model": str(values.attrs.get("model", "")),
        "x": along_title(values, x) if at is None else values_title(at),
        "y": values_title(values),
        "references": dict(references or {}),
        "diagonal": diagonal,
        "controls": list(controls),
        "within": list(within or ()),
    }
    return dataset.assign_attrs(about)


def _colours(dataset: xr.Dataset) -> dict[str, str]:
    """The colour of each series: that of a map, a span or a control where it is one."""
    names = [str(name) for name in dataset["series"].values]
    known = theme.MAP_COLOURS | theme.SPAN_COLOURS | dict.fromkeys(dataset.attrs["controls"], theme.MUTED)
    others = cycle(theme.SERIES)
    controls = cycle(theme.CONTROL_COLOURS)
    return {name: known.get(name) or next(controls if name.startswith(theme.CONTROL) else others) for name in names}


def _ends(dataset: xr.Dataset) -> tuple[float, float]:
    """Between which numbers a diagonal is drawn: those of the horizontal axis, and 0."""
    at = dataset["at"].values
    finite = at[np.isfinite(at)]
    return min(0.0, *finite), max(0.0, *finite)


def _shown(dataset: xr.Dataset, name: str) -> np.ndarray:
    """Values as far as they are within what is drawn; what is beyond stands at the end."""
    values = dataset[name].values
    return np.clip(values, *dataset.attrs["within"]) if dataset.attrs["within"] else values


def _range(dataset: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """How far the range of values goes down and up, of which a rounding may make less than nothing; NaN where there is none."""
    values = _shown(dataset, "value")
    down, up = values - _shown(dataset, "low"), _shown(dataset, "high") - values
    none = np.maximum(down, up) <= 0
    return np.where(none, np.nan, np.maximum(down, 0)), np.where(none, np.nan, np.maximum(up, 0))


def _within_a_decade(dataset: xr.Dataset) -> bool:
    """Whether values are so close that a logarithmic axis has a tick at most between them."""
    finite = dataset["value"].values[dataset["value"].values > 0]
    return len(finite) > 0 and finite.max() < 10 * finite.min()


def _beyond(dataset: xr.Dataset) -> np.ndarray:
    """-1 below what is drawn, 1 above it, 0 within."""
    return np.sign(dataset["value"].values - _shown(dataset, "value"))


def _places(dataset: xr.Dataset) -> tuple[list, bool]:
    """Where values stand along x, and whether these are numbers."""
    places = dataset["x"].values.tolist()
    numbers = all(isinstance(place, (int, float)) for place in places)
    return (places if numbers else [str(place) for place in places]), numbers


def on_screen(dataset: xr.Dataset, style: str = "lines", title: str | None = None, log: str = "", height: int = 260):
    """The drawing for the screen; put together as one dictionary, since plotly takes long to change a figure."""
    import plotly.graph_objects as go

    panels = [str(name) for name in dataset["panel"].values]
    places, numbers = _places(dataset)
    places = places if numbers else [for_html(place) for place in places]
    numbers = numbers or "at" in dataset
    colours = _colours(dataset)
    titled = any(panels)
    top = (24 if any(colours) else 8) + (22 if title else 0) + (20 if titled else 0)
    layout = theme.screen_layout(height=height, margin={"l": 8, "r": 8, "t": top, "b": 8}, hovermode="closest", bargap=0.15)
    layout["barmode"] = "relative" if style == "stacked" else "group"
    if style == "points" and not numbers:
        layout |= {"scattermode": "group", "scattergap": 0.6}  # beside each other, like bars
    layout["plot_bgcolor"] = "rgba(0,0,0,0)"
    layout["legend"] = {"orientation": "h", "x": 0, "y": 1.02 + (0.1 if titled else 0), "yanchor": "bottom", "font": {"size": 11}}
    if title:
        layout["title"] = {"text": for_html(title), "x": 0, "y": 0.98, "yanchor": "top", "font": {"size": 13}}
    layout |= {"annotations": [], "shapes": []}
    data = []
    for column, panel in enumerate(panels):
        axis = "" if column == 0 else str(column + 1)
        wide = (1 - GAP * (len(panels) - 1)) / len(panels)
        domain = [column * (wide + GAP), column * (wide + GAP) + wide]
        layout[f"xaxis{axis}"] = _across(dataset, places, numbers, log) | {"domain": domain, "anchor": f"y{axis}"}
        layout[f"yaxis{axis}"] = _up(dataset, column, log) | {"anchor": f"x{axis}"}
        layout["shapes"] += _references(dataset, axis)
        if titled:
            middle = {"x": sum(domain) / 2, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "center", "yanchor": "bottom"}
            font = {"size": 11, "color": theme.MUTED}
            layout["annotations"].append({"text": for_html(panel), "showarrow": False, "font": font} | middle)
        for number, name in enumerate(colours):
            part = dataset.isel(panel=column, series=number)
            for trace in _traces(part, places, name, colours[name], style):
                shown = {"xaxis": f"x{axis}", "yaxis": f"y{axis}", "showlegend": bool(trace["name"]) and column == 0}
                data.append(trace | shown)
    figure = go.Figure({"data": data, "layout": layout})
    figure.layout.template = None  # of a dictionary it would be the usual one
    return figure


def _across(dataset: xr.Dataset, places: list, numbers: bool, log: str) -> dict:
    """The horizontal axis of a panel."""
    kind = "log" if "x" in log else "linear"
    axis = theme.screen_axis(type=kind if numbers else "category")
    axis["title"] = axis["title"] | {"text": for_html(dataset.attrs["x"])}
    if numbers and len(places) <= 16 and "at" not in dataset:
        axis |= {"tickmode": "array", "tickvals": places}
    return axis


def _up(dataset: xr.Dataset, column: int, log: str) -> dict:
    """The vertical axis of a panel: all have one scale, and the first has its labels."""
    axis = theme.screen_axis(showgrid=True, gridcolor=theme.UNSEEN, type="log" if "y" in log else "linear")
    if "y" in log:
        axis |= {"tickformat": "~g", "nticks": 3}  # by itself every digit has a tick, without its power
    if within := dataset.attrs["within"]:
        margin = 0.04 * (within[1] - within[0])
        axis["range"] = [within[0] - margin, within[1] + margin]
    if column:
        return axis | {"matches": "y", "showticklabels": False}
    axis["title"] = axis["title"] | {"text": for_html(dataset.attrs["y"])}
    return axis


def _references(dataset: xr.Dataset, axis: str) -> list[dict]:
    """The lines of one panel that are no data."""
    words = {"textposition": "end", "font": {"size": 10, "color": theme.MUTED}}
    line = {"color": theme.MUTED, "width": 1}
    lines = []
    for (name, value), dash in zip(dataset.attrs["references"].items(), cycle(DASHES)):
        ends = {"xref": f"x{axis} domain", "yref": f"y{axis}", "x0": 0, "x1": 1, "y0": value, "y1": value}
        lines.append({"type": "line", "line": line | {"dash": dash}, "label": words | {"text": for_html(name)}} | ends)
    if name := dataset.attrs["diagonal"]:
        least, most = _ends(dataset)
        ends = {"xref": f"x{axis}", "yref": f"y{axis}", "x0": least, "x1": most, "y0": least, "y1": most}
        lines.append({"type": "line", "line": line | {"dash": "dash"}, "label": words | {"text": for_html(name)}} | ends)
    return lines


def _traces(part: xr.Dataset, places: list, name: str, colour: str, style: str) -> list[dict]:
    """One series of one panel, (x,): its values, and its range where there is one."""
    values = _shown(part, "value")
    label = for_html(name)
    of_point = np.stack([np.asarray(places, object), part["value"].values.astype(object)], -1)
    words = f"{label}<br>" if name else ""
    along = ", %{x:.4g}" if "at" in part else ""
    common = {
        "x": part["at"].values if "at" in part else places,
        "y": values,
        "name": label,
        "customdata": of_point,
        "hovertemplate": f"{words}%{{customdata[0]}}{along}: <b>%{{customdata[1]:.4g}}</b><extra></extra>",
    }
    if "low" in part:
        down, up = _range(part)
        bars = {"color": theme.MUTED} if style in ("bars", "stacked") else {}
        common["error_y"] = {"type": "data", "array": up, "arrayminus": down, "thickness": 1, "width": 3} | bars
    if style in ("bars", "stacked"):
        return [common | {"type": "bar", "marker": {"color": colour}}]
    common["type"] = "scatter"
    if style == "lines":
        look = {"line": {"color": colour, "width": 2}, "marker": {"size": 6, "color": colour}, "mode": "lines+markers"}
        return [common | look]
    return _marks(part, common, colour)


def _marks(part: xr.Dataset, common: dict, colour: str) -> list[dict]:
    """One series of one panel, (x,), as points; those beyond what is drawn as triangles at its end."""
    side = np.nan_to_num(_beyond(part))
    traces = []
    for number, symbol in SYMBOLS.items():
        if number and not (side == number).any():
            continue
        shown = {"y": np.where(side == number, common["y"], np.nan), "name": "" if number else common["name"]}
        look = {"mode": "markers", "marker": {"size": 7, "color": colour, "symbol": symbol}, "offsetgroup": common["name"]}
        traces.append(common | shown | look)
    return traces


def in_print(dataset: xr.Dataset, width: float, style: str = "lines", title: str | None = None, log: str = ""):
    """The drawing for print."""
    panels = [str(name) for name in dataset["panel"].values]
    figure = canvas(width, min(max(1.6, width / len(panels) * 0.5), TALLEST))
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    places, numbers = _places(dataset)
    numbers = numbers and style in ("lines", "points")
    ticks = np.asarray(places, float) if numbers else np.arange(len(places), dtype=float)
    colours = _colours(dataset)
    for ax, number in zip(axes, range(len(panels))):
        _bars_or_lines(ax, dataset.isel(panel=number), ticks, colours, style)
        if words := dataset.attrs["diagonal"]:
            ax.plot(_ends(dataset), _ends(dataset), color=theme.MUTED, lw=0.6, ls="--", label=for_print(words))
        for words, value in dataset.attrs["references"].items():
            ax.axhline(value, color=theme.MUTED, lw=0.6, ls="--", label=for_print(words))
        ax.set_title(for_print(panels[number]))
        ax.set_xlabel(for_print(dataset.attrs["x"]))
        if not numbers and "at" not in dataset:
            step = math.ceil(len(places) * len(panels) / LABELS)
            ax.set_xticks(ticks[::step], [for_print(str(place)) for place in places[::step]])
        ax.yaxis.grid(True)
        for letter in log:
            ax.set(**{f"{letter}scale": "log"})
            axis = ax.xaxis if letter == "x" else ax.yaxis
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("{x:g}" if letter == "y" and _within_a_decade(dataset) else "")
        if "x" in log and numbers:
            ax.set_xticks(ticks, [f"{place:g}" for place in ticks], minor=False)
    axes[0].set_ylabel(for_print(dataset.attrs["y"]))
    handles, labels = axes[0].get_legend_handles_labels()
    if any(labels):
        figure.legend(handles, labels, loc="outside lower left", ncols=4, columnspacing=1.2)
    finish_print(figure, title)
    return figure


def _bars_or_lines(ax, part: xr.Dataset, places: np.ndarray, colours: Mapping[str, str], style: str) -> None:
    """All series of one panel, (series, x)."""
    count = len(colours)
    above = np.zeros(len(places))
    below = np.zeros(len(places))
    for number, (name, colour) in enumerate(colours.items()):
        one = part.isel(series=number)
        values = _shown(one, "value")
        aside = (number - (count - 1) / 2) / count
        ends = {}
        if "low" in one:
            ends = {"yerr": np.stack(_range(one))}
        label = for_print(name) if name else None
        if style == "stacked":
            bottom = np.where(values < 0, below, above)
            ax.bar(places, values, 0.8, bottom=bottom, color=colour, label=label)
            above += np.nan_to_num(np.maximum(values, 0))
            below += np.nan_to_num(np.minimum(values, 0))
        elif style == "bars":
            ax.bar(places + 0.8 * aside, values, 0.8 / count, color=colour, label=label, error_kw={"lw": 0.6}, **ends)
        elif style == "lines":
            ax.errorbar(places, values, color=colour, marker="o", ms=2.6, elinewidth=0.6, label=label, **ends)
        else:
            numbers = "at" in one or _places(one)[1]
            _points(ax, one, places if numbers else places + 0.4 * aside, colour, label, ends)


def _points(ax, part: xr.Dataset, places: np.ndarray, colour: str, label: str | None, ends: dict) -> None:
    """One series of one panel, (x,), as points; those beyond what is drawn as triangles at its end."""
    values = _shown(part, "value")
    places = part["at"].values if "at" in part else places
    side = np.nan_to_num(_beyond(part))
    within = np.where(side == 0, values, np.nan)
    ax.errorbar(places, within, color=colour, ls="", marker="o", ms=2.6, elinewidth=0.6, label=label, **ends)
    for marker, beyond in (("v", side < 0), ("^", side > 0)):
        ax.plot(places[beyond], values[beyond], color=colour, ls="", marker=marker, ms=3.2, mfc="none", mew=0.7)


register("curves", "labelled values as lines, points or bars", data=data, plotly=on_screen, matplotlib=in_print, wide=False)
