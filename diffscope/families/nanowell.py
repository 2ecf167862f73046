"""DIFF V1 with one λ a head: nanowell's PyTorch port, which many language, time-series and image models copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from diffscope.attention.components import Mask, Norm, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.families.attention_pass import AttentionPass
from diffscope.families.base import EXPONENTIAL, STRIPES, Convention, Family
from diffscope.families.foreign import ForeignModule, number_of
from diffscope.families.reading import LAMBDAS, heads_of


class Nanowell(Family):
    """Head h has the maps 2h and 2h + 1 and λ vectors of its own; there is no RoPE.

    Copies differ in whether queries see later keys. The reading that rebuilds the model's output is used.
    """

    name = "nanowell"
    convention = Convention(STRIPES, f"{EXPONENTIAL}, per head", schedule=0, norm="rms, affine", post_scale=True, rope="none")
    tried_on = "documented layout"
    has = ("W_q", "W_k", "W_v", "W_o", *LAMBDAS, "lambda_init", "rms_scale", "num_heads")
    watch = {"q": "W_q", "k": "W_k", "v": "W_v"}
    output = "W_o"

    def readings(self, attention_pass: AttentionPass) -> Iterator[LayerAttention]:
        module = attention_pass.module
        heads = attention_pass.module.num_heads
        d = attention_pass.outputs["q"].shape[-1] // (2 * heads)
        q, k = (heads_of(attention_pass.outputs[name], d) for name in ("q", "k"))  # (batch, map, token, d)
        init = number_of(module, "lambda_init")
        lam = (_exponential(module, 1) - _exponential(module, 2) + init).expand(heads).reshape(1, heads, 1)
        layer = attention_pass.layer(
            q,
            k,
            heads_of(attention_pass.outputs["v"], 2 * d),
            Pairing.stripes(heads, device=q.device),
            lam=lam,
            lam_init=init,
            norm=Norm("rms", module.eps, module.rms_scale.detach().clone()),
            rounds_scores=True,
        )
        yield layer
        yield replace(layer, mask=Mask("full"))


def _exponential(module: ForeignModule, branch: int) -> Tensor:
    """Return exp(λq·λk) of one branch in float32 or wider, (head,) or (1,)."""
    product = getattr(module, f"lambda_q{branch}").detach() * getattr(module, f"lambda_k{branch}").detach()
    return product.sum(-1).to(torch.promote_types(product.dtype, torch.float32)).exp().reshape(-1)
