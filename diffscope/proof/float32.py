"""The formula that a layer is read by, proved apart from rounding: by the layer's own module in float32.

Half precision rounds by more than a wrong λ, a soft cap or a sink changes, so that what it rebuilds says little about the
formula. The module itself is run once more, in float32, on what it was given, and the reading is held to float32's tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from diffscope.attention.fidelity import Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.attention.memory import free_memory
from diffscope.attention.precision import exactly, without_tf32
from diffscope.errors import DiffscopeError, FidelityError, UnsupportedModel, first_line
from diffscope.families import AttentionPass, Family
from diffscope.families.float32 import HALF, in_half
from diffscope.families.hooks import own_implementation
from diffscope.families.packs import ACROSS
from diffscope.proof.diagnosis import mismatch
from diffscope.proof.fidelity import fidelities
from diffscope.proof.ownership import readings
from diffscope.proof.sequences import attends_across, of_sequences, set_apart

MORE_KEYS = 2  # times
ROWS_IN_FLOAT32 = 128  # of each head and prompt: what is wrong in the formula is wrong in most of them
WIDE_PER_ELEMENT = 4 * 16  # bytes in float32 of what a module makes of each element of its hidden states, roughly
WIDE_PER_SCORE = 4 * 3  # eager attention's scores, their softmax, and one of them in another dtype
HEAD = 64  # elements, where it is not known how many heads there are
_FUSED_UNCOMPILED = ("sdpa", "flash", "paged")  # implementations that write no maps out
_FUSED = (*_FUSED_UNCOMPILED, "flex")
Again = Callable[
    ..., AttentionPass
]  # the same passage through a float32 copy of its module, run within a context if one is given


@dataclass(frozen=True)
class Formula:
    """What a float32 run of a layer's module says of how the layer is read.

    Attributes
    ----------
    reading : int or None
        Which of the family's readings rebuilds what the module computes in float32; None where none does or none was tried.
    kind : tuple or None
        Its :func:`kind_of`.
    proof : Fidelity or None
        How well that one does.
    reason : str
        Why the formula is not decided, where there is no proof.
    failure : DiffscopeError or None
        To be raised when the layer's turn comes: no reading does.
    """

    reading: int | None = None
    kind: tuple | None = None
    proof: Fidelity | None = None
    reason: str = ""
    failure: DiffscopeError | None = None

    def judge(self, rounded: Fidelity, as_proved: bool) -> Fidelity:
        """How well a layer was rebuilt in half precision, with what float32 says of its formula.

        `as_proved` is whether the layer is read as it was in float32.
        """
        if self.proof is None:
            return replace(rounded, decided=False, reason=self.reason)
        if not as_proved:
            return replace(rounded, decided=False, reason="in float32 another of its readings was proved than fits this prompt")
        proof = self.proof
        judged = replace(rounded, decided=proof.decided, reason=proof.reason, error_float32=proof.error_float32)
        return replace(judged, lam_within=proof.lam_within)


def kind_of(layer: LayerAttention) -> tuple:
    """What tells one reading of a passage from another, in half precision as in float32, where scores may be scaled elsewhere."""
    pairing = tuple(None if index is None else tuple(index.tolist()) for index in vars(layer.pairing).values())
    numbers = layer.post_scale, layer.soft_cap
    return layer.mask.kind, layer.mask.window, numbers, layer.sink_logit is None, layer.norm is None, pairing


@dataclass
class Formulas:
    """The formulas of the passages that are under way, for all who look at the same passage: edits, and a capture under them.

    A formula holds for its own passage alone. What a module computes may depend on what no one sees from outside of it, such as a
    dictionary of the training's, and may be another the next time. Only a generation under edits, of which no proof is shown,
    counts as one run: its steps of one token go by the proof of an earlier one until there are twice as many keys.
    """

    _under_way: WeakKeyDictionary[nn.Module, tuple[Family, Formula]] = field(default_factory=WeakKeyDictionary)
    _steps: WeakKeyDictionary[Any, dict[nn.Module, _Step]] = field(default_factory=WeakKeyDictionary)  # by cache

    def begin(self, passage: AttentionPass) -> None:
        """Forget what is known of earlier passages through the module."""
        self._under_way.pop(passage.module, None)

    def prove(self, family: Family, passage: AttentionPass, again: Again, shown: bool) -> None:
        """Set ``passage.formula``, where the passage is in half precision.

        Parameters
        ----------
        family : Family
        passage : AttentionPass
            Whose module has not begun.
        again : callable
            Gives the same passage through a float32 copy of its module, run within a context if it is given one.
        shown : bool
            Whether somebody is shown the proof.
        """
        if not in_half(passage.module, passage.arguments):
            return
        step = passage.cached is not None and passage.hidden.shape[1] == 1
        if step and not shown:
            passage.formula = self._of_step(family, passage, again)
            return
        of_family, passage.formula = self._under_way.get(passage.module, (None, None))
        if of_family is not family:
            passage.formula = _in_float32(family, passage, again)
            self._under_way[passage.module] = family, passage.formula

    def _of_step(self, family: Family, passage: AttentionPass, again: Again) -> Formula:
        """The formula of a step of a generation."""
        assert passage.cached is not None
        keys = passage.cached[0].shape[-2]
        steps = self._steps.setdefault(passage.cache, {})
        before = steps.get(passage.module)
        if before is None or before.family is not family or keys >= MORE_KEYS * before.keys:
            before = steps[passage.module] = _Step(family, keys, _in_float32(family, passage, again))
        return before.formula


@dataclass(frozen=True)
class _Step:
    """The proof of a step of one token, and how many keys there were before it."""

    family: Family
    keys: int
    formula: Formula


NO_MEMORY = "there is not the memory to run its module in float32"


@exactly
@without_tf32
def _in_float32(family: Family, passage: AttentionPass, again: Again) -> Formula:
    """Run the module in float32, and find the reading that rebuilds what it computes."""
    free = free_memory(passage.hidden.device)
    if memory_needed(family, passage) > free:
        return Formula(reason=NO_MEMORY)
    formula = _tried(family, again, nullcontext())
    if formula.failure is None:
        return formula
    if memory_needed(family, passage, fused=_FUSED_UNCOMPILED) > free:
        return Formula(reason=NO_MEMORY)
    # If it casts to half precision by itself, what it would compute without that rounding tells.
    widening = _Widened()
    wider = _tried(family, again, widening)
    if not widening.seen:
        return formula
    unknown = wider.proof is None and wider.failure is None
    return Formula(reason="its module computes in half precision whatever it is given") if unknown else wider


def _tried(family: Family, again: Again, within: AbstractContextManager[Any]) -> Formula:
    """What one run of the module in float32, within a context, says."""
    try:
        wide = again(within)
    except torch.OutOfMemoryError:
        return Formula(reason=NO_MEMORY)
    except Exception as error:  # foreign code, in a dtype that it may not have been written for
        return Formula(reason=f"its module cannot be run in float32: {first_line(error)}")
    failed: list[tuple[LayerAttention, Fidelity]] = []
    try:
        set_apart(wide)
        for number, reading in enumerate(readings(family, wide)):
            layer = of_sequences(reading, wide)
            (proof,) = fidelities([layer], [wide.observed], rows=ROWS_IN_FLOAT32)
            proof = replace(proof, error_float32=proof.error)
            if proof.error <= proof.tolerance:
                return Formula(number, kind_of(reading), proof)
            failed.append((layer, proof))
    except FidelityError as error:  # not even of the right size
        return Formula(failure=error.with_traceback(None))  # which holds the copy
    except DiffscopeError as error:  # that it cannot be read; in half precision it will be said as well
        if not failed:
            return Formula(reason=first_line(error))
    layer, proof = failed[0]
    return Formula(failure=not_rebuilt(family, wide, layer, proof))


def not_rebuilt(family: Family, passage: AttentionPass, layer: LayerAttention, proof: Fidelity) -> DiffscopeError:
    """The error to raise of a passage that no reading rebuilds, by its first, with the likely cause if there is one."""
    if passage.pack and attends_across(layer, passage.observed):
        return UnsupportedModel(f"layer {layer.layer} {ACROSS}")
    suspects = [(meaning, of_sequences(suspect, passage)) for meaning, suspect in family.suspects(passage)]
    return mismatch(layer, passage.observed, proof, passage.module, suspects)


def memory_needed(family: Family, passage: AttentionPass, fused: tuple[str, ...] = _FUSED) -> int:
    """Bytes that a float32 run of the module takes, roughly: weights, what it makes of its input, and maps that it writes out.

    `fused` are how the names of implementations begin that write none out.
    """
    weights = sum(tensor.numel() for tensor in passage.module.parameters()) * 4
    given = sum(tensor.numel() for tensor in passage.arguments.values() if isinstance(tensor, torch.Tensor)) * 4
    need = weights + given + passage.hidden.numel() * WIDE_PER_ELEMENT
    config = getattr(passage.module, "config", None)
    implementation = own_implementation(str(getattr(config, "_attn_implementation", "")))
    if family.interface and implementation.startswith(fused):
        return need
    batch, queries, width = passage.hidden.shape
    before = 0 if passage.cached is None else passage.cached[0].shape[-2]
    maps = getattr(config, "num_attention_heads", None) or -(-width // HEAD)
    return need + maps * batch * queries * (queries + before) * WIDE_PER_SCORE


class _Widened(TorchDispatchMode):
    """Has everything that would be computed in half precision computed in float32, and notes whether there was any."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        args, kwargs = tree_map(self._wide, (args, kwargs or {}))
        return tree_map(self._wide, func(*args, **kwargs))

    def _wide(self, value: Any) -> Any:
        """A dtype or a tensor in half precision in float32; anything else as it is."""
        dtype = value.dtype if isinstance(value, torch.Tensor) else value
        if not isinstance(dtype, torch.dtype) or dtype not in HALF:
            return value
        self.seen = True
        return torch.float32 if value is dtype else value.float()
