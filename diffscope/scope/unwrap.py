"""Unwrap models that torch.compile, PEFT, DataParallel or DDP wraps."""

from __future__ import annotations

import sys

from torch import nn
from transformers import PreTrainedModel

from diffscope.errors import UnsupportedModel
from diffscope.families.foreign import COMPILED, ForeignModule

NAMED_PARTS = 3  # of those that could be passed instead


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside what compiles it (``torch.compile``), adapts it (PEFT) or replicates it (DataParallel, DDP).

    Such a wrapper hands over what it is called with, so the model inside attends alike. One that does more is no such wrapper.

    Raises
    ------
    UnsupportedModel
        It adapts more than the model's layers, or its weights are shards of which each process holds a part.
    """
    inside = _inside(model)
    while inside is not model:
        model = inside
        inside = _inside(model)
    _refuse_shards(model)
    return model


def _inside(model: ForeignModule) -> nn.Module:
    """Return the model inside a wrapper; any other model as it is."""
    if COMPILED in model._modules:
        return model._modules[COMPILED]
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return model.module
    if isinstance(model, _classes("peft", "PeftModel", "PeftMixedModel")):
        return _adapted(model)
    return model


def _classes(module: str, *names: str) -> tuple[type, ...]:
    """Return classes of a module if anybody has imported it: otherwise they have no instances."""
    imported = sys.modules.get(module)
    return tuple(getattr(imported, name) for name in names if hasattr(imported, name))


def _adapted(model: ForeignModule) -> nn.Module:
    """Return the model whose layers PEFT has adapted in place.

    Raises
    ------
    UnsupportedModel
        The adapter does more: it puts tokens before the prompt, or needs to see it.
    """
    tuner = model.base_model
    (base,) = _classes("peft.tuners.tuners_utils", "BaseTuner")
    configs = model.peft_config.values()
    passes_on = isinstance(tuner, base) and type(tuner).forward is base.forward  # type: ignore[attr-defined]
    if not passes_on or any(getattr(config, "alora_invocation_tokens", None) for config in configs):
        kinds = ", ".join(sorted({str(getattr(config.peft_type, "value", config.peft_type)) for config in configs}))
        raise UnsupportedModel(
            f"the adapter of this model ({kinds}) changes more than layers' weights, so diffscope would not see what it does; "
            "pass model.get_base_model() to look at the model without it"
        )
    return tuner.model


def _refuse_shards(model: nn.Module) -> None:
    """Raise UnsupportedModel if each process holds a part of every weight."""
    sharding = _classes("torch.distributed.fsdp", "FullyShardedDataParallel")
    sharded = _classes("torch.distributed.tensor", "DTensor")
    by_parts = any(isinstance(part, sharding) for part in model.modules())
    if by_parts or any(isinstance(x, sharded) or hasattr(x, "ds_id") for x in model.parameters()):
        raise UnsupportedModel(
            f"{type(model).__name__} is sharded over processes (FSDP, tensor parallel, ZeRO-3); save it with its full weights "
            "and open that, or pass an unsharded copy"
        )


def part_to_pass(model: nn.Module) -> str:
    """Return advice on the part to pass of a module that is no Hugging Face model; empty if it holds none."""
    held: dict[str, nn.Module] = {}
    for name, part in model.named_modules():
        within = any(name.startswith(f"{above}.") for above in held)
        if isinstance(part, PreTrainedModel) and not within:
            held[name] = part
    parts = [f".{name} ({type(part).__name__})" for name, part in held.items()]
    more = ", ..." if len(parts) > NAMED_PARTS else ""
    return f"pass the Hugging Face model that it holds: its part {' or '.join(parts[:NAMED_PARTS])}{more}" if parts else ""
