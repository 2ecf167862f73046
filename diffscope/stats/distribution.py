"""How a row of attention is spread over its keys.

Every function takes rows ``x (..., key)``, float32 or float64, and where it needs it the number ``n`` of keys that
each row can see, broadcastable to ``(...)``. Keys that a row cannot see are exact zeros. Rows may be signed: all but
the sign statistics act on the shares ``|x| / sum|x|``, which for a row of probabilities is the row itself, and none
needs the shares as an array of their own. So A1, A2 and D go through the same code.

Rows with one visible key give NaN wherever the value would follow from there being one key; so do rows of zeros.
Definitions: SCIENCE.md, section 1.
"""

import math

import numpy as np
import torch
from torch import Tensor

TOP_K = (1, 5, 10)
NEAR_ZERO = 0.1


def entropy(x: Tensor, n: Tensor) -> Tensor:
    """Shannon entropy of the shares, in nats: -sum p ln p.

    With p = |x|/S this is ln S + (sum -|x| ln|x|) / S, so a sum that is 1 up to rounding costs no digits.

    Parameters
    ----------
    x : Tensor (..., key)
    n : Tensor (...)
        Visible keys of each row.

    Returns
    -------
    Tensor (...)
        Between 0 (one key holds all) and ln n (uniform). NaN where n = 1 and in rows of zeros.
    """
    size = x.abs()
    total = size.sum(-1)
    logs = size.clamp_min(torch.finfo(x.dtype).tiny).log()  # 0 ln 0 = 0
    nats = total.log() - (size * logs).sum(-1) / total
    return _where_several(nats, n)


def entropy_normalised(x: Tensor, n: Tensor, nats: Tensor | None = None) -> Tensor:
    """Entropy over its largest possible value, ln n.

    Parameters
    ----------
    x : Tensor (..., key)
    n : Tensor (...)
    nats : Tensor (...), optional
        The rows' entropy, where it is known already.

    Returns
    -------
    Tensor (...)
        Between 0 and 1. NaN where n = 1 and in rows of zeros.
    """
    nats = entropy(x, n) if nats is None else nats
    return nats / _like(n, nats).log()


def effective_tokens(x: Tensor, n: Tensor, nats: Tensor | None = None) -> Tensor:
    """Number of keys that a uniform row of the same entropy would have: exp(entropy).

    Parameters are those of :func:`entropy_normalised`.

    Returns
    -------
    Tensor (...)
        Keys, between 1 and n. NaN where n = 1 and in rows of zeros.
    """
    return (entropy(x, n) if nats is None else nats).exp()


def participation(x: Tensor, n: Tensor) -> Tensor:
    """Inverse participation: 1 / sum p².

    Returns
    -------
    Tensor (...)
        Keys, between 1 and n. NaN where n = 1 and in rows of zeros.
    """
    return _where_several((x.abs().sum(-1) / _euclidean(x)).square(), n)


def gini(x: Tensor, n: Tensor) -> Tensor:
    """Gini index of |x|: sum_i (2i - n - 1)·x_(i) / (n·sum x), x ascending (Hurley & Rickard 2009).

    A key that cannot be seen sorts to the front and shifts every rank by one, so with N keys in all
    the rank sum of the visible ones is that of all N less (N - n)·sum x. Rank sums are taken in float64.

    Returns
    -------
    Tensor (...)
        Between 0 (uniform) and 1 - 1/n (one key holds all). NaN where n = 1 and in rows of zeros.
    """
    ascending = _sorted(x.abs()).double()  # (..., key)
    ranks = torch.arange(1, x.shape[-1] + 1, dtype=torch.float64, device=x.device)
    n = _like(n, ascending)
    mean_rank = ascending @ ranks / ascending.sum(-1) - (x.shape[-1] - n)
    return _where_several((2 * mean_rank - n - 1) / n, n).to(x.dtype)


def hoyer(x: Tensor, n: Tensor) -> Tensor:
    """Hoyer sparsity: (sqrt(n) - |x|_1/|x|_2) / (sqrt(n) - 1) (Hoyer 2004).

    Returns
    -------
    Tensor (...)
        Between 0 (uniform) and 1 (one key holds all). NaN where n = 1 and in rows of zeros.
    """
    root = _like(n, x).sqrt()
    return _where_several((root - x.abs().sum(-1) / _euclidean(x)) / (root - 1), n)


def pseudo_norm(x: Tensor, n: Tensor) -> Tensor:
    """The l_p pseudo-norm at p = 1/2 of the shares: (sum sqrt p)².

    Returns
    -------
    Tensor (...)
        Between 1 (one key holds all) and n (uniform). NaN where n = 1 and in rows of zeros.
    """
    size = x.abs()
    return _where_several(size.sqrt().sum(-1).square() / size.sum(-1), n)


def near_zero(x: Tensor, n: Tensor, eps: float = NEAR_ZERO) -> Tensor:
    """Fraction of the visible keys whose share is below eps/n, that is below eps times the uniform share.

    Returns
    -------
    Tensor (...)
        Between 0 and 1. NaN where n = 1 and in rows of zeros.
    """
    size = x.abs()
    n = _like(n, x)
    total = size.sum(-1)
    below = (size < (eps * total / n).unsqueeze(-1)).sum(-1) - (x.shape[-1] - n)
    return _where_several(below / n, n).masked_fill(total == 0, math.nan)


def top_k_mass(x: Tensor, n: Tensor, k: tuple[int, ...] = TOP_K) -> Tensor:
    """Share held by the k largest |x|, for several k.

    Returns
    -------
    Tensor (..., k)
        Between k/n and 1. NaN where n <= k, because k keys then hold everything whatever the model, and in
        rows of zeros.
    """
    size = x.abs()
    largest = size.topk(min(max(k), x.shape[-1]), dim=-1).values.cumsum(-1)
    last = torch.tensor(k, device=x.device).clamp_max(largest.shape[-1]) - 1
    mass = largest[..., last] / size.sum(-1, keepdim=True)  # (..., k)
    seen = torch.as_tensor(n, device=x.device).unsqueeze(-1)
    return torch.where(seen > torch.tensor(k, device=x.device), mass, math.nan)


def argmax(x: Tensor, n: Tensor) -> Tensor:
    """Position of the key with the largest share, the first of them if several are equal.

    Returns
    -------
    Tensor (...), float64
        A key position; its weight is negative if the largest |x| is. NaN where n = 1 and in rows of zeros.
    """
    largest, position = x.abs().max(-1)
    return _where_several(position.double().masked_fill(largest == 0, math.nan), n)


def negative_share(x: Tensor, n: Tensor) -> Tensor:
    """Share of the row's absolute mass that is negative: sum max(-x, 0) / sum |x|.

    The negative part is summed by itself; half the difference of sum|x| and sum x would lose its digits.

    Returns
    -------
    Tensor (...)
        Between 0 and 1. NaN where n = 1 and in rows of zeros.
    """
    return _where_several(x.clamp_max(0).sum(-1).abs() / x.abs().sum(-1), n)


def negative_count(x: Tensor, n: Tensor) -> Tensor:
    """Number of keys with a negative weight.

    Returns
    -------
    Tensor (...)
        Keys, between 0 and n, in the dtype of `x`. NaN where n = 1.
    """
    return _where_several((x < 0).sum(-1).to(x.dtype), n)


def row_sum(x: Tensor) -> Tensor:
    """Sum of the row, which has to be 1 for probabilities and gain - lambda for D.

    Returns
    -------
    Tensor (...)
        Never NaN: it is a check on the row, not a finding about it.
    """
    return x.sum(-1)


def _like(n: Tensor, x: Tensor) -> Tensor:
    return torch.as_tensor(n, device=x.device).to(x.dtype)


def _where_several(value: Tensor, n: Tensor) -> Tensor:
    return torch.where(torch.as_tensor(n, device=value.device) > 1, value, math.nan)


def _euclidean(x: Tensor) -> Tensor:
    return x.square().sum(-1).sqrt()  # not vector_norm, which adds float32 up without cascading


def _sorted(x: Tensor) -> Tensor:
    """Rows ascending; on a CPU by numpy, whose vectorised sort is ten times as fast as torch's."""
    if x.is_cuda:
        return x.sort(-1).values
    return torch.from_numpy(np.sort(x.numpy(), axis=-1))
