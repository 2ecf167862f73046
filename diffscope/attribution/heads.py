"""The heads of a layer at one query, what each of their branches writes, and what that adds to logits, directly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from diffscope.attention.components import Norm
from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import without_autocast
from diffscope.attribution.stream import UNSUPPORTED, Stream
from diffscope.errors import UnsupportedModel
from diffscope.families.foreign import ForeignModule
from diffscope.families.offloaded import weights_loaded
from diffscope.proof.tolerance import TOLERANCE

BRANCHES = ("A1", "A2")
BRANCH_TOLERANCE = 1e-4  # error of their sum, relative to the branches; an edit changes more
HEAD_TOLERANCE = 1e-4  # error of the sum of heads, relative to what they write


@dataclass(frozen=True)
class FrozenHeads:
    """The heads of one prompt at one query, with their norms frozen.

    A head's output is linear in D except for its norm. With the norm's factor fixed at that of the head's own output, g·A1·V and
    −λ·A2·V pass the norm's weight, post-scale, correction and gate separately, and add up to the head's output.

    Attributes
    ----------
    frozen : LayerAttention
        Of the prompt, with its norm as a multiplication.
    values : Tensor (head, key, width)
    weights : Tensor (branch, head, key)
        g·A1 and −λ·A2; of standard attention the second is NaN.
    a2 : Tensor (head, key), or None in standard attention
    lam : Tensor (head, 1)
    query : int
    """

    frozen: LayerAttention
    values: Tensor
    weights: Tensor
    a2: Tensor | None
    lam: Tensor
    query: int

    @classmethod
    @without_autocast()
    def of(cls, layer: LayerAttention, at: int | None = None) -> FrozenHeads:
        """Freeze the heads of a layer of one prompt at a query, by default the last one.

        Raises
        ------
        UnsupportedModel
            The branches do not add up to the head's output: an edit, or the model itself, changes what follows from them.
        """
        at = layer.n_queries - 1 if at is None else at
        rows = layer.rows([at])
        d, a1 = rows.d[:, 0], rows.gain * rows.a1[:, 0]
        a2 = None if rows.a2 is None else rows.a2[:, 0]
        weights = torch.stack([d, torch.full_like(d, torch.nan)] if a2 is None else [a1, -rows.lam * a2])
        values = layer.v[0][layer.pairing.value_of_head].to(layer.dtype)
        whole = d[:, None] @ values  # (head, 1, width)
        heads = cls(replace(layer, norm=_frozen(layer.norm, whole)), values, weights, a2, rows.lam, at)
        parts = heads.outputs(weights).nan_to_num()
        off = parts.sum(0) - layer.head_postprocess(whole, [at])[:, 0]
        if not off.abs().max() <= BRANCH_TOLERANCE * parts.abs().sum(0).max():
            raise UnsupportedModel(
                f"layer {layer.layer}: D or the output of heads is changed after the subtraction, so heads are no sum of two "
                "branches; leave out the edit that does so, or take a model that does not"
            )
        return heads

    @without_autocast()
    def outputs(self, weights: Tensor, keys: Tensor | slice = slice(None)) -> Tensor:
        """Return what enters the output projection for given weights of keys, (row, head, key) → (row, head, width)."""
        mixed = weights.transpose(0, 1) @ self.values[:, keys]  # (head, row, width)
        return self.frozen.head_postprocess(mixed, [self.query] * len(weights)).transpose(0, 1)

    def write(self, projection: nn.Module, wrote: Tensor, extra: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return what each branch of each head writes into the residual stream, and the bias that its layer adds.

        Raises UnsupportedModel if heads and bias do not add up to what the layer wrote.

        Parameters
        ----------
        projection : nn.Module
            The output projection.
        wrote : Tensor (hidden,)
            What the layer wrote there.
        extra : Tensor (row, head, key), optional
            Weights of further rows.

        Returns
        -------
        Tensor (branch or row, head, hidden)
            In standard attention the second branch is NaN.
        Tensor (hidden,)
        """
        weights = self.weights if extra is None else torch.cat([self.weights, extra])
        parts, bias = _through(projection, self.outputs(weights))
        heads = parts[: len(BRANCHES)].nan_to_num()  # standard attention has one branch
        tolerance = max(HEAD_TOLERANCE, TOLERANCE[self.frozen.q.dtype])
        if not (heads.sum((0, 1)) + bias - wrote).abs().max() <= tolerance * heads.abs().sum((0, 1)).max():
            raise UnsupportedModel(f"layer {self.frozen.layer}: its heads do not add up to what it wrote; {UNSUPPORTED}")
        return parts, bias


def _frozen(norm: Norm | None, whole: Tensor) -> Norm | None:
    """Return a norm as a multiplication, with its factor on `whole` (head, 1, width)."""
    if norm is None or norm.kind == "scalar":
        return norm
    factor = torch.rsqrt(whole[:, 0].square().mean(-1, keepdim=True) + norm.eps)  # (head, 1)
    weight = torch.ones_like(whole[:, 0]) if norm.weight is None else norm.weight.to(whole.dtype)
    return Norm("scalar", 0.0, factor * weight)


@dataclass(frozen=True)
class Query:
    """A prompt and its candidates.

    Attributes
    ----------
    ids : list of int
    tokens : list of int
        The candidates, the answer first.
    places : list of list of int, one a candidate
        Positions of each in the prompt, to attribute what is added through them; empty for none.
    """

    ids: list[int]
    tokens: list[int]
    places: list[list[int]]


def of_layer(
    layer: LayerAttention, projection: nn.Module, stream: Stream, number: int, queries: Sequence[Query], control: bool
) -> tuple[list[Tensor], Tensor]:
    """Attribute the logits of each prompt's candidates to the branches of the heads of a layer; and return what its bias writes.

    Raises UnsupportedModel if heads and bias do not add up to what the layer wrote.

    Parameters
    ----------
    number : int
        Index of its block in the stream.
    control : bool
        Whether to fill the third branch.

    Returns
    -------
    list of Tensor (way, branch, head, candidate), one a prompt
        Ways: through all keys, and through the candidate's own places. Branches: A1, A2, and A2 of the next prompt. NaN where
        there is none.
    Tensor (hidden,)
    """
    last = [FrozenHeads.of(layer.prompt(index)) for index in range(len(queries))]
    tables = []
    for index, (own, question) in enumerate(zip(last, queries)):
        other = (index + 1) % len(last)
        a2 = last[other].a2 if control else None
        of_control = None if a2 is None else -own.lam * a2[None]
        wrote, bias = own.write(projection, stream.attention[number][index], of_control)
        table = torch.full((2, len(BRANCHES) + 1, len(own.values), len(question.tokens)), torch.nan, dtype=torch.float64)
        table[0, : len(wrote)] = stream.direct(wrote, index, question.tokens)
        for candidate, (token, keys) in enumerate(zip(question.tokens, question.places)):
            if not keys:
                continue
            rows = _at(own, keys, a2, queries[other].places[candidate : candidate + 1])
            added = stream.direct(_through(projection, own.outputs(rows, torch.tensor(keys)))[0], index, [token])
            table[1, : len(rows), :, candidate] = added[..., 0]
        tables.append(table)
    return tables, bias


def _at(own: FrozenHeads, keys: list[int], a2: Tensor | None, places: Sequence[list[int]]) -> Tensor:
    """Return the weights of some keys in each branch, (branch, head, key).

    The control's are those that another prompt's A2 gives to the candidate of the same number, at its places in that prompt.
    """
    weights = own.weights[..., keys]
    if a2 is None:
        return weights
    alike = bool(places) and len(places[0]) == len(keys)
    control = -own.lam * a2[:, places[0]] if alike else torch.full_like(weights[0], torch.nan)
    return torch.cat([weights, control[None]])


def _through(projection: nn.Module, parts: Tensor) -> tuple[Tensor, Tensor]:
    """Project each head's output (row, head, width) by itself, (row, head, hidden); and the bias (hidden,)."""
    rows, heads, width = parts.shape
    apart = parts.new_zeros(rows, heads, heads, width)  # each head in its own place, the others 0
    apart[:, range(heads), range(heads)] = parts
    out, bias = project(projection, apart.reshape(rows * heads, heads * width))
    return out.unflatten(0, (rows, heads)).double(), bias.double()


@without_autocast()
def project(projection: ForeignModule, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return W·x for x (row, width) in the precision of x, and the bias: (row, hidden) and (hidden,), on the CPU.

    A projection that is more than its weights (adapted, quantised) is called itself, in its own precision.
    """
    with weights_loaded(projection), torch.no_grad():
        if type(projection) not in (nn.Linear, Conv1D):
            dtype = next(weight.dtype for weight in projection.parameters() if weight.is_floating_point())
            with_zero = torch.cat([torch.zeros_like(x[:1]), x])
            out = projection.forward(with_zero.to(dtype)).to(x.dtype).cpu()
            return out[1:] - out[0], out[0]
        weight = projection.weight if isinstance(projection, Conv1D) else projection.weight.T  # (width, hidden)
        out = x @ weight.to(x)
        bias = torch.zeros_like(out[0]) if projection.bias is None else projection.bias.to(x)
        return out.cpu(), bias.detach().cpu()
