"""What a family is: it knows where one implementation keeps q, k, v, λ and norm, and how it pairs its maps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from diffscope.attention.fidelity import Float32Proof
from diffscope.attention.layer import LayerAttention, Mask
from diffscope.errors import UnsupportedModel
from diffscope.families.model_call import CACHES, ModelCall
from diffscope.models.cards import FAMILIES

#: A module of somebody else's class: what it has is not in the type of ``torch.nn.Module``.
ForeignModule = Any

REGISTER = "make it known with diffscope.families.register (docs/families.md shows how)"  # the way on from a refusal


@dataclass
class Call:
    """One call that an attention module made of the Hugging Face attention interface."""

    query: Tensor  # (batch, map, query, d)
    key: Tensor  # (batch, key map, key, d)
    value: Tensor  # (batch, value head, key, width)
    mask: Any  # None; (batch or 1, 1, query, key), bool or additive; or what flash-attn and FlexAttention have instead
    scaling: float
    window: int | None
    score_dtype: torch.dtype | None = None  # what the scores are rounded to before the softmax
    soft_cap: float | None = None
    sink_logit: Tensor | None = None  # (map,)
    is_causal: bool | None = None  # what the call says where the module says something else
    ignored: str | None = None  # what the implementation does not compute with although the model asks for it, in words
    unread: str | None = None  # a keyword that may change the maps and is not understood
    given_dtype: torch.dtype | None = None  # of the query as the module gave it: under autocast it may be wider than here

    @property
    def may_be_padded(self) -> bool:
        """Whether it may see padding that its mask does not show row by row: flash-attn's and FlexAttention's masks."""
        if self.mask is None or (isinstance(self.mask, Tensor) and self.mask.dim() == 4):
            return False
        return not self.mask.all() if isinstance(self.mask, Tensor) else len(self.query) > 1


@dataclass
class AttentionPass:
    """One pass of a batch through one attention module.

    Attributes
    ----------
    module : nn.Module
    index : int
        Position of the module among those of the family, from 0.
    number : int
        The layer's number in the model, from 0. A module that a model runs several times is a layer each time: those of further
        rounds are numbered on from the highest number of the first.
    lengths : tuple of int
        Tokens of each prompt; padding is on the right.
    arguments : dict
        Arguments of the module's forward, by the names of its signature.
    outputs : dict of str to Tensor
        Outputs of the submodules that :attr:`Family.watch` names.
    calls : list of Call
        Its calls of the Hugging Face attention interface.
    observed : Tensor, (batch, query, head·width)
        Input of the output projection; set when that is called.
    repeat : int
        How often the model had run the module before, in the same forward.
    cached : tuple of Tensor, optional
        Keys and values that the cache held before this pass, each (batch, head, key, width).
    call : ModelCall, optional
        The call of the model itself; None if a part of it was called by itself.
    pack : tuple of int, optional
        Tokens of each sequence, if the one prompt is a pack of several.
    float32 : Float32Proof, optional
        The proof of the module in float32, if the pass is in half precision.
    family : str
        Name of the family that reads it.
    """

    module: ForeignModule
    index: int
    number: int
    lengths: tuple[int, ...]
    arguments: dict = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    observed: Tensor = field(init=False, repr=False)
    repeat: int = 0
    cached: tuple[Tensor, Tensor] | None = None
    call: ModelCall | None = None
    pack: tuple[int, ...] | None = None
    float32: Float32Proof | None = None
    family: str = ""

    @property
    def kind(self) -> str:
        """Name of the module's class."""
        return type(self.module).__name__

    @property
    def hidden(self) -> Tensor:
        """What entered the module, (batch, token, hidden): its first argument."""
        return next(iter(self.arguments.values()))

    @property
    def warnings(self) -> list[str]:
        """What was asked of the attention implementation that it does not do, in one line each."""
        return list(dict.fromkeys(call.ignored for call in self.calls if call.ignored))

    @property
    def cache(self) -> Any:
        """The cache that the module was called with, or None."""
        caches = (self.arguments.get(name) for name in CACHES)
        return next((cache for cache in caches if cache is not None), None)

    @property
    def cache_layer(self) -> Any:
        """The part of a Hugging Face cache that holds this layer's keys and values; None where there is none yet."""
        layers = getattr(self.cache, "layers", None)
        index = getattr(self.module, "layer_idx", None)
        if layers is None or index is None or index >= len(layers) or getattr(layers[index], "keys", None) is None:
            return None
        return layers[index]


@dataclass(frozen=True)
class Convention:
    """What an implementation does by design, in the terms in which implementations differ.

    Attributes
    ----------
    pairing : str
        Which query maps belong to head h, in words.
    lam : str
        Formula of λ.
    schedule : int or None
        λ_init of layer l (from 0) is the paper's 0.8 − 0.6·exp(−0.3·(l + schedule)); None without a λ_init.
    norm : {"rms", "rms, affine", None}
        Of a head's output.
    post_scale : bool
        Whether the normed output is multiplied with 1 − λ_init.
    rope : str
        ``half``, ``interleaved``, ``none`` or in words.
    keys : {"one a map", "shared by both maps"}
        Whether the two maps of a head look at keys of their own.
    """

    pairing: str
    lam: str
    schedule: int | None
    norm: str | None
    post_scale: bool
    rope: str
    keys: str = "one a map"


EXPONENTIAL = "exp(λq1·λk1) − exp(λq2·λk2) + λ_init"
SIGMOID = "sigmoid(W·x), per token and head"
STRIPES = "2h, 2h + 1"
HALVES = "h, h + H"
ONE_SECOND = "h, and one second map for all heads"


class Family(ABC):
    """One implementation of attention.

    A new one is a subclass in a file of its own, listed in ``diffscope.families``; one that lives elsewhere is made known by
    :func:`diffscope.families.register`.

    Attributes
    ----------
    name : str
    description : str
        What it reads, in a line.
    convention : Convention or None
        What the implementation does by design; None for standard attention.
    interface : bool
        Whether its modules call the Hugging Face attention interface, where their queries, keys and values are seen; otherwise
        `read` works them out from the outputs of the `watched` submodules and the arguments.
    tried_on : {"real class", "documented layout"}
        What the family was tested against: the published class itself, or a module of ours that follows what is documented of it.
    """

    name: str
    convention: Convention | None = None
    interface: bool = True
    tried_on: str = "real class"

    @property
    def description(self) -> str:
        """What it reads, in a line."""
        return FAMILIES.get(self.name, "")

    @abstractmethod
    def modules(self, model: nn.Module) -> list[nn.Module]:
        """The attention modules this family reads, in layer order; empty if the model is of another family."""

    @abstractmethod
    def output_projection(self, module: ForeignModule) -> nn.Module:
        """The submodule whose input is the attention output that captures are proved against."""

    def attention_width(self, module: ForeignModule) -> int | None:
        """How many leading elements of what enters the output projection are the attention's; None where all are."""
        return None

    def watched(self, module: ForeignModule) -> dict[str, nn.Module]:
        """Submodules whose outputs `read` needs, by the name it knows them under."""
        return {}

    def numbers(self, model: nn.Module) -> list[int]:
        """The layers' numbers in the model, from 0, in the order of `modules`.

        Their :meth:`depths` if no two are the same, else their order. What the modules of Hugging Face models say is kept even
        so: there it is an encoder beside a decoder, or cross-attention, that has the same, and a capture refuses.
        """
        depths = self.depths(model)
        numbers = [depth for depth in depths if depth is not None]
        if len(set(numbers)) == len(depths):
            return numbers
        told = self.interface and all(_layer_idx(module) is not None for module in self.modules(model))
        return numbers if told else list(range(len(depths)))

    def depths(self, model: nn.Module) -> list[int | None]:
        """The blocks that modules are in: their ``layer_idx`` if all have one, else the last number in ``layers.3.attn``."""
        modules = self.modules(model)
        indices = [_layer_idx(module) for module in modules]
        if None not in indices:
            return indices
        names = {module: name for name, module in model.named_modules()}
        digits = [[int(part) for part in names[module].split(".") if part.isdigit()] for module in modules]
        return [numbers[-1] if numbers else None for numbers in digits]

    @abstractmethod
    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        """Translate a attention_pass into the contract."""

    def convention_of(self, module: ForeignModule) -> Convention | None:
        """What this module does by design, where a family's modules differ."""
        return self.convention

    def readings(self, attention_pass: AttentionPass) -> Iterator[LayerAttention]:
        """Every translation of a attention_pass that this family allows; the first that rebuilds the model's output is taken."""
        yield self.read(attention_pass)

    def suspects(self, attention_pass: AttentionPass) -> Iterator[tuple[str, LayerAttention]]:
        """Mistakes of such modules in words, each with the layer as it would be read with it: tried when no reading fits."""
        yield from ()

    def warnings(self, layer: LayerAttention) -> list[str]:
        """What a user of this model should know, in one line each."""
        return []


def _layer_idx(module: ForeignModule) -> int | None:
    index = getattr(module, "layer_idx", None)
    return index if isinstance(index, int) and index >= 0 else None


def filled(layer: Any, x: Tensor) -> Tensor:
    """Keys or values of a layer of a cache, (..., key, width), without the room that a static one has for tokens to come."""
    return x[..., : int(layer.get_seq_length()), :] if getattr(layer, "is_compileable", False) else x


def number(value: Any, module: ForeignModule, name: str) -> float:
    """A number of a module, which may be a tensor of one element.

    Raises
    ------
    UnsupportedModel
        It is of several, such as one a head.
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
    """The :func:`number` that a module has under a name."""
    return number(getattr(module, name), module, name)


def parts_of(model: nn.Module) -> Iterator[nn.Module]:
    """All modules of a model but those that ``torch.compile`` puts around another, which seem to have all that the other has."""
    return (module for module in model.modules() if not compiles_another(module))


def compiles_another(module: nn.Module) -> bool:
    """Whether it is what ``torch.compile`` puts around a module."""
    return "_orig_mod" in module._modules


def expect_calls(attention_pass: AttentionPass, family: str, count: int) -> None:
    """Raise unless the module called the attention interface exactly `count` times, and each call is understood."""
    kind = attention_pass.kind
    unread = next((call.unread for call in attention_pass.calls if call.unread), None)
    if unread:
        raise UnsupportedModel(
            f"{kind} calls its attention with {unread}, which family {family} does not read: its maps would not be the model's"
        )
    if len(attention_pass.calls) == count:
        return
    times = f"{kind} called the attention interface {len(attention_pass.calls)} times"
    if not attention_pass.calls:
        raise UnsupportedModel(f"{times}: it does not go through transformers' attention interface; {REGISTER}")
    raise UnsupportedModel(f"{times} where family {family!r} expects {count}: it attends in another way; {REGISTER}")


def _same_as_rule(visible: Tensor, rule: Mask, lengths: tuple[int, ...], offset: int) -> bool:
    """Whether an explicit mask (batch or 1, query, key) says what a rule says, on every prompt's own tokens."""
    for index, n in enumerate(lengths):
        rows = visible[index % len(visible), :n, : n + offset]
        for block in torch.arange(n, device=visible.device).split(1024):
            if not torch.equal(rows[block], rule.rows(block, n + offset, offset)):
                return False
    return True


def compact(mask: Tensor, lengths: tuple[int, ...], window: int | None = None) -> Mask:
    """The compact form of an explicit mask.

    Parameters
    ----------
    mask : Tensor, (batch or 1, 1, query, key)
        bool, true where a key is seen, or what is added to the scores.
    lengths : tuple of int
        Tokens of each prompt.
    window : int, optional
        The width of a window if it is known.

    Raises
    ------
    UnsupportedModel
        The mask adds finite numbers to the scores (a position bias), or differs from head to head.
    """
    if mask.shape[1] != 1:
        raise UnsupportedModel("the attention mask differs from head to head, which no supported family does")
    explicit = mask[:, 0]  # (batch or 1, query, key)
    visible = explicit
    if explicit.dtype != torch.bool:
        visible = explicit == 0
        if not (visible | (explicit <= torch.finfo(explicit.dtype).min / 2)).all():
            raise UnsupportedModel("the attention mask adds a position bias to the scores, which no supported family does")
    offset = visible.shape[2] - visible.shape[1]
    if offset < 0 or max(lengths) > visible.shape[1]:
        raise UnsupportedModel(
            f"the attention mask is of {visible.shape[1]} queries and {visible.shape[2]} keys where the prompt has "
            f"{max(lengths)} tokens, so it is not known what they stand for"
        )
    shortest = min(lengths)
    last = int(visible[lengths.index(shortest) % len(visible), shortest - 1, : shortest + offset].sum())
    for rule in (Mask("causal"), Mask("window", window or max(1, last)), Mask("full")):
        if _same_as_rule(visible, rule, lengths, offset):
            return rule
    return Mask("given", visible=visible.clone())


def mask_of(call: Call, attention_pass: AttentionPass) -> Mask:
    """The compact form of the mask of a call.

    Raises
    ------
    UnsupportedModel
        See :func:`compact`.
    """
    causal = getattr(attention_pass.module, "is_causal", True) if call.is_causal is None else call.is_causal
    if call.mask is None:
        if not causal:
            return Mask("full")
        return Mask("causal") if call.window is None else Mask("window", call.window)
    if not isinstance(call.mask, Tensor) or call.mask.dim() == 2:  # FlexAttention's block mask; flash-attn's padding mask
        return Mask("causal") if call.window is None else Mask("window", call.window)
    return compact(call.mask, attention_pass.lengths, call.window)
