"""DIFF V2 in descendants of nanoGPT, such as BlaGPT: fused projections, norms of q and k, and RoPE inside the module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from diffscope.attention.components import Mask
from diffscope.attention.layer import LayerAttention
from diffscope.errors import UnsupportedModel
from diffscope.families.attention_pass import AttentionPass, compact
from diffscope.families.base import SIGMOID, STRIPES, Convention, Family
from diffscope.families.foreign import REGISTER, ForeignModule
from diffscope.families.reading import heads_of
from diffscope.families.unilm import pair_on_shared_keys, sigmoid_of

CHANGES_MAPS = {
    "use_softpick": "softpick in place of softmax",
    "rel_pos_emb": "relative positions",
    "v_res_holder": "value residuals",
}


class NanoGpt(Family):
    """Maps 2h and 2h + 1 belong to head h, and share keys and values: k then v in one `kv_proj`, or q, k, v in one `c_attn`.

    RoPE turns element i with i + d/2, by −θ as in BlaGPT or by θ. The reading that rebuilds the model's output is used.
    """

    name = "nanogpt"
    convention = Convention(STRIPES, SIGMOID, None, norm=None, post_scale=False, rope="half, by −θ", keys="shared by both maps")
    tried_on = "documented layout"
    has = ("c_proj", "lambda_proj", "n_head")
    watch = {name: name for name in ("q_proj", "kv_proj", "c_attn", "q_norm", "k_norm", "v_norm", "lambda_proj", "rotary")}
    output = "c_proj"

    def recognises(self, module: ForeignModule) -> bool:
        fused = hasattr(module, "c_attn") or (hasattr(module, "q_proj") and hasattr(module, "kv_proj"))
        return super().recognises(module) and fused

    def readings(self, attention_pass: AttentionPass) -> Iterator[LayerAttention]:
        angles = attention_pass.outputs.get("rotary")
        for layer in self._unturned(attention_pass):
            if angles is None:
                yield layer
                continue
            cos, sin = _rows_of(attention_pass, angles)
            for sign in (-1, 1):
                yield replace(layer, q=_turned(layer.q, cos, sign * sin), k=_turned(layer.k, cos, sign * sin))

    def suspects(self, attention_pass: AttentionPass) -> Iterator[tuple[str, LayerAttention]]:
        if "rotary" in attention_pass.outputs:
            yield "RoPE is missing", next(self._unturned(attention_pass))

    def _unturned(self, attention_pass: AttentionPass) -> Iterator[LayerAttention]:
        """Yield the layer without RoPE, as often as :func:`_projected` does."""
        module, outputs = attention_pass.module, attention_pass.outputs
        _refuse_changes(attention_pass)
        d = module.c_proj.in_features // module.n_head
        cap = float(getattr(module, "soft_cap", 0.0)) or None
        by_hand = cap is not None or not getattr(module, "flash", True)  # else by torch's fused attention
        lam, lam_fp32 = sigmoid_of(module.lambda_proj, attention_pass.hidden, outputs["lambda_proj"])
        for q, k, v in _projected(attention_pass, d):
            yield attention_pass.layer(
                q,
                k,
                v,
                pair_on_shared_keys(q, k),
                mask=_mask(attention_pass, by_hand),
                lam=lam,
                lam_fp32=lam_fp32,
                soft_cap=cap,
                rounds_scores=by_hand,
            )


def _refuse_changes(attention_pass: AttentionPass) -> None:
    """Raise UnsupportedModel if the module is configured or called so that its maps are others."""
    for name, words in CHANGES_MAPS.items():
        value = getattr(attention_pass.module, name, None)
        if value is not None and value is not False:
            raise UnsupportedModel(f"{attention_pass.kind} has {words} ({name}), which family nanogpt does not read; {REGISTER}")
    if attention_pass.arguments.get("q") is not None:
        raise UnsupportedModel(f"{attention_pass.kind} was given queries of its own (q), which family nanogpt does not read")


def _projected(attention_pass: AttentionPass, d: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield q (batch, map, token, d), and k and v (batch, key head, token, d), after their norms.

    Several times if there are as many tokens as heads, so that the shape of what a norm gave does not tell which are which.
    """
    outputs = attention_pass.outputs
    if "c_attn" in outputs:
        wide = 2 * attention_pass.module.n_head * d
        q, kv = outputs["c_attn"].split([wide, outputs["c_attn"].shape[-1] - wide], dim=-1)
    else:
        q, kv = outputs["q_proj"], outputs["kv_proj"]
    parts = zip("qkv", (q, *kv.chunk(2, dim=-1)))
    yield from product(*(_after_norm(attention_pass, f"{name}_norm", heads_of(x, d)) for name, x in parts))


def _after_norm(attention_pass: AttentionPass, name: str, heads: Tensor) -> list[Tensor]:
    """Return heads (batch, head, token, d) as a norm left them, if there is one, in each order of its axes that fits.

    It gave (batch, token, head, d), or (batch, head, token, d), perhaps of heads that had been repeated for their maps, as
    BlaGPT repeats those of v.
    """
    if name not in attention_pass.outputs:
        return [heads.contiguous()]
    normed = attention_pass.outputs[name]
    if normed.dim() == 3:
        return [heads_of(normed, heads.shape[-1]).contiguous()]
    count, tokens = heads.shape[1:3]
    found = [x for x in (normed.transpose(1, 2), normed) if x.shape[2] == tokens and x.shape[1] % count == 0]
    if not found:
        raise UnsupportedModel(
            f"{attention_pass.kind} has a {name} that gives {tuple(normed.shape)} for {count} heads and {tokens} tokens; "
            f"{REGISTER}"
        )
    return [x[:, :: x.shape[1] // count].contiguous() for x in found]


def _rows_of(attention_pass: AttentionPass, angles: object) -> tuple[Tensor, Tensor]:
    """Return cos and sin of a rotary part, each (token, d/2)."""
    tokens = attention_pass.hidden.shape[1]
    pair = angles if isinstance(angles, (tuple, list)) and len(angles) == 2 else ()
    rows = [angle.reshape(-1, angle.shape[-1]) for angle in pair]
    if len(rows) != 2 or any(len(row) < tokens for row in rows):
        raise UnsupportedModel(
            f"{attention_pass.kind} has a rotary part that does not give (cos, sin), one row a token; {REGISTER}"
        )
    return rows[0][:tokens], rows[1][:tokens]


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE to x (batch, head, token, d) in float32, as the published code does in every precision."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def _mask(attention_pass: AttentionPass, by_hand: bool) -> Mask:
    """Return the mask: causal, unless the module was given one (..., query, key), now or in an earlier call: BlaGPT keeps it.

    A mask of bools or whole numbers shows keys, and so does one of 0 and 1 if attention is written by hand; others are added.
    """
    given = attention_pass.arguments.get("mask")
    mask = getattr(attention_pass.module, "mask", None) if given is None else given
    if not isinstance(mask, Tensor):
        return Mask("causal")
    while mask.dim() < 4:
        mask = mask[None]
    tokens = attention_pass.hidden.shape[1]
    mask = mask[..., :tokens, :tokens]
    shows = not mask.is_floating_point() or (by_hand and bool((mask == 1).any()))
    return compact(mask != 0 if shows else mask, attention_pass.lengths)
