"""Which way a passage takes through its module's code, and in what state the module is: what a proof in float32 holds for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diffscope.families import Family, Passage
from diffscope.families.float32 import tensors_of
from diffscope.families.hooks import own_implementation

SMALL = 4096  # elements of weights, such as those of λ and norms, that are compared by their values
WIDE_PER_ELEMENT = 4 * 16  # bytes in float32 of what a module makes of each element of its hidden states, roughly
WIDE_PER_SCORE = 4 * 3  # eager attention's scores, their softmax, and one of them in another dtype
HEAD = 64  # elements, where it is not known how many heads there are
_FUSED = ("sdpa", "flash", "flex", "paged")
_SCALARS = (bool, int, float, str, type(None))
_OF_ANY = vars(nn.Module()).keys() - {"training"}  # what torch keeps in any module, of which it is no setting


@dataclass(frozen=True)
class Way:
    """The way of one passage.

    Attributes
    ----------
    kind : tuple
        What makes a module take another way through its code.
    state : tuple
        The module's weights, settings and code.
    keys : int
        How many tokens its keys are of.
    one_token : bool
        Whether it is a step of one token, which sees all keys there are.
    """

    kind: tuple
    state: tuple
    keys: int
    one_token: bool

    @classmethod
    def of(cls, passage: Passage) -> Way:
        """That of a passage whose module has not begun."""
        keys = _keys(passage)
        queries = passage.hidden.shape[1]
        batched = len(passage.lengths) > 1
        padded = len(set(passage.lengths)) > 1
        beyond = tuple(keys > width for width in _windows(passage))
        tensors = tuple(sorted(_tensors(passage)))
        cached = passage.cached is not None
        kind = (_implementation(passage), tensors, batched, padded, cached, queries == 1, beyond, passage.hidden.dtype)
        return cls(kind, tuple(_state(passage)), keys, queries == 1)


def _keys(passage: Passage) -> int:
    """Of how many tokens the module's keys are, those that its cache has let go of included."""
    before = 0 if passage.cached is None else passage.cached[0].shape[-2]
    count = getattr(passage.cache_layer, "get_seq_length", None)  # a cache may hold fewer, or have room for more
    return passage.hidden.shape[1] + (before if count is None else int(count()))


def _windows(passage: Passage) -> Iterator[int]:
    """The widths of windows that the module or its configuration states."""
    for holder in (passage.module, getattr(passage.module, "config", None)):
        settings = {} if holder is None else vars(holder)
        for name in sorted(name for name in settings if "window" in name):
            widths = settings[name] if isinstance(settings[name], (list, tuple)) else [settings[name]]
            yield from (width for width in widths if isinstance(width, int) and width > 0)


def _tensors(passage: Passage) -> Iterator[tuple]:
    """The tensors that the module is given, by name and dimensions; and of masks whether the last row sees all keys."""
    for name, value in passage.arguments.items():
        if isinstance(value, Tensor):
            mask = "mask" in name and value.dim() > 1
            yield name, value.dim(), mask and _hides(value.flatten(0, -2)[-1:])


def _hides(row: Tensor) -> bool:
    """Whether the row of a mask, true where a key is seen or what is added to the scores, hides any key."""
    hidden = row < 0 if row.is_floating_point() else row == 0
    return bool(hidden.any())


def _state(passage: Passage) -> Iterator[Any]:
    """What tells whether the module is what it was."""
    config = getattr(passage.module, "config", None)
    for part in passage.module.modules():
        yield type(part)
        yield getattr(part.forward, "__func__", part.forward)
        yield tuple(value for name, value in vars(part).items() if name not in _OF_ANY and isinstance(value, _SCALARS))
        for weight in tensors_of(part):
            yield id(weight)
            yield 0 if weight.is_inference() else weight._version
            if weight.numel() <= SMALL and not weight.is_meta:  # what is set by ``weight.data`` counts no version
                yield _sum(weight.detach())
    settings = {} if config is None else vars(config)
    yield tuple((name, value) for name, value in settings.items() if isinstance(value, _SCALARS) and "_attn_" not in name)


def _sum(weight: Tensor) -> float:
    """The sum of a tensor's elements, in what every device has; of complex ones that of both their parts."""
    real = torch.view_as_real(weight.resolve_conj()) if weight.is_complex() else weight
    return real.sum(dtype=torch.float32).item()


def _implementation(passage: Passage) -> str:
    """The name of the model's own attention implementation."""
    return own_implementation(str(getattr(getattr(passage.module, "config", None), "_attn_implementation", "")))


def memory_needed(family: Family, passage: Passage) -> int:
    """Bytes that a float32 run of the module takes, roughly: weights, what it makes of its input, and maps that it writes out."""
    weights = sum(tensor.numel() for tensor in passage.module.parameters()) * 4
    given = sum(tensor.numel() for tensor in passage.arguments.values() if isinstance(tensor, Tensor)) * 4
    need = weights + given + passage.hidden.numel() * WIDE_PER_ELEMENT
    if family.interface and _implementation(passage).startswith(_FUSED):
        return need
    batch, queries, width = passage.hidden.shape
    maps = getattr(getattr(passage.module, "config", None), "num_attention_heads", None) or -(-width // HEAD)
    return need + maps * batch * queries * _keys(passage) * WIDE_PER_SCORE
