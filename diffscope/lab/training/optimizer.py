"""Muon for the matrices inside the layers, AdamW for everything else.

Muon forms the lookup circuit, which makes the maps worth looking at, in fewer steps than AdamW alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Optimizer:
    """Several optimizers that step as one and whose state is a flat dictionary of tensors.

    Parameters
    ----------
    model : nn.Module
        With its decoder layers under ``model.model.layers``.
    weight_decay : float
        Of matrices and embeddings. Vectors (norms, biases, those that make λ) do not decay: decay would draw a learned λ to
        its initial value, in those arms alone that have one.
    """

    def __init__(self, model: nn.Module, weight_decay: float):
        named = dict(model.named_parameters())
        matrices = [name for name, p in named.items() if p.dim() == 2 and ".layers." in name]
        embeddings = [name for name, p in named.items() if p.dim() == 2 and name not in matrices]
        vectors = [name for name, p in named.items() if p.dim() != 2]

        def adam(names: list[str], decay: float):
            return torch.optim.AdamW([named[name] for name in names], betas=(0.9, 0.98), weight_decay=decay)

        self.names = (matrices, embeddings, vectors)
        self.parts = (
            # RMS-matched, so that one learning rate suits both.
            torch.optim.Muon([named[name] for name in matrices], weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
            adam(embeddings, weight_decay),
            adam(vectors, 0.0),
        )

    def step(self, rate: float) -> None:
        """Take one step at a learning rate, and clear the gradients."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Return the state of all optimizers, by name of the quantity and of the parameter."""
        tensors = {}
        for names, part in zip(self.names, self.parts):
            for name, parameter in zip(names, part.param_groups[0]["params"]):
                for key, value in part.state[parameter].items():
                    tensors[f"{key}:{name}"] = value
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Resume from a state that :meth:`state` returned."""
        for names, part in zip(self.names, self.parts):
            for name, parameter in zip(names, part.param_groups[0]["params"]):
                ending = f":{name}"
                state = {key.removesuffix(ending): value for key, value in tensors.items() if key.endswith(ending)}
                part.state[parameter] = state
