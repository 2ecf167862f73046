"""DIFF V1 whose attention interface sees the first maps of all heads before the second ones: DiffLlama."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention

from diffscope.attention.components import Norm, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.families.attention_pass import AttentionPass, expect_calls
from diffscope.families.base import EXPONENTIAL, HALVES, Convention, Family
from diffscope.families.reading import lambda_of


def read_halves(
    attention_pass: AttentionPass, family: str, norm: Norm | None, lam: Tensor, lam_fp32: Tensor, calls: int = 2
) -> LayerAttention:
    """Return a layer whose first H query maps are the first maps of the heads, and whose last H are the second ones.

    The interface sees q (batch, 2H, query, d) and k (batch, 2G, key, d). It sees the two halves of the values in two calls,
    each (batch, 2G, key, d) with the G value heads repeated for either branch, or both halves in one call.
    """
    expect_calls(attention_pass, family, calls)
    first = attention_pass.calls[0]
    init = attention_pass.module.lambda_init
    heads, groups = first.query.shape[1] // 2, first.key.shape[1] // 2
    v = torch.cat([call.value[:, :groups] for call in attention_pass.calls], dim=-1)  # (batch, value head, key, 2d)
    pairing = Pairing.halves(heads, groups, first.query.device)
    return attention_pass.layer(
        first.query, first.key, v, pairing, lam=lam, lam_fp32=lam_fp32, lam_init=init, norm=norm, call=first
    )


class DiffLlama(Family):
    """Hugging Face DiffLlama (transformers ≥ 5): maps h and h + H belong to head h."""

    name = "diffllama"
    convention = Convention(HALVES, EXPONENTIAL, schedule=0, norm="rms", post_scale=True, rope="half")
    module_class = DiffLlamaAttention

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        module, call = attention_pass.module, attention_pass.calls[0]
        dtype = call.given_dtype or call.query.dtype
        lam, lam_fp32 = lambda_of(module, module.lambda_init, dtype, sum_dtype=torch.float32)
        return read_halves(attention_pass, self.name, Norm("rms", module.groupnorm.eps), lam, lam_fp32)
