"""Phi-4-mini-flash (remote code): fused projections, sliding windows, and late layers that reuse one layer's keys and values."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from diffscope.attention.components import Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.errors import UnsupportedModel
from diffscope.families.attention_pass import AttentionPass
from diffscope.families.base import EXPONENTIAL, STRIPES, Convention, Family
from diffscope.families.foreign import REGISTER, ForeignModule
from diffscope.families.reading import from_cache, given_mask, heads_of, lambda_of, paired_values


class Phi4Flash(Family):
    """Phi-4-mini-flash: maps 2h and 2h + 1 belong to head h; every other layer has no attention."""

    name = "phi4flash"
    convention = Convention(STRIPES, EXPONENTIAL, schedule=0, norm="rms, affine", post_scale=True, rope="none")
    tried_on = "documented layout"
    has = ("Wqkv", "out_proj", "inner_cross_attn.lambda_q1", "inner_cross_attn.subln")
    watch = {"qkv": "Wqkv"}
    output = "out_proj"

    def readings(self, attention_pass: AttentionPass) -> Iterator[LayerAttention]:
        """Yield the readings of a layer with shared keys: the remote code's layout, then that of ports with tokens first."""
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
        """Return the layer with the keys and values of all tokens so far, each (batch, map, token, d)."""
        module = attention_pass.module
        inner = attention_pass.module.inner_cross_attn
        if k.shape != v.shape or not _serves(k, q):
            shapes = f"{q.shape[1]} query maps of width {q.shape[-1]} for keys {tuple(k.shape[1:])}"
            raise UnsupportedModel(f"{type(module).__name__} has {shapes}; {REGISTER}")
        mask = attention_pass.arguments.get("attention_mask")
        tokens = k.shape[2] if mask is None else mask.shape[-1]  # a static cache may have unused places
        k = k[:, :, :tokens]
        heads, pairs = q.shape[1] // 2, k.shape[1] // 2
        lam, lam_fp32 = lambda_of(inner, inner.lambda_init, q.dtype)
        return attention_pass.layer(
            q,
            k,
            paired_values(v[:, :, :tokens]),
            Pairing.stripes(heads, pairs, device=q.device),
            mask=given_mask(attention_pass, k.shape[2], _window(module)),
            lam=lam,
            lam_fp32=lam_fp32,
            lam_init=inner.lambda_init,
            norm=inner.subln,
        )


def _serves(k: Tensor, q: Tensor) -> bool:
    """Return whether keys (batch, map, token, d) have pairs of maps that serve the query maps, and enough tokens."""
    _, maps, tokens, d = k.shape
    return maps > 0 and maps % 2 == 0 and q.shape[1] % maps == 0 and d == q.shape[-1] and tokens >= q.shape[2]


def _window(module: ForeignModule) -> int | None:
    """Return the most keys that a query sees, itself included; None without a window, as in the second half of the layers."""
    width = getattr(module.config, "sliding_window", None)
    number = module.layer_idx
    if isinstance(width, (list, tuple)):
        return width[number]
    return width if number < module.config.num_hidden_layers // 2 else None
