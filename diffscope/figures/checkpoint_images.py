"""One head's map at every checkpoint of a training: small pictures side by side, on one scale."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from diffscope.capture.capture import Capture
from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.escaping import for_print, short_name
from diffscope.figures.figure import Chart
from diffscope.figures.inputs import layer_at
from diffscope.figures.print_layout import canvas, finish_print, screen_bar, screen_title

SIZE = 64  # bins a side
IN_A_ROW = 8  # pictures
SIDE = 150  # pixels a picture is high on the screen


def data(
    captures: Mapping[int, Capture], layer: int | None = None, head: int = 0, name: str = "D", size: int = SIZE
) -> xr.Dataset:
    """Return the map (step, query, key) of one head, NaN if a query does not see a key; parameters as of the figure."""
    if not (isinstance(captures, Mapping) and captures and all(isinstance(cap, Capture) for cap in captures.values())):
        raise DiffscopeError("this figure is of captures of one prompt by step of training, such as {0: …, 400: …}")
    steps = sorted(captures)
    if len({tuple(captures[step].ids) for step in steps}) > 1:
        raise DiffscopeError("these captures are of different prompts; their maps cannot be compared step by step")
    attention = layer_at(captures[steps[-1]], layer, head)
    drawn = name if attention.differential else "A1"
    maps = [captures[step].pooled_maps(attention.layer, [head], size=size, names=[drawn])[drawn].isel(head=0) for step in steps]
    seen = [each.where(each["visible"]).reset_coords(drop=True) for each in maps]
    index = xr.Variable("step", steps, {"long_name": "step of training", "units": "steps"})
    together = xr.concat(seen, xr.DataArray(index, name="step", dims="step"), combine_attrs="drop")
    shown = drawn if attention.differential else "A"
    about = {
        "model": captures[steps[-1]].model_name.partition("@")[0],
        "n_tokens": captures[steps[-1]].n_tokens,
        "layer": attention.layer,
        "head": head,
        "bin": maps[0].attrs["bin"],
    }
    return together.rename("map").to_dataset().assign_attrs(map=shown, **about)


def _limits(data: xr.Dataset) -> tuple[str, float, float]:
    """Return the scale of the colours and its ends, the same for all pictures."""
    kind = theme.scale_of(data.attrs["map"], data["map"].values)
    return kind, *theme.colour_limits(kind, float(np.nanmax(np.abs(data["map"].values), initial=0.0)))


def heading(data: xr.Dataset) -> str:
    """Return one line that says what is seen."""
    attrs = data.attrs
    title = theme.TITLES[attrs["map"]].partition(" = ")[0]
    parts = [title, short_name(attrs["model"].partition("@")[0]), f"layer {attrs['layer']}", f"head {attrs['head']}"]
    return " · ".join([*parts, *([f"largest |value| of each {attrs['bin']} × {attrs['bin']}"] if attrs["bin"] > 1 else [])])


def on_screen(data: xr.Dataset, title: str | None = None, contrast: str = "sqrt"):
    """Draw for the screen; the pictures are square at any width.

    A click selects one, with its step as what plotly calls custom data: an invisible point lies on each, because only points can
    be selected.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    steps = data["step"].values.tolist()
    columns = min(len(steps), IN_A_ROW)
    rows = -(-len(steps) // columns)
    titles = [f"step {step}" for step in steps]
    figure = make_subplots(rows, columns, subplot_titles=titles, horizontal_spacing=0.012, vertical_spacing=0.16 / rows)
    kind, low, high = _limits(data)
    keys, queries = (data[dim].values for dim in ("key", "query"))
    for number, step in enumerate(steps):
        values = data["map"].sel(step=step).transpose("query", "key").values
        place = number // columns + 1, number % columns + 1
        figure.add_trace(go.Heatmap(z=values, x=keys, y=queries, coloraxis="coloraxis", hoverinfo="skip"), *place)
        figure.add_trace(_point(step, float(keys[len(keys) // 2]), float(queries[len(queries) // 2])), *place)
    hidden = {"showticklabels": False, "ticks": "", "showgrid": False, "zeroline": False, "showline": False}
    half = data.attrs["bin"] / 2
    figure.update_xaxes(**hidden, range=[keys[0] - half, keys[-1] + half], constrain="domain")
    figure.update_yaxes(**hidden, range=[queries[-1] + half, queries[0] - half], constrain="domain", constraintoward="top")
    for number in range(len(steps)):
        axis = "" if number == 0 else str(number + 1)
        figure.update_layout({f"yaxis{axis}": {"scaleanchor": f"x{axis}"}})
    scale = [[place, colour] for place, colour in theme.colour_scale(kind, contrast)]
    layout = theme.screen_layout(
        height=62 + rows * (SIDE + 24),
        margin={"l": 8, "r": 8, "t": 54, "b": 8},
        plot_bgcolor=theme.UNSEEN,
        dragmode=False,
        showlegend=False,
        coloraxis={"cmin": low, "cmax": high, "colorscale": scale, "colorbar": screen_bar()},
        title=screen_title(heading(data) if title is None else title),
    )
    figure.update_layout(**layout)
    figure.update_annotations(font={"size": 11, "color": theme.MUTED})
    return figure


def _point(step: int, x: float, y: float):
    """Return an invisible point that covers a picture."""
    import plotly.graph_objects as go

    unseen = {"marker": {"opacity": 0}}
    return go.Scatter(
        x=[x],
        y=[y],
        mode="markers",
        customdata=[step],
        hovertemplate=f"step {step}<extra></extra>",
        marker={"symbol": "square", "size": SIDE, "opacity": 0, "color": theme.INK},
        selected=unseen,
        unselected=unseen,
    )


def in_print(data: xr.Dataset, width: float, title: str | None = None, contrast: str = "sqrt"):
    """Draw for print."""
    steps = data["step"].values.tolist()
    columns = min(len(steps), IN_A_ROW)
    rows = -(-len(steps) // columns)
    figure = canvas(width, rows * (width / columns + 0.2) + 0.3)
    kind, low, high = _limits(data)
    axes = figure.subplots(rows, columns, squeeze=False)
    for number, ax in enumerate(axes.flat):
        if number >= len(steps):
            ax.set_visible(False)
            continue
        values = data["map"].sel(step=steps[number]).transpose("query", "key").values
        colours = theme.colour_map(kind, contrast)
        image = ax.imshow(values, cmap=colours, vmin=low, vmax=high, interpolation="nearest", rasterized=True)
        ax.set_title(for_print(f"step {steps[number]}"))
        ax.set_xticks([])
        ax.set_yticks([])
    bar = figure.colorbar(image, ax=axes, fraction=0.02, pad=0.01)
    bar.outline.set_visible(False)
    finish_print(figure, heading(data) if title is None else title)
    return figure


CHART = Chart(on_screen, in_print)
