"""Compute what uniform attention, the same weight on every visible key, gives to sets of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def keys_seen(visible: np.ndarray, sets: Mapping[str, Sequence[int]]) -> np.ndarray:
    """Count the visible keys of each set, (..., set), where `visible` (..., key) says which keys each query sees."""
    return np.stack([visible[..., list(keys)].sum(-1) for keys in sets.values()], -1)


def uniform_share(visible: np.ndarray, sets: Mapping[str, Sequence[int]], *, whole: bool = False) -> np.ndarray:
    """Return the share of each set in the keys that a query sees, (..., set); parameters as of :func:`keys_seen`.

    Shares of 0 and 1 are NaN unless they are asked for as `whole`, since a mass is undefined if a query sees none of a set, or
    nothing else. NaN for queries that see nothing.
    """
    total = visible.sum(-1)[..., None]
    with np.errstate(invalid="ignore"):
        share = keys_seen(visible, sets) / total
    return share if whole else np.where((share > 0) & (share < 1), share, np.nan)
