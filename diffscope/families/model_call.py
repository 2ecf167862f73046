"""Read the arguments of a model's forward: prompts, tokens, positions, and tokens in the cache."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from diffscope.families.threads import within_checkpoint

CACHES = ("past_key_values", "past_key_value")  # names of the cache among the arguments of a forward
TOKENS = ("decoder_input_ids", "decoder_inputs_embeds", "input_ids", "inputs_embeds")  # whose attention is cached and edited

signature_of = lru_cache(maxsize=256)(inspect.signature)  # each forward is inspected once


@dataclass(frozen=True)
class ModelCall:
    """One call of a model.

    Attributes
    ----------
    prompts : int or None
        Prompts of the batch, whose input is (prompt, token) or (prompt, token, hidden); None if unknown.
    tokens : int or None
        Tokens of each prompt.
    positions : Tensor or None, (prompt or 1, token)
        The argument ``position_ids``.
    cached : int or None
        Tokens whose keys are in the cache, 0 without a cache; None if unknown.
    learning : bool
        Whether it is called with gradients.
    runs : Counter of nn.Module
        How often each attention module has been run in it.
    """

    prompts: int | None = None
    tokens: int | None = None
    positions: Tensor | None = None
    cached: int | None = None
    learning: bool = True
    runs: Counter[nn.Module] = field(default_factory=Counter, compare=False)

    @classmethod
    def of(cls, model: nn.Module, args: tuple, kwargs: dict) -> ModelCall:
        """Read the call of a model from the arguments of its forward."""
        learning = torch.is_grad_enabled() or within_checkpoint()  # which may have turned gradients off
        try:
            given = signature_of(type(model).forward).bind_partial(model, *args, **kwargs).arguments
        except TypeError:  # the model raises it
            return cls(learning=learning)
        given = given | kwargs
        tokens = next((given[name] for name in TOKENS if isinstance(given.get(name), Tensor)), None)
        if tokens is None and args and isinstance(args[0], Tensor) and not args[0].is_floating_point():
            tokens = args[0]
        prompts, count = (None, None) if tokens is None or tokens.dim() < 2 else tokens.shape[:2]
        positions = given.get("position_ids")
        cache = next((given[name] for name in CACHES if given.get(name) is not None), None)
        plain = isinstance(positions, Tensor) and positions.dim() == 2
        cached = 0 if cache is None else _tokens_in(cache)
        return cls(prompts, count, positions if plain else None, cached, learning)


def _tokens_in(cache: Any) -> int | None:
    """Return how many tokens a Hugging Face cache holds; None for another kind of cache."""
    layers = getattr(cache, "layers", None)
    if layers is None:
        return None
    filled = [layer for layer in layers if getattr(layer, "keys", None) is not None and hasattr(layer, "get_seq_length")]
    return max((int(layer.get_seq_length()) for layer in filled), default=0)
