"""Stable Audio 3: differential in every block, self-attention over latents and cross-attention from them to the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from diffscope.attention.components import Mask, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.errors import UnsupportedModel
from diffscope.families.attention_pass import AttentionPass, compact, mask_of_keys
from diffscope.families.base import HALVES, Convention, Family
from diffscope.families.foreign import ForeignModule
from diffscope.families.reading import heads_of

#: What each fused projection holds, in order: of diffusers' self-attention, and of its cross-attention.
OF_SELF = {True: ("q1", "q2", "k1", "k2", "v"), False: ("q1", "k1", "v")}
OF_QUERIES = {True: ("q1", "q2"), False: ("q1",)}
OF_KEYS = {True: ("k1", "k2", "v"), False: ("k1", "v")}


class StableAudio(Family):
    """Diffusers' ``StableAudio3SelfAttention`` and ``StableAudio3CrossAttention``: λ is 1, and there is no norm of the heads.

    Maps h of q1 and of q2 belong to head h. q and k are normed, and in self-attention turned by a partial RoPE.
    """

    name = "stable-audio"
    convention = Convention(HALVES, "1", schedule=None, norm=None, post_scale=False, rope="half, of the first channels")
    has = ("use_differential", "dim_heads", "heads", "q_norm", "k_norm", "to_out")
    watch = {"qkv": "to_qkv", "q": "to_q", "kv": "to_kv"}
    output = "to_out"

    def source_of(self, arguments: Mapping[str, Any]) -> Tensor | None:
        return arguments.get("context")

    def convention_of(self, module: ForeignModule) -> Convention | None:
        return self.convention if module.use_differential else None

    def readings(self, attention_pass: AttentionPass) -> Iterator[LayerAttention]:
        differential = bool(attention_pass.module.use_differential)
        if attention_pass.key_lengths is None:
            yield self._layer(attention_pass, {"qkv": OF_SELF[differential]}, differential)
            return
        yield self._layer(attention_pass, {"q": OF_QUERIES[differential], "kv": OF_KEYS[differential]}, differential)

    def _layer(self, attention_pass: AttentionPass, packed: Mapping[str, tuple[str, ...]], differential: bool) -> LayerAttention:
        """Return the layer, if each watched projection holds the parts that `packed` names, in that order."""
        parts: dict[str, Tensor] = {}  # each (batch, head, token, d)
        for output, names in packed.items():
            chunks = attention_pass.outputs[output].chunk(len(names), dim=-1)
            parts |= {name: heads_of(x, attention_pass.module.dim_heads) for name, x in zip(names, chunks)}
        v = parts.pop("v").contiguous()  # a view would keep the whole projection in memory
        sides = {side: torch.cat([parts[name] for name in sorted(parts) if name[0] == side], dim=1) for side in "qk"}
        q, k = (self._turned(attention_pass, side, self._normed(attention_pass, side, x)) for side, x in sides.items())
        heads, groups, device = q.shape[1] // (2 if differential else 1), v.shape[1], q.device
        return attention_pass.layer(
            q,
            k,
            v,
            (Pairing.halves if differential else Pairing.plain)(heads, groups, device=device),
            lam=torch.ones(1, dtype=q.dtype, device=device) if differential else None,
            mask=self._mask(attention_pass),
        )

    def _normed(self, attention_pass: AttentionPass, side: str, x: Tensor) -> Tensor:
        """Return queries or keys (batch, head, token, d) after their norm."""
        return (attention_pass.module.q_norm if side == "q" else attention_pass.module.k_norm)(x)

    def _turned(self, attention_pass: AttentionPass, side: str, x: Tensor) -> Tensor:
        """Return queries or keys (batch, head, token, d) after RoPE, of which cross-attention has none."""
        return x if attention_pass.key_lengths is not None else rotate_partly(x, attention_pass.arguments["rope"])

    def _mask(self, attention_pass: AttentionPass) -> Mask:
        """Return which keys queries see: all, or in cross-attention those that ``context_mask`` (batch, key) shows."""
        shown = attention_pass.arguments.get("context_mask")
        if shown is None or attention_pass.key_lengths is None:
            return Mask("full")
        return mask_of_keys(shown[:, None, :].bool(), attention_pass.lengths, attention_pass.key_lengths)


#: What changes who sees whom in stable-audio-tools, and is not read.
OTHER_MASKS = ("flex_attention_block_mask", "flex_attention_score_mod", "padding_mask", "varlen_metadata")


class StableAudioTools(StableAudio):
    """``Attention`` of stable-audio-tools: the mechanism of Stable Audio 3, in the packing that its weights were trained in.

    Self-attention packs [q1, k1, v, q2, k2]. Of cross-attention's keys the published order is [k1, k2, v]; copies that continue
    the order of self-attention, [k1, v, k2], are read too. The reading that rebuilds the model's output is used.
    """

    name = "stable-audio-tools"
    tried_on = "documented layout"
    has = ("differential", "num_heads", "kv_heads", "dim_heads", "qk_norm", "to_out")

    def convention_of(self, module: ForeignModule) -> Convention | None:
        return self.convention if module.differential else None

    def readings(self, attention_pass: AttentionPass) -> Iterator[LayerAttention]:
        differential = bool(attention_pass.module.differential)
        if unread := next((name for name in OTHER_MASKS if attention_pass.arguments.get(name) is not None), None):
            raise UnsupportedModel(f"{attention_pass.kind} was called with {unread}, which family {self.name} does not read")
        if "qkv" in attention_pass.outputs:
            packed = ("q1", "k1", "v", "q2", "k2")
            yield self._layer(attention_pass, {"qkv": packed if differential else packed[:3]}, differential)
            return
        for keys in (("k1", "k2", "v"), ("k1", "v", "k2")) if differential else (("k1", "v"),):
            yield self._layer(attention_pass, {"q": OF_QUERIES[differential], "kv": keys}, differential)

    def _normed(self, attention_pass: AttentionPass, side: str, x: Tensor) -> Tensor:
        module = attention_pass.module
        if module.qk_norm == "none":
            return x
        if module.qk_norm == "l2":
            return nn.functional.normalize(x, dim=-1, eps=getattr(module, "qk_norm_eps", 1e-12))
        return super()._normed(attention_pass, side, x).to(x.dtype)

    def _turned(self, attention_pass: AttentionPass, side: str, x: Tensor) -> Tensor:
        """Return queries or keys (batch, head, token, d) after RoPE, whose angles are stretched where one side is shorter."""
        given = attention_pass.arguments.get("rotary_pos_emb")
        if given is None:
            return x
        own = attention_pass.arguments.get("rotary_pos_emb_k")
        if own is not None:
            return rotate_partly(x, own[0] if side == "k" else given[0])
        longest = max(attention_pass.hidden.shape[1], *(attention_pass.key_lengths or (0,)))
        return rotate_partly(x, given[0][-x.shape[2] :].float() * (longest / x.shape[2]))

    def _mask(self, attention_pass: AttentionPass) -> Mask:
        given, window = (attention_pass.arguments.get(name) for name in ("causal", "flash_attn_sliding_window"))
        causal = attention_pass.module.causal if given is None else given
        if (causal or window is not None) and (attention_pass.key_lengths is not None or (causal and window is not None)):
            raise UnsupportedModel(
                f"layer {attention_pass.number}: {attention_pass.kind} is causal or has a window (flash_attn_sliding_window) in "
                f"cross-attention, or both at once in self-attention, which family {self.name} does not read"
            )
        if window is None:
            return Mask("causal") if causal else Mask("full")
        places = torch.arange(attention_pass.hidden.shape[1], device=attention_pass.hidden.device)
        behind, ahead = (len(places) if tokens < 0 else tokens for tokens in window)
        distance = places - places[:, None]  # (query, key)
        return compact(((distance >= -behind) & (distance <= ahead))[None, None], attention_pass.lengths)


def rotate_partly(x: Tensor, angles: Tensor) -> Tensor:
    """RoPE that turns element i with i + r/2 of the first r, and leaves the others.

    Parameters
    ----------
    x : Tensor, (batch, head, token, d)
    angles : Tensor, (position, r)
        Of at least as many positions as there are tokens, which are the last ones.
    """
    turned, rest = x[..., : angles.shape[-1]].float(), x[..., angles.shape[-1] :]
    angles = angles[-x.shape[2] :].float()
    first, second = turned.chunk(2, dim=-1)
    turned = turned * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()
    return torch.cat([turned.to(x.dtype), rest], dim=-1)
