"""Motif-3 (remote code): grouped differential latent attention, with λ per token and a gate on the output."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from diffscope.attention.components import Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.errors import UnsupportedModel
from diffscope.families.attention_pass import AttentionPass
from diffscope.families.base import SIGMOID, Convention, Family
from diffscope.families.foreign import REGISTER, ForeignModule, number, setting
from diffscope.families.reading import angles_of, from_cache, given_mask, heads_of, is_eager, rotate_half

STALE = (
    "by its makers' own documents the public reference code of Motif-3 is stale (its RoPE resets YaRN, a coefficient of mHC is "
    "wrong): a proof says that these maps are this code's, not that they are those of the model as it was trained"
)


class MotifLatent(Family):
    """Motif-3: queries and keys from a latent, RoPE on the last part of their width, λ per token and head."""

    name = "motif-latent"
    convention = Convention(
        "of every r + 1 maps the last is A2 of the r before it",
        SIGMOID,
        schedule=None,
        norm=None,
        post_scale=False,
        rope="half, on the last part of the width",
        keys="shared by both maps",
    )
    tried_on = "documented layout"
    has = ("wq_a", "q_norm", "wq_b", "wkv_a", "kv_norm", "wkv_b", "lambda_proj", "wo")
    watch = {
        "latent": "q_norm",
        "q": "wq_b",
        "kv_a": "wkv_a",
        "kv": "wkv_b",
        "lambda": "lambda_proj",
        "gate": "wq_b_gate",  # absent in some layers
        "rotary": "swa_rotary_emb",  # absent in some layers
    }
    output = "wo"

    def recognises(self, module: ForeignModule) -> bool:
        return super().recognises(module) and all(isinstance(getattr(module, name), nn.Module) for name in self.has)

    def warnings(self, layer: LayerAttention) -> list[str]:
        return [STALE]

    def readings(self, attention_pass: AttentionPass) -> Iterator[LayerAttention]:
        layer = self.read(attention_pass)
        yield layer
        if layer.n_queries == layer.q.shape[1]:
            raise UnsupportedModel(
                f"the published {attention_pass.kind} takes tokens for heads when a prompt has exactly as many of them "
                f"as there are query maps ({layer.n_queries}); give a prompt one token longer or shorter"
            )

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        module = attention_pass.module
        outputs = attention_pass.outputs
        maps = setting(module, "num_attention_heads", "num_heads")
        groups = setting(module, "num_key_value_heads")
        heads = module.lambda_proj.out_features
        width = module.wo.in_features // heads
        if maps % groups or not 0 < maps - heads <= heads or heads % (maps - heads):
            raise UnsupportedModel(f"{type(module).__name__} has {maps} maps for {heads} heads; {REGISTER}")
        q, k, v = self._projected(attention_pass, maps, groups, width)
        k, v = from_cache(attention_pass, k, v)
        if k.shape[-1] != q.shape[-1] or v.shape[-1] != width:
            raise UnsupportedModel(
                f"the cache of {type(module).__name__} does not hold the keys and values of its heads; use a DynamicCache, "
                "or use_cache=False"
            )
        lam_fp32 = _sigmoid(outputs["lambda"]).transpose(1, 2)  # (batch, head, query)
        return attention_pass.layer(
            q,
            k,
            v,
            Pairing.grouped(heads, maps - heads, groups, shared_keys=True, device=q.device),
            scale=number(setting(module, "scaling", "softmax_scale", "scale"), module, "scale"),
            mask=given_mask(attention_pass, k.shape[2], _window(module)),
            lam=lam_fp32.to(q.dtype),
            lam_fp32=lam_fp32,
            rounds_scores=is_eager(module),
            gate=heads_of(outputs["gate"].sigmoid(), width) if "gate" in outputs else None,
        )

    @staticmethod
    def _projected(attention_pass: AttentionPass, maps: int, groups: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (batch, map, token, d), and keys and values (batch, group, token, d or width), of a pass."""
        module = attention_pass.module
        outputs = attention_pass.outputs
        dtype = outputs["kv"].dtype
        if "q" in outputs:
            q = outputs["q"]
        else:  # the published code multiplies with the weight in float32 and does not call the module
            q = nn.functional.linear(outputs["latent"], module.wq_b.weight.to(outputs["latent"].dtype))
        q = heads_of(q.to(dtype), q.shape[-1] // maps)
        still = outputs["kv"].shape[-1] // groups - width  # elements of a query or key that RoPE leaves
        k, v = heads_of(outputs["kv"], still + width).split([still, width], dim=-1)
        shared = outputs["kv_a"][:, None, :, module.wkv_b.in_features :]  # (batch, 1, token, turned)
        angles = angles_of(attention_pass)
        q = torch.cat([q[..., :still], _turned(q[..., still:], angles)], dim=-1)
        k = torch.cat([k, _turned(shared, angles).expand(-1, groups, -1, -1)], dim=-1)
        return q, k, v


def _turned(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Apply RoPE to x (batch, head, token, d), in float32 or wider."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return rotate_half(x.to(wide), *(angle.to(wide) for angle in angles)).to(x.dtype)


def _sigmoid(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).sigmoid()


def _window(module: ForeignModule) -> int | None:
    """Return the most keys that a query sees, itself included: the configured width plus one; None without a window."""
    config = getattr(module, "config", None)
    width = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if width is None:
        return None
    every = getattr(config, "sliding_window_pattern", "interleave") == "all"
    return width + 1 if every or module.layer_idx % setting(module, "sliding_window_period") else None
