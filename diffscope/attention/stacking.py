"""Stack several small layers as one layer with all their heads: a short prompt pays for each operation once, not once a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from diffscope.attention.components import Norm, Pairing
from diffscope.attention.layer import LayerAttention


def can_stack(layers: Sequence[LayerAttention], outputs: bool = True) -> bool:
    """Return whether layers of the same prompts differ only in their numbers, so that they can be the heads of one layer.

    Parameters
    ----------
    layers : sequence of LayerAttention
    outputs : bool
        Whether their outputs are stacked as well as their maps: then their norms are of one kind, and they have neither gate nor
        correction.
    """
    first = layers[0]

    def signature(layer: LayerAttention) -> tuple:
        shapes = (layer.q.shape, layer.k.shape, layer.v.shape, layer.q.dtype, layer.v.dtype, layer.q.device)
        mask = (layer.mask.kind, layer.mask.window)
        sink_dtype = None if layer.sink_logit is None else layer.sink_logit.dtype
        scores = (layer.scale, layer.score_dtype, layer.soft_cap, sink_dtype)
        norm = layer.norm and (layer.norm.kind, layer.norm.eps, layer.norm.weight is None)
        return (*shapes, *mask, *scores, layer.lengths, layer.n_heads, layer.differential, norm if outputs else None)

    if outputs and any(layer.gate is not None or layer.correction is not None for layer in layers):
        return False
    return first.mask.kind != "given" and all(
        not layer.changes and signature(layer) == signature(first) and layer.pairing.same_as(first.pairing) for layer in layers
    )


def stack(layers: Sequence[LayerAttention], outputs: bool = True) -> LayerAttention:
    """Return one layer with the heads of all, those of the first layer first.

    With their outputs it has a norm whose weights hold each layer's factor after the norm as well. For maps alone it has no
    values, and nothing after them.

    Parameters
    ----------
    layers : sequence of LayerAttention
        Of one prompt, which :func:`can_stack`.
    outputs : bool
        Whether to stack the outputs as well as the maps.
    """
    first = layers[0]
    sinks = [layer.sink_logit for layer in layers if layer.sink_logit is not None]

    def side_by_side(values: list[Tensor], count: int) -> Tensor:  # each (1, count or 1, query or 1)
        queries = max(x.shape[2] for x in values)
        return torch.cat([x.expand(1, count, queries) for x in values], dim=1)

    def by_head(values: list[Tensor]) -> Tensor:
        return side_by_side(values, first.n_heads)

    return replace(
        first,
        q=torch.cat([layer.q for layer in layers], dim=1),
        k=torch.cat([layer.k for layer in layers], dim=1),
        v=torch.cat([layer.v for layer in layers], dim=1) if outputs else first.v[..., :0],
        pairing=stack_pairings(layers),
        lam=by_head([layer.lam for layer in layers]),
        gain=by_head([layer.gain for layer in layers]),
        lam_fp32=by_head([layer.lam_fp32 for layer in layers]),
        sink_logit=side_by_side(sinks, first.q.shape[1]) if sinks else None,
        norm=_stacked_norm(layers) if outputs else None,
        post_scale=1.0,
        correction=None,
        gate=None,
    )


def _stacked_norm(layers: Sequence[LayerAttention]) -> Norm:
    """Return the norm of all heads, with each layer's factor after the norm in its weights (head, width)."""
    first = layers[0]
    shape = (first.n_heads, first.v.shape[-1])

    def weight(layer: LayerAttention) -> Tensor:
        ones = layer.v.new_ones(shape, dtype=layer.dtype)
        learned = None if layer.norm is None else layer.norm.weight
        return (ones if learned is None else learned.to(layer.dtype).expand(shape)) * layer.post_scale

    kind = first.norm.kind if first.norm else "scalar"
    eps = first.norm.eps if first.norm else 0.0
    return Norm(kind, eps, torch.cat([weight(layer) for layer in layers]))


def stack_pairings(layers: Sequence[LayerAttention]) -> Pairing:
    """Return which maps, keys and values of the stacked layer each of its heads uses."""
    pairings = [layer.pairing for layer in layers]
    maps, keys, values = (x.shape[1] for x in (layers[0].q, layers[0].k, layers[0].v))

    def shifted(indices: list[Tensor], by: int) -> Tensor:
        return torch.cat([index + by * number for number, index in enumerate(indices)])

    seconds = [pairing.a2 for pairing in pairings if pairing.a2 is not None]
    return Pairing(
        shifted([pairing.a1 for pairing in pairings], maps),
        shifted(seconds, maps) if seconds else None,
        shifted([pairing.key_of_map for pairing in pairings], keys),
        shifted([pairing.value_of_head for pairing in pairings], values),
    )
