"""A capture proves itself: rebuild each layer's attention output and compare it with what the model produced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.attention.memory import borrowed
from diffscope.attention.parts import Pairing
from diffscope.attention.stacking import joined_pairing, joined_to_the_end
from diffscope.errors import FidelityError

# In units of what rounding acts on (see Fidelity.error). Float64 is no tighter than float32's rounding because the eager
# attention of Hugging Face models takes its softmax in float32 even there.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-5, torch.float16: 0.015, torch.bfloat16: 0.1}
# A score s is rounded by some units of s·ε, and its weight by that share: published models have scores beyond 300.
TOLERANCE_PER_SCORE = 4 * torch.finfo(torch.float32).eps
ALL_ROWS_UP_TO = 2048
SAMPLED_ROWS = 512
ROWS_TO_DECIDE = 128
ROWS_TO_TRY = 16  # before those that decide: one of them is mostly enough


@dataclass(frozen=True)
class Fidelity:
    """How well one layer was rebuilt.

    Attributes
    ----------
    error : float
        max over prompts, heads, rows and width of |rebuilt − observed| over the size of what was subtracted:
        rms(gain·A1·V) + rms(λ·A2·V) of that row, times the factor by which the norm scales the row. A model rounds both terms
        before it subtracts them, so this is rounding's own unit, however much of them cancels.
    tolerance : float
        What rounding in the model's dtype explains; where scores are large, and only if it is needed, more.
    rows : int
        Query rows compared, over all prompts.
    decided : bool
        Whether the same comparison refuses every other pairing of the maps. It cannot where λ is 0, where a prompt is one token
        long, or where half precision rounds more than the maps of an untrained model differ by.
    """

    error: float
    tolerance: float
    rows: int
    decided: bool


def rows_to_check(n: int, device) -> Tensor:
    """All rows of short prompts; of long ones 512 rows spread evenly, first and last included."""
    if n <= ALL_ROWS_UP_TO:
        return torch.arange(n, device=device)
    return torch.linspace(0, n - 1, SAMPLED_ROWS, device=device).round().long()


def _rms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1) * x.shape[-1] ** -0.5


def deviation(layer: LayerAttention, checked: Tensor, seen: Tensor) -> float:
    """Largest deviation of the rebuilt output from `seen`, (head, query, width), in the units of :class:`Fidelity`."""
    if not layer.changes:
        return float(deviations(layer, [([layer.pairing], 1)], checked, seen)[0].max())
    values = layer.v[0][layer.pairing.value_of_head].to(layer.dtype)  # (head, key, width)
    worst, done = [0.0], 0
    for rows in layer.blocks(checked):
        size = _rms(rows.gain[..., None] * torch.matmul(rows.a1, values))
        if rows.a2 is not None:
            size = size + _rms(rows.lam[..., None] * torch.matmul(rows.a2, values))
        there = seen[:, done : done + len(rows.queries)]
        worst.append(float(_off(layer, torch.matmul(rows.d, values), size, rows.queries, there).max()))
        done += len(rows.queries)
    return float(np.max(worst))  # a NaN stays a NaN


def deviations(
    layer: LayerAttention, tried: Sequence[tuple[Sequence[Pairing], int]], checked: Tensor, seen: Tensor
) -> list[Tensor]:
    """The same of an unchanged layer under several pairings of its maps, every map computed once.

    Parameters
    ----------
    tried : sequence of (pairings, step)
        Pairings that differ in ``a1`` and ``a2`` alone, and which rows to try them on: every `step`-th of those checked.

    Returns
    -------
    list of Tensor, (pairing, head), one for each of `tried`
    """
    needed = [_Products.of(layer, pairings) for pairings, _ in tried]
    maps = sorted({one for products in needed for one, _ in products.pairs})
    every, at = _alone(layer, maps), {one: i for i, one in enumerate(maps)}
    values = layer.v[0].to(layer.dtype)  # (value head, key, width)
    worst = [values.new_zeros(len(pairings), layer.n_heads) for pairings, _ in tried]
    done = 0
    with borrowed() as workspace:
        for block in every.split(checked):
            rows = every.trimmed(block, workspace=workspace)
            v, there = values[:, rows.start : rows.start + rows.a1.shape[-1]], seen[:, done : done + len(block)]
            for i, (products, (_, step)) in enumerate(zip(needed, tried)):
                some = slice(-(done + 1) % step, None, step)
                queries = block[some]
                if len(queries):  # a short block may have none of them
                    first, second = products.terms(layer, rows.a1[:, some], v, at, queries)
                    out, size = (first, _rms(first)) if second is None else (first - second, _rms(first) + _rms(second))
                    off = _off(layer, out, size, queries, there[:, some])  # (pairing, head, query)
                    worst[i] = torch.maximum(worst[i], off.amax(-1))  # a NaN stays a NaN
            done += len(block)
    return worst


class _Products(NamedTuple):
    """Which map is multiplied with which values for some pairings, each product once."""

    pairs: list[tuple[int, int]]  # (map, value head)
    first: Tensor  # (pairing, head), which of the pairs is A1·V
    second: Tensor | None  # the same of A2·V

    @classmethod
    def of(cls, layer: LayerAttention, pairings: Sequence[Pairing]) -> _Products:
        values, places = layer.pairing.value_of_head.tolist(), {}

        def place(maps: list[Tensor]) -> Tensor:
            found = [[places.setdefault(pair, len(places)) for pair in zip(of_head.tolist(), values)] for of_head in maps]
            return torch.tensor(found, device=layer.q.device)

        first = place([pairing.a1 for pairing in pairings])
        second = place([pairing.a2 for pairing in pairings]) if layer.differential else None
        return cls(list(places), first, second)

    def terms(self, layer: LayerAttention, weights: Tensor, values: Tensor, at: dict[int, int], queries: Tensor):
        """gain·A1·V and λ·A2·V, (pairing, head, query, width), of weights (map, query, key), where map m is ``at[m]``."""
        places = [(at[one], value) for one, value in self.pairs]
        if weights.device.type == "cpu":  # copies of maps would take as long as the products
            products = torch.stack([weights[one] @ values[value] for one, value in places])  # (pair, query, width)
        else:
            of_map, of_value = torch.tensor(places, device=weights.device).T
            products = torch.matmul(weights[of_map], values[of_value])
        first = products[self.first] * _at(layer.gain, queries, layer.dtype)
        return first, None if self.second is None else products[self.second] * _at(layer.lam, queries, layer.dtype)


def _alone(layer: LayerAttention, maps: list[int]) -> LayerAttention:
    """A layer whose head h has the h-th of some maps and nothing else."""
    a1, one = torch.tensor(maps, device=layer.q.device), layer.lam.new_ones(1, 1, 1)
    pairing = replace(layer.pairing, a1=a1, a2=None, value_of_head=torch.zeros_like(a1))
    return replace(layer, pairing=pairing, lam=0 * one, lam_fp32=0 * one, gain=one, correction=None, gate=None)


def _at(x: Tensor, queries: Tensor, dtype: torch.dtype) -> Tensor:
    """λ or gain, (1, head or 1, query or 1), at some queries, (head or 1, query or 1, 1)."""
    return (x[0][:, queries] if x.shape[2] > 1 else x[0])[..., None].to(dtype)


def _off(layer: LayerAttention, out: Tensor, size: Tensor, queries: Tensor, seen: Tensor) -> Tensor:
    """How far every row is off, (..., head, query).

    Parameters
    ----------
    out : Tensor, (..., head, query, width)
        D·V.
    size : Tensor, (..., head, query)
        rms(gain·A1·V) + rms(λ·A2·V).
    seen : Tensor, (head, query, width)
    """
    size = size * _factor(layer, out, queries)
    out = layer.finish(out, queries)
    if layer.changes:  # an edit's output is rounded once more, by its own size
        size = torch.maximum(size, _rms(out))
    return (out - seen).abs().amax(-1) / size.clamp_min(1e-30)


def _factor(layer: LayerAttention, out: Tensor, queries: Tensor) -> Tensor:
    """By how much each row of D·V, (..., head, query, width), is scaled up to the output projection, (..., head, query)."""
    factor = out.new_full(out.shape[:-1], abs(layer.post_scale))
    if layer.norm is not None:
        factor = factor * layer.norm.factor(out)
    if layer.correction is not None:  # rounding acts on what is corrected and on the correction
        factor = factor * (1 + torch.linalg.matrix_norm(layer.correction.to(out.dtype), 2))[:, None]
    if layer.gate is not None:
        gate = layer.gate[0].expand(-1, layer.n_queries, -1)[:, queries].to(out.dtype)
        factor = factor * _rms(gate)
    return factor


def compared(layer: LayerAttention, observed: Tensor, index: int, at_most: int | None = None) -> tuple[Tensor, Tensor]:
    """The query rows to compare for one prompt, and what the model produced there, (head, query, width).

    Raises
    ------
    FidelityError
        The heads read do not fill what the model produced.
    """
    width, found = layer.v.shape[-1], observed[0, 0].numel()
    if layer.n_heads * width != found:
        raise FidelityError(
            f"layer {layer.layer}: family {layer.family!r} reads {layer.n_heads} heads of width {width}, but {found} elements of "
            "each token enter the output projection; the pairing of values is wrong"
        )
    checked = rows_to_check(layer.lengths[index], layer.q.device)
    if at_most and len(checked) > at_most:
        checked = checked[torch.linspace(0, len(checked) - 1, at_most, device=checked.device).round().long()]
    seen = observed[index, checked].to(layer.dtype).reshape(len(checked), layer.n_heads, -1)
    return checked, seen.transpose(0, 1)


def fidelity(layer: LayerAttention, observed: Tensor, decide: bool = True) -> Fidelity:
    """Compare a layer with the tensor that entered its output projection.

    Parameters
    ----------
    layer : LayerAttention
    observed : Tensor, (batch, query, head·width) or (batch, query, head, width)
    decide : bool
        Whether to try other pairings too; without it ``decided`` is False.
    """
    errors, rows, longest = [], 0, int(np.argmax(layer.lengths))
    others = [other for _, other in other_pairings(layer.prompt(longest))] if decide else []
    few = torch.zeros(len(others))
    for index in range(len(layer.lengths)):
        prompt, (checked, seen) = layer.prompt(index), compared(layer, observed, index)
        if index == longest and others and not layer.changes:
            own, of_others = _own_and_others([prompt], [[other] for other in others], checked, seen)
            errors.append(float(own[0]))
            few = of_others[:, 0]
        else:
            errors.append(deviation(prompt, checked, seen))
        rows += len(checked)
    error = float(np.max(errors))
    return _fidelity(layer, observed, error, rows, others, few, decide)


def fidelities(layers: Sequence[LayerAttention], observed: Sequence[Tensor]) -> list[Fidelity]:
    """The same of several unchanged layers of one prompt that are alike in all that matters, together, which takes short prompts
    a fraction of the time.

    Parameters
    ----------
    layers : sequence of LayerAttention
        See :func:`diffscope.attention.stacking.alike_to_the_end`.
    observed : sequence of Tensor, (1, query, head·width) or (1, query, head, width)
    """
    layers = [layer.prompt(0) for layer in layers]
    rows = [compared(layer, one, 0) for layer, one in zip(layers, observed)]
    checked, seen = rows[0][0], torch.cat([seen for _, seen in rows])
    others = list(zip(*([other for _, other in other_pairings(layer)] for layer in layers)))  # (candidate, layer)
    own, few = _own_and_others(layers, others, checked, seen)
    return [
        _fidelity(layer, one, float(own[i]), len(checked), [candidate[i] for candidate in others], few[:, i], True)
        for i, (layer, one) in enumerate(zip(layers, observed))
    ]


def _own_and_others(
    layers: Sequence[LayerAttention], others: Sequence[Sequence[LayerAttention]], checked: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor]:
    """Deviations of each layer, (layer,), and of other readings on a few rows, (candidate, layer)."""
    layer = layers[0] if len(layers) == 1 else joined_to_the_end(layers)
    tried = [([layer.pairing], 1)]
    if others:  # a single head of standard attention has none
        tried.append(([joined_pairing(one) for one in others], max(1, len(checked) // ROWS_TO_TRY)))
    own, *of_others = (off.unflatten(-1, (len(layers), -1)).amax(-1) for off in deviations(layer, tried, checked, seen))
    return own[0], of_others[0] if others else own.new_zeros(0, len(layers))


def _fidelity(layer, observed: Tensor, error: float, rows: int, others: Sequence, few: Tensor, decide: bool) -> Fidelity:
    tolerance = tolerated(layer, observed.dtype, error)
    left = [other for other, off in zip(others, few.tolist()) if not off > tolerance]  # a row that refuses one is enough
    return Fidelity(error, tolerance, rows, decide and _decided(layer, observed, tolerance, left))


def tolerated(layer: LayerAttention, dtype: torch.dtype, error: float = np.inf) -> float:
    """What rounding explains; how large the scores are is looked up only where `error` is beyond what small ones explain."""
    least = TOLERANCE[dtype]
    if not error > least or dtype in (torch.float16, torch.bfloat16):  # half precision rounds weights by more than its scores
        return least
    return max(least, TOLERANCE_PER_SCORE * max(_largest_score(layer.prompt(i)) for i in range(len(layer.lengths))))


def _largest_score(layer: LayerAttention) -> float:
    """Largest magnitude among the visible scores of the rows that are compared."""
    largest, maps = 0.0, layer.q.shape[1]
    for queries in rows_to_check(layer.n_queries, layer.q.device).split(max(1, 2**22 // (maps * layer.n_keys))):
        scores = layer.logits(queries)
        largest = max(largest, float(scores.masked_fill(scores == -torch.inf, 0).abs().max()))
    return largest


def _decided(layer: LayerAttention, observed: Tensor, tolerance: float, others: Sequence[LayerAttention]) -> bool:
    """Whether other readings of the longest prompt fail, on some of its rows."""
    if not others:
        return True
    checked, seen = compared(layer, observed, int(np.argmax(layer.lengths)), ROWS_TO_DECIDE)
    return all(deviation(other, checked, seen) > tolerance for other in others)


def other_pairings(layer: LayerAttention) -> Iterator[tuple[str, LayerAttention]]:
    """The same tensors with other maps for the heads, each with what it would mean if it fitted."""
    pairing, head = layer.pairing, torch.arange(layer.n_heads, device=layer.q.device)
    candidates = {"the maps belong to other heads": (pairing.a1.roll(1), pairing.a2)}
    if layer.differential:
        candidates = {
            "the two maps of each head are swapped": (pairing.a2, pairing.a1),
            "the two maps are paired wrongly: head h owns maps h and h + H": (head, head + layer.n_heads),
            "the two maps are paired wrongly: head h owns maps 2h and 2h + 1": (2 * head, 2 * head + 1),
            "the second maps belong to other heads": (pairing.a1, pairing.a2.roll(1)),
        }
    for meaning, (a1, a2) in candidates.items():
        if max(int(a1.max()), 0 if a2 is None else int(a2.max())) >= layer.q.shape[1]:
            continue  # grouped pairings have fewer maps than two a head
        same = torch.equal(a1, pairing.a1) and (a2 is None or torch.equal(a2, pairing.a2))
        if not same:
            yield meaning, replace(layer, pairing=replace(pairing, a1=a1, a2=a2))
