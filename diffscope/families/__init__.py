"""One file per implementation of attention: where it keeps q, k, v, λ and norm, and how it pairs its maps."""

from __future__ import annotations

from torch import nn

from diffscope.errors import UnsupportedModel
from diffscope.families.base import Call, Family, Passage
from diffscope.families.differential import DiffLlama, Own
from diffscope.families.standard import Standard

# The most particular first: the first that recognises a model's attention modules opens it.
FAMILIES: tuple[Family, ...] = (Own(), DiffLlama(), Standard())


def find(model: nn.Module) -> Family:
    """The family of a model.

    Raises
    ------
    UnsupportedModel
        No family recognises an attention module in it.
    """
    for family in FAMILIES:
        if family.modules(model):
            return family
    raise UnsupportedModel(
        f"{type(model).__name__} has no attention that diffscope reads; families: {', '.join(f.name for f in FAMILIES)}"
    )


__all__ = ["FAMILIES", "Call", "Family", "Passage", "find"]
