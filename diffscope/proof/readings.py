"""Read the layers of a passage: of a pack as a batch of its sequences, with numbers for scalars, in memory of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from diffscope.attention.changes import Change
from diffscope.attention.layer import LayerAttention
from diffscope.attention.stored import from_tensors, to_tensors
from diffscope.errors import UnsupportedModel
from diffscope.families import AttentionPass, Family
from diffscope.families.foreign import number
from diffscope.families.packs import apart, unpacked
from diffscope.proof.float32_copy import tensors_in, weights_of

OFFLOADED = "the model's weights are offloaded, or on the meta device; use a device_map of GPUs alone, or one device"
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))  # fields without tensors but weights
_NUMBERS = ("scale", "post_scale", "lam_init", "soft_cap")
_SMALL = ("lam", "gain", "lam_fp32", "sink_logit", "position_bias", "correction")  # always copied
_LARGE = ("q", "k", "v", "gate")  # copied if they share memory


def readings(family: Family, passage: AttentionPass) -> Iterator[LayerAttention]:
    """Yield the readings of a passage, with numbers where the model has tensors of one element.

    Raises
    ------
    UnsupportedModel
        A tensor of several elements stands where a layer has one number.
    """
    for layer in family.readings(passage):
        tensors = {name: value for name in _NUMBERS if isinstance(value := getattr(layer, name), Tensor)}
        numbers: dict[str, Any] = {name: number(value, passage.module, name) for name, value in tensors.items()}
        yield replace(layer, **numbers) if numbers else layer


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

    It has copies of what it shares with its module, and with what the module was given, its cache included. On a CPU the keys of
    each head lie side by side. A model's keys mostly lie token by token, each with all heads; products with the keys of one head
    are a fifth slower then.

    Raises
    ------
    UnsupportedModel
        The model's weights are offloaded.
    """
    held = {_address(x) for x in _tensors_held(passage)} - {None}

    def unshared_tensor(x: Tensor, name: str = "", always: bool = False) -> Tensor:
        if x.is_meta:
            raise UnsupportedModel(OFFLOADED)
        if always or _address(x) in held:
            return x.detach().clone(memory_format=torch.contiguous_format)
        return x.contiguous() if name in ("q", "k") and x.device.type == "cpu" else x

    tensors = {name: x for name in (*_LARGE, *_SMALL) if (x := getattr(layer, name)) is not None}
    fields: dict[str, Any] = {name: unshared_tensor(x, name, always=name in _SMALL) for name, x in tensors.items()}
    if layer.norm is not None and layer.norm.weight is not None:
        fields["norm"] = replace(layer.norm, weight=unshared_tensor(layer.norm.weight, always=True))
    if layer.mask.visible is not None:
        fields["mask"] = replace(layer.mask, visible=unshared_tensor(layer.mask.visible))
    if layer.changes:
        parts = map(to_tensors, layer.changes)
        fields["changes"] = tuple(
            from_tensors(Change, {name: unshared_tensor(x) for name, x in tensors.items()}, plain) for tensors, plain in parts
        )
    return replace(layer, **fields)


def _tensors_held(passage: AttentionPass) -> Iterator[Tensor]:
    """Yield the tensors that the module holds, and those that it was given."""
    yield from weights_of(passage.module)
    for part in passage.module.modules():
        for name, value in vars(part).items():
            if name not in _OF_EVERY_MODULE and isinstance(value, (Tensor, Cache)):
                yield from tensors_in(value)
    yield from tensors_in(passage.arguments)
    yield from passage.cached or ()


def _address(x: Tensor) -> int | None:
    """Return where the memory of a tensor begins; None if it has none of its own, as quantised ones may."""
    return x.untyped_storage().data_ptr() if type(x) in (Tensor, torch.nn.Parameter) and not x.is_meta else None
