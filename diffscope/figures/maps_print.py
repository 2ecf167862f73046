"""The maps of one head for paper: rasterised images, vector text, as wide as the venue says."""

from __future__ import annotations

import xarray as xr

from diffscope.figures import theme
from diffscope.figures.canvas import canvas, trim
from diffscope.figures.escaping import for_print, shorten
from diffscope.figures.panels import edges, heading, labels, panels, positions, spans_in_view

NARROW = 4.5  # inches below which four maps go two by two
SMALLEST = 5.0  # points: token labels smaller than this are left out


def draw(data: xr.Dataset, width: float, contrast: str = "sqrt", scale: str = "shared", title: str | None = None):
    """The drawing for print; parameters as of ``diffscope.figures.maps``."""
    shown = panels(data, scale)
    columns = min(len(shown), 2 if width < NARROW else 4)
    lines = -(-len(shown) // columns)
    figure = canvas(width, width / columns * lines + 0.9)
    axes = figure.subplots(lines, columns, squeeze=False)
    room = _room_for_tokens(data, width / columns)
    for i, panel in enumerate(shown):
        ax = axes[i // columns][i % columns]
        _image(ax, data, panel, contrast)
        _ticks(ax, data, room, first=i % columns == 0, last=i + columns >= len(shown))
    for ax in axes.flat[len(shown) :]:
        ax.set_visible(False)
    names, *_ = [_mark_spans(ax, data) for ax in axes.flat[: len(shown)]]
    _legend(figure, names)
    line = heading(data) if title is None else title
    if line:
        figure.suptitle(for_print(line), x=0.01, ha="left")
    trim(figure, axes)
    return figure


def _image(ax, data, panel, contrast):
    left, right = edges(data, "key")
    top, bottom = edges(data, "query")
    aspect = "equal" if 0.4 < (right - left) / (bottom - top) < 2.5 else "auto"
    image = ax.imshow(
        panel.values,
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
    bar = ax.figure.colorbar(image, ax=ax, location="top", fraction=0.04, pad=0.06, aspect=40)
    low, high = panel.limits
    ticks = {low: "left", 0: "center", high: "right"} if low < 0 else {0: "left", high: "right"}
    bar.set_ticks(list(ticks))
    bar.set_ticklabels([_number(tick) for tick in ticks])
    for label, side in zip(bar.ax.get_xticklabels(), ticks.values(), strict=True):
        label.set_ha(side)
    bar.ax.tick_params(length=1.5, pad=1)
    bar.outline.set_visible(False)
    bar.ax.set_title(for_print(panel.title), pad=3)


def _room_for_tokens(data, inches: float) -> float | None:
    """Points there are for each token's label, or None where a label at every token could not be read."""
    room = (inches - 0.32) * 72
    room_each = room / max(data.sizes["query"], data.sizes["key"])
    return room_each if data.attrs.get("bin", 1) == 1 and room_each >= SMALLEST else None


def _ticks(ax, data, room: float | None, first: bool, last: bool):
    from matplotlib.ticker import MaxNLocator

    ax.tick_params(length=0, pad=4)  # the marks of spans lie where ticks would be
    if room is not None:
        size = min(room, 6.5)
        texts = {dim: [for_print(shorten(text, 9)) for text in labels(data, dim)] for dim in ("query", "key")}
        ax.set_xticks(positions(data, "key"), texts["key"], rotation=90, fontsize=size)
        ax.set_yticks(positions(data, "query"), texts["query"], fontsize=size)
        ax.tick_params(axis="x", pad=2)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=2))
        ax.yaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=2))
        ax.tick_params(axis="x", pad=2)
        if last:
            ax.set_xlabel("key", labelpad=1)
        if first:
            ax.set_ylabel("query", labelpad=1)
    ax.tick_params(labelleft=first, labelbottom=last or room is not None)


def _mark_spans(ax, data: xr.Dataset) -> list[str]:
    """Thin lines on the upper and left edge; the names of the spans that are in view."""
    names = []
    for name, dim, first, last in spans_in_view(data):
        names.append(name)
        look = {"color": theme.span_colour(name), "lw": 1.8, "clip_on": False, "solid_capstyle": "butt"}
        if dim == "key":
            ax.plot([first, last], [1.02, 1.02], transform=ax.get_xaxis_transform(), **look)
        else:
            ax.plot([-0.02, -0.02], [first, last], transform=ax.get_yaxis_transform(), **look)
    return list(dict.fromkeys(names))


def _legend(figure, names: list[str]):
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [Line2D([], [], color=theme.span_colour(name), lw=1.8, label=for_print(name)) for name in names]
    handles.append(Patch(facecolor=theme.UNSEEN, edgecolor=theme.RULE, lw=0.4, label="not visible to the query"))
    figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=len(handles),
        columnspacing=1.2,
        handletextpad=0.5,
        borderaxespad=0.2,
    )


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}".replace("-", "−")
