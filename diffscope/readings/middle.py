"""Means and medians of what is finite, of arrays; where nothing is, NaN without a warning."""

from __future__ import annotations

import numpy as np


def mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Mean along an axis."""
    finite = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(finite, values, 0).sum(axis) / finite.sum(axis)


def median(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Median along an axis."""
    ascending = np.sort(np.where(np.isfinite(values), values, np.nan), axis)  # NaN last
    if not values.shape[axis]:
        return np.full(ascending.sum(axis).shape, np.nan)
    count = np.isfinite(ascending).sum(axis, keepdims=True)
    low, high = (np.take_along_axis(ascending, at // 2, axis) for at in (np.maximum(count - 1, 0), count))
    return ((low + high) / 2).squeeze(axis)
