"""How a row of attention is spread over its keys.

Every statistic is a formula of a row's moments (:mod:`diffscope.stats.formulas.row_sums`) and of the number ``n`` of keys that
the row can see; all have the shape of the rows, (...), unless a docstring says more. Rows may be signed: all but the sign
statistics act on the shares ``p = |x| / sum|x|``, which for a row of probabilities is the row itself. So A1, A2 and D go through
the same code.

Rows with one visible key give NaN wherever the value would follow from there being one key; so do rows of zeros.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from diffscope.stats.formulas.row_sums import TOP_K, Moments, of_rows


def entropy(m: Moments, n: Tensor) -> Tensor:
    """Shannon entropy of the shares in nats, -sum p ln p, between 0 (one key holds all) and ln n (uniform).

    With p = |x|/S it is ln S - sum |x| ln|x| / S, so that a sum S that is 1 up to rounding costs no digits.
    """
    return _where_several(m["total"].log() - m["logs"] / m["total"], n)


def entropy_normalised(m: Moments, n: Tensor) -> Tensor:
    """Entropy over its largest possible value, ln n; between 0 and 1."""
    return entropy(m, n) / _like(n, m["total"]).log()


def effective_tokens(m: Moments, n: Tensor) -> Tensor:
    """Keys of a uniform row of the same entropy, exp(entropy); between 1 and n."""
    return entropy(m, n).exp()


def participation(m: Moments, n: Tensor) -> Tensor:
    """Inverse participation in keys, 1 / sum p²; between 1 and n."""
    return _where_several((m["total"] / m["squares"].sqrt()).square(), n)


def gini(m: Moments, n: Tensor) -> Tensor:
    """Gini index of |x|: sum_i (2i - n - 1)·x_(i) / (n·sum x), x ascending (Hurley & Rickard 2009).

    Between 0 (uniform) and 1 - 1/n (one key holds all).
    """
    return _where_several(m["gini"], n)


def hoyer(m: Moments, n: Tensor) -> Tensor:
    """Hoyer sparsity: (sqrt(n) - |x|_1/|x|_2) / (sqrt(n) - 1) (Hoyer 2004), between 0 (uniform) and 1 (one key)."""
    root = _like(n, m["total"]).sqrt()
    return _where_several((root - m["total"] / m["squares"].sqrt()) / (root - 1), n)


def pseudo_norm(m: Moments, n: Tensor) -> Tensor:
    """The l_p pseudo-norm of the shares at p = 1/2, (sum sqrt p)²; between 1 (one key) and n (uniform)."""
    return _where_several(m["roots"].square() / m["total"], n)


def near_zero(m: Moments, n: Tensor) -> Tensor:
    """Fraction of the visible keys whose share is below a tenth of the uniform share 1/n."""
    return _where_several(m["small"] / _like(n, m["total"]), n).masked_fill(~(m["total"] > 0), math.nan)


def top_k_mass(m: Moments, n: Tensor) -> Tensor:
    """Share held by the 1, 5 and 10 largest |x|, (..., k); between k/n and 1.

    NaN where n <= k, because k keys then hold everything whatever the model.
    """
    mass = m["top"] / m["total"].unsqueeze(-1)
    seen = torch.as_tensor(n, device=mass.device).unsqueeze(-1)
    return torch.where(seen > torch.tensor(TOP_K, device=mass.device), mass, math.nan)


def quantiles(m: Moments, n: Tensor) -> Tensor:
    """Order statistics of the shares in units of the uniform share 1/n, (..., quantile): the ceil(q·n)-th smallest."""
    total = m["total"].unsqueeze(-1)
    of_uniform = m["quantiles"] * _like(n, total).unsqueeze(-1) / total  # 0/0 of a row of zeros is NaN
    return _where_several(of_uniform, torch.as_tensor(n).unsqueeze(-1))


def argmax(m: Moments, n: Tensor) -> Tensor:
    """Position of the key with the largest share, the first if several are equal, float64; its weight may be negative."""
    return _where_several(m["peak"].double().masked_fill(~(m["total"] > 0), math.nan), n)


def negative_share(m: Moments, n: Tensor) -> Tensor:
    """Share of the row's absolute mass that is negative, sum max(-x, 0) / sum |x|."""
    return _where_several(m["negative"] / m["total"], n)


def negative_count(m: Moments, n: Tensor) -> Tensor:
    """Number of keys with a negative weight. It says something of rows of zeros too."""
    return _where_several(m["negatives"], n)


def row_sum(m: Moments, n: Tensor) -> Tensor:
    """Sum of the row: 1 for probabilities, gain - lambda for D, and less where a sink logit takes part.

    Never NaN: it is a check on the row, not a finding about it.
    """
    return m["net"]


#: by statistic: the formula, and the moments it is made of
FORMULAS: dict[str, tuple[Callable[[Moments, Tensor], Tensor], tuple[str, ...]]] = {
    "entropy": (entropy, ("total", "logs")),
    "entropy_normalised": (entropy_normalised, ("total", "logs")),
    "effective_tokens": (effective_tokens, ("total", "logs")),
    "participation": (participation, ("total", "squares")),
    "gini": (gini, ("gini",)),
    "hoyer": (hoyer, ("total", "squares")),
    "pseudo_norm": (pseudo_norm, ("total", "roots")),
    "near_zero": (near_zero, ("total", "small")),
    "top_k_mass": (top_k_mass, ("total", "top")),
    "quantiles": (quantiles, ("total", "quantiles")),
    "argmax": (argmax, ("total", "peak")),
    "negative_share": (negative_share, ("total", "negative")),
    "negative_count": (negative_count, ("negatives",)),
    "row_sum": (row_sum, ("net",)),
}


def needed(statistics: Iterable[str]) -> set[str]:
    """The moments that some row statistics are made of."""
    return {moment for name in statistics for moment in FORMULAS[name][1]}


def of(name: str, x: Tensor, n: Tensor) -> Tensor:
    """A statistic of rows that are at hand.

    Parameters
    ----------
    name : str
        One of ``FORMULAS``.
    x : Tensor (..., key), float32 or float64
        Exact zeros on keys that a row cannot see.
    n : Tensor (...)
        Visible keys of each row.
    """
    formula, moments = FORMULAS[name]
    return formula(of_rows(x, n, moments), n)


def _like(n: Tensor, x: Tensor) -> Tensor:
    return torch.as_tensor(n, device=x.device).to(x.dtype)


def _where_several(value: Tensor, n: Tensor) -> Tensor:
    return torch.where(torch.as_tensor(n, device=value.device) > 1, value, math.nan)
