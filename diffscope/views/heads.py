"""All heads as a grid, layers × heads: what a browser is given, and the module that draws it (``head_grid.js``).

The buffer is a safetensors file in memory, as that of :mod:`diffscope.views.attention`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import numpy as np
import xarray as xr
from safetensors.numpy import save

from diffscope.attention.maps import short_title
from diffscope.errors import DiffscopeError
from diffscope.figures import theme
from diffscope.figures.pixels import pixels
from diffscope.numbers import capital
from diffscope.stats.labels import UNSIGNED, is_unsigned
from diffscope.stats.statistic import in_signs
from diffscope.views.attention import LOOK
from diffscope.views.component import Component

FAR_OUT = 3.0  # quartile ranges above the upper quartile: what lies beyond is far out (Tukey)
EXCEEDED = 0.995  # of a map's values: one in two hundred may lie beyond the colours, so that single keys do not bleach the others


#: Draws a buffer. Its events are ``"chosen"``, ``{layer, head}``, when a head is clicked or Enter is pressed on it, and, if heads
#: can be switched, ``"off"`` with the same on a click with shift or the key x.
COMPONENT = Component(("head_scale.js", "head_cells.js", "head_grid.js"), triggers=("chosen", "off"))


def buffer(
    statistic: xr.Dataset | None,
    thumbnails: xr.DataArray | None = None,
    chosen: tuple[int, int] | None = None,
    off: Iterable[tuple[int, int]] = (),
    *,
    switching: bool = False,
    heads: Mapping[int, int] | None = None,
    title: str = "",
) -> bytes:
    """Everything that the grid needs.

    Parameters
    ----------
    statistic : Dataset, optional
        What ``diffscope.figures.by_head.over_heads`` gives. Without thumbnails it colours the cells, with them a strip below
        each.
    thumbnails : DataArray, (layer, head, query, key), optional
        What ``capture.thumbnails`` gives; of thousands of heads ask it for 16 bins a side, which are less than 1 MB. They share
        one scale.
    chosen : (int, int), optional
        The layer and the head that are framed.
    off : iterable of (int, int)
        Layers and heads that are crossed out.
    switching : bool
        Whether heads can be switched off and on.
    heads : mapping of int to int, optional
        How many heads each layer has, where layers differ.
    title : str
        What is shown, in words; by default what the statistic calls itself.

    Returns
    -------
    bytes
        A safetensors file: ``values``, float32 (layer, head), NaN where undefined; ``thumbnails``, uint8 (layer, head, query,
        key), and ``visible``, uint8 (layer or 1, query, key); ``there``, uint8 (layer, head), whether there is such a head; and
        ``view``, JSON in its metadata. Layers are those that were measured.

    Raises
    ------
    DiffscopeError
        There is neither a statistic nor a thumbnail, or they are not of the same heads.
    """
    parts = [part for part in (statistic, thumbnails) if part is not None]
    if not parts:
        raise DiffscopeError("a grid of heads shows a statistic, thumbnails or both")
    layers, columns = (list(map(int, parts[0][dim].values)) for dim in ("layer", "head"))
    if any(list(part["layer"].values) != layers or list(part["head"].values) != columns for part in parts):
        raise DiffscopeError("the statistic and the thumbnails are not of the same layers and heads")
    about = {
        "title": title or _title(statistic, thumbnails),
        "layers": layers,
        "heads": len(columns),
        "chosen": None if chosen is None else _head(*chosen),
        "off": [_head(*place) for place in off],
        "switching": switching,
        "look": LOOK,
    }
    tensors = {"there": _there(layers, len(columns), thumbnails, heads)}
    if statistic is not None:
        values = np.ascontiguousarray(statistic[statistic.attrs["statistic"]].values, dtype=np.float32)
        tensors["values"] = values
        about["statistic"] = _statistic(statistic, values)
    if thumbnails is not None:
        pictures, about["picture"] = _pictures(thumbnails)
        tensors |= pictures
    return save(tensors, {"view": json.dumps(about)})


def _head(layer: int, head: int) -> dict[str, int]:
    return {"layer": int(layer), "head": int(head)}


def _title(statistic: xr.Dataset | None, thumbnails: xr.DataArray | None) -> str:
    if statistic is None:
        return f"{thumbnails.attrs['title']} of every head"
    return " · ".join(word for word in (statistic.attrs["long_name"], statistic.attrs["selection"]) if word)


def _there(layers: list[int], columns: int, thumbnails: xr.DataArray | None, heads: Mapping[int, int] | None) -> np.ndarray:
    """Which heads there are, uint8 (layer, head)."""
    if heads is not None:
        counts = np.array([heads[layer] for layer in layers])
        return (np.arange(columns) < counts[:, None]).astype(np.uint8)
    if thumbnails is not None:
        return thumbnails.notnull().any(("query", "key")).values.astype(np.uint8)
    return np.ones((len(layers), columns), dtype=np.uint8)


def _statistic(statistic: xr.Dataset, values: np.ndarray) -> dict:
    """Return what is said of a statistic, and where its colours may end."""
    attrs = statistic[statistic.attrs["statistic"]].attrs
    finite = np.abs(values[np.isfinite(values)])
    largest = float(finite.max(initial=0.0)) or 1.0
    nothing_there = np.isnan(values).all() and "why" in attrs
    return {
        "title": capital(statistic.attrs["long_name"]),
        "units": _units(statistic),
        "definition": _formula(statistic.attrs["definition"], statistic.attrs["selection"]),
        "undefined": attrs["why"] if nothing_there else "; ".join(_reasons(attrs)) or "no value was measured",
        "scale": "diverging" if (values < 0).any() else "blue",
        "largest": largest,
        "robust": _robust(finite) or largest,
        "unbounded": attrs.get("averaged") == "median",  # a ratio that one small denominator decides
    }


def _formula(formula: str, selection: str) -> str:
    """Return a formula in the signs of print; where there is one for each label, that of the label which was chosen."""
    chosen = selection.replace(UNSIGNED, "share").split(", ")
    named = [words for label, _, words in (part.partition(": ") for part in formula.split("; ")) if label in chosen]
    return in_signs(named[0] if named else formula)


def _units(statistic: xr.Dataset) -> str:
    """Return what is written behind a value: its unit, or what it is a share of."""
    if is_unsigned(statistic.attrs["selection"]):
        return "of |D|"
    return "" if statistic.attrs["units"] == "1" else str(statistic.attrs["units"])


def _reasons(attrs: Mapping) -> list[str]:
    """Say where a statistic is undefined, and what could not be estimated."""
    return [str(attrs[name]) for name in ("undefined", "unknown") if attrs.get(name, "nowhere") != "nowhere"]


def _robust(sizes: np.ndarray) -> float:
    """Return the largest of sizes that is not far out."""
    if not sizes.size:
        return 0.0
    lower, upper = np.percentile(sizes, (25, 75))
    return float(sizes[sizes <= upper + FAR_OUT * (upper - lower)].max())


def _pictures(thumbnails: xr.DataArray) -> tuple[dict[str, np.ndarray], dict]:
    """Thumbnails as levels of one scale, with which of their bins are seen, and what is said of them."""
    title = short_title(thumbnails.attrs["title"])
    name = title if title == "A" else str(thumbnails.name)
    values = thumbnails.transpose("layer", "head", "query", "key").values
    sizes = np.abs(values[..., 1:] if values.shape[-1] > 1 else values)  # the first key may receive most
    sizes = sizes[sizes > 0]
    limit = float(np.quantile(sizes, EXCEEDED)) if sizes.size else 1.0
    levels = pixels(values, limit, "linear")
    visible = thumbnails["visible"].transpose(..., "query", "key").values
    tensors = {
        "thumbnails": np.ascontiguousarray(levels.levels),
        "visible": np.ascontiguousarray(visible.reshape(-1, *visible.shape[-2:]), dtype=np.uint8),
    }
    about = {
        "title": title,
        "scale": theme.scale_of(name, values),
        "signed": levels.signed,
        "limit": limit,
        "clipped": bool((sizes > limit).any()),
    }
    return tensors, about
