"""DIFF V2 in descendants of nanoGPT, such as BlaGPT: fused projections, norms of q and k, and RoPE inside the module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        return next(self.readings(attention_pass))

    def readings(self, attention_pass: AttentionPass) -> Iterator[LayerAttention]:
        layer = self._unturned(attention_pass)
        angles = attention_pass.outputs.get("rotary")
        if angles is None:
            yield layer
            return
        cos, sin = _rows_of(attention_pass, angles)
        for sign in (-1, 1):
            yield replace(layer, q=_turned(layer.q, cos, sign * sin), k=_turned(layer.k, cos, sign * sin))

    def suspects(self, attention_pass: AttentionPass) -> Iterator[tuple[str, LayerAttention]]:
        if "rotary" in attention_pass.outputs:
            yield "RoPE is missing", self._unturned(attention_pass)

    def _unturned(self, attention_pass: AttentionPass) -> LayerAttention:
        """Return the layer without RoPE."""
        module, outputs = attention_pass.module, attention_pass.outputs
        _refuse_changes(attention_pass)
        d = module.c_proj.in_features // module.n_head
        q, k, v = _projected(attention_pass, d)
        cap = float(getattr(module, "soft_cap", 0.0)) or None
        lam, lam_fp32 = sigmoid_of(module.lambda_proj, attention_pass.hidden, outputs["lambda_proj"])
        return attention_pass.layer(
            q,
            k,
            v,
            pair_on_shared_keys(q, k),
            mask=_mask(attention_pass),
            lam=lam,
            lam_fp32=lam_fp32,
            soft_cap=cap,
            rounds_scores=cap is not None or not getattr(module, "flash", True),
        )


def _refuse_changes(attention_pass: AttentionPass) -> None:
    """Raise UnsupportedModel if the module is configured or called so that its maps are others."""
    for name, words in CHANGES_MAPS.items():
        value = getattr(attention_pass.module, name, None)
        if value is not None and value is not False:
            raise UnsupportedModel(f"{attention_pass.kind} has {words} ({name}), which family nanogpt does not read; {REGISTER}")
    if attention_pass.arguments.get("q") is not None:
        raise UnsupportedModel(f"{attention_pass.kind} was given queries of its own (q), which family nanogpt does not read")


def _projected(attention_pass: AttentionPass, d: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return q (batch, map, token, d), and k and v (batch, key head, token, d), after their norms."""
    outputs = attention_pass.outputs
    if "c_attn" in outputs:
        wide = 2 * attention_pass.module.n_head * d
        q, kv = outputs["c_attn"].split([wide, outputs["c_attn"].shape[-1] - wide], dim=-1)
    else:
        q, kv = outputs["q_proj"], outputs["kv_proj"]
    parts = dict(zip("qkv", (q, *kv.chunk(2, dim=-1))))
    normed = (outputs.get(f"{name}_norm") for name in parts)
    heads = (x if after is None else _tokens_first(after, x) for x, after in zip(parts.values(), normed))
    q, k, v = (heads_of(x, d).contiguous() for x in heads)
    return q, k, v


def _tokens_first(normed: Tensor, projected: Tensor) -> Tensor:
    """Return what a norm of heads gave, (batch, token, head, d) or (batch, head, token, d), as (batch, token, head·d)."""
    return (normed if normed.shape[1] == projected.shape[1] else normed.transpose(1, 2)).flatten(2)


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


def _mask(attention_pass: AttentionPass) -> Mask:
    """Return the mask: causal, unless the module was given one, bool or of numbers, (..., query, key)."""
    mask = attention_pass.arguments.get("mask")
    if mask is None:
        return Mask("causal")
    while mask.dim() < 4:
        mask = mask[None]
    return compact(mask, attention_pass.lengths)
