"""DiffCLIP: both of its towers, the vision transformer and the text transformer, whose tokens come first."""

from __future__ import annotations

from torch import nn

from diffscope.attention.components import Mask, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import HALF
from diffscope.families.base import (
    EXPONENTIAL,
    STRIPES,
    AttentionPass,
    Convention,
    Family,
    ForeignModule,
    compact,
    number_of,
    parts_of,
)
from diffscope.families.reading import heads_of, lambda_of, norm_of

PARTS = ("q_proj", "k_proj", "v_proj", "out_proj", "diff_norm", "effective_heads", "lambda_q1", "lambda_k1", "lambda_init")


class DiffClip(Family):
    """Maps 2h and 2h + 1 belong to head h; λ_init is one constant for all layers, and queries see what `attn_mask` shows."""

    name = "diffclip"
    convention = Convention(STRIPES, EXPONENTIAL, schedule=None, norm="rms, affine", post_scale=True, rope="none")
    interface = False
    tried_on = "documented layout"

    def modules(self, model: nn.Module) -> list[nn.Module]:
        return [module for module in parts_of(model) if all(hasattr(module, part) for part in PARTS)]

    def output_projection(self, module: ForeignModule) -> nn.Module:
        return module.out_proj

    def watched(self, module: ForeignModule) -> dict[str, nn.Module]:
        return {"q": module.q_proj, "k": module.k_proj, "v": module.v_proj}

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        module = attention_pass.module
        heads = attention_pass.module.effective_heads
        batch, tokens, width = attention_pass.outputs["q"].shape
        d = width // (2 * heads)
        q, k = (heads_of(attention_pass.outputs[name], d) for name in ("q", "k"))  # (batch, map, token, d)
        lengths = attention_pass.lengths if len(attention_pass.lengths) == batch else (tokens,) * batch  # text: tokens first
        scale = d**-0.5
        rounded = None
        if q.dtype in HALF:  # q is scaled, then multiplied, and both are rounded
            rounded = q.dtype
            q = q * scale
            scale = 1.0
        init = number_of(module, "lambda_init")
        lam, lam_fp32 = lambda_of(module, init, q.dtype)
        mask = attention_pass.arguments.get("attn_mask")
        return LayerAttention(
            layer=attention_pass.number,
            family=self.name,
            q=q,
            k=k,
            v=heads_of(attention_pass.outputs["v"], 2 * d),
            scale=scale,
            pairing=Pairing.stripes(heads, device=q.device),
            lengths=lengths,
            mask=Mask("full") if mask is None else compact(mask[None, None], lengths),
            lam=lam,
            lam_fp32=lam_fp32,
            lam_init=init,
            norm=norm_of(module.diff_norm, 2 * d, q.dtype),
            post_scale=1 - init,
            score_dtype=rounded,
        )
