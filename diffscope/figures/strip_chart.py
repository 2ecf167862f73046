"""Single values beside each other: at every place along one dimension a strip of points for each label of another."""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.escaping import for_html, for_print
from diffscope.figures.figure import Chart
from diffscope.figures.labelled import along_title, by_role, in_roles, values_title
from diffscope.figures.line_data import colours_of
from diffscope.figures.line_print import MARKERS
from diffscope.figures.line_screen import SYMBOLS
from diffscope.figures.print_layout import canvas, finish_print, finish_screen, legend_below

ROLES = ("series", "x", "point")
STRIP = 0.42  # from one strip to the next, where 1 is from one place to the next
POINTS = 0.22  # from the first to the last point of a strip
ROOM = 0.84  # that the strips of one place take: more than two are closer to each other, and narrower


def data(values: xr.DataArray, x: str, series: str, points: str, joined: bool = False) -> xr.Dataset:
    """Return values (series, x, point), and where each stands; parameters as of ``diffscope.figures.strips``."""
    chosen = by_role(values, {"x": x, "series": series, "point": points})
    drawn = in_roles(values, chosen, ROLES).dropna("x", how="all")
    if not drawn.size:
        raise DiffscopeError("there is nothing to draw: every value is undefined")
    strips, places, each = (np.arange(size) for size in drawn.shape)
    step = min(STRIP, ROOM / len(strips))
    middle = (strips - strips.mean()) * step
    within = (each - each.mean()) * POINTS * step / STRIP / max(1, len(each) - 1)
    at = places[None, :, None] + middle[:, None, None] + within  # (series, x, point)
    about = {
        "model": str(values.attrs.get("model", "")),
        "x": along_title(values, x),
        "point": along_title(values, points),
        "y": values_title(values),
        "joined": int(joined),
    }
    if drawn["series"].dtype.kind in "if":  # a number alone says nothing in a legend
        drawn = drawn.assign_coords(series=[f"{along_title(values, series)} {label:g}" for label in drawn["series"].values])
    return xr.Dataset({"value": drawn, "at": (ROLES, at)}).drop_attrs().assign_attrs(about)


def _lines(dataset: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return lines from each point of a strip to the same of the next: both ends and a gap, (3 · lines,) along each axis."""
    ends = []
    for name in ("at", "value"):
        values = dataset[name].values
        gaps = np.full(values[1:].shape, np.nan)
        ends.append(np.stack([values[:-1], values[1:], gaps], -1).reshape(-1))
    return ends[0], ends[1]


def _signed(dataset: xr.Dataset) -> bool:
    """Return whether values lie on both sides of 0, so that a line there tells them apart."""
    return bool(dataset["value"].min() < 0 < dataset["value"].max())


def on_screen(dataset: xr.Dataset, title: str | None = None, height: int = 280):
    """Draw for the screen."""
    import plotly.graph_objects as go

    figure = go.Figure()
    if dataset.attrs["joined"]:
        at, ends = _lines(dataset)
        look = {"color": theme.RULE, "width": 1}
        figure.add_trace(go.Scatter(x=at, y=ends, mode="lines", line=look, hoverinfo="skip", showlegend=False))
    place, point = (for_html(dataset.attrs[name]) for name in ("x", "point"))
    for number, (name, colour) in enumerate(colours_of(dataset).items()):
        strip = dataset.isel(series=number).stack(cell=("x", "point")).dropna("cell")
        marker = {"color": colour, "size": 7, "opacity": 0.85, "symbol": SYMBOLS[number % len(SYMBOLS)]}
        words = f"{for_html(name)}<br>{place} %{{customdata[0]}}, {point} %{{customdata[1]}}<br><b>%{{y:.4g}}</b><extra></extra>"
        labels = np.array([[for_html(str(label)) for label in cell] for cell in strip["cell"].values.tolist()]).reshape(-1, 2)
        look = {"marker": marker, "customdata": labels, "hovertemplate": words}
        figure.add_trace(go.Scatter(x=strip["at"].values, y=strip["value"].values, mode="markers", name=for_html(name), **look))
    ticks = {"tickmode": "array", "tickvals": list(range(dataset.sizes["x"]))}
    names = [for_html(str(label)) for label in dataset["x"].values]
    xaxis = theme.screen_axis(title_text=place, ticktext=names, range=[-0.6, dataset.sizes["x"] - 0.4], **ticks)
    yaxis = theme.screen_axis(title_text=for_html(dataset.attrs["y"]), showgrid=True, gridcolor=theme.UNSEEN)
    if _signed(dataset):
        yaxis |= {"zeroline": True, "zerolinecolor": theme.MUTED, "zerolinewidth": 1}
    clear = "rgba(0,0,0,0)"
    finish_screen(figure, title or "", height=height, legend="left", xaxis=xaxis, yaxis=yaxis, plot_bgcolor=clear)
    return figure


def in_print(dataset: xr.Dataset, width: float, title: str | None = None):
    """Draw for print."""
    figure = canvas(width, max(1.8, width * 0.45))
    ax = figure.subplots()
    if _signed(dataset):
        ax.axhline(0, color=theme.MUTED, lw=0.5, zorder=1)
    if dataset.attrs["joined"]:
        ax.plot(*_lines(dataset), color=theme.RULE, lw=0.5, zorder=1)
    drawn = []  # also of labels that begin with "_", which matplotlib leaves out
    colours = colours_of(dataset)
    for number, colour in enumerate(colours.values()):
        strip = dataset.isel(series=number)
        marker = MARKERS[number % len(MARKERS)]
        look = {"s": 8, "c": colour, "marker": marker, "lw": 0, "zorder": 2}
        drawn.append(ax.scatter(strip["at"].values, strip["value"].values, **look))
    ax.set_xticks(range(dataset.sizes["x"]), [for_print(str(label)) for label in dataset["x"].values])
    ax.set_xlabel(for_print(dataset.attrs["x"]))
    ax.set_ylabel(for_print(dataset.attrs["y"]))
    ax.yaxis.grid(True)
    legend_below(figure, drawn, [for_print(name) for name in colours], width)
    finish_print(figure, title)
    return figure


CHART = Chart(on_screen, in_print)
