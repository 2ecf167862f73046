"""The reference: the definitions, row by row in float64, from queries and keys; no line of diffscope's mathematics.

What is a count or a position jumps where the exact value is on an edge. There the reference is a range: weights that rounding
may put on either side of a threshold (`SLACK` of the weights that made them) count or do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

LEVELS, TOP = (0.1, 0.5, 0.9, 0.99), (1, 5, 10)
ROWS, WORST = 32, 1e-3
SLACK, SMALLEST = 1e-4, 1e-35  # below, float32 has few digits or none
PEAKS = 8

NUMBERS = (
    "entropy",
    "entropy_normalised",
    "effective_tokens",
    "participation",
    "gini",
    "hoyer",
    "pseudo_norm",
    "near_zero",
    "negative_share",
    "negative_count",
    "argmax",
)

Reference = dict[str, np.ndarray]


def spread(n: int) -> np.ndarray:
    """Rows that are compared, the first and the last among them."""
    return np.unique(np.linspace(0, n - 1, ROWS).round().astype(int))


def of_row(x: np.ndarray, made_of: np.ndarray) -> dict:
    """Statistics of one row over the keys it can see.

    Parameters
    ----------
    x : float64 ndarray, (key,)
    made_of : float64 ndarray, (key,)
        What x is a difference of, added up: what rounding is relative to.

    Returns
    -------
    dict
        Numbers, sequences, and for counts the least and the largest: ``name_low``, ``name_high``. ``peaks`` are the positions
        of the largest weights, ``shortfalls`` by what share each is below the first.
    """
    n, size = len(x), np.abs(x)
    total = size.sum()
    p = size / total
    ascending = np.sort(p)
    slack = SLACK * made_of + SMALLEST
    limit, blur = 0.1 * total / n, slack + SLACK * total / n
    order = np.argsort(-p, kind="stable")[:PEAKS]
    entropy = -sum(float(each) * math.log(each) for each in p if each > 0)
    if n == 1:
        statistics = dict.fromkeys(NUMBERS, math.nan)
    else:
        length = math.sqrt((p**2).sum())
        statistics = {
            "entropy": entropy,
            "entropy_normalised": entropy / math.log(n),
            "effective_tokens": math.exp(entropy),
            "participation": 1 / length**2,
            "gini": sum((2 * i - n - 1) * each for i, each in enumerate(ascending, 1)) / n,
            "hoyer": (math.sqrt(n) - 1 / length) / (math.sqrt(n) - 1),
            "pseudo_norm": np.sqrt(p).sum() ** 2,
            "near_zero": (size < limit).mean(),
            "negative_share": -x[x < 0].sum() / total,
            "negative_count": (x < 0).sum(),
            "argmax": order[0],
        }
    statistics["row_sum"] = x.sum()
    statistics["top_k_mass"] = [ascending[-k:].sum() if n > k else math.nan for k in TOP]
    statistics["quantiles"] = [ascending[max(math.ceil(q * n - 1e-9), 1) - 1] * n if n > 1 else math.nan for q in LEVELS]
    statistics |= {"near_zero_low": (size < limit - blur).mean(), "near_zero_high": (size < limit + blur).mean()}
    statistics |= {"negative_count_low": (x < -slack).sum(), "negative_count_high": (x < slack).sum()}
    statistics["peaks"] = np.resize(order, PEAKS)
    statistics["shortfalls"] = np.resize(1 - p[order] / p[order[0]], PEAKS)
    return statistics


def of_layer(q: np.ndarray, k: np.ndarray, lam: float, rows: Sequence[int]) -> Reference:
    """Statistics of A1, A2 and D at some rows of one layer.

    Parameters
    ----------
    q, k : float64 ndarray, (map, token, d)
        All heads' first maps, then all heads' second maps.
    lam : float
    rows : sequence of int

    Returns
    -------
    dict of str to ndarray, (map, head, row, ...)
    """
    heads, scale = len(q) // 2, q.shape[-1] ** -0.5
    rows_of_maps = []
    for head in range(heads):
        for row in rows:
            weights = []
            for branch in (head, head + heads):
                scores = scale * (k[branch, : row + 1] @ q[branch, row])
                exponentials = np.exp(scores - scores.max())
                weights.append(exponentials / exponentials.sum())
            a1, a2 = weights
            rows_of_maps.append([of_row(a1, a1), of_row(a2, a2), of_row(a1 - lam * a2, a1 + lam * a2)])

    def gathered(name: str) -> np.ndarray:
        values = np.array([[of_map[name] for of_map in maps] for maps in rows_of_maps], dtype=np.float64)  # (head·row, map, ...)
        return values.reshape(heads, len(rows), *values.shape[1:]).transpose(2, 0, 1, *range(3, values.ndim + 1))

    return {name: gathered(name) for name in rows_of_maps[0][0]}


def error(measured: dict[str, np.ndarray], reference: Reference) -> tuple[float, str]:
    """The largest deviation relative to max(1, |value|), and the statistic that has it.

    A position deviates by what share the weight there is below the largest. Where one is undefined and the other is not, or a
    statistic is missing, the deviation is infinite.

    Parameters
    ----------
    measured : dict of str to ndarray, (..., map, head, row, ...)
    reference : the same of :func:`of_layer`, perhaps with a leading layer axis
    """
    worst, where = 0.0, ""
    for name in (*NUMBERS, "row_sum", "top_k_mass", "quantiles"):
        value, exact = measured.get(name), reference[name]
        if value is None or value.shape != exact.shape:
            return math.inf, name
        if name == "argmax":
            shares = np.where(reference["peaks"] == value[..., None], reference["shortfalls"], 1.0)
            off = np.where(np.isnan(exact), 0.0, shares.min(-1))
        elif f"{name}_low" in reference:
            low, high = reference[f"{name}_low"], reference[f"{name}_high"]
            off = np.maximum(np.maximum(low - value, value - high), 0) / np.maximum(1, np.abs(exact))
        else:
            off = np.abs(value - exact) / np.maximum(1, np.abs(exact))
        off = np.where(np.isnan(value) & np.isnan(exact), 0.0, np.where(np.isnan(value) != np.isnan(exact), np.inf, off))
        if off.max() > worst:
            worst, where = float(off.max()), name
    return worst, where
