"""Several small layers as one with all their heads, so that a short prompt pays for operations once instead of once a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.attention.parts import Norm, Pairing


def alike(layers: Sequence[LayerAttention]) -> bool:
    """Whether layers of one prompt differ in nothing but the numbers they hold, as far as maps are concerned."""
    first = layers[0]
    kept = ("scale", "score_dtype", "lengths", "n_heads", "differential")
    return first.mask.kind != "given" and all(
        not layer.changes
        and (layer.mask.kind, layer.mask.window) == (first.mask.kind, first.mask.window)
        and (layer.q.shape, layer.k.shape, layer.v.shape, layer.q.dtype, layer.v.dtype, layer.q.device)
        == (first.q.shape, first.k.shape, first.v.shape, first.q.dtype, first.v.dtype, first.q.device)
        and all(getattr(layer, name) == getattr(first, name) for name in kept)
        and all(torch.equal(own, of_first) for own, of_first in zip(_maps(layer), _maps(first)))
        for layer in layers
    )


def _maps(layer: LayerAttention) -> list[Tensor]:
    return [x for x in vars(layer.pairing).values() if x is not None]


def alike_to_the_end(layers: Sequence[LayerAttention]) -> bool:
    """Whether, besides, what comes after the maps is a norm of one kind, or none, and a factor."""
    norms = [layer.norm and (layer.norm.kind, layer.norm.eps, layer.norm.weight is None) for layer in layers]
    nothing_else = all(layer.gate is None and layer.correction is None for layer in layers)
    return nothing_else and all(norm == norms[0] for norm in norms) and alike(layers)


def joined(layers: Sequence[LayerAttention]) -> LayerAttention:
    """One layer with the heads of all, those of the first layer first; for maps alone, it has no values and nothing after them.

    Parameters
    ----------
    layers : sequence of LayerAttention
        Of one prompt and :func:`alike`.
    """
    first = layers[0]

    def by_head(name: str) -> Tensor:
        values = [getattr(layer, name) for layer in layers]
        queries = max(x.shape[2] for x in values)
        return torch.cat([x.expand(1, first.n_heads, queries) for x in values], dim=1)

    return replace(
        first,
        **{name: torch.cat([getattr(layer, name) for layer in layers], dim=1) for name in ("q", "k")},
        v=first.v[..., :0],
        pairing=joined_pairing(layers),
        **{name: by_head(name) for name in ("lam", "gain", "lam_fp32")},
        norm=None,
        post_scale=1.0,
        correction=None,
        gate=None,
    )


def joined_to_the_end(layers: Sequence[LayerAttention]) -> LayerAttention:
    """The same of layers that are :func:`alike_to_the_end`, with their values, and a norm whose weights hold each layer's factor
    as well."""
    first, shape = layers[0], (layers[0].n_heads, layers[0].v.shape[-1])

    def weight(layer: LayerAttention) -> Tensor:  # (head, width)
        own = None if layer.norm is None else layer.norm.weight
        ones = layer.v.new_ones(shape, dtype=layer.dtype)
        return (ones if own is None else own.to(layer.dtype).expand(shape)) * layer.post_scale

    kind, eps = (first.norm.kind, first.norm.eps) if first.norm else ("scalar", 0.0)
    norm, v = Norm(kind, eps, torch.cat([weight(layer) for layer in layers])), torch.cat([layer.v for layer in layers], dim=1)
    return replace(joined(layers), v=v, norm=norm)


def joined_pairing(layers: Sequence[LayerAttention]) -> Pairing:
    """Which maps, keys and values of the joined layer each of its heads uses."""
    maps, keys, values = (x.shape[1] for x in (layers[0].q, layers[0].k, layers[0].v))

    def shifted(name: str, by: int) -> Tensor:
        return torch.cat([getattr(layer.pairing, name) + by * number for number, layer in enumerate(layers)])

    a2 = shifted("a2", maps) if layers[0].differential else None
    return Pairing(shifted("a1", maps), a2, shifted("key_of_map", keys), shifted("value_of_head", values))
