"""What a model itself was called with: how many prompts and tokens, at which positions, and what its cache holds."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

CACHES = ("past_key_values", "past_key_value")  # what a forward may call its cache
TOKENS = ("input_ids", "inputs_embeds")


@dataclass(frozen=True)
class ModelCall:
    """One call of a model.

    Attributes
    ----------
    prompts : int or None
        How many prompts it was given, (prompt, token) or (prompt, token, hidden); None where that is not known.
    tokens : int or None
        How many tokens of each.
    positions : Tensor or None, (prompt or 1, token)
        The ``position_ids`` that it was given.
    cached : int or None
        Of how many tokens the cache that it was given holds keys, 0 without a cache; None where that is not known.
    """

    prompts: int | None = None
    tokens: int | None = None
    positions: Tensor | None = None
    cached: int | None = None

    @classmethod
    def of(cls, model: nn.Module, args: tuple, kwargs: dict) -> ModelCall:
        """That of a model whose forward has not begun."""
        try:
            given = inspect.signature(type(model).forward).bind_partial(model, *args, **kwargs).arguments
        except TypeError:  # the model itself will say so
            return cls()
        given = given | kwargs
        tokens = next((given[name] for name in TOKENS if isinstance(given.get(name), Tensor)), None)
        if tokens is None and args and isinstance(args[0], Tensor) and not args[0].is_floating_point():
            tokens = args[0]
        prompts, count = (None, None) if tokens is None or tokens.dim() < 2 else tokens.shape[:2]
        positions = given.get("position_ids")
        cache = next((given[name] for name in CACHES if given.get(name) is not None), None)
        plain = isinstance(positions, Tensor) and positions.dim() == 2
        return cls(prompts, count, positions if plain else None, _tokens_in(cache))


def _tokens_in(cache: Any) -> int | None:
    """Of how many tokens a Hugging Face cache holds keys; None where it is another kind of cache."""
    if cache is None:
        return 0
    layers = getattr(cache, "layers", None)
    return None if layers is None else max(_tokens_of_each(layers), default=0)


def _tokens_of_each(layers: Any) -> Iterator[int]:
    for layer in layers:
        if getattr(layer, "keys", None) is not None and hasattr(layer, "get_seq_length"):
            yield int(layer.get_seq_length())
