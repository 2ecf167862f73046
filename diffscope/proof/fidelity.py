"""A capture proves itself: rebuild each layer's attention output and compare it with what the model produced.

How far a right reading may be off is said row by row, by :func:`rounding`. It grows with the keys that the row itself sees. So
the early rows of a long prompt are held as tightly as a short prompt, and a wrong λ, scale, norm or pairing is wrong in them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from diffscope.attention.components import Pairing
from diffscope.attention.fidelity import UNDECIDED, Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.attention.memory import pooled_workspace
from diffscope.attention.precision import without_autocast
from diffscope.attention.stacking import alike_to_the_end, joined_pairing, joined_to_the_end
from diffscope.errors import FidelityError

# In units of what rounding acts on (see `rounding`). Float64 is no tighter than float32's rounding because the eager
# attention of Hugging Face models takes its softmax in float32 even there.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-5, torch.float16: 0.015, torch.bfloat16: 0.1}
# A score s is rounded by some units of s·ε, and its weight by that share: published models have scores beyond 300.
TOLERANCE_PER_SCORE = 4 * torch.finfo(torch.float32).eps
# The factors of the terms of `rounding`: with twice what was seen on random queries, keys and values of many kinds.
OF_EACH_WEIGHT = 0.5
OF_SUMS = 4
OF_LOST = 2
ALL_ROWS_UP_TO = 2048
SAMPLED_ROWS = 512
STACKED = 2**25  # bytes of queries, keys and values: prompts are rebuilt together up to that
ROWS_TO_DECIDE = 128
ROWS_TO_TRY = 16  # before those that decide: one of them is mostly enough


def rows_to_check(n: int, device: torch.device) -> Tensor:
    """All rows of short prompts; of long ones 512 rows spread evenly, first and last included."""
    if n <= ALL_ROWS_UP_TO:
        return torch.arange(n, device=device)
    return torch.linspace(0, n - 1, SAMPLED_ROWS, device=device).round().long()


def _rms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1) * x.shape[-1] ** -0.5


def rounding(weights: Tensor, products: Tensor, square: Tensor, count: Tensor, dtype: torch.dtype) -> Tensor:
    """The unit in which rounding moves the sums Σ p·v of some rows, (map, query).

    With n keys that a row sees, weights p, values v, all sizes root mean squares over the width, t the tolerance of the dtype and
    u = 2⁻²⁴, half the spacing of float32, in which sums are kept (2⁻⁵³ of a float64 model), it is

        |Σ p·v| + ½·√(Σ p²·v²) + (4·u·√n·√(Σ p·v²) + 2·Σ p·|v| over the keys of p < u + least) / t

    - The result is rounded by its own size.
    - Each weight is rounded by itself, by its dtype and with its score. Such errors add up as √(Σ p²·v²), and stay where the
      values cancel.
    - Each of n additions is rounded by u of what the sum has come to, at most Σ p·|v| ≤ √(Σ p·v²). Independent errors come to
      √n·u of it (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019), the worst case is n·u.
    - They are not independent where an addition changes nothing. A sum kept key by key loses all weights that are below u of it.
    - `least` is the smallest number of the dtype, by which float16 rounds small outputs.

    Parameters
    ----------
    weights : Tensor, (map, query, key)
        Not negative.
    products : Tensor, (map, query, width)
        Σ p·v.
    square : Tensor, (map, key)
        The mean square of the values over the width.
    count : int64 Tensor, (query,)
        How many keys each row sees.
    dtype : torch.dtype
        That of the model's queries, keys and values.
    """
    square = square[..., None]
    unit = torch.finfo(weights.dtype).eps / 2
    each = (weights.square() @ square)[..., 0].sqrt()
    added = (weights @ square)[..., 0].sqrt() * count.sqrt() * unit
    lost = (torch.where(weights < unit, weights, 0) @ square.sqrt())[..., 0]
    info = torch.finfo(dtype)
    absolute = OF_SUMS * added + OF_LOST * lost + info.tiny * info.eps
    return _rms(products) + OF_EACH_WEIGHT * each + absolute / TOLERANCE[dtype]


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
    return _compared_with(layer, tried, checked, target)[0]


def _compared_with(
    layer: LayerAttention, tried: Sequence[tuple[Sequence[Pairing], int]], checked: Tensor, target: Tensor
) -> tuple[list[Tensor], Tensor]:
    """:func:`deviations` of a layer without changes, and by how much each head's output moves, at most, as λ changes by 1."""
    needed = [_Products.of(layer, pairings) for pairings, _ in tried]
    maps = sorted({number for products in needed for number, _ in products.pairs})
    every = _alone(layer, maps)
    index_of_map = {number: index for index, number in enumerate(maps)}
    values = layer.v[0].to(layer.dtype)  # (value head, key, width)
    square = values.square().mean(-1)
    worst = [values.new_zeros(len(pairings), layer.n_heads) for pairings, _ in tried]
    sensitivity = values.new_zeros(layer.n_heads)
    done = 0
    with pooled_workspace() as workspace:
        for block in every.split(checked):
            rows = every.visible_rows(block, workspace=workspace)
            keys = slice(rows.start, rows.start + rows.a1.shape[-1])
            target_of_block = target[:, done : done + len(block)]
            for i, (products, (_, step)) in enumerate(zip(needed, tried)):
                some = slice(-(done + 1) % step, None, step)
                queries = block[some]
                if not len(queries):  # a short block may have none of them
                    continue
                terms = products.terms(layer, rows.a1[:, some], values[:, keys], square[:, keys], index_of_map, queries)
                size = terms.size * _factor(layer, terms.out, queries)  # (pairing, head, query)
                off = _off(layer, terms.out, size, queries, target_of_block[:, some])
                worst[i] = torch.maximum(worst[i], off.amax(-1))  # a NaN stays a NaN
                if i == 0 and terms.second is not None:
                    by_lambda = _derivative(layer, terms.out[0], terms.second[0], queries).abs().amax(-1) / size[0].clamp_min(
                        1e-30
                    )
                    sensitivity = torch.maximum(sensitivity, by_lambda.amax(-1))
            done += len(block)
    return worst, sensitivity


def _deviation_of_changed(layer: LayerAttention, checked: Tensor, target: Tensor, step: int) -> Tensor:
    """The largest deviation of each head, (head,), of a layer with changes, on every `step`-th row."""
    checked = checked[step - 1 :: step]
    target = target[:, step - 1 :: step]
    values = layer.v[0][layer.pairing.value_of_head].to(layer.dtype)  # (head, key, width)
    square = values.square().mean(-1)
    worst = values.new_zeros(layer.n_heads)
    done = 0
    for rows in layer.blocks(checked):
        count = rows.n.clamp_min(1)
        # Edited maps may have negative weights, which are rounded by their magnitude.
        size = rows.gain.abs() * rounding(rows.a1.abs(), rows.a1 @ values, square, count, layer.q.dtype)
        if rows.a2 is not None:
            size = size + rows.lam.abs() * rounding(rows.a2.abs(), rows.a2 @ values, square, count, layer.q.dtype)
        out = torch.matmul(rows.d, values)
        size = size * _factor(layer, out, rows.queries)
        off = _off(layer, out, size, rows.queries, target[:, done : done + len(rows.queries)])  # (head, query)
        worst = torch.maximum(worst, off.amax(-1))
        done += len(rows.queries)
    return worst


def _derivative(layer: LayerAttention, out: Tensor, direction: Tensor, queries: Tensor) -> Tensor:
    """How fast what enters the output projection moves as D·V moves in a direction; all (head, query, width)."""
    norm = layer.norm
    if norm is not None and norm.kind == "rms":
        factor = torch.rsqrt(out.square().mean(-1, keepdim=True) + norm.eps)
        direction = factor * (direction - out * factor.square() * (out * direction).mean(-1, keepdim=True))
        layer = replace(layer, norm=replace(norm, kind="scalar"))
    return layer.head_postprocess(direction, queries)


class _Terms(NamedTuple):
    """D·V of some rows under several pairings, and what it is made of."""

    out: Tensor  # gain·A1·V − λ·A2·V, (pairing, head, query, width)
    second: Tensor | None  # A2·V
    size: Tensor  # what rounding acts on, (pairing, head, query)


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
        self,
        layer: LayerAttention,
        weights: Tensor,
        values: Tensor,
        square: Tensor,
        index_of_map: dict[int, int],
        queries: Tensor,
    ) -> _Terms:
        """D·V under each pairing.

        `weights` are (map, query, key), with map m of the layer at ``index_of_map[m]``, `values` (value head, key, width) and
        `square` (value head, key) their mean square.
        """
        pairs = [(index_of_map[number], value) for number, value in self.pairs]
        of_map, of_value = torch.tensor(pairs, device=weights.device).T
        order = of_map.argsort()
        every_map_once = of_map[order].tolist() == list(range(len(weights)))
        in_order = every_map_once and pairs == sorted(pairs)
        if in_order and values.shape[-1] <= weights.shape[1]:  # a copy of the values is small beside the maps
            products = torch.bmm(weights, values[of_value])
        elif weights.device.type == "cpu":  # copies of maps would take as long as the products
            products = torch.stack([weights[index] @ values[value] for index, value in pairs])  # (pair, query, width)
        else:
            products = torch.matmul(weights[of_map], values[of_value])
        count = layer.mask.counts(queries, layer.n_keys, layer.n_keys - layer.n_queries).clamp_min(1)
        if not every_map_once:
            weights, order = weights[of_map], torch.arange(len(pairs), device=weights.device)
        units = rounding(weights, products[order], square[of_value[order]], count, layer.q.dtype)[order.argsort()]
        gain = _at(layer.gain, queries, layer.dtype)
        out, size = products[self.first] * gain, units[self.first] * gain[..., 0].abs()
        if self.second is None:
            return _Terms(out, None, size)
        lam = _at(layer.lam, queries, layer.dtype)
        second = products[self.second]
        return _Terms(out - lam * second, second, size + units[self.second] * lam[..., 0].abs())


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
        What rounding acts on in what enters the output projection.
    target : Tensor, (head, query, width)
        What the model produced.
    """
    out = layer.head_postprocess(out, queries)
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
    return observed[index, queries].to(layer.dtype).reshape(len(queries), layer.n_heads, layer.v.shape[-1]).transpose(0, 1)


@without_autocast()
def fidelities(
    layers: Sequence[LayerAttention], observed: Sequence[Tensor], decide: bool = True, rows: int | None = None
) -> list[Fidelity]:
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
        within = _pinned(layer, sensitivity[i], float(worst[i]) + _tolerated_at_most(layer, tensor.dtype))
        results.append(Fidelity(float(worst[i]), tolerance, count, decided, reason, lam_within=within))
    return results


def _pinned(layer: LayerAttention, sensitivity: Tensor, error: float) -> float:
    """Return the half-width of λ within which the output stays within the error."""
    if not layer.differential or layer.changes:
        return np.nan
    least = sensitivity.amin() if layer.lam.shape[1] > 1 else sensitivity.amax()  # heads that share their λ pin it together
    return error / float(least) if least > 0 else np.inf


def _together(layers: Sequence[LayerAttention]) -> list[list[int]]:
    """The prompts of some layers, those that are rebuilt in one stack together."""
    lengths = layers[0].lengths
    held = sum(x.nbytes for layer in layers for x in (layer.q, layer.k, layer.v))
    if len(set(lengths)) > 1 or held > STACKED or not alike_to_the_end(layers):
        return [[index] for index in range(len(lengths))]
    return [list(range(len(lengths)))]


class _Errors(NamedTuple):
    """How well layers are rebuilt on some prompts."""

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
    """How well layers, and other readings of them, are rebuilt on some prompts."""
    prompts = [layer.prompt(index) for index in indices for layer in layers]
    parts = [compared(layer, tensor, index, rows) for index in indices for layer, tensor in zip(layers, observed)]
    checked = parts[0][0]  # the same in all
    stack = prompts[0] if len(prompts) == 1 else joined_to_the_end(prompts)
    tried: list[tuple[Sequence[Pairing], int]] = [([stack.pairing], 1)]
    if others:  # a single head of standard attention has none
        tried.append(([joined_pairing(of_layers) for of_layers in others], max(1, len(checked) // ROWS_TO_TRY)))
    target = torch.cat([target for _, target in parts])
    if stack.changes:
        by_head, sensitivity = deviations(stack, tried, checked, target), target.new_zeros(stack.n_heads)
    else:
        # each (pairing, prompt·layer·head), and (prompt·layer·head,)
        by_head, sensitivity = _compared_with(stack, tried, checked, target)
    error, *of_others = (off.unflatten(-1, (len(prompts), -1)).amax(-1) for off in by_head)
    shape = (len(indices), len(layers))
    return _Errors(error.view(shape), sensitivity.view(*shape, -1), of_others[0] if others else error[:0])


def tolerated(layer: LayerAttention, dtype: torch.dtype, error: float = np.inf) -> float:
    """The error that rounding explains.

    It grows with the size of the scores, which is looked up only where `error` is beyond what small scores explain.
    """
    least = max(TOLERANCE[dtype], TOLERANCE[layer.q.dtype])  # under autocast the one is wider than the other
    per_score = _per_score(layer, least)
    if not error > least or not per_score:
        return least
    return max(least, per_score * max(_largest_score(layer.prompt(i)) for i in range(len(layer.lengths))))


def _per_score(layer: LayerAttention, least: float) -> float:
    """What is tolerated for each unit of the largest score."""
    if layer.score_dtype is not None:  # the model may round a score s the other way, by up to s·eps: of two keys of weight ½ and
        return 1.5 * torch.finfo(layer.score_dtype).eps  # values that cancel, that moves the output by √2·s·eps of the unit
    return TOLERANCE_PER_SCORE if least <= TOLERANCE[torch.float32] else 0.0  # half precision rounds weights by more


def _tolerated_at_most(layer: LayerAttention, dtype: torch.dtype) -> float:
    """What :func:`tolerated` does not exceed, by the norms of queries and keys in place of their products."""
    longest = [torch.linalg.vector_norm(x, dim=-1, dtype=layer.dtype).max() for x in (layer.q, layer.k)]
    largest = abs(layer.scale) * float(longest[0] * longest[1])
    if layer.soft_cap is not None:
        largest = min(largest, layer.soft_cap)
    least = max(TOLERANCE[dtype], TOLERANCE[layer.q.dtype])
    return max(least, _per_score(layer, least) * largest)


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
