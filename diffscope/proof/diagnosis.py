"""Refuse a layer that is not rebuilt, and name the mistake that would explain it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from diffscope.attention.components import Mask
from diffscope.attention.fidelity import Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import HALF, tf32_allowed, without_autocast
from diffscope.errors import DiffscopeError, FidelityError, UnsupportedModel
from diffscope.families import AttentionPass, Family
from diffscope.families.packs import ACROSS, together
from diffscope.proof.fidelity import ROWS_TO_DECIDE, ROWS_TO_TRY, compared, deviation, fidelities
from diffscope.proof.mistakes import COMBINED, FITTED, OF_STANDARD, Candidate, Misread, Mistake, masks
from diffscope.proof.readings import layer_of_sequences
from diffscope.proof.tolerance import rows_to_check, tolerated

ROWS_FOR = {1: ROWS_TO_DECIDE, 2: 32}  # rows on which so many mistakes at once are tried: there are hundreds of pairs
SURE = 0.25  # of what rounding explains: a mistake that leaves less has no rival among numbers that are fitted
ROUNDED = 3  # tolerances: code that rounds at every step, as some does in half precision, is off by up to that
CHANCE = 3  # times: numbers that are fitted lower any deviation a little; one that is lowered by less has another cause
_BY_TOKEN = ("q", "k", "v", "lam", "gain", "lam_fp32", "sink_logit", "gate")  # fields of a layer
UNEXPLAINED = "no mistake that is known explains it: remove hooks and changes from the module, or correct its family"


def mismatch(
    layer: LayerAttention,
    observed: Tensor,
    result: Fidelity,
    module: nn.Module | None = None,
    suspects: Sequence[Candidate] = (),
) -> FidelityError:
    """Return the error to raise of a layer that is not rebuilt, with the likely cause if there is one.

    Parameters
    ----------
    layer : LayerAttention
    observed : Tensor, (batch, query, head·width)
        What entered the output projection.
    result : Fidelity
    module : nn.Module, optional
        Where to look for what λ might have been made of otherwise.
    suspects : sequence of (str, LayerAttention)
        Other queries, keys and values that the family thinks possible, and what they would mean.
    """
    if broken := not_finite(layer, observed, module):
        return FidelityError(f"layer {layer.layer}: {broken}; no map of it means anything, so check the model's weights")
    cause = likely_cause(layer, observed, module, suspects)
    explanation = f"likely cause: {cause}" if cause else UNEXPLAINED
    where = "" if math.isnan(result.error_float32) else "in a float32 run of the layer: "
    return FidelityError(
        f"layer {layer.layer}: the maps that family {layer.family!r} reads do not rebuild the model's attention output "
        f"({where}error {result.error:.2g}, tolerance {result.tolerance:.0e}); {explanation}"
    )


def not_rebuilt(family: Family, passage: AttentionPass, layer: LayerAttention, proof: Fidelity) -> DiffscopeError:
    """Return the error to raise of a passage that no reading rebuilds, by its first, with the likely cause if there is one."""
    if passage.pack and _attends_across(layer, passage.observed):
        return UnsupportedModel(f"layer {layer.layer} {ACROSS}")
    suspects = [(meaning, layer_of_sequences(suspect, passage)) for meaning, suspect in family.suspects(passage)]
    return mismatch(layer, passage.observed, proof, passage.module, suspects)


def _attends_across(layer: LayerAttention, observed: Tensor) -> bool:
    """Return whether the row of a pack, read as one sequence, rebuilds what the model computed.

    Parameters
    ----------
    layer : LayerAttention
        Of the batch of its sequences.
    observed : Tensor, (sequence, query, head·width)
        What entered the output projection, of the same batch.
    """
    lengths = layer.lengths

    def joined(x: Tensor) -> Tensor:  # (sequence, head, token, ...), or of one for all
        return x if len(x) == 1 else together(x.transpose(1, 2), lengths).transpose(1, 2)

    parts: dict[str, Any] = {name: joined(x) for name in _BY_TOKEN if (x := getattr(layer, name)) is not None}
    mask = layer.mask if layer.mask.visible is None else Mask("causal")
    row = replace(layer, **parts, mask=mask, lengths=(sum(lengths),))
    (proof,) = fidelities([row], [together(observed, lengths)], decide=False)
    return proof.error <= proof.tolerance


def not_finite(layer: LayerAttention, observed: Tensor, module: nn.Module | None = None) -> str:
    """Return what of a layer holds NaN or infinite values: its weights, what it reads, or what it produced; nothing if none does.

    Parameters as of :func:`mismatch`.
    """
    weights = {} if module is None else {**dict(module.named_parameters()), **dict(module.named_buffers())}
    own = [name for name, weight in weights.items() if not weight.is_meta and bool(weight.isnan().any())]
    if own:
        words = "of this layer holds NaN" if len(own) == 1 else "of this layer hold NaN"
        return f"{', '.join(own)} {words}"
    keys = layer.key_lengths or tuple(layer.offset + n for n in layer.lengths)
    read = {"queries": (layer.q, layer.lengths), "keys": (layer.k, keys), "values": (layer.v, keys)}
    broken = [
        name
        for name, (tensor, lengths) in read.items()
        if not all(tensor[i, :, :n].isfinite().all() for i, n in enumerate(lengths))
    ]
    if broken:
        words = "hold values that are not finite"
        whence = "what enters the layer does" if module is None else "its own weights hold no NaN, so what enters it does"
        return f"the {', '.join(broken)} of this layer {words}: {whence}"
    if not all(observed[i, :n].isfinite().all() for i, n in enumerate(layer.lengths)):
        return "the model itself produced values that are not finite"
    return ""


@without_autocast()
def likely_cause(
    layer: LayerAttention, observed: Tensor, module: nn.Module | None = None, suspects: Sequence[Candidate] = ()
) -> str:
    """Return the smallest set of mistakes, one or two, that explains why a layer is not rebuilt, in words; "" if none does.

    Parameters as of :func:`mismatch`.
    """
    if broken := not_finite(layer, observed, module):
        return broken
    if observed.is_cuda and observed.dtype == torch.float32 and tf32_allowed():
        return "torch rounds products to TF32; torch.set_float32_matmul_precision('highest')"
    half = observed.dtype in HALF
    tolerance = tolerated(layer, observed.dtype, torch.inf)
    index, error = _worst_prompt(layer, observed, tolerance)
    misread = Misread(
        layer.prompt(index),
        observed[index : index + 1],
        compared(layer, observed, index, ROWS_TO_DECIDE)[0],
        min(tolerance, error / CHANCE),
        None if half else module,  # formulas of λ differ by less than half precision rounds
        tuple((words, suspect.prompt(index)) for words, suspect in suspects),
    )
    every_row = rows_to_check(misread.layer.n_queries, observed.device)
    _, cause = _likeliest(misread, masks(misread), every_row, stop_at=misread.enough)
    if not cause:
        cause = _of_differential(misread, half) if layer.differential else _of_standard(misread)
    if not cause and layer.differential and half and error <= ROUNDED * tolerance:
        return "the model rounds more than was allowed for; try it in float32"
    return cause


def _of_standard(misread: Misread) -> str:
    """Return the likely cause in a layer without a second map; "" if there is none."""
    candidates = itertools.chain.from_iterable(mistake(misread) for mistake in OF_STANDARD)
    return _likeliest(misread, candidates, misread.rows, stop_at=misread.enough)[1]


def _of_differential(misread: Misread, half: bool) -> str:
    """Return the likely cause, one mistake or two, in a layer with a second map; "" if there is none."""
    for count, at_most in ROWS_FOR.items():
        rows = compared(misread.layer, misread.observed, 0, at_most)[0]
        combinations = itertools.combinations(COMBINED, count)
        candidates = itertools.chain.from_iterable(_combined(misread, mistakes) for mistakes in combinations)
        left, cause = _likeliest(misread, candidates, rows)
        if count == 1 and (half or left > SURE * misread.enough):
            fitted = itertools.chain.from_iterable(mistake(misread) for mistake in FITTED)
            _, cause = min((left, cause), _likeliest(misread, fitted, rows), key=lambda pair: pair[0])
        if cause:
            return cause
    return ""


def _likeliest(misread: Misread, candidates: Iterable[Candidate], rows: Tensor, stop_at: float = -math.inf) -> tuple[float, str]:
    """Return the least deviation among candidates that rebuild some rows, and its words; infinity and "" if none does.

    Parameters
    ----------
    misread : Misread
    candidates : iterable of (str, LayerAttention)
    rows : int64 Tensor, (query,)
    stop_at : float
        The deviation at which to try no more candidates.
    """
    few = rows[:: max(1, len(rows) // ROWS_TO_TRY)]  # they refuse most candidates
    least, cause = math.inf, ""
    for words, candidate in candidates:
        if not misread.deviation(candidate, few) <= misread.enough:
            continue
        left = misread.deviation(candidate, rows)
        if left <= misread.enough and left < least:
            least, cause = left, words
        if least <= stop_at:
            break
    return least, cause


def _worst_prompt(layer: LayerAttention, observed: Tensor, tolerance: float) -> tuple[int, float]:
    """Return the longest prompt that is not rebuilt, and its error; if each is on the rows compared here, the longest."""
    errors = [deviation(layer.prompt(i), *compared(layer, observed, i, ROWS_TO_DECIDE)) for i in range(len(layer.lengths))]
    failing = [i for i, error in enumerate(errors) if error > tolerance] or range(len(errors))
    index = max(failing, key=lambda i: layer.lengths[i])
    return index, errors[index]


def _combined(misread: Misread, mistakes: Sequence[Mistake]) -> Iterator[Candidate]:
    """Yield the layer with one mistake of every kind, in all combinations."""
    first, *others = mistakes
    for words, candidate in first(misread):
        if not others:
            yield words, candidate
            continue
        for more, combined in _combined(replace(misread, layer=candidate), others):
            yield f"{words} and {more}", combined
