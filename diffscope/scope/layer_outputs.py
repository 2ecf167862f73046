"""What the decoder layers around attention give: the outliers of their outputs, noted as the model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from torch import Tensor, nn

from diffscope.families.hooks import of_this_thread
from diffscope.stats.formulas.outliers import LABELS, outliers

Tails = list[list[np.ndarray]]  # of each attention module, of each run of the layer around it: (prompt, outlier)


def _layer_around(model: nn.Module, name: str) -> nn.Module:
    """The decoder layer of a module: the module that holds it, or itself where it is one of a sequence of layers."""
    above, _, last = name.removesuffix("._orig_mod").rpartition(".")  # which torch.compile puts between
    holder = model.get_submodule(above)
    if isinstance(holder, nn.Sequential) and last.isdigit():
        return holder.get_submodule(last)
    while above and isinstance(holder, (nn.Sequential, nn.ModuleList)):  # branches of a layer
        above = above.rpartition(".")[0]
        holder = model.get_submodule(above)
    return holder


@contextmanager
def layer_outputs(model: nn.Module, modules: list[nn.Module], lengths: tuple[int, ...]) -> Iterator[Tails]:
    """Outliers of every decoder layer's output, filled in as the model runs: for each attention module, one a run of its layer.

    The decoder layer is the module that holds the attention module. There are none where it holds the attention of all layers;
    see :func:`outliers_at`.
    """
    names = {module: name for name, module in model.named_modules()}
    tails: Tails = [[] for _ in modules]

    def tail(position: int) -> Callable:
        def hook(module: nn.Module, args: tuple, output: object) -> None:
            hidden = output[0] if isinstance(output, tuple) else output  # (batch, token, hidden)
            if isinstance(hidden, Tensor) and hidden.dim() == 3 and hidden.shape[1] >= max(lengths):
                of_prompts = (outliers(hidden[i, :n].detach().float()).numpy() for i, n in enumerate(lengths))
                tails[position].append(np.stack(list(of_prompts)))
            else:
                tails[position].append(np.full((len(lengths), len(LABELS)), np.nan))

        return hook

    holders = [_layer_around(model, names[module]) for module in modules]
    whole = {model} | {holder for holder in holders if len(modules) > 1 and {*modules} <= {*holder.modules()}}
    handles = [holder.register_forward_hook(of_this_thread(tail(i))) for i, holder in enumerate(holders) if holder not in whole]
    try:
        yield tails
    finally:
        for handle in handles:
            handle.remove()


def outliers_at(tails: Tails, index: int, turn: int, prompts: int) -> np.ndarray:
    """What :func:`layer_outputs` noted of one run of one attention module, (prompt, outlier); NaN where it noted nothing.

    A layer that runs its module several times has one output for all of them.
    """
    noted = tails[index]
    return noted[min(turn, len(noted) - 1)] if noted else np.full((prompts, len(LABELS)), np.nan)
