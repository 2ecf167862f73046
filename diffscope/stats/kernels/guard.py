"""Compare the Triton kernels with plain rows on their first use in a process, and fall back if they differ.

A compiler, a driver or a card that nobody tried may compute wrong numbers without an error. So before the kernels serve a layout
(device, dtype, head width, mask, kind of maps, soft cap, sink logits) for the first time, every moment is computed on some
rows of the layer both ways. On a device where any moment differs by more than its bound, the kernels are not used again.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from diffscope.attention.blocks import Block, stream
from diffscope.attention.components import Rows
from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import map_of, present
from diffscope.errors import DiffscopeWarning, first_line
from diffscope.stats.kernels import rows as kernels
from diffscope.stats.moments import NEAR_ZERO, of_maps

COMPARED_ROWS = 256  # queries, spread over the prompt
RELATIVE, ABSOLUTE = 5e-5, 5e-6  # bounds of sums, of scores of about ten in float32; those of roots are wider
ROOTS = 5e-4
EDGE = 1e-3  # share of a threshold within which float32 may count a weight on either side of it
BRACKETED = ("gini", "quantiles", "top")

Moments = Mapping[str, Mapping[str, Tensor]]  # by map and moment, each (head, query, ...)

_lock = threading.Lock()
_compared: set[tuple] = set()  # layouts on which the kernels agree
_refused: set[torch.device] = set()


def agrees(layer: LayerAttention) -> bool:
    """Return whether the kernels compute what plain rows do; False for good on a device where they once did not.

    It is False of a layer whose queries, keys, λ or gain are not finite. DiffscopeWarning once for a device on which the kernels
    differ, or fail.
    """
    device = layer.q.device
    key = _layout(layer)
    with _lock:
        if device in _refused or not _finite(layer):
            return False  # of what is not finite nothing can be compared; blocks say which rows are NaN
        if key in _compared:
            return True
        try:
            difference = next(_differences(layer), None)
        except Exception as error:  # a compiler or driver may raise anything
            difference = f"they fail ({first_line(error)})"
        if difference is None:
            _compared.add(key)
            return True
        _refused.add(device)
    warnings.warn(
        f"Triton's kernels do not compute what plain rows do on {device}: {difference}; from now on row statistics come from "
        "blocks of rows there, as with backend='blocks'",
        DiffscopeWarning,
        stacklevel=2,
    )
    return False


def _finite(layer: LayerAttention) -> bool:
    """Return whether queries, keys, λ and gain are finite; each is read once, without a copy, and the device is asked once."""
    largest = [torch.linalg.vector_norm(x, torch.inf).float() for x in (layer.q, layer.k, layer.lam, layer.gain)]
    return bool(torch.stack(largest).isfinite().all())


def _layout(layer: LayerAttention) -> tuple:
    """Return what the kernels are compiled for."""
    maps = layer.differential, layer.d_is_a1
    scores = layer.soft_cap is not None, layer.sink_logit is not None
    return layer.q.device, layer.q.dtype, layer.q.shape[-1], layer.mask.kind, *maps, *scores


def _differences(layer: LayerAttention) -> Iterator[str]:
    """Yield in words every moment of some rows in which kernels and plain rows differ by more than the bound."""
    some = min(COMPARED_ROWS, layer.n_queries)
    queries = torch.linspace(0, layer.n_queries - 1, some, dtype=torch.float64).round().long().to(layer.q.device)
    computed = kernels.moments(layer, queries, set(kernels.MOMENTS))

    def compare(block: Block, rows: Rows) -> list[str]:
        of_block = {
            name: {moment: x[block.heads.start : block.heads.stop, block.at] for moment, x in of_map.items()}
            for name, of_map in computed.items()
        }
        return list(_differences_of_block(layer, rows, of_block))

    for _, differences in stream(layer, queries, compare, temporaries=16):
        yield from differences


def _differences_of_block(layer: LayerAttention, rows: Rows, computed: Moments) -> Iterator[str]:
    """Yield in words the moments of a block that differ; `computed` are those of the kernels."""
    names = present(layer, ("A1", "A2", "D"))
    maps = {name: map_of(rows, name).clone() for name in names}  # (head, query, key); the moments are taken in place
    plain = of_maps(rows, kernels.MOMENTS)  # (map, head, query, ...)
    keys = slice(rows.start, rows.start + rows.a1.shape[-1])
    seen = layer.mask.rows(rows.queries, layer.n_keys, layer.offset, keys)  # (query, key)
    for number, name in enumerate(names):
        of_map = {moment: x[number].double() for moment, x in plain.items()}
        found = {moment: x.double() for moment, x in computed[name].items()}
        for moment in kernels.MOMENTS:
            if moment in ("negatives", "small", "peak"):
                excess = _excess_of_positions(moment, maps[name].double(), seen, of_map, found[moment], rows)
            else:
                excess = _excess(moment, of_map[moment], found, rows.n)
            if not (excess <= 0).all():
                worst = float((found[moment] - of_map[moment]).abs().nan_to_num(nan=torch.inf).max())
                yield f"{moment} of {name} differs by up to {worst:.1e}"


def _excess(moment: str, plain: Tensor, found: Mapping[str, Tensor], n: Tensor) -> Tensor:
    """Return how far a moment differs beyond its bound, (head, query, ...); at most 0 if it agrees."""
    relative = ROOTS if moment in ("roots", *BRACKETED) else RELATIVE
    allowed = relative * plain.abs() + (ROOTS if moment == "roots" else ABSOLUTE)
    if moment not in BRACKETED:
        return _off(found[moment], plain) - allowed
    ordered = ((n > 1) & (found["total"] > 0)).reshape(*found["total"].shape, *(1,) * (plain.dim() - 2))
    off = _off(found[moment], plain) - found[f"{moment}_width"] / 2 - allowed
    return off.masked_fill(~ordered, 0)  # one key, or a row of zeros, has no order


def _excess_of_positions(moment: str, x: Tensor, seen: Tensor, plain: Mapping[str, Tensor], found: Tensor, rows: Rows) -> Tensor:
    """Return how far a count, or the weight at a peak, is beyond what rounding explains, (head, query)."""
    size = x.abs()
    unsure = ABSOLUTE * size.amax(-1, keepdim=True)
    if moment == "peak":
        column = found.long() - rows.start
        inside = (column >= 0) & (column < x.shape[-1])
        at_peak = size.gather(-1, column.clamp(0, x.shape[-1] - 1)[..., None])[..., 0]
        return (size.amax(-1) - at_peak - unsure[..., 0]).masked_fill(~inside, torch.inf)
    if moment == "negatives":
        fewest, most = ((x < edge).sum(-1) for edge in (-unsure, unsure))
        most = most.clamp_max(seen.sum(-1))
    else:
        edge = NEAR_ZERO * (plain["total"] / rows.n)[..., None]
        fewest, most = (((size < edge * (1 + sign * EDGE) + sign * unsure) & seen).sum(-1) for sign in (-1, 1))
        found = torch.where(plain["total"] > 0, found, fewest)  # a row of zeros has no threshold
    return torch.maximum(fewest - found, found - most)


def _off(found: Tensor, plain: Tensor) -> Tensor:
    """Return the absolute difference; 0 if both are NaN, infinite if one is."""
    off = (found - plain).abs().nan_to_num(nan=torch.inf)
    return off.masked_fill(found.isnan() & plain.isnan(), 0)
