"""Edits made from captures of other prompts: what a model does there on average, in place of what it does here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from diffscope.attention.changes import Change, FixA2, PositionalA2
from diffscope.attention.components import Norm
from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import map_of
from diffscope.edits.base import Edit, Stage, check_a2, check_square, check_tokens
from diffscope.edits.declared import declare
from diffscope.errors import DiffscopeError, PromptError, UnsupportedModel
from diffscope.prompts.selection import Indices, as_indices

Sums = dict[int, tuple[Tensor, Tensor]]  # by layer: sums over prompts, and of how many values


class HasLayers(Protocol):
    """A capture of one prompt or of a batch, as far as these edits read it."""

    @property
    def layers(self) -> Sequence[LayerAttention]:
        """Attention of every layer."""


Captures = HasLayers | Iterable[HasLayers]


@declare(
    "A2 = the mean of the head's A2 over prompts of one length, entry by entry; a shorter prompt uses the upper left "
    "of it, a longer one is refused",
    stage=Stage.MAPS,
    needs="A2",
)
def mean_a2(captures: Captures, *, layers: Indices = None, heads: Indices = None) -> Edit:
    """Put the mean of the second map over prompts of one length in its place: what position alone says of it.

    Parameters
    ----------
    captures : Capture or iterable of Capture
        Of prompts of one length in tokens; the edit serves prompts up to that length. A generator,
        ``(scope.capture(text) for text in texts)``, has one capture in memory at a time.
    layers, heads : int or sequence of int, optional

    Raises
    ------
    PromptError
        There is no capture, or prompts are of several lengths.
    InsufficientMemory
        Prompts are longer than 4,096 tokens.
    UnsupportedModel
        A layer has no second map.
    """
    label = "A2 = its mean over prompts"
    sums: Sums = {}
    for layer in _single_prompts(captures, "mean_a2", layers, full_map=True, same_length=True):
        check_a2(label, layer)
        a2 = map_of(layer.rows(), "A2")  # (head, query, key)
        _add(sums, layer.layer, a2, torch.ones_like(a2[:, :1, :1]))
    return _in_place_of_a2(label, sums, FixA2, layers, heads)


@declare(
    "weight p(i − j) on key j > 0 of row i: the mean weight at that distance over all prompts and rows that see it; "
    "key 0 gets its own mean mass over rows i > 0 that see it, the rest of the row is scaled to sum to 1; with sink "
    "logits all this is of rows divided by their sums, and the row gets the sum of the row of A2 that it replaces",
    stage=Stage.MAPS,
    needs="A2",
)
def positional_a2(captures: Captures, *, layers: Indices = None, heads: Indices = None) -> Edit:
    """Put the mean of the second map over prompts and queries, by distance, in its place; the first key counts by itself.

    A row puts the mean mass of the first key there, and shares the rest over the other keys it sees by the mean weight at their
    distance. With sink logits the means are of rows divided by their sums, and a row keeps the sum of the row of A2 that it
    replaces.

    Parameters
    ----------
    captures : Capture or iterable of Capture
        As of :func:`mean_a2`, but of prompts of any lengths; the edit serves prompts up to the longest of them.
    layers, heads : int or sequence of int, optional

    Raises
    ------
    PromptError
        There is no capture, or one of a single token.
    InsufficientMemory, UnsupportedModel
        As of :func:`mean_a2`.
    """
    label = "A2 = its positional mean"
    sums: Sums = {}
    for layer in _single_prompts(captures, "positional_a2", layers, full_map=True):
        check_a2(label, layer)
        if layer.n_keys < 2:
            raise PromptError("positional_a2 needs prompts of at least two tokens")
        visible = layer.visible()[None].to(layer.dtype)  # (1, query, key)
        a2 = map_of(layer.rows(), "A2")  # (head, query, key)
        if layer.sink_logit is not None:
            a2 = a2 / a2.sum(-1, keepdim=True).clamp_min(1e-30)
        _add(sums, layer.layer, _by_distance(a2), _by_distance(visible))
    return _in_place_of_a2(label, sums, PositionalA2, layers, heads)


@declare(
    "D·V · c_h · weight, c_h the mean of 1/rms(D·V) of head h over all tokens of the prompts", stage=Stage.FIELD, needs="norm"
)
def scalar_norm(captures: Captures, *, layers: Indices = None) -> Edit:
    """Replace the norm's division by a token's own size by one number a head: the mean of 1/rms over the prompts' tokens.

    Its learned weight stays. There is no `heads`: a layer has one norm, of one kind, for all of its heads.

    Parameters
    ----------
    captures : Capture or iterable of Capture
        As of :func:`mean_a2`, but of prompts of any lengths.
    layers : int or sequence of int, optional

    Raises
    ------
    PromptError
        There is no capture.
    UnsupportedModel
        A layer has no norm by root mean squares.
    """
    label = "scalar norm"
    sums: Sums = {}
    for layer in _single_prompts(captures, "scalar_norm", layers):
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

    return Edit(label, make, layers=layers)


def _single_prompts(
    captures: Captures, label: str, layers: Indices, full_map: bool = False, same_length: bool = False
) -> Iterator[LayerAttention]:
    """Yield the chosen layers of every prompt, one capture in memory at a time."""
    chosen = as_indices(layers)
    length = 0
    for capture in captures if isinstance(captures, Iterable) and not hasattr(captures, "layers") else [captures]:
        of_capture = getattr(capture, "layers", [None])
        if not all(isinstance(layer, LayerAttention) for layer in of_capture):
            raise DiffscopeError(f"{label} takes captures, such as scope.capture(prompts), and not a {type(capture).__name__}")
        for layer in of_capture:
            for index, n in enumerate(layer.lengths):
                if full_map:
                    check_tokens(label, n)
                if same_length and n != (length or n):
                    raise PromptError(f"{label} needs prompts of one length, but has {length} and {n} tokens")
                length = n
                if chosen is None or layer.layer in chosen:
                    if full_map:
                        check_square(label, layer)
                    yield layer.prompt(index)
    if not length:
        raise PromptError(f"{label} needs a capture of a prompt at least, such as scope.capture(prompts)")


def _add(sums: Sums, number: int, values: Tensor, counts: Tensor) -> None:
    """Add to the sums of a layer; a shorter tensor adds nothing beyond its end."""
    total, count = sums.get(number, (values * 0, counts * 0))
    size = max(total.shape[-1], values.shape[-1])

    def padded(x: Tensor) -> Tensor:  # one count for all values stays one
        return x if x.shape[-1] == 1 else torch.nn.functional.pad(x, (0, size - x.shape[-1]))

    sums[number] = (padded(total) + padded(values), padded(count) + padded(counts))


def _by_distance(maps: Tensor) -> Tensor:
    """Sum a map (head, query, key) over queries: the first key, then others at distance 0, 1, ...; (head, key)."""
    later = maps[:, 1:, 1:]  # query 0 sees the first key alone
    diagonals = [later.diagonal(-distance, 1, 2).sum(-1) for distance in range(maps.shape[-1] - 1)]
    return torch.stack([maps[:, 1:, 0].sum(-1), *diagonals], dim=-1)


def _mean(label: str, sums: Sums, layer: LayerAttention) -> Tensor:
    """Return the mean of a layer's sums on its device; DiffscopeError if they are of a model of another shape."""
    if layer.layer not in sums:
        raise DiffscopeError(f"{label}: made from a model without attention in layer {layer.layer}")
    total, count = sums[layer.layer]
    if len(total) != layer.n_heads:
        raise DiffscopeError(f"{label}: made from a model of {len(total)} heads, and layer {layer.layer} has {layer.n_heads}")
    return (total / count.clamp_min(1)).to(layer.q.device, layer.dtype)


def _in_place_of_a2(label: str, sums: Sums, change: Callable[..., Change], layers: Indices, heads: Indices) -> Edit:
    def make(layer: LayerAttention, heads: tuple[int, ...]) -> Change:
        return change(heads, _mean(label, sums, layer)[None])

    return Edit(label, make, layers=layers, heads=heads, needs_positions=True)
