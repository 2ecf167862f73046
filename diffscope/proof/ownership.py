"""Layers that are their own: they share no memory with the model, which goes on to be trained, to decode and to be edited."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from diffscope.attention.changes import Change
from diffscope.attention.layer import LayerAttention
from diffscope.attention.stored import from_tensors, to_tensors
from diffscope.families import AttentionPass, Family
from diffscope.families.foreign import number
from diffscope.proof.float32_copy import tensors_in, tensors_of

_NUMBERS = ("scale", "post_scale", "lam_init", "soft_cap")
_SMALL = ("lam", "gain", "lam_fp32", "sink_logit", "correction")  # beside queries, keys and values, so always copied
_LARGE = ("q", "k", "v", "gate")


def readings(family: Family, passage: AttentionPass) -> Iterator[LayerAttention]:
    """The readings of a passage, with numbers where the model has tensors of one element.

    Raises
    ------
    UnsupportedModel
        A tensor of several elements stands where a layer has one number.
    """
    return (_with_numbers(layer, passage) for layer in family.readings(passage))


def _with_numbers(layer: LayerAttention, passage: AttentionPass) -> LayerAttention:
    values = {name: getattr(layer, name) for name in _NUMBERS}
    numbers: dict[str, Any] = {
        name: number(value, passage.module, name) for name, value in values.items() if isinstance(value, Tensor)
    }
    return replace(layer, **numbers) if numbers else layer


def owned(layer: LayerAttention, passage: AttentionPass) -> LayerAttention:
    """A layer with copies of what it shares with its module, or with what that was given, its cache included."""
    foreign = set(_addresses(_held(passage)))

    def own(x: Tensor) -> Tensor:
        return x if foreign.isdisjoint(_addresses([x])) else x.detach().clone(memory_format=torch.contiguous_format)

    fields: dict[str, Any] = {name: own(x) for name in _LARGE if (x := getattr(layer, name)) is not None}
    fields |= {name: x.detach().clone() for name in _SMALL if (x := getattr(layer, name)) is not None}
    if layer.norm is not None and layer.norm.weight is not None:
        fields["norm"] = replace(layer.norm, weight=layer.norm.weight.detach().clone())
    if layer.mask.visible is not None:
        fields["mask"] = replace(layer.mask, visible=own(layer.mask.visible))
    if layer.changes:
        parts = map(to_tensors, layer.changes)
        fields["changes"] = tuple(
            from_tensors(Change, {name: own(x) for name, x in tensors.items()}, plain) for tensors, plain in parts
        )
    return replace(layer, **fields)


def _held(passage: AttentionPass) -> Iterator[Tensor]:
    """What the module holds, and what it was given."""
    for part in passage.module.modules():
        yield from tensors_of(part)
        for value in vars(part).values():
            yield from tensors_in(value) if isinstance(value, (Tensor, Cache)) else ()
    yield from tensors_in(passage.arguments)
    yield from passage.cached or ()


def _addresses(tensors: Iterable[Tensor]) -> Iterator[int]:
    """Where the memory of tensors begins, of those that have memory of their own: quantised ones may have none."""
    return (x.untyped_storage().data_ptr() for x in tensors if type(x) in (Tensor, torch.nn.Parameter) and not x.is_meta)
