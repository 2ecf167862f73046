"""Stack several small layers as one layer with all their heads: a short prompt pays for each operation once, not once a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

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
    signatures = []
    for layer in layers:
        if (
            layer.changes
            or layer.mask.kind == "given"
            or layer.position_bias is not None
            or (outputs and (layer.gate is not None or layer.correction is not None))
        ):
            return False
        shapes = (layer.q.shape, layer.k.shape, layer.v.shape, layer.q.dtype, layer.v.dtype, layer.q.device)
        mask = (layer.mask.kind, layer.mask.window)
        sink_dtype = None if layer.sink_logit is None else layer.sink_logit.dtype
        scores = (layer.scale, layer.score_dtype, layer.soft_cap, sink_dtype)
        norm = outputs and layer.norm and (layer.norm.kind, layer.norm.eps, layer.norm.weight is None)
        pairing = [None if index is None else index.tolist() for index in vars(layer.pairing).values()]
        signatures.append((*shapes, *mask, *scores, layer.lengths, layer.kind, layer.key_lengths, norm, pairing))
    return all(signature == signatures[0] for signature in signatures[1:])


def stack(layers: Sequence[LayerAttention], outputs: bool = True) -> LayerAttention:
    """Return one layer with the heads of all, those of the first layer first; a single layer as it is.

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
    if len(layers) == 1:
        return first
    fields: dict[str, Any] = {name: torch.cat([getattr(layer, name) for layer in layers], dim=1) for name in "qkv"}
    for name, count in (
        ("lam", first.n_heads),
        ("gain", first.n_heads),
        ("lam_fp32", first.n_heads),
        ("sink_logit", first.q.shape[1]),
    ):
        values = [value for layer in layers if (value := getattr(layer, name)) is not None]  # each (1, count or 1, query or 1)
        queries = max((value.shape[2] for value in values), default=1)
        fields[name] = torch.cat([value.expand(1, count, queries) for value in values], dim=1) if values else None
    if outputs:
        fields["norm"] = _stacked_norm(layers)
    else:
        fields |= {"v": first.v[..., :0], "norm": None}
    pairing = stack_pairing(first.pairing, first, len(layers))
    return replace(first, **fields, pairing=pairing, post_scale=1.0, correction=None, gate=None)


def _stacked_norm(layers: Sequence[LayerAttention]) -> Norm:
    """Return the norm of all heads, with each layer's factor after the norm in its weights (head, width)."""
    first = layers[0]
    weights = []
    for layer in layers:
        learned = None if layer.norm is None else layer.norm.weight
        weight = layer.v.new_ones((), dtype=layer.dtype) if learned is None else learned.to(layer.dtype)
        weights.append(weight.expand(first.n_heads, first.v.shape[-1]) * layer.post_scale)
    kind, eps = (first.norm.kind, first.norm.eps) if first.norm else ("scalar", 0.0)
    return Norm(kind, eps, torch.cat(weights))


def stack_pairing(pairing: Pairing, layer: LayerAttention, count: int) -> Pairing:
    """Return which maps, keys and values each head of a stack uses.

    Parameters
    ----------
    pairing : Pairing
        Of each layer of the stack.
    layer : LayerAttention
        One of them.
    count : int
        How many they are.
    """
    number = torch.arange(count, device=layer.q.device)[:, None]
    maps, keys, values = (number * x.shape[1] for x in (layer.q, layer.k, layer.v))
    return Pairing(
        (pairing.a1 + maps).flatten(),
        None if pairing.a2 is None else (pairing.a2 + maps).flatten(),
        (pairing.key_of_map + keys).flatten(),
        (pairing.value_of_head + values).flatten(),
    )


def repeat_heads(layer: LayerAttention, pairings: Sequence[Pairing]) -> LayerAttention:
    """Return a layer with all its heads under each of several pairings, which differ in ``a1`` and ``a2``; without changes."""
    count = len(pairings)
    fields: dict[str, Any] = {}
    for name in ("lam", "gain", "lam_fp32", "gate", "correction"):
        value, dim = getattr(layer, name), 0 if name == "correction" else 1
        if value is not None and value.shape[dim] == layer.n_heads:
            fields[name] = torch.cat([value] * count, dim)
    if layer.norm is not None and layer.norm.weight is not None and layer.norm.weight.dim() > 1:
        fields["norm"] = replace(layer.norm, weight=layer.norm.weight.repeat(count, 1))
    seconds = [pairing.a2 for pairing in pairings if pairing.a2 is not None]
    fields["pairing"] = Pairing(
        torch.cat([pairing.a1 for pairing in pairings]),
        torch.cat(seconds) if seconds else None,
        layer.pairing.key_of_map,
        layer.pairing.value_of_head.repeat(count),
    )
    return replace(layer, **fields)
