"""One query's row: what A1 gives each key, what λ·A2 takes away, and what is left."""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.attention.maps import present
from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.base import register
from diffscope.figures.canvas import canvas, settle
from diffscope.figures.escaping import for_html, for_print, shorten, visible
from diffscope.figures.panels import heading, labels, marked_spans, positions
from diffscope.figures.selection import check_place, described, layer_numbers, layer_of, of_prompt, window

LARGEST = 4096  # keys drawn one by one


def data(cap, layer: int | None = None, head: int = 0, query: int = -1, prompt: int = 0, keys=None) -> xr.Dataset:
    """A1, λ·A2 and D of one query over the keys, exactly as the capture gives them."""
    layer = layer_numbers(cap)[0] if layer is None else layer
    check_place(cap, layer, head)
    tokens = of_prompt(cap.tokens, prompt)
    n = len(tokens)
    if not -n <= query < n:
        raise DiffscopeError(f"there is no token {query}: the prompt has {n}")
    query = query % n
    columns = window(keys, n, "keys")
    if columns.stop - columns.start > LARGEST:
        raise DiffscopeError(
            f"a row of {columns.stop - columns.start} keys is too long to draw: choose keys=(start, stop) of at most {LARGEST}"
        )
    found = layer_of(cap, layer, prompt)
    names = present(found, ("A1", "lambda_A2", "D"))
    made = {
        name: cap.map(name, layer=layer, head=head, prompt=prompt, queries=slice(query, query + 1), keys=columns)
        for name in names
    }
    first = names[0]
    if names == ("A1",):
        made, first = {"A": made["A1"].rename("A")}, "A"
    together = xr.Dataset(made).isel(query=0)
    together.attrs = {
        "figure": "row",
        **described(cap, layer, head, prompt),
        "query": query,
        "query_token": tokens[query],
        "lam": made[first].attrs.get("lam") if found.differential else None,
    }
    return together


def _heading(data: xr.Dataset) -> str:
    return f"{heading(data)} · query {data.attrs['query']} “{shorten(visible(data.attrs['query_token']))}”"


def on_screen(data: xr.Dataset, title: str | None = None, height: int = 260, **_):
    import plotly.graph_objects as go

    there = positions(data, "key")
    tokens = [for_html(shorten(text)) for text in labels(data, "key")]
    values = {str(name): np.asarray(array.values, dtype=np.float32) for name, array in data.data_vars.items()}
    made = go.Figure()
    marker = {"line": {"width": 0}}
    first = "A" if "A" in values else "A1"
    order = [name for name in (first, "lambda_A2", "D") if name in values]
    every = np.stack([values[name] for name in order], axis=-1)
    hover = (
        "key %{x}<br>"
        + "<br>".join(f"{theme.TITLES[name].split(' ')[0]}  %{{customdata[{k}]:.4f}}" for k, name in enumerate(order))
        + "<extra></extra>"
    )
    made.add_bar(
        x=there,
        y=values[first],
        name=theme.TITLES[first],
        customdata=every,
        hovertemplate=hover,
        marker={**marker, "color": theme.BLUES[4] if first == "A1" else theme.BLUES[6]},
    )
    if "lambda_A2" in values:
        made.add_bar(
            x=there,
            y=-values["lambda_A2"],
            name="−λ·A₂",
            customdata=every,
            hovertemplate=hover,
            marker={**marker, "color": theme.ORANGES[3]},
        )
    if "D" in values:
        made.add_trace(
            go.Scatter(
                x=there,
                y=values["D"],
                name="D",
                mode="markers",
                customdata=every,
                hovertemplate=hover,
                marker={"color": theme.INK, "size": 6 if len(there) < 80 else 3, "symbol": "diamond"},
            )
        )
    few = len(there) <= 64
    axis = theme.screen_axis(
        range=[there[0] - 0.6, there[-1] + 0.6],
        tickformat="d",
        labelalias={str(p): f"{token} {p}" for p, token in zip(there, tokens, strict=True)},
    )
    if few:
        axis |= {"dtick": 1, "tickangle": -90, "tickfont": {"size": 10, "color": theme.INK}}
    shapes = [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": a - 0.5,
            "x1": b - 0.5,
            "y0": 0,
            "y1": 1,
            "layer": "below",
            "fillcolor": theme.span_colour(name),
            "opacity": 0.13,
            "line": {"width": 0},
        }
        for name, where in marked_spans(data).items()
        for a, b in where
    ]
    line = _heading(data) if title is None else title
    made.update_layout(
        **theme.screen_layout(
            height=height,
            barmode="relative",
            bargap=0.15 if few else 0,
            shapes=shapes,
            xaxis=axis,
            hovermode="closest",
            yaxis=theme.screen_axis(
                zeroline=True,
                zerolinecolor=theme.MUTED,
                zerolinewidth=1,
                showgrid=True,
                gridcolor="#eef0f3",
                tickformat=".2~f",
            ),
            margin={"l": 8, "r": 8, "t": 46 if line else 26, "b": 8},
            legend={
                "orientation": "h",
                "x": 1,
                "xanchor": "right",
                "y": 1.02,
                "yanchor": "bottom",
                "font": {"size": 11},
            },
        )
    )
    if line:
        made.update_layout(title={"text": for_html(line), "x": 0, "y": 0.98, "yanchor": "top", "font": {"size": 13}})
    return made


def in_print(data: xr.Dataset, width: float, title: str | None = None, **_):
    from matplotlib.ticker import MaxNLocator

    there = positions(data, "key")
    made = canvas(width, 1.9)
    ax = made.subplots()
    single = "A" in data.data_vars
    first = "A" if single else "A1"
    edge = 0.42 if len(there) <= 100 else 0.5
    ax.bar(there, data[first].values, width=2 * edge, color=theme.BLUES[6 if single else 4], label=theme.TITLES[first])
    if "lambda_A2" in data.data_vars:
        ax.bar(there, -data["lambda_A2"].values, width=2 * edge, color=theme.ORANGES[3], label="−λ·A₂")
    if "D" in data.data_vars:
        ax.plot(
            there,
            data["D"].values,
            ls="none",
            marker="D",
            ms=2.2 if len(there) <= 100 else 1.2,
            color=theme.INK,
            label="D",
            mew=0,
        )
    ax.axhline(0, color=theme.MUTED, lw=0.5)
    names = []
    for name, where in marked_spans(data).items():
        for a, b in where:
            if b > there[0] and a <= there[-1]:
                ax.axvspan(
                    a - 0.5,
                    b - 0.5,
                    color=theme.span_colour(name),
                    alpha=0.13,
                    lw=0,
                    zorder=0.3,
                    label=None if name in names else for_print(name),
                )
                names.append(name)
    ax.set_xlim(there[0] - 0.6, there[-1] + 0.6)
    if len(there) * 6.4 <= (width - 0.5) * 72:
        ax.set_xticks(there, [for_print(shorten(text, 10)) for text in labels(data, "key")], rotation=90)
        ax.tick_params(axis="x", length=0)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        ax.set_xlabel("key position")
    ax.set_ylabel("weight")
    line = _heading(data) if title is None else title
    if line:
        made.suptitle(for_print(line), x=0.01, ha="left")
    handles = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    shown = [label for label in (theme.TITLES[first], "−λ·A₂", "D", *dict.fromkeys(names)) if label in handles]
    made.legend(
        [handles[label] for label in shown],
        shown,
        loc="outside lower left",
        ncols=len(shown),
        columnspacing=1.2,
        handletextpad=0.5,
    )
    settle(made)
    return made


register("row", "one query's row: A1 up, λ·A2 down, D as points", data=data, plotly=on_screen, matplotlib=in_print)
