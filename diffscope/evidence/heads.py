"""Quantities of one model with the weights of its heads, read off its evidence: what tests compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import xarray as xr

from diffscope.evidence.quantities import DIFFERENCES, RATIOS

HEADS = ["layer", "head"]
COSTS_NOTHING = 0.1  # nats of the answer's loss, of all heads of a layer
ANSWERS = 0.1  # a head answers if this much of A1 is on the answer
#: before the name of a quantity: of untrained models; the mean over their heads; the means over the heads of each layer
UNTRAINED, UNTRAINED_MEAN, UNTRAINED_LAYERS = "untrained.", "untrained_mean.", "untrained_layers."


@dataclass(frozen=True)
class Table:
    """Quantities of one model.

    Attributes
    ----------
    values : mapping of str to DataArray (prompt, layer, head), or (prompt,)
    weights : DataArray (layer, head), optional
        A1's mass on the answer, which heads count with unless there are costs; None of what has no heads.
    costs : DataArray (layer, head), optional
        What heads cost the answer, in nats: then they count with that.
    over : mapping of str to DataArray (layer, head), or None
        Of ratios of masses, the mass that each head's is divided by: weighted by costs they are ratios of weighted sums, since a
        head that hardly looks at what is divided by has a ratio without a bound. None where it was not kept: then the ratio is
        undefined.
    differences : mapping of str to (str, str)
        Quantities that are one ratio minus another; weighted by costs they are the difference of the two ratios of sums.
    second : mapping of str to DataArray, optional
        The values where heads count with A1's mass, if these are others.
    weighted_by : str
        How heads are weighted, as :data:`diffscope.hypotheses.rules.BY` names it.
    """

    values: Mapping[str, xr.DataArray]
    weights: xr.DataArray | None = None
    costs: xr.DataArray | None = None
    over: Mapping[str, xr.DataArray | None] = field(default_factory=dict)
    differences: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    second: Mapping[str, xr.DataArray] | None = None
    weighted_by: str = ""

    def mean(self, name: str) -> xr.DataArray:
        """Return a quantity of the model, (prompt,): the mean over all heads, weighted. Only finite values count."""
        return self._weighted(name, HEADS)

    def by_answer(self, name: str) -> xr.DataArray | None:
        """Return the same with heads weighted by A1's mass on the answer, (prompt,); None if :meth:`mean` is that already."""
        if self.costs is None or "head" not in self.values[name].dims:
            return None
        return weighted((self.second or self.values)[name], self.weights, HEADS)

    def by_layer(self, name: str) -> np.ndarray | None:
        """Return the mean within each layer and over prompts, (layer,).

        Heads count as in :meth:`mean`, but alike in a layer whose heads cost next to nothing: what they cost is chance there.
        """
        return None if "head" not in self.values[name].dims else self._weighted(name, ["head"]).mean("prompt").values

    def by_head(self, name: str) -> np.ndarray | None:
        """Return the mean over prompts of every head alone, (layer, head)."""
        values = self.values[name]
        return None if "head" not in values.dims else _finite(values).mean("prompt").transpose(*HEADS).values

    def counting(self, name: str) -> xr.DataArray | None:
        """Return what heads count with for a quantity, (layer, head); None if they have no weights, or are not of one mean."""
        if self.costs is None:
            return self.weights
        if name in self.differences:
            return None
        if name not in self.over:
            return self.costs
        over = self.over[name]
        return xr.full_like(self.costs, np.nan) if over is None else self.costs * over

    def lacks(self, name: str) -> str:
        """Return why a quantity is undefined with heads weighted by costs; empty if it is not, for all that is known here."""
        parts = self.differences.get(name, (name,))
        unknown = self.costs is not None and any(part in self.over and self.over[part] is None for part in parts)
        return "what it is divided by was not kept head by head, and a ratio of sums over heads needs that" if unknown else ""

    def _weighted(self, name: str, dims: list[str]) -> xr.DataArray:
        if self.costs is not None and name in self.differences:
            first, second = (self._weighted(part, dims) for part in self.differences[name])
            return first - second
        whole = self
        if self.costs is not None and dims == ["head"]:
            whole = replace(self, costs=self.costs.where(self.costs.sum("head") >= COSTS_NOTHING, 1.0))
        return weighted(self.values[name], whole.counting(name), dims)

    def apart(self, names: Sequence[str]) -> Table:
        """Add some quantities of heads that answer and of the others, each head alike: ``NAME_answering``, ``NAME_others``."""
        if self.weights is None or not names:
            return self
        answers = self.weights > ANSWERS
        parts = {}
        for name in filter(self.values.__contains__, names):
            parts[f"{name}_answering"] = _finite(self.values[name]).where(answers).mean(HEADS)
            parts[f"{name}_others"] = _finite(self.values[name]).where(~answers).mean(HEADS)
        return replace(self, values={**self.values, **parts})


def table_of(evidence: xr.Dataset, label: str, costs: xr.DataArray | None = None, weighted_by: str = "") -> Table:
    """Return the quantities LABEL.NAME of one trained model.

    Parameters
    ----------
    evidence : Dataset
        As :mod:`diffscope.evidence.take` says.
    costs : DataArray (layer, head), optional
        What heads cost the answer, by which they are weighted; else by A1's mass on the answer.
    weighted_by : str
        How that is called.
    """
    values = {name: _with_prompts(evidence[f"{label}.{name}"]) for name in names_of(evidence, label)}
    over = {name: _mass_of_a1(evidence, span) for name, span in RATIOS.get(label, {}).items()}
    weights = evidence.get("weight")
    return Table(values, weights, costs, over, DIFFERENCES.get(label, {}), weighted_by=weighted_by)


def untrained_table_of(
    evidence: xr.Dataset, index: int, label: str, costs: xr.DataArray | None = None, weighted_by: str = ""
) -> Table:
    """Return the same of one untrained model, by its number; its heads count as those of the trained model in their place.

    Stored evidence has means over its heads by A1's mass, and means over the heads of each layer: these count as one head that
    costs what the layer's heads cost together.
    """
    at = evidence.isel(untrained=index)
    if names_of(at, f"{UNTRAINED}{label}"):
        own = {str(name).removeprefix(UNTRAINED): at[name] for name in at.data_vars if str(name).startswith(UNTRAINED)}
        return table_of(xr.Dataset(own), label, costs, weighted_by)
    if costs is None:
        return Table({name: at[f"{UNTRAINED_MEAN}{label}.{name}"] for name in names_of(at, f"{UNTRAINED_MEAN}{label}")})
    layers = f"{UNTRAINED_LAYERS}{label}"
    values = {name: at[f"{layers}.{name}"].expand_dims("head", -1) for name in names_of(at, layers)}
    return Table(values, costs=costs.sum("head").expand_dims("head", -1))


def names_of(evidence: xr.Dataset, label: str) -> list[str]:
    """Return the NAMEs of the quantities LABEL.NAME that evidence holds."""
    start = f"{label}."
    return [str(name).removeprefix(start) for name in evidence.data_vars if str(name).startswith(start)]


def mean_over_prompts(values: xr.DataArray) -> xr.DataArray:
    """Return the mean over prompts, all or a few of them: (layer, head)."""
    return _with_prompts(values).mean("prompt")


def _with_prompts(values: xr.DataArray) -> xr.DataArray:
    """Return values whose prompts, all or a few of them, are along the dimension ``prompt``."""
    return values.rename({dim: "prompt" for dim in ("few", "fewer") if dim in values.dims})


def _mass_of_a1(evidence: xr.Dataset, span: str) -> xr.DataArray | None:
    """Return A1's mass on a key set, (layer, head); None if it is not held."""
    if span == "answer":
        return evidence["weight"]
    name = f"a1_mass.{span}"
    return mean_over_prompts(evidence[name]) if name in evidence else None


def weighted(values: xr.DataArray, weights: xr.DataArray | None, dims: list[str]) -> xr.DataArray:
    """Return the weighted mean over those of layer and head that there are, of what is finite; all alike without weights."""
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
