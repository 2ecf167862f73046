"""The norms inside an attention module, of its queries and keys, held at the factors that they have on the prompt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from diffscope.attribution.runs import Run
from diffscope.attribution.stream import Frozen, as_frozen
from diffscope.errors import UnsupportedModel


class InnerNorms:
    """Norms of queries and keys as linear maps, by name of the submodule and number of its call.

    The factors are those of one run of the module on all that it reads; later runs on parts of that are given the same factors.
    """

    def __init__(self) -> None:
        self._runs: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self._frozen: dict[str, list[Frozen | None]] = {}

    def record(self, module: nn.Module) -> None:
        """Watch the norms of a copy of the module, which is then run on all that it reads."""
        for name, part in module.named_modules():
            if name and not any(weight.dim() > 1 for weight in part.parameters()):
                part.register_forward_hook(self._recorder(name))

    def freeze(self, module: nn.Module) -> None:
        """Hold the norms of a copy of the module at their factors; it is then run on parts of what it reads."""
        for name, part in module.named_modules():
            if name not in self._runs:
                continue
            if name not in self._frozen:
                self._frozen[name] = [_fitted(part, *run) for run in self._runs[name]]
            part.register_forward_hook(self._replacer(name))

    def _recorder(self, name: str) -> Any:
        def record(module: nn.Module, args: tuple, output: Any) -> None:
            floats = args and all(isinstance(x, Tensor) and x.is_floating_point() for x in (args[0], output))
            if floats and args[0].shape == output.shape:
                self._runs.setdefault(name, []).append((args[0].detach().clone(), output.detach().clone()))

        return record

    def _replacer(self, name: str) -> Any:
        calls = iter(range(len(self._runs[name])))

        def held(module: nn.Module, args: tuple, output: Any) -> Any:
            call = next(calls, None)
            if call is None:
                raise UnsupportedModel(f"its module {name!r} runs more often on parts of what it reads")
            frozen, (entered, _) = self._frozen[name][call], self._runs[name][call]
            if frozen is None:
                return output
            x = args[0]
            if x.shape[1:] != entered.shape[1:]:
                raise UnsupportedModel(f"its module {name!r} does not keep prompts apart")
            factor = frozen.factor.reshape(entered.shape[:-1]).unsqueeze(-1).to(x)
            return frozen.centre(x) * frozen.weight.to(x) * factor + frozen.bias.to(x)

        return held


def _fitted(module: nn.Module, entered: Tensor, left: Tensor) -> Frozen | None:
    """Return a norm as a linear map; None of a module that is none, or that changes nothing."""
    if torch.equal(entered, left):
        return None
    width = entered.shape[-1]
    if any(weight.shape != (width,) for weight in module.parameters()):
        return None
    rows = entered.flatten(0, -2).cpu(), left.flatten(0, -2).cpu()
    seen = rows[0].abs().sum(-1) > 0  # tokens that are not asked about are 0
    frozen = as_frozen(module, Run(rows[0][seen], rows[1][seen]))
    if frozen is None:
        return None
    factor = torch.zeros(len(seen), dtype=torch.float64)
    factor[seen] = frozen.factor
    return replace(frozen, factor=factor)
