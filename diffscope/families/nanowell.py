"""DIFF V1 with one λ a head, as a PyTorch port has it that is copied into many models, of language, time series and images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from diffscope.attention.components import Mask, Norm, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import HALF
from diffscope.families.base import EXPONENTIAL, STRIPES, AttentionPass, Convention, Family, ForeignModule, number_of, parts_of
from diffscope.families.reading import heads_of

PARTS = ("W_q", "W_k", "W_v", "W_o", "lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2", "lambda_init", "rms_scale", "num_heads")


class Nanowell(Family):
    """Head h has the maps 2h and 2h + 1 and λ vectors of its own; there is no RoPE.

    Copies differ in whether queries see later keys: whichever rebuilds the model's output is taken.
    """

    name = "nanowell"
    convention = Convention(STRIPES, f"{EXPONENTIAL}, per head", schedule=0, norm="rms, affine", post_scale=True, rope="none")
    interface = False
    tried_on = "documented layout"

    def modules(self, model: nn.Module) -> list[nn.Module]:
        return [module for module in parts_of(model) if all(hasattr(module, part) for part in PARTS)]

    def output_projection(self, module: ForeignModule) -> nn.Module:
        return module.W_o

    def watched(self, module: ForeignModule) -> dict[str, nn.Module]:
        return {"q": module.W_q, "k": module.W_k, "v": module.W_v}

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        return next(self.readings(attention_pass))

    def readings(self, attention_pass: AttentionPass) -> Iterator[LayerAttention]:
        module = attention_pass.module
        heads = attention_pass.module.num_heads
        d = attention_pass.outputs["q"].shape[-1] // (2 * heads)
        q, k = (heads_of(attention_pass.outputs[name], d) for name in ("q", "k"))  # (batch, map, token, d)
        init = number_of(module, "lambda_init")
        lam = (_exponential(module, 1) - _exponential(module, 2) + init).expand(heads).reshape(1, heads, 1)
        layer = LayerAttention(
            layer=attention_pass.number,
            family=self.name,
            q=q,
            k=k,
            v=heads_of(attention_pass.outputs["v"], 2 * d),
            scale=d**-0.5,
            pairing=Pairing.stripes(heads, device=q.device),
            lengths=attention_pass.lengths,
            lam=lam,
            lam_init=init,
            norm=Norm("rms", module.eps, module.rms_scale.detach().clone()),
            post_scale=1 - init,
            score_dtype=q.dtype if q.dtype in HALF else None,
        )
        yield layer
        yield replace(layer, mask=Mask("full"))


def _exponential(module: ForeignModule, branch: int) -> Tensor:
    """exp(λq·λk) of one branch, in float32 or wider: of every head, (head,), or of all alike, (1,)."""
    product = getattr(module, f"lambda_q{branch}").detach() * getattr(module, f"lambda_k{branch}").detach()
    return product.sum(-1).to(torch.promote_types(product.dtype, torch.float32)).exp().reshape(-1)
