"""Rebuild each layer's attention output from what was captured, and compare it with what the model produced.

Differences are in units of what rounding does to a row (:func:`diffscope.proof.tolerance.rounding`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from diffscope.attention.blocks import blocks_of
from diffscope.attention.components import Pairing
from diffscope.attention.fidelity import NOT_COMPARED, UNDECIDED, Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.attention.memory import pooled_workspace
from diffscope.attention.precision import without_autocast
from diffscope.attention.scores import products
from diffscope.attention.stacking import can_stack, repeat_heads, stack, stack_pairing
from diffscope.errors import FidelityError
from diffscope.proof.tolerance import rms, rounding, rows_to_check, tolerated

STACKED = 2**25  # bytes of queries, keys and values: prompts are rebuilt together up to that
ROWS_TO_DECIDE = 128
ROWS_TO_TRY = 16  # before those that decide: one of them is mostly enough


@torch.no_grad()
def rebuild_errors(layer: LayerAttention, checked: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far the rebuilt output of each head is off, in the units of :class:`Fidelity`, and how far λ moves it.

    Parameters
    ----------
    layer : LayerAttention
        Of one prompt.
    checked : int64 Tensor, (query,)
        Ascending.
    target : Tensor, (head, query, width)
        What the model produced there.

    Returns
    -------
    errors : Tensor, (head,)
        The largest deviation over the rows; NaN if any is.
    sensitivity : Tensor, (head,)
        By how much the output moves, at most, as λ changes by 1; 0 without a second map and for a layer with changes.
    """
    of_head = layer.pairing.value_of_head
    values = layer.v[0].to(layer.dtype)  # (value head, key, width)
    square = values.square().mean(-1)[of_head]  # (head, key)
    linear = layer if layer.norm is None else replace(layer, norm=None)
    errors, sensitivity = values.new_zeros(2, layer.n_heads)
    with pooled_workspace() as workspace:
        for block in blocks_of(layer, checked, all_heads=True):
            rows = layer.visible_rows(block.queries, workspace=workspace)
            keys = slice(rows.start, rows.start + rows.a1.shape[-1])
            by_width = values[:, keys].transpose(1, 2)
            count = rows.n.clamp_min(1)
            sums, size = [], torch.zeros_like(rows.gain)
            for factor, weights in ((rows.gain, rows.a1), (rows.lam, rows.a2)):
                if weights is not None:
                    sums.append(products(weights, by_width, of_head, None))  # (head, query, width)
                    magnitude = weights.abs() if layer.changes else weights  # changed weights may be negative
                    unit = rounding(magnitude, sums[-1], square[:, keys], count, layer.q.dtype, workspace)
                    size = size + factor.abs() * unit
            if layer.changes:
                out = products(rows.d, by_width, of_head, None)
            else:
                out = rows.gain[..., None] * sums[0]
                out = out if rows.a2 is None else out - rows.lam[..., None] * sums[1]
            size = size * _row_factor(layer, out, block.queries)
            rebuilt = layer.head_postprocess(out, block.queries)
            if layer.changes:  # an edit's output is rounded once more, by its own size
                size = torch.maximum(size, rms(rebuilt))
            size = size.clamp_min(1e-30)
            off = (rebuilt - target[:, block.at]).abs().amax(-1) / size  # (head, query)
            errors = torch.maximum(errors, off.amax(-1))  # a NaN stays a NaN
            if rows.a2 is not None and not layer.changes:
                moved = sums[1] if layer.norm is None else layer.norm.derivative(out, sums[1])
                moved = linear.head_postprocess(moved, block.queries).abs().amax(-1)
                sensitivity = torch.maximum(sensitivity, (moved / size).amax(-1))
    return errors, sensitivity


def _row_factor(layer: LayerAttention, out: Tensor, queries: Tensor) -> Tensor:
    """Return the factor (head, query) of each row of D·V, (head, query, width), up to the output projection."""
    factor = out.new_full(out.shape[:-1], abs(layer.post_scale))
    if layer.norm is not None:
        factor = factor * layer.norm.factor(out)
    if layer.correction is not None:  # rounding acts on what is corrected and on the correction
        factor = factor * (1 + torch.linalg.matrix_norm(layer.correction.to(out.dtype), 2))[:, None]
    if layer.gate is not None:
        gate = layer.gate[0].expand(-1, layer.n_queries, -1)[:, queries].to(out.dtype)
        factor = factor * rms(gate)
    return factor


def deviation(layer: LayerAttention, checked: Tensor, target: Tensor) -> float:
    """Return the largest of the :func:`rebuild_errors` of a layer."""
    return float(rebuild_errors(layer, checked, target)[0].max())


def compared(
    layer: LayerAttention, observed: Tensor, index: int, at_most: int | None = None, queries: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the query rows to compare for one prompt, and what the model produced there, (head, query, width).

    Parameters
    ----------
    layer : LayerAttention
    observed : Tensor, (batch, query, head·width) or (batch, query, head, width)
    index : int
        Of the prompt.
    at_most : int, optional
        How many rows to compare at most.
    queries : int64 Tensor, (query,), optional
        The rows to choose from, ascending; by default :func:`rows_to_check`. Rows that see no key are left out.

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
    queries = rows_to_check(layer.lengths[index], layer.q.device) if queries is None else queries
    checked = layer.mask.seeing(queries, index)
    if at_most and len(checked) > at_most:
        checked = checked[torch.linspace(0, len(checked) - 1, at_most, device=checked.device).round().long()]
    return checked, observed[index, checked].to(layer.dtype).reshape(len(checked), layer.n_heads, width).transpose(0, 1)


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
    held = sum(x.nbytes for layer in layers for x in (layer.q, layer.k, layer.v))
    together = (
        len({*zip(lengths, layers[0].key_lengths or lengths)}) == 1 and held <= STACKED and (len(layers) > 1 or can_stack(layers))
    )
    errors: list[Tensor] = []  # of each group of prompts, (prompt, layer, head)
    sensitivities: list[Tensor] = []
    count = 0
    for indices in [[*range(len(lengths))]] if together else [[index] for index in range(len(lengths))]:
        stacked = _stacked(layers, observed, indices, rows)
        count += len(indices) * len(stacked[1])
        for found, every in zip(rebuild_errors(*stacked), (errors, sensitivities)):
            every.append(found.view(len(indices), len(layers), -1))
    worst = torch.cat(errors).amax((0, 2)).tolist()  # of each layer, where a NaN stays a NaN
    sensitivity = torch.cat(sensitivities).amax(0)  # (layer, head)
    others = [other.pairing for _, other in other_pairings(layers[0])] if decide else []
    off = torch.zeros(0, len(layers))  # of other readings of the longest prompt, (candidate, layer)
    if others:
        one = stacked if indices == [longest] else _stacked(layers, observed, [longest], rows)
        off = _errors_of_others(*one, [stack_pairing(pairing, layers[0], len(layers)) for pairing in others])
        off = off.view(len(others), len(layers), -1).amax(-1)
    results = []
    for i, (layer, tensor) in enumerate(zip(layers, observed)):
        tolerance = tolerated(layer, tensor.dtype, worst[i])
        # One row that refuses a reading is enough.
        left = [replace(layer, pairing=pairing) for pairing, error in zip(others, off[:, i].tolist()) if not error > tolerance]
        decided = bool(decide and count) and all(
            deviation(other.prompt(longest), *compared(layer, tensor, longest, ROWS_TO_DECIDE)) > tolerance for other in left
        )
        reason = NOT_COMPARED if not count else UNDECIDED if decide and not decided else ""
        within = _pinned(layer, sensitivity[i], worst[i] + tolerated(layer, tensor.dtype, exact=False))
        results.append(Fidelity(worst[i], tolerance, count, decided, reason, lam_within=within))
    return results


def _stacked(
    layers: Sequence[LayerAttention], observed: Sequence[Tensor], indices: Sequence[int], rows: int | None
) -> tuple[LayerAttention, Tensor, Tensor]:
    """Return some prompts of some layers as one layer, the rows to compare, and what the models produced there."""
    prompts = [layer.prompt(index) for index in indices for layer in layers]
    parts = [compared(layer, tensor, index, rows) for index in indices for layer, tensor in zip(layers, observed)]
    return stack(prompts), parts[0][0], torch.cat([target for _, target in parts])  # the same rows in all


def _errors_of_others(layer: LayerAttention, checked: Tensor, target: Tensor, pairings: Sequence[Pairing]) -> Tensor:
    """Return the :func:`rebuild_errors` under other pairings on some of the rows, (pairing, head)."""
    step = max(1, len(checked) // ROWS_TO_TRY)
    few, of_few = checked[step - 1 :: step], target[:, step - 1 :: step]
    if layer.changes:  # of heads by their numbers
        return torch.stack([rebuild_errors(replace(layer, pairing=pairing), few, of_few)[0] for pairing in pairings])
    errors, _ = rebuild_errors(repeat_heads(layer, pairings), few, of_few.repeat(len(pairings), 1, 1))
    return errors.view(len(pairings), -1)


def _pinned(layer: LayerAttention, sensitivity: Tensor, error: float) -> float:
    """Return the half-width of λ within which the output stays within the error."""
    if not layer.differential or layer.changes:
        return np.nan
    least = sensitivity.amin() if layer.lam.shape[1] > 1 else sensitivity.amax()  # heads that share their λ pin it together
    return error / float(least) if least > 0 else np.inf


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
    own = [pairing.a1, pairing.a2]
    for meaning, maps in candidates.items():
        given = [(mine, its) for mine, its in zip(own, maps) if mine is not None and its is not None]
        same = all(torch.equal(mine, its) for mine, its in given)
        if not same and max(int(its.max()) for _, its in given) < layer.q.shape[1]:  # grouped ones have less than two maps a head
            yield meaning, replace(layer, pairing=replace(pairing, a1=maps[0], a2=maps[1]))
