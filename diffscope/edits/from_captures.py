"""Edits made from other prompts: what a model does there on average, put in the place of what it does here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from diffscope.attention.changes import Change, FixA2, PositionalA2
from diffscope.attention.components import Norm
from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import map_of
from diffscope.edits.base import WHOLE_MAPS_UP_TO, Edit, Stage, check_second, field_edit, row_edit
from diffscope.errors import DiffscopeError, InsufficientMemory, PromptError, UnsupportedModel
from diffscope.prompts.selection import Indices, as_indices

Sums = dict[int, tuple[Tensor, Tensor]]  # by layer: sums over prompts, and of how many values
Opened = Any  # a diffscope.Scope, which is above this room


def mean_a2(scope: Opened, prompts: Sequence, layers: Indices = None, heads: Indices = None) -> Edit:
    """The mean of the second map over prompts of one length: what position alone, whatever the words, says of it.

    Parameters
    ----------
    scope : diffscope.Scope
    prompts
        A batch as ``Scope.capture`` takes it, such as a list of texts or token ids (B, N). All are of one length in tokens; the
        edit serves prompts up to that length.
    """
    label = "A2 = its mean over prompts"
    sums: Sums = {}
    for layer in _captured(scope, prompts, "mean_a2", layers, whole=True, same_length=True):
        check_second(label, layer)
        a2 = map_of(layer.rows(), "A2")  # (head, query, key)
        _add(sums, layer.layer, a2, torch.ones_like(a2[:, :1, :1]))
    return _in_place_of_a2(label, sums, FixA2, layers, heads)


def positional_a2(scope: Opened, prompts: Sequence, layers: Indices = None, heads: Indices = None) -> Edit:
    """The mean of the second map over prompts and queries, by distance; the first key is counted by itself.

    A row puts the mean mass of the first key there, and shares the rest over the other keys it sees by the mean weight at their
    distance. It serves prompts up to the longest of `prompts`. With sink logits the means are of rows divided by their sums, and
    a row keeps the sum of the row of A2 that it replaces.
    """
    label = "A2 = its positional mean"
    sums: Sums = {}
    for layer in _captured(scope, prompts, "positional_a2", layers, whole=True):
        check_second(label, layer)
        if layer.n_keys < 2:
            raise PromptError("positional_a2 needs prompts of at least two tokens")
        visible = layer.visible()[None].to(layer.dtype)
        a2 = map_of(layer.rows(), "A2")  # (head, query, key)
        if layer.sink_logit is not None:
            a2 = a2 / a2.sum(-1, keepdim=True).clamp_min(1e-30)
        _add(sums, layer.layer, _by_distance(a2), _by_distance(visible))
    return _in_place_of_a2(label, sums, PositionalA2, layers, heads)


def scalar_norm(scope: Opened, prompts: Sequence, layers: Indices = None) -> Edit:
    """The norm's division by a token's own size replaced by one number a head: the mean of 1/rms over prompts' tokens.

    Its learned weight stays.
    """
    label = "scalar norm"
    sums: Sums = {}
    for layer in _captured(scope, prompts, "scalar_norm", layers):
        if layer.norm is None or layer.norm.kind != "rms":
            raise UnsupportedModel(f"{label}: layer {layer.layer} has no root-mean-square norm to replace")
        factor = replace(layer.norm, weight=None).factor(layer.head_outputs())  # (head, query)
        _add(sums, layer.layer, factor.sum(1), factor.new_full((layer.n_heads,), factor.shape[1]))

    def make(layer: LayerAttention, heads: tuple[int, ...]) -> LayerAttention:
        mean = _mean(label, sums, layer)  # (head,)
        if layer.norm is None or layer.norm.kind != "rms":  # another edit took it away
            return layer
        weight = mean[:, None].expand(-1, layer.v.shape[-1])
        weight = weight.clone() if layer.norm.weight is None else weight * layer.norm.weight.to(weight.dtype)
        return replace(layer, norm=Norm("scalar", 0.0, weight))

    return field_edit(label, make, layers)


def _captured(
    scope: Opened, prompts: Sequence, label: str, layers: Indices, whole: bool = False, same_length: bool = False
) -> Iterator[LayerAttention]:
    """The chosen layers of every prompt, one prompt in memory at a time."""
    plain, batch = scope.runner.split(prompts, scope.tokenizer)
    if not batch:
        raise PromptError(f"{label} needs a batch of prompts, such as a list of texts, and not one prompt")
    chosen = as_indices(layers)
    length: int | None = None
    for prompt in plain:
        capture = scope.capture(prompt)
        n = capture.n_tokens
        if whole and n > WHOLE_MAPS_UP_TO:
            raise InsufficientMemory(f"{label} keeps whole maps, and {n} tokens are more than {WHOLE_MAPS_UP_TO}")
        if same_length and n != (length or n):
            raise PromptError(f"{label} needs prompts of one length, but has {length} and {n} tokens")
        length = n
        yield from (layer.prompt(0) for layer in capture.layers if chosen is None or layer.layer in chosen)


def _add(sums: Sums, number: int, values: Tensor, counts: Tensor) -> None:
    """Add to a layer's sums; what is shorter than the others has nothing beyond its end."""
    total, count = sums.get(number, (values * 0, counts * 0))
    size = max(total.shape[-1], values.shape[-1])

    def grown(x: Tensor) -> Tensor:  # one count for all values stays one
        return x if x.shape[-1] == 1 else torch.nn.functional.pad(x, (0, size - x.shape[-1]))

    sums[number] = (grown(total) + grown(values), grown(count) + grown(counts))


def _by_distance(maps: Tensor) -> Tensor:
    """Sums over queries of a map (head, query, key): the first key, then others at distance 0, 1, ...; (head, key)."""
    later = maps[:, 1:, 1:]  # query 0 sees the first key alone
    diagonals = [later.diagonal(-distance, 1, 2).sum(-1) for distance in range(maps.shape[-1] - 1)]
    return torch.stack([maps[:, 1:, 0].sum(-1), *diagonals], dim=-1)


def _mean(label: str, sums: Sums, layer: LayerAttention) -> Tensor:
    if layer.layer not in sums:
        raise DiffscopeError(f"{label}: made from a model without attention in layer {layer.layer}")
    total, count = sums[layer.layer]
    if len(total) != layer.n_heads:
        raise DiffscopeError(f"{label}: made from a model of {len(total)} heads, and layer {layer.layer} has {layer.n_heads}")
    return (total / count.clamp_min(1)).to(layer.q.device, layer.dtype)


def _in_place_of_a2(label: str, sums: Sums, kind: Callable[..., Change], layers: Indices, heads: Indices) -> Edit:
    def change(layer: LayerAttention, heads: tuple[int, ...]) -> Change:
        return kind(heads, _mean(label, sums, layer)[None])

    return row_edit(label, Stage.MAPS, change, layers, heads, second=True, placed=True)
