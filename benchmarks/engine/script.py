"""All row statistics of whole attention maps in numpy, as a user would write them who has the maps in memory."""

from __future__ import annotations

import numpy as np

Values = dict[str, np.ndarray]

LEVELS = np.array([0.1, 0.5, 0.9, 0.99])


@np.errstate(invalid="ignore")  # 0/0 of rows with a single key
def row_statistics(x: np.ndarray) -> Values:
    """Return statistics of the rows of causal maps.

    Parameters
    ----------
    x : ndarray, (head, query, key)
        Probabilities, or their differences; zero above the diagonal.

    Returns
    -------
    dict of str to ndarray, (head, query) or (head, query, k)
    """
    keys = x.shape[-1]
    n = np.arange(1, keys + 1, dtype=np.float32)  # (query,) visible keys
    size = np.abs(x)
    total = size.sum(-1)  # (head, query)
    p = np.divide(size, total[..., None], out=size)
    root, length = np.sqrt(n), np.sqrt(np.square(p).sum(-1))
    statistics = {
        "row_sum": x.sum(-1),
        "negative_count": np.count_nonzero(x < 0, axis=-1).astype(np.float32),
        "negative_share": -np.minimum(x, 0).sum(-1) / total,
        "argmax": p.argmax(-1).astype(np.float32),
        "participation": 1 / length**2,
        "hoyer": (root - 1 / length) / (root - 1),
        "pseudo_norm": np.sqrt(p).sum(-1) ** 2,
        "near_zero": (np.count_nonzero(p < 0.1 / n[:, None], axis=-1) - (keys - n)) / n,
        "entropy": -(p * np.log(np.maximum(p, np.finfo(p.dtype).tiny))).sum(-1),
    }
    statistics["entropy_normalised"] = statistics["entropy"] / np.log(n)
    statistics["effective_tokens"] = np.exp(statistics["entropy"])
    p.sort(-1)  # keys that a row cannot see come first
    largest = p[..., : -min(10, keys) - 1 : -1].cumsum(-1)
    k = np.array([1, 5, 10])
    statistics["top_k_mass"] = np.where(n[:, None] > k, largest[..., np.minimum(k, keys) - 1], np.nan)
    at = keys - n[:, None].astype(int) + np.maximum(np.ceil(LEVELS * n[:, None] - 1e-9), 1).astype(int) - 1  # (query, level)
    statistics["quantiles"] = np.take_along_axis(p, np.broadcast_to(at, (*p.shape[:-1], len(LEVELS))), -1) * n[:, None]
    ranks = 2 * (np.arange(1, keys + 1, dtype=np.float32) - keys)  # + n - 1 is 2i - n - 1, where a row's ranks i end at n
    statistics["gini"] = (np.multiply(p, ranks, out=p).sum(-1, dtype=np.float64) + n - 1) / n
    for name in statistics.keys() - {"row_sum"}:  # a single key says nothing
        statistics[name][:, n == 1] = np.nan
    return statistics


def all_at_once(a1: np.ndarray, a2: np.ndarray, lam: float) -> Values:
    """Return statistics of A1, A2 and D, (map, head, query, ...), from maps (head, query, key)."""
    maps = [row_statistics(a1), row_statistics(a2), row_statistics(a1 - np.float32(lam) * a2)]
    return {name: np.stack([statistics[name] for statistics in maps]) for name in maps[0]}


def head_by_head(a1: np.ndarray, a2: np.ndarray, lam: float) -> Values:
    """Return the same in less memory."""
    heads = [all_at_once(a1[head : head + 1], a2[head : head + 1], lam) for head in range(len(a1))]
    return joined(heads, axis=1)


def joined(parts: list[Values], axis: int) -> Values:
    """Join parts along an axis."""
    return {name: np.concatenate([statistics[name] for statistics in parts], axis) for name in parts[0]}


def stacked(layers: list[Values]) -> Values:
    """Stack layers along a new first axis."""
    return {name: np.stack([statistics[name] for statistics in layers]) for name in layers[0]}
