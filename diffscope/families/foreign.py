"""Read modules of other libraries' classes: their submodules, numbers, norms and settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from diffscope.attention.components import Norm
from diffscope.errors import UnsupportedModel

#: A module of another library's class: its attributes are not in the type of ``torch.nn.Module``.
ForeignModule = Any

COMPILED = "_orig_mod"  # the name of what ``torch.compile`` wraps in its wrapper

REGISTER = "make it known with diffscope.families.register (docs/your_model.md shows how)"  # ends a refusal


def attribute(module: ForeignModule, path: str) -> Any:
    """Return an attribute of a module by its path, such as ``"inner.norm"``; None if it is absent."""
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


def has_attribute(module: ForeignModule, path: str) -> bool:
    """Return whether a module has an attribute, which may be None, under a path such as ``"inner.norm"``."""
    owner, _, name = path.rpartition(".")
    return hasattr(attribute(module, owner) if owner else module, name)


def filled(layer: Any, x: Tensor) -> Tensor:
    """Return keys or values of a cache layer, (..., key, width), without the unused places of a static cache."""
    return x[..., : int(layer.get_seq_length()), :] if getattr(layer, "is_compileable", False) else x


def number(value: Any, module: ForeignModule, name: str) -> float:
    """Return a number of a module, which may be stored as a tensor of one element.

    Raises
    ------
    UnsupportedModel
        The tensor has several elements, such as one a head.
    """
    if not isinstance(value, Tensor):
        return float(value)
    if value.numel() != 1:
        raise UnsupportedModel(
            f"{type(module).__name__} has a {name} of shape {tuple(value.shape)}, where diffscope reads one number a layer; "
            f"{REGISTER}"
        )
    return float(value.detach())


def number_of(module: ForeignModule, name: str) -> float:
    """Return the :func:`number` that a module stores under a name."""
    return number(getattr(module, name), module, name)


def parts_of(model: nn.Module) -> Iterator[nn.Module]:
    """Iterate over the modules of a model but the wrappers of ``torch.compile``, which seem to have the wrapped attributes."""
    return (module for module in model.modules() if COMPILED not in module._modules)


def encoder_of(model: ForeignModule) -> nn.Module | None:
    """Return the encoder of a Hugging Face model that has a decoder beside it; None of other models."""
    paired = getattr(getattr(model, "config", None), "is_encoder_decoder", False) and hasattr(model, "get_encoder")
    return model.get_encoder() if paired else None


def norm_of(norm: nn.Module | None, width: int, dtype: torch.dtype) -> Norm | None:
    """Return the root-mean-square norm of the heads' outputs, or None if it is absent or the identity.

    Parameters
    ----------
    norm : nn.Module, optional
        The module; its weight, if any, is copied.
    width : int
        Elements of a head's output.
    dtype : torch.dtype
        Its machine epsilon is used if the module has no eps, as torch does.

    Raises
    ------
    UnsupportedModel
        The module is another kind of norm.
    """
    if norm is None or isinstance(norm, nn.Identity):
        return None
    weight = getattr(norm, "weight", None)
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", False))
    other = isinstance(norm, (nn.LayerNorm, nn.GroupNorm)) or eps is False or getattr(norm, "bias", None) is not None
    if other or (weight is not None and weight.shape != (width,)):
        raise UnsupportedModel(
            f"{type(norm).__name__}, the norm of the heads' outputs, is not a root-mean-square norm over {width} elements; "
            f"{REGISTER}"
        )
    eps = torch.finfo(dtype).eps if eps is None else eps  # as torch does
    return Norm("rms", eps, None if weight is None else weight.detach().clone())


def setting(module: ForeignModule, *names: str) -> Any:
    """Return the first attribute of these names that a module, or else its configuration, has.

    Raises
    ------
    UnsupportedModel
        Neither has one of them.
    """
    for holder in (module, getattr(module, "config", None)):
        for name in names:
            if getattr(holder, name, None) is not None:
                return getattr(holder, name)
    raise UnsupportedModel(f"neither {type(module).__name__} nor its config has {' or '.join(names)}, which its family needs")
