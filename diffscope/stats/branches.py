"""Statistics of what the two branches of differential attention share, and what the subtraction leaves.

The formulas act on a key set X and take the rows restricted to X: ``a1``, ``a2``, ``d`` are ``(..., X)`` with exact zeros on
keys that a row cannot see, and ``seen (...)`` says how many keys of X each row sees, by default all. Everything about
direction or shape within X (cosine, divergences) is NaN if a row sees fewer than two of its keys: one key always has
cosine 1 and divergence 0, which means nothing. Everything is NaN if it would divide by a mass of zero. What compares A1 and
A2 is NaN where one of them has a negative weight on X, which a softmax never gives and an edit of low rank does.

In the declarations p and q are A1 and A2 renormalised on X.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from diffscope.stats.collect import BlockRows, Quantity, Request, place, take
from diffscope.stats.statistic import Statistic, declare

KULLBACK = "On Information and Sufficiency (Kullback & Leibler, 1951)"
LIN = "Divergence Measures Based on the Shannon Entropy (Lin, 1991)"
BRAY = "An Ordination of the Upland Forest Communities of Southern Wisconsin (Bray & Curtis, 1957)"
ONE_OF_X = "rows that see fewer than two keys of X; where A1 or A2 has no mass or a negative weight on X"
ONE_KEY = "rows with one visible key"
NO_A1 = f"{ONE_KEY}; where A1 has no mass on X"


def on_spans(block: BlockRows) -> list[dict[str, Tensor]]:
    """Restrict the rows of a block to each requested key set, for the arguments of the formulas by name.

    They are ``a1``, ``a2``, ``d`` (head, query, X), ``gain``, ``total`` = sum |D| and ``total_a1`` = sum A1 of the whole row
    (head, query), ``seen`` (query,).
    """
    whole = {"gain": block.rows.gain, "total": block.moments["total"][-1], "total_a1": block.net[0]}
    maps = dict(zip(("a1", "a2", "d"), block.maps))
    return [{name: take(x, span.keys) for name, x in maps.items()} | {"seen": span.seen} | whole for span in block.of_spans]


def _of_block(block: BlockRows, statistics: Sequence[Statistic]) -> Tensor:  # (head, statistic, query, span)
    if block.rows.a2 is None:
        lam = block.rows.lam
        return lam.new_full((len(lam), len(statistics), lam.shape[1], len(block.request.spans)), math.nan)
    spans = on_spans(block)
    values = [
        torch.stack([statistic.function(*(on[name] for name in statistic.needs)) for on in spans], dim=-1)
        for statistic in statistics
    ]
    return torch.where((block.n > 1)[:, None], torch.stack(values, dim=1), math.nan)


def _finish(values: Tensor, statistics: Sequence[Statistic], request: Request) -> dict[str, Tensor]:
    return {statistic.name: values[:, number] for number, statistic in enumerate(statistics)}


ON_SPANS = Quantity(_of_block, place(query_dim=2), frozenset({"total"}), finish=_finish)
branch = partial(declare, kind="branch", dims=("head", "query", "span"), quantity=ON_SPANS)


@branch(
    units="1",
    description="cosine of the branches",
    formula="<A1,A2>_X / (|A1|_X |A2|_X)",
    range=("0", "1"),
    undefined=ONE_OF_X,
    needs=("a1", "a2", "seen"),
)
def cosine(a1: Tensor, a2: Tensor, seen: Tensor | None = None) -> Tensor:
    """Compute the cosine of the two branches on X: <A1,A2> / (|A1||A2|)."""
    u = _unit_peak(a1)[0]
    v = _unit_peak(a2)[0]
    value = _dot(u, v) / (_dot(u, u) * _dot(v, v)).sqrt()
    return _if_shape(value, seen, a1, a2)


@branch(
    units="1",
    description="coefficient that leaves least of A1",
    formula="<A1,A2>_X / <A2,A2>_X; compare with lambda/g",
    range=("0", "inf"),
    undefined=f"{ONE_KEY}; where A1 or A2 has no mass or a negative weight on X",
    averaged="median",
    needs=("a1", "a2"),
)
def lambda_star(a1: Tensor, a2: Tensor) -> Tensor:
    """Compute the coefficient that leaves least of A1 on X: <A1,A2> / <A2,A2>, the minimum of |A1 - c·A2| over c.

    If the gain g of a model is not 1, compare with lambda / g.
    """
    u, peak1 = _unit_peak(a1)
    v, peak2 = _unit_peak(a2)
    return _if_weights(_dot(u, v) / _dot(v, v) * (peak1 / peak2), a1, a2)


@branch(
    units="1",
    description="what the subtraction leaves",
    formula="|D|_X / |g A1|_X, Euclidean norms",
    range=("0", "inf"),
    undefined=NO_A1,
    averaged="median",
    needs=("a1", "d", "gain"),
)
def residual_noise(a1: Tensor, d: Tensor, gain: Tensor | float = 1.0) -> Tensor:
    """Compute what the learned subtraction leaves of A1 on X: |D| / |g·A1| in Euclidean norm; 1 is no change.

    The gain g is 1 except in V3.
    """
    _, peak = _unit_peak(a1)
    peak = peak.unsqueeze(-1)
    return _norm(d / peak) / (gain * _norm(a1 / peak)).abs()


@branch(
    units="1",
    description="what the best coefficient leaves",
    formula="sqrt(1 - cosine²)",
    range=("0", "1"),
    undefined=ONE_OF_X,
    needs=("a1", "a2", "seen"),
)
def residual_floor(a1: Tensor, a2: Tensor, seen: Tensor | None = None) -> Tensor:
    """Compute the least that any coefficient could leave: sqrt(1 - cosine²).

    It is the residual at lambda_star itself: 1 - cosine² would lose half the digits if the branches agree.
    """
    u = _unit_peak(a1)[0]
    v = _unit_peak(a2)[0]
    best = (_dot(u, v) / _dot(v, v)).unsqueeze(-1)
    return _if_shape(_norm(u - best * v) / _norm(u), seen, a1, a2)


@branch(
    units="1",
    description="absolute mass out over mass in",
    formula="sum_X |D| / sum_X A1",
    range=("0", "inf"),
    undefined=NO_A1,
    averaged="median",
    needs=("a1", "d"),
)
def noise_gain(a1: Tensor, d: Tensor) -> Tensor:
    """Compute the absolute mass that comes out on X over the mass that went in: sum|D| / sum A1."""
    return d.abs().sum(-1) / _mass(a1)


@branch(
    units="1",
    description="net mass out over mass in",
    formula="sum_X D / sum_X A1",
    range=("-inf", "inf"),
    undefined=NO_A1,
    averaged="median",
    needs=("a1", "d"),
)
def signal_gain(a1: Tensor, d: Tensor) -> Tensor:
    """Compute the net mass that comes out on X over the mass that went in: sum D / sum A1; negative if it overshoots."""
    return d.sum(-1) / _mass(a1)


@branch(
    units="1",
    description="share of |D| (absolute weights) over share of A1",
    formula="(sum_X |D| / sum |D|) / (sum_X A1 / sum A1)",
    range=("0", "inf"),
    undefined=f"{NO_A1}; where D is zero everywhere",
    averaged="median",
    needs=("a1", "d", "total", "total_a1"),
)
def selectivity(a1: Tensor, d: Tensor, total: Tensor, total_a1: Tensor | float = 1.0) -> Tensor:
    """Compute the share of X in D over its share in A1: above 1, the subtraction has moved attention to X."""
    return d.abs().sum(-1) / total * total_a1 / _mass(a1)


def rho(a1: Tensor, a2: Tensor) -> Tensor:
    """Compute the relative difference on X, 1 less :func:`overlap`: sum|A1 - A2| / sum(A1 + A2).

    It is 0 if the branches are equal and 1 if they are disjoint; defined on a single key.

    Parameters
    ----------
    a1, a2 : array (..., X)
        Rows on keys X, with zeros on those that a row does not see.

    Returns
    -------
    array (...)
        Dimensionless, from 0 to 1. NaN: where neither branch has mass on X, or one has a negative weight there.
    """
    return _if_weights((a1 - a2).abs().sum(-1) / _mass(a1 + a2), a1, a2)


@branch(
    units="1",
    description="overlap of A1 and A2",
    formula="1 - sum_X |A1 - A2| / sum_X (A1 + A2)",
    range=("0", "1"),
    undefined=f"{ONE_KEY}; where neither branch has mass on X, or one has a negative weight there",
    source=BRAY,
    needs=("a1", "a2"),
)
def overlap(a1: Tensor, a2: Tensor) -> Tensor:
    """Compute what the branches share on X, 1 less :func:`rho`: 2 sum min(A1, A2) / sum(A1 + A2).

    It is 0 if they are disjoint and 1 if they are equal; defined on a single key.
    """
    return _if_weights(2 * torch.minimum(a1, a2).sum(-1) / _mass(a1 + a2), a1, a2)


@branch(
    name="kl_21",
    units="nats",
    description="divergence of A1 from A2",
    formula="KL(A2|A1) = sum q ln(q/p)",
    range=("0", "inf"),
    undefined=ONE_OF_X,
    source=KULLBACK,
    needs=("a2", "a1", "seen"),
)
@branch(
    name="kl_12",
    units="nats",
    description="divergence of A2 from A1",
    formula="KL(A1|A2) = sum p ln(p/q)",
    range=("0", "inf"),
    undefined=ONE_OF_X,
    source=KULLBACK,
    needs=("a1", "a2", "seen"),
)
def kl(p: Tensor, q: Tensor, seen: Tensor | None = None) -> Tensor:
    """Compute the Kullback-Leibler divergence KL(p|q) of the branches renormalised on X.

    It is summed as p ln(p/q) - p + q, which has no negative term and so no rounding below zero. It is infinite if q has
    underflowed to zero on a key that p attends to.
    """
    p = _renormalised(p)
    q = _renormalised(q)
    logs = torch.where(p > 0, p / q, 1).log()
    return _if_shape((p * logs - p + q).sum(-1), seen, p, q)


@branch(
    units="nats",
    description="Jensen-Shannon divergence of the branches",
    formula="(KL(p|m) + KL(q|m))/2, m = (p + q)/2",
    range=("0", "ln 2"),
    undefined=ONE_OF_X,
    source=LIN,
    needs=("a1", "a2", "seen"),
)
def js(a1: Tensor, a2: Tensor, seen: Tensor | None = None) -> Tensor:
    """Compute the Jensen-Shannon divergence of the branches renormalised on X.

    With r = (p - q)/(p + q) it is half the sum of p·ln(1 + r) + q·ln(1 - r), which keeps the digits of branches that
    nearly agree. If r is -1 up to rounding, p is next to nothing, so the logarithm is cut off there.
    """
    p = _renormalised(a1)
    q = _renormalised(a2)
    limits = torch.finfo(p.dtype)
    r = (p - q) / (p + q).clamp_min(limits.tiny)
    lowest = limits.eps - 1
    nats = (p * r.clamp_min(lowest).log1p() + q * (-r).clamp_min(lowest).log1p()).sum(-1) / 2
    return _if_shape(nats.clamp(0, math.log(2)), seen, a1, a2)


@branch(
    units="1",
    description="overlap of A1 and A2, each made to sum to 1",
    formula="sum min(p, q)",
    range=("0", "1"),
    undefined=ONE_OF_X,
    needs=("a1", "a2", "seen"),
)
def shape_overlap(a1: Tensor, a2: Tensor, seen: Tensor | None = None) -> Tensor:
    """Compute what the shapes of the branches share, each renormalised on X: sum min(p, q), 0 if disjoint, 1 if alike."""
    return _if_shape(torch.minimum(_renormalised(a1), _renormalised(a2)).sum(-1), seen, a1, a2)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)


def _norm(a: Tensor) -> Tensor:
    return a.square().sum(-1).sqrt()  # not vector_norm, which adds float32 up without cascading


def _unit_peak(a: Tensor) -> tuple[Tensor, Tensor]:
    """Divide rows by their largest weight, so that squares of tiny weights do not underflow; return that weight too."""
    if a.shape[-1] == 0:
        return a, a.new_full(a.shape[:-1], math.nan)
    peak = a.amax(-1)
    peak = torch.where(peak > 0, peak, math.nan)
    return a / peak.unsqueeze(-1), peak


def _mass(a: Tensor) -> Tensor:
    total = a.sum(-1)
    return torch.where(total > 0, total, math.nan)


def _renormalised(a: Tensor) -> Tensor:
    return a / _mass(a).unsqueeze(-1)


def _if_shape(value: Tensor, seen: Tensor | None, *branches: Tensor) -> Tensor:
    """Return NaN for rows that see fewer than two keys of branches (..., X), and as :func:`_if_weights`."""
    several = branches[0].shape[-1] > 1 if seen is None else seen > 1
    return _if_weights(torch.where(torch.as_tensor(several, device=value.device), value, math.nan), *branches)


def _if_weights(value: Tensor, *branches: Tensor) -> Tensor:
    """Return NaN for rows in which a branch (..., X) has a negative weight."""
    for a in branches:
        if a.shape[-1]:
            value = torch.where(a.amin(-1) < 0, math.nan, value)
    return value
