"""Compare the gradients of the two branches, as the training's own backward pass leaves them for the optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
import xarray as xr
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from diffscope.attention.layer import LayerAttention
from diffscope.errors import DiffscopeError, first_line
from diffscope.monitoring.kept_maps import captured
from diffscope.monitoring.undisturbed import undisturbed
from diffscope.scope.runners import Inputs
from diffscope.scope.scope import Scope

RATIO = "gradient_ratio"
TOKENS = 64  # that are enough to tell the vectors of two maps apart
NEAR = 0.02  # by how much the lengths of projected vectors may differ from those attended with, which are rounded


class Vectors(NamedTuple):
    """The weights that make the queries, or keys, of a layer, in blocks of rows as wide as a map."""

    weights: list[nn.Parameter]
    width: int
    blocks: Tensor  # of all weights one after the other, that of each branch of each head, (branch, head)

    def squares(self) -> Tensor:
        """Return the squared norm of the gradient of each branch of each head, float32 (branch, head)."""
        norms = [
            torch.linalg.vector_norm(weight.grad.detach().unflatten(0, (-1, self.width)), dim=(1, 2), dtype=torch.float32)
            for weight in self.weights
            if weight.grad is not None
        ]
        return torch.cat(norms)[self.blocks].square()  # of (block,)


class BranchGradients:
    """The norms of the gradients of each head's first and second query and key projection, at the last step of an optimizer.

    They are read when an optimizer of torch.optim is about to step: accumulated over batches and averaged over processes. If it
    is given a closure, as Lightning does, the backward pass is in that, and they are read after the step. Which rows of which
    weight make the maps of a head is found by running the model once, on one prompt: the lengths of projected vectors have to be
    those of the queries and keys that it attends with.

    Attributes
    ----------
    reasons : dict of int to str
        By layer, why its gradients are not known.

    Raises
    ------
    DiffscopeError
        No layer has a second branch whose rows are found.
    """

    def __init__(self, scope: Scope, inputs: Inputs) -> None:
        modules = scope.family.layers(scope.model)
        outputs: dict[nn.Module, Tensor] = {}
        with ExitStack() as stack, undisturbed(scope.model):
            for part in {part for module in modules for part in module.modules() if isinstance(part, nn.Linear)}:
                stack.callback(part.register_forward_hook(partial(_keep, outputs)).remove)
            layers = captured(scope, inputs, scope.layer_numbers).layers
        of_layer = {number: module for module, number in modules.items()}
        self._parts: dict[int, list[Vectors]] = {}
        self.reasons: dict[int, str] = {}
        for layer in layers:
            module = of_layer.get(layer.layer)  # None of a later run of a module
            found = parts_of(layer, {part: outputs[part] for part in module.modules() if part in outputs} if module else {})
            if isinstance(found, str):
                self.reasons[layer.layer] = found
            else:
                self._parts[layer.layer] = found
        if not self._parts:
            why = "; ".join(sorted(set(self.reasons.values())))
            raise DiffscopeError(f"gradients=True compares the gradients of two branches, and no layer has them apart: {why}")
        self._squares: dict[int, Tensor] = {}
        for register, after in ((register_optimizer_step_pre_hook, False), (register_optimizer_step_post_hook, True)):
            weakref.finalize(self, register(partial(_at_step, weakref.ref(self), after)).remove)

    def read(self, optimizer: torch.optim.Optimizer) -> None:
        """Read the gradients with which an optimizer steps, without waiting for the device."""
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for number, parts in self._parts.items():
            if all(weight.grad is not None and id(weight) in held for part in parts for weight in part.weights):
                try:
                    self._squares[number] = sum(part.squares() for part in parts)  # type: ignore[assignment]
                except Exception as error:  # which would end the training
                    self.reasons[number] = first_line(error)

    @property
    def stepped(self) -> set[int]:
        """The layers with whose gradients an optimizer has stepped since they were taken last."""
        return set(self._squares)

    def take(self, layers: Sequence[int], heads: int) -> xr.DataArray:
        """Return the norm of the first branch's gradient over that of the second, (layer, head), and forget it.

        It is NaN before the first step of an optimizer, if a weight is frozen, and if the second branch has no gradient.
        """
        values = torch.full((len(layers), heads), torch.nan)
        for number, squares in self._squares.items():
            first, second = squares.cpu()
            ratio = torch.where(second > 0, (first / second).sqrt(), torch.nan)
            values[list(layers).index(number), : len(ratio)] = torch.where(ratio.isfinite(), ratio, torch.nan)
        self._squares = {}
        about = {"long_name": "gradient of A1 over that of A2", "units": "1", "averaged": "median"}
        return xr.DataArray(values.numpy(), {"layer": list(layers)}, ("layer", "head"), name=RATIO, attrs=about)


def parts_of(layer: LayerAttention, outputs: Mapping[nn.Module, Tensor]) -> list[Vectors] | str:
    """Return the weights of a layer's queries and, if each branch has its own, keys; or why they are not known."""
    if not layer.differential:
        return "its attention has one branch"
    heads = torch.stack([layer.pairing.of_branch(branch) for branch in (1, 2)]).cpu()  # (branch, head)
    of_keys = layer.pairing.key_of_map.cpu()[heads]
    queries, keys = _vectors(layer.q, outputs, heads), _vectors(layer.k, outputs, of_keys)
    if queries is None or keys is None:
        return f"the rows of a weight that make its {'queries' if queries is None else 'keys'} are not found"
    return [queries, keys] if bool((of_keys[0] != of_keys[1]).all()) else [queries]


def _vectors(vectors: Tensor, outputs: Mapping[nn.Module, Tensor], heads: Tensor) -> Vectors | None:
    """Return the weights that make vectors (batch, map, token, width); None if not every map is of exactly one block of rows.

    A rotation leaves the lengths of vectors, and a scale their proportions, by which blocks are told from each other.
    """
    width = vectors.shape[-1]
    lengths = _proportions(vectors[0].movedim(1, 0))
    alike, weights = [], []
    for module, output in outputs.items():
        if output.shape[-1] % width == 0 and output.numel() // output.shape[-1] == vectors.shape[2]:
            blocks = _proportions(output.detach().reshape(vectors.shape[2], -1, width)).to(lengths.device)
            same = ((blocks - lengths[:, None]).abs() < NEAR).all(-1)  # (map, block)
            if bool(same.any()):
                alike.append(same)
                weights.append(module.weight)
    if not alike or bool((lengths.std(-1) < 2 * NEAR).any()):  # equal lengths tell nothing apart
        return None
    of_maps = torch.cat(alike, 1)  # (map, block)
    if bool((of_maps.sum(1) != 1).any()):
        return None
    made = of_maps.int().argmax(1)  # (map,)
    return Vectors(weights, width, made[heads.to(made.device)].to(weights[0].device))  # type: ignore[arg-type]


def _proportions(vectors: Tensor) -> Tensor:
    """Return the lengths of vectors (token, map, width) over their means, of the first tokens, float32 (map, token)."""
    lengths = vectors[:TOKENS].float().norm(dim=-1).T
    return lengths / lengths.mean(-1, keepdim=True)


def _keep(outputs: dict[nn.Module, Tensor], module: nn.Module, _: Any, output: Tensor | tuple[Tensor, ...]) -> None:
    outputs[module] = output[0] if isinstance(output, tuple) else output  # Megatron's linear layers give their bias, too


def _at_step(
    gradients: weakref.ref[BranchGradients], after: bool, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict
) -> None:
    """Read the gradients before a step, or after one in whose closure they are made."""
    _, *given = args  # the optimizer comes first
    in_closure = any(map(callable, (*given, *kwargs.values())))
    if (known := gradients()) is not None and after == in_closure:
        known.read(optimizer)
