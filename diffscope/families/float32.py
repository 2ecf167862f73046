"""One attention module and what it was given, in float32: what it computes without the rounding of half precision."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from enum import Enum
from functools import partial
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers.cache_utils import Cache, CacheLayerMixin

from diffscope.errors import UnsupportedModel
from diffscope.families.base import ForeignModule

HALF = (torch.float16, torch.bfloat16)
_FLOATS = (*HALF, torch.float32, torch.float64)
_NUMBERS = (type(None), bool, int, float, complex, str, bytes, range, slice)
_UNCHANGING = (*_NUMBERS, torch.dtype, torch.device, torch.Size, Enum, BlockMask)
_CODE = (type, FunctionType, BuiltinFunctionType, MethodType, partial)


def in_half(module: nn.Module, given: Any) -> bool:
    """Whether a module, or what it is given, holds anything in half precision, or autocast computes in it."""
    devices = set()
    for tensor in chain(_held(module), tensors_in(given)):
        if tensor.dtype in HALF:
            return True
        devices.add(tensor.device.type)
    return any(map(torch.is_autocast_enabled, devices - {"meta"}))  # where offloaded weights are


def _held(module: nn.Module) -> Iterator[Tensor]:
    return chain.from_iterable(map(tensors_of, module.modules()))


def tensors_of(part: ForeignModule) -> list[Tensor]:
    """The parameters and buffers of a module itself, without those of its parts."""
    return [tensor for tensor in (*part._parameters.values(), *part._buffers.values()) if tensor is not None]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists, dictionaries and Hugging Face caches."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from chain.from_iterable(map(tensors_in, value.values()))
    elif isinstance(value, (list, tuple)):
        yield from chain.from_iterable(map(tensors_in, value))
    elif isinstance(value, (Cache, CacheLayerMixin)):
        yield from tensors_in(vars(value))


def float32_copy(module: nn.Module) -> nn.Module:
    """A copy of a module with all its numbers in float32 and without hooks; it shares the configuration.

    Raises
    ------
    UnsupportedModel
        Float32 copies of its weights are not what it computes with: they are quantised, or not in memory.
    """
    copied: dict[int, Any] = {}  # by identity: what stands in the copy for what
    inside = set(module.modules())
    for part in inside:
        for name, value in vars(part).items():
            if isinstance(value, (list, tuple)):  # may hold a module that is around this one
                copied |= {id(each): each for each in value if isinstance(each, nn.Module) and each not in inside}
            if name.endswith("_hooks") and isinstance(value, OrderedDict):
                copied[id(value)] = OrderedDict()
            elif hasattr(value, "_attn_implementation"):  # a configuration: the attention that it names is observed
                copied[id(value)] = value
            elif isinstance(value, Tensor):
                copied[id(value)] = widened(value)
    for tensor in _held(module):
        copied[id(tensor)] = _wide_weight(tensor)
    return copy.deepcopy(module, copied).eval()


def _wide_weight(weight: Tensor) -> Tensor:
    learned = isinstance(weight, nn.Parameter)
    if type(weight) not in (Tensor, nn.Parameter) or (learned and weight.dtype not in _FLOATS):
        kind = str(weight.dtype).removeprefix("torch.") if type(weight) is nn.Parameter else type(weight).__name__
        raise UnsupportedModel(f"its weights ({kind}) are quantised or spread, and have no copy in float32")
    if weight.is_meta:
        raise UnsupportedModel("its weights are offloaded")
    if not learned:
        return widened(weight)
    return nn.Parameter(weight.detach().to(torch.promote_types(weight.dtype, torch.float32), copy=True), requires_grad=False)


def widened(value: Any, layer: int | None = None) -> Any:
    """A copy of tensors, and of containers and Hugging Face caches of them, in float32 where they are in half precision.

    A mask that adds half precision's lowest number adds float32's lowest instead.

    Parameters
    ----------
    value
    layer : int, optional
        The only layer of a cache to copy, as its module uses no other; by default all.

    Raises
    ------
    UnsupportedModel
        There is something else in it, which the model itself will go on to use.
    """
    if isinstance(value, Tensor):
        tensor = value.detach()
        if tensor.dtype not in HALF:
            return tensor.clone()
        return tensor.float().masked_fill_(tensor == torch.finfo(tensor.dtype).min, torch.finfo(torch.float32).min)
    if isinstance(value, dict):
        duplicate = copy.copy(value)
        duplicate.update({name: widened(each, layer) for name, each in value.items()})
        return duplicate
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        items = [widened(each, layer) for each in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [widened(each, layer) for each in value]
    if isinstance(value, (Cache, CacheLayerMixin)):
        return _widened_cache(value, layer)
    if isinstance(value, nn.Module):
        return float32_copy(value)
    if isinstance(value, (*_UNCHANGING, *_CODE)) or hasattr(value, "_attn_implementation"):
        return value
    raise UnsupportedModel(f"it was given a {type(value).__name__}, which has no copy in float32")


def _widened_cache(cache: Any, layer: int | None) -> Any:
    """A copy of a Hugging Face cache, or of a layer of one, with its tensors in float32."""
    duplicate = copy.copy(cache)
    for name, value in vars(cache).items():
        if name == "layers" and layer is not None:  # the others are never touched
            setattr(duplicate, name, [widened(each) if i == layer else each for i, each in enumerate(value)])
        else:
            setattr(duplicate, name, widened(value, layer))
    return duplicate
