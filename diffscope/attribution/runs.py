"""What every module of a model is given and gives at the last token, noted as the model runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from diffscope.families.hooks import Hook


class Run(NamedTuple):
    """One run of a module at the last token of each prompt, (prompt, width) both.

    They are copies in the model's own dtype, on the CPU: a module may change in place what it was given.
    """

    given: Tensor
    gave: Tensor


class Runs:
    """The runs of a model's modules.

    Attributes
    ----------
    of : dict of nn.Module to list of Run or None
        In the order in which modules were first done; None where one was given, or gave, no tensor with tokens.
    logits : Tensor (prompt, vocabulary)
        What the model gave; empty before.
    """

    def __init__(self) -> None:
        self.of: dict[nn.Module, list[Run | None]] = {}
        self.logits = torch.empty(0)

    def single(self, module: nn.Module) -> Run | None:
        """The run of a module that was run once; else None."""
        runs = self.of.get(module, [])
        return runs[0] if len(runs) == 1 else None


@contextmanager
def watched(model: nn.Module, prompts: int) -> Iterator[Runs]:
    """While the context is open, note the runs of every module of a model; `prompts` of one length run at once."""
    runs = Runs()
    under_way: dict[nn.Module, list[Tensor | None]] = {}

    def before(module: nn.Module, args: tuple, kwargs: dict) -> None:
        under_way.setdefault(module, []).append(_at_last_token([*args, *kwargs.values()], prompts))

    def after(module: nn.Module, args: tuple, output: Any) -> None:
        given = under_way[module].pop()
        gave = _at_last_token(output, prompts)
        runs.of.setdefault(module, []).append(None if given is None or gave is None else Run(given, gave))
        if module is model and gave is not None:
            runs.logits = gave

    handles = []
    try:
        for module in model.modules():
            handles.append(module.register_forward_pre_hook(Hook(before), with_kwargs=True))
            handles.append(module.register_forward_hook(Hook(after)))
        yield runs
    finally:
        for handle in handles:
            handle.remove()


def _at_last_token(value: Any, prompts: int) -> Tensor | None:
    """The last token's row of the first tensor in there that has tokens, (prompt, width); the logits where there are some.

    A tensor is (prompt, token, …), or (prompt·token, width) as some MLPs flatten it.
    """
    logits = getattr(value, "logits", None)
    values = [logits] if logits is not None else value if isinstance(value, (list, tuple)) else [value]
    tensor = next((each for each in values if isinstance(each, Tensor) and each.is_floating_point() and each.dim() > 1), None)
    if tensor is None or len(tensor) == 0 or len(tensor) % prompts:
        return None
    if tensor.dim() == 2:
        tensor = tensor.unflatten(0, (prompts, -1))
    return tensor[:, -1].flatten(1).detach().cpu().clone() if len(tensor) == prompts and tensor.shape[1] else None
