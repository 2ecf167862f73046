"""What the two branches of differential attention share, and what the subtraction leaves.

Functions on a key set X take the rows restricted to X: ``a1``, ``a2``, ``d`` are ``(..., X)`` with exact zeros on
keys that a row cannot see, and ``seen (...)`` says how many keys of X each row sees, by default all. Everything about
direction or shape within X (cosine, divergences) is NaN where a row sees fewer than two of its keys: one key always has
cosine 1 and divergence 0, which means nothing. Everything is NaN where it would divide by a mass of zero.
"""

import math

import torch
from torch import Tensor


def cosine(a1: Tensor, a2: Tensor, seen: Tensor | None = None) -> Tensor:
    """Cosine of the two branches on X: <A1,A2> / (|A1||A2|).

    Parameters
    ----------
    a1, a2 : Tensor (..., X)
    seen : Tensor (...), optional

    Returns
    -------
    Tensor (...)
        Between 0 and 1. NaN where a row sees fewer than two keys of X, or a branch has no mass there.
    """
    u = _unit_peak(a1)[0]
    v = _unit_peak(a2)[0]
    value = _dot(u, v) / (_dot(u, u) * _dot(v, v)).sqrt()
    return _where_shape(value, seen, a1)


def lambda_star(a1: Tensor, a2: Tensor) -> Tensor:
    """The coefficient that leaves least of A1 on X: <A1,A2> / <A2,A2>, the minimum of |A1 - c·A2| over c.

    Where the gain g of a model is not 1, what it has learned is to be compared as lambda / g.

    Returns
    -------
    Tensor (...)
        Dimensionless, not negative. NaN where a branch has no mass on X.
    """
    u, peak1 = _unit_peak(a1)
    v, peak2 = _unit_peak(a2)
    return _dot(u, v) / _dot(v, v) * (peak1 / peak2)


def residual_noise(a1: Tensor, d: Tensor, gain: Tensor | float = 1.0) -> Tensor:
    """What the learned subtraction leaves of A1 on X: |D| / |g·A1| in Euclidean norm.

    Parameters
    ----------
    a1, d : Tensor (..., X)
    gain : Tensor (...) or float
        g, 1 except in V3.

    Returns
    -------
    Tensor (...)
        0 or more; 1 is no change. NaN where A1 has no mass on X.
    """
    _, peak = _unit_peak(a1)
    peak = peak.unsqueeze(-1)
    return _norm(d / peak) / (gain * _norm(a1 / peak))


def residual_floor(a1: Tensor, a2: Tensor, seen: Tensor | None = None) -> Tensor:
    """The least that any coefficient could leave: sqrt(1 - cosine²).

    Computed as the residual at lambda_star itself: 1 - cosine² would lose half the digits where branches agree.

    Returns
    -------
    Tensor (...)
        Between 0 and 1. NaN where the cosine is.
    """
    u = _unit_peak(a1)[0]
    v = _unit_peak(a2)[0]
    best = (_dot(u, v) / _dot(v, v)).unsqueeze(-1)
    return _where_shape(_norm(u - best * v) / _norm(u), seen, a1)


def noise_gain(a1: Tensor, d: Tensor) -> Tensor:
    """Absolute mass that comes out on X over what went in: sum|D| / sum A1.

    Returns
    -------
    Tensor (...)
        0 or more. NaN where A1 has no mass on X.
    """
    return d.abs().sum(-1) / _mass(a1)


def signal_gain(a1: Tensor, d: Tensor) -> Tensor:
    """Net mass that comes out on X over what went in: sum D / sum A1.

    Returns
    -------
    Tensor (...)
        Negative where the subtraction overshoots. NaN where A1 has no mass on X.
    """
    return d.sum(-1) / _mass(a1)


def selectivity(a1: Tensor, d: Tensor, total: Tensor, total_a1: Tensor | float = 1.0) -> Tensor:
    """Share of X in D over its share in A1: above 1, the subtraction has moved attention to X.

    Parameters
    ----------
    a1, d : Tensor (..., X)
    total : Tensor (...)
        sum |D| over the whole row.
    total_a1 : Tensor (...) or float
        sum A1 over the whole row; less than 1 where a sink logit takes part.

    Returns
    -------
    Tensor (...)
        0 or more. NaN where A1 has no mass on X or D is zero everywhere.
    """
    return d.abs().sum(-1) / total * total_a1 / _mass(a1)


def rho(a1: Tensor, a2: Tensor) -> Tensor:
    """Relative difference on X, 1 less :func:`overlap`: sum|A1 - A2| / sum(A1 + A2).

    Returns
    -------
    Tensor (...)
        0 where equal, 1 where disjoint; defined on a single key. NaN where neither branch has mass on X.
    """
    return (a1 - a2).abs().sum(-1) / _mass(a1 + a2)


def overlap(a1: Tensor, a2: Tensor) -> Tensor:
    """What the branches share on X, 1 less :func:`rho`: 2 sum min(A1, A2) / sum(A1 + A2).

    Returns
    -------
    Tensor (...)
        0 where disjoint, 1 where equal; defined on a single key. NaN where neither branch has mass on X.
    """
    return 2 * torch.minimum(a1, a2).sum(-1) / _mass(a1 + a2)


def kl(p: Tensor, q: Tensor, seen: Tensor | None = None) -> Tensor:
    """Kullback-Leibler divergence KL(p|q) of the branches renormalised on X.

    Summed as p ln(p/q) - p + q, which has no negative term and so no rounding below zero.

    Parameters
    ----------
    p, q : Tensor (..., X)
    seen : Tensor (...), optional

    Returns
    -------
    Tensor (...)
        Nats, 0 or more; infinite where q has underflowed to zero on a key that p attends to. NaN where a row sees
        fewer than two keys of X, or a branch has no mass there.
    """
    p = _renormalised(p)
    q = _renormalised(q)
    logs = torch.where(p > 0, p / q, 1).log()
    return _where_shape((p * logs - p + q).sum(-1), seen, p)


def js(a1: Tensor, a2: Tensor, seen: Tensor | None = None) -> Tensor:
    """Jensen-Shannon divergence of the branches renormalised on X.

    With r = (p - q)/(p + q) it is half the sum of p·ln(1 + r) + q·ln(1 - r), which keeps the digits of branches that
    nearly agree. Where r is -1 up to rounding p is next to nothing, so the logarithm is cut off there.

    Returns
    -------
    Tensor (...)
        Nats, between 0 and ln 2. NaN where a row sees fewer than two keys of X, or a branch has no mass there.
    """
    p = _renormalised(a1)
    q = _renormalised(a2)
    limits = torch.finfo(p.dtype)
    r = (p - q) / (p + q).clamp_min(limits.tiny)
    lowest = limits.eps - 1
    nats = (p * r.clamp_min(lowest).log1p() + q * (-r).clamp_min(lowest).log1p()).sum(-1) / 2
    return _where_shape(nats.clamp(0, math.log(2)), seen, a1)


def shape_overlap(a1: Tensor, a2: Tensor, seen: Tensor | None = None) -> Tensor:
    """What the shapes of the branches share, each renormalised on X: sum min(p, q).

    Returns
    -------
    Tensor (...)
        Between 0 (disjoint) and 1 (one shape). NaN where a row sees fewer than two keys of X, or a branch has no mass.
    """
    return _where_shape(torch.minimum(_renormalised(a1), _renormalised(a2)).sum(-1), seen, a1)


def cmrr(lam: Tensor, gain: Tensor | float = 1.0) -> Tensor:
    """Common-mode rejection ratio: 20·log10((|g + lambda|/2) / |g - lambda|).

    The gains are those of the differential mode A1 - A2 and of the common mode (A1 + A2)/2 in
    D = (g - lambda)·common + ((g + lambda)/2)·differential, which is exact. As of any amplifier their sizes count: below
    lambda = -g the differential mode comes through with the other sign, and its size is still over that of the common mode.

    Parameters
    ----------
    lam : Tensor (...)
    gain : Tensor (...) or float
        g, 1 except in V3.

    Returns
    -------
    Tensor (...)
        Decibels; infinite at lambda = g, 13.06 at lambda = 0.8, -6.02 at lambda = 0, below that where lambda is negative,
        minus infinity at lambda = -g. NaN where both gains are 0.
    """
    return 20 * (((gain + lam) / 2).abs() / (gain - lam).abs()).log10()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)


def _norm(a: Tensor) -> Tensor:
    return a.square().sum(-1).sqrt()  # not vector_norm, which adds float32 up without cascading


def _unit_peak(a: Tensor) -> tuple[Tensor, Tensor]:
    """Rows over their largest weight, and that weight, so that squares of tiny weights do not underflow."""
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


def _where_shape(value: Tensor, seen: Tensor | None, a: Tensor) -> Tensor:
    """NaN where rows a (..., X) see fewer than two keys."""
    several = a.shape[-1] > 1 if seen is None else seen > 1
    return torch.where(torch.as_tensor(several, device=value.device), value, math.nan)
