"""Rebuild each layer's attention output from what was captured, and compare it with what the model produced.

Differences are in units of what rounding does to a row (:func:`diffscope.proof.tolerance.rounding`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from diffscope.attention.blocks import blocks_of
from diffscope.attention.components import Pairing
from diffscope.attention.fidelity import UNDECIDED, Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.attention.memory import Workspace, pooled_workspace
from diffscope.attention.precision import without_autocast
from diffscope.attention.stacking import can_stack, stack, stack_pairings
from diffscope.errors import FidelityError
from diffscope.proof.tolerance import rms, rounding, rows_to_check, tolerated, tolerated_at_most

STACKED = 2**25  # bytes of queries, keys and values: prompts are rebuilt together up to that
ROWS_TO_DECIDE = 128
ROWS_TO_TRY = 16  # before those that decide: one of them is mostly enough


def deviation(layer: LayerAttention, checked: Tensor, target: Tensor) -> float:
    """Return the largest :func:`rebuild_errors` of one layer as it is."""
    return float(rebuild_errors(layer, [([layer.pairing], 1)], checked, target)[0][0].max())


@torch.no_grad()
def rebuild_errors(
    layer: LayerAttention, tried: Sequence[tuple[Sequence[Pairing], int]], checked: Tensor, target: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Return how far rebuilt outputs are off under several pairings of a layer's maps, in the units of :class:`Fidelity`.

    Every map is computed once, whatever the number of pairings; under changes of rows, once a pairing.

    Parameters
    ----------
    layer : LayerAttention
        Of one prompt.
    tried : sequence of (pairings, step)
        Pairings that differ in ``a1`` and ``a2`` alone, and which rows to try them on: every `step`-th of those checked.
    checked : int64 Tensor, (query,)
        Ascending.
    target : Tensor, (head, query, width)
        What the model produced there.

    Returns
    -------
    errors : list of Tensor, (pairing, head), one for each of `tried`
        The largest deviation over the rows.
    sensitivity : Tensor, (head,)
        By how much each head's output moves, at most, as λ changes by 1 under the first pairing; 0 for a layer with changes.
    """
    if layer.changes:
        errors = [
            torch.stack([_errors_of_changed(replace(layer, pairing=each), checked, target, step) for each in pairings])
            for pairings, step in tried
        ]
        return errors, target.new_zeros(layer.n_heads)
    products = [_Products.of(layer, pairings) for pairings, _ in tried]
    maps = torch.cat([each.of_map for each in products]).unique()
    every = _maps_alone(layer, maps)
    values = layer.v[0].to(layer.dtype)  # (value head, key, width)
    square = values.square().mean(-1)
    errors = [values.new_zeros(len(pairings), layer.n_heads) for pairings, _ in tried]
    sensitivity = values.new_zeros(layer.n_heads)
    with pooled_workspace() as workspace:
        for block in blocks_of(every, checked, all_heads=True):
            rows = every.visible_rows(block.queries, workspace=workspace)
            expected = target[:, block.at]
            before = int(torch.arange(len(checked))[block.at][0])  # rows checked before this block
            keys = slice(rows.start, rows.start + rows.a1.shape[-1])
            for i, (_, step) in enumerate(tried):
                some = slice(-(before + 1) % step, None, step)
                queries = block.queries[some]
                if not len(queries):  # a short block may have none of them
                    continue
                terms = products[i].terms(layer, maps, rows.a1[:, some], values[:, keys], square[:, keys], queries, workspace)
                size = terms.size * _factor(layer, terms.out, queries)  # (pairing, head, query)
                off = _off(layer, terms.out, size, queries, expected[:, some])
                errors[i] = torch.maximum(errors[i], off.amax(-1))  # a NaN stays a NaN
                if i == 0 and terms.second is not None:
                    moved = _derivative(layer, terms.out[0], terms.second[0], queries).abs().amax(-1)
                    sensitivity = torch.maximum(sensitivity, (moved / size[0].clamp_min(1e-30)).amax(-1))
    return errors, sensitivity


def _errors_of_changed(layer: LayerAttention, checked: Tensor, target: Tensor, step: int) -> Tensor:
    """Return the largest deviation of each head, (head,), of a layer with changes, on every `step`-th row."""
    checked = checked[step - 1 :: step]
    target = target[:, step - 1 :: step]
    values = layer.v[0][layer.pairing.value_of_head].to(layer.dtype)  # (head, key, width)
    square = values.square().mean(-1)
    worst = values.new_zeros(layer.n_heads)
    for block in blocks_of(layer, checked, all_heads=True):
        rows = layer.rows(block.queries)
        count = rows.n.clamp_min(1)
        # Edited maps may have negative weights, which are rounded by their magnitude.
        size = rows.gain.abs() * rounding(rows.a1.abs(), rows.a1 @ values, square, count, layer.q.dtype)
        if rows.a2 is not None:
            size = size + rows.lam.abs() * rounding(rows.a2.abs(), rows.a2 @ values, square, count, layer.q.dtype)
        out = torch.matmul(rows.d, values)
        size = size * _factor(layer, out, rows.queries)
        off = _off(layer, out, size, rows.queries, target[:, block.at])  # (head, query)
        worst = torch.maximum(worst, off.amax(-1))
    return worst


def _derivative(layer: LayerAttention, out: Tensor, direction: Tensor, queries: Tensor) -> Tensor:
    """Return how fast what enters the output projection moves as D·V moves in a direction; all (head, query, width)."""
    norm = layer.norm
    if norm is not None and norm.kind == "rms":
        factor = torch.rsqrt(out.square().mean(-1, keepdim=True) + norm.eps)
        direction = factor * (direction - out * factor.square() * (out * direction).mean(-1, keepdim=True))
        layer = replace(layer, norm=replace(norm, kind="scalar"))
    return layer.head_postprocess(direction, queries)


class _Terms(NamedTuple):
    """Hold D·V of some rows under several pairings, and what it is made of."""

    out: Tensor  # gain·A1·V − λ·A2·V, (pairing, head, query, width)
    second: Tensor | None  # A2·V
    size: Tensor  # what rounding acts on, (pairing, head, query)


class _Products(NamedTuple):
    """Hold which maps are multiplied with which values for some pairings, each product once, sorted by map."""

    of_map: Tensor  # (product,)
    of_value: Tensor  # (product,), value heads
    first: Tensor  # (pairing, head), which of the products is A1·V
    second: Tensor | None  # the same of A2·V

    @classmethod
    def of(cls, layer: LayerAttention, pairings: Sequence[Pairing]) -> _Products:
        values = layer.v.shape[1]
        maps = [pairing.a1 for pairing in pairings] + [pairing.a2 for pairing in pairings if pairing.a2 is not None]
        keys = torch.stack(maps) * values + layer.pairing.value_of_head  # (pairing of A1, then pairing of A2; head)
        products, index = keys.unique(return_inverse=True)
        second = index[len(pairings) :] if layer.differential else None
        return cls(products // values, products % values, index[: len(pairings)], second)

    def terms(
        self,
        layer: LayerAttention,
        maps: Tensor,
        weights: Tensor,
        values: Tensor,
        square: Tensor,
        queries: Tensor,
        workspace: Workspace,
    ) -> _Terms:
        """Return D·V under each pairing.

        Parameters
        ----------
        layer : LayerAttention
        maps : int64 Tensor, (map,)
            The numbers of the maps, ascending.
        weights : Tensor, (map, query, key)
        values : Tensor, (value head, key, width)
        square : Tensor, (value head, key)
            The mean square of the values over the width.
        queries : int64 Tensor, (query,)
        workspace : Workspace
        """
        every_map_once = torch.equal(self.of_map, maps)
        of_map = torch.searchsorted(maps, self.of_map)
        if every_map_once and values.shape[-1] <= weights.shape[1]:  # a copy of the values is small beside the maps
            products = torch.bmm(weights, values[self.of_value])
        elif weights.device.type == "cpu":  # copies of maps would take as long as the products
            pairs = zip(of_map.tolist(), self.of_value.tolist())
            products = torch.stack([weights[index] @ values[value] for index, value in pairs])  # (product, query, width)
        else:
            products = torch.matmul(weights[of_map], values[self.of_value])
        count = layer.mask.counts(queries, layer.n_keys, layer.n_keys - layer.n_queries).clamp_min(1)
        of_products = weights if every_map_once else weights[of_map]
        units = rounding(of_products, products, square[self.of_value], count, layer.q.dtype, workspace)
        gain = _at(layer.gain, queries, layer.dtype)
        out, size = products[self.first] * gain, units[self.first] * gain[..., 0].abs()
        if self.second is None:
            return _Terms(out, None, size)
        lam = _at(layer.lam, queries, layer.dtype)
        second = products[self.second]
        return _Terms(out - lam * second, second, size + units[self.second] * lam[..., 0].abs())


def _maps_alone(layer: LayerAttention, maps: Tensor) -> LayerAttention:
    """Return a layer whose head h has the h-th of some maps and nothing else."""
    zero = layer.lam.new_zeros(1, 1, 1)
    pairing = replace(layer.pairing, a1=maps, a2=None, value_of_head=torch.zeros_like(maps))
    return replace(layer, pairing=pairing, lam=zero, lam_fp32=zero, gain=zero + 1, correction=None, gate=None)


def _at(x: Tensor, queries: Tensor, dtype: torch.dtype) -> Tensor:
    """Return λ or gain, (1, head or 1, query or 1), at some queries, (head or 1, query or 1, 1)."""
    return (x[0][:, queries] if x.shape[2] > 1 else x[0])[..., None].to(dtype)


def _off(layer: LayerAttention, out: Tensor, size: Tensor, queries: Tensor, target: Tensor) -> Tensor:
    """Return how far every row is off, (..., head, query).

    Parameters
    ----------
    out : Tensor, (..., head, query, width)
        D·V.
    size : Tensor, (..., head, query)
        What rounding acts on in what enters the output projection.
    target : Tensor, (head, query, width)
        What the model produced.
    """
    out = layer.head_postprocess(out, queries)
    if layer.changes:  # an edit's output is rounded once more, by its own size
        size = torch.maximum(size, rms(out))
    return (out - target).abs().amax(-1) / size.clamp_min(1e-30)


def _factor(layer: LayerAttention, out: Tensor, queries: Tensor) -> Tensor:
    """Return the factor (..., head, query) of each row of D·V, (..., head, query, width), up to the output projection."""
    factor = out.new_full(out.shape[:-1], abs(layer.post_scale))
    if layer.norm is not None:
        factor = factor * layer.norm.factor(out)
    if layer.correction is not None:  # rounding acts on what is corrected and on the correction
        factor = factor * (1 + torch.linalg.matrix_norm(layer.correction.to(out.dtype), 2))[:, None]
    if layer.gate is not None:
        gate = layer.gate[0].expand(-1, layer.n_queries, -1)[:, queries].to(out.dtype)
        factor = factor * rms(gate)
    return factor


def compared(layer: LayerAttention, observed: Tensor, index: int, at_most: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the query rows to compare for one prompt, and what the model produced there, (head, query, width).

    Raises
    ------
    FidelityError
        The heads read do not fill what the model produced.
    """
    width = layer.v.shape[-1]
    entering = observed[0, 0].numel()
    if layer.n_heads * width != entering:
        raise FidelityError(
            f"layer {layer.layer}: family {layer.family!r} reads {layer.n_heads} heads of width {width}, but {entering} elements "
            "of each token enter the output projection; the pairing of values is wrong"
        )
    checked = compared_rows(layer, index)
    if at_most and len(checked) > at_most:
        checked = checked[torch.linspace(0, len(checked) - 1, at_most, device=checked.device).round().long()]
    return checked, produced(layer, observed, index, checked)


def compared_rows(layer: LayerAttention, index: int) -> Tensor:
    """Return the query rows of one prompt that are compared, int64 (query,)."""
    return layer.mask.seeing(rows_to_check(layer.lengths[index], layer.q.device), index)


def produced(layer: LayerAttention, observed: Tensor, index: int, queries: Tensor) -> Tensor:
    """Return what the model produced for some queries of one prompt, (head, query, width)."""
    return observed[index, queries].to(layer.dtype).reshape(len(queries), layer.n_heads, layer.v.shape[-1]).transpose(0, 1)


@without_autocast()
def fidelities(
    layers: Sequence[LayerAttention], observed: Sequence[Tensor], decide: bool = True, rows: int | None = None
) -> list[Fidelity]:
    """Return how well layers rebuild the tensors that entered their output projections.

    Several layers are rebuilt as one with all their heads, and so are prompts of one length, which takes short prompts a fraction
    of the time.

    Parameters
    ----------
    layers : sequence of LayerAttention
        One, or several that are :func:`diffscope.attention.stacking.can_stack`.
    observed : sequence of Tensor, (batch, query, head·width) or (batch, query, head, width)
        Of each layer.
    decide : bool
        Whether to try other pairings too; without it ``decided`` is False.
    rows : int, optional
        How many rows of a prompt to compare at most.

    Raises
    ------
    FidelityError
        The heads read do not fill what the model produced.
    """
    lengths = layers[0].lengths
    longest = int(np.argmax(lengths))
    readings = [[other for _, other in other_pairings(layer.prompt(longest))] for layer in layers if decide]
    others = list(zip(*readings))  # (candidate, layer): other readings of the longest prompt
    deviating = [
        _errors(layers, observed, indices, others if indices == [longest] else (), rows) for indices in _together(layers)
    ]
    errors = torch.cat([of_prompts.errors for of_prompts in deviating])  # (prompt, layer)
    sensitivity = torch.cat([of_prompts.sensitivity for of_prompts in deviating]).amax(0)  # (layer, head)
    errors_of_others = next((each.of_others for each in deviating if len(each.of_others)), errors[:0])  # (candidate, layer)
    if others and not len(errors_of_others):
        errors_of_others = _errors(layers, observed, [longest], others, rows).of_others
    counts = (len(compared_rows(layers[0], index)) for index in range(len(lengths)))
    count = sum(counts if rows is None else (min(rows, each) for each in counts))
    worst = errors.amax(0)  # (layer,), where a NaN stays a NaN
    results = []
    for i, (layer, tensor) in enumerate(zip(layers, observed)):
        tolerance = tolerated(layer, tensor.dtype, float(worst[i]))
        # One row that refuses a reading is enough.
        left = [of_layers[i] for of_layers, off in zip(others, errors_of_others[:, i].tolist()) if not off > tolerance]
        decided = decide and _decided(layer, tensor, tolerance, left)
        reason = UNDECIDED if decide and not decided else ""
        within = _pinned(layer, sensitivity[i], float(worst[i]) + tolerated_at_most(layer, tensor.dtype))
        results.append(Fidelity(float(worst[i]), tolerance, count, decided, reason, lam_within=within))
    return results


def _pinned(layer: LayerAttention, sensitivity: Tensor, error: float) -> float:
    """Return the half-width of λ within which the output stays within the error."""
    if not layer.differential or layer.changes:
        return np.nan
    least = sensitivity.amin() if layer.lam.shape[1] > 1 else sensitivity.amax()  # heads that share their λ pin it together
    return error / float(least) if least > 0 else np.inf


def _together(layers: Sequence[LayerAttention]) -> list[list[int]]:
    """Return the prompts of some layers in groups, each rebuilt in one stack."""
    lengths = layers[0].lengths
    held = sum(x.nbytes for layer in layers for x in (layer.q, layer.k, layer.v))
    if len(set(lengths)) > 1 or held > STACKED or not can_stack(layers):
        return [[index] for index in range(len(lengths))]
    return [list(range(len(lengths)))]


class _Errors(NamedTuple):
    """Hold how well layers are rebuilt on some prompts."""

    errors: Tensor  # their deviations, (prompt, layer)
    sensitivity: Tensor  # by how much each head's output moves, at most, as λ changes by 1, (prompt, layer, head)
    of_others: Tensor  # deviations of other readings of a single prompt, (candidate, layer)


def _errors(
    layers: Sequence[LayerAttention],
    observed: Sequence[Tensor],
    indices: Sequence[int],
    others: Sequence[Sequence[LayerAttention]],
    rows: int | None,
) -> _Errors:
    """Return how well layers, and other readings of them, are rebuilt on some prompts."""
    prompts = [layer.prompt(index) for index in indices for layer in layers]
    parts = [compared(layer, tensor, index, rows) for index in indices for layer, tensor in zip(layers, observed)]
    checked = parts[0][0]  # the same in all
    stacked = prompts[0] if len(prompts) == 1 else stack(prompts)
    tried: list[tuple[Sequence[Pairing], int]] = [([stacked.pairing], 1)]
    if others:  # a single head of standard attention has none
        tried.append(([stack_pairings(of_layers) for of_layers in others], max(1, len(checked) // ROWS_TO_TRY)))
    target = torch.cat([target for _, target in parts])
    by_head, sensitivity = rebuild_errors(
        stacked, tried, checked, target
    )  # each (pairing, prompt·layer·head), and without pairing
    error, *of_others = (off.unflatten(-1, (len(prompts), -1)).amax(-1) for off in by_head)
    shape = (len(indices), len(layers))
    return _Errors(error.view(shape), sensitivity.view(*shape, -1), of_others[0] if others else error[:0])


def _decided(layer: LayerAttention, observed: Tensor, tolerance: float, others: Sequence[LayerAttention]) -> bool:
    """Return whether other readings of the longest prompt fail, on some of its rows."""
    if not others:
        return True
    checked, target = compared(layer, observed, int(np.argmax(layer.lengths)), ROWS_TO_DECIDE)
    return all(deviation(other, checked, target) > tolerance for other in others)


def other_pairings(layer: LayerAttention) -> Iterator[tuple[str, LayerAttention]]:
    """Yield the same tensors with other maps for the heads, each with what it would mean if it fitted."""
    pairing = layer.pairing
    head = torch.arange(layer.n_heads, device=layer.q.device)
    candidates: dict[str, tuple[Tensor, Tensor | None]]
    if pairing.a2 is None:
        candidates = {"the maps belong to other heads": (pairing.a1.roll(1), None)}
    else:
        candidates = {
            "the two maps of each head are swapped": (pairing.a2, pairing.a1),
            "the two maps are paired wrongly: head h owns maps h and h + H": (head, head + layer.n_heads),
            "the two maps are paired wrongly: head h owns maps 2h and 2h + 1": (2 * head, 2 * head + 1),
            "the second maps belong to other heads": (pairing.a1, pairing.a2.roll(1)),
        }
    for meaning, (a1, a2) in candidates.items():
        highest = max(int(maps.max()) for maps in (a1, a2) if maps is not None)
        candidate = replace(pairing, a1=a1, a2=a2)
        if highest < layer.q.shape[1] and not candidate.same_as(pairing):  # grouped pairings have less than two maps a head
            yield meaning, replace(layer, pairing=candidate)
