"""DIFF V1 as implementations have it whose first maps come before all second ones in the attention interface: DiffLlama."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention

from diffscope.attention.components import Norm, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.families.base import EXPONENTIAL, HALVES, AttentionPass, Convention, Family, ForeignModule, expect_calls, mask_of


def read_halves(
    attention_pass: AttentionPass, family: str, norm: Norm | None, lam: Tensor, lam_fp32: Tensor, calls: int = 2
) -> LayerAttention:
    """A layer whose first H query maps are the heads' first maps and whose last H their second ones.

    The interface saw q (batch, 2H, query, d), k (batch, 2G, key, d), and in two calls the two
    halves of the values, each (batch, 2G, key, d) with the G value heads repeated for either branch; or in one call both halves.
    """
    expect_calls(attention_pass, family, calls)
    first = attention_pass.calls[0]
    module = attention_pass.module
    heads, groups = first.query.shape[1] // 2, first.key.shape[1] // 2
    return LayerAttention(
        layer=attention_pass.number,
        family=family,
        q=first.query,
        k=first.key,
        v=torch.cat([call.value[:, :groups] for call in attention_pass.calls], dim=-1),  # (batch, value head, key, 2d)
        scale=first.scaling,
        pairing=Pairing.halves(heads, groups, first.query.device),
        lengths=attention_pass.lengths,
        mask=mask_of(first, attention_pass),
        lam=lam.reshape(1, 1, 1),
        lam_fp32=lam_fp32.reshape(1, 1, 1),
        lam_init=module.lambda_init,
        norm=norm,
        post_scale=1 - module.lambda_init,
        score_dtype=first.score_dtype,
        soft_cap=first.soft_cap,
        sink_logit=first.sink_logit,
    )


def lambda_of(module: DiffLlamaAttention, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """λ of a DiffLlama layer as it is used on activations of `dtype`, each exponential cast by itself, and in float32."""
    first, second = (
        torch.sum(q * k, dtype=torch.float32).exp()
        for q, k in ((module.lambda_q1, module.lambda_k1), (module.lambda_q2, module.lambda_k2))
    )
    return first.to(dtype) - second.to(dtype) + module.lambda_init, first - second + module.lambda_init


class DiffLlama(Family):
    """Hugging Face DiffLlama (transformers ≥ 5): maps h and h + H belong to head h."""

    name = "diffllama"
    convention = Convention(HALVES, EXPONENTIAL, schedule=0, norm="rms", post_scale=True, rope="half")

    def modules(self, model: nn.Module) -> list[nn.Module]:
        return [module for module in model.modules() if isinstance(module, DiffLlamaAttention)]

    def output_projection(self, module: ForeignModule) -> nn.Module:
        return module.o_proj

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        norm = Norm("rms", attention_pass.module.groupnorm.eps)
        dtype = attention_pass.calls[0].given_dtype or attention_pass.calls[0].query.dtype
        return read_halves(attention_pass, self.name, norm, *lambda_of(attention_pass.module, dtype))
