"""One map of many heads as small pictures on one scale: a row a layer, a column a head; of several models side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import xarray as xr

from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import present
from diffscope.capture.capture import Capture
from diffscope.errors import DiffscopeError, check_index
from diffscope.figures import theme
from diffscope.figures.escaping import for_html, for_print, short_name
from diffscope.figures.figure import Chart
from diffscope.figures.inputs import edited, visible_cells, window
from diffscope.figures.print_layout import canvas, lines_of, screen_bar, screen_title

Choice = Sequence[int] | Literal["all"] | None
SIZE = 64  # bins a side
LEAST = 0.14  # inches a picture is wide at least
GAP = 0.08  # between pictures, of their width
BETWEEN = 0.5  # between models, of a picture's width
SIDE = 120  # pixels a picture is wide at most on the screen
LETTER = 0.056  # inches of a letter of the line above
NAMED = 0.42  # inches from which a picture has "head" above it beside the number


def data(
    captures: Mapping[str, Capture],
    layers: Choice = None,
    heads: Choice = None,
    name: str = "D",
    queries=None,
    keys=None,
    size: int = SIZE,
) -> xr.Dataset:
    """Return the map (model, layer, head, query, key), NaN where a query does not see a key or a model has no such head.

    Parameters are as of ``diffscope.figures.maps``; of standard attention it is the one map that there is.
    """
    lengths = {cap.n_tokens for cap in captures.values()}
    if len(lengths) > 1:
        raise DiffscopeError(f"these captures are of prompts of {_listed(lengths)} tokens; a grid is of one prompt")
    of_models = [_of_model(cap, layers, heads, name, queries, keys, size) for cap in captures.values()]
    models = xr.DataArray(list(captures), dims="model", name="model")
    maps = xr.concat(of_models, models, join="outer", combine_attrs="drop")
    one_map = [not cap.differential for cap in captures.values()]
    drawn = "A" if all(one_map) else name
    edits = "; ".join(
        f"{model}: {edited(cap)}" if len(captures) > 1 else edited(cap) for model, cap in captures.items() if edited(cap)
    )
    about = {
        "mixed": int(any(one_map) and not all(one_map)),
        "edits": edits,
        "n_tokens": lengths.pop(),
        "bin": of_models[0].attrs["bin"],
        "model": " and ".join(map(short_name, captures)),
    }
    return maps.rename("map").to_dataset().assign_attrs(map=drawn, models=list(captures), **about)


def _of_model(cap: Capture, layers: Choice, heads: Choice, name: str, queries, keys, size: int) -> xr.DataArray:
    """Return the map (layer, head, query, key) of the chosen heads of one model."""
    numbers = _chosen("layer", layers, cap.layer_numbers)
    places = _chosen("head", heads, range(cap.n_heads))
    rows, columns = window(queries, cap.n_tokens, "queries"), window(keys, cap.n_tokens, "keys")
    longest = max(rows.stop - rows.start, columns.stop - columns.start)
    if longest > size and (queries is not None or keys is not None):
        raise DiffscopeError(f"a window of more than {size} positions a side cannot be drawn in a grid: choose a smaller one")
    by_layer = []
    for number in numbers:
        attention = cap.layers[cap.layer_numbers.index(number)]
        drawn = drawn_of(attention, name)
        if longest > size:
            maps = cap.pooled_maps(number, places, size=size, names=[drawn])
            seen = maps["visible"]
        else:
            maps = cap.maps(number, places, queries=rows, keys=columns, names=[drawn])
            seen = xr.DataArray(visible_cells(attention, maps["query"].values, maps["key"].values), dims=("query", "key"))
        of_heads = maps[drawn].reset_coords(drop=True).where(seen.reset_coords(drop=True)).assign_coords(head=places)
        by_layer.append(of_heads)
    together = xr.concat(by_layer, xr.DataArray(numbers, dims="layer", name="layer"), combine_attrs="drop")
    return together.assign_attrs(bin=maps.attrs.get("bin", 1))


def drawn_of(attention: LayerAttention, name: str) -> str:
    """Return which map of a layer is drawn: A1 for D, if the layer has no second map.

    Raises
    ------
    DiffscopeError
        The layer has no second map.
    """
    if present(attention, (name,)):
        return name
    if name == "D":
        return "A1"
    raise DiffscopeError(f"layer {attention.layer} has one map, and no {name}; choose D or A1, or other layers")


def _chosen(what: str, choice: Choice, numbers: Sequence[int]) -> list[int]:
    if choice is None or (isinstance(choice, str) and choice == "all"):
        return list(numbers)
    if isinstance(choice, str) or not len(list(choice)):
        raise DiffscopeError(f'{what}s are numbers, such as [0, 2], or "all"; not {choice!r}')
    for number in choice:
        check_index(what, number, list(numbers))
    return list(choice)


def _listed(lengths: set[int]) -> str:
    return " and ".join(map(str, sorted(lengths)))


class Picture(NamedTuple):
    """One small picture, and where it stands: in widths of a picture from the left and from the top."""

    model: str
    layer: int
    head: int
    left: float
    top: float
    values: np.ndarray  # (query, key)


def _pictures(dataset: xr.Dataset) -> Iterator[Picture]:
    step = 1 + GAP
    for group, (model, begin) in enumerate(zip(dataset["model"].values, _begins(dataset))):
        for row, layer in enumerate(dataset["layer"].values):
            for column, head in enumerate(dataset["head"].values):
                values = dataset["map"].values[group, row, column]
                if np.isfinite(values).any():
                    yield Picture(str(model), int(layer), int(head), begin + column * step, row * step, values)


def _columns(dataset: xr.Dataset) -> list[int]:
    """Return of how many heads each model has pictures, the last one without a picture left out."""
    known = dataset["map"].notnull().any(["layer", "query", "key"]).values  # (model, head)
    return [int(max(np.flatnonzero(heads), default=len(heads) - 1)) + 1 for heads in known]


def _begins(dataset: xr.Dataset) -> list[float]:
    """Return where the pictures of each model begin, and where another model's would, in widths of a picture."""
    wide = [columns * (1 + GAP) + BETWEEN for columns in _columns(dataset)]
    return np.concatenate([[0.0], np.cumsum(wide)]).tolist()


def _extent(dataset: xr.Dataset) -> tuple[float, float]:
    """Return width and height of all pictures together, in widths of one."""
    return _begins(dataset)[-1] - BETWEEN - GAP, dataset.sizes["layer"] * (1 + GAP) - GAP


def _scale(dataset: xr.Dataset) -> tuple[str, float, float]:
    """Return the scale of the colours and its ends, the same for all pictures."""
    kind = theme.scale_of(dataset.attrs["map"], dataset["map"].values)
    return kind, *theme.colour_limits(kind, float(np.nanmax(np.abs(dataset["map"].values), initial=0.0)))


def title_of(dataset: xr.Dataset) -> str:
    """Return what the map is called; of models with one map beside models with two, both."""
    title = theme.TITLES[dataset.attrs["map"]]
    return f"{title}, or A of standard attention" if dataset.attrs["mixed"] else title


def heading(dataset: xr.Dataset) -> str:
    """Return one line that says what is seen."""
    attrs = dataset.attrs
    models = [short_name(attrs["models"][0])] if len(attrs["models"]) == 1 else []
    pooled = [f"largest |value| of each {attrs['bin']} × {attrs['bin']}"] if attrs["bin"] > 1 else []
    return " · ".join([title_of(dataset), *models, f"{attrs['n_tokens']} tokens", *pooled])


def on_screen(dataset: xr.Dataset, title: str | None = None, contrast: str = "sqrt"):
    """Draw for the screen."""
    import plotly.graph_objects as go

    kind, low, high = _scale(dataset)
    across, down = _extent(dataset)
    queries, keys = dataset.sizes["query"], dataset.sizes["key"]
    side = min(SIDE, 1100 / across)
    traces, shapes, words = [], [], []
    for picture in _pictures(dataset):
        place = {"x0": picture.left + 0.5 / keys, "dx": 1 / keys, "y0": picture.top + 0.5 / queries, "dy": 1 / queries}
        label = f"{for_html(picture.model)}<br>layer {picture.layer}, head {picture.head}<br><b>%{{z:.4f}}</b><extra></extra>"
        traces.append({"type": "heatmap", "z": picture.values, "coloraxis": "coloraxis", "hovertemplate": label} | place)
        box = {"x0": picture.left, "x1": picture.left + 1, "y0": picture.top, "y1": picture.top + 1}
        shapes.append({"type": "rect", "layer": "below", "fillcolor": theme.UNSEEN, "line": {"width": 0}} | box)
    for at, above, text, turned in _labels(dataset):
        font = {"size": 11, "color": theme.MUTED}
        anchor = {"xanchor": "right", "yanchor": "middle"} if turned else {"xanchor": "center", "yanchor": "bottom"}
        words.append({"x": at, "y": above, "text": for_html(text), "showarrow": False, "font": font} | anchor)
    scale = [[place, colour] for place, colour in theme.colour_scale(kind, contrast)]
    hidden = {"visible": False, "showgrid": False, "zeroline": False}
    layout = theme.screen_layout(
        height=int(side * (down + 0.4) + 90),
        margin={"l": 8, "r": 8, "t": 40, "b": 8},
        plot_bgcolor="rgba(0,0,0,0)",
        coloraxis={"cmin": low, "cmax": high, "colorscale": scale, "colorbar": screen_bar()},
        xaxis=hidden | {"range": [-0.6, across], "constrain": "domain"},
        yaxis=hidden | {"range": [down, -0.55], "scaleanchor": "x", "constrain": "domain"},
        title=screen_title(heading(dataset) if title is None else title),
        shapes=shapes,
        annotations=words,
    )
    figure = go.Figure({"data": traces, "layout": layout})
    figure.layout.template = None
    return figure


def _labels(dataset: xr.Dataset) -> Iterator[tuple[float, float, str, bool]]:
    """Yield where each label stands, what it says, and whether it names a row: layers, heads, several models."""
    step = 1 + GAP
    for row, layer in enumerate(dataset["layer"].values):
        yield -GAP, row * step + 0.5, f"layer {layer}", True
    for model, left, heads in zip(dataset["model"].values, _begins(dataset), _columns(dataset)):
        for column, head in enumerate(dataset["head"].values[:heads]):
            yield left + column * step + 0.5, -GAP / 2, f"head {head}", False
        if dataset.sizes["model"] > 1:
            yield left + (heads * step - GAP) / 2, -0.3, short_name(str(model)), False


def in_print(dataset: xr.Dataset, width: float, title: str | None = None, contrast: str = "sqrt"):
    """Draw for print."""
    kind, low, high = _scale(dataset)
    across, down = _extent(dataset)
    left, right, bottom = 0.48, 0.42, 0.08  # inches
    side = (width - left - right) / across
    if side < LEAST:
        count = sum(_columns(dataset))
        raise DiffscopeError(f"{count} heads in a row do not fit {width:g} inches: choose heads=[…], or wide=True")
    several = dataset.sizes["model"] > 1
    lines = lines_of(for_print(heading(dataset) if title is None else title), int(width / LETTER))
    top = 0.2 + 0.17 * several + (0.06 + 0.14 * len(lines) if lines else 0.0)
    height = side * down + top + bottom
    figure = canvas(width, height)
    figure.set_layout_engine("none")
    ax = figure.add_axes((left / width, bottom / height, side * across / width, side * down / height))
    colours = theme.colour_map(kind, contrast)
    for picture in _pictures(dataset):
        place = (picture.left, picture.left + 1, picture.top + 1, picture.top)
        look = {"cmap": colours, "vmin": low, "vmax": high, "interpolation": "nearest", "rasterized": True}
        image = ax.imshow(picture.values, extent=place, **look)
    ax.set(xlim=(0, across), ylim=(down, 0), aspect="equal")
    ax.set_axis_off()
    _name(ax, dataset, side)
    place = ((width - right + 0.07) / width, bottom / height, 0.07 / width, side * down / height)
    bar = figure.colorbar(image, cax=figure.add_axes(place))
    ticks = [low, 0, high] if low < 0 else [0, high]
    bar.set_ticks(ticks, labels=["0" if tick == 0 else f"{tick:.2g}".replace("-", "−") for tick in ticks])
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=1.5, pad=1)
    if lines:
        figure.suptitle("\n".join(lines), x=0.01, y=1 - 0.03 / height, ha="left", va="top")
    return figure


def _name(ax, dataset: xr.Dataset, side: float) -> None:
    """Write layers left of their rows, heads above their columns, models above their heads; of small pictures some."""
    words = "head {}" if side >= NAMED else "{}"
    every = max(1, int(np.ceil(0.16 / side)))
    step = 1 + GAP
    small = {"size": "x-small", "color": theme.MUTED}
    inch = 1 / side
    for row, layer in list(enumerate(dataset["layer"].values))[::every]:
        ax.text(-0.04 * inch, row * step + 0.5, f"layer {layer}", ha="right", va="center", **small)
    for model, left, heads in zip(dataset["model"].values, _begins(dataset), _columns(dataset)):
        for column, head in list(enumerate(dataset["head"].values[:heads]))[::every]:
            ax.text(left + column * step + 0.5, -0.03 * inch, words.format(head), ha="center", va="bottom", **small)
        if dataset.sizes["model"] > 1:
            middle = left + (heads * step - GAP) / 2
            ax.text(middle, -0.16 * inch, for_print(short_name(str(model))), ha="center", va="bottom", size="small")
    if side < NAMED:
        ax.text(-0.04 * inch, -0.03 * inch, "head", ha="right", va="bottom", **small)


CHART = Chart(on_screen, in_print)
