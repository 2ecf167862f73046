"""What the drawings of a map agree on, on screen and in print: limits, labels, which cells a query cannot see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import xarray as xr

from diffscope.attention.maps import short_title
from diffscope.figures import theme
from diffscope.figures.escaping import short_name, visible
from diffscope.numbers import head_name, minus

ROBUST = 0.999  # of the weights that are drawn: those above it do not decide the scale
FAINT = (
    10  # times the rest the largest weight may be before a picture of bins is faint: the first queries have few keys to share it
)


@dataclass(frozen=True)
class Panel:
    """One map, ready for a back-end: values with NaN where the query cannot see the key, and its colours."""

    name: str
    title: str  # not escaped, nor is the next
    short: str
    values: np.ndarray
    kind: str  # blue, orange or diverging
    limits: tuple[float, float]
    beyond: tuple[bool, bool]  # whether values go below the limits and above them, and are drawn like these


def panels(data: xr.Dataset, scale: str = "shared", limit: float | str | None = None) -> list[Panel]:
    """Return the maps of a dataset, ready to be drawn; parameters as of ``diffscope.figures.maps``."""
    seen = {
        str(name): np.where(data["visible"].values, np.asarray(array.values, dtype=np.float32), np.nan)
        for name, array in data.data_vars.items()
    }
    pooled = data.attrs.get("bin", 1) > 1
    shared = _end(list(seen.values()), limit, pooled)
    shown = []
    for name, array in data.data_vars.items():
        drawn = array.attrs.get("map", name)
        values = seen[str(name)]
        kind = theme.scale_of(str(drawn), values)
        end = shared if scale == "shared" else _end([values], limit, pooled)
        title = array.attrs["title"]
        short = array.attrs.get("short", short_title(title))
        limits = theme.colour_limits(kind, end)
        least, most = float(np.nanmin(values, initial=0.0)), float(np.nanmax(values, initial=0.0))
        beyond = (least < limits[0] * (1 + 1e-6), most > limits[1] * (1 + 1e-6))
        shown.append(Panel(str(name), title, short, values, kind, limits, beyond))
    return shown


def _end(maps: list[np.ndarray], limit: float | str | None, pooled: bool) -> float:
    """Return the value at the end of a scale of several maps."""
    if limit is not None and limit != "robust":
        return float(limit)
    sizes = np.abs(np.concatenate([values[np.isfinite(values)] for values in maps]))
    largest = float(sizes.max(initial=0.0))
    if (limit is None and not pooled) or not sizes.any():
        return largest
    robust = float(np.quantile(sizes[sizes > 0], ROBUST))
    return robust if limit == "robust" or largest > FAINT * robust else largest


def end_label(value: float, panel: Panel) -> str:
    """Return the words at a tick of a scale, which say at an end that values go beyond it."""
    number = "0" if value == 0 else f"{value:.2g}".replace("-", "−")
    (below, above), (least, most) = panel.beyond, panel.limits
    if value == most and above:
        return f"≥ {number}"
    return f"≤ {number}" if value == least and below else number


def positions(data: xr.Dataset, dim: str) -> np.ndarray:
    return np.asarray(data[dim].values, dtype=int)


def labels(data: xr.Dataset, dim: str) -> list[str]:
    """Return the visible token at each position of a dimension, which has no bins."""
    return [visible(str(token)) for token in data[f"{dim}_token"].values]


def edges(data: xr.Dataset, dim: str) -> tuple[float, float]:
    """Return where the first cell of a dimension begins and the last ends, in positions."""
    firsts = positions(data, dim)
    return firsts[0] - 0.5, firsts[-1] + data.attrs.get("bin", 1) - 0.5


def marked_spans(data: xr.Dataset, dim: str = "key") -> dict[str, list[tuple[int, int]]]:
    """Return spans of the keys or queries worth a mark: all but the first token's."""
    of_queries = data.attrs.get("spans", {})
    spans = data.attrs.get("key_spans", of_queries) if dim == "key" else of_queries  # in cross-attention keys have their own
    return {name: pieces for name, pieces in spans.items() if name != "sink" and pieces}


def span_colours(data: xr.Dataset) -> dict[str, str]:
    """Return the colour of each span of the queries and keys."""
    return theme.span_colours([*data.attrs.get("spans", {}), *data.attrs.get("key_spans", {})])


def spans_in_view(data: xr.Dataset) -> Iterator[tuple[str, str, float, float]]:
    """Return each run of positions of a marked span, as far as it is drawn: name, dimension, and its two ends on that axis."""
    for dim in ("key", "query"):
        low, high = edges(data, dim)
        for name, pieces in marked_spans(data, dim).items():
            for start, stop in pieces:
                first = max(start - 0.5, low)
                last = min(stop - 0.5, high)
                if first < last:
                    yield name, dim, first, last


def heading(data: xr.Dataset) -> str:
    """Return one line that says what is seen."""
    attrs = data.attrs
    parts = [short_name(attrs["model"])] if attrs.get("model") else []
    if "layer" in attrs and "head" in attrs:
        parts.append(head_name(attrs["layer"], attrs["head"]))
    elif "layer" in attrs:
        parts.append(f"layer {attrs['layer']}")
    lam = attrs.get("lam")
    if isinstance(lam, str):
        parts.append(f"λ {lam}")
    elif lam is not None:
        parts.append(minus(f"λ = {float(lam):.3f}"))
    if attrs.get("bin", 1) > 1:
        parts.append(f"largest |value| of each {attrs['bin']} × {attrs['bin']}")
    return " · ".join(parts)
