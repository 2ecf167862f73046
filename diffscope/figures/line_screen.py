"""Labelled values as lines, points, bars or stacked bars on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np
import xarray as xr

from diffscope.figures import theme
from diffscope.figures.escaping import for_html
from diffscope.figures.line_data import (
    beyond,
    colours_of,
    dashes_of,
    ends_of,
    has_single,
    hatch_numbers,
    marker_numbers,
    places_of,
    rounds_of,
    shown,
    spread,
)
from diffscope.figures.print_layout import screen_title

GAPS = {"shared": 0.03, "own": 0.08}  # between panels, of the width of all
BEYOND = {-1: "triangle-down-open", 1: "triangle-up-open"}  # of points below and above what is drawn
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "pentagon")  # a colour each, as in print
PATTERNS = ("", "/", ".", "\\", "x", "-")  # of bars that are as dark as others, as in print
DASHES = ("dash", "dot", "dashdot", "longdash")


def on_screen(
    dataset: xr.Dataset,
    style: str = "lines",
    title: str | None = None,
    log: str = "",
    scale: str = "shared",
    height: int = 260,
    highlight: Sequence[str] = (),
    marked: float | None = None,
    extremes: Sequence[str] = (),
    ends: str = "",
):
    """Draw for the screen; put together as one dictionary, since plotly takes long to change a figure.

    `style`, `title`, `log` and `scale` are as of ``diffscope.figures.curves``. Series that are not among those to `highlight`,
    the most important first, are thin, faint and not in the legend. A broad line marks `marked`, a place along x. The ranges of
    `extremes` end at single values: these are small points, which the legend calls `ends`, since whiskers are read as intervals.
    """
    import plotly.graph_objects as go

    panels = [str(name) for name in dataset["panel"].values]
    places, numbers = places_of(dataset)
    places = places if numbers else [for_html(place) for place in places]
    numbers = numbers or "at" in dataset
    colours = colours_of(dataset)
    markers = marker_numbers(colours, {} if highlight else rounds_of(dataset))
    dashes, hatches = dashes_of(dataset), hatch_numbers(colours)
    titled = any(panels)
    top = (24 if any(colours) else 8) + (22 if title else 0) + (20 if titled else 0)
    layout = theme.screen_layout(height=height, margin={"l": 8, "r": 8, "t": top, "b": 8}, hovermode="closest", bargap=0.15)
    layout["barmode"] = "relative" if style == "stacked" else "group"
    grouped = style == "points" and not numbers
    if grouped:
        layout |= {"scattermode": "group", "scattergap": 0.6}  # beside each other, like bars
    elif extremes and not numbers:
        layout |= {"scattermode": "group", "scattergap": layout["bargap"]}  # at the middle of their bars
    layout["plot_bgcolor"] = "rgba(0,0,0,0)"
    layout["legend"] = {"orientation": "h", "x": 0, "y": 1.02 + (0.1 if titled else 0), "yanchor": "bottom", "font": {"size": 11}}
    if title:
        layout["title"] = screen_title(title)
    mark = {"type": "line", "x0": marked, "x1": marked, "y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
    broad = {"line": {"color": theme.RULE, "width": 8}}
    layout |= {"annotations": [], "shapes": [] if marked is None else [mark | broad]}
    data = []
    for column, panel in enumerate(panels):
        axis = "" if column == 0 else str(column + 1)
        wide = (1 - GAPS[scale] * (len(panels) - 1)) / len(panels)
        domain = [column * (wide + GAPS[scale]), column * (wide + GAPS[scale]) + wide]
        layout[f"xaxis{axis}"] = _across(dataset, places, numbers, log) | {"domain": domain, "anchor": f"y{axis}"}
        layout[f"yaxis{axis}"] = _up(dataset, column, log, scale) | {"anchor": f"x{axis}"}
        if grouped and "y" not in log and not dataset.attrs["within"]:  # else the axis would begin at 0, as of bars
            layout[f"yaxis{axis}"]["range"] = _reach(dataset if scale == "shared" else dataset.isel(panel=[column]))
        layout["shapes"] += _references(dataset, axis)
        if titled:
            middle = {"x": sum(domain) / 2, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "center", "yanchor": "bottom"}
            font = {"size": 11, "color": theme.MUTED}
            layout["annotations"].append({"text": for_html(panel), "showarrow": False, "font": font} | middle)
        for number, name in enumerate(colours):
            part = dataset.isel(panel=column, series=number)
            mark = hatches[name] if style in ("bars", "stacked") else markers[name]
            traces = [
                *_single(part, places, name, colours[name]),
                *_traces(part, places, name, colours[name], style, mark, dashes[name]),
            ]
            if extremes and "low" in part:
                traces = (
                    [{key: value for key, value in each.items() if key != "error_y"} for each in traces]
                    if name in extremes
                    else traces
                )
                named = {"name": ends if name in extremes[:1] else ""}  # once, not for each series
                traces.append(_extremes(part, places, name, colours[name], name in extremes) | named)
            if highlight:
                traces = [each | _emphasis(name, colours[name], highlight) for each in traces]
            for trace in traces:
                axes = {"xaxis": f"x{axis}", "yaxis": f"y{axis}", "showlegend": bool(trace["name"]) and column == 0}
                data.append(axes | trace)
    figure = go.Figure({"data": data, "layout": layout})
    figure.layout.template = None  # of a dictionary it would be the usual one
    return figure


def _across(dataset: xr.Dataset, places: list, numbers: bool, log: str) -> dict:
    """Return the horizontal axis of a panel."""
    kind = "log" if "x" in log else "linear"
    axis = theme.screen_axis(type=kind if numbers else "category")
    axis["title"] = axis["title"] | {"text": for_html(dataset.attrs["x"])}
    if numbers and len(places) <= 16 and "at" not in dataset:
        axis |= {"tickmode": "array", "tickvals": places}
    return axis


def _up(dataset: xr.Dataset, column: int, log: str, scale: str) -> dict:
    """Return the vertical axis of a panel: where all have one scale, the first has its labels."""
    axis = theme.screen_axis(showgrid=True, gridcolor=theme.UNSEEN, type="log" if "y" in log else "linear")
    if "y" in log:
        positive = dataset["value"].values[dataset["value"].values > 0]
        small = len(positive) > 0 and positive.min() < 1e-3
        axis |= {"exponentformat": "power"} if small else {"tickformat": "~g"}
        axis["nticks"] = 3  # by itself every digit has a tick, without its power
    if within := dataset.attrs["within"]:
        low, high = np.log10(within) if "y" in log else within  # of a logarithmic axis plotly takes powers of ten
        margin = 0.04 * (high - low)
        axis["range"] = [low - margin, high + margin]
    if column:
        return axis | ({"matches": "y", "showticklabels": False} if scale == "shared" else {})
    axis["title"] = axis["title"] | {"text": for_html(dataset.attrs["y"])}
    return axis


def _reach(dataset: xr.Dataset) -> list[float]:
    """Return the ends of a vertical axis that holds all that is drawn."""
    drawn = [array.values.ravel() for name, array in dataset.data_vars.items() if name != "at"]
    values = np.concatenate([*drawn, [*dataset.attrs["references"].values()]])
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    margin = 0.06 * (high - low) or 0.5
    return [low - margin, high + margin]


def _references(dataset: xr.Dataset, axis: str) -> list[dict]:
    """Return the reference lines of one panel."""
    words = {"textposition": "end", "font": {"size": 10, "color": theme.MUTED}}
    line = {"color": theme.MUTED, "width": 1}
    lines = []
    for (name, value), dash in zip(dataset.attrs["references"].items(), cycle(DASHES)):
        ends = {"xref": f"x{axis} domain", "yref": f"y{axis}", "x0": 0, "x1": 1, "y0": value, "y1": value}
        lines.append({"type": "line", "line": line | {"dash": dash}, "label": words | {"text": for_html(name)}} | ends)
    if name := dataset.attrs["diagonal"]:
        least, most = ends_of(dataset)
        ends = {"xref": f"x{axis}", "yref": f"y{axis}", "x0": least, "x1": most, "y0": least, "y1": most}
        lines.append({"type": "line", "line": line | {"dash": "dash"}, "label": words | {"text": for_html(name)}} | ends)
    return lines


def _single(part: xr.Dataset, places: list, name: str, colour: str) -> list[dict]:
    """Return the single values behind one series of one panel, (x, point)."""
    if not has_single(part):
        return []
    values = shown(part, "points")
    labels = [[for_html(str(label)), str(place)] for place in places for label in part["point"].values]
    words = f"{for_html(name)}<br>" if name else ""
    look = {"mode": "markers", "marker": {"size": 4, "color": colour, "opacity": 0.4}, "offsetgroup": for_html(name)}
    labelled = {
        "customdata": labels,
        "hovertemplate": f"{words}%{{customdata[1]}}, %{{customdata[0]}}: %{{y:.4g}}<extra></extra>",
    }
    at = [place for place in places for _ in range(values.shape[1])]
    return [{"type": "scatter", "x": at, "y": values.ravel(), "name": ""} | look | labelled]


def _traces(part: xr.Dataset, places: list, name: str, colour: str, style: str, mark: int, dash: str) -> list[dict]:
    """Return one series of one panel, (x,): its values, and its range; `mark` is the number of its hatch or marker."""
    values = shown(part, "value")
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
        down, up = spread(part)
        bars = {"color": theme.MUTED} if style in ("bars", "stacked") else {}
        common["error_y"] = {"type": "data", "array": up, "arrayminus": down, "thickness": 1, "width": 3} | bars
    if style in ("bars", "stacked"):
        group = {"offsetgroup": label} if style == "bars" and label else {}  # in which its single values are, too
        shape = PATTERNS[mark % len(PATTERNS)]
        pattern = {"shape": shape, "fillmode": "overlay", "fgcolor": theme.PAPER, "size": 6, "solidity": 0.25}
        return [common | {"type": "bar", "marker": {"color": colour, "pattern": pattern}} | group]
    common["type"] = "scatter"
    symbol = SYMBOLS[mark % len(SYMBOLS)]
    if style == "lines":
        line = {"color": colour, "width": 2, "dash": dash}
        return [common | {"line": line, "marker": {"size": 6, "color": colour, "symbol": symbol}, "mode": "lines+markers"}]
    return _marks(part, common, colour, symbol if dash == "solid" else f"{symbol}-open")


def _extremes(part: xr.Dataset, places: list, name: str, colour: str, seen: bool) -> dict:
    """Return the ends of the ranges of one series as small points; of others none, which keep its place among the groups."""
    down, up = spread(part)
    middle = shown(part, "value") if seen else np.full(len(places), np.nan)
    look = {"mode": "markers", "marker": {"size": 5, "color": colour, "line": {"width": 1, "color": theme.PAPER}}}
    words = {"offsetgroup": for_html(name), "hovertemplate": f"{for_html(name)}<br>%{{x}}: %{{y:.4g}}<extra></extra>"}
    return {"type": "scatter", "x": [*places, *places], "y": np.concatenate([middle - down, middle + up])} | look | words


def _emphasis(name: str, colour: str, highlight: Sequence[str]) -> dict:
    """Return how a line looks among others of which some are highlighted."""
    if name not in highlight:
        look = {"line": {"color": colour, "width": 1}, "marker": {"color": colour, "size": 4}}
        return look | {"opacity": 0.5, "showlegend": False}
    first = highlight[0] == name
    return {"line": {"color": colour, "width": 3 if first else 2, "dash": "solid" if first else "dash"}}


def _marks(part: xr.Dataset, common: dict, colour: str, symbol: str) -> list[dict]:
    """Return one series of one panel, (x,), as points; those beyond what is drawn as triangles at its end."""
    side = np.nan_to_num(beyond(part))
    traces = []
    for number, shape in {0: symbol, **BEYOND}.items():
        if number and not (side == number).any():
            continue
        seen = {"y": np.where(side == number, common["y"], np.nan), "name": "" if number else common["name"]}
        look = {"mode": "markers", "marker": {"size": 7, "color": colour, "symbol": shape}, "offsetgroup": common["name"]}
        traces.append(common | seen | look)
    return traces
