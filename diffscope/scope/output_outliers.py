"""Collect the outliers of the output of the layer around each attention module while the model runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from torch import Tensor, nn

from diffscope.families.foreign import COMPILED, encoder_of
from diffscope.families.packs import apart
from diffscope.families.threads import Hook
from diffscope.stats.outliers import LABELS, outliers


@dataclass
class OutputOutliers:
    """Outliers of the outputs of layers, (prompt, outlier) for each attention module and each run of the layer around it.

    The layer is the module that holds the attention module: a decoder layer of most models; in T5 the part of a block that is
    its self-attention or its cross-attention, with the norm and the residual. A module that holds the attention of all layers
    counts as none, and has no outliers.

    Attributes
    ----------
    lengths : tuple of int
        Tokens of each prompt.
    packed : bool
        Whether the prompts are run in one row.
    key_lengths : tuple of int, optional
        Their tokens in an encoder beside a decoder; by default every position is one.
    tokens_first : bool
        Whether the layers give (token, batch, hidden).
    """

    lengths: tuple[int, ...]
    packed: bool
    key_lengths: tuple[int, ...] | None = None
    tokens_first: bool = False
    _of_module: list[list[np.ndarray]] = field(default_factory=list, init=False)

    @contextmanager
    def watching(self, model: nn.Module, modules: Sequence[nn.Module]) -> Iterator[None]:
        """Collect the outliers of the layers around some attention modules while the context is open."""
        names = {module: name for name, module in model.named_modules()}
        self._of_module = [[] for _ in modules]
        holders = [_layer_around(model, names[module]) for module in modules]
        whole = {model} | {holder for holder in holders if len(modules) > 1 and {*modules} <= {*holder.modules()}}
        encoder = encoder_of(model)
        of_encoder = set() if encoder is None else {*encoder.modules()}
        handles = [
            holder.register_forward_hook(Hook(partial(self._collect, values, holder in of_encoder)))
            for holder, values in zip(holders, self._of_module)
            if holder not in whole
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _collect(self, values: list[np.ndarray], encodes: bool, module: nn.Module, args: tuple, output: object) -> None:
        """Add the outliers of a layer's output to the values of its attention module."""
        hidden = output[0] if isinstance(output, tuple) else output
        if isinstance(hidden, Tensor) and hidden.dim() == 3:
            values.append(self._of_prompts(hidden.transpose(0, 1) if self.tokens_first else hidden, encodes))
        else:
            values.append(self._nothing)

    def _of_prompts(self, hidden: Tensor, encodes: bool) -> np.ndarray:
        """Return the outliers of an output (batch, token, hidden), (prompt, outlier); NaN if it is not of the prompts' tokens."""
        lengths = (self.key_lengths or (hidden.shape[1],) * len(hidden)) if encodes else self.lengths
        if self.packed and hidden.shape[1] == sum(self.lengths):
            hidden = apart(hidden, self.lengths, 1)
        if len(hidden) != len(lengths) or hidden.shape[1] < max(lengths):
            return self._nothing
        return np.stack([outliers(hidden[i, :n].detach().float()).numpy() for i, n in enumerate(lengths)])

    @property
    def _nothing(self) -> np.ndarray:
        """The outliers of an output of which none are known, (prompt, outlier)."""
        return np.full((len(self.lengths), len(LABELS)), np.nan)

    def at(self, runs: Sequence[tuple[int, int]]) -> np.ndarray | None:
        """Return the outliers at runs of attention modules, (run, prompt, outlier), with NaN where none were collected.

        Parameters
        ----------
        runs : sequence of (int, int)
            Of each the index of the module, and how often it had been run before. A layer that runs its module several times has
            one output for all of them.

        Returns
        -------
        ndarray or None
            None if no module was watched.
        """
        if not self._of_module:
            return None
        values = [(self._of_module[index] or [self._nothing], turn) for index, turn in runs]
        return np.stack([of_module[min(turn, len(of_module) - 1)] for of_module, turn in values])


def _layer_around(model: nn.Module, name: str) -> nn.Module:
    """Return the layer around a module: the module that holds it, or itself if it is one of a sequence of layers."""
    above, _, last = name.removesuffix(f".{COMPILED}").rpartition(".")  # which torch.compile puts between
    holder = model.get_submodule(above)
    if isinstance(holder, nn.Sequential) and last.isdigit():
        return holder.get_submodule(last)
    while above and isinstance(holder, (nn.Sequential, nn.ModuleList)):  # branches of a layer
        above = above.rpartition(".")[0]
        holder = model.get_submodule(above)
    return holder
