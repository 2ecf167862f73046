"""Where no reading of a passage rebuilds what the model computed: which mistake would explain it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from diffscope.attention.components import Mask
from diffscope.attention.fidelity import Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import HALF, tf32_allowed, without_autocast
from diffscope.errors import DiffscopeError, FidelityError, UnsupportedModel
from diffscope.families import AttentionPass, Family
from diffscope.families.packs import ACROSS
from diffscope.proof.fidelity import ROWS_TO_DECIDE, compared, deviation, other_pairings
from diffscope.proof.masks import other_mask
from diffscope.proof.scores import explained_by_scores
from diffscope.proof.sequences import attends_across, of_sequences
from diffscope.proof.tolerance import tolerated

MISTAKES_AT_ONCE = 2
ROWS_FOR_PAIRS = 32  # there are hundreds of pairs of mistakes
SURE = 0.25  # of what rounding explains: a mistake that leaves less has no rival among numbers that are fitted
ROUNDED = 3  # tolerances: code that rounds at every step, as some does in half precision, is off by up to that
CHANCE = 3  # times: numbers that are fitted lower any deviation a little; one that is lowered by less has another cause
UNEXPLAINED = "no mistake that is known explains it: remove hooks and changes from the module, or correct its family"

Candidate = tuple[str, LayerAttention]  # a mistake in words, and the layer as it would be read with it
Mistakes = Callable[[LayerAttention, nn.Module | None], Iterator[Candidate]]


def mismatch(
    layer: LayerAttention,
    observed: Tensor,
    result: Fidelity,
    module: nn.Module | None = None,
    suspects: Sequence[Candidate] = (),
) -> FidelityError:
    """The error to raise of a layer that is not rebuilt, with the likely cause if there is one.

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
    if passage.pack and attends_across(layer, passage.observed):
        return UnsupportedModel(f"layer {layer.layer} {ACROSS}")
    suspects = [(meaning, of_sequences(suspect, passage)) for meaning, suspect in family.suspects(passage)]
    return mismatch(layer, passage.observed, proof, passage.module, suspects)


def not_finite(layer: LayerAttention, observed: Tensor, module: nn.Module | None = None) -> str:
    """Say what of a layer holds NaN or infinite values: its weights, what it reads, or what it produced; nothing if none does.

    Parameters as of :func:`mismatch`.
    """
    weights = {} if module is None else {**dict(module.named_parameters()), **dict(module.named_buffers())}
    own = [name for name, weight in weights.items() if not weight.is_meta and bool(weight.isnan().any())]
    if own:
        words = "of this layer holds NaN" if len(own) == 1 else "of this layer hold NaN"
        return f"{', '.join(own)} {words}"
    past = layer.n_keys - layer.n_queries
    read = {"queries": (layer.q, 0), "keys": (layer.k, past), "values": (layer.v, past)}
    broken = [
        name
        for name, (tensor, before) in read.items()
        if not all(tensor[i, :, : before + n].isfinite().all() for i, n in enumerate(layer.lengths))
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
    """The smallest set of mistakes, one or two, that explains why a layer is not rebuilt, in words; "" if none does.

    Parameters as of :func:`mismatch`.
    """
    if broken := not_finite(layer, observed, module):
        return broken
    if observed.is_cuda and observed.dtype == torch.float32 and tf32_allowed():
        return "torch rounds products to TF32; torch.set_float32_matmul_precision('highest')"
    half = observed.dtype in HALF
    if half:
        module = None  # formulas of λ differ by less than half precision rounds
    tolerance = tolerated(layer, observed.dtype, torch.inf)
    index, error = _worst_prompt(layer, observed, tolerance)
    enough = min(tolerance, error / CHANCE)
    if cause := other_mask(layer, observed, index, enough):
        return cause
    if not layer.differential:
        return _of_standard(layer, observed, index, enough)
    prompt = layer.prompt(index)

    def suspected(layer: LayerAttention, module: nn.Module | None) -> Iterator[Candidate]:
        for meaning, suspect in suspects:
            other = suspect.prompt(index)
            yield meaning, replace(layer, q=other.q, k=other.k, v=other.v)

    for count in range(1, MISTAKES_AT_ONCE + 1):
        checked, target = compared(layer, observed, index, ROWS_TO_DECIDE if count == 1 else ROWS_FOR_PAIRS)
        explained = [
            (deviation(candidate, checked, target), " and ".join(meanings))
            for kinds in itertools.combinations((*_KINDS, suspected), count)
            for meanings, candidate in _combined(prompt, kinds, module)
        ]
        sure = min((left for left, _ in explained), default=torch.inf) <= SURE * enough
        if count == 1 and (half or not sure):  # to fit numbers takes longer than all else
            explained += [_refitted_lambda(prompt, checked, target), _refitted_scale(prompt, checked, target)]
            explained += explained_by_scores(prompt, checked, target)
        left, cause = min(explained, key=lambda pair: pair[0], default=(torch.inf, ""))
        if left <= enough:
            return cause
    if half and error <= ROUNDED * tolerance:
        return "the model rounds more than was allowed for; try it in float32"
    return ""


def _of_standard(layer: LayerAttention, observed: Tensor, index: int, enough: float) -> str:
    """The likely cause where there is no second map."""
    checked, target = compared(layer, observed, index, ROWS_TO_DECIDE)
    for left, cause in explained_by_scores(layer.prompt(index), checked, target):
        if left <= enough:
            return cause
    return ""


def _worst_prompt(layer: LayerAttention, observed: Tensor, tolerance: float) -> tuple[int, float]:
    """The longest prompt that is not rebuilt, and its error; if each is on the rows compared here, the longest."""
    errors = [deviation(layer.prompt(i), *compared(layer, observed, i, ROWS_TO_DECIDE)) for i in range(len(layer.lengths))]
    failing = [i for i, error in enumerate(errors) if error > tolerance] or range(len(errors))
    index = max(failing, key=lambda i: layer.lengths[i])
    return index, errors[index]


def _combined(
    layer: LayerAttention, kinds: Sequence[Mistakes], module: nn.Module | None
) -> Iterator[tuple[tuple[str, ...], LayerAttention]]:
    """The layer with one mistake of every kind, in all combinations."""
    first, *others = kinds
    for meaning, candidate in first(layer, module):
        if not others:
            yield (meaning,), candidate
            continue
        for meanings, combined in _combined(candidate, others, module):
            yield (meaning, *meanings), combined


def _pairings(layer: LayerAttention, module: nn.Module | None) -> Iterator[Candidate]:
    yield from other_pairings(layer)


def _keys(layer: LayerAttention, module: nn.Module | None) -> Iterator[Candidate]:
    pairing = layer.pairing
    maps, keys = layer.q.shape[1], layer.k.shape[1]
    if maps == keys or maps % keys:
        return
    every = torch.arange(maps, device=layer.q.device)
    repeated = every // (maps // keys)
    striped = 2 * (every // 2 // (maps // keys)) + every % 2
    for meaning, index in (
        ("K is repeated before the maps are paired", repeated),
        ("K is paired before it is repeated", striped),
        ("K is tiled over the heads (head h uses group h mod G) instead of repeated", every % keys),
    ):
        if not torch.equal(index, pairing.key_of_map) and int(index.max()) < keys:
            yield meaning, replace(layer, pairing=replace(pairing, key_of_map=index))


def _values(layer: LayerAttention, module: nn.Module | None) -> Iterator[Candidate]:
    _, groups, _, width = layer.v.shape
    if layer.differential and width == 2 * layer.q.shape[-1]:
        halves = layer.v.unflatten(-1, (2, -1)).transpose(2, 3).flatten(1, 2)  # (1, 2·group, key, d), as projected
        yield "V of a head is v_h beside v_(h + G) instead of 2d in a row", replace(layer, v=torch.cat(halves.chunk(2, 1), -1))
    if 1 < groups < layer.n_heads:
        tiled = torch.arange(layer.n_heads, device=layer.q.device) % groups
        pairing = replace(layer.pairing, value_of_head=tiled)
        yield "V is tiled over the heads (head h uses group h mod G) instead of repeated", replace(layer, pairing=pairing)


def _norms(layer: LayerAttention, module: nn.Module | None) -> Iterator[Candidate]:
    if layer.norm is not None:
        for eps in (1e-3, 1e-4, 1e-5, 1e-6, 1e-8, torch.finfo(torch.float32).eps):
            if eps != layer.norm.eps:
                yield f"the norm's eps is {eps:.0e}, not {layer.norm.eps:.0e}", replace(layer, norm=replace(layer.norm, eps=eps))
        yield "the norm of the heads' outputs is missing in the model", replace(layer, norm=None)
        if layer.norm.weight is not None:
            yield "the norm's weight is not used", replace(layer, norm=replace(layer.norm, weight=None))


def _factors(layer: LayerAttention, module: nn.Module | None) -> Iterator[Candidate]:
    if layer.post_scale != 1:
        yield "the factor (1 − λ_init) after the norm is missing in the model", replace(layer, post_scale=1.0)
    elif layer.lam_init is not None:
        yield "the model has a factor (1 − λ_init) after the norm", replace(layer, post_scale=1 - layer.lam_init)


def _lambdas(layer: LayerAttention, module: nn.Module | None) -> Iterator[Candidate]:
    vectors = [getattr(module, f"lambda_{name}", None) for name in ("q1", "k1", "q2", "k2")]
    tensors = [vector.detach().to(layer.dtype) for vector in vectors if isinstance(vector, Tensor) and not vector.is_meta]
    if layer.lam_init is None or len(tensors) < len(vectors):
        return
    q1, k1, q2, k2 = tensors
    first = (q1 * k1).sum()
    second = (q2 * k2).sum()
    init = layer.lam_init
    for meaning, lam in (
        ("λ lacks the exponentials: it is λq1·λk1 − λq2·λk2 + λ_init", first - second + init),
        ("λ lacks λ_init: it is exp(λq1·λk1) − exp(λq2·λk2)", first.exp() - second.exp()),
        ("λ is λ_init alone", torch.full_like(first, init)),
        ("λ is exp(λq1·λk1) + exp(λq2·λk2) + λ_init", first.exp() + second.exp() + init),
    ):
        yield meaning, replace(layer, lam=lam.reshape(1, 1, 1))


def _scores(layer: LayerAttention, module: nn.Module | None) -> Iterator[Candidate]:
    yield "the scores are scaled by 1/√(2d) instead of 1/√d", replace(layer, scale=layer.scale * 0.5**0.5)
    yield "the scores are not scaled", replace(layer, scale=1.0)
    if layer.mask.kind == "causal" and layer.n_queries == layer.n_keys:
        yield "queries see later keys: the causal mask is missing", replace(layer, mask=Mask("full"))


_KINDS: tuple[Mistakes, ...] = (_pairings, _keys, _values, _norms, _factors, _lambdas, _scores)


def _best(left: Callable[[float], float], bounds: tuple[float, float]) -> tuple[float, float]:
    """The number at which the least deviation is left, and that deviation."""
    best = minimize_scalar(left, bounds=bounds, method="bounded", options={"xatol": 1e-9})
    return float(best.x), float(best.fun)


def _refitted_lambda(layer: LayerAttention, checked: Tensor, target: Tensor) -> tuple[float, str]:
    """The deviation that is left with the one λ that fits best."""
    _, left = _best(lambda lam: deviation(replace(layer, lam=torch.full_like(layer.lam, lam)), checked, target), (-2.0, 2.0))
    return left, "λ is not the value that the model used"


def _refitted_scale(layer: LayerAttention, checked: Tensor, target: Tensor) -> tuple[float, str]:
    """The deviation that is left with the one scale of the scores that fits best."""
    factor, left = _best(lambda x: deviation(replace(layer, scale=layer.scale * x), checked, target), (0.25, 4.0))
    return left, f"the scores are {factor:.3g} times what was read"
