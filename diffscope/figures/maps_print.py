"""The maps of one head for paper: rasterised images, vector text, as wide as the venue says."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from diffscope.figures import theme
from diffscope.figures.escaping import for_print, shorten
from diffscope.figures.panels import (
    edges,
    end_label,
    heading,
    labels,
    marked_spans,
    panels,
    positions,
    span_colours,
    spans_in_view,
)
from diffscope.figures.pixels import pixels
from diffscope.figures.print_layout import canvas, trim

NARROW = 4.5  # inches below which four maps go two by two
READABLE = 5.0  # points a token's label takes at least where not every token has one
SMALLEST = 4.2  # points at which every token still has its label
LARGEST = 6.5  # points of a label
SPARSE = 4  # tokens for each of which one is named, above which positions say more
MARGIN = 0.45  # inches that labels of queries take, once for all maps of a row
LONGEST = 9  # characters of a label
BESIDE = 2.4  # points from a map to the lines of its spans


def draw(
    data: xr.Dataset,
    width: float,
    contrast: str = "linear",
    scale: str = "shared",
    limit: float | str | None = None,
    title: str | None = None,
):
    """Draw for print; parameters as of ``diffscope.figures.maps``."""
    shown = panels(data, scale, limit)
    columns = _columns(data, len(shown), width)
    lines = -(-len(shown) // columns)
    figure = canvas(width, width / columns * lines + 0.9, w_pad=0.03)
    axes = figure.subplots(lines, columns, squeeze=False)
    room = _room(data, width, columns)
    for i, panel in enumerate(shown):
        ax = axes[i // columns][i % columns]
        _image(ax, data, panel, contrast)
        _ticks(ax, data, room, first=i % columns == 0, last=i + columns >= len(shown))
    for ax in axes.flat[len(shown) :]:
        ax.set_visible(False)
    spans, *_ = [_mark_spans(ax, data) for ax in axes.flat[: len(shown)]]
    _legend(figure, spans, not bool(data["visible"].all()))
    line = heading(data) if title is None else title
    if line:
        figure.suptitle(for_print(line), x=0.01, ha="left")
    trim(figure, axes)
    return figure


def _image(ax, data, panel, contrast):
    left, right = edges(data, "key")
    top, bottom = edges(data, "query")
    aspect = "equal" if 0.4 < (right - left) / (bottom - top) < 2.5 else "auto"
    levels = pixels(panel.values, panel.limits[1], contrast).values()  # as many as a file's palette has, which halves it
    image = ax.imshow(
        np.where(np.isnan(panel.values), np.nan, levels),
        cmap=theme.colour_map(panel.kind, contrast),
        vmin=panel.limits[0],
        vmax=panel.limits[1],
        extent=(left, right, bottom, top),
        interpolation="nearest",
        aspect=aspect,
        rasterized=True,
    )
    ax.spines[:].set_visible(True)
    ax.spines[:].set_color(theme.RULE)
    bar = ax.figure.colorbar(image, ax=ax, location="top", fraction=0.04, pad=0.06, aspect=36, shrink=0.9)
    low, high = panel.limits
    ticks = {low: "left", 0: "center", high: "right"} if low < 0 else {0: "left", high: "right"}
    bar.set_ticks(list(ticks))
    bar.set_ticklabels([end_label(tick, panel) for tick in ticks])
    for label, side in zip(bar.ax.get_xticklabels(), ticks.values(), strict=True):
        label.set_ha(side)
    bar.ax.tick_params(length=1.5, pad=1)
    bar.outline.set_visible(False)
    bar.ax.set_title(for_print(panel.title), pad=3)


def _columns(data: xr.Dataset, count: int, width: float) -> int:
    """Return how many maps stand beside each other: fewer where that lets every token keep its name."""
    usual = min(count, 2 if width < NARROW else 4)
    fits = [columns for columns in (usual, 2) if columns <= usual and _room(data, width, columns) >= SMALLEST]
    return fits[0] if fits else usual


def _room(data: xr.Dataset, width: float, columns: int) -> float:
    """Return how many points the name of each token has; none for bins of tokens."""
    inches = (width - MARGIN) / columns - 0.08
    return inches * 72 / max(data.sizes["query"], data.sizes["key"]) if data.attrs.get("bin", 1) == 1 else 0.0


def _ticks(ax, data: xr.Dataset, room: float, first: bool, last: bool):
    from matplotlib.ticker import MaxNLocator

    ax.tick_params(length=0, pad=4)  # the marks of spans lie where ticks would be
    ax.tick_params(axis="x", pad=2)
    if room * SPARSE >= READABLE:
        for dim, axis, turned in (("key", ax.xaxis, 90), ("query", ax.yaxis, 0)):
            places = _named(data, dim, room)
            names = labels(data, dim)
            at = positions(data, dim)[places]
            axis.set_ticks(at, [for_print(shorten(names[place], LONGEST)) for place in places], rotation=turned)
            axis.set_tick_params(labelsize=min(max(room, READABLE) if len(places) < len(names) else room, LARGEST))
            if len(places) < len(names):
                axis.set_tick_params(length=1.5)  # which token it is
    else:
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=2))
        if last:
            ax.set_xlabel("key", labelpad=1)
        if first:
            ax.set_ylabel("query", labelpad=1)
    ax.tick_params(labelleft=first, labelbottom=last)


def _named(data: xr.Dataset, dim: str, room: float) -> list[int]:
    """Return which tokens have a name on an axis: all, or as many as can be read, those of spans and the ends first."""
    count = data.sizes[dim]
    if room >= SMALLEST:
        return list(range(count))
    apart = math.ceil(READABLE / room)
    at = {position: place for place, position in enumerate(positions(data, dim).tolist())}
    starts = [at[start] for pieces in marked_spans(data).values() for start, _ in pieces if start in at]
    places: list[int] = []
    for place in [*starts, count - 1, *range(0, count, apart), *range(count)]:
        if all(abs(place - other) >= apart for other in places):
            places.append(place)
    return sorted(places)


def _mark_spans(ax, data: xr.Dataset) -> dict[str, str]:
    """Draw spans as thin lines on the upper and left edge, and return the colours of those in view."""
    from matplotlib.transforms import ScaledTranslation

    colours = span_colours(data)
    in_view = {}
    points = ax.figure.dpi_scale_trans  # however large the map is, the lines lie between it and the names of its tokens
    above = ax.get_xaxis_transform() + ScaledTranslation(0, BESIDE / 72, points)
    beside = ax.get_yaxis_transform() + ScaledTranslation(-BESIDE / 72, 0, points)
    for name, dim, first, last in spans_in_view(data):
        in_view[name] = colours[name]
        look = {"color": colours[name], "lw": 1.8, "clip_on": False, "solid_capstyle": "butt"}
        if dim == "key":
            ax.plot([first, last], [1, 1], transform=above, **look)
        else:
            ax.plot([0, 0], [first, last], transform=beside, **look)
    return in_view


def _legend(figure, spans: dict[str, str], hides: bool):
    """Name the spans, and say what grey is if the maps hide any cell."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [Line2D([], [], color=colour, lw=1.8, label=for_print(name)) for name, colour in spans.items()]
    if hides:
        handles.append(Patch(facecolor=theme.UNSEEN, edgecolor=theme.RULE, lw=0.4, label="not visible to the query"))
    if not handles:
        return
    figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=len(handles),
        columnspacing=1.2,
        handletextpad=0.5,
        borderaxespad=0.2,
    )
