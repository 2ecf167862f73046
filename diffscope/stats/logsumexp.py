"""Row statistics of a layer without its maps: log-sum-exp identities, for kernels that give back nothing else.

With s the scaled scores of a branch, p its row of A1 or A2 and L(·) a row's log-sum-exp:

======================= =================================================================================
sum p^a                 exp(L(a·s) - a·L(s)): squares with a = 2, roots with a = 1/2
sum p ln p              E_p[s] - L(s), and E_p[s] = scale·q·(A K) is attention with the keys for values
<A1, A2>                exp(L(s1 + s2) - L1 - L2): s1 + s2 are the scores of concatenated queries and keys
cosine                  exp(L(s1 + s2) - (L(2·s1) + L(2·s2))/2)
Bhattacharyya           exp(L((s1 + s2)/2) - (L1 + L2)/2) = sum sqrt(p1·p2)
KL(A1 | A2)             E_1[s1 - s2] - L1 + L2, with E_1[s2] from the keys of the second branch for values
sum over a key set      attention with the set's indicator for values
column sums             the transposed product with ones
sum D²                  g²·sum A1² - 2gλ·<A1, A2> + λ²·sum A2²
======================= =================================================================================

E_p[s] could also be a finite difference of L(a·s) at a = 1, which survives outputs in half precision. All kernels used
here give outputs in float32, where differences of numbers of the size of L would cost ten times the digits and two to four
calls instead of none: L(s) is needed anyway, and its call is given the keys for values.

What the rounding of L leaves is relative to the size of the scores: in float32 about 1e-7·|L| of each exponential. Sums of
signed rows lose more, where the branches agree: sum D² is exact to that fraction of sum A1², not of itself.
Nothing here goes through |D|, so its total, entropy and the like are not to be had; ``AVAILABLE`` says what is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.errors import DiffscopeError
from diffscope.kernels.attend import attend, attend_transposed, logsumexp

_BRANCH = frozenset({"total", "net", "squares", "logs", "roots", "negative", "negatives", "received", "span_net"})
_KL = ("kl_12", "kl_21")

#: by map, the moments to be had; "pair" is what A1 and A2 have with each other
AVAILABLE: dict[str, frozenset[str]] = {
    "A1": _BRANCH,
    "A2": _BRANCH,
    "D": frozenset({"net", "squares", "received", "span_net"}),
    "pair": frozenset({"dot", "cosine", "bhattacharyya", *_KL}),
}


def refusal(layer: LayerAttention) -> str | None:
    """Why the identities do not hold for a layer, in one line; None if they do."""
    if len(layer.lengths) != 1:
        return f"this layer holds {len(layer.lengths)} prompts; take one with .prompt(i)"
    if layer.changes:
        return (
            "its maps were changed mid-forward, so they are no longer those of its queries and keys; measure them in row blocks"
        )
    if layer.score_dtype is not None:
        return f"the model rounded its scores to {layer.score_dtype}, which no stock kernel repeats; measure them in row blocks"
    if layer.mask.kind == "given":
        return "a mask given entry by entry has no stock kernel that keeps memory linear; measure the maps in row blocks"
    return None


@torch.no_grad()
def moments(
    layer: LayerAttention,
    wanted: Collection[str],
    spans: Sequence[Tensor] = (),
    queries: Sequence[int] | Tensor | None = None,
    kernel: str | None = None,
    maps: Collection[str] = tuple(AVAILABLE),
) -> dict[str, dict[str, Tensor]]:
    """Moments of the rows of A1, A2 and D, as stats/moments.py has them, from stock kernels alone.

    Parameters
    ----------
    layer : LayerAttention
        With a batch of one.
    wanted : collection of str
        Names from ``AVAILABLE``; each is given for every map that has it there.
    spans : sequence of LongTensor
        Key positions of each set, for "span_net".
    queries : sequence of int or int64 Tensor, optional
        Query positions, by default all. Consecutive ones go to the fast kernels, others are computed in row blocks.
    kernel : str, optional
        As :func:`diffscope.kernels.attend.attend` has it.
    maps : collection of str
        Those of "A1", "A2", "D" and "pair" that are asked about: the squares of D cost as much as those of A1 and A2.

    Returns
    -------
    dict of str to dict of str to Tensor
        By "A1", "A2", "D", "pair", without "A2" and "pair" in standard attention. (head, query) each, but "received", the sum
        over the given queries, (head, key), and "span_net", (head, query, span). "cosine", "bhattacharyya" and the divergences,
        in nats, are NaN where a query sees one key.

    Raises
    ------
    DiffscopeError
        The identities do not hold for the layer, no map has a moment that is wanted, or the kernel cannot do it.
    """
    if why := refusal(layer):
        raise DiffscopeError(why)
    wanted = frozenset(wanted)
    if unknown := sorted(wanted.difference(*AVAILABLE.values()) | set(maps).difference(AVAILABLE)):
        raise DiffscopeError(f"{', '.join(unknown)} cannot be had from log-sum-exp identities; measure it in row blocks")
    rows = _Rows.of(layer, queries, kernel)
    first = _Branch.of(rows, layer.pairing.a1, rows.gain, wanted, spans)
    if not layer.differential:
        found = {"A1": _of_branch(first), "D": _of_scaled(first)}
    else:
        second = _Branch.of(rows, layer.pairing.a2, rows.lam, wanted, spans)
        pair = _Pair(first, second)
        found = {"A1": _of_branch(first), "A2": _of_branch(second), "D": _of_difference(pair), "pair": _of_pair(pair)}
    return {
        name: {moment: value() for moment, value in values.items() if moment in wanted}
        for name, values in found.items()
        if name in maps
    }


@dataclass(frozen=True)
class _Rows:
    """Which rows of a layer are asked about, and how a kernel is told so.

    Attributes
    ----------
    chosen : slice or int64 Tensor (query,)
    seen : int64 Tensor (query,)
        Visible keys of each.
    gain, lam : Tensor (head, query)
    how : dict
        Keywords for attend and its kin.
    """

    layer: LayerAttention
    chosen: slice | Tensor
    seen: Tensor
    gain: Tensor
    lam: Tensor
    how: dict

    @classmethod
    def of(cls, layer: LayerAttention, queries, kernel: str | None) -> _Rows:
        every = torch.arange(layer.n_queries, device=layer.q.device)
        index = every if queries is None else torch.as_tensor(queries, dtype=torch.int64, device=every.device)
        consecutive = len(index) > 0 and bool((index.diff() == 1).all())
        chosen = slice(int(index[0]), int(index[-1]) + 1) if consecutive else index
        position = index + layer.n_keys - layer.n_queries
        window = layer.mask.window if layer.mask.kind == "window" else None
        how = {"window": window, "kernel": kernel}
        if layer.mask.kind == "full":
            seen = torch.full_like(position, layer.n_keys)
        else:
            how |= {"causal": True, "offset": int(position[0]) if consecutive else position}
            seen = (position + 1).clamp_max(window or layer.n_keys)

        def per_row(x: Tensor) -> Tensor:
            return x[0].expand(layer.n_heads, layer.n_queries)[:, index].to(layer.dtype)

        return cls(layer, chosen, seen, per_row(layer.gain), per_row(layer.lam), how)


@dataclass(frozen=True)
class _Branch:
    """The distinct maps that the heads use for A1, or for A2, and which of them each head uses.

    Attributes
    ----------
    q : Tensor (map, query, d)
    k : Tensor (map, key, d)
    values : Tensor (map, key, width)
        The keys, if expectations of the scores are wanted, then the indicators of the key sets.
    spans : int
        How many of those there are.
    of_head : int64 Tensor (head,)
    factor : Tensor (head, query)
        What the rows are multiplied with in D: gain or λ.
    """

    rows: _Rows
    q: Tensor
    k: Tensor
    values: Tensor
    spans: int
    of_head: Tensor
    factor: Tensor

    @classmethod
    def of(cls, rows: _Rows, maps: Tensor, factor: Tensor, wanted: frozenset[str], spans: Sequence[Tensor]) -> _Branch:
        layer = rows.layer
        distinct, of_head = maps.unique(return_inverse=True)
        k = layer.k[0][layer.pairing.key_of_map[distinct]]
        values = [k] if wanted.intersection({"logs", *_KL}) else []
        if "span_net" in wanted:
            inside = torch.zeros(layer.n_keys, len(spans), dtype=layer.dtype, device=k.device)  # (key, span)
            for number, keys in enumerate(spans):
                inside[:, number] = torch.as_tensor(keys, dtype=torch.int64, device=k.device).bincount(minlength=layer.n_keys)
            values.append(inside.expand(len(k), -1, -1))
        values = torch.cat([x.to(layer.dtype) for x in values], dim=-1) if values else k[..., :0]
        return cls(rows, layer.q[0][distinct][:, rows.chosen], k, values, len(spans), of_head, factor)

    def log_sum(self, factor: float) -> Tensor:
        """L(factor·s), (map, query)."""
        return logsumexp(self.q, self.k, scale=factor * self.rows.layer.scale, **self.rows.how)

    @cached_property
    def attended(self) -> tuple[Tensor, Tensor]:
        """A·values (map, query, width), and L(s) (map, query)."""
        return attend(self.q, self.k, self.values, scale=self.rows.layer.scale, **self.rows.how)

    @property
    def lse(self) -> Tensor:
        return self.attended[1]

    @cached_property
    def doubled(self) -> Tensor:
        """L(2·s), (map, query)."""
        return self.log_sum(2)

    @cached_property
    def squares(self) -> Tensor:
        """Sum p², (head, query)."""
        return (self.doubled - 2 * self.lse).exp().clamp_max(1)[self.of_head]

    @property
    def roots(self) -> Tensor:
        """Sum sqrt p, (head, query)."""
        return (self.log_sum(0.5) - self.lse / 2).exp().clamp_min(1)[self.of_head]

    @property
    def logs(self) -> Tensor:
        """Sum p ln p, (head, query)."""
        return (self.mean_score - self.lse).clamp_max(0)[self.of_head]

    @property
    def mean_score(self) -> Tensor:
        """E_p[s], (map, query)."""
        mean_key = self.attended[0][..., : self.q.shape[-1]]  # (map, query, d)
        return self.rows.layer.scale * (self.q * mean_key).sum(-1)

    @property
    def span_net(self) -> Tensor:
        """(head, query, span)"""
        return self.attended[0][..., -self.spans :][self.of_head] if self.spans else self.lse.new_zeros(*self.factor.shape, 0)

    @cached_property
    def received(self) -> tuple[Tensor, Tensor]:
        """Column sums of each head's map, and of its rows times `factor`; both (head, key).

        Heads that share a map are columns of one product.
        """
        same = self.of_head[:, None] == self.of_head  # (head, head)
        column = same.tril().sum(-1)  # 1 for the first head of a map, 2 for the next; 0 is the column of ones
        y = self.lse.new_zeros(*self.lse.shape, int(column.max()) + 1)  # (map, query, column)
        y[..., 0] = 1
        y[self.of_head, :, column] = self.factor
        sums = attend_transposed(self.q, self.k, y, self.lse, scale=self.rows.layer.scale, **self.rows.how)  # (map, key, column)
        return sums[self.of_head, :, 0], sums[self.of_head, :, column]


class _Pair:
    """The two branches of each head together; heads with the same two maps are computed once.

    Attributes
    ----------
    at1, at2 : int64 Tensor (pair,)
        The maps of each distinct pair within its branch.
    of_head : int64 Tensor (head,)
    """

    def __init__(self, first: _Branch, second: _Branch):
        self.first, self.second = first, second
        pairs = torch.stack([first.of_head, second.of_head])  # (2, head)
        (self.at1, self.at2), self.of_head = pairs.unique(dim=1, return_inverse=True)

    def log_sum(self, factor: float) -> Tensor:
        """L(factor·(s1 + s2)), (pair, query)."""
        rows = self.first.rows
        q = torch.cat([self.first.q[self.at1], self.second.q[self.at2]], dim=-1)  # (pair, query, 2·d)
        k = torch.cat([self.first.k[self.at1], self.second.k[self.at2]], dim=-1)  # (pair, key, 2·d)
        return logsumexp(q, k, scale=factor * rows.layer.scale, **rows.how)

    @cached_property
    def summed(self) -> Tensor:
        """L(s1 + s2), (pair, query)."""
        return self.log_sum(1)

    def _both(self, lse1: Tensor, lse2: Tensor) -> Tensor:
        return lse1[self.at1] + lse2[self.at2]

    @cached_property
    def dot(self) -> Tensor:
        """<A1, A2>, (head, query)."""
        return (self.summed - self._both(self.first.lse, self.second.lse)).exp().clamp_max(1)[self.of_head]

    @property
    def cosine(self) -> Tensor:
        """(head, query); without 1/|A|, which underflows where rows of the two branches do not."""
        return (self.summed - self._both(self.first.doubled, self.second.doubled) / 2).exp().clamp_max(1)[self.of_head]

    @property
    def bhattacharyya(self) -> Tensor:
        """Sum sqrt(p1·p2), (head, query)."""
        return (self.log_sum(0.5) - self._both(self.first.lse, self.second.lse) / 2).exp().clamp_max(1)[self.of_head]

    def kl(self, p: _Branch, at: Tensor, other: _Branch, at_other: Tensor) -> Tensor:
        """KL of `p` from the `other` branch, (head, query)."""
        rows = p.rows
        mean_key, _ = attend(p.q[at], p.k[at], other.k[at_other], scale=rows.layer.scale, **rows.how)  # (pair, query, d)
        mean_other = rows.layer.scale * (other.q[at_other] * mean_key).sum(-1)
        nats = (p.mean_score - p.lse)[at] - (mean_other - other.lse[at_other])
        return nats.clamp_min(0)[self.of_head]


def _of_branch(branch: _Branch) -> dict[str, Callable[[], Tensor]]:
    """How to come by each moment of A1, or of A2."""
    ones = torch.ones_like(branch.factor)
    zeros = torch.zeros_like(ones)
    return {
        "total": lambda: ones,
        "net": lambda: ones,
        "squares": lambda: branch.squares,
        "logs": lambda: branch.logs,
        "roots": lambda: branch.roots,
        "negative": lambda: zeros,
        "negatives": lambda: zeros,
        "received": lambda: branch.received[0],
        "span_net": lambda: branch.span_net,
    }


def _of_difference(pair: _Pair) -> dict[str, Callable[[], Tensor]]:
    first, second = pair.first, pair.second
    g, lam = first.factor, second.factor
    return {
        "net": lambda: g - lam,
        "squares": lambda: (g**2 * first.squares - 2 * g * lam * pair.dot + lam**2 * second.squares).clamp_min(0),
        "received": lambda: first.received[1] - second.received[1],
        "span_net": lambda: g[..., None] * first.span_net - lam[..., None] * second.span_net,
    }


def _of_scaled(branch: _Branch) -> dict[str, Callable[[], Tensor]]:
    """D of standard attention, which is gain·A1."""
    g = branch.factor
    return {
        "net": lambda: g,
        "squares": lambda: g**2 * branch.squares,
        "received": lambda: branch.received[1],
        "span_net": lambda: g[..., None] * branch.span_net,
    }


def _of_pair(pair: _Pair) -> dict[str, Callable[[], Tensor]]:
    several = pair.first.rows.seen > 1  # (query,)
    first, second = (pair.first, pair.at1), (pair.second, pair.at2)

    def shape(value: Tensor) -> Tensor:
        """NaN where there is one key, whatever the model."""
        return torch.where(several, value, math.nan)

    return {
        "dot": lambda: pair.dot,
        "cosine": lambda: shape(pair.cosine),
        "bhattacharyya": lambda: shape(pair.bhattacharyya),
        "kl_12": lambda: shape(pair.kl(*first, *second)),
        "kl_21": lambda: shape(pair.kl(*second, *first)),
    }
