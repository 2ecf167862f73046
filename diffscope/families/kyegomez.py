"""kyegomez' DifferentialTransformer: a module for every head, and λ an argument; a block runs its attention twice."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diffscope.attention.components import Mask, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import HALF
from diffscope.errors import UnsupportedModel
from diffscope.families.base import STRIPES, AttentionPass, Convention, Family, ForeignModule, parts_of
from diffscope.families.reading import heads_of


class Kyegomez(Family):
    """Each head projects its two maps and its values by itself; all tokens see all others, and the only norm comes after W_o."""

    name = "kyegomez"
    convention = Convention(STRIPES, "an argument of the module", schedule=None, norm=None, post_scale=False, rope="none")
    interface = False
    tried_on = "documented layout"

    def modules(self, model: nn.Module) -> list[nn.Module]:
        return [module for module in parts_of(model) if _heads(module) and isinstance(getattr(module, "W_o", None), nn.Module)]

    def output_projection(self, module: ForeignModule) -> nn.Module:
        return module.W_o

    def watched(self, module: ForeignModule) -> dict[str, nn.Module]:
        return {f"{name}{h}": getattr(head, f"W_{name}") for h, head in enumerate(_heads(module)) for name in ("q", "k", "v")}

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        heads = range(len(_heads(attention_pass.module)))
        q, k, v = (torch.cat([attention_pass.outputs[f"{name}{h}"] for h in heads], dim=-1) for name in ("q", "k", "v"))
        d = q.shape[-1] // (2 * len(heads))
        given = next(
            (attention_pass.arguments[name] for name in ("λ", "lambda_", "lam") if name in attention_pass.arguments), None
        )
        if not isinstance(given, (float, int, Tensor)) or (isinstance(given, Tensor) and given.numel() != 1):
            raise UnsupportedModel(f"{attention_pass.kind} was not given one number for λ, which diffscope reads")
        return LayerAttention(
            layer=attention_pass.number,
            family=self.name,
            q=heads_of(q, d),  # (batch, map, token, d)
            k=heads_of(k, d),
            v=heads_of(v, d),
            scale=d**-0.5,
            pairing=Pairing.stripes(len(heads), device=q.device),
            lengths=attention_pass.lengths,
            mask=Mask("full"),
            lam=torch.full((1, 1, 1), float(given), dtype=torch.promote_types(q.dtype, torch.float32), device=q.device),
            score_dtype=q.dtype if q.dtype in HALF else None,
        )


def _heads(module: ForeignModule) -> list[nn.Module]:
    """The modules of its heads; none where it is another kind of module."""
    heads = getattr(module, "diff_attn_heads", None)
    if not isinstance(heads, nn.ModuleList):
        return []
    whole = all(isinstance(getattr(head, f"W_{name}", None), nn.Module) for head in heads for name in ("q", "k", "v"))
    return list(heads) if whole else []
