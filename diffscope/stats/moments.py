"""The moments of a row: the few sums that row statistics are formulas of.

Whatever computes these gives the same statistics: blocks of rows in memory (here), or fused kernels
(:mod:`diffscope.stats.kernels.rows`). The formulas are in :mod:`diffscope.stats.rows` alone.

A row x of a map has the moments below, all over the keys it can see.

========= =============================================================================
total     sum |x|
net       sum x
squares   sum x²
logs      sum |x| ln |x|
roots     sum sqrt |x|
positive  sum max(x, 0)
negative  sum max(-x, 0); by itself, half the difference of total and net would lose its digits
negatives number of keys with x < 0
small     number of keys with |x| < 0.1·total/n
top       (..., k) sum of the k largest |x|
peak      position of the largest |x|, the first of them
gini      the Gini index itself: a histogram gives it without the order of the keys
quantiles (..., quantile) order statistics of |x|: the ceil(q·n)-th smallest
========= =============================================================================
"""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from diffscope.attention.layer import Rows
from diffscope.attention.memory import NO_REUSE, Workspace

TOP_K = (1, 5, 10)
NEAR_ZERO = 0.1
QUANTILES = (0.1, 0.5, 0.9, 0.99)
CASCADED = 2048  # terms that float32 adds up one after another without losing digits that matter

Moments = Mapping[str, Tensor]  # by name, each (...), or (..., k), (..., quantile)


def order(levels: tuple[float, ...], n: Tensor) -> Tensor:
    """Return the rank of each quantile among n (...) ascending values, from 1, (..., level): ceil(level·n), but for rounding."""
    level = torch.tensor(levels, dtype=torch.float64, device=n.device)
    return (n.double().unsqueeze(-1) * level - 1e-9).ceil().long().clamp_min(1)


def of_rows(x: Tensor, n: Tensor, wanted: Iterable[str]) -> dict[str, Tensor]:
    """Compute moments of rows in memory, by name: `total` besides what is wanted.

    Rows x (..., key) are float32 or float64, with exact zeros on keys that a row cannot see, and n (...) their visible keys.
    """
    moments = _moments(x.abs()[None], x[None], torch.as_tensor(n, device=x.device), set(wanted), NO_REUSE)
    return {name: values[0] for name, values in moments.items()}


def of_maps(rows: Rows, wanted: Iterable[str]) -> dict[str, Tensor]:
    """Compute moments of A1, A2 and D of a block, or of standard attention's one map; each (map, head, query, ...).

    The maps go through every pass together, and only D through those that are about signs.
    """
    if not rows.changed and rows.a2 is None:
        size = rows.a1[None]
        signed = size[:0]
    elif not rows.changed and rows.buffer is not None:
        torch.abs(rows.d, out=rows.buffer[-1])
        size = rows.buffer
        signed = rows.d[None]
    else:  # an edit may make any map signed
        signed = torch.stack([rows.a1, rows.d] if rows.a2 is None else [rows.a1, rows.a2, rows.d])
        size = signed.abs()
    moments = _moments(size, signed, rows.n, set(wanted), rows.workspace)
    if "peak" in moments:
        moments["peak"] += rows.start
    return moments


def _moments(size: Tensor, signed: Tensor, n: Tensor, wanted: set[str], workspace: Workspace) -> dict[str, Tensor]:
    """Compute moments by name, each (map, ...) or (map, ..., k); `total` besides what is wanted.

    `size` is |x|, (map, ..., key), and `signed` is x itself of the last maps; all maps before are without negative values.
    """
    room = workspace.take("pass", tuple(size.shape), size.dtype, size.device)  # the values of one pass, until the next
    some = room[: len(signed)]
    total = size.sum(-1)
    plain = total[: len(size) - len(signed)]
    none = torch.zeros_like(plain)
    moments = {"total": total}
    if "net" in wanted:
        moments["net"] = torch.cat([plain, signed.sum(-1)])
    if "squares" in wanted:
        moments["squares"] = torch.mul(size, size, out=room).sum(-1)  # the sum cascades, as a dot product does not
    if "logs" in wanted:
        torch.clamp_min(size, torch.finfo(size.dtype).tiny, out=room)  # 0 ln 0 = 0
        moments["logs"] = _into(room, "log", room).mul_(size).sum(-1)
    if "roots" in wanted:
        moments["roots"] = _into(room, "sqrt", size).sum(-1)
    if "positive" in wanted:
        moments["positive"] = torch.cat([plain, torch.clamp_min(signed, 0, out=some).sum(-1)])
    if "negative" in wanted:
        moments["negative"] = torch.cat([none, torch.clamp_max(signed, 0, out=some).sum(-1).abs()])
    if "negatives" in wanted:
        moments["negatives"] = torch.cat([none, torch.lt(signed, 0, out=some).sum(-1)])
    if "peak" in wanted:  # float32 counts to 2**24; on a CPU torch's is ten times as slow as numpy's
        peak = torch.from_numpy(size.numpy().argmax(-1)) if size.device.type == "cpu" else size.max(-1).indices
        moments["peak"] = peak.to(size.dtype)
    if wanted & {"gini", "quantiles"}:
        return moments | _of_order(_sorted(size, room), total, n, wanted)
    if "small" in wanted:
        unseen = size.shape[-1] - n
        moments["small"] = ((size < _limit(total, n)).sum(-1) - unseen).to(total.dtype)
    if "top" in wanted:
        moments["top"] = _top(size.topk(min(max(TOP_K), size.shape[-1]), dim=-1).values)
    return moments


def _of_order(ascending: Tensor, total: Tensor, n: Tensor, wanted: set[str]) -> dict[str, Tensor]:
    """Read moments off the sorted rows of |x|, (map, ..., key)."""
    keys = ascending.shape[-1]
    unseen = keys - n
    moments = {}
    if "gini" in wanted:
        moments["gini"] = _gini(ascending, total, n)
    if "quantiles" in wanted:
        at = unseen.unsqueeze(-1) + order(QUANTILES, n) - 1  # (..., quantile)
        moments["quantiles"] = ascending.gather(-1, at.clamp(0, keys - 1).expand(*total.shape, -1))
    if "small" in wanted:
        below = torch.searchsorted(ascending, _limit(total, n)).squeeze(-1)
        moments["small"] = (below - unseen).to(total.dtype)
    if "top" in wanted:
        moments["top"] = _top(ascending[..., keys - min(max(TOP_K), keys) :].flip(-1))
    return moments


def _limit(total: Tensor, n: Tensor) -> Tensor:
    """Return the size below which |x| counts as small, (map, ..., 1)."""
    return (NEAR_ZERO * total / n.to(total.dtype)).unsqueeze(-1)


def _top(largest: Tensor) -> Tensor:
    """Sum the k largest of values in descending order, (map, ..., k)."""
    return largest.cumsum(-1)[..., [min(k, largest.shape[-1]) - 1 for k in TOP_K]]


def _sorted(size: Tensor, room: Tensor) -> Tensor:
    """Sort |x|, ascending; on a CPU in `room`.

    On a CPU numpy sorts: its vectorised sort is ten times as fast as torch's. It sorts the bits of |x|, which have the same order
    and are compared a tenth faster.
    """
    if size.device.type != "cpu":
        return size.sort(-1).values
    room.copy_(size).numpy().view(f"i{room.itemsize}").sort(-1)
    return room


def _gini(ascending: Tensor, total: Tensor, n: Tensor) -> Tensor:
    """Compute sum_i (2i - n - 1)·x_(i) / (n·sum x), x ascending.

    Keys that cannot be seen sort to the front, so ranks are counted back from the last of all N: with i = n + 1 - j it is
    1 - 1/n - 2·sum_j (j - 1)·x_(j) / (n·sum x), whose weights grow no larger than n however many keys a row cannot see, so
    that products are good in float32. A product with a vector does not cascade, so parts of long rows are added up in
    float64.
    """
    keys = ascending.shape[-1]
    n = n.double()
    back = torch.arange(keys - 1, -1, -1, dtype=ascending.dtype, device=ascending.device) / keys
    summed = torch.zeros(total.numel(), dtype=torch.float64, device=n.device)
    for x, weight in zip(ascending.reshape(-1, keys).split(CASCADED, -1), back.split(CASCADED)):
        summed += torch.mv(x, weight)
    mean = summed.view_as(total) * keys / total  # of the rank counted back, from 0
    return (1 - (1 + 2 * mean) / n).to(ascending.dtype)


def _into(out: Tensor, function: str, x: Tensor) -> Tensor:
    """Apply an elementwise function; on a CPU numpy's, whose logarithm is three times as fast as torch's."""
    if x.device.type != "cpu":
        return getattr(torch, function)(x, out=out)
    getattr(np, function)(x.numpy(), out=out.numpy())
    return out
