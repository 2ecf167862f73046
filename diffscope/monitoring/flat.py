"""Give measurements the flat names under which trackers group them: ``diffscope/overlap/layer_3/mean``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from diffscope.monitoring.measuring import CONTROL

PREFIX = "diffscope"
#: of each dimension the labels that are logged, the first of which goes without saying; of other dimensions all are, by name
LOGGED: dict[str, tuple[str | float, ...]] = {
    "lambda_value": ("used", "minus_init"),
    "normalisation": ("share",),
    "sink_set": ("S",),
    "outlier": ("top_1",),
    "quantile": (0.5,),
    "k": (1,),
    "definition": ("erank",),
    "control": ("map",),
}
UNSAID = ("irrelevant", "answer")  # spans: of two maps, and of masses
OF_D = ("negative_share", "negative_count", "row_sum")  # of softmax maps these say nothing


def flat(means: xr.Dataset, by_head: xr.Dataset, per_head: bool = False) -> dict[str, float]:
    """Return numbers by their flat names; what is undefined is left out.

    Parameters
    ----------
    means : xarray.Dataset
        By layer: averaged over heads and prompts.
    by_head : xarray.Dataset
        By layer and, for most, head: averaged over prompts.
    per_head : bool
        Whether to name every head; otherwise each layer's least and largest.

    Returns
    -------
    dict of str to float
        ``diffscope/NAME/layer_3/mean`` is a layer's average, ``…/min`` and ``…/max`` are of its heads, ``…/head_1`` is one head;
        of a whole layer there is ``diffscope/NAME/layer_3``. No name is the folder of another: MLflow makes files of them.
    """
    values: dict[str, float] = {}
    layers = means["layer"].values.tolist()
    for name in map(str, means.data_vars):
        for path, chosen in _logged(means[name]):
            of_layers = means[name].sel(chosen).values  # (layer,)
            heads = by_head[name].sel(chosen).transpose("layer", ...).values  # (layer, head), or (layer,)
            for layer, value, of_heads in zip(layers, of_layers, heads):
                at = f"{PREFIX}/{path}/layer_{layer}"
                if of_heads.ndim:
                    values |= {f"{at}/mean": float(value)} | _of_heads(at, of_heads, per_head)
                else:
                    values[at] = float(value)
    return {at: value for at, value in values.items() if not np.isnan(value)}


def _of_heads(at: str, heads: np.ndarray, per_head: bool) -> dict[str, float]:
    if per_head:
        return {f"{at}/head_{head}": float(value) for head, value in enumerate(heads)}
    if np.isnan(heads).all():
        return {}
    return {f"{at}/min": float(np.nanmin(heads)), f"{at}/max": float(np.nanmax(heads))}


def _logged(means: xr.DataArray) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path of each logged selection of a statistic, and its labels."""
    dims = [str(dim) for dim in means.dims if dim != "layer"]
    labels = {dim: _labels(means, dim) for dim in dims}
    unsaid = {dim: some[0] for dim, some in labels.items() if dim in (*LOGGED, "span") and some}
    for chosen in product(*labels.values()):
        words = [str(label) for dim, label in zip(dims, chosen) if label != unsaid.get(dim)]
        name = str(means.name)
        control = CONTROL if name.endswith(CONTROL) else ""
        yield "_".join([name.removesuffix(CONTROL), *words]) + control, dict(zip(dims, chosen))


def _labels(means: xr.DataArray, dim: str) -> list[Any]:
    """Return the labels of a dimension that are logged: of masses those on the answer, of two maps those on irrelevant keys."""
    known = means[dim].values.tolist()
    if dim == "map":
        if bool(means.sel(map="A2").isnull().all()):  # standard attention, of which D is A1
            return [] if means.name in OF_D else ["A1"]
        return ["D"] if means.name in OF_D else known
    if dim == "span":
        return [label for label in UNSAID if label in known and (label == "answer") == (str(means.name) == "span_mass")]
    wanted = LOGGED.get(dim, known)
    return [label for label in wanted if label in known]
