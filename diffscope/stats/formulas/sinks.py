"""Attention that gathers on the first tokens, or on any one token.

Masses are those of :mod:`diffscope.stats.formulas.spans`, in the same four normalisations: for a signed row "share" counts
|D| and "signed" counts D over its sum.
"""

import math

import torch
from torch import Tensor

SINK_SETS = ("S", "first_four")
RATE_THRESHOLD = 0.3


def sink_rate(mass: Tensor, weights: Tensor | None = None, threshold: float = RATE_THRESHOLD) -> Tensor:
    """Share of heads whose mean mass over queries is above the threshold (Gu et al. 2024 use 0.3).

    Parameters
    ----------
    mass : Tensor (head, ..., query)
        Mass on S. Rows that are NaN are left out of the mean.
    weights : Tensor (query,), optional
        How many queries each one stands for; by default one.

    Returns
    -------
    Tensor (...)
        Between 0 and 1, over the heads that have a mean; NaN where none has.
    """
    weights = torch.where(mass.isnan(), 0, torch.ones_like(mass) if weights is None else weights.to(mass.dtype))
    mean = (mass.nan_to_num() * weights).sum(-1) / weights.sum(-1)  # 0/0 where all are NaN
    return torch.where(mean.isnan(), math.nan, (mean > threshold).to(mass.dtype)).nanmean(0)


def column_sums(x: Tensor, below: Tensor, n: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Normalised mass that each key receives from a block of queries, to be added over blocks.

    Rows with one visible key are left out, as are rows in which a normalisation is undefined.

    Parameters
    ----------
    x : Tensor (head, query, key)
    below : Tensor (head, query, normalisation)
        What each normalisation divides a row by: :func:`diffscope.stats.formulas.spans.denominators`.
    n : Tensor (query,)
    weights : Tensor (query,), optional
        How many queries each one stands for; by default one.

    Returns
    -------
    sums : Tensor (head, normalisation, key), float64
    rows : Tensor (head, normalisation), float64
        The number of rows that were added.
    """
    counts = torch.ones_like(n) if weights is None else weights
    factors = below.reciprocal()
    valid = factors.isfinite() & (n > 1)[:, None]
    counts = torch.where(valid, counts.to(x.dtype)[:, None], 0)  # (head, query, normalisation)
    by_normalisation = torch.where(valid, factors * counts, 0).unbind(-1)
    views = (x, x.abs(), x, x.clamp_min(0))
    sums = [torch.einsum("hq,hqk->hk", factor, view) for factor, view in zip(by_normalisation, views, strict=True)]
    return torch.stack(sums, dim=1).double(), counts.double().sum(1)


def column_sink(sums: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The most attended key: its mean mass over queries, and its position.

    The mean is over all queries that were added, those that cannot see the key among them, so that the last keys,
    which few queries see, do not win by their own diagonal.

    Parameters
    ----------
    sums : Tensor (..., key)
    rows : Tensor (...)

    Returns
    -------
    mean : Tensor (...)
    position : Tensor (...), float64
        Both NaN where no row was added.
    """
    mean, position = (sums / rows.unsqueeze(-1)).max(-1)
    return mean, position.double().masked_fill(mean.isnan(), math.nan)
