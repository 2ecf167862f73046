"""Phi-4-mini-flash (remote code): fused projections, sliding windows, and late layers that reuse one layer's keys and values."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from diffscope.attention.components import Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.errors import UnsupportedModel
from diffscope.families.base import EXPONENTIAL, REGISTER, STRIPES, AttentionPass, Convention, Family, ForeignModule, parts_of
from diffscope.families.reading import from_cache, given_mask, heads_of, lambda_of, norm_of, paired_values


class Phi4Flash(Family):
    """Phi-4-mini-flash: maps 2h and 2h + 1 belong to head h; every other layer has no attention."""

    name = "phi4flash"
    convention = Convention(STRIPES, EXPONENTIAL, schedule=0, norm="rms, affine", post_scale=True, rope="none")
    interface = False
    tried_on = "documented layout"

    def modules(self, model: nn.Module) -> list[nn.Module]:
        return [
            module
            for module in parts_of(model)
            if isinstance(getattr(module, "Wqkv", None), nn.Module)
            and isinstance(getattr(module, "out_proj", None), nn.Module)
            and hasattr(getattr(module, "inner_cross_attn", None), "lambda_q1")
            and hasattr(module.inner_cross_attn, "subln")
        ]

    def output_projection(self, module: ForeignModule) -> nn.Module:
        return module.out_proj

    def watched(self, module: ForeignModule) -> dict[str, nn.Module]:
        return {"qkv": module.Wqkv}

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        return next(self.readings(attention_pass))

    def readings(self, attention_pass: AttentionPass) -> Iterator[LayerAttention]:
        """Of a layer that looks at shared keys: as the remote code hands them over, then as ports do that have tokens first."""
        d = len(attention_pass.module.inner_cross_attn.lambda_q1)
        wide = attention_pass.module.out_proj.in_features
        q, own = (heads_of(x, d) for x in attention_pass.outputs["qkv"].tensor_split([wide], dim=-1))  # (batch, map, token, d)
        if own.shape[1]:
            yield self._layer(attention_pass, q, *from_cache(attention_pass, *own.chunk(2, dim=1)))
            return
        shared = attention_pass.arguments.get("yoco_key_values")
        if shared is None:
            raise UnsupportedModel(f"{attention_pass.kind} projects no keys and was given no yoco_key_values=(k, v); {REGISTER}")
        k, v = shared
        layouts = [(k, v), (k.transpose(1, 2), v.transpose(1, 2))]
        fitting = [keys_and_values for keys_and_values in layouts if _serves(keys_and_values[0], q)]
        for keys_and_values in fitting or layouts[:1]:
            yield self._layer(attention_pass, q, *keys_and_values)

    def _layer(self, attention_pass: AttentionPass, q: Tensor, k: Tensor, v: Tensor) -> LayerAttention:
        """The layer with keys and values of all tokens so far, all (batch, map, token, d)."""
        module = attention_pass.module
        inner = attention_pass.module.inner_cross_attn
        if k.shape != v.shape or not _serves(k, q):
            shapes = f"{q.shape[1]} query maps of width {q.shape[-1]} for keys {tuple(k.shape[1:])}"
            raise UnsupportedModel(f"{type(module).__name__} has {shapes}; {REGISTER}")
        mask = attention_pass.arguments.get("attention_mask")
        tokens = k.shape[2] if mask is None else mask.shape[-1]  # a cache may have room for more
        k = k[:, :, :tokens]
        heads, pairs, d = q.shape[1] // 2, k.shape[1] // 2, q.shape[-1]
        lam, lam_fp32 = lambda_of(inner, inner.lambda_init, q.dtype)
        return LayerAttention(
            layer=attention_pass.number,
            family=self.name,
            q=q,
            k=k,
            v=paired_values(v[:, :, :tokens]),
            scale=d**-0.5,
            pairing=Pairing.stripes(heads, pairs, device=q.device),
            lengths=attention_pass.lengths,
            mask=given_mask(attention_pass, k.shape[2], _window(module)),
            lam=lam,
            lam_fp32=lam_fp32,
            lam_init=inner.lambda_init,
            norm=norm_of(inner.subln, 2 * d, q.dtype),
            post_scale=1 - inner.lambda_init,
        )


def _serves(k: Tensor, q: Tensor) -> bool:
    """Whether keys, read as (batch, map, token, d), are pairs of key maps for the query maps, of as many tokens at least."""
    _, maps, tokens, d = k.shape
    return maps > 0 and maps % 2 == 0 and q.shape[1] % maps == 0 and d == q.shape[-1] and tokens >= q.shape[2]


def _window(module: ForeignModule) -> int | None:
    """Keys that a query sees at most, itself included; None where it sees all before it, as in the second half of the layers."""
    width = getattr(module.config, "sliding_window", None)
    number = module.layer_idx
    if isinstance(width, (list, tuple)):
        return width[number]
    return width if number < module.config.num_hidden_layers // 2 else None
