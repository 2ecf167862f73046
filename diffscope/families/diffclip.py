"""DiffCLIP: the vision transformer and the text transformer, whose tensors have tokens as their first dimension."""

from __future__ import annotations

from dataclasses import replace

from diffscope.attention.components import Mask, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.families.attention_pass import AttentionPass, compact
from diffscope.families.base import EXPONENTIAL, STRIPES, Convention, Family
from diffscope.families.foreign import number_of
from diffscope.families.reading import PROJECTIONS, V1_PARTS, heads_of, lambda_of


class DiffClip(Family):
    """Maps 2h and 2h + 1 belong to head h; λ_init is one constant for all layers, and queries see what `attn_mask` shows."""

    name = "diffclip"
    convention = Convention(STRIPES, EXPONENTIAL, schedule=None, norm="rms, affine", post_scale=True, rope="none")
    tried_on = "documented layout"
    has = (*V1_PARTS, "out_proj", "diff_norm", "effective_heads", "lambda_init")
    watch = PROJECTIONS
    output = "out_proj"

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        module = attention_pass.module
        heads = attention_pass.module.effective_heads
        batch, tokens, width = attention_pass.outputs["q"].shape
        d = width // (2 * heads)
        q, k = (heads_of(attention_pass.outputs[name], d) for name in ("q", "k"))  # (batch, map, token, d)
        # The text tower has tokens first, so that its lengths are not those of the batch.
        lengths = attention_pass.lengths if len(attention_pass.lengths) == batch else (tokens,) * batch
        init = number_of(module, "lambda_init")
        lam, lam_fp32 = lambda_of(module, init, q.dtype)
        mask = attention_pass.arguments.get("attn_mask")
        layer = attention_pass.layer(
            q,
            k,
            heads_of(attention_pass.outputs["v"], 2 * d),
            Pairing.stripes(heads, device=q.device),
            mask=Mask("full") if mask is None else compact(mask[None, None], lengths),
            lam=lam,
            lam_fp32=lam_fp32,
            lam_init=init,
            norm=module.diff_norm,
            scales_queries=True,
        )
        return replace(layer, lengths=lengths)
