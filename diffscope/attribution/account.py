"""Prompts of one length, run at once: what each part of the model adds to the logits of each prompt's candidates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import xarray as xr
from torch import Tensor

from diffscope.attribution.branches import BRANCHES
from diffscope.attribution.heads import Asked, of_layer
from diffscope.attribution.runs import watched
from diffscope.attribution.stream import NOT_TOLD, read_stream
from diffscope.errors import UnsupportedModel
from diffscope.scope import Scope

OF_HEADS = ("contribution", "through")  # through all keys, and through the candidate's own
OF_CONTROL = ("other_a2", "other_a2_through")


def accounts(scope: Scope, asked: Sequence[Asked], control: bool) -> list[xr.Dataset]:
    """What the parts of a model add to the logits of candidates, one account for each of some prompts of one length.

    Parameters
    ----------
    scope : Scope
    asked : sequence of Asked
    control : bool
        Whether to attribute A2 of the next prompt too.

    Returns
    -------
    list of Dataset
        ``contribution`` and ``through`` (layer, head, branch, candidate), ``other_a2`` and ``other_a2_through`` (layer, head,
        candidate), ``mlp`` and ``bias`` (layer, candidate), ``embedding``, ``constant`` and ``logit`` (candidate,).
    """
    with scope.lock, watched(scope.model, len(asked)) as runs:
        layers = {layer.layer: layer for layer in scope.capture([question.ids for question in asked]).layers}
    every = zip(scope.family.numbers(scope.model), scope.family.modules(scope.model))
    modules = {number: module for number, module in every if module in runs.of}
    if modules.keys() != layers.keys():
        raise UnsupportedModel(f"{scope.name} runs an attention module several times; {NOT_TOLD}")
    stream = read_stream(scope, list(modules.values()), runs, [question.tokens for question in asked])
    attended = [
        of_layer(layers[number], scope.family.output_projection(module), stream, block, asked, control)
        for block, (number, module) in enumerate(modules.items())
    ]
    biases = torch.stack([bias for _, bias in attended])
    tables = []
    for prompt, question in enumerate(asked):
        written = {"mlp": torch.stack(stream.mlp)[:, prompt], "bias": biases, "embedding": stream.embedding[prompt]}
        added = {name: stream.direct(part, prompt, question.tokens) for name, part in written.items()}
        added |= {"constant": stream.constant(question.tokens), "logit": stream.logits[prompt, question.tokens]}
        variables: dict[str, tuple] = {name: (("layer", "candidate")[-part.dim() :], part) for name, part in added.items()}
        by_way = _side_by_side([tables[prompt] for tables, _ in attended]).unbind(2)
        for table, name, of_control in zip(by_way, OF_HEADS, OF_CONTROL):  # (layer, head, branch, candidate)
            variables[name] = ("layer", "head", "branch", "candidate"), table[:, :, : len(BRANCHES)]
            variables[of_control] = ("layer", "head", "candidate"), table[:, :, -1]
        coordinates = {"layer": list(modules), "branch": list(BRANCHES), "candidate": range(len(question.tokens))}
        tables.append(xr.Dataset({name: (dims, part.numpy()) for name, (dims, part) in variables.items()}, coordinates))
    return tables


def _side_by_side(layers: Sequence[Tensor]) -> Tensor:
    """Layers (way, branch, head, candidate) as one (layer, head, way, branch, candidate), NaN where a layer has fewer heads."""
    ways, branches, heads, candidates = (max(sizes) for sizes in zip(*(layer.shape for layer in layers)))
    table = torch.full((len(layers), heads, ways, branches, candidates), torch.nan, dtype=torch.float64)
    for row, layer in zip(table, layers):
        row[: layer.shape[2]] = layer.movedim(2, 0)
    return table
