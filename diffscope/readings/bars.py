"""The five bars of two captures beside each other, in the form of Figure 1 of "Differential Transformer" (Ye et al., 2024)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from diffscope.readings import signs
from diffscope.readings.reading import described

UNIFORM = "uniform attention"
Head = tuple[int, int]  # layer and head


def bars(
    first: xr.Dataset,
    second: xr.Dataset,
    names: tuple[str, str],
    *,
    map: str = "D",
    normalisation: str = "share",
    heads: tuple[Head, Head] | None = None,
) -> xr.Dataset:
    """What two captures give to the five parts of their prompts, beside what uniform attention gives.

    Parameters
    ----------
    first, second : xarray.Dataset
        The ``estimates`` of :func:`diffscope.readings.prompt_parts.allocation`, each of one query.
    names : (str, str)
        What the two are called.
    map, normalisation : str
    heads : ((int, int), (int, int)), optional
        Layer and head of each; by default the mean over heads, then layers.

    Returns
    -------
    xarray.Dataset, (side, part)
        ``value``; of means also the least and the largest head of all layers, ``low`` and ``high``. The last sides are uniform
        attention: one where it is the same for both, else one each.
    """
    chosen = dict(zip(names, heads)) if heads else None
    return bars_of_all(dict(zip(names, (first, second), strict=True)), map=map, normalisation=normalisation, heads=chosen)


def bars_of_all(
    estimates: Mapping[str, xr.Dataset],
    *,
    map: str = "D",
    normalisation: str = "share",
    heads: Mapping[str, Head] | None = None,
) -> xr.Dataset:
    """The bars of any number of captures by name, as of :func:`bars`; `heads` by the same names."""
    sides = [
        _of_side(table.sel(map=map, normalisation=normalisation), heads[name] if heads else None)
        for name, table in estimates.items()
    ]
    controls = [side["uniform"].rename("value").to_dataset() for side in sides]
    first, *others = (side["uniform"].values for side in sides)
    # means over other numbers of layers are rounded otherwise
    alike = all(np.allclose(first, other, equal_nan=True) for other in others)
    labels = [*estimates, *([UNIFORM] if alike else [f"{UNIFORM}, {name}" for name in estimates])]
    together = [*(side.drop_vars("uniform") for side in sides), *(controls[:1] if alike else controls)]
    dataset = xr.concat(together, xr.DataArray(labels, dims="side", name="side"), data_vars="all", combine_attrs="override")
    over = "one head" if heads else "mean over heads, then layers"
    words = {"value": over, "low": "least head of all layers", "high": "largest head of all layers"}
    name = f"attention, {signs.amount(map, normalisation)}"
    return xr.Dataset({key: described(values, name, words[str(key)]) for key, values in dataset.data_vars.items()})


def _of_side(estimates: xr.Dataset, head: Head | None) -> xr.Dataset:
    """The bars of one side and of uniform attention, (part,)."""
    allocation = estimates["allocation"]
    if head is None:
        ends = {"low": allocation.min(("layer", "head")), "high": allocation.max(("layer", "head"))}
        dataset = xr.Dataset({"value": estimates["over_layers"], "uniform": estimates["uniform"].mean("layer"), **ends})
    else:
        layer, number = head
        value = allocation.sel(layer=layer, head=number)
        dataset = xr.Dataset({"value": value, "uniform": estimates["uniform"].sel(layer=layer)})
    return dataset.reset_coords(drop=True)
