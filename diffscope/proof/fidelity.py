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
from diffscope.attention.precision import exactly
from diffscope.attention.stacking import alike_to_the_end, joined_pairing, joined_to_the_end
from diffscope.errors import FidelityError
from diffscope.fields import FLAG, NUMBER_OR_NAN, TEXT, check_fields, finite, whole

# In units of what rounding acts on (see Fidelity.error). Float64 is no tighter than float32's rounding because the eager
# attention of Hugging Face models takes its softmax in float32 even there.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-5, torch.float16: 0.015, torch.bfloat16: 0.1}
# A score s is rounded by some units of s·ε, and its weight by that share: published models have scores beyond 300.
TOLERANCE_PER_SCORE = 4 * torch.finfo(torch.float32).eps
ALL_ROWS_UP_TO = 2048
SAMPLED_ROWS = 512
STACKED = 2**25  # bytes of queries, keys and values: prompts are rebuilt together up to that
ROWS_TO_DECIDE = 128
ROWS_TO_TRY = 16  # before those that decide: one of them is mostly enough
UNDECIDED = "another pairing of the maps would fit as well: λ is 0, or the maps differ by less than the dtype rounds"


FIELDS = {
    "error": finite(0),
    "tolerance": finite(0),
    "rows": whole(),
    "decided": FLAG,
    "reason": TEXT,
    "error_float32": NUMBER_OR_NAN,
}


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
        Whether the same comparison refuses every other pairing of the maps. It cannot where λ is 0 or where a prompt is one token
        long. Of a model in half precision it is what a run of the layer's own module in float32 decides.
    reason : str
        Why it is not decided; empty where it is.
    error_float32 : float
        Of a model in half precision, the error of the reading in a run of the layer's own module in float32, where float32's
        tolerance holds; NaN where that could not be run, and of models that are in float32 or wider themselves.
    """

    error: float
    tolerance: float
    rows: int
    decided: bool
    reason: str = ""
    error_float32: float = np.nan

    @classmethod
    def from_record(cls, record: dict, what: str) -> Fidelity:
        """What a file holds of a layer's proof; `what` says of which, for messages.

        Raises
        ------
        ValueError
            It is none.
        """
        check_fields(what, record, FIELDS, optional=("reason", "error_float32"))  # which the first files do not have
        proof = cls(**record)
        return proof if proof.decided or proof.reason else replace(proof, reason=UNDECIDED)


def rows_to_check(n: int, device: torch.device) -> Tensor:
    """All rows of short prompts; of long ones 512 rows spread evenly, first and last included."""
    if n <= ALL_ROWS_UP_TO:
        return torch.arange(n, device=device)
    return torch.linspace(0, n - 1, SAMPLED_ROWS, device=device).round().long()


def _rms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1) * x.shape[-1] ** -0.5


def deviation(layer: LayerAttention, checked: Tensor, target: Tensor) -> float:
    """The largest of :func:`deviations` of one layer as it is."""
    return float(deviations(layer, [([layer.pairing], 1)], checked, target)[0].max())


def deviations(
    layer: LayerAttention, tried: Sequence[tuple[Sequence[Pairing], int]], checked: Tensor, target: Tensor
) -> list[Tensor]:
    """How far rebuilt outputs are off under several pairings of a layer's maps, in the units of :class:`Fidelity`.

    Every map is computed once, whatever the number of pairings; under changes of rows, once a pairing.

    Parameters
    ----------
    layer : LayerAttention
        Of one prompt.
    tried : sequence of (pairings, step)
        Pairings that differ in ``a1`` and ``a2`` alone, and which rows to try them on: every `step`-th of those checked.
    checked : int64 Tensor, (query,)
    target : Tensor, (head, query, width)
        What the model produced there.

    Returns
    -------
    list of Tensor, (pairing, head), one for each of `tried`
        The largest deviation over the rows.
    """
    if layer.changes:
        return [
            torch.stack([_deviation_of_changed(replace(layer, pairing=each), checked, target, step) for each in pairings])
            for pairings, step in tried
        ]
    needed = [_Products.of(layer, pairings) for pairings, _ in tried]
    maps = sorted({number for products in needed for number, _ in products.pairs})
    every = _alone(layer, maps)
    index_of_map = {number: index for index, number in enumerate(maps)}
    values = layer.v[0].to(layer.dtype)  # (value head, key, width)
    worst = [values.new_zeros(len(pairings), layer.n_heads) for pairings, _ in tried]
    done = 0
    with borrowed() as workspace:
        for block in every.split(checked):
            rows = every.trimmed(block, workspace=workspace)
            v = values[:, rows.start : rows.start + rows.a1.shape[-1]]
            target_of_block = target[:, done : done + len(block)]
            for i, (products, (_, step)) in enumerate(zip(needed, tried)):
                some = slice(-(done + 1) % step, None, step)
                queries = block[some]
                if not len(queries):  # a short block may have none of them
                    continue
                first, second = products.terms(layer, rows.a1[:, some], v, index_of_map, queries)
                out = first if second is None else first - second
                size = _rms(first) if second is None else _rms(first) + _rms(second)
                off = _off(layer, out, size, queries, target_of_block[:, some])  # (pairing, head, query)
                worst[i] = torch.maximum(worst[i], off.amax(-1))  # a NaN stays a NaN
            done += len(block)
    return worst


def _deviation_of_changed(layer: LayerAttention, checked: Tensor, target: Tensor, step: int) -> Tensor:
    """The largest deviation of each head, (head,), of a layer with changes, on every `step`-th row."""
    checked = checked[step - 1 :: step]
    target = target[:, step - 1 :: step]
    values = layer.v[0][layer.pairing.value_of_head].to(layer.dtype)  # (head, key, width)
    worst = values.new_zeros(layer.n_heads)
    done = 0
    for rows in layer.blocks(checked):
        size = _rms(rows.gain[..., None] * torch.matmul(rows.a1, values))
        if rows.a2 is not None:
            size = size + _rms(rows.lam[..., None] * torch.matmul(rows.a2, values))
        target_of_block = target[:, done : done + len(rows.queries)]
        off = _off(layer, torch.matmul(rows.d, values), size, rows.queries, target_of_block)  # (head, query)
        worst = torch.maximum(worst, off.amax(-1))
        done += len(rows.queries)
    return worst


class _Products(NamedTuple):
    """Which map is multiplied with which values for some pairings, each product once."""

    pairs: list[tuple[int, int]]  # (map, value head)
    first: Tensor  # (pairing, head), which of the pairs is A1·V
    second: Tensor | None  # the same of A2·V

    @classmethod
    def of(cls, layer: LayerAttention, pairings: Sequence[Pairing]) -> _Products:
        values = layer.pairing.value_of_head.tolist()
        index_of_pair: dict[tuple[int, int], int] = {}

        def indices(maps: list[Tensor]) -> Tensor:
            pairs = [zip(of_heads.tolist(), values) for of_heads in maps]
            return torch.tensor(
                [[index_of_pair.setdefault(pair, len(index_of_pair)) for pair in of_pairing] for of_pairing in pairs],
                device=layer.q.device,
            )

        first = indices([pairing.a1 for pairing in pairings])
        seconds = [pairing.a2 for pairing in pairings if pairing.a2 is not None]
        second = indices(seconds) if layer.differential else None
        return cls(list(index_of_pair), first, second)

    def terms(
        self, layer: LayerAttention, weights: Tensor, values: Tensor, index_of_map: dict[int, int], queries: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """gain·A1·V and λ·A2·V, each (pairing, head, query, width).

        `weights` are (map, query, key), with map m of the layer at ``index_of_map[m]``, and `values` (value head, key, width).
        """
        pairs = [(index_of_map[number], value) for number, value in self.pairs]
        every_map_once = [index for index, _ in pairs] == list(range(len(weights)))
        if every_map_once and values.shape[-1] <= weights.shape[1]:  # a copy of the values is small beside the maps
            products = torch.bmm(weights, values[[value for _, value in pairs]])
        elif weights.device.type == "cpu":  # copies of maps would take as long as the products
            products = torch.stack([weights[index] @ values[value] for index, value in pairs])  # (pair, query, width)
        else:
            of_map, of_value = torch.tensor(pairs, device=weights.device).T
            products = torch.matmul(weights[of_map], values[of_value])
        first = products[self.first] * _at(layer.gain, queries, layer.dtype)
        return first, None if self.second is None else products[self.second] * _at(layer.lam, queries, layer.dtype)


def _alone(layer: LayerAttention, maps: list[int]) -> LayerAttention:
    """A layer whose head h has the h-th of some maps and nothing else."""
    a1 = torch.tensor(maps, device=layer.q.device)
    zero = layer.lam.new_zeros(1, 1, 1)
    pairing = replace(layer.pairing, a1=a1, a2=None, value_of_head=torch.zeros_like(a1))
    return replace(layer, pairing=pairing, lam=zero, lam_fp32=zero, gain=zero + 1, correction=None, gate=None)


def _at(x: Tensor, queries: Tensor, dtype: torch.dtype) -> Tensor:
    """λ or gain, (1, head or 1, query or 1), at some queries, (head or 1, query or 1, 1)."""
    return (x[0][:, queries] if x.shape[2] > 1 else x[0])[..., None].to(dtype)


def _off(layer: LayerAttention, out: Tensor, size: Tensor, queries: Tensor, target: Tensor) -> Tensor:
    """How far every row is off, (..., head, query).

    Parameters
    ----------
    out : Tensor, (..., head, query, width)
        D·V.
    size : Tensor, (..., head, query)
        rms(gain·A1·V) + rms(λ·A2·V).
    target : Tensor, (head, query, width)
        What the model produced.
    """
    size = size * _factor(layer, out, queries)
    out = layer.finish(out, queries)
    if layer.changes:  # an edit's output is rounded once more, by its own size
        size = torch.maximum(size, _rms(out))
    return (out - target).abs().amax(-1) / size.clamp_min(1e-30)


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
    """The query rows of one prompt that are compared, int64 (query,)."""
    return layer.mask.seeing(rows_to_check(layer.lengths[index], layer.q.device), index)


def produced(layer: LayerAttention, observed: Tensor, index: int, queries: Tensor) -> Tensor:
    """What the model produced for some queries of one prompt, (head, query, width)."""
    return observed[index, queries].to(layer.dtype).reshape(len(queries), layer.n_heads, -1).transpose(0, 1)


@exactly
def fidelities(layers: Sequence[LayerAttention], observed: Sequence[Tensor], decide: bool = True) -> list[Fidelity]:
    """How well layers rebuild the tensors that entered their output projections.

    Several layers are rebuilt as one with all their heads, and so are prompts of one length, which takes short prompts a fraction
    of the time.

    Parameters
    ----------
    layers : sequence of LayerAttention
        One, or several that are :func:`diffscope.attention.stacking.alike_to_the_end`.
    observed : sequence of Tensor, (batch, query, head·width) or (batch, query, head, width)
        Of each layer.
    decide : bool
        Whether to try other pairings too; without it ``decided`` is False.

    Raises
    ------
    FidelityError
        The heads read do not fill what the model produced.
    """
    lengths = layers[0].lengths
    longest = int(np.argmax(lengths))
    readings = [[other for _, other in other_pairings(layer.prompt(longest))] for layer in layers if decide]
    others = list(zip(*readings))  # (candidate, layer): other readings of the longest prompt
    deviating = [_errors(layers, observed, indices, others if indices == [longest] else ()) for indices in _together(layers)]
    errors = torch.cat([error for error, _ in deviating])  # (prompt, layer)
    errors_of_others = next((of_others for _, of_others in deviating if len(of_others)), errors[:0])  # (candidate, layer)
    if others and not len(errors_of_others):
        errors_of_others = _errors(layers, observed, [longest], others)[1]
    rows = sum(len(compared_rows(layers[0], index)) for index in range(len(lengths)))
    worst = errors.amax(0)  # (layer,), where a NaN stays a NaN
    results = []
    for i, (layer, tensor) in enumerate(zip(layers, observed)):
        tolerance = tolerated(layer, tensor.dtype, float(worst[i]))
        # One row that refuses a reading is enough.
        left = [of_layers[i] for of_layers, off in zip(others, errors_of_others[:, i].tolist()) if not off > tolerance]
        decided = decide and _decided(layer, tensor, tolerance, left)
        reason = UNDECIDED if decide and not decided else ""
        results.append(Fidelity(float(worst[i]), tolerance, rows, decided, reason))
    return results


def _together(layers: Sequence[LayerAttention]) -> list[list[int]]:
    """The prompts of some layers, those that are rebuilt in one stack together."""
    lengths = layers[0].lengths
    held = sum(x.nbytes for layer in layers for x in (layer.q, layer.k, layer.v))
    if len(set(lengths)) > 1 or held > STACKED or not alike_to_the_end(layers):
        return [[index] for index in range(len(lengths))]
    return [list(range(len(lengths)))]


def _errors(
    layers: Sequence[LayerAttention],
    observed: Sequence[Tensor],
    indices: Sequence[int],
    others: Sequence[Sequence[LayerAttention]],
) -> tuple[Tensor, Tensor]:
    """Deviations of layers on some prompts, (prompt, layer), and of other readings of a single one, (candidate, layer)."""
    prompts = [layer.prompt(index) for index in indices for layer in layers]
    parts = [compared(layer, tensor, index) for index in indices for layer, tensor in zip(layers, observed)]
    checked = parts[0][0]  # the same in all
    stack = prompts[0] if len(prompts) == 1 else joined_to_the_end(prompts)
    tried: list[tuple[Sequence[Pairing], int]] = [([stack.pairing], 1)]
    if others:  # a single head of standard attention has none
        tried.append(([joined_pairing(of_layers) for of_layers in others], max(1, len(checked) // ROWS_TO_TRY)))
    by_head = deviations(stack, tried, checked, torch.cat([target for _, target in parts]))  # each (pairing, prompt·layer·head)
    error, *of_others = (off.unflatten(-1, (len(prompts), -1)).amax(-1) for off in by_head)
    return error.view(len(indices), len(layers)), of_others[0] if others else error[:0]


def tolerated(layer: LayerAttention, dtype: torch.dtype, error: float = np.inf) -> float:
    """The error that rounding explains.

    It grows with the size of the scores, which is looked up only where `error` is beyond what small scores explain.
    """
    least = max(TOLERANCE[dtype], TOLERANCE[layer.q.dtype])  # under autocast the one is wider than the other
    if not error > least or least > TOLERANCE[torch.float32]:  # half precision rounds weights by more than its scores
        return least
    return max(least, TOLERANCE_PER_SCORE * max(_largest_score(layer.prompt(i)) for i in range(len(layer.lengths))))


def _largest_score(layer: LayerAttention) -> float:
    """Largest magnitude among the visible scores of the rows that are compared."""
    largest = 0.0
    rows = max(1, 2**22 // (layer.q.shape[1] * layer.n_keys))
    for queries in rows_to_check(layer.n_queries, layer.q.device).split(rows):
        scores = layer.logits(queries)
        largest = max(largest, float(scores.masked_fill(scores == -torch.inf, 0).abs().max()))
    return largest


def _decided(layer: LayerAttention, observed: Tensor, tolerance: float, others: Sequence[LayerAttention]) -> bool:
    """Whether other readings of the longest prompt fail, on some of its rows."""
    if not others:
        return True
    checked, target = compared(layer, observed, int(np.argmax(layer.lengths)), ROWS_TO_DECIDE)
    return all(deviation(other, checked, target) > tolerance for other in others)


def other_pairings(layer: LayerAttention) -> Iterator[tuple[str, LayerAttention]]:
    """The same tensors with other maps for the heads, each with what it would mean if it fitted."""
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
