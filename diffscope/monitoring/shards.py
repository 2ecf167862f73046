"""Gather a model whose weights are divided among processes into one whole copy, parameter by parameter."""

from __future__ import annotations

import copy

import torch
import torch.distributed
from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from diffscope.errors import UnsupportedModel
from diffscope.families.foreign import COMPILED

WRAPPERS = (COMPILED, "_checkpoint_wrapped_module")  # what torch puts between the names of a model's parts


def is_sharded(model: nn.Module) -> bool:
    """Return whether each process holds a part of the weights, as FSDP2 (``fully_shard``) and tensor parallelism leave them."""
    return any(hasattr(parameter, "full_tensor") for parameter in model.parameters())


class Shards:
    """A sharded model, and a whole one of its kind in the first process, on the CPU, into which its weights are gathered.

    Only one parameter at a time is whole in the other processes. Nothing of the sharded model changes.

    Attributes
    ----------
    whole : PreTrainedModel
        Without weights, on the meta device, in all but the first process.

    Raises
    ------
    UnsupportedModel
        It is no transformers model, so that none of its kind can be made from a config.
    """

    whole: PreTrainedModel

    def __init__(self, model: nn.Module, first: bool) -> None:
        if not isinstance(model, PreTrainedModel):
            raise UnsupportedModel(
                f"{type(model).__name__} is sharded over processes and no transformers model, so no whole one can be made of its "
                "config; save it with its full weights and measure that"
            )
        self.model = model
        kind = next(each for each in type(model).__mro__ if not issubclass(each, FSDPModule))  # fully_shard gives a model its own
        with torch.random.fork_rng(devices=[]), torch.device("cpu" if first else "meta"):
            self.whole = kind._from_config(copy.deepcopy(model.config))  # type: ignore[attr-defined]

    @torch.no_grad()
    def gather(self) -> None:
        """Copy the weights into the whole model; every process has to call this at the same time."""
        targets = {**dict(self.whole.named_parameters()), **dict(self.whole.named_buffers())}
        for name, value in [*self.model.named_parameters(), *self.model.named_buffers()]:
            full = value.full_tensor() if hasattr(value, "full_tensor") else value
            target = targets[_unwrapped(name)]
            if target.device.type != "meta":
                target.data = full.detach().to("cpu", copy=True)


def _unwrapped(name: str) -> str:
    """Return the name of a weight without the wrappers of blocks that are compiled or recompute their activations."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def agreed(stride: int) -> int:
    """Return the stride of the first process, in all processes."""
    shared = [stride]
    torch.distributed.broadcast_object_list(shared, src=0)
    return shared[0]
