"""Any labelled values as lines, points, bars or stacked bars: along one dimension, a colour for each label of another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.escaping import for_html, for_print
from diffscope.figures.figure import Chart
from diffscope.figures.labelled import along_title, by_role, in_roles, values_title
from diffscope.figures.print_layout import canvas, finish_print, legend_below, legend_height, log_axis, screen_title

ROLES = ("panel", "series", "x")
STYLES = ("lines", "points", "bars", "stacked")
GAPS = {"shared": 0.03, "own": 0.08}  # between panels on the screen, of its width
SYMBOLS = {0: "circle", -1: "triangle-down-open", 1: "triangle-up-open"}  # of points within, below and above what is drawn
DASHES = ("dash", "dot", "dashdot", "longdash")
LABELS = 18  # of categories that fit below a printed figure
TALLEST = 2.2  # inches of a row of printed panels
NARROWEST = 1.3  # inches of a printed panel: of narrower ones there are several rows
CHARACTER = 0.055  # inches of a label below a printed figure
TICK = 0.3  # inches from one numbered tick to the next
SLANTED = 0.3  # inches that turned labels take below a panel
MARKERS = ("o", "s", "^", "D", "v", "P")  # of one series after the other, so that they are told apart in grey print too
IN_PRINT = {"solid": "-", "dash": "--", "dot": ":"}
Looks = Mapping[str, tuple[str, str]]


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
    points: xr.DataArray | None = None,
    looks: Looks | None = None,
) -> xr.Dataset:
    """Values (panel, series, x) with their range, and points (panel, series, x, point); parameters as of ``figures.curves``."""
    chosen = by_role(values, {"x": x, "series": series, "panel": panels})
    arrays = {"value": values}
    if (low is None) != (high is None):
        raise DiffscopeError("a range has two ends: give low and high")
    if low is not None and high is not None:
        arrays |= {"low": low, "high": high}
    if at is not None:
        arrays["at"] = at.broadcast_like(values)
    drawn = {name: in_roles(array, chosen, ROLES) for name, array in arrays.items()}
    if points is not None:
        drawn["points"] = _behind(points, chosen)
    dataset = xr.Dataset(drawn).drop_attrs()
    about = {
        "model": str(values.attrs.get("model", "")),
        "x": along_title(values, x) if at is None else values_title(at),
        "y": values_title(values),
        "references": dict(references or {}),
        "diagonal": diagonal,
        "controls": list(controls),
        "within": list(within or ()),
        "looks": {name: list(look) for name, look in (looks or {}).items()},
    }
    return dataset.assign_attrs(about)


def _behind(points: xr.DataArray, chosen: Mapping[str, str]) -> xr.DataArray:
    """Single values (panel, series, x, point) that are drawn behind the others; all dimensions without a role are one."""
    single = [dim for dim in points.dims if dim not in chosen]
    labels = [" ".join(map(str, np.atleast_1d(label))) for label in points.stack(point=single)["point"].values.tolist()]
    flat = points.stack(point=single, create_index=False).reset_coords(drop=True).assign_coords(point=labels)
    return in_roles(flat, {**chosen, "point": "point"}, (*ROLES, "point"))


def dash_of(dataset: xr.Dataset, name: str) -> str:
    """Of a series' line: solid, dash or dot."""
    return dataset.attrs["looks"].get(name, ("", "solid"))[1]


def colours_of(dataset: xr.Dataset) -> dict[str, str]:
    """The colour of each series: that of a map, a span or a control where it is one."""
    names = [str(name) for name in dataset["series"].values]
    known = theme.MAP_COLOURS | theme.SPAN_COLOURS | dict.fromkeys(dataset.attrs["controls"], theme.MUTED)
    known |= {name: colour for name, (colour, _) in dataset.attrs["looks"].items()}
    others = cycle(theme.SERIES)
    controls = cycle(theme.CONTROL_COLOURS)
    return {name: known.get(name) or next(controls if name.startswith(theme.CONTROL) else others) for name in names}


def ends_of(dataset: xr.Dataset) -> tuple[float, float]:
    """Between which numbers a diagonal is drawn: those of the horizontal axis, and 0."""
    at = dataset["at"].values
    finite = at[np.isfinite(at)]
    return min(0.0, *finite), max(0.0, *finite)


def shown(dataset: xr.Dataset, name: str) -> np.ndarray:
    """Values as far as they are within what is drawn; what is beyond stands at the end."""
    values = dataset[name].values
    return np.clip(values, *dataset.attrs["within"]) if dataset.attrs["within"] else values


def spread(dataset: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """How far the range of values goes down and up, of which a rounding may make less than nothing; NaN where there is none."""
    values = shown(dataset, "value")
    down, up = values - shown(dataset, "low"), shown(dataset, "high") - values
    none = np.maximum(down, up) <= 0
    return np.where(none, np.nan, np.maximum(down, 0)), np.where(none, np.nan, np.maximum(up, 0))


def within_a_decade(dataset: xr.Dataset) -> bool:
    """Whether values are so close that a logarithmic axis has a tick at most between them."""
    finite = dataset["value"].values[dataset["value"].values > 0]
    return len(finite) > 0 and finite.max() < 10 * finite.min()


def beyond(dataset: xr.Dataset) -> np.ndarray:
    """-1 below what is drawn, 1 above it, 0 within."""
    return np.sign(dataset["value"].values - shown(dataset, "value"))


def places_of(dataset: xr.Dataset) -> tuple[list, bool]:
    """Where values stand along x, and whether these are numbers."""
    places = dataset["x"].values.tolist()
    numbers = all(isinstance(place, (int, float)) for place in places)
    return (places if numbers else [str(place) for place in places]), numbers


def on_screen(
    dataset: xr.Dataset,
    style: str = "lines",
    title: str | None = None,
    log: str = "",
    scale: str = "shared",
    height: int = 260,
    band: Mapping[str, str] | None = None,
    highlight: Sequence[str] = (),
    marked: float | None = None,
    extremes: Sequence[str] = (),
):
    """Draw for the screen; put together as one dictionary, since plotly takes long to change a figure.

    Parameters
    ----------
    dataset : xarray.Dataset
        As ``data`` gives it.
    style, title, log, scale
        As of ``diffscope.figures.curves``.
    height : int
        Pixels.
    band : mapping of str to str, optional
        What the range of some series is called; it is an area and not bars.
    highlight : sequence of str
        The series that matter most first; all others are thin, faint and not in the legend.
    marked : float, optional
        A place along x that a broad line marks.
    extremes : sequence of str
        The series whose ranges end at single values: these are small points, since whiskers are read as intervals.
    """
    import plotly.graph_objects as go

    panels = [str(name) for name in dataset["panel"].values]
    places, numbers = places_of(dataset)
    places = places if numbers else [for_html(place) for place in places]
    numbers = numbers or "at" in dataset
    colours = colours_of(dataset)
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
            traces = [*_single(part, places, name, colours[name]), *_traces(part, places, name, colours[name], style)]
            if band and name in band and "low" in part:
                traces = [_area(part, places, colours[name], band[name]), *({**each, "error_y": None} for each in traces)]
            if extremes and "low" in part:
                traces = (
                    [{key: value for key, value in each.items() if key != "error_y"} for each in traces]
                    if name in extremes
                    else traces
                )
                traces.append(_extremes(part, places, name, colours[name], name in extremes))
            if highlight:
                traces = [each | _emphasis(name, colours[name], highlight) for each in traces]
            for trace in traces:
                axes = {"xaxis": f"x{axis}", "yaxis": f"y{axis}", "showlegend": bool(trace["name"]) and column == 0}
                data.append(axes | trace)
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


def _up(dataset: xr.Dataset, column: int, log: str, scale: str) -> dict:
    """The vertical axis of a panel: where all have one scale, the first has its labels."""
    axis = theme.screen_axis(showgrid=True, gridcolor=theme.UNSEEN, type="log" if "y" in log else "linear")
    if "y" in log:
        positive = dataset["value"].values[dataset["value"].values > 0]
        small = len(positive) > 0 and positive.min() < 1e-3
        axis |= {"exponentformat": "power"} if small else {"tickformat": "~g"}
        axis["nticks"] = 3  # by itself every digit has a tick, without its power
    if within := dataset.attrs["within"]:
        margin = 0.04 * (within[1] - within[0])
        axis["range"] = [within[0] - margin, within[1] + margin]
    if column:
        return axis | ({"matches": "y", "showticklabels": False} if scale == "shared" else {})
    axis["title"] = axis["title"] | {"text": for_html(dataset.attrs["y"])}
    return axis


def _reach(dataset: xr.Dataset) -> list[float]:
    """The ends of a vertical axis that holds all that is drawn."""
    drawn = [array.values.ravel() for name, array in dataset.data_vars.items() if name != "at"]
    values = np.concatenate([*drawn, [*dataset.attrs["references"].values()]])
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    margin = 0.06 * (high - low) or 0.5
    return [low - margin, high + margin]


def _references(dataset: xr.Dataset, axis: str) -> list[dict]:
    """The lines of one panel that are no data."""
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


def _has_single(part: xr.Dataset) -> bool:
    """Return whether a series has single values that its values do not say already, as those of a control do."""
    return "points" in part and not np.allclose(part["points"], part["value"].values[:, None], rtol=1e-6, atol=0, equal_nan=True)


def _single(part: xr.Dataset, places: list, name: str, colour: str) -> list[dict]:
    """The single values behind one series of one panel, (x, point)."""
    if not _has_single(part):
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


def _traces(part: xr.Dataset, places: list, name: str, colour: str, style: str) -> list[dict]:
    """One series of one panel, (x,): its values, and its range where there is one."""
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
        return [common | {"type": "bar", "marker": {"color": colour}} | group]
    common["type"] = "scatter"
    if style == "lines":
        line = {"color": colour, "width": 2, "dash": dash_of(part, name)}
        return [common | {"line": line, "marker": {"size": 6, "color": colour}, "mode": "lines+markers"}]
    return _marks(part, common, colour)


def _area(part: xr.Dataset, places: list, colour: str, label: str) -> dict:
    """Return the range of one series as an area."""
    ends = np.concatenate([shown(part, "high"), shown(part, "low")[::-1]])
    look = {"fill": "toself", "fillcolor": colour, "opacity": 0.15, "line": {"width": 0}, "mode": "lines", "hoverinfo": "skip"}
    return {"type": "scatter", "x": [*places, *places[::-1]], "y": ends, "name": for_html(label)} | look


def _extremes(part: xr.Dataset, places: list, name: str, colour: str, seen: bool) -> dict:
    """Return the ends of the ranges of one series as small points; of others none, which keep its place among the groups."""
    down, up = spread(part)
    middle = shown(part, "value") if seen else np.full(len(places), np.nan)
    look = {"mode": "markers", "marker": {"size": 5, "color": colour, "line": {"width": 1, "color": theme.PAPER}}, "name": ""}
    words = {"offsetgroup": for_html(name), "hovertemplate": f"{for_html(name)}<br>%{{x}}: %{{y:.4g}}<extra></extra>"}
    return {"type": "scatter", "x": [*places, *places], "y": np.concatenate([middle - down, middle + up])} | look | words


def _emphasis(name: str, colour: str, highlight: Sequence[str]) -> dict:
    """Return how a line looks among others of which some are highlighted."""
    if name not in highlight:
        look = {"line": {"color": colour, "width": 1}, "marker": {"color": colour, "size": 4}}
        return look | {"opacity": 0.5, "showlegend": False}
    first = highlight[0] == name
    return {"line": {"color": colour, "width": 3 if first else 2, "dash": "solid" if first else "dash"}}


def _marks(part: xr.Dataset, common: dict, colour: str) -> list[dict]:
    """One series of one panel, (x,), as points; those beyond what is drawn as triangles at its end."""
    side = np.nan_to_num(beyond(part))
    solid = dash_of(part, str(part["series"].item())) == "solid"
    traces = []
    for number, symbol in (SYMBOLS if solid else {**SYMBOLS, 0: "circle-open"}).items():
        if number and not (side == number).any():
            continue
        seen = {"y": np.where(side == number, common["y"], np.nan), "name": "" if number else common["name"]}
        look = {"mode": "markers", "marker": {"size": 7, "color": colour, "symbol": symbol}, "offsetgroup": common["name"]}
        traces.append(common | seen | look)
    return traces


def in_print(
    dataset: xr.Dataset,
    width: float,
    style: str = "lines",
    title: str | None = None,
    log: str = "",
    scale: str = "shared",
    band: Mapping[str, str] | None = None,
    highlight: Sequence[str] = (),
    extremes: Sequence[str] = (),
):
    """Draw for print; panels that would be too narrow beside each other stand in several rows. Parameters as of ``on_screen``."""
    from matplotlib.ticker import MaxNLocator

    panels = [str(name) for name in dataset["panel"].values]
    columns = min(len(panels), max(1, int(width / NARROWEST)))
    rows = math.ceil(len(panels) / columns)
    wide = width / columns
    tall = min(max(1.6, wide * 0.5), TALLEST)
    colours = colours_of(dataset)
    lines = [*dataset.attrs["references"], dataset.attrs["diagonal"]]
    named = [*filter(None, [*(highlight or colours), *(band or {}).values(), *lines])]
    places, numbers = places_of(dataset)
    numbers = numbers and style in ("lines", "points")
    turned = not numbers and "at" not in dataset and _turned(places, wide)
    figure = canvas(width, rows * (tall + (SLANTED if turned else 0.0)) + legend_height(named, width))
    grid = figure.subplots(rows, columns, sharey=scale == "shared", squeeze=False)
    ticks = np.asarray(places, float) if numbers else np.arange(len(places), dtype=float)
    for number, ax in enumerate(grid.flat):
        if number >= len(panels):
            ax.set_visible(False)
            continue
        _bars_or_lines(ax, dataset.isel(panel=number), ticks, colours, style, band or {}, highlight, extremes)
        _print_references(ax, dataset)
        ax.set_title(for_print(panels[number]))
        if number >= len(panels) - columns:
            ax.set_xlabel(for_print(dataset.attrs["x"]))
        if not numbers and "at" not in dataset:
            _name_places(ax, places, wide)
        elif "at" not in dataset and "x" not in log and _apart(ticks, wide):
            ax.set_xticks(ticks, [f"{place:g}" for place in ticks])
        elif "at" not in dataset:
            ax.xaxis.set_major_locator(
                MaxNLocator(min(12, max(3, int(wide / TICK))), integer=bool((ticks % 1 == 0).all()), steps=[1, 2, 5, 10])
            )
            ax.xaxis.set_major_formatter("{x:g}")
        ax.yaxis.grid(True)
        for axis in (ax.xaxis if letter == "x" else ax.yaxis for letter in log):
            log_axis(axis)
            if axis is ax.yaxis and within_a_decade(dataset):
                axis.set_minor_formatter("{x:g}")
        if "x" in log and numbers:
            ax.set_xticks(ticks, [f"{place:g}" for place in ticks], minor=False)
    for row in grid:
        row[0].set_ylabel(for_print(dataset.attrs["y"]))
    legend_below(figure, grid[0, 0], width)
    finish_print(figure, title)
    return figure


def _print_references(ax, dataset: xr.Dataset) -> None:
    """The lines of one panel that are no data."""
    if words := dataset.attrs["diagonal"]:
        ax.plot(ends_of(dataset), ends_of(dataset), color=theme.MUTED, lw=0.6, ls="--", label=for_print(words))
    for (words, value), line in zip(dataset.attrs["references"].items(), cycle(("--", ":", "-."))):
        ax.axhline(value, color=theme.MUTED, lw=0.6, ls=line, label=for_print(words))


def _apart(ticks: np.ndarray, width: float) -> bool:
    """Whether a tick at every place of a panel so many inches wide leaves room for its label."""
    if len(ticks) == 1:
        return True
    labels = max(len(f"{tick:g}") for tick in ticks) + 1
    return float(np.diff(np.sort(ticks)).min() / np.ptp(ticks)) * 0.8 * width > labels * CHARACTER


def _step(places: list, width: float) -> int:
    """Of how many labels one is shown below a panel so many inches wide: every one where there are few."""
    return math.ceil(len(places) * TALLEST / width / LABELS) if len(places) > LABELS / 2 else 1


def _turned(places: list, width: float) -> bool:
    """Whether labels would touch if they were not turned."""
    labels = places[:: _step(places, width)]
    return max(map(len, labels)) * CHARACTER > 0.85 * width / len(labels)


def _name_places(ax, places: list, width: float) -> None:
    """Labels below a panel so many inches wide."""
    step = _step(places, width)
    labels = [for_print(place) for place in places[::step]]
    look = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if _turned(places, width) else {}
    ax.set_xticks(range(0, len(places), step), labels, **look)


def _bars_or_lines(
    ax,
    part: xr.Dataset,
    places: np.ndarray,
    colours: Mapping[str, str],
    style: str,
    band: Mapping[str, str],
    highlight: Sequence[str],
    extremes: Sequence[str],
) -> None:
    """Draw all series of one panel, (series, x)."""
    count = len(colours)
    inks = list(dict.fromkeys(colours.values()))
    above = np.zeros(len(places))
    below = np.zeros(len(places))
    for number, (name, colour) in enumerate(colours.items()):
        series = part.isel(series=number)
        values = shown(series, "value")
        marker = MARKERS[inks.index(colour) % len(MARKERS)]
        aside = (number - (count - 1) / 2) / count
        ends = {}
        if "low" in series:
            ends = {"yerr": np.stack(spread(series))}
        label = for_print(name) if name else None
        numbers = "at" in series or places_of(series)[1]
        beside = 0.0 if style == "lines" or numbers else 0.4 * aside
        if name in extremes and ends:
            at = places + (0.8 * aside if style == "bars" else beside)
            _print_extremes(ax, series, at, theme.INK if style == "bars" else colour)
            ends = {}
        if _has_single(series):
            single = shown(series, "points")
            at = np.repeat(_parted(places, aside) if numbers else places + beside, single.shape[1])
            ax.plot(at, single.ravel(), color=colour, ls="", marker="o", ms=2.4, mew=0, alpha=0.5)
        if style == "stacked":
            bottom = np.where(values < 0, below, above)
            ax.bar(places, values, 0.8, bottom=bottom, color=colour, label=label)
            above += np.nan_to_num(np.maximum(values, 0))
            below += np.nan_to_num(np.minimum(values, 0))
        elif style == "bars":
            ax.bar(
                places + 0.8 * aside,
                values,
                0.8 / count,
                color=colour,
                label=label,
                error_kw={"lw": 0.6, "ecolor": theme.INK},
                **ends,
            )
        elif style == "lines":
            if name in band and "low" in series:
                area = {"color": colour, "alpha": 0.15, "lw": 0, "label": for_print(band[name])}
                ax.fill_between(places, shown(series, "low"), shown(series, "high"), **area)
                ends = {}
            line = IN_PRINT[dash_of(series, name)]
            look = {"ls": line, "marker": marker, "ms": 2.6 if line == "-" else 1.6, "elinewidth": 0.6, "label": label}
            if highlight and name not in highlight:
                look |= {"lw": 0.6, "ms": 1.2, "alpha": 0.5, "label": None}
            elif highlight:
                look |= {"lw": 1.6 if highlight[0] == name else 1.2, "zorder": 3}
            ax.errorbar(places, values, color=colour, **look, **ends)
        else:
            _points(ax, series, places + beside, colour, marker, label, ends)


def _print_extremes(ax, part: xr.Dataset, places: np.ndarray, colour: str) -> None:
    """Draw the ends of the ranges of one series as small points."""
    for end in shown(part, "value") + np.stack(spread(part)) * [[-1], [1]]:
        ax.plot(places, end, color=colour, ls="", marker="o", ms=2.0, mew=0, alpha=0.7, zorder=3)


def _parted(places: np.ndarray, aside: float) -> np.ndarray:
    """Return numbered places, a little to the side so that points of several series do not cover each other."""
    return places + 0.12 * aside * np.diff(np.unique(places)).min(initial=np.inf) if len(places) > 1 else places


def _points(ax, part: xr.Dataset, places: np.ndarray, colour: str, marker: str, label: str | None, ends: dict) -> None:
    """One series of one panel, (x,), as points; those beyond what is drawn as triangles at its end."""
    values = shown(part, "value")
    places = part["at"].values if "at" in part else places
    side = np.nan_to_num(beyond(part))
    within = np.where(side == 0, values, np.nan)
    look = {} if dash_of(part, str(part["series"].item())) == "solid" else {"mfc": "none", "mew": 0.7}
    ax.errorbar(places, within, color=colour, ls="", marker=marker, ms=2.6, elinewidth=0.6, label=label, **look, **ends)
    for arrow, outside in (("v", side < 0), ("^", side > 0)):
        ax.plot(places[outside], values[outside], color=colour, ls="", marker=arrow, ms=3.2, mfc="none", mew=0.7)


CHART = Chart(on_screen, in_print)
