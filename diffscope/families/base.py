"""What a family is: it knows where one implementation keeps q, k, v, λ and norm, and how it pairs its maps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from diffscope.attention import LayerAttention, Mask
from diffscope.errors import UnsupportedModel


@dataclass
class Call:
    """One call that an attention module made of the Hugging Face attention interface."""

    query: Tensor  # (batch, map, query, d)
    key: Tensor  # (batch, key map, key, d)
    value: Tensor  # (batch, value head, key, width)
    mask: Tensor | None  # (batch or 1, 1, query, key), bool or additive
    scaling: float
    window: int | None
    score_dtype: torch.dtype | None = None  # what the scores are rounded to before the softmax


@dataclass
class Passage:
    """One passage of a batch through one attention module."""

    module: nn.Module
    lengths: tuple[int, ...]
    hidden: Tensor | None = None  # (batch, token, hidden): what entered the module
    calls: list[Call] = field(default_factory=list)
    observed: Tensor | None = None  # (batch, query, head·width): what entered the output projection


class Family(ABC):
    """One implementation of attention.

    A new implementation is a subclass in a file of its own, listed in ``diffscope.families.FAMILIES``.
    """

    name: str
    description: str

    @abstractmethod
    def modules(self, model: nn.Module) -> list[nn.Module]:
        """The attention modules this family reads, in layer order; empty if the model is of another family."""

    @abstractmethod
    def output_projection(self, module: nn.Module) -> nn.Module:
        """The submodule whose input is the attention output that captures are proved against."""

    @abstractmethod
    def read(self, passage: Passage) -> LayerAttention:
        """Translate a passage into the contract."""


def expect_calls(passage: Passage, family: str, count: int) -> None:
    """Raise unless the module called the attention interface exactly `count` times."""
    if len(passage.calls) != count:
        raise UnsupportedModel(
            f"{type(passage.module).__name__} called the attention interface {len(passage.calls)} times where family "
            f"{family} expects {count}; this version of the implementation is not supported"
        )


def ones(like: Tensor) -> Tensor:
    """A (1, 1, 1) of ones in `like`'s float32-or-wider dtype and on its device."""
    return torch.ones(1, 1, 1, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)


def _same_as_rule(visible: Tensor, rule: Mask, lengths: tuple[int, ...]) -> bool:
    """Whether an explicit mask (batch or 1, query, key) says what a rule says, on every prompt's own tokens."""
    for index, n in enumerate(lengths):
        rows = visible[index % len(visible), :n, :n]
        for block in torch.arange(n, device=visible.device).split(1024):
            if not torch.equal(rows[block], rule.rows(block, n, 0)):
                return False
    return True


def mask_of(call: Call, passage: Passage) -> Mask:
    """The compact form of the mask of a call.

    Raises
    ------
    UnsupportedModel
        The mask adds finite numbers to the scores (a position bias), or differs from head to head.
    """
    causal = getattr(passage.module, "is_causal", True)
    if call.mask is None:
        if not causal:
            return Mask("full")
        return Mask("causal") if call.window is None else Mask("window", call.window)
    if call.mask.dim() == 2:  # flash-attn gets the padding mask alone
        return Mask("causal") if call.window is None else Mask("window", call.window)
    if call.mask.shape[1] != 1:
        raise UnsupportedModel("the attention mask differs from head to head, which no supported family does")
    explicit = call.mask[:, 0]  # (batch or 1, query, key)
    if explicit.dtype == torch.bool:
        visible = explicit
    else:
        visible = explicit == 0
        if not (visible | (explicit <= torch.finfo(explicit.dtype).min / 2)).all():
            raise UnsupportedModel("the attention mask adds a position bias to the scores, which no supported family does")
    last = int(visible[0, min(passage.lengths) - 1, : min(passage.lengths)].sum())
    for rule in (Mask("causal"), Mask("window", call.window or last), Mask("full")):
        if _same_as_rule(visible, rule, passage.lengths):
            return rule
    return Mask("given", visible=visible.clone())
