"""Many small maps on one scale: of every head, a row a layer and a column a head; or of one head, a picture a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import xarray as xr

from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import present, title_of
from diffscope.capture.captions import edits_of
from diffscope.capture.capture import Capture
from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.escaping import for_html, for_print, short_name
from diffscope.figures.figure import Chart
from diffscope.figures.inputs import layer_at, visible_cells, window, window_said
from diffscope.figures.print_layout import canvas, lines_of, screen_bar, screen_title
from diffscope.numbers import head_name
from diffscope.prompts.selection import indices_among

Choice = int | Sequence[int] | Literal["all"] | None
SIZE = 64  # bins a side
GAP = 0.08  # between pictures, of their width
BETWEEN = 0.5  # between models
ABOVE = 0.3  # between rows of pictures that have their names above them
IN_A_ROW = 8  # checkpoints
LEAST = 0.14  # inches a picture of a head is wide at least in print
WIDE = 0.6  # and one of a checkpoint
NAMED = 0.42  # inches from which a picture has "head" above it beside the number
LETTER = 0.056  # inches of a letter of the line above
SIDES = {"head": 120, "step": 150}  # pixels a picture is wide at most on the screen
BAR = 110  # pixels of the bar of colours beside checkpoints, whose pictures are small on a narrow page


def grid_data(
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
    chosen = [cap.layer(n) for cap in captures.values() for n in _chosen("layer", layers, cap.layer_numbers)]
    if len(kinds := dict.fromkeys(attention.kind for attention in chosen)) > 1:
        raise DiffscopeError(
            f"these layers are of the kinds {', '.join(kinds)}, and a grid is of one: choose them by layers=, or take "
            f"capture.of_kind({chosen[0].kind!r})"
        )
    shapes = {(attention.n_queries, attention.n_keys) for attention in chosen}
    if len(shapes) > 1:
        lengths = {count for shape in shapes for count in shape}
        raise DiffscopeError(f"these captures are of prompts of {_listed(lengths)} tokens; a grid is of one prompt")
    ((n_queries, n_keys),) = shapes
    of_models = [_of_model(cap, layers, heads, name, queries, keys, size) for cap in captures.values()]
    if not any(bool(of_model.notnull().any()) for of_model in of_models):
        raise DiffscopeError("no query of this window sees a key of it; choose other queries or keys")
    models = xr.DataArray(list(captures), dims="model", name="model")
    maps = xr.concat(of_models, models, join="outer", combine_attrs="drop")
    drawn = "A" if all(attention.d_is_a1 for attention in chosen) else name
    about = {
        "title": title_of(name, chosen),
        "edits": edits_of(captures),
        "n_tokens": n_queries,
        "bin": of_models[0].attrs["bin"],
        "window": window_said(window(queries, n_queries, "queries"), n_queries, window(keys, n_keys, "keys"), n_keys),
        "model": " and ".join(map(short_name, captures)),
    }
    if "cross" in kinds:
        about["n_keys"] = n_keys
    return maps.rename("map").to_dataset().assign_attrs(map=drawn, models=list(captures), **about)


def _of_model(cap: Capture, layers: Choice, heads: Choice, name: str, queries, keys, size: int) -> xr.DataArray:
    """Return the map (layer, head, query, key) of the chosen heads of one model."""
    numbers = _chosen("layer", layers, cap.layer_numbers)
    places = _chosen("head", heads, range(cap.n_heads))  # of the layer that has most
    first = cap.layer(numbers[0])
    rows, columns = window(queries, first.n_queries, "queries"), window(keys, first.n_keys, "keys")
    longest = max(rows.stop - rows.start, columns.stop - columns.start)
    if longest > size and (queries is not None or keys is not None):
        raise DiffscopeError(f"a window of more than {size} positions a side cannot be drawn in a grid: choose a smaller one")
    by_layer = []
    for number in numbers:
        attention = cap.layer(number)
        drawn = drawn_of(attention, name)
        there = [head for head in places if head < attention.n_heads]
        if longest > size:
            maps = cap.pooled_maps(number, there, size=size, names=[drawn])
            seen = maps["visible"]
        else:
            maps = cap.maps(number, there, queries=rows, keys=columns, names=[drawn])
            seen = xr.DataArray(visible_cells(attention, maps["query"].values, maps["key"].values), dims=("query", "key"))
        of_heads = maps[drawn].reset_coords(drop=True).where(seen.reset_coords(drop=True)).assign_coords(head=there)
        by_layer.append(of_heads)
    together = xr.concat(by_layer, xr.DataArray(numbers, dims="layer", name="layer"), join="outer", combine_attrs="drop")
    return together.assign_attrs(bin=maps.attrs.get("bin", 1))


def drawn_of(attention: LayerAttention, name: str) -> str:
    """Return which map of a layer is drawn: of a layer without a second map A1 for D; refuse what it lacks."""
    if present(attention, (name,)):
        return name
    if name == "D":
        return "A1"
    raise DiffscopeError(f"layer {attention.layer} has one map, and no {name}; choose D or A1, or other layers")


def _chosen(what: str, choice: Choice, numbers: Sequence[int]) -> list[int]:
    if choice is None or (isinstance(choice, str) and choice == "all"):
        return list(numbers)
    chosen = () if isinstance(choice, str) else indices_among(what, choice, numbers)
    if not chosen:
        raise DiffscopeError(f'{what}s are numbers, such as [0, 2], or "all"; not {choice!r}')
    return list(chosen)


def _listed(lengths: set[int]) -> str:
    return " and ".join(map(str, sorted(lengths)))


def checkpoint_data(
    captures: Mapping[int, Capture],
    layer: int | None = None,
    head: int = 0,
    name: str = "D",
    size: int = SIZE,
    along: str = "training",
) -> xr.Dataset:
    """Return the map (step, query, key) of one head, NaN if a query does not see a key; parameters as of the figure."""
    if not (isinstance(captures, Mapping) and captures and all(isinstance(cap, Capture) for cap in captures.values())):
        raise DiffscopeError(f"this figure is of captures of one prompt by step of {along}, such as {{0: …, 400: …}}")
    steps = sorted(captures)
    if any(captures[step].batch for step in steps):
        raise DiffscopeError("these captures are of batches; give those of one prompt, such as capture[0]")
    if len({tuple(tuple(side.ids) for side in captures[step].all_prompts) for step in steps}) > 1:
        raise DiffscopeError("these captures are of different prompts; their maps cannot be compared step by step")
    attention = layer_at(captures[steps[-1]], layer, head)
    drawn = drawn_of(attention, name)
    maps = [captures[step].pooled_maps(attention.layer, [head], size=size, names=[drawn])[drawn].isel(head=0) for step in steps]
    seen = [each.where(each["visible"]).reset_coords(drop=True) for each in maps]
    index = xr.Variable("step", steps, {"long_name": f"step of {along}", "units": "steps"})
    together = xr.concat(seen, xr.DataArray(index, name="step", dims="step"), combine_attrs="drop")
    about = {
        "title": title_of(drawn, [attention]),
        "edits": edits_of({f"step {step}": captures[step] for step in steps}),
        "model": captures[steps[-1]].model_name.partition("@")[0],
        "n_tokens": captures[steps[-1]].n_tokens,
        "layer": attention.layer,
        "head": head,
        "bin": maps[0].attrs["bin"],
    }
    return together.rename("map").to_dataset().assign_attrs(map="A" if attention.d_is_a1 else drawn, **about)


def _columns(dataset: xr.Dataset) -> list[int]:
    """Return of how many heads each model has pictures, the last one without a picture left out."""
    known = dataset["map"].notnull().any(["layer", "query", "key"]).values  # (model, head)
    return [int(max(np.flatnonzero(heads), default=len(heads) - 1)) + 1 for heads in known]


def _scale(dataset: xr.Dataset) -> tuple[str, float, float]:
    """Return the scale of the colours and its ends, the same for all pictures."""
    kind = theme.scale_of(dataset.attrs["map"], dataset["map"].values)
    return kind, *theme.colour_limits(kind, float(np.nanmax(np.abs(dataset["map"].values), initial=0.0)))


def _grid_heading(dataset: xr.Dataset) -> list[str]:
    """Return what is seen of heads, in parts."""
    attrs = dataset.attrs
    models = [short_name(attrs["models"][0])] if len(attrs["models"]) == 1 else []
    size = f"{attrs['n_tokens']} queries × {attrs['n_keys']} keys" if "n_keys" in attrs else f"{attrs['n_tokens']} tokens"
    return [attrs["title"], *models, size]


def _checkpoint_heading(dataset: xr.Dataset) -> list[str]:
    """Return what is seen of checkpoints, in parts."""
    attrs = dataset.attrs
    return [
        attrs["title"].partition(" = ")[0],
        short_name(attrs["model"].partition("@")[0]),
        head_name(attrs["layer"], attrs["head"]),
    ]


def heading(dataset: xr.Dataset) -> str:
    """Return one line that says what is seen."""
    size = dataset.attrs["bin"]
    pooled = [f"largest |value| of each {size} × {size}"] if size > 1 else []
    parts = _checkpoint_heading(dataset) if "step" in dataset.dims else _grid_heading(dataset)
    return " · ".join([*parts, *pooled])


class Picture(NamedTuple):
    """One small picture, and where it stands: in widths of a picture from the left and from the top."""

    left: float
    top: float
    values: np.ndarray  # (query, key)
    words: str  # under the pointer
    step: int | None = None  # of a checkpoint, which a click selects


class Label(NamedTuple):
    """A name, and where it stands: left of a row, above a column, or above the columns of a model."""

    role: Literal["row", "column", "model"]
    at: float  # the middle of what it names
    top: float
    text: str
    short: str


class Sheet(NamedTuple):
    """All pictures and names, and how wide and high they are together, in widths of a picture."""

    pictures: list[Picture]
    labels: list[Label]
    across: float
    down: float


def _grid(dataset: xr.Dataset) -> Sheet:
    """Return the pictures of heads: a row a layer, a column a head, models side by side."""
    step = 1 + GAP
    counts = _columns(dataset)
    begins = np.cumsum([0.0, *(count * step + BETWEEN for count in counts)]).tolist()
    layers, heads, models = (dataset[dim].values.tolist() for dim in ("layer", "head", "model"))
    pictures = []
    labels = [Label("row", row * step + 0.5, 0.0, f"layer {layer}", f"layer {layer}") for row, layer in enumerate(layers)]
    for group, (model, left, count) in enumerate(zip(models, begins, counts)):
        middles = [left + column * step + 0.5 for column in range(count)]
        labels += [Label("column", at, 0.0, f"head {head}", str(head)) for at, head in zip(middles, heads)]
        if len(models) > 1:
            labels.append(Label("model", left + (count * step - GAP) / 2, 0.0, short_name(str(model)), ""))
        for row, layer in enumerate(layers):
            for column, head in enumerate(heads):
                values = dataset["map"].values[group, row, column]
                if np.isfinite(values).any():
                    words = f"{for_html(str(model))}<br>{head_name(layer, head)}"
                    pictures.append(Picture(left + column * step, row * step, values, words))
    return Sheet(pictures, labels, begins[-1] - BETWEEN - GAP, len(layers) * step - GAP)


def _checkpoints(dataset: xr.Dataset, most: int) -> Sheet:
    """Return the pictures of checkpoints, at most so many in a row, and no row much shorter than another."""
    steps = dataset["step"].values.tolist()
    rows = math.ceil(len(steps) / most)
    columns = math.ceil(len(steps) / rows)
    maps = dataset["map"].transpose("step", "query", "key").values
    pictures, labels = [], []
    for number, (step, values) in enumerate(zip(steps, maps)):
        left, top = number % columns * (1 + GAP), number // columns * (1 + ABOVE)
        pictures.append(Picture(left, top, values, f"step {step}", step))
        labels.append(Label("column", left + 0.5, top, f"step {step}", f"step {step}"))
    return Sheet(pictures, labels, columns * (1 + GAP) - GAP, rows * (1 + ABOVE) - ABOVE)


def on_screen(dataset: xr.Dataset, title: str | None = None, contrast: str = "linear"):
    """Draw for the screen; a click on a checkpoint selects it, with its step as what plotly calls custom data."""
    import plotly.graph_objects as go

    kind, low, high = _scale(dataset)
    of_steps = "step" in dataset.dims
    sheet = _checkpoints(dataset, IN_A_ROW) if of_steps else _grid(dataset)
    side = min(SIDES["step" if of_steps else "head"], 1100 / sheet.across)
    above = 0.55 if any(label.role == "model" for label in sheet.labels) else 0.2  # for the names, in widths of a picture
    queries, keys = dataset.sizes["query"], dataset.sizes["key"]
    traces, shapes = [], []
    for picture in sheet.pictures:
        place = {"x0": picture.left + 0.5 / keys, "dx": 1 / keys, "y0": picture.top + 0.5 / queries, "dy": 1 / queries}
        hover = {"hovertemplate": f"{picture.words}<br><b>%{{z:.4f}}</b><extra></extra>"}
        if of_steps:  # a point lies on the picture, and is what is pointed at
            hover = {"hoverinfo": "skip"}
        traces.append({"type": "heatmap", "z": picture.values, "coloraxis": "coloraxis"} | hover | place)
        box = {"x0": picture.left, "x1": picture.left + 1, "y0": picture.top, "y1": picture.top + 1}
        shapes.append({"type": "rect", "layer": "below", "fillcolor": theme.UNSEEN, "line": {"width": 0}} | box)
    traces += [_point(picture, side) for picture in sheet.pictures if picture.step is not None]
    bar = screen_bar(lenmode="pixels", len=BAR, y=1, yanchor="top") if of_steps else screen_bar()
    scale = [[place, colour] for place, colour in theme.colour_scale(kind, contrast)]
    hidden = {"visible": False, "showgrid": False, "zeroline": False}
    layout = theme.screen_layout(
        height=int(side * (sheet.down + above) + 60),
        margin={"l": 8, "r": 8, "t": 40, "b": 8},
        plot_bgcolor="rgba(0,0,0,0)",
        dragmode=False if of_steps else "zoom",
        showlegend=False,
        coloraxis={"cmin": low, "cmax": high, "colorscale": scale, "colorbar": bar},
        xaxis=hidden | {"range": [0 if of_steps else -0.6, sheet.across], "constrain": "domain", "constraintoward": "left"},
        yaxis=hidden | {"range": [sheet.down, -above], "scaleanchor": "x", "constrain": "domain", "constraintoward": "top"},
        title=screen_title(heading(dataset) if title is None else title),
        shapes=shapes,
        annotations=[_note(label) for label in sheet.labels],
    )
    figure = go.Figure({"data": traces, "layout": layout})
    figure.layout.template = None
    return figure


def _note(label: Label) -> dict:
    """Return a name on the screen."""
    x, y, anchors = {
        "row": (-GAP, label.at, ("right", "middle")),
        "column": (label.at, label.top - GAP / 2, ("center", "bottom")),
        "model": (label.at, label.top - 0.3, ("center", "bottom")),
    }[label.role]
    look = {"showarrow": False, "font": {"size": 11, "color": theme.MUTED}}
    return {"x": x, "y": y, "text": for_html(label.text), "xanchor": anchors[0], "yanchor": anchors[1]} | look


def _point(picture: Picture, side: float) -> dict:
    """Return an invisible point that covers a picture, because only points can be selected."""
    unseen = {"marker": {"opacity": 0}}
    return {
        "type": "scatter",
        "x": [picture.left + 0.5],
        "y": [picture.top + 0.5],
        "mode": "markers",
        "customdata": [picture.step],
        "hovertemplate": f"{picture.words}<extra></extra>",
        "marker": {"symbol": "square", "size": side, "opacity": 0, "color": theme.INK},
        "selected": unseen,
        "unselected": unseen,
    }


def in_print(dataset: xr.Dataset, width: float, title: str | None = None, contrast: str = "linear"):
    """Draw for print."""
    kind, low, high = _scale(dataset)
    of_steps = "step" in dataset.dims
    left, right, bottom = 0.06 if of_steps else 0.48, 0.42, 0.08  # inches
    room = width - left - right
    sheet = _checkpoints(dataset, min(IN_A_ROW, max(1, int(room / WIDE)))) if of_steps else _grid(dataset)
    side = room / sheet.across
    if side < LEAST:
        count = sum(_columns(dataset))
        raise DiffscopeError(f"{count} heads in a row do not fit {width:g} inches: choose heads=[…], or wide=True")
    several = any(label.role == "model" for label in sheet.labels)
    lines = lines_of(for_print(heading(dataset) if title is None else title), int(width / LETTER))
    top = 0.2 + 0.17 * several + (0.06 + 0.14 * len(lines) if lines else 0.0)
    height = side * sheet.down + top + bottom
    figure = canvas(width, height)
    figure.set_layout_engine("none")
    ax = figure.add_axes((left / width, bottom / height, side * sheet.across / width, side * sheet.down / height))
    colours = theme.colour_map(kind, contrast)
    for picture in sheet.pictures:
        place = (picture.left, picture.left + 1, picture.top + 1, picture.top)
        look = {"cmap": colours, "vmin": low, "vmax": high, "interpolation": "nearest", "rasterized": True}
        image = ax.imshow(picture.values, extent=place, **look)
    ax.set(xlim=(0, sheet.across), ylim=(sheet.down, 0), aspect="equal")
    ax.set_axis_off()
    _name(ax, sheet, side)
    place = ((width - right + 0.07) / width, bottom / height, 0.07 / width, side * sheet.down / height)
    bar = figure.colorbar(image, cax=figure.add_axes(place))
    ticks = [low, 0, high] if low < 0 else [0, high]
    bar.set_ticks(ticks, labels=["0" if tick == 0 else f"{tick:.2g}".replace("-", "−") for tick in ticks])
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=1.5, pad=1)
    if lines:
        figure.suptitle("\n".join(lines), x=0.01, y=1 - 0.03 / height, ha="left", va="top")
    return figure


def _name(ax, sheet: Sheet, side: float) -> None:
    """Write layers left of their rows, heads and steps above their pictures, models above their heads; of small pictures some."""
    every = max(1, int(np.ceil(0.16 / side)))
    small = {"size": "x-small", "color": theme.MUTED}
    inch = 1 / side
    for label in [label for label in sheet.labels if label.role == "row"][::every]:
        ax.text(-0.04 * inch, label.at, for_print(label.text), ha="right", va="center", **small)
    for label in _thinned(sheet.labels, every):
        text = label.text if side >= NAMED else label.short
        ax.text(label.at, label.top - 0.03 * inch, text, ha="center", va="bottom", **small)
    for label in sheet.labels:
        if label.role == "model":
            ax.text(label.at, label.top - 0.16 * inch, for_print(label.text), ha="center", va="bottom", size="small")
    if side < NAMED:
        ax.text(-0.04 * inch, -0.03 * inch, "head", ha="right", va="bottom", **small)


def _thinned(labels: Sequence[Label], every: int) -> Iterator[Label]:
    """Yield the names of columns, of each model every so many."""
    count = 0
    for label in labels:
        if label.role == "column":
            if count % every == 0:
                yield label
            count += 1
        else:
            count = 0


CHART = Chart(on_screen, in_print)
