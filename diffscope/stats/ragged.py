"""Layers that differ in their number of heads as one array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def stack_layers(layers: Sequence[np.ndarray], axis: int = 0) -> np.ndarray:
    """Stack arrays of several layers, (…, head, …), along a new axis before that of the heads.

    Parameters
    ----------
    layers : sequence of ndarray (…, head, …)
        Of one shape but for the number of heads.
    axis : int
        Of the heads; not negative.

    Returns
    -------
    ndarray (…, layer, head, …)
        Float64; NaN if a layer has no such head.
    """
    heads = max(layer.shape[axis] for layer in layers)
    padded = []
    for layer in layers:
        lacking = [(0, heads - layer.shape[axis] if number == axis else 0) for number in range(layer.ndim)]
        padded.append(np.pad(np.asarray(layer, dtype=float), lacking, constant_values=np.nan))
    return np.stack(padded, axis)
