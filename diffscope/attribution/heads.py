"""What the branches of the heads of one layer add to logits, directly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffscope.attention.layer import LayerAttention
from diffscope.attribution.branches import BRANCHES, LastQuery
from diffscope.attribution.projection import written
from diffscope.attribution.stream import NOT_TOLD, Stream
from diffscope.errors import UnsupportedModel
from diffscope.proof.fidelity import TOLERANCE

LEAST = 1e-4  # of the size of what heads write, that their sum may be off what their layer wrote


@dataclass(frozen=True)
class Asked:
    """A prompt and its candidates.

    Attributes
    ----------
    ids : list of int
    tokens : list of int
        The candidates, the answer first.
    places : list of list of int, one a candidate
        Where each stands in the prompt; empty if it is not asked what is added through that.
    """

    ids: list[int]
    tokens: list[int]
    places: list[list[int]]


def of_layer(
    layer: LayerAttention, projection: nn.Module, stream: Stream, number: int, asked: Sequence[Asked], control: bool
) -> tuple[list[Tensor], Tensor]:
    """What each branch of each head of a layer adds to the logits of each prompt's candidates, and what its bias writes.

    Parameters
    ----------
    layer : LayerAttention
    projection : nn.Module
    stream : Stream
    number : int
        Which of the stream's blocks it is.
    asked : sequence of Asked
    control : bool
        Whether to fill in the third branch.

    Returns
    -------
    list of Tensor (way, branch, head, candidate), one a prompt
        Ways: through all keys, and through the places of the candidate alone. Branches: A1, A2, and A2 of the next prompt. NaN
        where it is not asked or there is none.
    Tensor (hidden,)

    Raises
    ------
    UnsupportedModel
        Heads and bias do not add up to what the layer wrote.
    """
    last = [LastQuery.of(layer.prompt(index)) for index in range(len(asked))]
    tolerance = max(LEAST, TOLERANCE[layer.q.dtype])
    tables = []
    for index, (own, question) in enumerate(zip(last, asked)):
        other = (index + 1) % len(last)
        a2 = last[other].a2 if control else None
        weights = own.weights if a2 is None else torch.cat([own.weights, -own.lam * a2[None]])
        wrote, bias = _through(projection, own.outputs(weights))
        heads = wrote[: len(BRANCHES)].nan_to_num()  # standard attention has one branch
        off = heads.sum((0, 1)) + bias - stream.attention[number][index]
        if not off.abs().max() <= tolerance * heads.abs().sum((0, 1)).max():
            raise UnsupportedModel(f"layer {layer.layer}: its heads do not add up to what it wrote; {NOT_TOLD}")
        table = torch.full((2, len(BRANCHES) + 1, len(own.values), len(question.tokens)), torch.nan, dtype=torch.float64)
        table[0, : len(weights)] = stream.direct(wrote, index, question.tokens)
        for candidate, (token, keys) in enumerate(zip(question.tokens, question.places)):
            if not keys:
                continue
            rows = _at(own, keys, a2, asked[other].places[candidate : candidate + 1])
            added = stream.direct(_through(projection, own.outputs(rows, torch.tensor(keys)))[0], index, [token])
            table[1, : len(rows), :, candidate] = added[..., 0]
        tables.append(table)
    return tables, bias


def _at(own: LastQuery, keys: list[int], a2: Tensor | None, places: Sequence[list[int]]) -> Tensor:
    """What the branches weigh some keys with, (branch, head, key).

    The control weighs them with what another prompt's A2 gives to the same candidate, at its place in that prompt.
    """
    weights = own.weights[..., keys]
    if a2 is None:
        return weights
    alike = bool(places) and len(places[0]) == len(keys)
    control = -own.lam * a2[:, places[0]] if alike else torch.full_like(weights[0], torch.nan)
    return torch.cat([weights, control[None]])


def _through(projection: nn.Module, parts: Tensor) -> tuple[Tensor, Tensor]:
    """What each head's output (row, head, width) writes by itself, (row, head, hidden), and the bias (hidden,)."""
    rows, heads, width = parts.shape
    apart = parts.new_zeros(rows, heads, heads, width)  # each head in its own place, the others 0
    apart[:, range(heads), range(heads)] = parts
    out, bias = written(projection, apart.reshape(rows * heads, heads * width))
    return out.unflatten(0, (rows, heads)).double(), bias.double()
