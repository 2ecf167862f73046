"""YOCO models with differential attention: V3, in which each map has a gate of its own, and V2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from diffscope.attention.components import Mask
from diffscope.attention.layer import LayerAttention
from diffscope.errors import UnsupportedModel
from diffscope.families.attention_pass import AttentionPass
from diffscope.families.base import SIGMOID, STRIPES, Convention, Family
from diffscope.families.foreign import REGISTER, ForeignModule
from diffscope.families.reading import angles_of, from_cache, given_mask, heads_of, rotate_half
from diffscope.families.unilm import pair_on_shared_keys, sigmoid_of

GATES = "σ(W₂·x), and A1 has a factor σ(W₁·x), per token and head"


def _gates_both(module: ForeignModule) -> bool:
    """Return whether there is one gate a query map (V3) instead of one a head (V2)."""
    gates, width = (getattr(projection, "out_features", None) for projection in (module.lambda_proj, module.q_proj))
    return gates is not None and width is not None and gates == width // module.head_dim


class Yoco(Family):
    """σ(g₁)·A1 − σ(g₂)·A2: D = gain·A1 − λ·A2 with both per token and head.

    The self-attention has a window and RoPE. The cross-attention has neither; all cross layers share keys and values, which
    are the arguments `yoco_key` and `yoco_value` of their forward.
    """

    name = "yoco"
    convention = Convention(STRIPES, GATES, schedule=None, norm=None, post_scale=False, rope="half", keys="shared by both maps")
    tried_on = "documented layout"
    has = ("q_proj", "o_proj", "lambda_proj", "head_dim")
    watch = {name: name for name in ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "lambda_proj")}

    def recognises(self, module: ForeignModule) -> bool:
        if not super().recognises(module) or any(getattr(module, name) is None for name in self.has):
            return False
        return hasattr(module, "diff_v3") or _gates_both(module)

    def convention_of(self, module: ForeignModule) -> Convention | None:
        rope = "half" if hasattr(module, "k_proj") else "none"
        lam = GATES if _gates_both(module) else SIGMOID
        return Convention(STRIPES, lam, schedule=None, norm=None, post_scale=False, rope=rope, keys="shared by both maps")

    def readings(self, attention_pass: AttentionPass) -> Iterator[LayerAttention]:
        """Yield a reading with the window as configured, and one with one key more: two public implementations differ in that."""
        layer = self.read(attention_pass)
        yield layer
        if layer.mask.window is not None and layer.n_keys > layer.mask.window:
            yield replace(layer, mask=Mask("window", layer.mask.window + 1))

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        module = attention_pass.module
        if getattr(module, "universal_loop", 1) != 1:
            raise UnsupportedModel("this model runs its layers several times (universal_loop), where diffscope reads each once")
        q, k, v, window = self._attended(attention_pass)
        gates, exact = sigmoid_of(
            module.lambda_proj, attention_pass.hidden, attention_pass.outputs["lambda_proj"]
        )  # (batch, gate, token)
        pairing = pair_on_shared_keys(q, k)
        mask = given_mask(attention_pass, k.shape[2], window)
        layer = attention_pass.layer(q, k, v, pairing, mask=mask, lam=gates, lam_fp32=exact)
        if not _gates_both(module):
            return layer
        return replace(layer, gain=gates[:, 0::2], lam=gates[:, 1::2], lam_fp32=exact[:, 1::2])

    def _attended(self, attention_pass: AttentionPass) -> tuple[Tensor, Tensor, Tensor, int | None]:
        """Return queries, keys and values, each (batch, head, token, d), and the window."""
        module = attention_pass.module
        d = attention_pass.module.head_dim
        if hasattr(module, "k_proj"):
            v = heads_of(attention_pass.outputs["v_proj"], d)
            k, v = from_cache(attention_pass, self._turned(attention_pass, self._normed(attention_pass, "k")), v)
            return self._turned(attention_pass, self._normed(attention_pass, "q")), k, v, getattr(module, "sliding_window", None)
        shared = [attention_pass.arguments.get(name) for name in ("yoco_key", "yoco_value")]
        if any(x is None or x.dim() != 3 for x in shared):
            raise UnsupportedModel(
                f"{type(module).__name__} has no keys of its own and was not given yoco_key and yoco_value, each (batch, token, "
                f"head·d); {REGISTER}"
            )
        k, v = (heads_of(x, d) for x in shared if x is not None)
        return self._normed(attention_pass, "q"), k, v, None

    def _normed(self, attention_pass: AttentionPass, name: str) -> Tensor:
        """Return queries or keys (batch, head, token, d), after their norm if there is one."""
        x = attention_pass.outputs.get(
            f"{name}_norm", attention_pass.outputs[f"{name}_proj"]
        )  # (batch, token, head, d) or (batch, token, head·d)
        return heads_of(x.flatten(2), attention_pass.module.head_dim)

    def _turned(self, attention_pass: AttentionPass, x: Tensor) -> Tensor:
        """Apply RoPE in the dtype of the angles, which are given once or twice (both halves)."""
        twice = [a if a.shape[-1] == x.shape[-1] else torch.cat([a, a], dim=-1) for a in angles_of(attention_pass)]
        return rotate_half(x, *twice).to(x.dtype)
