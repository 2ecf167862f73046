"""A statistic by layer and head."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.base import register
from diffscope.figures.canvas import canvas, finish_print, finish_screen
from diffscope.figures.escaping import for_html, for_print
from diffscope.figures.selection import edited, one_prompt, position_of
from diffscope.stats.averaging import averaged
from diffscope.stats.labels import at_labels, is_unsigned, usual_label
from diffscope.stats.negative_mass import WHATEVER


def data(
    cap,
    statistic: str = "span_mass",
    query: int | str | None = -1,
    prompt: int = 0,
    measured: xr.Dataset | None = None,
    **choices,
) -> xr.Dataset:
    """One statistic over (layer, head); parameters as of ``diffscope.figures.heads``."""
    if measured is None:
        cap = one_prompt(cap, prompt)
        prompt = 0
        measured = cap.measure([statistic])
    if query != "mean":  # in a batch the last token of a prompt is not the last of the axis
        query = position_of(-1 if query is None else query, len(cap.prompts[prompt].ids))
    if statistic not in measured:
        raise DiffscopeError(f"no statistic {statistic!r} was measured: there are {', '.join(map(str, measured.data_vars))}")
    array = measured[statistic]
    for dim, label in choices.items():
        if label is not None and dim not in array.dims:
            raise DiffscopeError(f"{statistic} is not measured by {dim}, so that {label!r} cannot be chosen; leave {dim} out")
    dataset = over_heads(array, query, prompt, choices, model=cap.model_name).assign_attrs(edits=edited(cap))
    return dataset.assign_attrs(signs=_signs(cap, dataset, array, query, prompt, choices))


def _signs(cap, dataset: xr.Dataset, array: xr.DataArray, query: int | str, prompt: int, choices: dict) -> str:
    """In which heads the weights that a share of |D| sums are negative; nothing of what has a sign of its own."""
    if not is_unsigned(dataset.attrs["selection"]):
        return ""
    from diffscope.readings.signs import of_span  # which loads code of models

    if array.name != "span_mass":
        return WHATEVER if cap.differential else ""
    return of_span(one_prompt(cap, prompt), str(choices.get("span") or usual_label(list(array["span"].values), "span")), query)


def of_two(comparison, statistic: str, query, prompt: int, measured: xr.Dataset | None, choices: dict) -> xr.DataArray:
    """One statistic (model, layer, head) of two models; parameters as of :func:`data`."""
    measured = comparison.measure([statistic]) if measured is None else measured
    of_models = []
    for name, cap in zip(comparison.names, comparison.captures):
        own = measured.sel(model=name, drop=True)
        if cap.differential and statistic in own:
            own[statistic].attrs.pop("why", None)  # which is said of the other model
        of_models.append(data(cap, statistic, query, prompt, own, **choices))
    arrays = [dataset[statistic] for dataset in of_models]
    together = xr.concat(arrays, xr.DataArray(list(comparison.names), dims="model", name="model"), join="outer")
    first = of_models[0].attrs
    selections = " or ".join(dict.fromkeys(dataset.attrs["selection"] for dataset in of_models))
    title = " · ".join(word for word in (first["long_name"], selections) if word)
    edits = "; ".join(
        f"{name}: {capture.facts['edits']}" for name, capture in zip(comparison.names, comparison.captures) if edited(capture)
    )
    from diffscope.readings.signs import within  # which loads code of models

    signs = " ".join(within(f"In {name}", each.attrs["signs"]) for name, each in zip(comparison.names, of_models)).strip()
    return together.assign_attrs(
        long_name=title, units=first["units"], model=" and ".join(comparison.names), edits=edits, signs=signs
    )


def over_heads(array: xr.DataArray, query=-1, prompt: int = 0, choices: dict | None = None, model: str = "") -> xr.Dataset:
    """Select along every dimension but layer and head.

    Parameters
    ----------
    array : DataArray
        One statistic, as ``measure`` gives it.
    query : int or "mean"
        A position, or if negative counted from the axis' end; or the mean over all.
    prompt : int
        Of a batch.
    choices : dict of str to str, optional
        Labels along other dimensions; what is not chosen is the usual one.
    model : str
        For the heading.
    """
    attrs = dict(array.attrs)
    if "prompt" in array.dims:
        array = array.isel(prompt=prompt)
    array, words = at_labels(array, choices or {})
    if "query" in array.dims and query == "mean":
        array, _, over = averaged(array, ["query"])
        words.append(f"{array.attrs['averaged']} over {over[0]}")
    elif "query" in array.dims:
        array, word = _at_query(array, query)
        words.append(word)
    if set(array.dims) - {"layer", "head"} or "layer" not in array.dims:
        raise DiffscopeError(f"{array.name} is not measured by layer")
    if "head" not in array.dims:
        array = array.expand_dims(head=[0], axis=-1)
    dataset = array.transpose("layer", "head").reset_coords(drop=True).to_dataset(name=str(array.name))
    dataset.attrs = {
        "figure": "heads",
        "model": model,
        "statistic": str(array.name),
        "selection": ", ".join(words),
        "units": str(attrs.get("units", "")),
        "long_name": str(attrs.get("long_name", array.name)),
        "definition": str(attrs.get("definition", "")),
    }
    return dataset


def by_head(values: xr.DataArray) -> xr.DataArray:
    """Values (layer, head, ...) along one dimension ``head`` with the labels L0H0, L0H1, …"""
    flat = values.stack(place=("layer", "head"))
    names = [f"L{layer}H{head}" for layer, head in flat["place"].values]
    flat = flat.drop_vars(["place", "layer", "head"]).rename(place="head").assign_coords(head=names)
    return flat.transpose("head", ...)


def _at_query(array: xr.DataArray, query: int | None) -> tuple[xr.DataArray, str]:
    """The values at one query, and which it is."""
    if query is None or query < 0 or "query" not in array.coords:
        array = array.isel(query=-1 if query is None else query)
    elif query in array["query"].values:
        array = array.sel(query=query)
    else:
        raise DiffscopeError(f"query {query} was not measured; choose one that was")
    return array, f"query {int(array['query'])}" if "query" in array.coords else "one query"


class _Grid(NamedTuple):
    """What both drawings show."""

    values: np.ndarray  # (layer, head); NaN for a layer without attention
    layers: np.ndarray
    heads: np.ndarray
    measured: set[int]  # layers that have attention
    colours: str
    limits: tuple[float, float]
    units: str
    heading: str


def _grid(data: xr.Dataset, title: str | None) -> _Grid:
    array = data[data.attrs["statistic"]]
    measured = set(array["layer"].values.tolist())
    array = array.reindex(layer=np.arange(min(measured), max(measured) + 1))  # a layer without attention is an empty row
    values = np.asarray(array.values, dtype=float)
    finite = values[np.isfinite(values)]
    colours = "diverging" if (finite < 0).any() else "blue"
    limits = theme.colour_limits(colours, float(np.abs(finite).max(initial=0.0)))
    units = data.attrs["units"] if data.attrs["units"] not in ("", "1", "dimensionless") else ""
    words = " · ".join(word for word in (data.attrs["long_name"], data.attrs["selection"]) if word)
    heading = words if title is None else title
    return _Grid(values, array["layer"].values, array["head"].values, measured, colours, limits, units, heading)


def on_screen(
    data: xr.Dataset,
    title: str | None = None,
    contrast: str = "linear",
    selected: tuple[int, int] | None = None,
    height: int | None = None,
):
    """Heads as cells; `selected` is the (layer, head) to mark.

    A click selects: invisible points lie on the cells, because only points can be selected.
    """
    import plotly.graph_objects as go

    grid = _grid(data, title)
    cell = 24 if len(grid.layers) <= 16 else 14
    tall = height or int(np.clip(cell * len(grid.layers) + 90, 190, 560))
    look = {"thickness": 8, "outlinewidth": 0, "len": 1.0, "xpad": 6, "ypad": 0, "nticks": 4, "ticklen": 2}
    figure = go.Figure(
        go.Heatmap(
            z=grid.values,
            x=grid.heads,
            y=grid.layers,
            zmin=grid.limits[0],
            zmax=grid.limits[1],
            xgap=1.5,
            ygap=1.5,
            hoverinfo="skip",
            colorscale=[[position, colour] for position, colour in theme.colour_scale(grid.colours, contrast)],
            colorbar={**look, "tickfont": {"size": 10, "color": theme.MUTED}, "title": {"text": for_html(grid.units)}},
        )
    )
    figure.add_trace(_points(grid, size=max(8, min(40, (tall - 90) / max(1, len(grid.layers))))))
    finish_screen(
        figure,
        grid.heading,
        height=tall,
        shapes=[] if selected is None else [_frame(*selected)],
        dragmode=False,
        xaxis=_axis("head", grid.heads, reverse=False),
        yaxis=_axis("layer", grid.layers, reverse=True),
    )
    return figure


def _points(grid: _Grid, size: float):
    import plotly.graph_objects as go

    cells = [
        (head, layer, value)
        for layer, row in zip(grid.layers, grid.values)
        if layer in grid.measured
        for head, value in zip(grid.heads, row)
    ]
    unseen = {"marker": {"opacity": 0}}
    return go.Scatter(
        x=[head for head, _, _ in cells],
        y=[layer for _, layer, _ in cells],
        mode="markers",
        customdata=[value for _, _, value in cells],
        hovertemplate="layer %{y}, head %{x}<br><b>%{customdata:.4g}</b><extra></extra>",
        showlegend=False,
        marker={"symbol": "square", "size": size, "opacity": 0, "color": theme.INK},
        selected=unseen,
        unselected=unseen,
    )


def _frame(layer: int, head: int) -> dict:
    """A frame around the selected cell."""
    place = {"x0": head - 0.47, "x1": head + 0.47, "y0": layer - 0.47, "y1": layer + 0.47}
    return {"type": "rect", **place, "line": {"color": theme.INK, "width": 2}, "fillcolor": "rgba(0,0,0,0)"}


def _axis(title: str, numbers: np.ndarray, reverse: bool) -> dict:
    ends = [numbers[0] - 0.55, numbers[-1] + 0.55]
    ticks = {"dtick": 1, "tick0": 0} if len(numbers) <= 16 else {"tickformat": "d"}
    look = {"fixedrange": True, "showline": False, "ticks": "", **ticks}
    return theme.screen_axis(title_text=title, range=ends[::-1] if reverse else ends, **look)


def in_print(data: xr.Dataset, width: float, title: str | None = None, contrast: str = "linear"):
    """The drawing for print; of few heads with the numbers in the cells."""
    from matplotlib.ticker import MaxNLocator

    grid = _grid(data, title)
    low, high = grid.limits
    figure = canvas(width, min(8.0, 0.24 * len(grid.layers) + 0.75))
    ax = figure.subplots()
    image = ax.imshow(
        grid.values,
        cmap=theme.colour_map(grid.colours, contrast),
        vmin=low,
        vmax=high,
        aspect="auto",
        interpolation="nearest",
        extent=(grid.heads[0] - 0.5, grid.heads[-1] + 0.5, grid.layers[-1] + 0.5, grid.layers[0] - 0.5),
    )
    ax.spines[:].set_visible(False)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(12, integer=True))
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    if grid.values.size <= 160:
        for (row, column), value in np.ndenumerate(grid.values):
            if np.isfinite(value):
                colour = theme.PAPER if abs(value) > 0.6 * max(abs(low), high) else theme.INK
                text = f"{value:.2g}".replace("-", "−")
                ax.text(grid.heads[column], grid.layers[row], text, ha="center", va="center", size=5.5, color=colour)
    bar = figure.colorbar(image, ax=ax, fraction=0.05, pad=0.03, aspect=30)
    bar.outline.set_visible(False)
    bar.set_label(for_print(grid.units))
    finish_print(figure, grid.heading)
    return figure


register("heads", "a statistic by layer and head", data=data, plotly=on_screen, matplotlib=in_print, wide=False)
