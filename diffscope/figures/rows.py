"""One query's row: what A1 gives each key, what λ·A2 takes away, and what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from diffscope.attention.maps import present, title_of
from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.escaping import for_html, for_print, readable, shorten, visible
from diffscope.figures.figure import Chart
from diffscope.figures.inputs import (
    any_capture,
    described,
    layer_at,
    position_of,
    visible_cells,
    window,
    window_said,
    with_readable_tokens,
)
from diffscope.figures.line_print import MARKERS
from diffscope.figures.panels import heading, labels, marked_spans, positions, span_colours
from diffscope.figures.print_layout import canvas, finish_print, finish_screen, legend_below

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

LARGEST = 4096  # keys drawn one by one
MARKS = [marker for marker in MARKERS if marker != "D"]  # of spans: diamonds are the map D


def data(cap, layer: int | None = None, head: int = 0, query: int | str = -1, keys=None) -> xr.Dataset:
    """Return A1, λ·A2 and D of one query over the keys, NaN where it does not see them; as of ``diffscope.figures.row``."""
    cap = any_capture(cap).only()
    attention = layer_at(cap, layer, head)
    (of_queries,), (of_keys,) = cap.sides(attention)
    tokens = readable(of_queries)
    query = position_of(query, len(tokens))
    columns = window(keys, len(of_keys.ids), "keys")
    if columns.stop - columns.start > LARGEST:
        raise DiffscopeError(
            f"a row of {columns.stop - columns.start} keys is too long to draw: choose keys=(start, stop) of at most {LARGEST}"
        )
    names = present(attention, ("A1", "lambda_A2", "D"))
    maps = {name: cap.map(name, attention.layer, head, queries=[query], keys=columns) for name in names}
    maps = {name: array.assign_attrs(title=title_of(name, [attention])) for name, array in maps.items()}
    lam = maps["A1"].attrs["lam"] if attention.differential else None
    if attention.d_is_a1:
        maps = {"A": maps["A1"].rename("A")}
    seen = xr.DataArray(visible_cells(attention, [query], columns)[0], dims="key")
    dataset = with_readable_tokens(xr.Dataset(maps).isel(query=0).where(seen), cap, attention)
    shown = window_said(slice(0, 1), 1, columns, len(of_keys.ids))
    about = {"query": query, "query_token": tokens[query], "window": shown, "lam": lam}
    return dataset.drop_attrs(deep=False).assign_attrs(**described(cap, attention, head), **about)


def _heading(data: xr.Dataset) -> str:
    return f"{heading(data)} · query {data.attrs['query']} “{shorten(visible(data.attrs['query_token']))}”"


def _first(data: xr.Dataset) -> str:
    """Return the name of the map whose bars point up."""
    return "A" if "A" in data.data_vars else "A1"


def on_screen(data: xr.Dataset, title: str | None = None, height: int = 260):
    """Draw for the screen; parameters as of ``diffscope.figures.row``."""
    import plotly.graph_objects as go

    keys = positions(data, "key")
    few = len(keys) <= 64
    values = {str(name): np.asarray(array.values, dtype=np.float32) for name, array in data.data_vars.items()}
    order = [name for name in (_first(data), "lambda_A2", "D") if name in values]
    hover = [f"{theme.TITLES[name].split(' ')[0]}  %{{customdata[{k}]:.4f}}" for k, name in enumerate(order)]
    common = {
        "x": keys,
        "customdata": np.stack([values[name] for name in order], axis=-1),
        "hovertemplate": "<br>".join(["key %{x}", *hover]) + "<extra></extra>",
    }
    figure = go.Figure()
    first = order[0]
    look = {"line": {"width": 0}, "color": _colour(first)}
    figure.add_bar(y=values[first], name=theme.TITLES[first], marker=look, **common)
    if "lambda_A2" in values:
        look = {"line": {"width": 0}, "color": theme.ORANGES[3]}
        figure.add_bar(y=-values["lambda_A2"], name="−λ·A₂", marker=look, **common)
    if "D" in values:
        look = {"color": theme.INK, "size": 6 if len(keys) < 80 else 3, "symbol": "diamond"}
        figure.add_trace(go.Scatter(y=values["D"], name="D", mode="markers", marker=look, **common))
    finish_screen(
        figure,
        _heading(data) if title is None else title,
        height=height,
        legend="right",
        shapes=_shading(data),
        barmode="relative",
        bargap=0.15 if few else 0,
        xaxis=_key_axis(data, few),
        yaxis=theme.screen_axis(
            zeroline=True, zerolinecolor=theme.MUTED, zerolinewidth=1, showgrid=True, gridcolor="#eef0f3", tickformat="~g"
        ),
    )
    return figure


def _colour(name: str) -> str:
    return theme.BLUES[4] if name == "A1" else theme.BLUES[6]


def _key_axis(data: xr.Dataset, few: bool) -> dict:
    """Return an axis whose labels are tokens; of few keys every one."""
    keys = positions(data, "key")
    names = {str(key): f"{for_html(shorten(token))} {key}" for key, token in zip(keys, labels(data, "key"), strict=True)}
    axis = theme.screen_axis(range=[keys[0] - 0.6, keys[-1] + 0.6], tickformat="d", labelalias=names)
    if few:
        axis |= {"dtick": 1, "tickangle": -90, "tickfont": {"size": 10, "color": theme.INK}}
    return axis


def _shading(data: xr.Dataset) -> list[dict]:
    """Return shapes that mark the keys of each span with its colour."""
    look = {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "opacity": 0.13,
        "line": {"width": 0},
    }
    colours = span_colours(data)
    return [
        look | {"x0": start - 0.5, "x1": stop - 0.5, "fillcolor": colours[name]}
        for name, pieces in marked_spans(data).items()
        for start, stop in pieces
    ]


def in_print(data: xr.Dataset, width: float, title: str | None = None):
    """Draw for print; parameters as of ``diffscope.figures.row``."""
    from matplotlib.ticker import MaxNLocator

    keys = positions(data, "key")
    few = len(keys) <= 100
    figure = canvas(width, 1.9)
    ax = figure.subplots()
    bar = 0.84 if few else 1.0
    first = _first(data)
    drawn = [(ax.bar(keys, data[first].values, width=bar, color=_colour(first), label=theme.TITLES[first]), theme.TITLES[first])]
    if "lambda_A2" in data.data_vars:
        second = -data["lambda_A2"].values
        on_first = np.where(second > 0, data[first].values, 0.0)  # of a negative λ both are above 0
        drawn.append((ax.bar(keys, second, bottom=on_first, width=bar, color=theme.ORANGES[3], label="−λ·A₂"), "−λ·A₂"))
    if "D" in data.data_vars:
        look = {"ls": "none", "marker": "D", "ms": 2.2 if few else 1.2, "color": theme.INK, "mew": 0}
        drawn.append((*ax.plot(keys, data["D"].values, label="D", **look), "D"))
    ax.axhline(0, color=theme.MUTED, lw=0.5)
    drawn += _shade(ax, data)
    ax.set_xlim(keys[0] - 0.6, keys[-1] + 0.6)
    if len(keys) * 6.4 <= (width - 0.5) * 72:
        ax.set_xticks(keys, [for_print(shorten(text, 10)) for text in labels(data, "key")], rotation=90)
        ax.tick_params(axis="x", length=0)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        ax.set_xlabel("key position")
    ax.set_ylabel("weight")
    handles, names = map(list, zip(*drawn))
    legend_below(figure, handles, names, width)
    finish_print(figure, _heading(data) if title is None else title)
    return figure


def _shade(ax, data: xr.Dataset) -> list[tuple[Line2D, str]]:
    """Draw the keys of each span in view on its colour below its marker, and return the markers with the names of the spans."""
    keys = positions(data, "key")
    drawn: list[tuple[Line2D, str]] = []
    colours = span_colours(data)
    for name, pieces in marked_spans(data).items():
        seen = [(start, stop) for start, stop in pieces if stop > keys[0] and start <= keys[-1]]
        for start, stop in seen:
            ax.axvspan(start - 0.5, stop - 0.5, color=colours[name], alpha=0.13, lw=0, zorder=0.3)
        if seen:
            middles = [np.clip((start + stop - 1) / 2, keys[0], keys[-1]) for start, stop in seen]
            look = {
                "marker": MARKS[len(drawn) % len(MARKS)],
                "ms": 3,
                "mew": 0,
                "color": colours[name],
                "ls": "none",
            }
            place = {"transform": ax.get_xaxis_transform(), "clip_on": False}
            drawn.append((*ax.plot(middles, np.full(len(middles), 1.0), **look, **place), for_print(name)))
    return drawn


CHART = Chart(on_screen, in_print)
