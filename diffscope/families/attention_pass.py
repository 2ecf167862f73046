"""Record one pass of a batch through one attention module, and build the layer that it attended with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from diffscope.attention.components import Mask, Norm, Pairing
from diffscope.attention.fidelity import Float32Proof
from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import HALF
from diffscope.errors import UnsupportedModel
from diffscope.families.foreign import REGISTER, ForeignModule, norm_of
from diffscope.families.model_call import CACHES, ModelCall


@dataclass
class Call:
    """One call of the Hugging Face attention interface by an attention module."""

    query: Tensor  # (batch, map, query, d)
    key: Tensor  # (batch, key map, key, d)
    value: Tensor  # (batch, value head, key, width)
    mask: Any  # None; (batch or 1, 1, query, key), bool or additive; or the mask of flash-attn or FlexAttention
    scaling: float
    window: int | None
    score_dtype: torch.dtype | None = None  # the dtype of the scores before the softmax
    soft_cap: float | None = None
    sink_logit: Tensor | None = None  # (map,)
    position_bias: Tensor | None = None  # (1, map, distance)
    is_causal: bool | None = None  # of the call, if it differs from the module's attribute
    ignored: str | None = None  # keywords that the implementation ignores, in words
    unread: str | None = None  # a keyword that may change the maps and is unknown to diffscope
    given_dtype: torch.dtype | None = None  # of the query before autocast, which may narrow it

    @property
    def may_be_padded(self) -> bool:
        """Return whether the mask is one of flash-attn or FlexAttention and may hide padding."""
        if self.mask is None or (isinstance(self.mask, Tensor) and self.mask.dim() == 4):
            return False
        return not self.mask.all() if isinstance(self.mask, Tensor) else len(self.query) > 1


class Outputs(dict[str, Tensor]):
    """Outputs of watched submodules, by their names in ``Family.watch``."""

    def __missing__(self, name: str) -> Tensor:
        """Raise UnsupportedModel: `Family.read` asks for an output that there is not."""
        called = ", ".join(self) or "none"
        raise UnsupportedModel(
            f"the family reads outputs[{name!r}], and the module called no such submodule (it called {called}); correct the path "
            "in the family's `watch`"
        )


@dataclass
class AttentionPass:
    """One pass of a batch through one attention module.

    Attributes
    ----------
    module : nn.Module
    index : int
        Position of the module among those of the family, from 0.
    number : int
        The layer's number in the model, from 0. A module that a model runs several times is a layer each time; the layers of
        further rounds continue the numbers of the first.
    lengths : tuple of int
        Queries of each prompt; padding is on the right.
    arguments : dict
        Arguments of the module's forward, by the names of its signature.
    outputs : dict of str to Tensor
        Outputs of the submodules that :attr:`Family.watch` names.
    calls : list of Call
        The module's calls of the Hugging Face attention interface.
    observed : Tensor, (batch, query, head·width)
        Input of the output projection; set when that is called.
    repeat : int
        Earlier runs of the module in the same forward.
    cached : tuple of Tensor, optional
        Keys and values that the cache held before this pass, each (batch, head, key, width).
    call : ModelCall, optional
        The call of the model; None if only a part of it was called.
    pack : tuple of int, optional
        Tokens of each sequence, if the one prompt is a pack of several.
    float32 : Float32Proof, optional
        The proof of the module in float32, if the pass is in half precision.
    family : str
        Name of the family that reads it.
    role : {"self", "cross", "encoder"}
        What its layer is to be: :attr:`LayerAttention.kind <diffscope.attention.layer.LayerAttention>`.
    key_lengths : tuple of int, optional
        Keys of each prompt in cross-attention.
    """

    module: ForeignModule
    index: int
    number: int
    lengths: tuple[int, ...]
    arguments: dict = field(default_factory=dict)
    outputs: Outputs = field(default_factory=Outputs)
    calls: list[Call] = field(default_factory=list)
    observed: Tensor = field(init=False, repr=False)
    repeat: int = 0
    cached: tuple[Tensor, Tensor] | None = None
    call: ModelCall | None = None
    pack: tuple[int, ...] | None = None
    float32: Float32Proof | None = None
    family: str = ""
    role: str = "self"
    key_lengths: tuple[int, ...] | None = None

    @property
    def kind(self) -> str:
        """Name of the module's class."""
        return type(self.module).__name__

    def layer(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        pairing: Pairing,
        *,
        lam: Tensor | None = None,
        norm: Norm | nn.Module | None = None,
        call: Call | None = None,
        scales_queries: bool = False,
        rounds_scores: bool = False,
        **fields: Any,
    ) -> LayerAttention:
        """Return the layer that this pass attended with.

        Number, family, kind and lengths are those of the pass. The scale is d^-0.5, the mask causal (full in cross-attention),
        and the factor after the norm 1 - λ_init if there is a λ_init, unless `call` or `fields` say otherwise.

        Parameters
        ----------
        q : Tensor, (batch, map, query, d)
        k : Tensor, (batch, key map, key, d)
        v : Tensor, (batch, value head, key, width)
        pairing : Pairing
        lam : Tensor, optional
            λ: (batch, head, query) or broadcastable to it, one number a head, (head,), or one number.
        norm : Norm or nn.Module, optional
            Norm of the heads' outputs, or a root-mean-square norm to read it from.
        call : Call, optional
            The call of the attention interface with the scale, mask, rounding, soft cap and sink logits.
        scales_queries : bool, optional
            Whether the module scales its queries before the product. In half precision it rounds both.
        rounds_scores : bool, optional
            Whether the module keeps its scores in half precision.
        **fields
            Further fields of :class:`~diffscope.attention.layer.LayerAttention`.

        Raises
        ------
        UnsupportedModel
            The norm or the mask is of a kind that no supported family has.
        """
        fields.setdefault("scale", q.shape[-1] ** -0.5)
        if self.role == "cross":
            fields.setdefault("mask", Mask("full"))
        if call is not None:
            fields |= {"scale": call.scaling, "mask": mask_of(call, self), "score_dtype": call.score_dtype}
            fields |= {"soft_cap": call.soft_cap, "sink_logit": call.sink_logit, "position_bias": call.position_bias}
        if q.dtype in HALF and scales_queries:
            q, fields["scale"] = q * fields["scale"], 1.0
        if q.dtype in HALF and (scales_queries or rounds_scores):
            fields["score_dtype"] = q.dtype
        if isinstance(norm, nn.Module):
            norm = norm_of(norm, v.shape[-1], q.dtype)
        if fields.get("lam_init") is not None:
            fields.setdefault("post_scale", 1 - fields["lam_init"])
        for name, value in (("lam", lam), *((name, fields.pop(name, None)) for name in ("lam_fp32", "gain"))):
            if value is not None:
                value = value.detach().clone() if isinstance(value, nn.Parameter) else value  # which training may change
                value = value[None] if value.dim() == 2 else value
                fields[name] = value.reshape(1, -1, 1) if value.dim() < 2 else value  # (batch, head, query)
        return LayerAttention(
            layer=self.number,
            family=self.family,
            q=q,
            k=k,
            v=v,
            pairing=pairing,
            lengths=self.lengths,
            kind=self.role,
            key_lengths=self.key_lengths,
            norm=norm,
            **fields,
        )

    def set_lengths(
        self, lengths: tuple[int, ...] | None, key_lengths: tuple[int, ...] | None, source: Tensor | None = None
    ) -> None:
        """Set how many queries and keys of each prompt are tokens; None takes every position for one.

        Parameters
        ----------
        lengths : tuple of int, optional
            Of the prompts.
        key_lengths : tuple of int, optional
            Of the side that an encoder reads, and cross-attention looks at.
        source : Tensor, optional, (batch, key, hidden)
            What the keys of cross-attention are made of.
        """
        lengths = key_lengths if self.role == "encoder" else lengths
        self.lengths = lengths or (self.hidden.shape[1],) * len(self.hidden)
        if source is not None:
            self.key_lengths = key_lengths or (source.shape[1],) * len(source)

    @property
    def hidden(self) -> Tensor:
        """Return the input of the module, (batch, token, hidden): its first argument."""
        return next(iter(self.arguments.values()))

    @property
    def warnings(self) -> list[str]:
        """Return the keywords that the attention implementation ignores, in one line each."""
        return list(dict.fromkeys(call.ignored for call in self.calls if call.ignored))

    @property
    def cache(self) -> Any:
        """Return the cache that the module was called with, or None."""
        caches = (self.arguments.get(name) for name in CACHES)
        return next((cache for cache in caches if cache is not None), None)

    @property
    def cache_layer(self) -> Any:
        """Return the part of a Hugging Face cache with this layer's keys and values, or None."""
        layers = getattr(self.cache, "layers", None)
        index = getattr(self.module, "layer_idx", None)
        if layers is None or index is None or index >= len(layers) or getattr(layers[index], "keys", None) is None:
            return None
        return layers[index]


def expect_calls(attention_pass: AttentionPass, family: str, count: int) -> None:
    """Raise UnsupportedModel unless the module called the attention interface `count` times with known keywords."""
    unread = next((call.unread for call in attention_pass.calls if call.unread), None)
    if unread:
        raise UnsupportedModel(
            f"{attention_pass.kind} calls its attention with {unread}, which family {family} does not read: its maps would not "
            "be the model's"
        )
    if len(attention_pass.calls) == count:
        return
    times = f"{attention_pass.kind} called the attention interface {len(attention_pass.calls)} times"
    if not attention_pass.calls:
        raise UnsupportedModel(f"{times}: it does not go through transformers' attention interface; {REGISTER}")
    raise UnsupportedModel(f"{times} where family {family!r} expects {count}: it attends in another way; {REGISTER}")


def mask_of_keys(visible: Tensor, lengths: tuple[int, ...], key_lengths: tuple[int, ...]) -> Mask:
    """Return the mask of cross-attention: full if every query sees all keys of its prompt, else the table.

    Parameters
    ----------
    visible : Tensor, (batch or 1, query or 1, key)
        bool, or a number that is added to each score.
    lengths, key_lengths : tuple of int
        Queries and keys of each prompt.

    Raises
    ------
    UnsupportedModel
        The mask adds finite numbers to the scores.
    """
    visible = _as_bool(visible)
    rows = (visible[index % len(visible), :n, :keys] for index, (n, keys) in enumerate(zip(lengths, key_lengths)))
    if all(bool(row.all()) for row in rows):
        return Mask("full")
    return Mask("given", visible=visible.expand(-1, max(lengths), -1).clone())


def _as_bool(mask: Tensor) -> Tensor:
    """Return which keys an explicit mask shows; UnsupportedModel if it adds finite numbers to the scores."""
    if mask.dtype == torch.bool:
        return mask
    visible = mask == 0
    lowest = (torch.finfo if mask.is_floating_point() else torch.iinfo)(mask.dtype).min
    if not (visible | (mask <= lowest / 2)).all():
        raise UnsupportedModel("the attention mask adds a position bias to the scores, which no supported family does")
    return visible


def _same_as_rule(visible: Tensor, rule: Mask, lengths: tuple[int, ...], offset: int) -> bool:
    """Return whether an explicit mask (batch or 1, query, key) equals a rule on every prompt's own tokens."""
    for index, n in enumerate(lengths):
        rows = visible[index % len(visible), :n, : n + offset]
        for block in torch.arange(n, device=visible.device).split(1024):
            if not torch.equal(rows[block], rule.rows(block, n + offset, offset)):
                return False
    return True


def compact(mask: Tensor, lengths: tuple[int, ...], window: int | None = None) -> Mask:
    """Return the compact form of an explicit mask: a rule if one fits, else the mask itself.

    Parameters
    ----------
    mask : Tensor, (batch or 1, 1, query, key)
        bool, true for visible keys; or a number that is added to each score.
    lengths : tuple of int
        Tokens of each prompt.
    window : int, optional
        The width of the window, if known.

    Raises
    ------
    UnsupportedModel
        The mask adds finite numbers to the scores (a position bias), or differs from head to head.
    """
    if mask.shape[1] != 1:
        raise UnsupportedModel("the attention mask differs from head to head, which no supported family does")
    visible = _as_bool(mask[:, 0])  # (batch or 1, query, key)
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
    """Return the compact form of the mask of a call.

    Raises
    ------
    UnsupportedModel
        See :func:`compact`.
    """
    if attention_pass.key_lengths is not None:
        if isinstance(call.mask, Tensor) and call.mask.dim() == 4 and call.mask.shape[1] == 1:
            return mask_of_keys(call.mask[:, 0], attention_pass.lengths, attention_pass.key_lengths)
        if call.mask is not None:
            raise UnsupportedModel(
                "the mask of cross-attention is of a form that is not read; load it with attn_implementation='sdpa'"
            )
        return Mask("full")
    causal = getattr(attention_pass.module, "is_causal", True) if call.is_causal is None else call.is_causal
    if call.mask is None:
        if not causal:
            return Mask("full")
        return Mask("causal") if call.window is None else Mask("window", call.window)
    if not isinstance(call.mask, Tensor) or call.mask.dim() == 2:  # FlexAttention's block mask; flash-attn's padding mask
        return Mask("causal") if call.window is None else Mask("window", call.window)
    return compact(call.mask, attention_pass.lengths, call.window)
