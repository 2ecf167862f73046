"""Declare the mistakes that a reading may have made: each yields what the layer would be with it, and the mistake in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from diffscope.attention.components import Mask
from diffscope.attention.layer import LayerAttention
from diffscope.proof.fidelity import compared, deviation, other_pairings
from diffscope.proof.tolerance import rows_to_check

NEAR = 64  # widths tried below the one at which the first row is wrong: a few keys more or less may weigh next to nothing
HIDDEN = 8  # keys at the beginning, such as padding, that a model may hide by itself
TABLE_UP_TO = 4096  # tokens: a mask that no rule describes is not built for more
LAMBDAS = (-2.0, 2.0)  # the range of λ that is tried
LOG_SCALES = (-0.6, 0.6)  # to base 10, the range of factors of the scores that are tried
LOG_CAPS = (-1.25, 3.0)  # to base 10, the range of soft caps that are tried
SINKS = (-12.0, 12.0)  # the range of sink logits that are tried
TRIALS = 13  # values of a number that are tried before the best of them is refined
LEAST_SHARE = 1e-6  # of a row, that its keys or its sink logit have: with less there is nothing to fit a sink logit to
EPSILONS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-8, torch.finfo(torch.float32).eps)  # of norms

Candidate = tuple[str, LayerAttention]  # a mistake in words, and the layer as it would be read with it


@dataclass(frozen=True)
class Misread:
    """Hold one prompt of a layer that is not rebuilt, and what is known of its module.

    Attributes
    ----------
    layer : LayerAttention
        Of one prompt.
    observed : Tensor, (1, query, head·width)
        What entered the output projection.
    rows : int64 Tensor, (query,)
        The query rows on which numbers are fitted.
    enough : float
        The deviation up to which a layer counts as rebuilt.
    module : nn.Module, optional
        Where to look for the vectors of λ.
    suspects : sequence of (str, LayerAttention)
        Other queries, keys and values of the prompt that the family thinks possible, and what they would mean.
    """

    layer: LayerAttention
    observed: Tensor
    rows: Tensor
    enough: float
    module: nn.Module | None = None
    suspects: tuple[Candidate, ...] = ()

    def deviation(self, layer: LayerAttention, rows: Tensor | None = None) -> float:
        """Return how far a layer is off on some rows, by default :attr:`rows`, of which it sees any key."""
        return deviation(layer, *compared(layer, self.observed, 0, queries=self.rows if rows is None else rows))

    def with_fields(self, **fields: object) -> LayerAttention:
        """Return the layer with other values of some fields."""
        return replace(self.layer, **fields)  # type: ignore[arg-type]


Mistake = Callable[[Misread], Iterator[Candidate]]


# Masks


def masks(misread: Misread) -> Iterator[Candidate]:
    """Yield other masks, the likeliest first, by the first row that a causal mask does not rebuild."""
    layer = misread.layer
    if layer.kind == "cross":
        if layer.mask.kind != "full":
            yield "queries see all keys: the mask of the keys is left out", misread.with_fields(mask=Mask("full"))
        return
    for words, mask in _likely_masks(layer, _first_row_off(misread, misread.with_fields(mask=Mask("causal")))):
        if mask.visible is not None or (mask.kind, mask.window) != (layer.mask.kind, layer.mask.window):
            yield words, misread.with_fields(mask=mask)


def _likely_masks(layer: LayerAttention, row: int | None) -> Iterator[tuple[str, Mask]]:
    """Yield masks in words; `row` is the first that a causal mask does not rebuild, or None if it rebuilds all."""
    read = f"not {_mask_in_words(layer.mask)}"
    if row is None:
        yield f"queries see all keys up to their own, {read}", Mask("causal")
        return
    yield "queries see later keys: the causal mask is missing", Mask("full")
    width = row + layer.offset  # the row before it still sees all keys
    for less in range(min(NEAR, width)):
        yield f"queries see only the last {_number_of_keys(width - less)}, {read}", Mask("window", width - less)
    if layer.n_keys > TABLE_UP_TO or layer.n_keys != layer.n_queries:
        return
    position = torch.arange(layer.n_keys, device=layer.q.device)
    behind = position[:, None] - position  # (query, key)
    yield f"queries do not see their own key, {read}", Mask("given", visible=(behind > 0)[None])
    if row > 0:
        chunk = (position[:, None] // row == position // row) & (behind >= 0)
        yield f"queries see only their own chunk of {_number_of_keys(row)}, {read}", Mask("given", visible=chunk[None])
    for count in range(1, min(HIDDEN, layer.n_keys - 1) + 1):
        visible = (behind >= 0) & (position >= count)
        yield f"the mask hides the first {_number_of_keys(count)} from all queries", Mask("given", visible=visible[None])


def _first_row_off(misread: Misread, layer: LayerAttention) -> int | None:
    """Return the first row of a prompt that a layer does not rebuild; None if it rebuilds all that are compared."""

    def first_among(rows: Tensor) -> int | None:
        if misread.deviation(layer, rows) <= misread.enough:
            return None
        while len(rows) > 1:
            first, second = rows.tensor_split(2)
            rows = second if misread.deviation(layer, first) <= misread.enough else first
        return int(rows[0])

    rows = rows_to_check(layer.n_queries, layer.q.device)
    row = first_among(rows)
    if row is None or row == 0:
        return row
    before = int(rows[rows < row].max())  # of a long prompt some rows are compared: it may be one of those in between
    return first_among(torch.arange(before + 1, row + 1, device=rows.device))


def _mask_in_words(mask: Mask) -> str:
    if mask.window is not None:
        return f"the last {_number_of_keys(mask.window)}"
    return {"causal": "all keys up to their own", "full": "all keys", "given": "those of the mask that it was given"}[mask.kind]


def _number_of_keys(count: int) -> str:
    return "key" if count == 1 else f"{count} keys"


# Which maps, keys and values a head has


def pairings(misread: Misread) -> Iterator[Candidate]:
    """Yield other pairings of the maps with the heads."""
    yield from other_pairings(misread.layer)


def key_heads(misread: Misread) -> Iterator[Candidate]:
    """Yield other key heads for the maps that share them."""
    pairing = misread.layer.pairing
    maps, keys = misread.layer.q.shape[1], misread.layer.k.shape[1]
    if maps == keys or maps % keys:
        return
    every = torch.arange(maps, device=misread.layer.q.device)
    repeated = every // (maps // keys)
    striped = 2 * (every // 2 // (maps // keys)) + every % 2
    for words, index in (
        ("K is repeated before the maps are paired", repeated),
        ("K is paired before it is repeated", striped),
        ("K is tiled over the heads (head h uses group h mod G) instead of repeated", every % keys),
    ):
        if not torch.equal(index, pairing.key_of_map) and int(index.max()) < keys:
            yield words, misread.with_fields(pairing=replace(pairing, key_of_map=index))


def value_heads(misread: Misread) -> Iterator[Candidate]:
    """Yield other values for the heads."""
    layer = misread.layer
    _, groups, _, width = layer.v.shape
    if layer.differential and width == 2 * layer.q.shape[-1]:
        halves = layer.v.unflatten(-1, (2, -1)).transpose(2, 3).flatten(1, 2)  # (1, 2·group, key, d), as projected
        values = torch.cat(halves.chunk(2, 1), -1)
        yield "V of a head is v_h beside v_(h + G) instead of 2d in a row", misread.with_fields(v=values)
    if 1 < groups < layer.n_heads:
        tiled = torch.arange(layer.n_heads, device=layer.q.device) % groups
        pairing = replace(layer.pairing, value_of_head=tiled)
        yield "V is tiled over the heads (head h uses group h mod G) instead of repeated", misread.with_fields(pairing=pairing)


def suspected(misread: Misread) -> Iterator[Candidate]:
    """Yield the queries, keys and values that the family thinks possible."""
    for words, suspect in misread.suspects:
        yield words, misread.with_fields(q=suspect.q, k=suspect.k, v=suspect.v)


# What follows the maps


def norms(misread: Misread) -> Iterator[Candidate]:
    """Yield other norms of the heads' outputs."""
    norm = misread.layer.norm
    if norm is None:
        return
    for eps in EPSILONS:
        if eps != norm.eps:
            yield f"the norm's eps is {eps:.0e}, not {norm.eps:.0e}", misread.with_fields(norm=replace(norm, eps=eps))
    yield "the norm of the heads' outputs is missing in the model", misread.with_fields(norm=None)
    if norm.weight is not None:
        yield "the norm's weight is not used", misread.with_fields(norm=replace(norm, weight=None))


def factors(misread: Misread) -> Iterator[Candidate]:
    """Yield the layer with or without the factor after the norm."""
    if misread.layer.post_scale != 1:
        yield "the factor (1 − λ_init) after the norm is missing in the model", misread.with_fields(post_scale=1.0)
    elif misread.layer.lam_init is not None:
        yield "the model has a factor (1 − λ_init) after the norm", misread.with_fields(post_scale=1 - misread.layer.lam_init)


# λ


def lambdas(misread: Misread) -> Iterator[Candidate]:
    """Yield other formulas of λ from the vectors of its module."""
    layer = misread.layer
    vectors = [getattr(misread.module, f"lambda_{name}", None) for name in ("q1", "k1", "q2", "k2")]
    tensors = [vector.detach().to(layer.dtype) for vector in vectors if isinstance(vector, Tensor) and not vector.is_meta]
    if layer.lam_init is None or len(tensors) < len(vectors):
        return
    q1, k1, q2, k2 = tensors
    first = (q1 * k1).sum()
    second = (q2 * k2).sum()
    init = layer.lam_init
    for words, lam in (
        ("λ lacks the exponentials: it is λq1·λk1 − λq2·λk2 + λ_init", first - second + init),
        ("λ lacks λ_init: it is exp(λq1·λk1) − exp(λq2·λk2)", first.exp() - second.exp()),
        ("λ is λ_init alone", torch.full_like(first, init)),
        ("λ is exp(λq1·λk1) + exp(λq2·λk2) + λ_init", first.exp() + second.exp() + init),
    ):
        yield words, misread.with_fields(lam=lam.reshape(1, 1, 1))


def fitted_lambda(misread: Misread) -> Iterator[Candidate]:
    """Yield the layer with the one λ that fits best."""
    layer = misread.layer
    yield "λ is not the value that the model used", _best(misread, *LAMBDAS, lambda x: {"lam": torch.full_like(layer.lam, x)})[1]


# Scores


def scores(misread: Misread) -> Iterator[Candidate]:
    """Yield other scales of the scores, and no causal mask."""
    layer = misread.layer
    yield "the scores are scaled by 1/√(2d) instead of 1/√d", misread.with_fields(scale=layer.scale * 0.5**0.5)
    yield "the scores are not scaled", misread.with_fields(scale=1.0)
    if layer.mask.kind == "causal" and layer.n_queries == layer.n_keys:
        yield "queries see later keys: the causal mask is missing", misread.with_fields(mask=Mask("full"))


def fitted_scale(misread: Misread) -> Iterator[Candidate]:
    """Yield the layer with the one scale of the scores that fits best."""
    log_factor, layer = _best(misread, *LOG_SCALES, lambda x: {"scale": misread.layer.scale * 10**x})
    yield f"the scores are {10**log_factor:.3g} times what was read", layer


def soft_caps(misread: Misread) -> Iterator[Candidate]:
    """Yield the layer with uncapped scores, and with the soft cap that fits best."""
    cap = misread.layer.soft_cap
    if cap is not None:
        yield (
            f"the scores are not capped in the model, and are read with a soft cap of {cap:g}",
            misread.with_fields(soft_cap=None),
        )
    read = "uncapped" if cap is None else f"with {cap:g}"
    log_cap, layer = _best(misread, *LOG_CAPS, lambda x: {"soft_cap": 10**x})
    yield f"the model caps its scores (soft cap {10**log_cap:.3g}), and they are read {read}", layer


def sink_logits(misread: Misread) -> Iterator[Candidate]:
    """Yield the layer without sink logits, and with those that fit best."""
    layer = misread.layer
    if layer.sink_logit is not None:
        yield "the model leaves its sink logits out of the softmax", misread.with_fields(sink_logit=None)
    if not layer.differential and layer.norm is None and layer.gate is None and layer.correction is None:
        sinks = _sinks_of_standard(misread)
        logits = ", ".join(f"{x:.2g}" for x in sinks[:4].tolist()) + (", …" if len(sinks) > 4 else "")
        words = f"the model has sink logits in its softmax that were not read (about {logits} by head)"
        yield words, misread.with_fields(sink_logit=sinks)
    elif layer.sink_logit is None:
        of_map = layer.q.new_ones(layer.q.shape[1], dtype=layer.dtype)
        logit, fitted = _best(misread, *SINKS, lambda x: {"sink_logit": of_map * x})
        yield f"the model has a sink logit in its softmaxes that was not read (about {logit:.2g})", fitted


def _sinks_of_standard(misread: Misread) -> Tensor:
    """Return the sink logits of a standard layer that fit best, (map,).

    A sink logit leaves the output of a row a share of what it is without one. The share is sigmoid(lse − sink), so each row tells
    the sink logit, the better the further its share is from 0 and 1.
    """
    plain = misread.with_fields(sink_logit=None)
    rows, target = compared(plain, misread.observed, 0, queries=misread.rows)
    out = plain.head_outputs(rows)  # (head, query, width)
    share = (out * target).sum(-1) / out.square().sum(-1)  # (head, query)
    lse = plain.logits(rows, plain.pairing.a1).logsumexp(-1)
    telling = (share > LEAST_SHARE) & (share < 1 - LEAST_SHARE)
    share = torch.where(telling, share, 0.5)
    weight = torch.where(telling, share * (1 - share), 0.0).square()  # rounding of a share s moves its logit by 1/(s·(1 − s))
    sinks = ((lse - share.logit()) * weight).sum(-1) / weight.sum(-1)
    by_map = plain.q.new_full((plain.q.shape[1],), -torch.inf, dtype=plain.dtype)
    by_map[plain.pairing.a1] = sinks.nan_to_num(nan=-torch.inf)  # a head of which no row tells one has none
    return by_map


def _best(misread: Misread, low: float, high: float, fields: Callable[[float], dict]) -> tuple[float, LayerAttention]:
    """Return the number between two with which the layer is off least, and the layer with it.

    The deviation may have several minima, so some numbers are tried before the best of them is refined.

    Parameters
    ----------
    misread : Misread
    low, high : float
    fields : callable
        number → fields of the layer.
    """

    def left(number: float) -> float:
        return misread.deviation(misread.with_fields(**fields(float(number))))

    trials = np.linspace(low, high, TRIALS)
    step = trials[1] - trials[0]
    start = min(trials, key=left)
    best = minimize_scalar(left, bounds=(start - step, start + step), method="bounded", options={"xatol": 1e-9})
    return float(best.x), misread.with_fields(**fields(float(best.x)))


COMBINED: tuple[Mistake, ...] = (pairings, key_heads, value_heads, norms, factors, lambdas, scores, suspected)
FITTED: tuple[Mistake, ...] = (fitted_lambda, fitted_scale, soft_caps, sink_logits)  # to fit numbers takes longer than all else
OF_STANDARD: tuple[Mistake, ...] = (soft_caps, sink_logits)
