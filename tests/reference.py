"""Slow references: attention row by row in float64, statistics of rows, and a layer of DiffLlama. They use nothing of diffscope.

:class:`Slow` computes attention from raw q, k, v and λ; :func:`row_statistics` are the definitions of statistics, of which
:func:`of_layer` makes those of a layer; :func:`diffllama_layer` begins at a module's hidden states.
"""

import math
from typing import NamedTuple

import numpy as np
import torch


class Slow:
    """One layer on one prompt, as a family read it from the model; what an edit changes is given as a function.

    The functions get what they change, and the head (`scores` also the branch): ``lam(row, head)``,
    ``scores(matrix, head, branch)`` with −∞ where a key is hidden, ``maps(a1, a2, head)``, ``difference(d, head)``,
    ``output(out, head)``; `second` gives the head whose second map is used, `norm` is "own", None or one factor a head.
    """

    def __init__(self, layer, prompt=0):
        def array(x):
            return x[min(prompt, len(x) - 1)].double().numpy()

        self.n, self.heads = layer.lengths[prompt], len(layer.pairing.a1)
        self.keys = (layer.key_lengths or layer.lengths)[prompt]
        self.q = array(layer.q)[:, : self.n]
        self.k, self.v = (array(x)[:, : self.keys] for x in (layer.k, layer.v))
        self.lam = np.broadcast_to(array(layer.lam)[:, : self.n], (self.heads, self.n))
        self.sink = None if layer.sink_logit is None else array(layer.sink_logit)
        self.gain = np.broadcast_to(array(layer.gain)[:, : self.n], (self.heads, self.n))
        self.gate = None
        if layer.gate is not None:
            self.gate = np.broadcast_to(array(layer.gate), (self.heads, layer.n_queries, self.v.shape[-1]))
        self.correction = None if layer.correction is None else layer.correction.double().numpy()
        self.window = layer.mask.window if layer.mask.kind == "window" else self.n
        self.layer, self.number = layer, layer.layer
        assert layer.mask.kind in ("causal", "window", "full")

    def sees(self, query, key):
        return self.layer.mask.kind == "full" or 0 <= query - key < self.window

    def seen(self):
        """Which keys the queries see, bool (query, key)."""
        return np.array([[self.sees(query, key) for key in range(self.keys)] for query in range(self.n)])

    def scores(self, head, branch):
        pairing = self.layer.pairing
        index = int((pairing.a1 if branch == 1 else pairing.a2)[head])
        q, k = self.q[index], self.k[int(pairing.key_of_map[index])]
        table = np.full((self.n, self.keys), -np.inf)
        for query in range(self.n):
            for key in range(self.keys):
                if self.sees(query, key):
                    score = self.layer.scale * np.dot(q[query], k[key])
                    cap = self.layer.soft_cap
                    table[query, key] = score if cap is None else cap * np.tanh(score / cap)
        return table

    def sinks(self, head, branch):
        """The sink logit of every row, or None."""
        pairing = self.layer.pairing
        index = int((pairing.a1 if branch == 1 else pairing.a2)[head])
        return None if self.sink is None else np.broadcast_to(self.sink[index], self.n)

    def map(self, head, branch, scores=None):
        table = self.scores(head, branch)
        return softmax(table if scores is None else scores(table, head, branch), self.sinks(head, branch))

    def a2(self, head):
        return self.map(head, 2)

    def rows(self, head, lam=None, scores=None, maps=None, difference=None, second=None):
        """A1, A2 or None, and D of one head."""
        a1, a2 = self.map(head, 1, scores), None
        if self.layer.pairing.a2 is not None:
            of = head if second is None else second(head)
            # The scores belong to the head that uses them.
            table = self.scores(of, 2)
            a2 = softmax(table if scores is None else scores(table, head, 2), self.sinks(of, 2))
        if maps:
            a1, a2 = maps(a1, a2, head)
        lam = self.lam[head] if lam is None else lam(self.lam[head], head)
        d = self.gain[head][:, None] * a1
        d = d if a2 is None else d - lam[:, None] * a2
        return a1, a2, difference(d, head) if difference else d

    def plain(self, head):
        """D·V of one head, before the norm."""
        return self.rows(head)[2] @ self.v[int(self.layer.pairing.value_of_head[head])]

    def output(self, norm="own", output=None, **changes):
        """What enters the output projection, (query, head·width)."""
        outs = []
        for head in range(self.heads):
            out = self.rows(head, **changes)[2] @ self.v[int(self.layer.pairing.value_of_head[head])]
            of_model = self.layer.norm
            if of_model is not None and norm is not None:
                weight = np.ones(out.shape[1]) if of_model.weight is None else of_model.weight.double().numpy()
                weight = weight if weight.ndim == 1 else weight[head]
                for query in range(self.n):
                    size = rms(out[query], of_model.eps) if of_model.kind == "rms" else 1.0
                    out[query] = out[query] * weight * (1 / size if norm == "own" else norm(head))
            out = out * self.layer.post_scale
            if self.correction is not None:
                out = out - out @ self.correction[head]
            out = out if self.gate is None else out * self.gate[head, : self.n]
            outs.append(output(out, head) if output else out)
        return np.concatenate(outs, axis=1)


def rms(x, eps):
    return np.sqrt(np.mean(x**2) + eps)


def softmax(table, sinks=None):
    """Row by row, with a sink logit for each or without; a row of −∞ is zeros."""
    out = np.zeros_like(table, dtype=float)
    for number, values in enumerate(table):
        if np.isfinite(values).any():
            logits = values if sinks is None else np.append(values, sinks[number])
            weights = np.exp(logits - logits.max())
            out[number] = (weights / weights.sum())[: len(values)]
    return out


def top_k(a, k, renormalise=True):
    out = np.zeros_like(a)
    for row, values in zip(out, a):
        saved = sorted(range(len(values)), key=lambda key: -values[key])[:k]
        row[saved] = values[saved] * (values.sum() / values[saved].sum() if renormalise else 1)
    return out


def low_rank(a, rank, seen=None):
    """Eigenvectors of AᵀA instead of an SVD; zero again on what is not seen: above the diagonal of a causal map."""
    _, vectors = np.linalg.eigh(a.T @ a)
    saved = vectors[:, -rank:]
    return (a @ saved @ saved.T) * (np.tril(np.ones_like(a)) if seen is None else seen)


def uniform(n):
    return np.array([[1 / (query + 1) if key <= query else 0.0 for key in range(n)] for query in range(n)])


def by_distance(maps, n, window=10**9):
    """The positional mean of several maps (of any lengths) as a map of n tokens, each row seeing the last `window` keys."""
    first, others = [], {}
    for a in maps:
        for query in range(1, len(a)):
            if query < window:
                first.append(a[query, 0])
            for key in range(max(1, query - window + 1), query + 1):
                others.setdefault(query - key, []).append(a[query, key])
    weight = {distance: np.mean(measured) for distance, measured in others.items()}
    out = np.zeros((n, n))
    out[0, 0] = 1
    for query in range(1, n):
        keys = range(max(1, query - window + 1), query + 1)
        total = sum(weight[query - key] for key in keys)
        out[query, 0] = np.mean(first) if query < window else 0
        for key in keys:
            out[query, key] = (1 - out[query, 0]) * weight[query - key] / total
    return out


def quantised(table, bits, largest=None):
    """The table of levels · step, and how far each score is from the middle between two levels, in steps."""
    levels, out, near = 2 ** (bits - 1) - 1, np.full_like(table, -np.inf), np.full_like(table, np.inf)
    for query, values in enumerate(table):
        for key, value in enumerate(values):
            if np.isfinite(value):
                most = max(abs(x) for x in values if np.isfinite(x)) if largest is None else largest
                steps = value * levels / most
                out[query, key] = np.rint(steps) * most / levels
                near[query, key] = abs(abs(steps - np.floor(steps)) - 0.5)
    return out, near


def without(table, keys, queries=None, if_nothing_left="kept"):
    """Scores with some keys hidden; a row that sees nothing else is kept, or sees nothing."""
    out = table.copy()
    for query in range(len(out)) if queries is None else [q for q in queries if q < len(out)]:
        for key in keys:
            if key < len(out):
                out[query, key] = -np.inf
        if if_nothing_left == "kept" and not np.isfinite(out[query]).any():
            out[query] = table[query]
    return out


# Row statistics: the definitions, in float64.
#
# What is a count or a position jumps where the exact value is on an edge. There the reference is a range: weights that rounding
# may put on either side of a threshold (`SLACK` of the weights that made them) count or do not.

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


def spread(n):
    """Return the rows that are compared, the first and the last among them."""
    return np.unique(np.linspace(0, n - 1, ROWS).round().astype(int))


def row_statistics(x, made_of):
    """Return statistics of one row over the keys it can see.

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


def of_layer(q, k, lam, rows):
    """Return statistics of A1, A2 and D at some rows of one layer.

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
            a1, a2 = softmax([scale * (k[branch, : row + 1] @ q[branch, row]) for branch in (head, head + heads)])
            rows_of_maps.append([row_statistics(a1, a1), row_statistics(a2, a2), row_statistics(a1 - lam * a2, a1 + lam * a2)])

    def gathered(name):
        values = np.array([[of_map[name] for of_map in maps] for maps in rows_of_maps], dtype=np.float64)  # (head·row, map, ...)
        return values.reshape(heads, len(rows), *values.shape[1:]).transpose(2, 0, 1, *range(3, values.ndim + 1))

    return {name: gathered(name) for name in rows_of_maps[0][0]}


def error(measured, reference):
    """Return the largest deviation relative to max(1, |value|), and the statistic that has it.

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


# A layer of DiffLlama, of hidden states.


class DiffLlamaLayer(NamedTuple):
    """A layer on some rows: A1, A2 and D as changed, (batch, head, query, key), and what enters the output projection."""

    a1: torch.Tensor
    a2: torch.Tensor
    d: torch.Tensor
    out: torch.Tensor  # (batch, query, head·2d)
    size: torch.Tensor  # (batch, query, head·2d): of what was subtracted, after the norm


def seen_by(tokens):
    """Return which keys queries see, bool (batch, query, key); `tokens`, (batch, token), are false on padding."""
    n = tokens.shape[1]
    return torch.ones(n, n, dtype=torch.bool).tril() & tokens[:, None]


def rotated(x, cos, sin):
    half = x.shape[-1] // 2
    other = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos[:, None] + other * sin[:, None]


def diffllama_layer(module, hidden, angles, seen, eager, edit):
    """Compute a layer of DiffLlama in float64 from the hidden states that it was given, (batch, token, width)."""
    d = module.head_dim
    q, k, v = (part(hidden).unflatten(-1, (-1, d)).transpose(1, 2) for part in (module.q_proj, module.k_proj, module.v_proj))
    q, k = rotated(q, *angles), rotated(k, *angles)  # (batch, map, token, d)
    repeat = q.shape[1] // k.shape[1]
    rounded = eager and hidden.dtype == torch.bfloat16
    scores = q @ k.repeat_interleave(repeat, 1).mT if rounded else q.double() @ k.double().repeat_interleave(repeat, 1).mT
    scores = (scores * d**-0.5).double()
    blind = ~seen.any(-1)  # (batch, query)
    scores = scores.masked_fill(~seen[:, None], -1e300 if eager else -torch.inf)  # eager attention adds the lowest number
    maps = scores.softmax(-1)
    maps = maps.masked_fill(blind[:, None, :, None], 0.0) if not eager else maps
    a1, a2 = maps.chunk(2, 1)
    v = torch.cat(v.double().chunk(2, 1), -1).repeat_interleave(repeat, 1)  # (batch, head, key, 2d)
    first, second = (
        (one * other).sum(dtype=torch.float32).exp().to(hidden.dtype)
        for one, other in ((module.lambda_q1, module.lambda_k1), (module.lambda_q2, module.lambda_k2))
    )
    lam = float(first - second + module.lambda_init)
    init = 0.8 - 0.6 * math.exp(-0.3 * module.layer_idx)
    changed = a1, a2, lam
    plain = a1 - lam * a2
    if edit == "A2 uniform":
        changed = a1, (seen / seen.sum(-1, keepdim=True).clamp_min(1))[:, None].double().expand_as(a2), lam
    elif edit == "λ = 0.3":
        changed = a1, a2, 0.3
    difference = changed[0] - changed[2] * changed[1]
    difference = difference.abs() if edit == "|D|" else difference
    difference = torch.where(blind[:, None, :, None], plain, difference)  # padding stays as the model computes it
    mixed = difference @ v  # (batch, head, query, 2d)
    factor = (mixed.square().mean(-1, keepdim=True) + module.groupnorm.eps).rsqrt() * (1 - init)
    size = sum((weight * part @ v).square().mean(-1, keepdim=True).sqrt() for weight, part in ((1, a1), (abs(lam), a2)))
    out = mixed * factor
    if edit == "head 0 ablated":
        out[:, 0] = torch.where(blind[..., None], out[:, 0], 0.0)
    together = [x.expand_as(out).transpose(1, 2).flatten(2) for x in (out, size * factor)]
    return DiffLlamaLayer(changed[0], changed[1], difference, *together)
