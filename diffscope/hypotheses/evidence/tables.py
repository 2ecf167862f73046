"""Quantities of one model with what its heads count: what tests compare, whether a model is open or was read long ago."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

HEADS = ["layer", "head"]
ANSWERS = 0.1  # a head answers if this much of A1 is on the answer


@dataclass(frozen=True)
class Table:
    """Quantities of one model.

    Attributes
    ----------
    values : mapping of str to DataArray (prompt, layer, head), or (prompt,)
    weights : DataArray (layer, head), optional
        What heads count with, by default A1's mass on the answer; None of what has no heads.
    """

    values: Mapping[str, xr.DataArray]
    weights: xr.DataArray | None = None

    def mean(self, name: str) -> xr.DataArray:
        """A quantity of the model, (prompt,): the mean over all heads, weighted. What is undefined or infinite is left out."""
        return weighted(self.values[name], self.weights, HEADS)

    def by_layer(self, name: str) -> np.ndarray | None:
        """The same within each layer, mean over prompts: (layer,)."""
        values = self.values[name]
        return None if "head" not in values.dims else weighted(values, self.weights, ["head"]).mean("prompt").values

    def by_head(self, name: str) -> np.ndarray | None:
        """Mean over prompts of every head alone, (layer, head)."""
        values = self.values[name]
        return None if "head" not in values.dims else _finite(values).mean("prompt").transpose(*HEADS).values

    def apart(self, names: Sequence[str]) -> Table:
        """With some quantities of heads that answer and of the others, each head alike: ``NAME_answering``, ``NAME_others``."""
        if self.weights is None or not names:
            return self
        answers = self.weights > ANSWERS
        parts = {}
        for name in names:
            parts[f"{name}_answering"] = _finite(self.values[name]).where(answers).mean(HEADS)
            parts[f"{name}_others"] = _finite(self.values[name]).where(~answers).mean(HEADS)
        return replace(self, values={**self.values, **parts})


def weighted(values: xr.DataArray, weights: xr.DataArray | None, dims: list[str]) -> xr.DataArray:
    """The weighted mean over those of layer and head that there are, of what is finite; all alike without weights."""
    if "head" not in values.dims:
        return _finite(values)
    others = [dim for dim in values.dims if dim not in HEADS]
    ordered = values.transpose(*others, *HEADS).values
    defined = np.isfinite(ordered)
    alike = 1.0 if weights is None else weights.transpose(*HEADS).values
    counted = np.where(defined, alike, 0.0)
    axes = tuple(range(-len(dims), 0))
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (np.where(defined, ordered, 0.0) * counted).sum(axes) / counted.sum(axes)
    return xr.DataArray(means, dims=[*others, *(dim for dim in HEADS if dim not in dims)])


def _finite(values: xr.DataArray) -> xr.DataArray:
    return values.where(np.isfinite(values))
