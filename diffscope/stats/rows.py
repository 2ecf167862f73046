"""Statistics of how a row of attention is spread over its keys.

Every statistic is a formula of a row's moments (:mod:`diffscope.stats.moments`) and of the number ``n`` of keys that the row can
see; all have the shape of the rows, (...), unless a docstring says more. Rows may be signed: all but the sign statistics act on
the shares ``p = |x| / sum|x|``, which for a row of probabilities is the row itself. So A1, A2 and D go through the same code.

Rows with one visible key give NaN if the value would follow from there being one key; so do rows of zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from diffscope.stats.collect import BlockRows, Quantity, Request, of_three_maps, place
from diffscope.stats.moments import QUANTILES, TOP_K, Moments, of_rows
from diffscope.stats.statistic import DECLARED, Statistic, declare

ENTROPY = "A Mathematical Theory of Communication (Shannon, 1948)"
HILL = "Diversity and Evenness: A Unifying Notation and Its Consequences (Hill, 1973)"
SPARSITY = "Comparing Measures of Sparsity (Hurley & Rickard, 2009)"
HOYER = "Non-negative Matrix Factorization with Sparseness Constraints (Hoyer, 2004)"
ONE_KEY = "rows with one visible key; rows of zeros"

ROW = ("head", "map", "query")
SEVERAL = {"top": len(TOP_K), "quantiles": len(QUANTILES)}  # moments of several values a row


def of(name: str, x: Tensor, n: Tensor | int) -> Tensor:
    """Compute a row statistic of rows in memory.

    Parameters
    ----------
    name : str
    x : Tensor (..., key), float32 or float64
        Exact zeros on keys that a row cannot see.
    n : Tensor (...) or int
        Visible keys of each row.
    """
    statistic = DECLARED[name]
    n = torch.as_tensor(n, device=x.device)
    return statistic.function(of_rows(x, n, statistic.needs), n)


def needed(statistics: Iterable[Statistic]) -> list[str]:
    """Return the names of the moments that row statistics are formulas of."""
    return sorted({moment for statistic in statistics for moment in statistic.needs})


def statistics_of(moments: Moments, statistics: Sequence[Statistic], request: Request) -> dict[str, Tensor]:
    """Compute row statistics of a layer, by name, each (head, map, query, ...), from moments of that shape on the CPU.

    The maps are A1, A2 and D, or standard attention's one map.
    """
    n = request.counts.cpu()
    values = {statistic.name: statistic.function(moments, n) for statistic in statistics}
    if request.layer.differential:
        return {name: x.contiguous() for name, x in values.items()}  # a view would hold all other moments
    return {name: of_three_maps(x.unbind(1), request.layer, dim=1) for name, x in values.items()}


def _packed(block: BlockRows, statistics: Sequence[Statistic]) -> Tensor:  # (head, map, value, query)
    moments = block.moments
    parts = [moments[name].movedim(-1, 2) if name in SEVERAL else moments[name].unsqueeze(2) for name in needed(statistics)]
    return torch.cat(parts, dim=2).transpose(0, 1)


def _finish(values: Tensor, statistics: Sequence[Statistic], request: Request) -> dict[str, Tensor]:
    names = needed(statistics)
    parts = dict(zip(names, values.split([SEVERAL.get(name, 1) for name in names], dim=2)))
    moments = {name: part.movedim(2, -1) if name in SEVERAL else part.squeeze(2) for name, part in parts.items()}
    return statistics_of(moments, statistics, request)


MOMENTS = Quantity(_packed, place(query_dim=3), finish=_finish)
row = partial(declare, kind="row", dims=ROW, quantity=MOMENTS)


@row(
    units="nats",
    description="entropy of the shares",
    formula="-sum p ln p",
    range=("0", "ln n"),
    undefined=ONE_KEY,
    source=ENTROPY,
    needs=("total", "logs"),
)
def entropy(m: Moments, n: Tensor) -> Tensor:
    """Compute -sum p ln p as ln S - sum |x| ln|x| / S, so that a sum S that is 1 up to rounding costs no digits."""
    return _if_several(m["total"].log() - m["logs"] / m["total"], n)


@row(
    units="1",
    description="entropy over that of a uniform row",
    formula="entropy / ln n",
    range=("0", "1"),
    undefined=ONE_KEY,
    source=ENTROPY,
    needs=("total", "logs"),
)
def entropy_normalised(m: Moments, n: Tensor) -> Tensor:
    """Compute the entropy over its largest possible value."""
    return entropy(m, n) / _like(n, m["total"]).log()


@row(
    units="keys",
    description="keys of a uniform row of the same entropy",
    formula="exp(entropy)",
    range=("1", "n"),
    undefined=ONE_KEY,
    source=HILL,
    needs=("total", "logs"),
)
def effective_tokens(m: Moments, n: Tensor) -> Tensor:
    """Compute the exponential of the entropy."""
    return entropy(m, n).exp()


@row(
    units="keys",
    description="inverse participation of the shares",
    formula="1 / sum p²",
    range=("1", "n"),
    undefined=ONE_KEY,
    source=HILL,
    needs=("total", "squares"),
)
def participation(m: Moments, n: Tensor) -> Tensor:
    """Compute 1 / sum p²."""
    return _if_several((m["total"] / m["squares"].sqrt()).square(), n)


@row(
    units="1",
    description="Gini index",
    formula="sum_i (2i - n - 1)|x|_(i) / (n sum|x|), |x| ascending",
    range=("0", "1 - 1/n"),
    undefined=ONE_KEY,
    source=SPARSITY,
    needs=("gini",),
)
def gini(m: Moments, n: Tensor) -> Tensor:
    """Return the Gini index of |x|: 0 of a uniform row, 1 - 1/n if one key holds all."""
    return _if_several(m["gini"], n)


@row(
    units="1",
    description="Hoyer sparsity",
    formula="(sqrt n - |x|_1/|x|_2) / (sqrt n - 1)",
    range=("0", "1"),
    undefined=ONE_KEY,
    source=HOYER,
    needs=("total", "squares"),
)
def hoyer(m: Moments, n: Tensor) -> Tensor:
    """Compute the Hoyer sparsity: 0 of a uniform row, 1 if one key holds all."""
    root = _like(n, m["total"]).sqrt()
    return _if_several((root - m["total"] / m["squares"].sqrt()) / (root - 1), n)


@row(
    units="1",
    description="pseudo-norm of the shares at 1/2",
    formula="(sum p^(1/2))²",
    range=("1", "n"),
    undefined=ONE_KEY,
    source=SPARSITY,
    needs=("total", "roots"),
)
def pseudo_norm(m: Moments, n: Tensor) -> Tensor:
    """Compute the l_p pseudo-norm of the shares at p = 1/2: 1 if one key holds all, n of a uniform row."""
    return _if_several(m["roots"].square() / m["total"], n)


@row(
    units="1",
    description="fraction of keys with next to no weight",
    formula="#{visible keys with p < 0.1/n} / n",
    range=("0", "1"),
    undefined=ONE_KEY,
    needs=("total", "small"),
)
def near_zero(m: Moments, n: Tensor) -> Tensor:
    """Compute the fraction of the visible keys whose share is below a tenth of the uniform share 1/n."""
    return _if_several(m["small"] / _like(n, m["total"]), n).masked_fill(~(m["total"] > 0), math.nan)


@row(
    dims=(*ROW, "k"),
    units="1",
    description="share of the k largest weights",
    formula="sum of the k largest p",
    range=("k/n", "1"),
    undefined="rows with n <= k; rows of zeros",
    needs=("total", "top"),
)
def top_k_mass(m: Moments, n: Tensor) -> Tensor:
    """Compute the share of the 1, 5 and 10 largest |x|, (..., k).

    NaN if n <= k, because k keys then hold everything whatever the model.
    """
    mass = m["top"] / m["total"].unsqueeze(-1)
    return torch.where(n.unsqueeze(-1) > torch.tensor(TOP_K, device=mass.device), mass, math.nan)


@row(
    dims=(*ROW, "quantile"),
    units="1",
    description="quantiles of the shares, uniform = 1",
    formula="n times the ceil(q n)-th smallest p",
    range=("0", "n"),
    undefined=ONE_KEY,
    needs=("total", "quantiles"),
)
def quantiles(m: Moments, n: Tensor) -> Tensor:
    """Compute order statistics of the shares in units of the uniform share 1/n, (..., quantile)."""
    total = m["total"].unsqueeze(-1)
    of_uniform = m["quantiles"] * _like(n, total).unsqueeze(-1) / total  # 0/0 of a row of zeros is NaN
    return _if_several(of_uniform, n.unsqueeze(-1))


@row(
    units="position",
    description="key of the largest weight",
    formula="argmax |x|, the first of equals",
    range=("0", "keys - 1"),
    undefined=ONE_KEY,
    averaged="not",
    needs=("total", "peak"),
)
def argmax(m: Moments, n: Tensor) -> Tensor:
    """Return the position of the key with the largest share, float64; its weight may be negative."""
    return _if_several(m["peak"].double().masked_fill(~(m["total"] > 0), math.nan), n)


@row(
    units="1",
    description="share of the absolute mass that is negative",
    formula="sum max(-x, 0) / sum|x|",
    range=("0", "1"),
    undefined=ONE_KEY,
    needs=("total", "negative"),
)
def negative_share(m: Moments, n: Tensor) -> Tensor:
    """Compute the share of the row's absolute mass that is negative."""
    return _if_several(m["negative"] / m["total"], n)


@row(
    units="keys",
    description="keys of negative weight",
    formula="#{x < 0}",
    range=("0", "n"),
    undefined="rows with one visible key",
    needs=("negatives",),
)
def negative_count(m: Moments, n: Tensor) -> Tensor:
    """Count the keys with a negative weight; it is defined for rows of zeros too."""
    return _if_several(m["negatives"], n)


@row(
    units="1",
    description="sum of the row",
    formula="sum x; without sink logits 1 for A1, A2 and g - lambda for D",
    range=("-inf", "inf"),
    undefined="nowhere",
    needs=("net",),
)
def row_sum(m: Moments, n: Tensor) -> Tensor:
    """Return the sum of the row; never NaN, since it is a check on the row and no finding about it."""
    return m["net"]


def _like(n: Tensor, x: Tensor) -> Tensor:
    return n.to(x.dtype)


def _if_several(value: Tensor, n: Tensor) -> Tensor:
    return torch.where(n > 1, value, math.nan)
