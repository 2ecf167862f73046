"""Attention that gathers on the first tokens, or on any one token.

Masses are those of :mod:`diffscope.stats.spans`, in the same four normalisations: for a signed row "share" counts
|D| and "signed" counts D over its sum. Definitions: SCIENCE.md, section 1, "sink".
"""

import math

import torch
from torch import Tensor

from diffscope.stats.spans import denominators, span_mass

SINK_SETS = ("S", "first_four")
RATE_THRESHOLD = 0.3


def sink_sets(sink: Tensor, n_keys: int) -> list[Tensor]:
    """The key sets a sink is looked for on: S, and the first four keys.

    Parameters
    ----------
    sink : LongTensor (chosen,)
        S, the position of the first token.
    n_keys : int

    Returns
    -------
    list of LongTensor, in the order of ``SINK_SETS``
    """
    return [sink, torch.arange(min(4, n_keys), device=sink.device)]


def sink_mass(x: Tensor, sink: Tensor, net: Tensor, n: Tensor, seen: Tensor) -> Tensor:
    """Mass of rows on S and on the first four keys.

    Parameters
    ----------
    x : Tensor (..., key)
    sink : LongTensor (chosen,)
    net, n : Tensor (...)
        What each row sums to, and how many keys it sees.
    seen : Tensor (..., 2)
        How many keys of S, and of the first four, each row sees.

    Returns
    -------
    Tensor (..., sink_set, normalisation)
        NaN in rows that see none of a set's keys or only them: the first four rows for the first four keys.
    """
    return span_mass(x, sink_sets(sink, x.shape[-1]), net, n, seen)


def sink_rate(mass: Tensor, threshold: float = RATE_THRESHOLD) -> Tensor:
    """Share of heads whose mean mass over queries is above the threshold (Gu et al. 2024 use 0.3).

    Parameters
    ----------
    mass : Tensor (head, ..., query)
        Mass on S. Rows that are NaN are left out of the mean.

    Returns
    -------
    Tensor (...)
        Between 0 and 1, over the heads that have a mean; NaN where none has.
    """
    mean = mass.nanmean(-1)
    return torch.where(mean.isnan(), math.nan, (mean > threshold).to(mass.dtype)).nanmean(0)


def column_sums(x: Tensor, net: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Normalised mass that each key receives from a block of queries, to be added over blocks.

    Rows with one visible key are left out, as are rows in which a normalisation is undefined.

    Parameters
    ----------
    x : Tensor (head, query, key)
    net : Tensor (head, query)
    n : Tensor (query,)

    Returns
    -------
    sums : Tensor (head, normalisation, key), float64
    rows : Tensor (head, normalisation), float64
        The number of rows that were added.
    """
    weights = denominators(x, net).reciprocal()  # (head, query, normalisation)
    valid = weights.isfinite() & (n > 1)[:, None]
    weights = torch.where(valid, weights, 0).unbind(-1)
    views = (x, x.abs(), x, x.clamp_min(0))
    sums = [torch.einsum("hq,hqk->hk", weight, view) for weight, view in zip(weights, views, strict=True)]
    return torch.stack(sums, dim=1).double(), valid.sum(1).double()


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
