"""A statistic of every head over the steps of a training, one head set apart, beside its control."""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError, check_choice
from diffscope.figures import line_data, line_print, line_screen, theme
from diffscope.figures.escaping import for_html
from diffscope.figures.figure import Chart
from diffscope.numbers import head_name
from diffscope.stats.labels import UNIFORM

CONTROL = "control: A₂ of other heads"
INKS = (theme.SERIES[0], theme.MUTED)  # of heads, of which one is set apart, and of its control
TITLE = "step of training (evenly spaced)"
NEAR, MOST_NAMES = 0.08, 2  # of the range of values: lines that end so close share a label, which has so many names
ROOM = 64  # pixels of the labels


def data(estimates: xr.Dataset, statistic: str, layer: int | None = None, head: int = 0, evenly: bool = True) -> xr.Dataset:
    """Return values (panel, series, x) of all heads; of a statistic that is the same for all heads of a layer, of all layers.

    Steps are numbers along x, unless they are `evenly` spaced as the few checkpoints of a training are.
    """
    from diffscope.readings.pairing_control import MIDDLE, OWN  # with which models' code would be loaded for every figure

    if not (isinstance(estimates, xr.Dataset) and "step" in estimates.dims):
        raise DiffscopeError("this figure is of the estimates of diffscope.readings.along_training(captures)")
    followed = [str(name) for name, values in estimates.items() if {"step", "layer", "head"} <= set(values.dims)]
    check_choice("followed statistic", statistic, followed)
    values = estimates[statistic]
    if values.isnull().all():
        raise DiffscopeError(f"{values.attrs['long_name']} is undefined at every step of this training")
    own = values.sel(control=OWN, drop=True) if "control" in values.dims else values
    if layer is None:  # the first in which the head has a value
        of_head = own.sel(head=head) if head in values["head"] else own.isel(head=0)
        layer = int(values["layer"][of_head.notnull().any("step").values.argmax()])
    if layer not in values["layer"] or head not in values["head"]:
        raise DiffscopeError(f"there is no head {head} of layer {layer} in these estimates")
    if own.sel(layer=layer, head=head).isnull().all():
        raise DiffscopeError(f"{values.attrs['long_name']} is undefined in {head_name(layer, head)}; choose another head")
    rows = _by_layer(own) if _same_for_heads(own) else _by_head(own)
    chosen = f"layer {layer}" if _same_for_heads(own) else head_name(layer, head)
    apart = [chosen]
    if "control" in values.dims:
        rows[CONTROL] = values.sel(control=MIDDLE, layer=layer, head=head).values
        apart.append(CONTROL)
    rows = {name: row for name, row in rows.items() if name not in apart} | {name: rows[name] for name in apart}
    numbers = values["step"].values.tolist()
    title = TITLE if evenly else "step of training"
    steps = xr.Variable("step", [str(step) for step in numbers] if evenly else numbers, {"long_name": title})
    about = values.attrs | ({"long_name": "λ"} if statistic == "lambda" else {})
    table = xr.DataArray(list(rows.values()), {"series": list(rows), "step": steps}, ("series", "step"), attrs=about)
    uniform = float(estimates["uniform"].sel(layer=layer)[-1]) if statistic == "answer" else np.nan
    references = {UNIFORM: uniform} if np.isfinite(uniform) else {}
    dataset = line_data.data(table, "step", "series", references=references)
    return dataset.assign_attrs(apart=apart)


def _same_for_heads(values: xr.DataArray) -> bool:
    """Return whether all heads of a layer have one value, as of most mechanisms λ."""
    return bool((values.max("head") == values.min("head")).all()) and values.sizes["head"] > 1


def _by_layer(values: xr.DataArray) -> dict[str, np.ndarray]:
    return {f"layer {int(layer)}": values.sel(layer=layer).max("head").values for layer in values["layer"]}


def _by_head(values: xr.DataArray) -> dict[str, np.ndarray]:
    """Return the courses of the heads that there are, by name."""
    return {
        head_name(int(layer), int(head)): course.values
        for layer in values["layer"]
        for head in values["head"]
        if (course := values.sel(layer=layer, head=head)).notnull().any()
    }


def _is_by_layer(data: xr.Dataset) -> bool:
    """Return whether lines are of layers, few enough for a colour each."""
    return data.attrs["apart"][0].startswith("layer ") and data.sizes["series"] <= len(theme.SERIES)


def _with_looks(data: xr.Dataset) -> xr.Dataset:
    """Return data with a colour of each of few layers; of heads with one colour, and grey for the control."""
    names = [str(name) for name in data["series"].values]
    if _is_by_layer(data):
        names.sort(key=lambda name: int(name.rpartition(" ")[2]))
        return data.sel(series=names).assign_attrs(looks={name: (colour, "solid") for name, colour in zip(names, theme.SERIES)})
    apart = dict(zip(data.attrs["apart"], zip(INKS, ("solid", "dash"))))
    return data.assign_attrs(looks={name: apart.get(name, (INKS[0], "solid")) for name in names})


def on_screen(data: xr.Dataset, title: str | None = None, height: int = 260):
    """Draw for the screen; steps are as far from each other as their logarithms, so that a long way looks like one."""
    highlight = [] if _is_by_layer(data) else data.attrs["apart"]
    figure = line_screen.on_screen(_with_looks(data), title=title, height=height, highlight=highlight)
    figure.layout.annotations = _names_at_ends(data)
    figure.layout.margin.r = ROOM
    figure.update_shapes(label_textposition="start")  # at the end stand the names of lines
    names, numbers = line_data.places_of(data)
    if not numbers and len(names) > 1:
        _place_by_logarithm(figure, names)
    return figure


def _place_by_logarithm(figure, names: list[str]) -> None:
    """Move evenly spaced steps to log2(1 + step / first step after 0)."""
    steps = np.array([int(name) for name in names])
    places = dict(zip(names, np.log2(1 + steps / steps[steps > 0].min()).tolist()))
    for trace in figure.data:
        trace.x = [places[name] for name in trace.x]
    figure.update_annotations(x=places[names[-1]])
    ticks = {"tickmode": "array", "tickvals": list(places.values()), "ticktext": names}
    figure.update_xaxes(type="linear", title_text="step of training (log scale)", **ticks)


def _names_at_ends(data: xr.Dataset) -> list[dict]:
    """Return labels with the names of faint lines at their last values; lines that end close together share one."""
    values = data["value"].isel(panel=0)
    labelled = [name for name in values["series"].values if _is_by_layer(data) or name not in data.attrs["apart"]]
    ends = values.isel(x=-1).sel(series=labelled)
    ends = ends.dropna("series")
    ends = ends.sortby(ends)
    near = NEAR * float(values.max() - values.min())
    groups: list[list[int]] = []
    for at in range(ends.size):
        if groups and float(ends[at] - ends[groups[-1][0]]) <= near:
            groups[-1].append(at)
        else:
            groups.append([at])
    look = {"showarrow": False, "xanchor": "left", "xshift": 6, "font": {"size": 10, "color": theme.MUTED}}
    places, numbers = line_data.places_of(data)
    last = places[-1] if numbers else len(places) - 1
    labels = []
    for group in groups:
        names = [for_html(str(name)) for name in ends["series"].values[group]]
        text = ", ".join(names) if len(names) <= MOST_NAMES else f"{len(names)} others"
        labels.append({"text": text, "hovertext": ", ".join(names), "x": last, "y": float(ends[group].mean())} | look)
    return labels


def in_print(data: xr.Dataset, width: float, title: str | None = None):
    """Draw for print."""
    apart = [] if _is_by_layer(data) else data.attrs["apart"]
    others = "other layers" if data.attrs["apart"][0].startswith("layer") else "other heads"
    return line_print.in_print(_with_looks(data), width, title=title, highlight=apart, others=others)


CHART = Chart(on_screen, in_print)
