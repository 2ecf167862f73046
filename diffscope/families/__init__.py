"""One file per implementation of attention: where it keeps q, k, v, λ and norm, and how it pairs its maps."""

from __future__ import annotations

from torch import nn

from diffscope.attention.components import Mask, Norm, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.errors import DiffscopeError, UnsupportedModel
from diffscope.families.attention_pass import AttentionPass, Call, compact, mask_of
from diffscope.families.axolotl import Axolotl
from diffscope.families.base import Convention, Family
from diffscope.families.bundled import Bundled
from diffscope.families.dex import Dex
from diffscope.families.diffclip import DiffClip
from diffscope.families.diffllama import DiffLlama
from diffscope.families.foreign import REGISTER
from diffscope.families.kyegomez import Kyegomez
from diffscope.families.motif import GroupedMotif, Motif
from diffscope.families.motif_latent import MotifLatent
from diffscope.families.nanowell import Nanowell
from diffscope.families.phi4flash import Phi4Flash
from diffscope.families.reading import heads_of
from diffscope.families.standard import Standard, interface_attention
from diffscope.families.timm import Timm
from diffscope.families.unilm import UnilmV1, UnilmV2
from diffscope.families.yoco import Yoco

# The most particular first: the first that recognises a model's attention modules opens it.
FAMILIES: list[Family] = [
    Bundled(),
    DiffLlama(),
    Motif(),
    GroupedMotif(),
    MotifLatent(),
    Phi4Flash(),
    Timm(),
    DiffClip(),
    UnilmV1(),
    UnilmV2(),
    Nanowell(),
    Kyegomez(),
    Yoco(),
    Axolotl(),
    Dex(),
    Standard(),
]


def register(family: Family) -> Family:
    """Make a family known, before all others; one of the same name is replaced.

    Parameters
    ----------
    family : Family
        An instance of a subclass of :class:`Family`.

    Returns
    -------
    Family
        The same, so that it can be handed to ``FAMILIES.remove`` when it should be forgotten.

    Raises
    ------
    DiffscopeError
        It is not a family, or has no name.
    """
    if not isinstance(family, Family) or not getattr(family, "name", ""):
        raise DiffscopeError("register takes an instance of a subclass of diffscope.families.Family that has a name")
    FAMILIES[:] = [family, *(known for known in FAMILIES if known.name != family.name)]
    return family


def find(model: nn.Module) -> Family:
    """The family of a model.

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
    """Raise UnsupportedModel if there is attention of another family beside these modules, whose layers would be left out."""
    known = {part for module in modules for part in module.modules()}
    for other in FAMILIES:
        if other is family or isinstance(other, Dex):  # DEX is standard attention with something more
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
    "compact",
    "find",
    "heads_of",
    "mask_of",
    "register",
]
