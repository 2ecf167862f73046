"""From queries and keys to weights: products, scaling, soft cap, and the softmax, with a sink logit or without."""

from __future__ import annotations

import torch
from torch import Tensor


def products(q: Tensor, k: Tensor, keys: Tensor, out: Tensor | None) -> Tensor:
    """q·k of every map with its own keys.

    Parameters
    ----------
    q : Tensor, (map, query, d)
    k : Tensor, (key map, key, d)
    keys : int64 Tensor, (map,)
        Which key map each map looks at.
    out : Tensor, optional, (map, query, key)

    Returns
    -------
    Tensor, (map, query, key)
        `out` if there is one.
    """
    if q.device.type != "cpu":
        return torch.matmul(q, k[keys].to(q.dtype).transpose(1, 2), out=out)
    numbers = keys.tolist()
    if numbers and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return torch.bmm(q, k[numbers[0] : numbers[0] + len(numbers)].to(q.dtype).transpose(1, 2), out=out)
    # For the few rows of a block, a copy of all keys for every map would take ten times as long as the product.
    transposed = {number: k[number].to(q.dtype).T for number in set(numbers)}  # (d, key)
    if out is None:
        return torch.stack([rows @ transposed[number] for rows, number in zip(q, numbers)])
    for i, number in enumerate(numbers):
        torch.mm(q[i], transposed[number], out=out[i])
    return out


def scaled(products: Tensor, scale: float, soft_cap: float | None, rounded: torch.dtype | None, learning: bool) -> Tensor:
    """Scores s = scale·q·k, or soft_cap·tanh(s/soft_cap); the products' memory is used again.

    Parameters
    ----------
    rounded : torch.dtype, optional
        What the model rounds to at every step, where it keeps its scores in half precision.
    learning : bool
        Whether a gradient is to flow, which it does not through a tanh whose result is overwritten.
    """
    if rounded is not None:
        scores = products.to(rounded) * scale
        capped = scores if soft_cap is None else torch.tanh(scores / soft_cap) * soft_cap
        return capped.to(products.dtype)
    scores = products.mul_(scale)
    if soft_cap is None:
        return scores
    if learning:
        return torch.tanh(scores / soft_cap) * soft_cap
    return scores.div_(soft_cap).tanh_().mul_(soft_cap)


def softmax(logits: Tensor, out: Tensor | None, may_be_blind: bool) -> Tensor:
    """Take the softmax of every row of logits (map, query, key); a row that sees nothing is zeros."""
    if not may_be_blind:
        return torch.softmax(logits, -1, out=out)
    blind = (logits == -torch.inf).all(-1, keepdim=True)  # of such a row the softmax is 0/0
    weights = torch.softmax(logits, -1, out=out)
    return weights.masked_fill(blind, 0.0) if out is None else weights.masked_fill_(blind, 0.0)


def softmax_with_sink(logits: Tensor, sink: Tensor, rounded: torch.dtype | None, out: Tensor | None) -> Tensor:
    """exp(s) / (exp(sink) + Σ exp(s)) of every row: rows sum to less than 1, and one without a visible key is zeros.

    Parameters
    ----------
    logits : Tensor, (map, query, key)
        −∞ where a key is not visible.
    sink : Tensor, broadcastable to (map, query, 1)
    rounded : torch.dtype, optional
        What the model rounds the distances from a row's largest to before it takes the softmax.
    out : Tensor, optional, (map, query, key)
        May be `logits`; not where a gradient is to flow.
    """
    largest = torch.maximum(logits.amax(-1, keepdim=True), sink).detach()
    largest = largest.clamp_min(torch.finfo(logits.dtype).min)  # a row may see nothing, and a sink logit be −∞
    distance = torch.sub(logits, largest, out=out)
    distance_of_sink = sink - largest
    if rounded is not None:
        distance = distance.to(rounded).to(logits.dtype)
        distance_of_sink = distance_of_sink.to(rounded).to(logits.dtype)
    weights = torch.exp(distance, out=out)
    total = weights.sum(-1, keepdim=True) + distance_of_sink.exp()  # 1 or more, but for rows of −∞ alone
    return torch.div(weights, total.clamp_min(torch.finfo(logits.dtype).tiny), out=out)
