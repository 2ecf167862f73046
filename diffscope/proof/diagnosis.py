"""Which reading of a passage rebuilds what the model computed, and, where none does, which mistake would explain it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from diffscope.attention.layer import LayerAttention
from diffscope.attention.parts import Mask
from diffscope.errors import FidelityError
from diffscope.proof.fidelity import (
    ROWS_TO_DECIDE,
    Fidelity,
    compared,
    deviation,
    other_pairings,
    tolerated,
)

MISTAKES_AT_ONCE = 2
ROWS_FOR_PAIRS = 32
ROUNDED = 3  # tolerances: code that rounds at every step, as some does in half precision, is off by up to that
Reading = tuple[str, LayerAttention]  # what it would mean if it fitted


def refusal(
    layer: LayerAttention,
    observed: Tensor,
    result: Fidelity,
    module: nn.Module | None = None,
    suspects: Sequence[Reading] = (),
) -> FidelityError:
    """The error that says which layer is not rebuilt, and the likely cause.

    Parameters
    ----------
    module : nn.Module, optional
        Where to look for what λ might have been made of otherwise.
    suspects : sequence of (str, LayerAttention)
        Other queries, keys and values that the family thinks possible, and what they would mean.
    """
    cause = likely_cause(layer, observed, module, suspects)
    return FidelityError(
        f"layer {layer.layer}: the maps that family {layer.family!r} reads do not rebuild the model's attention output "
        f"(error {result.error:.2g}, tolerance {result.tolerance:.0e}); likely cause: {cause}"
    )


def likely_cause(
    layer: LayerAttention, observed: Tensor, module: nn.Module | None = None, suspects: Sequence[Reading] = ()
) -> str:
    """The fewest other readings, at most two, that together rebuild the longest prompt that is not rebuilt; in words."""
    if not all(observed[i, :n].isfinite().all() for i, n in enumerate(layer.lengths)):
        return "the model itself produced values that are not finite"
    if torch.is_autocast_enabled(observed.device.type):
        return "torch.autocast computes parts of the model in another dtype; capture outside of it, or convert the model"
    if not layer.differential:
        return "the scores are changed after q·k (soft cap, attention sink) or the output before its projection (gate)"
    tolerance = tolerated(layer, observed.dtype, torch.inf)
    rows = [compared(layer, observed, i, ROWS_TO_DECIDE) for i in range(len(layer.lengths))]
    off = [i for i, one in enumerate(rows) if deviation(layer.prompt(i), *one) > tolerance] or range(len(rows))
    index = max(off, key=lambda i: layer.lengths[i])
    prompt, (checked, seen) = layer.prompt(index), rows[index]
    if observed.dtype in (torch.float16, torch.bfloat16):
        module = None  # formulas of λ differ by less than half precision rounds

    def suspected(layer: LayerAttention, module) -> Iterator[Reading]:
        for meaning, other in suspects:
            other = other.prompt(index)
            yield meaning, replace(layer, q=other.q, k=other.k, v=other.v)

    half, own = observed.dtype in (torch.float16, torch.bfloat16), deviation(prompt, checked, seen)
    enough = min(tolerance, own / ROUNDED) if half else tolerance  # a little less rounding is no cause
    for count in range(1, MISTAKES_AT_ONCE + 1):
        found = []
        if count > 1:  # there are hundreds of pairs
            checked, seen = compared(layer, observed, index, ROWS_FOR_PAIRS)
        for kinds in itertools.combinations((*_KINDS, suspected), count):
            for meanings, reading in _combined(prompt, kinds, module):
                found.append((deviation(reading, checked, seen), " and ".join(meanings)))
        found += _refitted(prompt, checked, seen) if count == 1 else []
        error, cause = min(found, key=lambda tried: tried[0], default=(torch.inf, ""))
        if error <= enough:
            return cause
    if half and own <= ROUNDED * tolerance:
        return "the model rounds more than was allowed for; try it in float32"
    return "the two maps are paired wrongly, or the values, the norm or RoPE follow another layout"


def _combined(layer: LayerAttention, kinds, module) -> Iterator[tuple[tuple[str, ...], LayerAttention]]:
    """Readings that differ from the layer in one way of every kind."""
    first, *others = kinds
    for meaning, reading in first(layer, module):
        if not others:
            yield (meaning,), reading
            continue
        for meanings, combined in _combined(reading, others, module):
            yield (meaning, *meanings), combined


def _pairings(layer: LayerAttention, module) -> Iterator[Reading]:
    yield from other_pairings(layer)


def _keys(layer: LayerAttention, module) -> Iterator[Reading]:
    pairing, maps, keys = layer.pairing, layer.q.shape[1], layer.k.shape[1]
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


def _values(layer: LayerAttention, module) -> Iterator[Reading]:
    groups, width = layer.v.shape[1], layer.v.shape[-1]
    if layer.differential and width == 2 * layer.q.shape[-1]:
        halves = layer.v.unflatten(-1, (2, -1)).transpose(2, 3).flatten(1, 2)  # (1, 2·group, key, d), as projected
        yield "V of a head is v_h beside v_(h + G) instead of 2d in a row", replace(layer, v=torch.cat(halves.chunk(2, 1), -1))
    if 1 < groups < layer.n_heads:
        tiled = torch.arange(layer.n_heads, device=layer.q.device) % groups
        pairing = replace(layer.pairing, value_of_head=tiled)
        yield "V is tiled over the heads (head h uses group h mod G) instead of repeated", replace(layer, pairing=pairing)


def _norms(layer: LayerAttention, module) -> Iterator[Reading]:
    if layer.norm is not None:
        for eps in (1e-3, 1e-4, 1e-5, 1e-6, 1e-8, torch.finfo(torch.float32).eps):
            if eps != layer.norm.eps:
                yield f"the norm's eps is {eps:.0e}, not {layer.norm.eps:.0e}", replace(layer, norm=replace(layer.norm, eps=eps))
        yield "the norm of the heads' outputs is missing in the model", replace(layer, norm=None)
        if layer.norm.weight is not None:
            yield "the norm's weight is not used", replace(layer, norm=replace(layer.norm, weight=None))


def _factors(layer: LayerAttention, module) -> Iterator[Reading]:
    if layer.post_scale != 1:
        yield "the factor (1 − λ_init) after the norm is missing in the model", replace(layer, post_scale=1.0)
    elif layer.lam_init is not None:
        yield "the model has a factor (1 − λ_init) after the norm", replace(layer, post_scale=1 - layer.lam_init)


def _lambdas(layer: LayerAttention, module) -> Iterator[Reading]:
    vectors = [getattr(module, f"lambda_{name}", None) for name in ("q1", "k1", "q2", "k2")]
    if layer.lam_init is None or any(not isinstance(vector, Tensor) for vector in vectors):
        return
    q1, k1, q2, k2 = (vector.detach().to(layer.dtype) for vector in vectors)
    first, second, init = (q1 * k1).sum(), (q2 * k2).sum(), layer.lam_init
    for meaning, lam in (
        ("λ lacks the exponentials: it is λq1·λk1 − λq2·λk2 + λ_init", first - second + init),
        ("λ lacks λ_init: it is exp(λq1·λk1) − exp(λq2·λk2)", first.exp() - second.exp()),
        ("λ is λ_init alone", torch.full_like(first, init)),
        ("λ is exp(λq1·λk1) + exp(λq2·λk2) + λ_init", first.exp() + second.exp() + init),
    ):
        yield meaning, replace(layer, lam=lam.reshape(1, 1, 1))


def _scores(layer: LayerAttention, module) -> Iterator[Reading]:
    yield "the scores are scaled by 1/√(2d) instead of 1/√d", replace(layer, scale=layer.scale * 0.5**0.5)
    yield "the scores are not scaled", replace(layer, scale=1.0)
    if layer.mask.kind == "causal" and layer.n_queries == layer.n_keys:
        yield "queries see later keys: the causal mask is missing", replace(layer, mask=Mask("full"))


_KINDS = (_pairings, _keys, _values, _norms, _factors, _lambdas, _scores)


def _refitted(layer: LayerAttention, checked: Tensor, seen: Tensor) -> list[tuple[float, str]]:
    """The deviation that is left with the one λ that fits best."""

    def left(lam: float) -> float:
        return deviation(replace(layer, lam=torch.full_like(layer.lam, lam)), checked, seen)

    best = minimize_scalar(left, bounds=(-2.0, 2.0), method="bounded", options={"xatol": 1e-9})
    return [(float(best.fun), "λ is not the value that the model used")]
