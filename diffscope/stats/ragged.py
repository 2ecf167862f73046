"""Stack arrays that differ in their sizes, such as those of layers that differ in their number of heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def stack_layers(layers: Sequence[np.ndarray], axis: int = 0) -> np.ndarray:
    """Stack arrays of layers, (…, head, …), along a new axis before that of the heads, not negative: (…, layer, head, …).

    They are float64, NaN if a layer has no such head. Raises ValueError if they differ in more than the number of heads.
    """
    if len({(*layer.shape[:axis], *layer.shape[axis + 1 :]) for layer in layers}) > 1:
        raise ValueError("layers may differ in their heads alone")
    return np.ascontiguousarray(np.moveaxis(stacked([np.asarray(layer, dtype=float) for layer in layers]), 0, axis))


def stacked(values: Sequence[np.ndarray]) -> np.ndarray:
    """Stack arrays along a new first axis, each filled up with NaN to the size of the largest."""
    if len({array.shape for array in values}) == 1:
        return np.stack(values)
    out = np.full((len(values), *np.max([array.shape for array in values], axis=0)), np.nan, dtype=values[0].dtype)
    for part, array in zip(out, values):
        part[tuple(map(slice, array.shape))] = array
    return out
