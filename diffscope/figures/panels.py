"""What the drawings of a map agree on, on screen and in print: limits, labels, which cells a query cannot see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from diffscope.figures import theme
from diffscope.figures.escaping import visible

CHANGED = "D: A₁ as the layer changes it"  # where there is no second map


@dataclass(frozen=True)
class Panel:
    """One map, ready for a back-end: values with NaN where the query cannot see the key, and its colours."""

    name: str
    title: str
    values: np.ndarray
    kind: str  # blue, orange or diverging
    limits: tuple[float, float]


def panels(data: xr.Dataset, scale: str = "shared") -> list[Panel]:
    tops = {name: float(np.nanmax(np.abs(array.values), initial=0.0)) for name, array in data.data_vars.items()}
    shared = max(tops.values())
    made = []
    for name, array in data.data_vars.items():
        kind = theme.SCALES[name]
        values = np.where(data["visible"].values, np.asarray(array.values, dtype=np.float32), np.nan)
        limits = theme.colour_limits(kind, shared if scale == "shared" else tops[name])
        changed = name == "D" and data.attrs.get("lam") is None
        made.append(Panel(str(name), CHANGED if changed else theme.TITLES[name], values, kind, limits))
    return made


def positions(data: xr.Dataset, dim: str) -> np.ndarray:
    return np.asarray(data[dim].values, dtype=int)


def labels(data: xr.Dataset, dim: str) -> list[str]:
    """The visible token at each position of a dimension; of a bin, its positions."""
    there = positions(data, dim)
    bin_size = data.attrs.get("bin", 1)
    if bin_size > 1:
        last = data.attrs["n_tokens"] - 1
        return [f"{p}–{min(p + bin_size - 1, last)}" for p in there]
    return [visible(str(token)) for token in data[f"{dim}_token"].values]


def edges(data: xr.Dataset, dim: str) -> tuple[float, float]:
    """Where the first cell of a dimension begins and the last ends, in positions."""
    there, bin_size = positions(data, dim), data.attrs.get("bin", 1)
    return there[0] - 0.5, there[-1] + bin_size - 0.5


def marked_spans(data: xr.Dataset) -> dict[str, list[tuple[int, int]]]:
    """Spans worth a mark: named key sets, without the first token's and what is left over."""
    spans = data.attrs.get("spans", {})
    return {name: where for name, where in spans.items() if name not in ("sink", "context", "irrelevant") and where}


def short_name(model: str) -> str:
    """A model's name; of a folder its last part."""
    return model.rstrip("/").rpartition("/")[2] or model


def heading(data: xr.Dataset) -> str:
    """One line that says what is seen."""
    attrs = data.attrs
    parts = [short_name(attrs["model"])] if attrs.get("model") else []
    if "layer" in attrs:
        parts.append(f"layer {attrs['layer']}")
    if "head" in attrs:
        parts.append(f"head {attrs['head']}")
    lam = attrs.get("lam")
    if isinstance(lam, str):
        parts.append(f"λ {lam}")
    elif lam is not None and "A" not in data.data_vars:
        parts.append(f"λ = {float(lam):.3f}")
    if attrs.get("bin", 1) > 1:
        parts.append(f"largest of each {attrs['bin']} × {attrs['bin']}")
    return " · ".join(parts)
