"""Read the layers of a passage: of a pack as a batch of its sequences, with numbers for scalars, in memory of their own."""

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
from diffscope.families.packs import apart, unpacked
from diffscope.proof.float32_copy import tensors_in, tensors_of

_NUMBERS = ("scale", "post_scale", "lam_init", "soft_cap")
_SMALL = ("lam", "gain", "lam_fp32", "sink_logit", "correction")  # always copied
_LARGE = ("q", "k", "v", "gate")  # copied if they share memory


def readings(family: Family, passage: AttentionPass) -> Iterator[LayerAttention]:
    """Return the readings of a passage, with numbers where the model has tensors of one element.

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


def layer_of_sequences(layer: LayerAttention, passage: AttentionPass) -> LayerAttention:
    """Return a reading of a passage; of a pack, that of a batch of its sequences.

    Raises
    ------
    UnsupportedModel
        The sequences of the pack see each other, or the reading cannot be taken apart.
    """
    if passage.pack is None:
        return layer
    return unpacked(layer, passage.pack, next((call.window for call in passage.calls if call.window), None))


def observe_sequences(passage: AttentionPass) -> None:
    """Set what was observed of a pack to that of a batch of its sequences."""
    if passage.pack:
        passage.observed = apart(passage.observed, passage.pack, 1)


def unshared(layer: LayerAttention, passage: AttentionPass) -> LayerAttention:
    """Return a layer that shares no memory with the model, which goes on to be trained, to decode and to be edited.

    It has copies of what it shares with its module, and with what the module was given, its cache included.
    """
    held = set(_addresses(_tensors_held(passage)))

    def copied(x: Tensor) -> Tensor:
        return x if held.isdisjoint(_addresses([x])) else x.detach().clone(memory_format=torch.contiguous_format)

    fields: dict[str, Any] = {name: copied(x) for name in _LARGE if (x := getattr(layer, name)) is not None}
    fields |= {name: x.detach().clone() for name in _SMALL if (x := getattr(layer, name)) is not None}
    if layer.norm is not None and layer.norm.weight is not None:
        fields["norm"] = replace(layer.norm, weight=layer.norm.weight.detach().clone())
    if layer.mask.visible is not None:
        fields["mask"] = replace(layer.mask, visible=copied(layer.mask.visible))
    if layer.changes:
        parts = map(to_tensors, layer.changes)
        fields["changes"] = tuple(
            from_tensors(Change, {name: copied(x) for name, x in tensors.items()}, plain) for tensors, plain in parts
        )
    return replace(layer, **fields)


def _tensors_held(passage: AttentionPass) -> Iterator[Tensor]:
    """Yield the tensors that the module holds, and those that it was given."""
    for part in passage.module.modules():
        yield from tensors_of(part)
        for value in vars(part).values():
            yield from tensors_in(value) if isinstance(value, (Tensor, Cache)) else ()
    yield from tensors_in(passage.arguments)
    yield from passage.cached or ()


def _addresses(tensors: Iterable[Tensor]) -> Iterator[int]:
    """Return where the memory of tensors begins, of those that have memory of their own: quantised ones may have none."""
    return (x.untyped_storage().data_ptr() for x in tensors if type(x) in (Tensor, torch.nn.Parameter) and not x.is_meta)
