"""Attention by torch's own kernels with the log-sum-exp of its rows, and the product with the transposed map by the same kernels.

The operators behind torch's ``scaled_dot_product_attention`` (flash on a CPU, memory-efficient on CUDA) never hold a map. They
are asked only for what they agree on: attention over all keys, and causal attention of as many queries as keys. The rest is put
together from those two. Everything is computed in float32, or in float64 on a CPU: half precision has too few digits for ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from diffscope.attention.layer import LayerAttention

WIDEST = 256  # head width up to which the kernels go; wider values are attended in parts
ALIGNMENT = 16  # of head widths: memory-efficient attention asks for 16 bytes


def reason_unsupported(layer: LayerAttention) -> str | None:
    """Why these kernels cannot compute the maps of a layer, in a few words; None if they can."""
    if len(layer.lengths) != 1:
        return f"it holds {len(layer.lengths)} prompts"
    if layer.changes:
        return "its maps were changed mid-forward"
    if layer.soft_cap is not None:
        return f"its scores are capped at {layer.soft_cap:g}"
    if layer.score_dtype is not None:
        return f"its scores were rounded to {layer.score_dtype}"
    if layer.mask.kind not in ("causal", "full"):
        return f"its mask is neither causal nor full ({layer.mask.kind!r})"
    if layer.q.device.type not in ("cpu", "cuda"):
        return f"its tensors are on {layer.q.device.type!r}"
    if layer.q.is_cuda and layer.dtype == torch.float64:
        return "torch's attention has no float64 on CUDA"
    return None


def attend(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = False, offset: int = 0) -> tuple[Tensor, Tensor]:
    """softmax(scale·Q·Kᵀ)·V and the log-sum-exp of each row of scores.

    Parameters
    ----------
    q : Tensor, (map, query, d)
    k : Tensor, (map, key, d)
    v : Tensor, (map, key, width)
        Of any width from 1.
    scale : float
    causal : bool
        Query t sees the keys up to position t + offset.
    offset : int
        Key position of query 0; may be negative.

    Returns
    -------
    out : Tensor, (map, query, width)
        Zeros in rows that see no key.
    lse : Tensor, (map, query)
        Natural logarithm; −∞ in rows that see no key. Both in float32, or float64 if the inputs are.
    """
    return _anchored(q, k, v, scale, offset) if causal else _padded(q, k, v, scale, causal=False)


def attend_transposed(
    q: Tensor, k: Tensor, y: Tensor, lse: Tensor, *, scale: float, causal: bool = False, offset: int = 0
) -> Tensor:
    """Aᵀ·Y for the map A = exp(scale·Q·Kᵀ − lse) of normalised rows: what its keys receive from its queries.

    It is attention of the keys over the queries with the scores scale·k·q − lse, which one more coordinate makes ordinary
    products: [k, 1]·[q, −lse/scale]. Undoing that attention's own normalisation gives Aᵀ·Y = exp(lse′) ⊙ out′. Read
    backwards, keys see queries as queries see keys: key j, the queries from j on.

    Parameters
    ----------
    q, k, scale, causal, offset
        As :func:`attend` has them.
    y : Tensor, (map, query, width)
    lse : Tensor, (map, query)
        What :func:`attend` gave for the same q, k and mask.

    Returns
    -------
    Tensor, (map, key, width)
        Float32, or float64 if the inputs are. Exact zeros for keys that no query sees.
    """
    dtype = _precise(q)
    q, k, y, lse = (x.to(dtype) for x in (q, k, y, lse))
    blind = lse == -torch.inf  # −∞ less −∞ would be NaN; these rows have no weight under the mask either way
    q = torch.cat([q, -lse.masked_fill(blind, 0)[..., None] / scale], dim=-1)  # (map, query, d + 1)
    k = torch.cat([k, torch.ones_like(k[..., :1])], dim=-1)  # (map, key, d + 1)
    if not causal:
        out, sums = attend(k, q, y, scale=scale)
        return out * sums.exp()[..., None]
    seen = max(0, min(k.shape[1], q.shape[1] + offset))  # no query sees the keys after those
    offset = q.shape[1] + offset - seen
    out, sums = attend(k[:, :seen].flip(1), q.flip(1), y.flip(1), scale=scale, causal=True, offset=offset)
    received = (out * sums.exp()[..., None]).flip(1)
    return pad(received, (0, 0, 0, k.shape[1] - seen))


def _precise(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _anchored(q: Tensor, k: Tensor, v: Tensor, scale: float, offset: int) -> tuple[Tensor, Tensor]:
    """Causal attention whose first query stands at key `offset`, wherever the kernel itself would anchor the mask.

    Keys before the first query are seen by all queries, and queries after the last key see all keys; between them there is
    a square. Where a row has keys in two parts, each part counts with its share of the row's exponentials.
    """
    out = q.new_zeros(*q.shape[:2], v.shape[-1], dtype=_precise(q))
    lse = out.new_full(q.shape[:2], -torch.inf)
    blind = max(0, -offset)
    offset = max(0, offset)
    square = max(0, min(q.shape[1] - blind, k.shape[1] - offset))
    inside = slice(blind, blind + square)
    after = slice(blind + square, None)
    beside = slice(offset, offset + square)
    out[:, after], lse[:, after] = _padded(q[:, after], k, v, scale, causal=False)
    out[:, inside], lse[:, inside] = _padded(q[:, inside], k[:, beside], v[:, beside], scale, causal=True)
    if square and offset:
        before, lse_before = _padded(q[:, inside], k[:, :offset], v[:, :offset], scale, causal=False)
        parts = torch.stack([lse[:, inside], lse_before])  # (part, map, query)
        share = parts.softmax(0)[..., None]  # adds up to 1 however the parts were rounded
        out[:, inside] = share[0] * out[:, inside] + share[1] * before
        lse[:, inside] = parts.logsumexp(0)
    return out, lse


def _padded(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention with values of any width, from kernels that want one width for q, k and v.

    The narrower ones are padded with zeros, which change no product: one call with wide q and k costs no more products than
    two with halves of the values, and half the exponentials.
    """
    dtype = _precise(q)
    if not (q.numel() and k.numel()):
        out = q.new_zeros(*q.shape[:2], v.shape[-1], dtype=dtype)
        return out, out.new_full(q.shape[:2], -torch.inf)
    outs = []
    for part in v.split(max(q.shape[-1], WIDEST), dim=-1):
        width = -(-max(q.shape[-1], part.shape[-1]) // ALIGNMENT) * ALIGNMENT
        wide = [pad(x.to(dtype), (0, width - x.shape[-1]))[None] for x in (q, k, part)]  # (1, map, query or key, width) each
        out, lse = _sdpa(wide[0], wide[1], wide[2], scale, causal)
        outs.append(out[0, ..., : part.shape[-1]])
    return torch.cat(outs, dim=-1), lse[0].to(dtype)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of torch's attention, (1, map, query, width) and (1, map, query)."""
    if not q.is_cuda:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    attention = torch.ops.aten._scaled_dot_product_efficient_attention
    out, lse = attention(q, k, v, None, True, 0.0, causal, scale=scale)[:2]
    return out, lse[..., : q.shape[2]]  # it comes padded to a multiple of 32 queries
