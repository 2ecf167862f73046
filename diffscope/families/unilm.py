"""DIFF V1 and V2 as their authors published them (microsoft/unilm): attention modules without a model around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from diffscope.attention.components import Mask, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.errors import UnsupportedModel
from diffscope.families.attention_pass import AttentionPass, compact
from diffscope.families.base import EXPONENTIAL, SIGMOID, STRIPES, Convention, Family
from diffscope.families.foreign import ForeignModule, number_of
from diffscope.families.reading import PROJECTIONS, V1_PARTS, heads_of, lambda_of, rotate_half, rotate_interleaved, wide_linear

NAIVE = "MultiheadDiffAttn"


def _check_arguments(attention_pass: AttentionPass, *known: str) -> None:
    """Raise UnsupportedModel if the module was given arguments that the published ones do not have."""
    for name, value in list(attention_pass.arguments.items())[1:]:
        if name not in known and not isinstance(value, (bool, int, float, str, type(None))):
            raise UnsupportedModel(
                f"{attention_pass.kind} was called with {name!r}, which the published module does not take; diffscope "
                f"reads {', '.join(known)}"
            )


def _turned(attention_pass: AttentionPass, x: Tensor) -> Tensor:
    """Apply the module's `rel_pos`, if any, to queries or keys (batch, head, token, d)."""
    rel_pos = attention_pass.arguments.get("rel_pos")
    if rel_pos is None:
        return x
    if len(rel_pos) != 2 or any(a.dim() != 2 or a.shape[0] < x.shape[2] or 2 * a.shape[1] > x.shape[3] for a in rel_pos):
        raise UnsupportedModel(
            f"{attention_pass.kind} was given a rel_pos that is not (cos, sin), each (position, at most d / 2 angles)"
        )
    return rotate_interleaved(x, *rel_pos)


class UnilmV1(Family):
    """DIFF V1 of the naive file and both flash files, which differ in how they pair grouped keys, and its copies."""

    name = "unilm"
    convention = Convention(STRIPES, EXPONENTIAL, schedule=0, norm="rms, affine", post_scale=True, rope="interleaved")
    tried_on = "documented layout"
    has = (*V1_PARTS, "out_proj", "lambda_init")
    watch = PROJECTIONS
    output = "out_proj"

    def recognises(self, module: ForeignModule) -> bool:
        return super().recognises(module) and not hasattr(module, "effective_heads")  # an attribute of DiffCLIP

    def readings(self, attention_pass: AttentionPass) -> Iterator[LayerAttention]:
        """Yield the reading of the flash files, then that of the naive file, which repeats grouped keys before it pairs them.

        For the naive file's own class the order is reversed: before training, the two differ by less than the rounding of half
        precision. The flash files ignore an `attn_mask`; the naive one applies it.
        """
        for mask in self._masks(attention_pass):
            flash = self._flash(attention_pass, mask)
            maps, keys = flash.q.shape[1], flash.k.shape[1]
            key_of_map = torch.arange(maps, device=flash.q.device) * keys // maps
            naive = [replace(flash, pairing=replace(flash.pairing, key_of_map=key_of_map))] if keys < maps else []
            yield from [*naive, flash] if attention_pass.kind == NAIVE else [flash, *naive]

    def _masks(self, attention_pass: AttentionPass) -> list[Mask]:
        mask = attention_pass.arguments.get("attn_mask")
        tokens = attention_pass.hidden.shape[1]
        if mask is None:
            return [Mask("causal")]
        if mask.dim() not in (2, 3, 4) or mask.shape[-2:] != (tokens, tokens):
            raise UnsupportedModel(
                f"{attention_pass.kind} was given an attn_mask of shape {tuple(mask.shape)} for {tokens} tokens; "
                "diffscope reads one of all scores, (..., query, key)"
            )
        mask = mask[None] if mask.dim() == 2 else mask  # (batch or 1, query, key), or with a head dimension
        explicit = compact(mask[:, None] if mask.dim() == 3 else mask, attention_pass.lengths)
        return [explicit] if explicit.kind == "causal" else [explicit, Mask("causal")]

    def _flash(self, attention_pass: AttentionPass, mask: Mask) -> LayerAttention:
        """Return the reading that pairs grouped keys first: map c of head h uses key map 2·(h // repeat) + c."""
        module = attention_pass.module
        _check_arguments(attention_pass, "rel_pos", "attn_mask")
        heads, groups, d = self._sizes(attention_pass)
        q, k = (
            _turned(attention_pass, heads_of(attention_pass.outputs[name], d)) for name in ("q", "k")
        )  # (batch, map, token, d)
        init = number_of(module, "lambda_init")
        lam, lam_fp32 = lambda_of(module, init, q.dtype)
        return attention_pass.layer(
            q,
            k,
            heads_of(attention_pass.outputs["v"], 2 * d),
            Pairing.stripes(heads, groups, device=q.device),
            mask=mask,
            lam=lam,
            lam_fp32=lam_fp32,
            lam_init=init,
            norm=getattr(module, "subln", None),
            scales_queries=type(module).__name__ == NAIVE,
        )

    def suspects(self, attention_pass: AttentionPass) -> Iterator[tuple[str, LayerAttention]]:
        layer = self.read(attention_pass)
        rel_pos = attention_pass.arguments.get("rel_pos")
        if rel_pos is None or layer.score_dtype is not None:
            return
        d = layer.q.shape[-1]
        q, k = (heads_of(attention_pass.outputs[name], d) for name in ("q", "k"))
        yield "RoPE is missing", replace(layer, q=q, k=k)
        cos, sin = (torch.cat([angle[: q.shape[2]]] * 2, dim=-1)[None].to(q.dtype) for angle in rel_pos)  # (1, token, d)
        if cos.shape[-1] == d:
            turned = replace(layer, q=rotate_half(q, cos, sin), k=rotate_half(k, cos, sin))
            yield "RoPE turns element i with i + d/2 instead of 2i with 2i + 1", turned

    def _sizes(self, attention_pass: AttentionPass) -> tuple[int, int, int]:
        """Return heads, key groups and d, from the sizes of the projections and of the λ vectors."""
        module = attention_pass.module
        (q, k, v) = (attention_pass.outputs[name].shape[-1] for name in ("q", "k", "v"))
        if module.lambda_q1.dim() != 1:
            raise UnsupportedModel(
                f"{type(module).__name__} has λ vectors of shape {tuple(module.lambda_q1.shape)}; diffscope reads one λ a layer"
            )
        d = len(module.lambda_q1)
        if k != v or q % (2 * d) or k % (2 * d) or (q // (2 * d)) % (k // (2 * d)):
            raise UnsupportedModel(
                f"{type(module).__name__} projects to queries of {q}, keys of {k} and values of {v} with λ vectors of {d}; "
                "diffscope reads heads of two maps of that width, and values of twice the width"
            )
        return q // (2 * d), k // (2 * d), d

    def warnings(self, layer: LayerAttention) -> list[str]:
        heads, groups = layer.n_heads, layer.k.shape[1] // 2
        paired_first = Pairing.stripes(heads, groups, device=layer.q.device).key_of_map
        if torch.equal(layer.pairing.key_of_map, paired_first):
            return []
        return [
            "K is repeated before the maps are paired, so both maps of a head may share one K head, "
            "unlike in the flash files, DiffLlama, Motif and Phi-4-flash"
        ]


class UnilmV2(Family):
    """One softmax over twice the query heads; maps 2h and 2h + 1 share keys and values."""

    name = "unilm-v2"
    convention = Convention(
        STRIPES, SIGMOID, schedule=None, norm=None, post_scale=False, rope="interleaved", keys="shared by both maps"
    )
    tried_on = "documented layout"
    has = ("q_proj", "k_proj", "v_proj", "o_proj", "lambda_proj", "use_diff_v2", "head_dim")
    watch = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "lambda": "lambda_proj"}

    def convention_of(self, module: ForeignModule) -> Convention | None:
        return self.convention if module.use_diff_v2 else None

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        module = attention_pass.module
        d = attention_pass.module.head_dim
        _check_arguments(attention_pass, "rel_pos")
        q, k, v = (heads_of(attention_pass.outputs[name], d) for name in ("q", "k", "v"))  # (batch, head, token, d)
        pairing = Pairing.plain(q.shape[1], k.shape[1], q.device)
        layer = attention_pass.layer(_turned(attention_pass, q), _turned(attention_pass, k), v, pairing)
        if not module.use_diff_v2:
            return layer
        lam, lam_fp32 = sigmoid_of(module.lambda_proj, attention_pass.hidden, attention_pass.outputs["lambda"])
        return replace(layer, pairing=pair_on_shared_keys(q, k), lam=lam, lam_fp32=lam_fp32)


def sigmoid_of(projection: ForeignModule, hidden: Tensor, projected: Tensor) -> tuple[Tensor, Tensor]:
    """Return σ(W·x), (batch, head, token), twice: from the recorded projection, and computed in float32 or wider."""
    exact = wide_linear(projection, hidden)
    if exact is None:
        exact = projected.to(torch.promote_types(projected.dtype, torch.float32))
    return projected.sigmoid().transpose(1, 2), exact.sigmoid().transpose(1, 2).detach()


def pair_on_shared_keys(q: Tensor, k: Tensor) -> Pairing:
    """Return the pairing of V2: maps 2h and 2h + 1 of q (batch, map, token, d) belong to head h and share a key head of k.

    Raises
    ------
    UnsupportedModel
        Two maps of a head would look at different keys and values.
    """
    maps, keys = q.shape[1], k.shape[1]
    if maps % (2 * keys):
        raise UnsupportedModel(
            f"{maps} query maps on {keys} key heads: the two maps of a head look at different values, which V2 does not do"
        )
    return Pairing.stripes(maps // 2, keys, shared_keys=True, device=q.device)
