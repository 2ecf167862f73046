"""axolotl's differential Llama: queries and keys projected twice, or heads split in two halves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from diffscope.attention.components import Mask, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import HALF
from diffscope.families.attention_pass import AttentionPass
from diffscope.families.base import EXPONENTIAL, HALVES, Convention, Family
from diffscope.families.foreign import ForeignModule, number_of
from diffscope.families.reading import (
    PROJECTIONS,
    V1_PARTS,
    angles_of,
    from_cache,
    given_mask,
    heads_of,
    lambda_of,
    rotate_half,
)


class Axolotl(Family):
    """Maps h and h + H belong to head h: of twice as many heads (``split_heads=False``), or of the Llama's own.

    Versions of the plugin differ in two points: whether the normed output is multiplied with 1 − λ_init, and which value heads
    make up the wide values of split heads. The reading that rebuilds the model's output is used.
    """

    name = "axolotl"
    convention = Convention(
        HALVES, f"diff_attn_mix·({EXPONENTIAL})", schedule=0, norm="rms, affine", post_scale=False, rope="half"
    )
    tried_on = "documented layout"
    has = (*V1_PARTS, "o_proj", "lambda_init", "subln", "heads_per_component")
    watch = PROJECTIONS

    def convention_of(self, module: ForeignModule) -> Convention | None:
        """Return the convention, without norm and λ_init if a converted model has none (it starts as the Llama it was)."""
        norm = None if isinstance(module.subln, nn.Identity) else self.convention.norm
        exact = getattr(module.lambda_init, "dtype", torch.float64) not in HALF  # in half precision the parameter is rounded
        return replace(self.convention, norm=norm, schedule=0 if exact and number_of(module, "lambda_init") else None)

    def readings(self, attention_pass: AttentionPass) -> Iterator[LayerAttention]:
        module = attention_pass.module
        d = len(attention_pass.module.lambda_q1)
        angles = angles_of(attention_pass)
        q, k = (rotate_half(heads_of(attention_pass.outputs[name], d), *angles) for name in ("q", "k"))  # (batch, map, token, d)
        v = heads_of(attention_pass.outputs["v"], d)
        k, v = from_cache(attention_pass, k.unflatten(1, (2, -1)), v)  # a cache holds both halves of the keys next to each other
        k = k.flatten(1, 2)
        heads = q.shape[1] // 2
        lam, lam_fp32 = (_mix(module) * x for x in lambda_of(module, module.lambda_init, q.dtype))
        width = module.o_proj.in_features // heads
        for values in _values(v, d, width):
            layer = attention_pass.layer(
                q,
                k,
                values,
                Pairing.halves(heads, k.shape[1] // 2, q.device),
                mask=self._mask(attention_pass, k.shape[2]),
                lam=lam,
                lam_fp32=lam_fp32,
                lam_init=number_of(module, "lambda_init"),
                norm=module.subln,
                rounds_scores=_eager(module),
            )
            yield replace(layer, post_scale=1.0)
            yield layer

    def _mask(self, attention_pass: AttentionPass, keys: int) -> Mask:
        if attention_pass.arguments.get("attention_mask") is None and _eager(attention_pass.module):
            return Mask("full")  # only the SDPA and flash-attn classes are causal without a mask
        return given_mask(attention_pass, keys)


def _mix(module: ForeignModule) -> float:
    """Return the factor of λ, which rises to 1 while a converted model is warmed up."""
    return float(getattr(module, "diff_attn_mix", 1.0))


def _eager(module: ForeignModule) -> bool:
    return not any(kind in type(module).__name__ for kind in ("Sdpa", "Flash"))


def _values(v: Tensor, d: int, width: int) -> Iterator[Tensor]:
    """Yield the possible layouts of the values, (batch, head, key, width), from projected or cached ones of narrower heads."""
    rows = v.transpose(1, 2).flatten(2)  # (batch, key, all widths)
    if width == d:
        yield heads_of(rows, d)
        return
    yield torch.cat([heads_of(half, d) for half in rows.chunk(2, dim=-1)], dim=-1)  # heads g and g + G
    yield heads_of(rows, width)  # heads 2g and 2g + 1
