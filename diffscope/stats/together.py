"""Several small layers as one with all their heads, so that a short prompt pays for operations once instead of once a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from diffscope.attention import LayerAttention
from diffscope.layout import Pairing


def alike(layers: Sequence[LayerAttention]) -> bool:
    """Whether layers of one prompt differ in nothing but the numbers they hold, as far as maps are concerned."""
    first = layers[0]
    kept = ("scale", "score_dtype", "lengths", "n_heads", "differential")
    return first.mask.kind != "given" and all(
        not layer.changes
        and (layer.mask.kind, layer.mask.window) == (first.mask.kind, first.mask.window)
        and (layer.q.shape, layer.k.shape, layer.q.dtype, layer.q.device)
        == (first.q.shape, first.k.shape, first.q.dtype, first.q.device)
        and all(getattr(layer, name) == getattr(first, name) for name in kept)
        for layer in layers
    )


def joined(layers: Sequence[LayerAttention]) -> LayerAttention:
    """One layer with the heads of all, those of the first layer first; for maps alone, it has no values and nothing after them.

    Parameters
    ----------
    layers : sequence of LayerAttention
        Of one prompt and :func:`alike`.
    """
    first, maps, keys = layers[0], layers[0].q.shape[1], layers[0].k.shape[1]

    def shifted(name: str, by: int) -> Tensor:
        return torch.cat([getattr(layer.pairing, name) + by * number for number, layer in enumerate(layers)])

    def by_head(name: str) -> Tensor:
        values = [getattr(layer, name) for layer in layers]
        queries = max(x.shape[2] for x in values)
        return torch.cat([x.expand(1, first.n_heads, queries) for x in values], dim=1)

    pairing = Pairing(
        shifted("a1", maps),
        shifted("a2", maps) if first.differential else None,
        shifted("key_of_map", keys),
        torch.zeros(len(layers) * first.n_heads, dtype=torch.int64, device=first.q.device),
    )
    return replace(
        first,
        q=torch.cat([layer.q for layer in layers], dim=1),
        k=torch.cat([layer.k for layer in layers], dim=1),
        v=first.v[..., :0],
        pairing=pairing,
        **{name: by_head(name) for name in ("lam", "gain", "lam_fp32")},
        norm=None,
        correction=None,
        gate=None,
    )
