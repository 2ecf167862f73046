"""Edits of λ, scores, maps, their difference, the norm, and heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from diffscope.attention.blocks import blocks_of
from diffscope.attention.changes import (
    AddNoise,
    Change,
    DropKeys,
    LowRankA2,
    Quantise,
    ReplaceOutput,
    Reshape,
    RowContext,
    ScaleA2,
    SharedA2,
    TopKA1,
    UniformA1,
    UniformA2,
    key_noise,
)
from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import map_of
from diffscope.edits.base import Edit, Stage
from diffscope.edits.declared import declare
from diffscope.errors import DiffscopeError, UnsupportedModel
from diffscope.prompts.selection import Indices, from_zero, whole_number

MOST_NOISE = 1e30  # nats: larger noise added to scores in float32 would not stay finite

# λ


@declare("λ = value", stage=Stage.FIELD, needs="A2", example={"value": 1.0})
def set_lambda(value: float, *, layers: Indices = None, heads: Indices = None) -> Edit:
    """Set λ to `value`, in place of what the model computed."""
    return _edit_of_lambda("λ = {:g}", value, torch.full_like, layers, heads)


@declare("factor·λ, token by token if λ has a value a token", stage=Stage.FIELD, needs="A2", example={"factor": 0.5})
def scale_lambda(factor: float, *, layers: Indices = None, heads: Indices = None) -> Edit:
    """Multiply λ with `factor`, token by token if it has a value a token."""
    return _edit_of_lambda("λ × {:g}", factor, torch.mul, layers, heads)


@declare(
    'A1 + λ·A2: λ changes its sign, so a model that adds its second map (`attention="plus"`) subtracts it under this edit',
    stage=Stage.FIELD,
    needs="A2",
)
def plus(*, layers: Indices = None, heads: Indices = None) -> Edit:
    """Change the sign of λ, A1 + λ·A2 in place of A1 − λ·A2; a model ``plus`` then subtracts what it adds."""
    return _edit_of_lambda("A1 + λ·A2", -1.0, torch.mul, layers, heads)


def _edit_of_lambda(
    label: str, number: float, change: Callable[[Tensor, float], Tensor], layers: Indices, heads: Indices
) -> Edit:
    if isinstance(number, bool) or not isinstance(number, Real):
        raise DiffscopeError(f"λ is changed by a number, not by {number!r}; for example set_lambda(1.0)")
    number = float(number)
    label = label.format(number)
    if not abs(number) <= torch.finfo(torch.float32).max:
        raise DiffscopeError(f"{label}: λ must stay a finite number")

    def make(layer: LayerAttention, heads: tuple[int, ...]) -> LayerAttention:
        chosen = torch.zeros(layer.n_heads, 1, dtype=torch.bool, device=layer.q.device)
        chosen[list(heads)] = True

        def changed(lam: Tensor) -> Tensor:  # (batch or 1, head or 1, query or 1)
            lam = lam.to(layer.dtype).expand(-1, layer.n_heads, -1)
            return torch.where(chosen, change(lam, number), lam)

        return replace(layer, lam=changed(layer.lam), lam_fp32=changed(layer.lam_fp32))

    return Edit(label, make, layers=layers, heads=heads)


# A2


@declare("A2 = 0: D = g·A1, rows sum to g", stage=Stage.MAPS, needs="A2")
def zero_a2(*, layers: Indices = None, heads: Indices = None) -> Edit:
    """Set A2 to zero: D = gain·A1."""
    return Edit("A2 = 0", lambda layer, heads: ScaleA2(heads, 0.0), layers=layers, heads=heads)


@declare(
    "A2 = 1/n on each of the n keys a row sees, times what the row of A2 sums to if the model has sink logits",
    stage=Stage.MAPS,
    needs="A2",
)
def uniform_a2(*, layers: Indices = None, heads: Indices = None) -> Edit:
    """Give A2 the same weight on every key that the query sees; with sink logits, its rows keep their sums."""
    return Edit("A2 uniform", lambda layer, heads: UniformA2(heads), layers=layers, heads=heads)


@declare(
    "A2 = the second map of head `of` of that layer, from its queries and keys; λ and values stay the head's own; edits "
    "act in turn, so two of these do not swap the maps of two heads: the second takes what the first has given",
    stage=Stage.FIELD,
    needs="A2",
    example={"of": 0},
)
def a2_of_head(of: int, *, layers: Indices = None, heads: Indices = None) -> Edit:
    """Give heads the second map that head `of` of the same layer computes from its queries and keys."""
    label = f"A2 of head {of}"

    def make(layer: LayerAttention, heads: tuple[int, ...]) -> LayerAttention:
        whole_number(of, 0, layer.n_heads - 1, f"a2_of_head takes a head from 0 to {layer.n_heads - 1}")
        a2 = layer.pairing.of_branch(2).clone()
        a2[list(heads)] = a2[of].clone()
        return replace(layer, pairing=replace(layer.pairing, a2=a2))

    return Edit(label, make, layers=layers, heads=heads)


@declare(
    "A2 = the mean of the second maps of all heads of the layer, whichever heads it acts on; for the map of one head "
    "in all of them, `a2_of_head`",
    stage=Stage.MAPS,
    needs="A2",
)
def share_a2(*, layers: Indices = None, heads: Indices = None) -> Edit:
    """Give heads one second map: the mean of the second maps of all heads of the layer.

    To give them that of one head, use ``a2_of_head``.
    """
    return Edit("A2 = its mean over heads", lambda layer, heads: SharedA2(heads), layers=layers, heads=heads)


@declare(
    "A2 = the visible part of its truncated SVD of that rank over the whole map of the prompt; a row sums to whatever is left "
    "of it, or with `normalise=True` to what the row of A2 sums to (1 without sink logits); a row that sums to less than 0.001 "
    "is not scaled",
    stage=Stage.MAPS,
    needs="A2",
    example={"rank": 4},
)
def low_rank_a2(rank: int, *, normalise: bool = False, layers: Indices = None, heads: Indices = None) -> Edit:
    """Replace A2 by the visible part of its truncated SVD, a product of two matrices of `rank` columns.

    The product has this rank, and is the closest to A2 as a square of numbers, including those above the diagonal, which have to
    be 0. The model uses its visible part, whose own algebraic rank is larger: a triangle with a diagonal has nearly as many as
    rows. A visible part of this rank could be closer, but there is no closed form for it. The factors come from all rows,
    including later ones: the edit tells how many patterns the map is made of, not how a model could compute it.

    Parameters
    ----------
    rank : int
    normalise : bool
        Whether to scale every row to the sum of the row of A2, 1 without sink logits; a row whose visible part sums to less than
        1e-3 stays as it is. By default rows sum to whatever is left of them.
    layers, heads : int or sequence of int, optional
    """
    rank = whole_number(rank, 1, math.inf, "a rank is a whole number from 1; for no second map at all use zero_a2()")

    def change(layer: LayerAttention, heads: tuple[int, ...]) -> Change:
        shape = (len(layer.lengths), layer.n_heads, layer.n_keys, min(rank, layer.n_keys))
        left = torch.zeros(shape, dtype=layer.dtype, device=layer.q.device)
        right = torch.zeros_like(left)
        for index, n in enumerate(layer.lengths):
            prompt = layer.prompt(index)
            r = min(rank, n)
            for head in heads:
                a2 = map_of(prompt.rows(heads=[head]), "A2")[0]  # (query, key)
                u, s, v = torch.linalg.svd(a2, full_matrices=False)
                left[index, head, :n, :r] = u[:, :r] * s[:r]
                right[index, head, :n, :r] = v[:r].T
        return LowRankA2(heads, left, right, normalise)

    label = f"A2 = visible part of rank {rank}{', rows of the same sums' if normalise else ''}"
    return Edit(label, change, layers=layers, heads=heads, needs_full_map=True)


# A1 and D


@declare(
    "A1 = 1/n on each of the n keys a row sees, times what the row of A1 sums to if the model has sink logits", stage=Stage.MAPS
)
def uniform_a1(*, layers: Indices = None, heads: Indices = None) -> Edit:
    """Give A1 the same weight on every key that the query sees; with sink logits, its rows keep their sums."""
    return Edit("A1 uniform", lambda layer, heads: UniformA1(heads), layers=layers, heads=heads)


@declare(
    "the k largest entries of each row of A1, the others 0, scaled to what the row summed to before (1 without sink logits: "
    "a top-k softmax); with `renormalise=False` they are not scaled",
    stage=Stage.MAPS,
    example={"k": 4},
)
def top_k_a1(k: int, renormalise: bool = True, *, layers: Indices = None, heads: Indices = None) -> Edit:
    """Keep only the `k` largest weights of each row of A1; with `renormalise` scaled to the row's sum before, mostly 1."""
    k = whole_number(k, 1, math.inf, "top_k_a1 keeps a whole number of keys from 1; to silence heads use ablate_heads()")
    return Edit(f"A1 top-{k}", lambda layer, heads: TopKA1(heads, k, renormalise), layers=layers, heads=heads)


@declare("|D|", stage=Stage.DIFFERENCE)
def absolute_d(*, layers: Indices = None, heads: Indices = None) -> Edit:
    """Replace D by |D|."""
    return Edit("|D|", lambda layer, heads: Reshape(heads, "absolute"), layers=layers, heads=heads)


@declare("max(D, 0): negative weights of D are 0; a row that is nowhere positive is zeros", stage=Stage.DIFFERENCE)
def d_plus(*, layers: Indices = None, heads: Indices = None) -> Edit:
    """Replace D by D⁺, with its negative weights set to 0."""
    return Edit("D⁺", lambda layer, heads: Reshape(heads, "positive"), layers=layers, heads=heads)


@declare(
    'D/ΣD, or D/Σ|D| (`by="absolute"`), row by row; a row of zeros stays one; by its sum, a row of |ΣD| < 0.001 is refused',
    stage=Stage.DIFFERENCE,
)
def normalise_d(by: str = "sum", *, layers: Indices = None, heads: Indices = None) -> Edit:
    """Divide D by its row's sum (``by="sum"``), or by its row's absolute sum (``by="absolute"``).

    A row of zeros stays one. If another row's sum is below 1e-3 in size, dividing by it means nothing and the edit raises.
    """
    if by not in ("sum", "absolute"):
        raise DiffscopeError(f"normalise_d(by={by!r}) is unknown; choose 'sum' or 'absolute'")
    return Edit(
        {"sum": "D / ΣD", "absolute": "D / Σ|D|"}[by], lambda layer, heads: Reshape(heads, f"by {by}"), layers=layers, heads=heads
    )


# norm and heads; the norm as one number a head is scalar_norm in from_captures.py


@declare("D·V without its norm; the factor after it (1 − λ_init in V1) stays", stage=Stage.FIELD, needs="norm")
def remove_norm(*, layers: Indices = None) -> Edit:
    """Remove the norm of the heads' outputs; the factor after it, 1 − λ_init, stays.

    There is no `heads`: a layer has one norm, of one kind, for all of its heads.
    """

    def make(layer: LayerAttention, heads: tuple[int, ...]) -> LayerAttention:
        if layer.norm is None:
            raise UnsupportedModel(f"no norm: layer {layer.layer} has no norm of its heads' outputs to remove")
        return replace(layer, norm=None)

    return Edit("no norm", make, layers=layers)


@declare(
    "what a head gives to the output projection is zero, or `to[head]`, the same for every token",
    stage=Stage.OUTPUT,
    example={"layers": 1, "heads": 0},
)
def ablate_heads(to: ArrayLike | Tensor | None = None, *, layers: Indices = None, heads: Indices = None) -> Edit:
    """Set the output of heads before the output projection to zero, or to `to`, (head, width) for all heads of the layers."""
    label = "heads ablated" if to is None else "heads replaced"
    try:
        given = None if to is None else to.detach() if isinstance(to, Tensor) else torch.from_numpy(np.array(to))
    except (TypeError, ValueError):  # text; rows of several lengths
        raise DiffscopeError(
            f"{label}: `to` is no array of numbers; give one (head, width) as an array or nested lists"
        ) from None
    if given is not None and (given.is_complex() or not given.isfinite().all()):
        words = "complex" if given.is_complex() else "infinite or undefined"
        raise DiffscopeError(f"{label}: `to` has {words} values; give finite real numbers")

    def change(layer: LayerAttention, heads: tuple[int, ...]) -> Change:
        shape = (layer.n_heads, layer.v.shape[-1])
        value = torch.zeros(shape) if given is None else given
        if tuple(value.shape) != shape:
            raise DiffscopeError(
                f"{label}: `to` has shape {tuple(value.shape)}, layer {layer.layer} needs {shape}; give other values, or layers"
            )
        return ReplaceOutput(heads, value[None].to(layer.q.device, layer.dtype))

    return Edit(label, change, layers=layers, heads=heads)


# scores


@declare(
    "scores of these pairs are −∞ before the softmax, so the rest of the row is normalised again, with its sink logit"
    " if there is one; a row that sees nothing else is zeros",
    stage=Stage.SCORES,
    example={"keys": [3, 4], "queries": [90, 91, 92, 93, 94, 95]},
)
def knock_out(
    keys: Sequence[int], queries: Sequence[int], branch: int | None = None, *, layers: Indices = None, heads: Indices = None
) -> Edit:
    """Hide keys from queries: their scores are −∞ and the rest is normalised again.

    Parameters
    ----------
    keys, queries : sequence of int
        Token positions, for example ``capture.spans["answer"]``; those beyond a prompt's end do nothing. If all are
        beyond the prompts' ends, a capture or loss is refused; in generation they may be of tokens that are yet to come.
    branch : {1, 2}, optional
        Only A1 or only A2; by default both. A row that sees nothing else attends to nothing. A sink logit takes part as before.
    """
    what = "knock_out takes token positions from 0, of keys and of queries; all are range(capture.n_tokens)"
    hidden, blind = from_zero(keys, what), from_zero(queries, what)
    return _hiding("knock-out", hidden, blind, branch, "nothing", layers, heads)


@declare("the same for the first `count` keys and every query; a row that sees nothing else is left as it is", stage=Stage.SCORES)
def drop_sink(count: int = 1, branch: int | None = None, *, layers: Indices = None, heads: Indices = None) -> Edit:
    """Hide the first `count` keys from all queries that see others; sink logits, which are no keys, stay.

    Parameters
    ----------
    count : int
    branch : {1, 2}, optional
        Only A1 or only A2; by default both.
    layers, heads : int or sequence of int, optional
    """
    count = whole_number(count, 1, math.inf, "drop_sink takes a whole number of keys from 1")
    return _hiding("no sink", tuple(range(count)), None, branch, "kept", layers, heads)


def _hiding(
    label: str,
    keys: tuple[int, ...],
    queries: tuple[int, ...] | None,
    branch: int | None,
    if_nothing_left: str,
    layers: Indices,
    heads: Indices,
) -> Edit:
    if branch not in (None, 1, 2):
        raise DiffscopeError(f"branch {branch!r} is unknown; choose 1 for A1, 2 for A2, or leave it out for both")
    branches = (1, 2) if branch is None else (branch,)

    def change(layer: LayerAttention, heads: tuple[int, ...]) -> Change:
        return DropKeys(heads, keys, queries, branches, if_nothing_left)

    named = ((), ()) if queries is None else (queries, keys)  # of drop_sink, the first keys are there in any prompt
    return Edit(
        label,
        change,
        layers=layers,
        heads=heads,
        needs_a2=branch == 2,
        needs_positions=True,
        queries=named[0],
        keys=named[1],
    )


@declare(
    "scores s become s + n on each of the keys (by default all), n ~ N(0, σ²), one value a key for all queries and heads of "
    'a layer; with `mode="common"` both maps get +n, with `"differential"` A1 gets +n and A2 −n; standard attention, which '
    "has one map, gets +n in both modes; s are the scores as they enter the softmax (scaled, and capped if the model caps them)",
    stage=Stage.SCORES,
    example={"sigma": 0.5},
)
def inject_noise(
    sigma: float,
    mode: str = "common",
    keys: Sequence[int] | None = None,
    seed: int | Sequence[int] = 0,
    *,
    layers: Indices = None,
    heads: Indices = None,
) -> Edit:
    """Add noise n ~ N(0, σ²) to the scores of both maps, or +n to those of A1 and −n to those of A2.

    This is how an engineer tests a differential amplifier: the same signal on both inputs is to vanish, opposite signals are to
    pass. The scores are those that enter the softmax, scaled, and capped where the model caps them (a cap would make large noise
    smaller); a sink logit, which has no key, gets none. A key has one value for all queries and heads of a layer, as if the token
    itself looked more or less relevant than it is, and so heads that share a map are given one noise; layers have their own.

    Standard attention has one map, which gets +n in either mode.

    Parameters
    ----------
    sigma : float
        Standard deviation of the noise in nats: scores are logarithms of weights.
    mode : {"common", "differential"}
    keys : sequence of int, optional
        Token positions, for example ``capture.key_sets["irrelevant"]``; by default all.
    seed : int, or sequence of int
        The draw of a key depends on seed, layer and position alone: it is the same in either mode, at any σ and whatever other
        keys there are. Several are one for each prompt of the batch that runs, so that copies of a prompt get several draws.
    """
    if mode not in ("common", "differential"):
        raise DiffscopeError(f"inject_noise(mode={mode!r}) is unknown; choose 'common' or 'differential'")
    if not isinstance(sigma, Real) or not 0 <= sigma <= MOST_NOISE:
        raise DiffscopeError(f"inject_noise takes a standard deviation from 0 to {MOST_NOISE:g} nats, and not {sigma!r}")
    noisy = (
        None if keys is None else from_zero(keys, "inject_noise takes token positions from 0, such as capture.spans['answer']")
    )
    seeds = from_zero(seed, "inject_noise takes whole numbers from 0 as seeds")
    label = f"{mode} noise of σ = {sigma:g}"

    def change(layer: LayerAttention, heads: tuple[int, ...]) -> Change:
        if mode == "differential":
            _check_sides(label, layer, heads)
        if len(seeds) not in (1, len(layer.lengths)):
            raise DiffscopeError(f"{label}: {len(seeds)} seeds are for as many prompts, and {len(layer.lengths)} run together")
        noise = float(sigma) * torch.stack([key_noise(each, layer.layer, layer.n_keys) for each in seeds])  # (batch or 1, key)
        if noisy is not None:
            noise = noise * torch.isin(torch.arange(layer.n_keys), torch.tensor(noisy, dtype=torch.int64))
        return AddNoise(heads, noise[:, None].to(layer.dtype).to(layer.q.device), mode == "differential")

    return Edit(label, change, layers=layers, heads=heads, needs_positions=True, keys=noisy or ())


def _check_sides(label: str, layer: LayerAttention, heads: tuple[int, ...]) -> None:
    """Raise DiffscopeError if a map would have to get +n as the A1 of a head and −n as the A2 of another."""
    if not layer.differential:
        return
    first, second = (set(layer.pairing.of_branch(branch)[list(heads)].tolist()) for branch in (1, 2))
    if first & second:
        raise DiffscopeError(
            f"{label}: in layer {layer.layer} map {min(first & second)} is the A1 of a head and the A2 of a head, and cannot get "
            "noise of both signs; choose mode='common', or heads that share no map so"
        )


@declare(
    "scores s become round(s·L/m)·m/L, with L = 2^(bits−1) − 1 and halves rounded to even; s are as in `inject_noise`, m is "
    'the largest magnitude in one branch of one head, over the whole map (`per="map"`) or over each row (`"row"`)',
    stage=Stage.SCORES,
    example={"bits": 6},
)
def quantise_logits(bits: int, per: str = "map", *, layers: Indices = None, heads: Indices = None) -> Edit:
    """Quantise the scores to `bits` bits by their largest magnitude: round(s·L/m)·m/L with L = 2^(bits−1) − 1.

    The scores are those that enter the softmax: scaled, and capped if the model caps them. Sink logits stay as they are.

    Parameters
    ----------
    bits : int
        2 to 16.
    per : {"map", "row"}
        m is the largest visible magnitude of a head's branch in the whole map, or in each row.
    layers, heads : int or sequence of int, optional
    """
    bits = whole_number(bits, 2, 16, "quantise_logits takes a whole number of bits from 2 to 16")
    if per not in ("map", "row"):
        raise DiffscopeError(f"quantise_logits(per={per!r}) is unknown; choose 'map' or 'row'")

    def change(layer: LayerAttention, heads: tuple[int, ...]) -> Change:
        prompts = [layer.prompt(index) for index in range(len(layer.lengths))] if per == "map" else []
        return Quantise(heads, bits, torch.stack([_largest(prompt) for prompt in prompts]) if prompts else None)

    return Edit(f"logits of {bits} bits a {per}", change, layers=layers, heads=heads, needs_full_map=per == "map")


def _largest(layer: LayerAttention) -> Tensor:
    """Return the largest magnitude of each branch's visible scores, (head, branch), with the changes made so far."""
    largest = torch.zeros(layer.n_heads, 2, dtype=layer.dtype, device=layer.q.device)
    for block in blocks_of(layer, all_heads=True):
        context = RowContext(layer, layer.head_numbers(), block.queries)
        for branch in (1, 2) if layer.differential else (1,):
            scores = layer.changed_logits(branch, context)  # (head, query, key)
            of_block = scores.masked_fill(scores == -torch.inf, 0).abs().amax((1, 2))
            largest[:, branch - 1] = torch.maximum(largest[:, branch - 1], of_block)
    return largest
