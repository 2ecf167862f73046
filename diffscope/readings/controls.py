"""One rule for a control that several models have: it is never averaged over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr


def once_or_each(controls: Mapping[str, xr.DataArray]) -> dict[str, xr.DataArray]:
    """A control by model: once, under no name, where it is the same for all, else one for each; without undefined ones."""
    defined = {name: values for name, values in controls.items() if values.notnull().any()}
    if len(defined) == 1 == len(controls) or (len(defined) > 1 and _equal(list(defined.values()))):
        return {"": next(iter(defined.values()))}
    return defined


def _equal(controls: Sequence[xr.DataArray]) -> bool:
    """Whether all have the same numbers at the same places."""
    first, *others = controls
    return all(values.shape == first.shape and np.allclose(values, first, equal_nan=True) for values in others)
