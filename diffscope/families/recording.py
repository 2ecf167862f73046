"""Watch a model attend: a registered attention implementation that looks on, and ordinary module hooks."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from diffscope.errors import UnsupportedModel
from diffscope.families.base import Call, Family, Passage

_numbers = itertools.count()


def implementation_of(model: PreTrainedModel) -> str:
    """The attention implementation that all parts of a model are set to.

    Raises
    ------
    UnsupportedModel
        It is not a Hugging Face model, or its parts differ.
    """
    if not isinstance(model, PreTrainedModel):
        kind = type(model).__name__
        raise UnsupportedModel(
            f"{kind} is not a Hugging Face PreTrainedModel, so its attention cannot be observed; wrap it in one"
        )
    used = {part.config._attn_implementation for part in model.modules() if isinstance(part, PreTrainedModel)}
    if len(used) != 1:
        raise UnsupportedModel(f"parts of this model differ in attention implementation ({', '.join(sorted(used))}); set one")
    return used.pop()


def _original(module: nn.Module, implementation: str) -> Callable:
    """The function that `module` would have called."""
    if implementation in ALL_ATTENTION_FUNCTIONS:
        return ALL_ATTENTION_FUNCTIONS[implementation]
    # "eager" is not registered: every model brings its own, in the file that defines its attention.
    own = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if own is None:
        kind = type(module).__name__
        raise UnsupportedModel(f"{kind} has no eager attention of its own; load it with attn_implementation='sdpa'")
    return own


@contextmanager
def observed(model: PreTrainedModel, see: Callable[[Call, nn.Module], None]) -> Iterator[None]:
    """Run the model's own attention implementation, and show `see` every call of it.

    On leaving, the model is set back and the registered name is gone.
    """
    implementation = implementation_of(model)
    name = f"diffscope_{next(_numbers)}"

    def attend(module, query, key, value, attention_mask, **kwargs):
        scaling = kwargs.get("scaling")
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        # Eager attention keeps its scores in the activations' dtype; SDPA and flash-attn keep them in float32.
        rounded = query.dtype if implementation == "eager" and query.dtype in (torch.bfloat16, torch.float16) else None
        see(Call(query, key, value, attention_mask, scaling, kwargs.get("sliding_window"), rounded), module)
        return _original(module, implementation)(module, query, key, value, attention_mask, **kwargs)

    if implementation not in ALL_MASK_ATTENTION_FUNCTIONS:
        raise UnsupportedModel(
            f"attention implementation {implementation!r} has no mask function registered; use 'sdpa' or 'eager'"
        )
    try:
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[implementation])
        model.set_attn_implementation(name)
        yield
    finally:
        model.set_attn_implementation(implementation)
        for interface in (AttentionInterface, AttentionMaskInterface):
            interface._global_mapping.pop(name, None)


@contextmanager
def passages(model: PreTrainedModel, family: Family, lengths: tuple[int, ...], take: Callable[[Passage], None]) -> Iterator[None]:
    """While open, hand every attention module's passage to `take` as soon as the module is done.

    Parameters
    ----------
    lengths : tuple of int
        Tokens of each prompt of the batch about to be run; padding is on the right.
    take : callable
        Gets a :class:`Passage` whose tensors it must not change.
    """
    open_passages: dict[nn.Module, Passage] = {}

    def begin(module, args, kwargs):
        hidden = args[0] if args else kwargs.get("hidden_states")
        open_passages[module] = Passage(module, lengths, hidden)

    def see(call: Call, module: nn.Module):
        if module in open_passages:
            open_passages[module].calls.append(call)

    def before_output(owner: nn.Module):
        def hook(module, args):
            open_passages[owner].observed = args[0]

        return hook

    def end(module, args, output):
        passage = open_passages.pop(module)
        if passage.observed is None:
            raise UnsupportedModel(f"{type(module).__name__} does not call its output projection, so its maps cannot be proved")
        take(passage)

    with ExitStack() as stack:
        for module in family.modules(model):
            projection = family.output_projection(module)
            stack.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
            stack.callback(projection.register_forward_pre_hook(before_output(module)).remove)
            stack.callback(module.register_forward_hook(end).remove)
        stack.enter_context(observed(model, see))
        yield
