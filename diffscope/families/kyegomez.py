"""kyegomez' DifferentialTransformer: a module for every head, and λ an argument; a block runs its attention twice."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diffscope.attention.components import Mask, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.errors import UnsupportedModel
from diffscope.families.attention_pass import AttentionPass
from diffscope.families.base import STRIPES, Convention, Family
from diffscope.families.foreign import ForeignModule
from diffscope.families.reading import heads_of


class Kyegomez(Family):
    """Heads with projections of their own; every token sees all others, and the only norm comes after W_o."""

    name = "kyegomez"
    convention = Convention(STRIPES, "an argument of the module", schedule=None, norm=None, post_scale=False, rope="none")
    tried_on = "documented layout"
    has = ("diff_attn_heads", "W_o")
    watch = {"q": "W_q", "k": "W_k", "v": "W_v"}  # of each head
    output = "W_o"

    def recognises(self, module: ForeignModule) -> bool:
        return super().recognises(module) and bool(_heads(module)) and isinstance(module.W_o, nn.Module)

    def watched(self, module: ForeignModule) -> dict[str, nn.Module]:
        return {f"{name}{h}": part for h, head in enumerate(_heads(module)) for name, part in Family.watched(self, head).items()}

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        heads = range(len(_heads(attention_pass.module)))
        q, k, v = (torch.cat([attention_pass.outputs[f"{name}{h}"] for h in heads], dim=-1) for name in ("q", "k", "v"))
        d = q.shape[-1] // (2 * len(heads))
        given = next(
            (attention_pass.arguments[name] for name in ("λ", "lambda_", "lam") if name in attention_pass.arguments), None
        )
        if not isinstance(given, (float, int, Tensor)) or (isinstance(given, Tensor) and given.numel() != 1):
            raise UnsupportedModel(f"{attention_pass.kind} was not given one number for λ, which diffscope reads")
        return attention_pass.layer(
            heads_of(q, d),  # (batch, map, token, d)
            heads_of(k, d),
            heads_of(v, d),
            Pairing.stripes(len(heads), device=q.device),
            mask=Mask("full"),
            lam=torch.full((1, 1, 1), float(given), dtype=torch.promote_types(q.dtype, torch.float32), device=q.device),
            rounds_scores=True,
        )


def _heads(module: ForeignModule) -> list[nn.Module]:
    """Return the modules of the heads; empty if it is another kind of module."""
    heads = getattr(module, "diff_attn_heads", None)
    if not isinstance(heads, nn.ModuleList):
        return []
    whole = all(isinstance(getattr(head, f"W_{name}", None), nn.Module) for head in heads for name in ("q", "k", "v"))
    return list(heads) if whole else []
