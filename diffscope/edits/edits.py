"""Edits that need nothing but themselves: of λ, the maps, their difference, the norm, heads and keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real

import torch
from torch import Tensor

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
    UniformA2,
    key_noise,
)
from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import map_of
from diffscope.edits.base import (
    Edit,
    Stage,
    check_second,
    field_edit,
    row_edit,
    with_change,
)
from diffscope.errors import DiffscopeError, UnsupportedModel
from diffscope.prompts.selection import Indices, from_zero, whole_number

# λ


def set_lambda(value: float, layers: Indices = None, heads: Indices = None) -> Edit:
    """λ = `value`, instead of what the model computed."""
    return _with_lambda("λ = {:g}", value, torch.full_like, layers, heads)


def scale_lambda(factor: float, layers: Indices = None, heads: Indices = None) -> Edit:
    """λ times `factor`, token by token where it has a value a token."""
    return _with_lambda("λ × {:g}", factor, torch.mul, layers, heads)


def plus(layers: Indices = None, heads: Indices = None) -> Edit:
    """A1 + λ·A2 in place of A1 − λ·A2: λ changes its sign, so that a model ``plus`` subtracts what it adds."""
    return _with_lambda("A1 + λ·A2", -1.0, torch.mul, layers, heads)


def _with_lambda(label: str, number: float, to: Callable[[Tensor, float], Tensor], layers: Indices, heads: Indices) -> Edit:
    number = float(number)
    label = label.format(number)
    if not abs(number) <= torch.finfo(torch.float32).max:
        raise DiffscopeError(f"{label}: λ must stay a finite number")

    def make(layer: LayerAttention, heads: tuple[int, ...]) -> LayerAttention:
        check_second(label, layer)
        chosen = torch.zeros(layer.n_heads, 1, dtype=torch.bool, device=layer.q.device)
        chosen[list(heads)] = True

        def changed(lam: Tensor) -> Tensor:  # (batch or 1, head or 1, query or 1)
            lam = lam.to(layer.dtype).expand(-1, layer.n_heads, -1)
            return torch.where(chosen, to(lam, number), lam)

        return replace(layer, lam=changed(layer.lam), lam_fp32=changed(layer.lam_fp32))

    return field_edit(label, make, layers, heads)


# A2


def zero_a2(layers: Indices = None, heads: Indices = None) -> Edit:
    """No second map: D = gain·A1."""
    return row_edit("A2 = 0", Stage.MAPS, lambda layer, heads: ScaleA2(heads, 0.0), layers, heads, second=True)


def uniform_a2(layers: Indices = None, heads: Indices = None) -> Edit:
    """The same weight on every key that the query sees; with sink logits, rows sum to what those of A2 sum to."""
    return row_edit("A2 uniform", Stage.MAPS, lambda layer, heads: UniformA2(heads), layers, heads, second=True)


def a2_of_head(of: int, layers: Indices = None, heads: Indices = None) -> Edit:
    """The second map that head `of` of the same layer computes from its queries and keys."""
    label = f"A2 of head {of}"

    def make(layer: LayerAttention, heads: tuple[int, ...]) -> LayerAttention:
        check_second(label, layer)
        whole_number(of, 0, layer.n_heads - 1, f"a2_of_head takes a head from 0 to {layer.n_heads - 1}")
        a2 = layer.pairing.of_branch(2).clone()
        a2[list(heads)] = a2[of].clone()
        return replace(layer, pairing=replace(layer.pairing, a2=a2))

    return field_edit(label, make, layers, heads)


def share_a2(layers: Indices = None, heads: Indices = None) -> Edit:
    """One second map for the heads: the mean of the second maps of all heads of the layer.

    To give them that of one head, use ``a2_of_head``.
    """
    return row_edit("A2 = its mean over heads", Stage.MAPS, lambda layer, heads: SharedA2(heads), layers, heads, second=True)


def low_rank_a2(rank: int, layers: Indices = None, heads: Indices = None, *, normalise: bool = False) -> Edit:
    """What a query can see of a product of two matrices of `rank` columns, the truncated SVD of the whole map.

    It is the product that has this rank, and that is the closest to A2 as a square of numbers, those above the diagonal, which
    have to be 0, included. What the model uses is its visible part, whose own algebraic rank is larger: a triangle with a
    diagonal has nearly as many as rows. It is not the closest that a visible part of this rank could be, for which there is no
    closed form. The factors come from all rows, later ones included: it says how many patterns the map is made of, not how a
    model could compute it.

    Parameters
    ----------
    rank : int
    layers, heads : optional
    normalise : bool
        Scale every row to sum to what that of A2 does, 1 without sink logits; a row whose visible part sums to less than 1e-3
        has nothing to be scaled and stays as it is. Without that, rows sum to whatever was left of them.
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
    return row_edit(label, Stage.MAPS, change, layers, heads, second=True, whole=True)


# A1 and D


def top_k_a1(k: int, renormalise: bool = True, layers: Indices = None, heads: Indices = None) -> Edit:
    """Only the `k` largest weights of each row of A1; with `renormalise` they are made to sum to what the row did, mostly 1."""
    k = whole_number(k, 1, math.inf, "top_k_a1 keeps a whole number of keys from 1; to silence heads use ablate_heads()")
    return row_edit(f"A1 top-{k}", Stage.MAPS, lambda layer, heads: TopKA1(heads, k, renormalise), layers, heads)


def absolute_d(layers: Indices = None, heads: Indices = None) -> Edit:
    """|D|."""
    return _reshaped("|D|", "absolute", layers, heads)


def d_plus(layers: Indices = None, heads: Indices = None) -> Edit:
    """D⁺: D with its negative weights set to 0."""
    return _reshaped("D⁺", "positive", layers, heads)


def normalise_d(by: str = "sum", layers: Indices = None, heads: Indices = None) -> Edit:
    """D divided by its row's sum (``by="sum"``), or by its row's absolute sum (``by="absolute"``).

    A row of zeros stays one. Where another row's sum is below 1e-3 in size, dividing by it means nothing and the edit raises.
    """
    if by not in ("sum", "absolute"):
        raise DiffscopeError(f"normalise_d(by={by!r}) is unknown; choose 'sum' or 'absolute'")
    return _reshaped({"sum": "D / ΣD", "absolute": "D / Σ|D|"}[by], f"by {by}", layers, heads)


def _reshaped(label: str, kind: str, layers: Indices, heads: Indices) -> Edit:
    return row_edit(label, Stage.DIFFERENCE, lambda layer, heads: Reshape(heads, kind), layers, heads)


# norm and heads; the norm as one number a head is scalar_norm in from_prompts


def remove_norm(layers: Indices = None) -> Edit:
    """No norm of the heads' outputs; the factor after it, 1 − λ_init, stays."""

    def make(layer: LayerAttention, heads: tuple[int, ...]) -> LayerAttention:
        if layer.norm is None:
            raise UnsupportedModel(f"no norm: layer {layer.layer} has no norm of its heads' outputs to remove")
        return replace(layer, norm=None)

    return field_edit("no norm", make, layers)


def ablate_heads(layers: Indices = None, heads: Indices = None, to: Tensor | None = None) -> Edit:
    """The output of heads before the output projection is zero, or `to`, a Tensor (head, width) for all heads of the layers."""
    label = "heads ablated" if to is None else "heads replaced"

    def change(layer: LayerAttention, heads: tuple[int, ...]) -> Change:
        shape = (layer.n_heads, layer.v.shape[-1])
        if to is not None and tuple(to.shape) != shape:
            raise DiffscopeError(f"{label}: `to` has shape {tuple(to.shape)}, layer {layer.layer} needs {shape}")
        value = torch.zeros(shape) if to is None else to.detach()
        return ReplaceOutput(heads, value[None].to(layer.q.device, layer.dtype))

    return row_edit(label, Stage.OUTPUT, change, layers, heads)


# scores


def knock_out(
    keys: Sequence[int], queries: Sequence[int], branch: int | None = None, layers: Indices = None, heads: Indices = None
) -> Edit:
    """Some queries no longer see some keys: their scores are −∞ and the rest is normalised again.

    Parameters
    ----------
    keys, queries : sequence of int
        Token positions, for example ``capture.spans["answer"]``; those beyond a prompt's end do nothing.
    branch : {1, 2}, optional
        Only A1 or only A2; by default both. A row that sees nothing else attends to nothing. A sink logit takes part as before.
    """
    what = "knock_out takes token positions from 0, of keys and of queries; all are range(capture.n_tokens)"
    hidden, blind = from_zero(keys, what), from_zero(queries, what)
    return _dropping("knock-out", hidden, blind, branch, "nothing", layers, heads)


def drop_sink(keys: int = 1, branch: int | None = None, layers: Indices = None, heads: Indices = None) -> Edit:
    """No query sees the first `keys` keys, except queries that see nothing else; sink logits, which are no keys, stay."""
    keys = whole_number(keys, 1, math.inf, "drop_sink takes a whole number of keys from 1")
    return _dropping("no sink", tuple(range(keys)), None, branch, "kept", layers, heads)


def _dropping(
    label: str,
    keys: tuple[int, ...],
    queries: tuple[int, ...] | None,
    branch: int | None,
    lonely: str,
    layers: Indices,
    heads: Indices,
) -> Edit:
    if branch not in (None, 1, 2):
        raise DiffscopeError(f"branch {branch!r} is unknown; choose 1 for A1, 2 for A2, or leave it out for both")
    branches = (1, 2) if branch is None else (branch,)

    def change(layer: LayerAttention, heads: tuple[int, ...]) -> Change:
        return DropKeys(heads, keys, queries, branches, lonely)

    return row_edit(label, Stage.SCORES, change, layers, heads, second=branch == 2, placed=True)


def inject_noise(
    sigma: float,
    mode: str = "common",
    keys: Sequence[int] | None = None,
    seed: int | Sequence[int] = 0,
    layers: Indices = None,
    heads: Indices = None,
) -> Edit:
    """Noise n ~ N(0, σ²) added to the scores of both maps, or +n to those of A1 and −n to those of A2.

    It is how an engineer tests a differential amplifier: the same signal on both inputs is to vanish, opposite signals are to
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
        Token positions, for example ``capture.spans["irrelevant"]``; by default all.
    seed : int, or sequence of int
        The draw of a key depends on seed, layer and position alone: it is the same in either mode, at any σ and whatever other
        keys there are. Several are one for each prompt of the batch that runs, so that copies of a prompt get several draws.
    """
    if mode not in ("common", "differential"):
        raise DiffscopeError(f"inject_noise(mode={mode!r}) is unknown; choose 'common' or 'differential'")
    if not isinstance(sigma, Real) or not 0 <= sigma < math.inf:
        raise DiffscopeError(f"inject_noise takes a standard deviation from 0, and not {sigma!r}")
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

    return row_edit(label, Stage.SCORES, change, layers, heads, placed=True)


def _check_sides(label: str, layer: LayerAttention, heads: tuple[int, ...]) -> None:
    """Raise DiffscopeError where a map would have to get +n as the A1 of a head and −n as the A2 of another."""
    if not layer.differential:
        return
    first, second = (set(layer.pairing.of_branch(branch)[list(heads)].tolist()) for branch in (1, 2))
    if first & second:
        raise DiffscopeError(
            f"{label}: in layer {layer.layer} map {min(first & second)} is the A1 of a head and the A2 of a head, and cannot get "
            "noise of both signs; choose mode='common', or heads that share no map so"
        )


def quantise_logits(bits: int, per: str = "map", layers: Indices = None, heads: Indices = None) -> Edit:
    """Absmax quantisation of the scores to `bits` bits: round(s·L/m)·m/L with L = 2^(bits−1) − 1.

    They are the scores as they enter the softmax: scaled, and capped where the model caps them. Sink logits stay as they are.

    Parameters
    ----------
    bits : int
        2 to 16.
    per : {"map", "row"}
        m is the largest magnitude of what a head's branch sees in a whole map, or in each row.
    """
    bits = whole_number(bits, 2, 16, "quantise_logits takes a whole number of bits from 2 to 16")
    if per not in ("map", "row"):
        raise DiffscopeError(f"quantise_logits(per={per!r}) is unknown; choose 'map' or 'row'")

    def change(layer: LayerAttention, heads: tuple[int, ...]) -> Change:
        prompts = [layer.prompt(index) for index in range(len(layer.lengths))] if per == "map" else []
        return Quantise(heads, bits, torch.stack([_largest(prompt) for prompt in prompts]) if prompts else None)

    return row_edit(f"logits of {bits} bits a {per}", Stage.SCORES, change, layers, heads, whole=per == "map")


def _largest(layer: LayerAttention) -> Tensor:
    """Largest magnitude of each branch's visible scores, (head, branch), with the changes made so far."""
    observer = _Largest(torch.zeros(layer.n_heads, 2, dtype=layer.dtype, device=layer.q.device))
    for _ in with_change(layer, observer).blocks():
        pass
    return observer.largest


@dataclass(frozen=True)
class _Largest(Change):
    """Changes nothing; notes the largest magnitude among the scores that pass."""

    largest: Tensor  # (head, branch)

    def logits(self, context: RowContext, branch: int, logits: Tensor) -> Tensor:
        largest = logits.masked_fill(logits == -torch.inf, 0).abs().amax((1, 2))
        self.largest[context.heads, branch - 1] = torch.maximum(self.largest[context.heads, branch - 1], largest)
        return logits
