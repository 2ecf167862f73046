"""Record the input and output of every module at some tokens as a model runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from diffscope.families.threads import Hook


class Run(NamedTuple):
    """Input and output of a module at the recorded tokens, (row, width) both: a row is a token of a prompt.

    They are copies in the model's own dtype, on the CPU, since a module may change its input in place.
    """

    input: Tensor
    output: Tensor


class Runs:
    """The runs of a model's modules.

    Attributes
    ----------
    of : dict of nn.Module to list of Run or None
        In the order in which modules first finished; None where input or output has no tensor with tokens.
    logits : Tensor (row, vocabulary)
        The model's output; empty before it ran.
    """

    def __init__(self) -> None:
        self.of: dict[nn.Module, list[Run | None]] = {}
        self.logits = torch.empty(0)

    def single(self, module: nn.Module) -> Run | None:
        """Return the run of a module that ran once; else None."""
        runs = self.of.get(module, [])
        return runs[0] if len(runs) == 1 else None


@contextmanager
def record_modules(model: nn.Module, prompts: int, tokens: Sequence[int] = (-1,)) -> Iterator[Runs]:
    """Record the runs of every module of a model while the context is open.

    Parameters
    ----------
    prompts : int
        Prompts of one length that run at once.
    tokens : sequence of int
        Positions in each prompt; by default the last one.
    """
    runs = Runs()
    under_way: dict[nn.Module, list[Tensor | None]] = {}

    def before(module: nn.Module, args: tuple, kwargs: dict) -> None:
        under_way.setdefault(module, []).append(_rows([*args, *kwargs.values()], prompts, tokens))

    def after(module: nn.Module, args: tuple, output: Any) -> None:
        entered, left = under_way[module].pop(), _rows(output, prompts, tokens)
        runs.of.setdefault(module, []).append(None if entered is None or left is None else Run(entered, left))
        if module is model and left is not None:
            runs.logits = left

    handles = []
    try:
        for module in model.modules():
            handles.append(module.register_forward_pre_hook(Hook(before), with_kwargs=True))
            handles.append(module.register_forward_hook(Hook(after)))
        yield runs
    finally:
        for handle in handles:
            handle.remove()


def _rows(value: Any, prompts: int, tokens: Sequence[int]) -> Tensor | None:
    """Return some tokens' rows, (row, width), of the logits, or else of the first tensor that has tokens.

    A tensor is (prompt, token, …), or (prompt·token, width) as some MLPs flatten it.
    """
    logits = getattr(value, "logits", None)
    values = [logits] if logits is not None else value if isinstance(value, (list, tuple)) else [value]
    tensor = next((each for each in values if isinstance(each, Tensor) and each.is_floating_point() and each.dim() > 1), None)
    if tensor is None or len(tensor) == 0 or len(tensor) % prompts:
        return None
    if tensor.dim() == 2:
        tensor = tensor.unflatten(0, (prompts, -1))
    if len(tensor) != prompts or not -tensor.shape[1] <= min(tokens) <= max(tokens) < tensor.shape[1]:
        return None
    return tensor[:, list(tokens)].flatten(0, 1).flatten(1).detach().cpu().clone()
