"""One file per implementation of attention: where it keeps q, k, v, λ and norm, and how it pairs its maps."""

from __future__ import annotations

from importlib import import_module

from torch import nn

from diffscope.attention.components import Mask, Norm, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.cards import FAMILIES as CARDS
from diffscope.errors import DiffscopeError, UnsupportedModel
from diffscope.families.attention_pass import AttentionPass, Call, compact, mask_of
from diffscope.families.base import Convention, Family
from diffscope.families.dex import Dex
from diffscope.families.foreign import REGISTER
from diffscope.families.projected import Projected
from diffscope.families.reading import heads_of
from diffscope.families.standard import Standard, interface_attention
from diffscope.fields import shown


def _made(where: str) -> Family:
    """Return an instance of a family, from the file and class that its card names."""
    file, _, name = where.partition(".")
    return getattr(import_module(f"diffscope.families.{file}"), name)()


FAMILIES: list[Family] = [_made(card.where) for card in CARDS.values()]


def register(family: Family) -> Family:
    """Add a family before all others, in place of one of the same name.

    Parameters
    ----------
    family : Family
        An instance of a subclass of :class:`Family`.

    Returns
    -------
    Family
        The same instance, which ``FAMILIES.remove`` takes to undo this.

    Raises
    ------
    DiffscopeError
        The argument is not an instance of a family, or has no name.
    """
    if not isinstance(family, Family) or not getattr(family, "name", ""):
        raise DiffscopeError("register takes an instance of a subclass of diffscope.families.Family that has a name")
    FAMILIES[:] = [family, *(known for known in FAMILIES if known.name != family.name)]
    return family


def chosen(family: Family | str, model: nn.Module) -> Family:
    """Return the family that is asked for, of which a name is enough, for a model.

    Raises
    ------
    DiffscopeError
        It is no instance of a family and no name of ``FAMILIES``.
    UnsupportedModel
        It recognises no attention module of the model.
    """
    known = {each.name: each for each in FAMILIES}
    one = known.get(family) if isinstance(family, str) else family
    if not isinstance(one, Family):
        raise DiffscopeError(f"{shown(family)} is no family; give an instance of one, or a name: {', '.join(known)}")
    if not one.modules(model):
        raise UnsupportedModel(f"family {one.name!r} recognises no attention in this {type(model).__name__}")
    return one


def find(model: nn.Module) -> Family:
    """Return the family of a model.

    The first family of ``FAMILIES`` that recognises an attention module of the model is taken.

    Raises
    ------
    UnsupportedModel
        No family recognises an attention module in it, or several do and none reads all of them.
    """
    for family in FAMILIES:
        if modules := family.modules(model):
            _refuse_others(model, family, modules)
            return family
    raise UnsupportedModel(
        f"{type(model).__name__} has no attention that diffscope reads (families: {', '.join(f.name for f in FAMILIES)}); "
        f"{REGISTER}"
    )


def _refuse_others(model: nn.Module, family: Family, modules: list[nn.Module]) -> None:
    """Raise UnsupportedModel if another family recognises further attention modules, whose layers would be missing."""
    known = {part for module in modules for part in module.modules()}
    for other in FAMILIES:
        if other is family or isinstance(other, Dex):  # DEX is standard attention with an adapter
            continue
        claimed = interface_attention(model) if isinstance(other, Standard) else other.modules(model)
        beside = next((module for module in claimed if not known.intersection(module.modules())), None)
        if beside is not None:
            raise UnsupportedModel(
                f"{type(model).__name__} has attention of more than one family: {family.name!r} ({type(modules[0]).__name__}) "
                f"and {other.name!r} ({type(beside).__name__}); to read that of one alone, say which by family="
            )


__all__ = [
    "FAMILIES",
    "AttentionPass",
    "Call",
    "Convention",
    "Family",
    "LayerAttention",
    "Mask",
    "Norm",
    "Pairing",
    "Projected",
    "compact",
    "find",
    "heads_of",
    "mask_of",
    "register",
]
