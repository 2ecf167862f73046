"""DIFF V1 in Megatron's attention: one projection for q, k and v, which it packs by key group, and tensors with tokens first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from diffscope.attention.components import Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.errors import UnsupportedModel
from diffscope.families.attention_pass import AttentionPass
from diffscope.families.base import EXPONENTIAL, STRIPES, Convention, Family
from diffscope.families.foreign import REGISTER, number_of
from diffscope.families.reading import LAMBDAS, heads_of, lambda_of, rotate_half

NORMS = ("subln", "sub_norm", "diff_norm", "head_norm")


class Megatron(Family):
    """Each head of q, k and v is split in two halves: those of q and k are its two maps, those of v stay beside one another.

    RoPE turns whole heads before they are split, or each half, as the angles given are wide. Scores are over √d of a half, or of
    a whole head, as in the attention that the halves are handed to: the reading that rebuilds the model's output is used.
    """

    name = "megatron"
    convention = Convention(STRIPES, EXPONENTIAL, schedule=0, norm="rms, affine", post_scale=True, rope="half")
    tried_on = "documented layout"
    has = ("linear_qkv", "linear_proj", "num_query_groups_per_partition", *LAMBDAS, "lambda_init")
    watch = {"qkv": "linear_qkv", "q": "q_layernorm", "k": "k_layernorm"}
    output = "linear_proj"
    tokens_first = True

    def readings(self, attention_pass: AttentionPass) -> Iterator[LayerAttention]:
        layer = self._layer(attention_pass, *_angles_of(attention_pass))
        yield layer
        yield replace(layer, scale=layer.scale * 2**-0.5)

    def suspects(self, attention_pass: AttentionPass) -> Iterator[tuple[str, LayerAttention]]:
        yield "RoPE is missing", self._layer(attention_pass, None, None)

    def _layer(self, attention_pass: AttentionPass, of_q: Tensor | None, of_k: Tensor | None) -> LayerAttention:
        """Return the layer with q and k turned by angles (token, width), if any."""
        module = attention_pass.module
        d = len(module.lambda_q1)
        q, k, v = _projected(attention_pass, 2 * d)
        q, k = _halves(q, of_q, d), _halves(k, of_k, d)  # (batch, map, token, d)
        init = number_of(module, "lambda_init")
        lam, lam_fp32 = lambda_of(module, init, q.dtype)
        return attention_pass.layer(
            q,
            k,
            v,
            Pairing.stripes(q.shape[1] // 2, v.shape[1], device=q.device),
            lam=lam,
            lam_fp32=lam_fp32,
            lam_init=init,
            norm=next((norm for norm in (getattr(module, name, None) for name in NORMS) if isinstance(norm, nn.Module)), None),
        )


def _projected(attention_pass: AttentionPass, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return q (batch, head, token, width), k and v (batch, group, token, width): each group has queries, a key, a value."""
    outputs, groups = attention_pass.outputs, int(attention_pass.module.num_query_groups_per_partition)
    projected = outputs["qkv"]
    projected = projected[0] if isinstance(projected, tuple) else projected  # Megatron's linear layers give (output, bias)
    if projected.shape[-1] % (groups * width) or projected.shape[-1] < 3 * groups * width:
        raise UnsupportedModel(
            f"{attention_pass.kind} projects to {projected.shape[-1]} elements with λ vectors of {width // 2}; diffscope reads "
            f"for each of {groups} groups some queries, one key and one value of twice that width; {REGISTER}"
        )
    packed = projected.transpose(0, 1).unflatten(-1, (groups, -1))  # (batch, token, group, (queries + 2)·width)
    parts = packed.split([packed.shape[-1] - 2 * width, width, width], dim=-1)
    q, k, v = (part.flatten(2) for part in parts)
    q, k = (outputs[name].transpose(0, 1).flatten(2) if name in outputs else x for name, x in (("q", q), ("k", k)))
    return heads_of(q, width), heads_of(k, width), heads_of(v, width).contiguous()


def _angles_of(attention_pass: AttentionPass) -> tuple[Tensor | None, Tensor | None]:
    """Return the angles of queries and of keys, each (token, width) with every angle twice; None without RoPE."""
    given = attention_pass.arguments.get("rotary_pos_emb")
    of_q, of_k = given if isinstance(given, tuple) else (given, given)
    tokens = attention_pass.hidden.shape[1]
    widest = 2 * len(attention_pass.module.lambda_q1)
    rows = [None if each is None else each.reshape(-1, each.shape[-1])[:tokens] for each in (of_q, of_k)]
    if any(each is not None and (len(each) < tokens or each.shape[-1] > widest) for each in rows):
        raise UnsupportedModel(
            f"{attention_pass.kind} was given a rotary_pos_emb that is not a row of at most {widest} angles a token; {REGISTER}"
        )
    return rows[0], rows[1]


def _halves(x: Tensor, angles: Tensor | None, d: int) -> Tensor:
    """Split heads (batch, head, token, 2d) into maps 2h and 2h + 1, each d wide, before or after they are turned."""
    if angles is not None and angles.shape[-1] > d:
        return _split(_turned(x, angles), d)
    halves = _split(x, d)
    return halves if angles is None else _turned(halves, angles)


def _split(x: Tensor, d: int) -> Tensor:
    return x.unflatten(-1, (2, d)).transpose(2, 3).flatten(1, 2)  # (batch, map, token, d)


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    """Apply RoPE to the first elements of x (batch, head, token, width), as many as there are angles."""
    cos, sin = (turn[None].to(x.dtype) for turn in (angles.cos(), angles.sin()))
    wide = angles.shape[-1]
    return torch.cat([rotate_half(x[..., :wide], cos, sin), x[..., wide:]], dim=-1)
