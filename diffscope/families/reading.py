"""Heads, RoPE, λ and cache from projections, for families whose modules do not call the attention interface."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from diffscope.attention.components import Mask
from diffscope.attention.precision import without_autocast
from diffscope.errors import UnsupportedModel
from diffscope.families.attention_pass import AttentionPass, compact
from diffscope.families.foreign import REGISTER, ForeignModule, filled
from diffscope.models.mechanisms import exponentials

#: Submodules whose outputs are watched if queries, keys and values are projected apart.
PROJECTIONS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "rotary": "rotary_emb"}
LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
V1_PARTS = ("q_proj", "k_proj", "v_proj", *LAMBDAS)


def heads_of(x: Tensor, width: int) -> Tensor:
    """(batch, token, head·width) → (batch, head, token, width)."""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def rotate_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE that turns element i with i + d/2, as Llama does.

    Parameters
    ----------
    x : Tensor, (batch, head, token, d)
    cos, sin : Tensor, (batch or 1, token, d)
        Each angle twice, the second half a copy of the first.
    """
    first, second = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]


def rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE that turns element 2i with 2i + 1.

    Parameters
    ----------
    x : Tensor, (batch, head, token, d)
    cos, sin : Tensor, (position, angle)
        Of at least as many positions as there are tokens; elements beyond 2·angle stay as they are.
    """
    tokens = x.shape[2]
    angles = cos.shape[-1]
    wide = torch.promote_types(x.dtype, torch.float32)
    cos = cos[:tokens].to(wide)
    sin = sin[:tokens].to(wide)
    turned, rest = x[..., : 2 * angles].to(wide), x[..., 2 * angles :]
    even, odd = turned[..., 0::2], turned[..., 1::2]
    turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)
    return torch.cat([turned.to(x.dtype), rest], dim=-1)


def lambda_of(
    module: ForeignModule, init: float | Tensor, dtype: torch.dtype, sum_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Return λ = exp(λq1·λk1) − exp(λq2·λk2) + λ_init as used, and in float32 or wider; both are (1, 1, 1).

    Parameters
    ----------
    module : nn.Module
    init : float or Tensor
        λ_init.
    dtype : torch.dtype
        What each exponential is cast to.
    sum_dtype : torch.dtype, optional
        What the products are summed in; by default that of the vectors.
    """
    first, second = (each.detach() for each in exponentials(module, sum_dtype))
    init = init.detach() if isinstance(init, Tensor) else init
    lam = first.to(dtype) - second.to(dtype) + init  # numbers, of which a λ_init that is wider widens the sum
    return lam.reshape(1, 1, 1), (first - second + init).reshape(1, 1, 1)


def wide_linear(projection: ForeignModule, x: Tensor) -> Tensor | None:
    """W·x + b in float32 or wider; None where a projection is more than its weights: adapted, quantised or compiled."""
    if type(projection) is not nn.Linear:
        return None
    wide = torch.promote_types(x.dtype, torch.float32)
    bias = None if projection.bias is None else projection.bias.to(wide)
    return _linear(x.to(wide), projection.weight.to(wide), bias)


_linear = without_autocast()(nn.functional.linear)


def from_cache(attention_pass: AttentionPass, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values that the module attended to: with those before them, where it was given a cache.

    Parameters
    ----------
    k, v : Tensor, (batch, head, token, width)
        Of this attention_pass's tokens, laid out as the module hands them to its cache.

    Raises
    ------
    UnsupportedModel
        It is a cache whose layout is not known.
    """
    cache = attention_pass.cache
    layer = attention_pass.cache_layer
    keeps_window = getattr(layer, "is_sliding", False)
    if (cache is not None and not hasattr(cache, "layers")) or (keeps_window and layer.is_compileable):
        raise UnsupportedModel(
            f"diffscope does not read what {type(cache).__name__} keeps for {attention_pass.kind}; "
            "use a DynamicCache, or use_cache=False"
        )
    if layer is None:
        return k, v
    if not keeps_window:
        return filled(layer, layer.keys), filled(layer, layer.values)
    if attention_pass.cached is None:
        return k, v
    keys, values = attention_pass.cached  # by now the cache has let go of keys that were attended to
    return torch.cat([keys, k], dim=-2), torch.cat([values, v], dim=-2)


def given_mask(attention_pass: AttentionPass, keys: int, window: int | None = None) -> Mask:
    """Return the mask of a causal module from its `attention_mask`: of all scores, of padding, or none.

    Parameters
    ----------
    keys : int
        How many keys the module attended to.
    window : int, optional
        How many of them, itself included, a query sees at most.

    Raises
    ------
    UnsupportedModel
        There is padding other than on the right of the prompts.
    """
    mask = attention_pass.arguments.get("attention_mask")
    lengths = attention_pass.lengths
    if mask is not None and mask.dim() == 4:
        return compact(mask[..., :keys], lengths, window)
    offset = keys - attention_pass.hidden.shape[1]
    if mask is not None and not all(mask[index % len(mask), : n + offset].all() for index, n in enumerate(lengths)):
        raise UnsupportedModel("padding cannot be told from text here; use scope.capture or scope.loss, or prompts of one length")
    return Mask("causal") if window is None else Mask("window", window)


def angles_of(attention_pass: AttentionPass) -> tuple[Tensor, Tensor]:
    """cos and sin of the rotary embedding, (batch or 1, token, d): those of the module's own rotary part, or those it was given.

    Raises
    ------
    UnsupportedModel
        There are none, or they are of another shape.
    """
    angles: Any = attention_pass.outputs.get("rotary", attention_pass.arguments.get("position_embeddings"))
    pair = isinstance(angles, (tuple, list)) and len(angles) == 2
    if not pair or any(x.dim() not in (2, 3) or x.shape[-2] != attention_pass.hidden.shape[1] for x in angles):
        raise UnsupportedModel(
            f"{attention_pass.kind} was not given position_embeddings=(cos, sin), one row a token, and has no rotary "
            f"part that makes them; {REGISTER}"
        )
    cos, sin = (x if x.dim() == 3 else x[None] for x in angles)
    return cos, sin


def paired_values(v: Tensor) -> Tensor:
    """Neighbouring heads side by side: (batch, 2·head, key, d) → (batch, head, key, 2d)."""
    return v.unflatten(1, (-1, 2)).transpose(2, 3).flatten(-2)


def is_eager(module: ForeignModule) -> bool:
    """Return whether a module's configuration asks for eager attention, which keeps its scores in the activations' dtype."""
    return getattr(getattr(module, "config", None), "_attn_implementation", None) == "eager"
