"""Prompts of one length, run at once: what each part of the model adds to the logits of each prompt's candidates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import xarray as xr
from torch import Tensor, nn

from diffscope.attention.layer import LayerAttention
from diffscope.attribution.branches import BRANCHES, branch_outputs, second_row
from diffscope.attribution.projection import written
from diffscope.attribution.runs import watched
from diffscope.attribution.stream import WAY_OUT, read_stream
from diffscope.errors import UnsupportedModel
from diffscope.proof.fidelity import TOLERANCE
from diffscope.scope import Scope

LEAST = 1e-4  # of the size of what heads write, that their sum may be off what their layer wrote


def accounts(scope: Scope, prompts: Sequence[list[int]], candidates: Sequence[Sequence[int]], control: bool) -> list[xr.Dataset]:
    """What the parts of a model add to the logits of the candidates of each of some prompts of one length.

    Parameters
    ----------
    scope : Scope
    prompts : sequence of token ids
    candidates : sequence of token ids, for each prompt
    control : bool
        Whether there is a third branch, with A2 of the next prompt.

    Returns
    -------
    list of Dataset
        ``contribution`` (layer, head, branch, candidate), with `control` ``other_a2`` (layer, head, candidate), ``mlp`` and
        ``bias`` (layer, candidate), ``embedding``, ``constant`` and ``logit`` (candidate,).
    """
    with scope.lock, watched(scope.model, len(prompts)) as runs:
        layers = {layer.layer: layer for layer in scope.capture(prompts).layers}
    every = zip(scope.family.numbers(scope.model), scope.family.modules(scope.model))
    modules = {number: module for number, module in every if module in runs.of}
    if modules.keys() != layers.keys():
        raise UnsupportedModel(f"{scope.name} runs an attention module several times; {WAY_OUT}")
    stream = read_stream(scope, list(modules.values()), runs, candidates)
    attended = [
        _written_by(layers[number], scope.family.output_projection(module), wrote, control)
        for (number, module), wrote in zip(modules.items(), stream.attention)
    ]
    biases = torch.stack([bias for _, bias in attended])
    tables = []
    for prompt, tokens in enumerate(candidates):
        heads = _side_by_side([heads[prompt] for heads, _ in attended])
        parts = {"mlp": torch.stack(stream.mlp)[:, prompt], "bias": biases, "embedding": stream.embedding[prompt]}
        direct = {name: stream.direct(part, prompt, tokens) for name, part in {"heads": heads, **parts}.items()}
        branches = direct.pop("heads")  # (layer, head, branch, candidate)
        dims = ("layer", "head", "branch", "candidate")
        variables: dict[str, tuple] = {"contribution": (dims, branches[:, :, : len(BRANCHES)].numpy())}
        if control:
            variables["other_a2"] = ("layer", "head", "candidate"), branches[:, :, -1].numpy()
        direct |= {"constant": stream.constant(tokens), "logit": stream.logits[prompt, list(tokens)]}
        variables |= {name: (("layer", "candidate")[-part.dim() :], part.numpy()) for name, part in direct.items()}
        tables.append(xr.Dataset(variables, {"layer": list(modules), "branch": list(BRANCHES), "candidate": range(len(tokens))}))
    return tables


def _written_by(layer: LayerAttention, projection: nn.Module, wrote: Tensor, control: bool) -> tuple[list[Tensor], Tensor]:
    """What each branch of each head of a layer writes, for each prompt (branch, head, hidden), and the projection's bias.

    Raises
    ------
    UnsupportedModel
        With the bias they are not what the layer wrote, (prompt, hidden).
    """
    prompts = [layer.prompt(index) for index in range(len(layer.lengths))]
    others = [second_row(prompt) for prompt in prompts[1:] + prompts[:1]] if control else [None] * len(prompts)
    tolerance = max(LEAST, TOLERANCE[layer.q.dtype])
    of_prompts = []
    for prompt, other, total in zip(prompts, others, wrote):
        heads, bias = _through(projection, branch_outputs(prompt, other))
        own = heads[: len(BRANCHES)].nan_to_num()  # standard attention has one branch
        off = (own.sum((0, 1)) + bias - total).abs().max()
        if not off <= tolerance * own.abs().sum((0, 1)).max():
            raise UnsupportedModel(f"layer {layer.layer}: its heads do not add up to what it wrote; {WAY_OUT}")
        of_prompts.append(heads)
    return of_prompts, bias


def _through(projection: nn.Module, parts: Tensor) -> tuple[Tensor, Tensor]:
    """What each of some heads' outputs (branch, head, width) writes by itself, (branch, head, hidden), and the bias."""
    branches, heads, width = parts.shape
    apart = parts.new_zeros(branches, heads, heads, width)  # each head in its own place, the others 0
    apart[:, range(heads), range(heads)] = parts
    out, bias = written(projection, apart.reshape(branches * heads, heads * width))
    return out.unflatten(0, (branches, heads)).double(), bias.double()


def _side_by_side(layers: Sequence[Tensor]) -> Tensor:
    """Layers (branch, head, hidden) as one (layer, head, branch, hidden), NaN where a layer has fewer heads or branches."""
    branches, heads, hidden = (max(sizes) for sizes in zip(*(layer.shape for layer in layers)))
    table = torch.full((len(layers), heads, branches, hidden), torch.nan, dtype=torch.float64)
    for row, layer in zip(table, layers):
        row[: layer.shape[1], : layer.shape[0]] = layer.transpose(0, 1)
    return table
