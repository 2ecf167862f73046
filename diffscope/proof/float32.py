"""Prove the formula of a half-precision layer by a run of its own module in float32.

Half precision rounds by more than a wrong λ, a soft cap or a sink changes, so that rebuilding its output says little about the
formula. The module itself is run once more, in float32, on its inputs, and the reading is held to float32's tolerance.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from diffscope.attention.fidelity import Fidelity, Float32Proof
from diffscope.attention.layer import LayerAttention
from diffscope.attention.memory import free_memory
from diffscope.attention.precision import without_autocast, without_tf32
from diffscope.errors import DiffscopeError, FidelityError, first_line
from diffscope.families import AttentionPass, Family
from diffscope.families.hooks import Replay
from diffscope.families.interface import own_implementation
from diffscope.proof.fidelity import fidelities
from diffscope.proof.float32_copy import Float32Mode, in_half, run_in_float32
from diffscope.proof.readings import layer_of_sequences, observe_sequences, readings

KEYS_UNTIL_ANEW = 2  # times the keys of the last proof: then a step of a generation is proved anew
ROWS_IN_FLOAT32 = 128  # of each head and prompt: a mistake in the formula shows in most of them
BYTES_PER_ELEMENT = 4 * 16  # in float32, roughly, of what a module computes from each element of its hidden states
BYTES_PER_SCORE = 4 * 3  # eager attention's scores, their softmax, and one of them in another dtype
HEAD_WIDTH = 64  # if the number of heads is unknown
NO_MEMORY = "there is not the memory to run its module in float32"
_FUSED_UNCOMPILED = ("sdpa", "flash", "paged")  # implementations that write no maps out
_FUSED = (*_FUSED_UNCOMPILED, "flex")


def reading_signature(layer: LayerAttention) -> tuple:
    """Return what tells one reading of a passage from another, in half precision as in float32.

    The scale is left out: a module in float32 may scale its scores elsewhere.
    """
    pairing = tuple(None if index is None else tuple(index.tolist()) for index in vars(layer.pairing).values())
    numbers = layer.post_scale, layer.soft_cap
    return layer.mask.kind, layer.mask.window, numbers, layer.sink_logit is None, layer.norm is None, pairing


def matching_readings(proof: Float32Proof, layers: list[LayerAttention]) -> list[LayerAttention]:
    """Return the readings of a passage that match the one proved in float32; empty if this prompt offers none."""
    if len(layers) == 1:
        return layers
    alike = [reading_signature(layer) == proof.signature for layer in layers]
    number = proof.reading
    if number is not None and number < len(layers) and alike[number]:
        return [layers[number]]
    return [layer for layer, is_alike in zip(layers, alike) if is_alike]


@dataclass(frozen=True)
class _Step:
    """Hold the proof of a step of one token, and the number of keys before it."""

    family: Family
    keys: int
    proof: Float32Proof


@dataclass
class Float32Proofs:
    """Hold the float32 proofs of the passages that are under way, for edits and a capture under them alike.

    A proof holds for its own passage alone: a module may compute with values that cannot be seen from outside, such as a
    dictionary of the training's, and those may change before the next passage. Only a generation under edits, which shows no
    proof, counts as one run: its steps of one token use an earlier step's proof until there are twice as many keys.
    """

    _under_way: WeakKeyDictionary[nn.Module, tuple[Family, Float32Proof]] = field(default_factory=WeakKeyDictionary)
    _steps: WeakKeyDictionary[Any, dict[nn.Module, _Step]] = field(default_factory=WeakKeyDictionary)  # by cache

    def begin(self, passage: AttentionPass) -> None:
        """Forget the proofs of earlier passages through the module."""
        self._under_way.pop(passage.module, None)

    def prove(self, family: Family, passage: AttentionPass, replay: Replay, shown: bool) -> None:
        """Set ``passage.float32``, if the passage is in half precision.

        Parameters
        ----------
        family : Family
        passage : AttentionPass
            A pass that has not begun.
        replay : Replay
            The inputs of the module, and the function that records the pass of another module in its place.
        shown : bool
            Whether the proof is shown to anybody.
        """
        if not in_half(passage.module, passage.arguments):
            return
        step = passage.cached is not None and passage.hidden.shape[1] == 1
        if step and not shown:
            passage.float32 = self._of_step(family, passage, replay)
            return
        of_family, passage.float32 = self._under_way.get(passage.module, (None, None))
        if of_family is not family:
            passage.float32 = _in_float32(family, passage, replay)
            self._under_way[passage.module] = family, passage.float32

    def _of_step(self, family: Family, passage: AttentionPass, replay: Replay) -> Float32Proof:
        """Return the proof of a step of a generation."""
        assert passage.cached is not None
        keys = passage.cached[0].shape[-2]
        steps = self._steps.setdefault(passage.cache, {})
        before = steps.get(passage.module)
        if before is None or before.family is not family or keys >= KEYS_UNTIL_ANEW * before.keys:
            before = steps[passage.module] = _Step(family, keys, _in_float32(family, passage, replay))
        return before.proof


@without_autocast()
@without_tf32()
def _in_float32(family: Family, passage: AttentionPass, replay: Replay) -> Float32Proof:
    """Run the module in float32, and find the reading that rebuilds what it computes."""
    free = free_memory(passage.hidden.device)
    if memory_needed(family, passage) > free:
        return Float32Proof(reason=NO_MEMORY)
    proof = _attempt(family, passage, replay, nullcontext())
    if proof.error is None:
        return proof
    if memory_needed(family, passage, fused=_FUSED_UNCOMPILED) > free:
        return Float32Proof(reason=NO_MEMORY)
    # A module that casts to half precision by itself is judged by what it would compute without that rounding.
    mode = Float32Mode()
    wider = _attempt(family, passage, replay, mode)
    if not mode.seen:
        return proof
    unknown = wider.fidelity is None and wider.error is None
    return Float32Proof(reason="its module computes in half precision whatever it is given") if unknown else wider


def _attempt(family: Family, passage: AttentionPass, replay: Replay, within: AbstractContextManager[Any]) -> Float32Proof:
    """Run the module once in float32, within a context, and try the family's readings of that run."""
    try:
        wide = run_in_float32(passage, replay, within)
    except torch.OutOfMemoryError:
        return Float32Proof(reason=NO_MEMORY)
    except Exception as error:  # foreign code, in a dtype that it may not have been written for
        return Float32Proof(reason=f"its module cannot be run in float32: {first_line(error)}")
    failed: list[tuple[LayerAttention, Fidelity]] = []
    try:
        observe_sequences(wide)
        for number, reading in enumerate(readings(family, wide)):
            layer = layer_of_sequences(reading, wide)
            (proof,) = fidelities([layer], [wide.observed], rows=ROWS_IN_FLOAT32)
            proof = replace(proof, error_float32=proof.error)
            if proof.error <= proof.tolerance:
                return Float32Proof(number, reading_signature(reading), proof)
            failed.append((layer, proof))
    except FidelityError as error:  # not even of the right size
        return Float32Proof(error=error.with_traceback(None))  # the traceback holds the copy
    except DiffscopeError as error:  # it cannot be read; in half precision that will be said as well
        if not failed:
            return Float32Proof(reason=first_line(error))
    from diffscope.proof.diagnosis import not_rebuilt  # loaded on refusal alone

    layer, proof = failed[0]
    return Float32Proof(error=not_rebuilt(family, wide, layer, proof))


def memory_needed(family: Family, passage: AttentionPass, fused: tuple[str, ...] = _FUSED) -> int:
    """Return the bytes that a float32 run of the module takes, roughly.

    They are its weights, its inputs, what it computes from them, and the maps that it writes out.

    Parameters
    ----------
    family : Family
    passage : AttentionPass
    fused : tuple of str
        Prefixes of the names of attention implementations that write no maps out.
    """
    weights = sum(tensor.numel() for tensor in passage.module.parameters()) * 4
    inputs = sum(tensor.numel() for tensor in passage.arguments.values() if isinstance(tensor, torch.Tensor)) * 4
    need = weights + inputs + passage.hidden.numel() * BYTES_PER_ELEMENT
    config = getattr(passage.module, "config", None)
    implementation = own_implementation(str(getattr(config, "_attn_implementation", "")))
    if family.interface and implementation.startswith(fused):
        return need
    batch, queries, width = passage.hidden.shape
    before = 0 if passage.cached is None else passage.cached[0].shape[-2]
    maps = getattr(config, "num_attention_heads", None) or -(-width // HEAD_WIDTH)
    return need + maps * batch * queries * (queries + before) * BYTES_PER_SCORE
