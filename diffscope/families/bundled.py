"""diffscope's own models: DIFF V1 and V2, the standard baseline, and the control arms."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import repeat_kv

from diffscope.attention.changes import Reshape, SignedMask, TopKA1
from diffscope.attention.components import Norm, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.families.attention_pass import AttentionPass, expect_calls
from diffscope.families.base import EXPONENTIAL, ONE_SECOND, SIGMOID, STRIPES, Convention, Family
from diffscope.families.diffllama import read_halves
from diffscope.families.foreign import ForeignModule, filled, norm_of
from diffscope.families.reading import wide_linear
from diffscope.models.controls import DPlusAttention, GatedAttention, SignedAttention, TopKAttention
from diffscope.models.mechanisms import (
    Attention,
    DiffV1Attention,
    DiffV2Attention,
    HeadScale,
    PlusAttention,
    SharedA2Attention,
)


def norm_of_heads(module: Attention) -> Norm | None:
    """Return the norm of a module's heads with a copy of its weights, or None (training may change the weights)."""
    if isinstance(module.subln, HeadScale):
        return Norm("scalar", 0.0, module.subln.weight.detach()[:, None].clone())
    return norm_of(module.subln, module.o_proj.in_features // module.heads, torch.float32)


class Bundled(Family):
    """diffscope's own models behind one configuration field."""

    name = "diffscope"
    module_class = Attention

    def convention_of(self, module: ForeignModule) -> Convention | None:
        if isinstance(module, DiffV1Attention):
            learned = module.fixed is None
            added = isinstance(module, PlusAttention)
            schedule = 0 if learned and module.config.lambda_init is None and not added else None
            lam = EXPONENTIAL if learned else f"{module.fixed:g}, fixed"
            lam = f"−({lam}), as A2 is added" if added else lam
            norms: dict[str | None, str | None] = {"rms": "rms, affine", "scalar": "one number a head", "none": None}
            pairing = ONE_SECOND if isinstance(module, SharedA2Attention) else STRIPES
            return Convention(pairing, lam, schedule, norms[module.config.head_norm], post_scale=True, rope="half")
        if isinstance(module, DiffV2Attention):
            return Convention(STRIPES, SIGMOID, None, norm=None, post_scale=False, rope="half", keys="shared by both maps")
        return None

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        module = attention_pass.module
        if isinstance(module, DiffV1Attention):
            return self._like_v1(attention_pass)
        layer = self._one_call(attention_pass)
        if isinstance(module, GatedAttention):
            return replace(layer, gate=module.gates(attention_pass.hidden).transpose(1, 2).unsqueeze(-1))
        if isinstance(module, TopKAttention):
            assert module.config.top_keys is not None  # DiffConfig raises otherwise
            change = TopKA1(tuple(range(module.heads)), module.config.top_keys, renormalise=True)
            return replace(layer, changes=(change,))
        if isinstance(module, SignedAttention):
            return replace(layer, changes=(self._signed_mask(attention_pass),))
        return layer

    def _like_v1(self, attention_pass: AttentionPass) -> LayerAttention:
        """Read V1 and the arms that differ from it in one respect."""
        module = attention_pass.module
        lam = module.lam()
        used = lam.to(attention_pass.calls[0].query.dtype)
        calls = 1 if isinstance(module, DPlusAttention) else 2
        layer = read_halves(attention_pass, self.name, norm_of_heads(module), used, lam, calls)
        if module.fixed not in (None, module.lambda_init):
            # λ_init sets the factor after the norm, but was never the value of this fixed λ.
            layer = replace(layer, lam_init=None)
        if isinstance(module, PlusAttention):  # A1 + λ·A2 is D = A1 − λ·A2 with the other sign of λ
            init = None if layer.lam_init is None else -layer.lam_init
            return replace(layer, lam=-layer.lam, lam_fp32=-layer.lam_fp32, lam_init=init)
        if isinstance(module, DPlusAttention):
            return replace(layer, changes=(Reshape(tuple(range(module.heads)), "positive"),))
        if isinstance(module, SharedA2Attention):  # the module repeats the shared map for every head; one copy is enough
            groups = layer.v.shape[1]
            pairing = Pairing.one_second(module.heads, groups, layer.q.device)
            q, k = layer.q[:, : module.heads + 1], layer.k[:, : groups + 1]
            return replace(layer, q=q, k=k, pairing=pairing)
        return layer

    def _one_call(self, attention_pass: AttentionPass) -> LayerAttention:
        """Read an arm that calls the interface once, with keys and values shared by all maps of a group."""
        expect_calls(attention_pass, self.name, 1)
        call = attention_pass.calls[0]
        module = attention_pass.module
        maps = call.query.shape[1]
        groups = call.key.shape[1]
        device = call.query.device
        pairing = Pairing.plain(maps, groups, device)
        layer = attention_pass.layer(call.query, call.key, call.value, pairing, norm=norm_of_heads(module), call=call)
        if not isinstance(module, DiffV2Attention):
            return layer
        lam = module.lam(attention_pass.hidden).transpose(1, 2)  # (batch, head, query)
        logits = wide_linear(module.lambda_proj, attention_pass.hidden)  # (batch, query, head)
        lam_fp32 = lam.to(layer.dtype) if logits is None else logits.sigmoid().transpose(1, 2)
        pairing = Pairing.stripes(maps // 2, groups, shared_keys=True, device=device)
        return replace(layer, pairing=pairing, lam=lam, lam_fp32=lam_fp32)

    def _signed_mask(self, attention_pass: AttentionPass) -> SignedMask:
        module = attention_pass.module
        cache = attention_pass.cache_layer
        values = module.values(attention_pass.hidden) if cache is None else filled(cache, cache.values)
        w: Tensor = repeat_kv(values[..., module.head_dim :], module.num_key_value_groups)
        bias = module.mask_bias.detach()[None].clone()
        return SignedMask(tuple(range(module.heads)), module.left(attention_pass.hidden), w, bias)
