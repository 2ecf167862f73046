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
from diffscope.families.megatron import Megatron
from diffscope.families.motif import GroupedMotif, Motif
from diffscope.families.motif_latent import MotifLatent
from diffscope.families.nanogpt import NanoGpt
from diffscope.families.nanowell import Nanowell
from diffscope.families.phi4flash import Phi4Flash
from diffscope.families.projected import Projected
from diffscope.families.reading import heads_of
from diffscope.families.stable_audio import StableAudio, StableAudioTools
from diffscope.families.standard import Standard, interface_attention
from diffscope.families.timm import Timm
from diffscope.families.unilm import UnilmV1, UnilmV2
from diffscope.families.yoco import Yoco

# The most particular family comes first, because the first one that recognises a model's attention modules reads it.
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
    Megatron(),
    NanoGpt(),
    Nanowell(),
    Kyegomez(),
    Yoco(),
    Axolotl(),
    Dex(),
    StableAudio(),
    StableAudioTools(),
    Standard(),
]


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
