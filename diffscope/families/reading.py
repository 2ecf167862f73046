"""What families need whose modules do not call the attention interface: heads, RoPE, λ and cache, from projections."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from diffscope.attention.components import Mask, Norm
from diffscope.attention.precision import without_autocast
from diffscope.errors import UnsupportedModel
from diffscope.families.base import REGISTER, AttentionPass, ForeignModule, compact, filled


def heads_of(x: Tensor, width: int) -> Tensor:
    """(batch, token, head·width) → (batch, head, token, width)."""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def projections(module: ForeignModule) -> dict[str, nn.Module]:
    """The parts of a module whose q, k and v are projected apart, and its own rotary embedding if it has one."""
    parts = {"q": module.q_proj, "k": module.k_proj, "v": module.v_proj}
    rotary = getattr(module, "rotary_emb", None)
    return parts | {"rotary": rotary} if isinstance(rotary, nn.Module) else parts


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


def lambda_of(module: ForeignModule, init: float | Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """λ = exp(λq1·λk1) − exp(λq2·λk2) + λ_init as used, each exponential cast to `dtype` by itself, and in float32 or wider.

    Both are (1, 1, 1).
    """
    first, second = (
        product.detach().to(torch.promote_types(product.dtype, torch.float32)).exp()
        for product in ((module.lambda_q1 * module.lambda_k1).sum(), (module.lambda_q2 * module.lambda_k2).sum())
    )
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
    """The mask of a causal module, from its `attention_mask`: one of all scores, or one of padding, or none.

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


def norm_of(norm: nn.Module | None, width: int, dtype: torch.dtype) -> Norm | None:
    """A root-mean-square norm of heads' outputs, with weight or without; None where it is absent or the identity.

    Raises
    ------
    UnsupportedModel
        It is another norm.
    """
    if norm is None or isinstance(norm, nn.Identity):
        return None
    weight = getattr(norm, "weight", None)
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", False))
    other = isinstance(norm, (nn.LayerNorm, nn.GroupNorm)) or eps is False or getattr(norm, "bias", None) is not None
    if other or (weight is not None and weight.shape != (width,)):
        raise UnsupportedModel(
            f"{type(norm).__name__}, the norm of the heads' outputs, is not a root-mean-square norm over {width} elements; "
            f"{REGISTER}"
        )
    eps = torch.finfo(dtype).eps if eps is None else eps  # as torch does
    return Norm("rms", eps, None if weight is None else weight.detach().clone())


def setting(module: ForeignModule, *names: str) -> Any:
    """What a module, or else its configuration, has under one of some names.

    Raises
    ------
    UnsupportedModel
        Neither has any.
    """
    for holder in (module, getattr(module, "config", None)):
        for name in names:
            if getattr(holder, name, None) is not None:
                return getattr(holder, name)
    raise UnsupportedModel(f"neither {type(module).__name__} nor its config has {' or '.join(names)}, which its family needs")


def rounded_scores(module: ForeignModule, dtype: torch.dtype) -> torch.dtype | None:
    """What scores are rounded to before the softmax: half precision in eager attention, which keeps the activations' dtype."""
    eager = getattr(getattr(module, "config", None), "_attn_implementation", None) == "eager"
    return dtype if eager and dtype in (torch.bfloat16, torch.float16) else None
