"""Motif-2.6B (remote code), and the grouped differential attention of Motif-2-12.7B."""

from __future__ import annotations

from diffscope.attention.components import Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.errors import UnsupportedModel
from diffscope.families.attention_pass import AttentionPass
from diffscope.families.base import EXPONENTIAL, STRIPES, Convention, Family
from diffscope.families.foreign import REGISTER, ForeignModule, number_of
from diffscope.families.reading import (
    PROJECTIONS,
    V1_PARTS,
    angles_of,
    from_cache,
    given_mask,
    heads_of,
    is_eager,
    lambda_of,
    paired_values,
    rotate_half,
)


def heads_and_seconds(module: ForeignModule) -> tuple[int, int]:
    """Return the number of heads and of second maps, from the sizes of the projections."""
    d = len(module.lambda_q1)
    heads = module.o_proj.in_features // (2 * d)
    return heads, module.q_proj.out_features // d - heads


class Motif(Family):
    """Motif-2.6B: maps 2h and 2h + 1 belong to head h; λ_init of layer l is the paper's of l − 1."""

    name = "motif"
    convention = Convention(STRIPES, EXPONENTIAL, schedule=-1, norm="rms, affine", post_scale=True, rope="half")
    tried_on = "documented layout"
    has = (*V1_PARTS, "o_proj", "subln")
    watch = PROJECTIONS

    def recognises(self, module: ForeignModule) -> bool:
        """Return whether it is Motif 2's attention; others lack ``attn_rms_norm_eps`` or have ``diff_attn_mix``."""
        if not super().recognises(module) or hasattr(module, "diff_attn_mix"):
            return False
        named = type(module).__name__.startswith("Motif") or hasattr(getattr(module, "config", None), "attn_rms_norm_eps")
        return named and self.reads(*heads_and_seconds(module))

    def reads(self, heads: int, seconds: int) -> bool:
        """Return whether this family reads so many heads and second maps."""
        return heads == seconds

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        module = attention_pass.module
        d = len(attention_pass.module.lambda_q1)
        heads, seconds = heads_and_seconds(module)
        q, k, v = (heads_of(attention_pass.outputs[name], d) for name in ("q", "k", "v"))  # (batch, map, token, d)
        angles = angles_of(attention_pass)
        q = rotate_half(q, *angles)
        k, v = from_cache(attention_pass, rotate_half(k, *angles), v)
        pairs = k.shape[1] // 2
        v = v if v.shape[-1] == 2 * d else paired_values(v)  # a cache may hold narrow or wide values
        if k.dim() != 4 or v.shape[1::2] != (pairs, 2 * d) or seconds % pairs:
            raise UnsupportedModel(
                f"{type(module).__name__} has keys {tuple(k.shape[1:])} and values {tuple(v.shape[1:])} for {seconds} second "
                "maps, where diffscope expects a pair of keys and one wide value for one or more of them; "
                f"{REGISTER}"
            )
        init = number_of(module, "lambda_init")
        lam, lam_fp32 = lambda_of(module, init, q.dtype)
        return attention_pass.layer(
            q,
            k,
            v,
            Pairing.grouped(heads, seconds, pairs, device=q.device),
            mask=given_mask(attention_pass, k.shape[2]),
            lam=lam,
            lam_fp32=lam_fp32,
            lam_init=init,
            norm=module.subln,
            rounds_scores=is_eager(module),
        )


class GroupedMotif(Motif):
    """Grouped differential attention: of every r + 1 query maps the last is the second map of the r heads before it."""

    name = "motif-grouped"
    convention = Convention(
        "of every r + 1 maps the last is A2 of the r before it",
        EXPONENTIAL,
        schedule=-1,
        norm="rms, affine",
        post_scale=True,
        rope="half",
    )

    def reads(self, heads: int, seconds: int) -> bool:
        return 0 < seconds < heads and heads % seconds == 0
