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
    """Return the rank of each quantile among n ascending values, counted from 1: ceil(level·n), but for rounding.

    Parameters
    ----------
    levels : tuple of float
    n : Tensor (...)

    Returns
    -------
    int64 Tensor (..., level)
    """
    level = torch.tensor(levels, dtype=torch.float64, device=n.device)
    return (n.double().unsqueeze(-1) * level - 1e-9).ceil().long().clamp_min(1)


def of_rows(x: Tensor, n: Tensor, wanted: Iterable[str]) -> dict[str, Tensor]:
    """Compute moments of rows in memory.

    Parameters
    ----------
    x : Tensor (..., key)
        float32 or float64; keys that a row cannot see are exact zeros.
    n : Tensor (...) or broadcastable to it
        Visible keys of each row.
    wanted : iterable of str
        Names of moments.

    Returns
    -------
    dict of str to Tensor (...)
        `total` besides what is wanted.
    """
    moments = _Passes(x.abs()[None], x[None], torch.as_tensor(n, device=x.device), NO_REUSE).moments(set(wanted))
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
    moments = _Passes(size, signed, rows.n, rows.workspace).moments(set(wanted))
    if "peak" in moments:
        moments["peak"] += rows.start
    return moments


class _Passes:
    """Passes over rows, which share |x|, its sum and its sorted copy.

    Parameters
    ----------
    size : Tensor (map, ..., key)
        |x|
    signed : Tensor (map, ..., key)
        x itself of the last maps; all maps before are without negative values.
    n : Tensor (...)
    """

    def __init__(self, size: Tensor, signed: Tensor, n: Tensor, workspace: Workspace):
        self.size = size
        self.signed = signed
        self.n = n
        self.workspace = workspace
        self.total = size.sum(-1)

    def _like(self, x: Tensor) -> Tensor:
        return self.workspace.take("pass", tuple(x.shape), x.dtype, x.device)

    def _with(self, of_signed: Tensor, of_others: Tensor) -> Tensor:
        """Return values of the signed maps behind those of the others."""
        return torch.cat([of_others[: len(self.size) - len(self.signed)], of_signed])

    def moments(self, wanted: set[str]) -> dict[str, Tensor]:
        """Return moments by name, each (map, ...) or (map, ..., k); `total` besides what is wanted."""
        moments = {"total": self.total} | {name: getattr(self, name)() for name in sorted(wanted & _SUMS)}
        if wanted & {"gini", "quantiles"}:
            return moments | self._of_sorted(wanted)
        if "small" in wanted:
            moments["small"] = ((self.size < self._limit()).sum(-1) - self._unseen()).to(self.total.dtype)
        if "top" in wanted:
            most = min(max(TOP_K), self.size.shape[-1])
            moments["top"] = self._top(self.size.topk(most, dim=-1).values)
        return moments

    def net(self) -> Tensor:
        return self._with(self.signed.sum(-1), self.total)

    def squares(self) -> Tensor:
        return torch.mul(self.size, self.size, out=self._like(self.size)).sum(-1)  # the sum cascades, as a dot product does not

    def logs(self) -> Tensor:
        logs = torch.clamp_min(self.size, torch.finfo(self.size.dtype).tiny, out=self._like(self.size))  # 0 ln 0 = 0
        return _into(logs, "log", logs).mul_(self.size).sum(-1)

    def roots(self) -> Tensor:
        return _into(self._like(self.size), "sqrt", self.size).sum(-1)

    def positive(self) -> Tensor:
        return self._with(torch.clamp_min(self.signed, 0, out=self._like(self.signed)).sum(-1), self.total)

    def negative(self) -> Tensor:
        below = torch.clamp_max(self.signed, 0, out=self._like(self.signed)).sum(-1).abs()
        return self._with(below, torch.zeros_like(self.total))

    def negatives(self) -> Tensor:
        return self._with(torch.lt(self.signed, 0, out=self._like(self.signed)).sum(-1), torch.zeros_like(self.total))

    def peak(self) -> Tensor:  # float32 counts to 2**24
        if self.size.device.type == "cpu":  # torch's is ten times as slow
            return torch.from_numpy(self.size.numpy().argmax(-1)).to(self.size.dtype)
        return self.size.max(-1).indices.to(self.size.dtype)

    def _of_sorted(self, wanted: set[str]) -> dict[str, Tensor]:
        """Read moments off the sorted rows."""
        keys = self.size.shape[-1]
        ascending = self._sorted()
        moments = {}
        if "gini" in wanted:
            moments["gini"] = self._gini(ascending)
        if "quantiles" in wanted:
            at = self._unseen().unsqueeze(-1) + order(QUANTILES, self.n) - 1  # (..., quantile)
            moments["quantiles"] = ascending.gather(-1, at.clamp(0, keys - 1).expand(*self.total.shape, -1))
        if "small" in wanted:
            below = torch.searchsorted(ascending, self._limit()).squeeze(-1)
            moments["small"] = (below - self._unseen()).to(self.total.dtype)
        if "top" in wanted:
            moments["top"] = self._top(ascending[..., keys - min(max(TOP_K), keys) :].flip(-1))
        return moments

    def _unseen(self) -> Tensor:
        """Count the keys that each row does not see, (...)."""
        return self.size.shape[-1] - self.n

    def _limit(self) -> Tensor:
        """Return the size below which |x| counts as small, (map, ..., 1)."""
        return (NEAR_ZERO * self.total / self.n.to(self.total.dtype)).unsqueeze(-1)

    def _top(self, largest: Tensor) -> Tensor:
        """Sum the k largest of values in descending order, (map, ..., k)."""
        return largest.cumsum(-1)[..., [min(k, largest.shape[-1]) - 1 for k in TOP_K]]

    def _sorted(self) -> Tensor:
        """Sort |x|, ascending.

        On a CPU numpy sorts: its vectorised sort is ten times as fast as torch's. It sorts the bits of |x|, which have the same
        order and are compared a tenth faster.
        """
        if self.size.device.type != "cpu":
            return self.size.sort(-1).values
        ascending = self._like(self.size).copy_(self.size)  # the last pass, so nothing overwrites it
        ascending.numpy().view(f"i{ascending.itemsize}").sort(-1)
        return ascending

    def _gini(self, ascending: Tensor) -> Tensor:
        """Compute sum_i (2i - n - 1)·x_(i) / (n·sum x), x ascending.

        Keys that cannot be seen sort to the front, so ranks are counted back from the last of all N: with i = n + 1 - j it is
        1 - 1/n - 2·sum_j (j - 1)·x_(j) / (n·sum x), whose weights grow no larger than n however many keys a row cannot see, so
        that products are good in float32. A product with a vector does not cascade, so parts of long rows are added up in
        float64.
        """
        keys = ascending.shape[-1]
        n = self.n.double()
        back = torch.arange(keys - 1, -1, -1, dtype=ascending.dtype, device=ascending.device) / keys
        summed = torch.zeros(self.total.numel(), dtype=torch.float64, device=n.device)
        for x, weight in zip(ascending.reshape(-1, keys).split(CASCADED, -1), back.split(CASCADED)):
            summed += torch.mv(x, weight)
        mean = summed.view_as(self.total) * keys / self.total  # of the rank counted back, from 0
        return (1 - (1 + 2 * mean) / n).to(ascending.dtype)


_SUMS = {"net", "squares", "logs", "roots", "positive", "negative", "negatives", "peak"}


def _into(out: Tensor, function: str, x: Tensor) -> Tensor:
    """Apply an elementwise function; on a CPU numpy's, whose logarithm is three times as fast as torch's."""
    if x.device.type != "cpu":
        return getattr(torch, function)(x, out=out)
    getattr(np, function)(x.numpy(), out=out.numpy())
    return out
