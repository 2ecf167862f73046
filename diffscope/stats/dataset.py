"""Put what is measured of layers and prompts side by side in one Dataset, with attributes and coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from xarray.indexes import PandasIndex

from diffscope.attention.layer import LayerAttention
from diffscope.stats.collect import Request
from diffscope.stats.ragged import stacked
from diffscope.stats.registry import LABELS
from diffscope.stats.statistic import Statistic


class Measured(NamedTuple):
    """Statistics of one layer of one prompt: values and attributes by name, coordinates by dimension."""

    values: dict[str, np.ndarray]
    attrs: dict[str, dict]
    coords: dict[str, np.ndarray]


def _index(dim: str, labels: Sequence | np.ndarray) -> PandasIndex:
    values = np.array(labels)
    return PandasIndex(values, dim, coord_dtype=values.dtype)


FIXED = {dim: _index(dim, labels) for dim, labels in LABELS.items()}


def dataset(measured: Sequence[Measured], statistics: Sequence[Statistic], layers: Sequence[int] | None = None) -> xr.Dataset:
    """Return one Dataset of one layer, or of several along a dimension ``layer``.

    Layers may differ in their number of heads: what a layer does not have is NaN there. `layers` are their numbers; without them
    there is one layer and no such dimension.
    """
    # Joined by hand: xarray.concat of a Dataset a layer takes 7 ms instead of 0.7 (3 layers, row statistics), and a sweep of
    # prompts of 256 tokens on mini-diff 37 ms a prompt instead of 32 in batches, 50 instead of 45 one by one (1 thread).
    labels: dict[str, np.ndarray] = {}
    for of_layer in measured:
        labels |= {dim: values for dim, values in of_layer.coords.items() if len(values) > len(labels.get(dim, ()))}
    variables = {}
    for name, dims in ((statistic.name, statistic.dims) for statistic in statistics):
        attrs = agreed([of_layer.attrs[name] for of_layer in measured], [f"layer {layer}" for layer in layers or ()])
        values = [of_layer.values[name] for of_layer in measured]
        variables[name] = (dims, values[0], attrs) if layers is None else (("layer", *dims), stacked(values), attrs)
    indexes = {} if layers is None else {"layer": _index("layer", layers)}
    indexes |= {dim: index for dim, index in FIXED.items() if any(dim in statistic.dims for statistic in statistics)}
    indexes |= {dim: _index(dim, values) for dim, values in labels.items()}
    coords = {dim: coord for index in indexes.values() for dim, coord in index.create_variables().items()}
    return xr.Dataset(variables, xr.Coordinates(coords, indexes))


def along_prompts(prompts: Sequence[xr.Dataset]) -> xr.Dataset:
    """Return one Dataset of several prompts along a dimension ``prompt``.

    Prompts may differ in their queries and spans: what a prompt does not have is NaN there.
    """
    first = prompts[0]
    labels = [f"prompt {index}" for index in range(len(prompts))]
    attrs = {name: agreed([of_prompt[name].attrs for of_prompt in prompts], labels) for name in first}
    if all(_same_axes(of_prompt, first) for of_prompt in prompts):
        stacked = {name: np.stack([of_prompt[name].values for of_prompt in prompts]) for name in first}
        return xr.Dataset({name: (("prompt", *first[name].dims), stacked[name], attrs[name]) for name in first}, first.coords)
    joined = xr.concat(
        prompts, "prompt", combine_attrs="override", join="outer", coords="minimal", compat="override", data_vars="all"
    )
    for name in first:
        joined[name].attrs = attrs[name]
    return joined


def along_layers(parts: Sequence[xr.Dataset], kinds: Sequence[Sequence[str]]) -> xr.Dataset:
    """Return one Dataset of layers of several kinds, in their order, with a coordinate ``kind`` of the layer.

    Kinds differ in their queries and spans: what a layer does not have is NaN there. Each part is of layers of one kind.
    """
    labelled = [part.assign_coords(kind=("layer", list(of_part))) for part, of_part in zip(parts, kinds)]
    first = labelled[0]
    joined = xr.concat(labelled, "layer", combine_attrs="override", join="outer", coords="minimal", compat="override")
    for name in first:
        joined[name].attrs = agreed([part[name].attrs for part in parts], [of_part[0] for of_part in kinds])
    joined.attrs["fidelity_worst"] = max(part.attrs["fidelity_worst"] for part in parts)
    return joined.sortby("layer")


def with_outliers(dataset: xr.Dataset, values: np.ndarray) -> xr.Dataset:
    """Add the outliers of the outputs of the layers around attention, (layer, outlier) or (prompt, layer, outlier)."""
    attrs = {"long_name": "largest magnitudes and median of the output of the layer around the attention", "units": "activation"}
    dims = ("prompt", "layer", "outlier")[-values.ndim :]
    return dataset.assign(layer_output_outliers=(dims, values, attrs)).assign_coords(outlier=list(LABELS["outlier"]))


def _same_axes(one: xr.Dataset, other: xr.Dataset) -> bool:
    return one.sizes == other.sizes and all(
        dim in other.coords and np.array_equal(one.coords[dim].values, other.coords[dim].values) for dim in one.coords
    )


def agreed(attrs: Sequence[dict], names: Sequence[str]) -> dict:
    """Merge the attributes of several results, whose names may be empty if there is one.

    Floats are bounds on errors: the largest is kept. Whole numbers are counts: they are added up. A text that all share is kept
    once; others become "layer 3: …; layer 5, layer 6: …".
    """
    first, *others = attrs
    if all(other == first for other in others) and all(isinstance(value, str) for value in first.values()):
        return dict(first)
    merged: dict[str, Any] = {}
    for key in dict.fromkeys(key for of_result in attrs for key in of_result):
        values = [of_result[key] for of_result in attrs if key in of_result]
        holders: dict[Any, list[str]] = {}
        for of_result, name in zip(attrs, names or [""] * len(attrs)):
            if key in of_result:
                holders.setdefault(of_result[key], []).append(name)
        if isinstance(values[0], Integral):
            merged[key] = int(sum(values))
        elif isinstance(values[0], float):
            merged[key] = max(values)
        elif len(holders[values[0]]) == len(attrs):
            merged[key] = values[0]
        else:
            merged[key] = "; ".join(f"{', '.join(of_value)}: {value}" for value, of_value in holders.items())
    return merged


def attributes(statistic: Statistic, layer: LayerAttention) -> dict[str, str]:
    """Return the attributes of a statistic of layers like this one."""
    attrs = dict(statistic.attributes)
    if not layer.differential and (why := _why(statistic, layer.d_is_a1)):
        attrs["why"] = why
    if statistic.name == "cmrr" and layer.differential and layer.d_is_changed:
        attrs["why"] = "D is changed after the subtraction, so it has no gains of a common and a differential mode"
    if "ranked_map" in statistic.dims and layer.differential:
        scalar = layer.lam.shape[-1] == 1
        attrs["lambda"] = "one value a head, cancels in the rank of lambda_A2" if scalar else "by token, does not cancel"
    return attrs


def _why(statistic: Statistic, d_is_a1: bool) -> str | None:
    d = "D is A1" if d_is_a1 else "D is A1 as the layer changes it"
    if "map" in statistic.dims:
        return f"standard attention has no second map: A2 is NaN and {d}"
    if "ranked_map" in statistic.dims:
        return f"standard attention has no second map: lambda_A2 is NaN and {d}"
    if statistic.kind == "branch" or statistic.name in ("lambda", "cmrr"):
        return "standard attention has no second map and no lambda"
    return None


def coordinates(request: Request, dims: set[str]) -> dict[str, np.ndarray]:
    """Return the labels of those of the dimensions that differ from layer to layer or from prompt to prompt."""
    heads = np.arange(request.layer.n_heads)
    labels = {"head": heads, "other_head": heads, "query": request.queries.cpu().numpy(), "span": np.array(list(request.spans))}
    return {dim: values for dim, values in labels.items() if dim in dims}
