"""Motif-2.6B (remote code), and what it shares with the grouped differential attention of Motif-2-12.7B."""

from __future__ import annotations

from torch import nn

from diffscope.attention.components import Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.errors import UnsupportedModel
from diffscope.families.base import (
    EXPONENTIAL,
    REGISTER,
    STRIPES,
    AttentionPass,
    Convention,
    Family,
    ForeignModule,
    number_of,
    parts_of,
)
from diffscope.families.reading import (
    angles_of,
    from_cache,
    given_mask,
    heads_of,
    lambda_of,
    norm_of,
    paired_values,
    projections,
    rotate_half,
    rounded_scores,
)

PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "subln", "lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


def is_motif(module: ForeignModule) -> bool:
    """Whether it is Motif 2's attention, of either kind, by its parts; others share the parts but not the eps of their own."""
    named = type(module).__name__.startswith("Motif") or hasattr(getattr(module, "config", None), "attn_rms_norm_eps")
    return named and all(hasattr(module, part) for part in PARTS) and not hasattr(module, "diff_attn_mix")


def heads_and_seconds(module: ForeignModule) -> tuple[int, int]:
    """How many heads there are, each with a first map of its own, and how many second maps, from the sizes of the projections."""
    d = len(module.lambda_q1)
    heads = module.o_proj.in_features // (2 * d)
    return heads, module.q_proj.out_features // d - heads


class Motif(Family):
    """Motif-2.6B: maps 2h and 2h + 1 belong to head h; λ_init of layer l is the paper's of l − 1."""

    name = "motif"
    convention = Convention(STRIPES, EXPONENTIAL, schedule=-1, norm="rms, affine", post_scale=True, rope="half")
    interface = False
    tried_on = "documented layout"

    def modules(self, model: nn.Module) -> list[nn.Module]:
        return [module for module in parts_of(model) if is_motif(module) and self.reads(*heads_and_seconds(module))]

    def reads(self, heads: int, seconds: int) -> bool:
        """Whether it is this family's, by how many heads share a second map."""
        return heads == seconds

    def output_projection(self, module: ForeignModule) -> nn.Module:
        return module.o_proj

    def watched(self, module: ForeignModule) -> dict[str, nn.Module]:
        return projections(module)

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        module = attention_pass.module
        d = len(attention_pass.module.lambda_q1)
        heads, seconds = heads_and_seconds(module)
        q, k, v = (heads_of(attention_pass.outputs[name], d) for name in ("q", "k", "v"))  # (batch, map, token, d)
        angles = angles_of(attention_pass)
        q = rotate_half(q, *angles)
        k, v = from_cache(attention_pass, rotate_half(k, *angles), v)
        pairs = k.shape[1] // 2
        v = v if v.shape[-1] == 2 * d else paired_values(v)  # a cache may hold them either way
        if k.dim() != 4 or v.shape[1::2] != (pairs, 2 * d) or seconds % pairs:
            raise UnsupportedModel(
                f"{type(module).__name__} has keys {tuple(k.shape[1:])} and values {tuple(v.shape[1:])} for {seconds} second "
                "maps, where diffscope expects a pair of keys and one wide value for one or more of them; "
                f"{REGISTER}"
            )
        init = number_of(module, "lambda_init")
        lam, lam_fp32 = lambda_of(module, init, q.dtype)
        return LayerAttention(
            layer=attention_pass.number,
            family=self.name,
            q=q,
            k=k,
            v=v,
            scale=d**-0.5,
            pairing=Pairing.grouped(heads, seconds, pairs, device=q.device),
            lengths=attention_pass.lengths,
            mask=given_mask(attention_pass, k.shape[2]),
            lam=lam,
            lam_fp32=lam_fp32,
            lam_init=init,
            norm=norm_of(module.subln, 2 * d, q.dtype),
            post_scale=1 - init,
            score_dtype=rounded_scores(module, q.dtype),
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
