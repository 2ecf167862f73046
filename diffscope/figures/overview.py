"""Layers at a glance: a statistic by layer and head, λ by layer, and how faithful the capture is."""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.base import register
from diffscope.figures.canvas import canvas, settle
from diffscope.figures.escaping import for_html, for_print
from diffscope.figures.selection import of_prompt
from diffscope.stats.averaging import averaged

# ---------------------------------------------------------------- statistic by layer and head


def data(cap, statistic: str = "span_mass", query: int | str | None = -1, prompt: int = 0, measured=None, **where) -> xr.Dataset:
    """One statistic over (layer, head): at one query (the last by default), or its mean over queries (`query="mean"`).

    `where` picks along the statistic's other dimensions, e.g. `map="D"`, `span="answer"`, `normalisation="share"`.
    `measured` is what `cap.measure` returned, where the caller has it already.
    """
    if measured is None:
        measured = cap.measure([statistic])
    if query != "mean":
        query = _position(-1 if query is None else query, len(of_prompt(cap.tokens, prompt)))
    if statistic not in measured:
        raise DiffscopeError(f"no statistic {statistic!r} was measured: there are {', '.join(map(str, measured.data_vars))}")
    return over_heads(measured[statistic], query, prompt, where, model=str(getattr(cap, "model_name", "") or ""))


def _position(query: int, n: int) -> int:
    """A query of a prompt of n tokens, counted from 0: in a batch the last one is not the last of the axis."""
    if not -n <= query < n:
        raise DiffscopeError(f"there is no token {query}: the prompt has {n}")
    return query % n


def over_heads(array: xr.DataArray, query=-1, prompt: int = 0, where: dict | None = None, model: str = "") -> xr.Dataset:
    """Select along every dimension but layer and head; `query` is a position, or if negative counts from the axis' end."""
    attrs, said, where = dict(array.attrs), [], dict(where or {})
    why = str(attrs.get("why", ""))
    alone = "standard attention" in why and "as the layer changes it" not in why  # one map a head: D is A
    if "prompt" in array.dims:
        array = array.isel(prompt=prompt)
    for dim in [dim for dim in array.dims if dim not in ("layer", "head", "query")]:
        labels = list(map(str, array[dim].values)) if dim in array.coords else list(map(str, range(array.sizes[dim])))
        choice = str(where.get(dim) or _usual(labels, dim))
        if choice not in labels:
            raise DiffscopeError(f"no {dim} {choice!r}: there are {', '.join(labels)}")
        array = array.isel({dim: labels.index(choice)})
        said.append("A" if alone and dim == "map" and choice in ("A1", "D") else choice)
    if "query" in array.dims:
        if query == "mean":
            array, _, words = averaged(array, ["query"])
            said.append(f"{array.attrs['averaged']} over {words[0]}")
        else:
            if query is None or query < 0 or "query" not in array.coords:
                array = array.isel(query=-1 if query is None else query)
            elif query in array["query"].values:
                array = array.sel(query=query)
            else:
                raise DiffscopeError(f"query {query} was not measured; choose one that was")
            said.append(f"query {int(array['query'])}" if "query" in array.coords else "one query")
    if set(array.dims) - {"layer", "head"} or "layer" not in array.dims:
        raise DiffscopeError(f"{array.name} is not measured by layer")
    if "head" not in array.dims:
        array = array.expand_dims(head=[0], axis=-1)
    made = array.transpose("layer", "head").reset_coords(drop=True).to_dataset(name=str(array.name))
    made.attrs = {
        "figure": "overview",
        "model": model,
        "statistic": str(array.name),
        "selection": ", ".join(said),
        "units": str(attrs.get("units", "")),
        "long_name": str(attrs.get("long_name", array.name)),
        "definition": str(attrs.get("definition", "")),
    }
    return made


USUAL = {"map": ("D", "A1"), "span": ("answer", "sink"), "normalisation": ("share",)}


def _usual(labels: list[str], dim: str) -> str:
    return next((name for name in USUAL.get(dim, ()) if name in labels), labels[0])


def _table(data: xr.Dataset):
    """The values, the positions of layers and heads, the colours and the words of an overview."""
    array = data[data.attrs["statistic"]]
    if "layer" in array.coords:  # a layer without attention is an empty row
        array = array.reindex(layer=np.arange(array["layer"].values[0], array["layer"].values[-1] + 1))
    values = np.asarray(array.values, dtype=float)
    finite = values[np.isfinite(values)]
    top = float(np.abs(finite).max()) if finite.size else 1.0
    kind = "diverging" if (finite < 0).any() else "blue"
    layers = array["layer"].values if "layer" in array.coords else np.arange(values.shape[0])
    heads = array["head"].values if "head" in array.coords else np.arange(values.shape[1])
    words = " · ".join(w for w in (data.attrs["long_name"], data.attrs["selection"]) if w)
    return values, np.asarray(layers, int), np.asarray(heads, int), kind, theme.colour_limits(kind, top), words


def on_screen(
    data: xr.Dataset,
    title: str | None = None,
    selected: tuple[int, int] | None = None,
    contrast: str = "linear",
    height: int | None = None,
    **_,
):
    """Heads as cells. A click selects: invisible points lie on the cells, because only points can be selected."""
    import plotly.graph_objects as go

    values, layers, heads, kind, (low, high), words = _table(data)
    units = data.attrs["units"] if data.attrs["units"] not in ("", "1", "dimensionless") else ""
    cell = 24 if len(layers) <= 16 else 14
    tall = height or int(np.clip(cell * len(layers) + 90, 190, 560))
    made = go.Figure()
    made.add_trace(
        go.Heatmap(
            z=values,
            x=heads,
            y=layers,
            zmin=low,
            zmax=high,
            xgap=1.5,
            ygap=1.5,
            hoverinfo="skip",
            colorscale=[[p, c] for p, c in theme.colour_scale(kind, contrast)],
            colorbar={
                "thickness": 8,
                "outlinewidth": 0,
                "len": 1.0,
                "xpad": 6,
                "ypad": 0,
                "nticks": 4,
                "tickfont": {"size": 10, "color": theme.MUTED},
                "ticklen": 2,
                "title": {"text": for_html(units)},
            },
        )
    )
    there = set(np.asarray(data["layer"].values, int).tolist())
    grid = [(h, y, value) for y, row in zip(layers, values) if y in there for h, value in zip(heads, row)]
    size = max(8, min(40, (tall - 90) / max(1, len(layers))))
    made.add_trace(
        go.Scatter(
            x=[h for h, _, _ in grid],
            y=[y for _, y, _ in grid],
            mode="markers",
            customdata=[value for _, _, value in grid],
            hovertemplate="layer %{y}, head %{x}<br><b>%{customdata:.4g}</b><extra></extra>",
            showlegend=False,
            marker={"symbol": "square", "size": size, "opacity": 0, "color": theme.INK},
            selected={"marker": {"opacity": 0}},
            unselected={"marker": {"opacity": 0}},
        )
    )
    shapes = []
    if selected is not None:
        layer, head = selected
        shapes = [
            {
                "type": "rect",
                "x0": head - 0.47,
                "x1": head + 0.47,
                "y0": layer - 0.47,
                "y1": layer + 0.47,
                "line": {"color": theme.INK, "width": 2},
                "fillcolor": "rgba(0,0,0,0)",
            }
        ]
    line = words if title is None else title
    made.update_layout(
        **theme.screen_layout(
            height=tall,
            shapes=shapes,
            dragmode=False,
            hovermode="closest",
            margin={"l": 8, "r": 8, "t": 30 if line else 8, "b": 8},
            xaxis=theme.screen_axis(
                title_text="head",
                range=[heads[0] - 0.55, heads[-1] + 0.55],
                fixedrange=True,
                showline=False,
                ticks="",
                **_few(heads),
            ),
            yaxis=theme.screen_axis(
                title_text="layer",
                range=[layers[-1] + 0.55, layers[0] - 0.55],
                fixedrange=True,
                showline=False,
                ticks="",
                **_few(layers),
            ),
        )
    )
    if line:
        made.update_layout(title={"text": for_html(line), "x": 0, "y": 0.98, "yanchor": "top", "font": {"size": 13}})
    return made


def _few(numbers) -> dict:
    return {"dtick": 1, "tick0": 0} if len(numbers) <= 16 else {"tickformat": "d"}


def in_print(data: xr.Dataset, width: float, title: str | None = None, contrast: str = "linear", **_):
    from matplotlib.ticker import MaxNLocator

    values, layers, heads, kind, (low, high), words = _table(data)
    made = canvas(width, min(8.0, 0.24 * len(layers) + 0.75))
    ax = made.subplots()
    image = ax.imshow(
        values,
        cmap=theme.colour_map(kind, contrast),
        vmin=low,
        vmax=high,
        aspect="auto",
        interpolation="nearest",
        extent=(heads[0] - 0.5, heads[-1] + 0.5, layers[-1] + 0.5, layers[0] - 0.5),
    )
    ax.spines[:].set_visible(False)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(12, integer=True))
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    if values.size <= 160:
        for (i, j), value in np.ndenumerate(values):
            if np.isfinite(value):
                dark = abs(value) > 0.6 * max(abs(low), high)
                ax.text(
                    heads[j],
                    layers[i],
                    f"{value:.2g}".replace("-", "−"),
                    ha="center",
                    va="center",
                    size=5.5,
                    color=theme.PAPER if dark else theme.INK,
                )
    bar = made.colorbar(image, ax=ax, fraction=0.05, pad=0.03, aspect=30)
    bar.outline.set_visible(False)
    bar.set_label(for_print(data.attrs["units"] if data.attrs["units"] not in ("1",) else ""))
    line = words if title is None else title
    if line:
        made.suptitle(for_print(line), x=0.01, ha="left")
    settle(made)
    return made


register("overview", "a statistic by layer and head", data=data, plotly=on_screen, matplotlib=in_print, wide=False)
