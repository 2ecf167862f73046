"""A statistic by layer and head."""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.capture.captions import edits_of
from diffscope.errors import DiffscopeError, check_choice
from diffscope.figures import cell_chart
from diffscope.figures.figure import Chart
from diffscope.figures.inputs import any_capture, position_of
from diffscope.stats.averaging import averaged
from diffscope.stats.labels import at_labels, is_unsigned, usual_label
from diffscope.stats.negative_mass import WHATEVER


def data(
    cap,
    statistic: str = "span_mass",
    query: int | str | None = -1,
    measured: xr.Dataset | None = None,
    **choices,
) -> xr.Dataset:
    """Return one statistic over (layer, head); parameters as of ``diffscope.figures.heads``."""
    cap = any_capture(cap).only()
    if measured is None:
        measured = cap.measure([statistic])
    elif measured.sizes.get("prompt") == 1:
        measured = measured.squeeze("prompt", drop=True)
    if query != "mean":
        query = position_of(-1 if query is None else query, len(cap.prompts[0].ids))
        if "kind" in measured.coords:  # an encoder's queries are of another text
            measured = measured.sel(layer=measured["kind"] != "encoder")
    check_choice("measured statistic", statistic, measured.data_vars)
    array = measured[statistic]
    for dim, label in choices.items():
        if label is not None and dim not in array.dims:
            raise DiffscopeError(f"{statistic} is not measured by {dim}, so that {label!r} cannot be chosen; leave {dim} out")
    dataset = over_heads(array, query, choices, model=cap.model_name).assign_attrs(edits=edits_of({"": cap}))
    return dataset.assign_attrs(signs=_signs(cap, dataset, array, query, choices))


def _signs(cap, dataset: xr.Dataset, array: xr.DataArray, query: int | str, choices: dict) -> str:
    """Return in which heads the weights that a share of |D| sums are negative; nothing of what has a sign of its own."""
    if not is_unsigned(dataset.attrs["selection"]):
        return ""
    from diffscope.readings.signs import of_span  # which loads code of models

    if array.name != "span_mass":
        return WHATEVER if cap.differential else ""
    return of_span(cap, str(choices.get("span") or usual_label(list(array["span"].values), "span")), query)


def of_two(comparison, statistic: str, query, measured: xr.Dataset | None, choices: dict) -> xr.DataArray:
    """Return one statistic (model, layer, head) of two models; parameters as of :func:`data`."""
    measured = comparison.measure([statistic]) if measured is None else measured
    of_models = []
    for name, cap in zip(comparison.names, comparison.captures):
        own = measured.sel(model=name, drop=True)
        if cap.differential and statistic in own:
            own[statistic].attrs.pop("why", None)  # which is said of the other model
        of_models.append(data(cap, statistic, query, own, **choices))
    arrays = [dataset[statistic] for dataset in of_models]
    together = xr.concat(arrays, xr.DataArray(list(comparison.names), dims="model", name="model"), join="outer")
    first = of_models[0].attrs
    selections = _in_common([dataset.attrs["selection"].split(", ") for dataset in of_models])
    title = " · ".join(word for word in (first["long_name"], selections) if word)
    edits = edits_of(dict(zip(comparison.names, comparison.captures)))
    from diffscope.readings.signs import within  # which loads code of models

    signs = " ".join(within(f"In {name}", each.attrs["signs"]) for name, each in zip(comparison.names, of_models)).strip()
    return together.assign_attrs(
        long_name=title, units=first["units"], model=" and ".join(comparison.names), edits=edits, signs=signs
    )


def _in_common(selections: list[list[str]]) -> str:
    """Return what was selected of two models: the words that both have once, then those of each."""
    common = [word for word in selections[0] if all(word in words for words in selections)]
    own = dict.fromkeys(", ".join(word for word in words if word not in common) for words in selections)
    return " · ".join(filter(None, [", ".join(common), " or ".join(own)]))


def over_heads(array: xr.DataArray, query=-1, choices: dict | None = None, model: str = "") -> xr.Dataset:
    """Select along every dimension but layer and head of a statistic of one prompt, as ``measure`` gives it.

    A negative `query` counts from the axis' end, and "mean" is over all. Where `choices` names no label of a dimension, it is the
    usual one.
    """
    attrs = dict(array.attrs)
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
        "model": model,
        "statistic": str(array.name),
        "selection": ", ".join(words),
        "units": str(attrs.get("units", "")),
        "long_name": str(attrs.get("long_name", array.name)),
        "definition": str(attrs.get("definition", "")),
    }
    return dataset


def by_head(values: xr.DataArray) -> xr.DataArray:
    """Return values (layer, head, ...) along one dimension ``head`` with the labels L0H0, L0H1, …"""
    flat = values.stack(place=("layer", "head"))
    names = [f"L{layer}H{head}" for layer, head in flat["place"].values]
    flat = flat.drop_vars(["place", "layer", "head"]).rename(place="head").assign_coords(head=names)
    return flat.transpose("head", ...)


def _at_query(array: xr.DataArray, query: int | None) -> tuple[xr.DataArray, str]:
    """Return the values at one query, and which it is."""
    if query is None or query < 0 or "query" not in array.coords:
        array = array.isel(query=-1 if query is None else query)
    elif query in array["query"].values:
        array = array.sel(query=query)
    else:
        raise DiffscopeError(f"query {query} was not measured; choose one that was")
    return array, f"query {int(array['query'])}" if "query" in array.coords else "one query"


def _as_cells(data: xr.Dataset) -> xr.Dataset:
    """Return data as of cells; a layer without attention is an empty row."""
    array = data[data.attrs["statistic"]]
    layers = array["layer"].values
    array = array.reindex(layer=np.arange(layers.min(), layers.max() + 1))
    units = data.attrs["units"] if data.attrs["units"] not in ("", "1") else ""
    return cell_chart.data(array.assign_attrs(long_name=units, units="1"), "head", "layer")


def _heading(data: xr.Dataset, title: str | None) -> str:
    return " · ".join(word for word in (data.attrs["long_name"], data.attrs["selection"]) if word) if title is None else title


def on_screen(data: xr.Dataset, title: str | None = None, contrast: str = "linear"):
    """Draw for the screen."""
    return cell_chart.on_screen(_as_cells(data), _heading(data, title), contrast)


def in_print(data: xr.Dataset, width: float, title: str | None = None, contrast: str = "linear"):
    """Draw for print."""
    return cell_chart.in_print(_as_cells(data), width, _heading(data, title), contrast)


CHART = Chart(on_screen, in_print)
