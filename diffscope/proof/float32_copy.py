"""Copy an attention module and its inputs in float32, and run the copy in the module's place."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from enum import Enum
from functools import partial
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from transformers.cache_utils import Cache, CacheLayerMixin

from diffscope.attention.precision import HALF
from diffscope.errors import UnsupportedModel
from diffscope.families import AttentionPass
from diffscope.families.foreign import ForeignModule
from diffscope.families.hooks import Replay

_FLOATS = (*HALF, torch.float32, torch.float64)
_NUMBERS = (type(None), bool, int, float, complex, str, bytes, range, slice)
_UNCHANGING = (*_NUMBERS, torch.dtype, torch.device, torch.Size, Enum, BlockMask)
_CODE = (type, FunctionType, BuiltinFunctionType, MethodType, partial)


def run_in_float32(
    passage: AttentionPass,
    replay: Replay,
    within: AbstractContextManager[Any],
    prepare: Callable[[nn.Module], object] = lambda copied: None,
) -> AttentionPass:
    """Run a float32 copy of an attention module on float32 copies of its inputs, up to its output projection.

    The copy runs without gradients and autocast, and draws no random numbers from the caller's generators.

    Parameters
    ----------
    passage : AttentionPass
        A pass through the module that has not begun.
    replay : Replay
        The inputs of the module, and the function that records the pass of another module in its place.
    within : context manager
        A context to run the copy in.
    prepare : callable, optional
        Called with the copy before it runs, such as to hook its submodules.

    Raises
    ------
    UnsupportedModel
        The module or its inputs have no copy in float32.
    """
    duplicate = float32_copy(passage.module)
    prepare(duplicate)
    args, kwargs = widened((replay.args, replay.kwargs), getattr(passage.module, "layer_idx", None))
    device = passage.hidden.device
    random = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with torch.no_grad(), random, torch.autocast(device.type, enabled=False), within:
        return replay.run(duplicate, args, kwargs)


class Float32Mode(TorchDispatchMode):
    """Compute in float32 whatever a module computes in half precision, and note whether it did.

    Attributes
    ----------
    seen : bool
        Whether anything was in half precision.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        args, kwargs = tree_map(self._wide, (args, kwargs or {}))
        return tree_map(self._wide, func(*args, **kwargs))

    def _wide(self, value: Any) -> Any:
        """Return a dtype or a tensor in half precision in float32; anything else as it is."""
        dtype = value.dtype if isinstance(value, torch.Tensor) else value
        if not isinstance(dtype, torch.dtype) or dtype not in HALF:
            return value
        self.seen = True
        return torch.float32 if value is dtype else value.float()


def in_half(module: nn.Module, inputs: Any) -> bool:
    """Return whether a module or its inputs hold anything in half precision, or autocast computes in it."""
    devices = set()
    for tensor in chain(weights_of(module), tensors_in(inputs)):
        if tensor.dtype in HALF:
            return True
        devices.add(tensor.device.type)
    return any(map(torch.is_autocast_enabled, devices - {"meta"}))  # offloaded weights are on the meta device


def weights_of(module: ForeignModule) -> Iterator[Tensor]:
    """Yield the parameters and buffers of a module and of its submodules."""
    for part in module.modules():
        yield from (tensor for tensor in (*part._parameters.values(), *part._buffers.values()) if tensor is not None)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists, dictionaries and Hugging Face caches."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from chain.from_iterable(map(tensors_in, value.values()))
    elif isinstance(value, (list, tuple)):
        yield from chain.from_iterable(map(tensors_in, value))
    elif isinstance(value, (Cache, CacheLayerMixin)):
        yield from tensors_in(vars(value))


def float32_copy(module: nn.Module) -> nn.Module:
    """Copy a module with all its numbers in float32 and without hooks; the copy shares the configuration.

    Raises
    ------
    UnsupportedModel
        Float32 copies of its weights are not what it computes with: they are quantised, or not in memory.
    """
    copied: dict[int, Any] = {}  # what stands in the copy for each object, by identity
    inside = set(module.modules())
    for part in inside:
        for name, value in vars(part).items():
            if isinstance(value, (list, tuple)):  # may hold a module that contains this one
                copied |= {id(each): each for each in value if isinstance(each, nn.Module) and each not in inside}
            if name.endswith("_hooks") and isinstance(value, OrderedDict):
                copied[id(value)] = OrderedDict()
            elif hasattr(value, "_attn_implementation"):  # a configuration: the attention that it names is observed
                copied[id(value)] = value
            elif isinstance(value, Tensor):
                copied[id(value)] = widened(value)
    for tensor in weights_of(module):
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
    """Copy tensors, and containers and Hugging Face caches of them, in float32 if they are in half precision.

    A mask that adds half precision's lowest number adds float32's lowest instead.

    Parameters
    ----------
    value
    layer : int, optional
        The only layer of a cache to copy, as its module uses no other; by default all.

    Raises
    ------
    UnsupportedModel
        The value holds something else that the model itself will go on to use.
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
    """Copy a Hugging Face cache, or a layer of one, with its tensors in float32."""
    duplicate = copy.copy(cache)
    for name, value in vars(cache).items():
        if name == "layers" and layer is not None:  # the others are never touched
            setattr(duplicate, name, [widened(each) if i == layer else each for i, each in enumerate(value)])
        else:
            setattr(duplicate, name, widened(value, layer))
    return duplicate
