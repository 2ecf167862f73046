"""Edit a model for a while: blocks of edits, each with what it adds while it is open, closed in any order."""

from __future__ import annotations

import atexit
import warnings
from contextlib import AbstractContextManager, ContextDecorator, ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor

from diffscope.attention.components import Mask
from diffscope.attention.layer import LayerAttention
from diffscope.edits import Edit, apply
from diffscope.errors import DiffscopeError, DiffscopeWarning, UnsupportedModel
from diffscope.families import AttentionPass
from diffscope.families.compilation import as_written
from diffscope.families.hooks import Replay, attention_passes
from diffscope.families.packs import hides_others, together
from diffscope.families.threads import CURRENT, WarnsOtherThreads
from diffscope.prompts.tokenizer_output import sequences_in
from diffscope.proof.prove import EditedLayer, prove
from diffscope.scope.hooked import HookedModel
from diffscope.scope.run import read_of_prompts

Edited = TypeVar("Edited", bound=HookedModel)


class EditBlock(ContextDecorator, AbstractContextManager[Edited], Generic[Edited]):
    """Edits that act on a model from the block's entry to its exit; ``Scope.edit`` makes one.

    Attributes
    ----------
    edits : tuple of Edit
    """

    def __init__(self, scope: Edited, edits: tuple[Edit, ...]) -> None:
        self.edits = edits
        self._scope = scope
        self._thread: object | None = None  # that entered it; None while it is not open
        self._open = ExitStack()

    def _recreate_cm(self) -> EditBlock:
        """Return a block of its own for each call of a function that this one decorates."""
        return EditBlock(self._scope, self.edits)

    def __enter__(self) -> Edited:
        if self._thread is not None:
            raise DiffscopeError("this block of edits is open already; close it first, or open another with scope.edit(...)")
        state = self._scope._state
        state.close_dropped()
        with ExitStack() as entered:
            entered.enter_context(state.lock)
            entered.enter_context(as_written())
            if self.edits:
                self._scope.refuse_without_weights()
                state.check_family(self._scope.model, self._scope.family)
            entered.callback(state.close_block, state.open_block(self._scope.family, self.edits, partial(_hooks, self._scope)))
            if self.edits:
                entered.callback(self._scope.model.register_forward_pre_hook(WarnsOtherThreads()).remove)
            self._open = entered.pop_all()
        self._thread = CURRENT.thread
        _OPEN.add(self)
        return self._scope

    def __exit__(self, *raised: Any) -> None:
        if self._thread is not CURRENT.thread:
            how = "is not open" if self._thread is None else "was opened by another thread, which alone can close it"
            raise DiffscopeError(f"this block of edits {how}; open and close it in one thread, best by `with scope.edit(...):`")
        self._thread = None
        _OPEN.discard(self)
        self._open.close()

    def __del__(self) -> None:
        if self._thread is None:
            return
        if self._thread is CURRENT.thread:
            self.__exit__()
            end = "which closed it"
        else:
            self._scope._state.dropped.append((self._thread, self._open))
            end = "and stays open until the thread that opened it uses the model again"
        words = "; ".join(map(str, self.edits))
        warnings.warn(
            f"nobody holds an open block of edits ({words}) any more, {end}; use `with scope.edit(...):`",
            DiffscopeWarning,
            stacklevel=2,
        )


_OPEN: WeakSet[EditBlock] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Close the blocks that are still open when the program ends, while all that they need is there."""
    for block in list(_OPEN):
        block._thread = None
        with suppress(RuntimeError):  # the model's lock, which another thread holds
            block._open.close()


def _hooks(scope: HookedModel) -> AbstractContextManager[None]:
    """Return the context in which the edits of the model's family act, whichever are open."""
    state, family = scope._state, scope.family

    def before_forward(passage: AttentionPass, replay: Replay) -> None:
        state.layers_run.setdefault(family.name, set()).add(passage.number)
        passage.pack = state.pack
        state.float32.begin(passage)
        if any(edit.applies_to(passage.number) for edit in state.edits(family)):
            state.float32.prove(family, passage, replay, shown=False)

    return attention_passes(scope.model, family, None, None, partial(_edited_output, scope), before_forward)


def _edited_output(scope: HookedModel, passage: AttentionPass) -> Tensor | None:
    """Return what enters the output projection under the edits, (batch, query, width); None if they change nothing."""
    state = scope._state
    edits = state.edits(scope.family)
    if not any(edit.applies_to(passage.number) for edit in edits):
        return None
    if state.lengths is not None:
        passage.set_lengths(state.lengths, state.key_lengths, scope.family.source_of(passage.arguments))
    elif any(call.may_be_padded for call in passage.calls):
        raise UnsupportedModel("an edit cannot tell padding from text here; use scope.capture or scope.loss, or SDPA")
    with torch.no_grad():
        if state.lengths is None:
            _check_positions(scope, passage, edits)
            passage.pack = _pack_of(scope, passage)
        entered = passage.observed
        layer, fidelity = next(prove([read_of_prompts(scope, passage)], decide=state.edited is not None))
        seen = layer
        window = next((call.window for call in passage.calls if call.window), None)
        # Within its window a cached step looks causal, and is not. A causal mask of more keys is one that the call was given.
        if window and layer.mask.kind == "causal" and layer.n_keys <= window:
            seen = replace(layer, mask=Mask("window", window))
        if state.lengths is not None:
            for edit in edits:
                edit.check_places(seen)
        edited = apply(edits, seen, lengths_known=state.lengths is not None)
        out = None if edited is seen else _output(edited, passage)
        if state.edited is not None:
            edited = replace(edited, mask=layer.mask) if edited.mask is seen.mask else edited
            left = (entered if out is None else out).clone()  # others may change it in place, which is to be seen
            state.edited[scope.family.name, layer.layer] = EditedLayer(edited, fidelity, left)
    return out


def _output(layer: LayerAttention, passage: AttentionPass) -> Tensor:
    """Return the output of an edited layer as it enters the output projection of the model."""
    out = passage.observed.clone()
    for index, n in enumerate(layer.lengths):
        queries = layer.mask.seeing(torch.arange(n, device=out.device), index)
        rebuilt = layer.prompt(index).output(queries)  # (head, query, width)
        out[index, queries] = rebuilt.transpose(0, 1).reshape(len(queries), *out.shape[2:]).to(out.dtype)
    return out if passage.pack is None else together(out, passage.pack)


def _check_positions(scope: HookedModel, passage: AttentionPass, edits: tuple[Edit, ...]) -> None:
    """Raise UnsupportedModel if an edit that goes by positions would count others than those of the tokens."""
    tokens = None if passage.call is None or passage.role == "encoder" else passage.call.tokens
    placed = any(edit.needs_positions and edit.applies_to(passage.number) for edit in edits)
    if placed and tokens not in (None, passage.observed.shape[1]):
        raise UnsupportedModel(
            f"layer {passage.number} of {scope.name} attends from {passage.observed.shape[1]} positions where it was given "
            f"{tokens} tokens, so an edit that goes by positions does not know them; use one that does not"
        )


def _pack_of(scope: HookedModel, passage: AttentionPass) -> tuple[int, ...] | None:
    """Return the tokens of each sequence if somebody called the model with a pack and it keeps the sequences apart."""
    positions = None if passage.call is None else passage.call.positions
    if positions is None or len(positions) > 1 or passage.call.cached:
        return None
    lengths = sequences_in(positions[0].tolist())
    separate = lengths and all(hides_others(layer.mask, lengths) for layer in scope.family.readings(passage))
    return lengths if separate else None
