"""Stable Audio 3: differential in every block, self-attention over latents and cross-attention from them to the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from diffscope.attention.components import Mask, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.families.attention_pass import AttentionPass, mask_of_keys
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

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        module, cross = attention_pass.module, attention_pass.key_lengths is not None
        differential = bool(module.use_differential)
        parts: dict[str, Tensor] = {}  # each (batch, head, token, d)
        for output, names in ("q", OF_QUERIES), ("kv", OF_KEYS), ("qkv", OF_SELF):
            if (output != "qkv") == cross:
                chunks = attention_pass.outputs[output].chunk(len(names[differential]), dim=-1)
                parts |= {name: heads_of(x, module.dim_heads) for name, x in zip(names[differential], chunks)}
        normed = {name: (module.q_norm if name[0] == "q" else module.k_norm)(x) for name, x in parts.items() if name != "v"}
        if not cross:
            normed = {name: rotate_partly(x, attention_pass.arguments["rope"]) for name, x in normed.items()}
        q, k = (torch.cat([x for name, x in normed.items() if name[0] == side], dim=1) for side in "qk")  # (batch, map, token, d)
        device, heads = q.device, module.heads
        pairing = Pairing.halves(heads, device=device) if differential else Pairing.plain(heads, device=device)
        return attention_pass.layer(
            q,
            k,
            parts["v"].contiguous(),  # a view would keep the whole projection in memory
            pairing,
            lam=torch.ones(1, dtype=q.dtype, device=device) if differential else None,
            mask=self._mask(attention_pass),
        )

    def _mask(self, attention_pass: AttentionPass) -> Mask:
        """Return which keys queries see: all, or in cross-attention those that ``context_mask`` (batch, key) shows."""
        shown = attention_pass.arguments.get("context_mask")
        if shown is None or attention_pass.key_lengths is None:
            return Mask("full")
        return mask_of_keys(shown[:, None, :].bool(), attention_pass.lengths, attention_pass.key_lengths)


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
