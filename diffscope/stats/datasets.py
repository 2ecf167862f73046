"""What is measured with what has to be said of it: attributes, coordinates, and layers side by side in one Dataset."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from diffscope.attention.layer import LayerAttention
from diffscope.stats.collectors import Request
from diffscope.stats.registry import LABELS, STATISTICS, Statistic


class Measured(NamedTuple):
    """Statistics of one layer: by name the values, and what a Dataset says about them; and its coordinates."""

    values: dict[str, np.ndarray]
    attrs: dict[str, dict]
    coords: dict[str, np.ndarray]


def united(parts: Sequence[Measured], names: Sequence[str]) -> Measured:
    """Several measurements of one layer as one, their statistics in the order of `names`."""
    values = {name: part.values[name] for part in parts for name in part.values}
    attrs = {name: part.attrs[name] for part in parts for name in part.attrs}
    coords = {dim: labels for part in parts for dim, labels in part.coords.items()}
    return Measured({name: values[name] for name in names}, {name: attrs[name] for name in names}, coords)


def dataset(measured: Sequence[Measured], layers: Sequence[int] | None = None) -> xr.Dataset:
    """One Dataset of one layer, or of several along a dimension ``layer``.

    Layers may differ in their number of heads: what a layer does not have is NaN there.
    """
    labels: dict[str, np.ndarray] = {}
    for of_layer in measured:
        labels |= {dim: values for dim, values in of_layer.coords.items() if len(values) > len(labels.get(dim, ()))}
    variables = {}
    for name in measured[0].attrs:
        attrs = agreed([of_layer.attrs[name] for of_layer in measured], [f"layer {layer}" for layer in layers or ()])
        dims = STATISTICS[name].dims
        values = [of_layer.values[name] for of_layer in measured]
        if layers is None:
            variables[name] = (dims, values[0], attrs)
        else:
            variables[name] = (("layer", *dims), _stacked(values), attrs)
    coords = {dim: (dim, values) for dim, values in labels.items()}
    return xr.Dataset(variables, coords if layers is None else {"layer": list(layers), **coords})


def batch_dataset(measured: Sequence[Sequence[Measured]], layers: Sequence[int]) -> xr.Dataset:
    """One Dataset of several prompts, each with its layers, along dimensions ``prompt`` and ``layer``.

    Prompts may differ in their queries and spans: what a prompt does not have is NaN there.
    """
    names = [f"prompt {index}" for index in range(len(measured))]
    first = dataset(measured[0], layers)
    attrs = {}
    for name in measured[0][0].attrs:
        of_prompts = [
            agreed([each.attrs[name] for each in of_layers], [f"layer {layer}" for layer in layers]) for of_layers in measured
        ]
        attrs[name] = agreed(of_prompts, names)
    if all(_alike(of_layers, measured[0]) for of_layers in measured):
        stacked = {
            name: np.stack([_stacked([each.values[name] for each in of_layers]) for of_layers in measured]) for name in attrs
        }
        variables = {name: (("prompt", *first[name].dims), values, attrs[name]) for name, values in stacked.items()}
        return xr.Dataset(variables, first.coords)
    joined = xr.concat(
        [first, *(dataset(of_layers, layers) for of_layers in measured[1:])],
        "prompt",
        combine_attrs="override",
        join="outer",
        coords="minimal",
        compat="override",
        data_vars="all",
    )
    for name in attrs:
        joined[name].attrs = attrs[name]
    return joined


def _alike(measured: Sequence[Measured], others: Sequence[Measured]) -> bool:
    """Whether layers of two prompts have results of the same shape and labels."""
    return all(
        mine.coords.keys() == its.coords.keys()
        and all(np.array_equal(mine.coords[dim], its.coords[dim]) for dim in mine.coords)
        and all(mine.values[name].shape == its.values[name].shape for name in mine.values)
        for mine, its in zip(measured, others)
    )


def agreed(attrs: Sequence[dict], names: Sequence[str]) -> dict:
    """Merge the attributes of several results.

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


def _stacked(values: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays as one, each filled up with NaN to the size of the largest."""
    shape = np.max([array.shape for array in values], axis=0)
    if all(array.shape == tuple(shape) for array in values):
        return np.stack(values)
    out = np.full((len(values), *shape), np.nan, dtype=values[0].dtype)
    for place, array in zip(out, values):
        place[tuple(map(slice, array.shape))] = array
    return out


def attributes(statistic: Statistic, layer: LayerAttention) -> dict[str, str]:
    """What is said of a statistic of any layer like this one."""
    words = statistic.words
    attrs = {
        "units": words.units,
        "long_name": words.description,
        "definition": words.formula,
        "undefined": words.undefined,
        "source": words.source,
        "averaged": words.averaged,
    }
    if words.averaged_over:
        attrs["averaged_over"] = words.averaged_over
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
    """Labels of those of the dimensions that have any."""
    heads = range(request.layer.n_heads)
    labels = {
        **LABELS,
        "head": heads,
        "other_head": heads,
        "query": request.queries.cpu().numpy(),
        "span": list(request.spans),
    }
    return {dim: np.array(values) for dim, values in labels.items() if dim in dims}
