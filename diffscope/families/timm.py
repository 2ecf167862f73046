"""timm's differential vision transformers: ``DiffAttention``, and ``DiffParallelScalingBlock`` with the attention inside."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from diffscope.attention.components import Mask, Norm, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.families.attention_pass import AttentionPass, compact
from diffscope.families.base import EXPONENTIAL, STRIPES, Convention, Family
from diffscope.families.foreign import ForeignModule, number_of
from diffscope.families.reading import heads_of

ALONE = ("qkv", "norm", "proj")
IN_BLOCK = ("in_proj", "in_split", "out_proj")


def _is_block(module: ForeignModule) -> bool:
    return hasattr(module, "in_split")


class Timm(Family):
    """Fused projection, maps in stripes, full attention over image tokens. Recognised by attributes, without importing timm."""

    name = "timm"
    convention = Convention(STRIPES, EXPONENTIAL, 0, "rms, affine", True, "none")
    has = ("dual_lambda", "lambda_init", "sub_norm", "q_norm", "k_norm", "head_dim", "fused_attn")
    watch = {"qkv": "qkv", "in_proj": "in_proj", "q": "q_norm", "k": "k_norm"}

    def recognises(self, module: ForeignModule) -> bool:
        rest = IN_BLOCK if _is_block(module) else ALONE
        return super().recognises(module) and all(hasattr(module, name) for name in rest)

    def output_projection(self, module: ForeignModule) -> nn.Module:
        return module.out_proj if _is_block(module) else module.norm  # the norm is the identity unless configured

    def attention_width(self, module: ForeignModule) -> int | None:
        return module.in_split[-1] if _is_block(module) else None  # the rest of its input comes from the MLP

    def convention_of(self, module: ForeignModule) -> Convention:
        return replace(self.convention, lam="exp(a) − exp(b) + λ_init") if module.dual_lambda else self.convention

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        module = attention_pass.module
        width = 2 * module.head_dim
        projected = attention_pass.outputs["in_proj" if _is_block(module) else "qkv"]  # (batch, token, [MLP | q | k | v])
        values = projected[..., -module.num_heads * width :]
        q, k = attention_pass.outputs["q"], attention_pass.outputs["k"]
        lam = _lambda(module)
        return attention_pass.layer(
            q,
            k,
            heads_of(values, width).contiguous(),  # (batch, head, token, width); a view would keep the whole projection in memory
            Pairing.stripes(module.num_heads, device=q.device),
            mask=_mask(attention_pass),
            lam=lam.to(q.dtype),
            lam_fp32=lam.to(torch.promote_types(lam.dtype, torch.float32)),
            lam_init=number_of(module, "lambda_init"),
            norm=Norm("rms", module.sub_norm.eps, module.sub_norm.weight.detach().clone()),
            scales_queries=not module.fused_attn,
        )


def _lambda(module: ForeignModule) -> Tensor:
    """Return λ before it is cast to the activations' dtype: from four vectors in float32, or from two numbers."""
    if module.dual_lambda:
        first = module.lambda_a.detach()
        second = module.lambda_b.detach()
    else:
        q1, k1, q2, k2 = (getattr(module, f"lambda_{name}").detach() for name in ("q1", "k1", "q2", "k2"))
        first = torch.sum(q1 * k1).float()
        second = torch.sum(q2 * k2).float()
    return first.exp() - second.exp() + module.lambda_init


def _mask(attention_pass: AttentionPass) -> Mask:
    """Return the mask: full, unless the module was given an `attn_mask` or is causal."""
    mask = attention_pass.arguments.get("attn_mask")
    tokens = attention_pass.hidden.shape[1]
    if attention_pass.arguments.get("is_causal"):
        return Mask("causal")
    if mask is None:
        return Mask("full")
    while mask.dim() < 4:
        mask = mask[None]
    return compact(mask.expand(-1, -1, tokens, -1), attention_pass.lengths)  # a mask of keys alone has one row
