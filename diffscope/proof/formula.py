"""The formula that a layer is read by, proved apart from rounding: by the layer's own module in float32.

Half precision rounds by more than a wrong λ, a soft cap or a sink changes, so that what it rebuilds says little about the
formula. The module itself is run once more, in float32, on what it was given, and the reading is held to float32's tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from diffscope.attention.layer import LayerAttention
from diffscope.attention.memory import free_memory
from diffscope.attention.precision import exactly, without_tf32
from diffscope.errors import DiffscopeError, FidelityError, first_line
from diffscope.families import Family, Passage
from diffscope.families.float32 import HALF, in_half
from diffscope.proof.diagnosis import mismatch
from diffscope.proof.fidelity import Fidelity, fidelities
from diffscope.proof.way import Way, memory_needed

LONGER = 2  # times: only from there on does a prompt show what an earlier one could not
Again = Callable[..., Passage]  # the same passage through a float32 copy of its module, run within a context if one is given


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
    failure : FidelityError or None
        To be raised when the layer's turn comes: no reading does.
    """

    reading: int | None = None
    kind: tuple | None = None
    proof: Fidelity | None = None
    reason: str = ""
    failure: FidelityError | None = None

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
    """What tells one reading of a passage from another."""
    pairing = tuple(None if index is None else tuple(index.tolist()) for index in vars(layer.pairing).values())
    return layer.mask.kind, layer.mask.window, layer.soft_cap, layer.sink_logit is None, layer.norm is None, pairing


@dataclass
class _Known:
    """What one kind of run of one module has shown so far."""

    formula: Formula
    way: Way


@dataclass
class Formulas:
    """The formulas of a model's layers, each proved once and again for what earlier runs could not show."""

    _known: WeakKeyDictionary[nn.Module, dict[Any, _Known]] = field(default_factory=WeakKeyDictionary)

    def prove(self, family: Family, passage: Passage, again: Again) -> None:
        """Set ``passage.formula``, where the passage is in half precision.

        Parameters
        ----------
        passage : Passage
            Whose module has not begun.
        again : callable
            Gives the same passage through a float32 copy of its module, run within a context if it is given one.
        """
        if not in_half(passage.module, passage.arguments):
            return
        known = self._known.setdefault(passage.module, {})
        way = Way.of(passage)
        before = known.get((family, way.kind))
        if before is not None and not _shows_more(way, before):
            passage.formula = before.formula
            return
        formula = _in_float32(family, passage, again)
        if formula.failure is None and formula.reason != NO_MEMORY:
            known[family, way.kind] = _Known(formula, way)
        passage.formula = formula


def _shows_more(way: Way, before: _Known) -> bool:
    """Whether a run can show what an earlier one of its kind could not."""
    if way.state != before.way.state:  # weights, settings or code are others
        return True
    if before.formula.proof is None and not way.one_token:
        return way.keys != before.way.keys
    decided = before.formula.proof is None or before.formula.proof.decided
    return way.keys > before.way.keys * (LONGER if decided else 1)


NO_MEMORY = "there is not the memory to run its module in float32"


@exactly
@without_tf32
def _in_float32(family: Family, passage: Passage, again: Again) -> Formula:
    """Run the module in float32, and find the reading that rebuilds what it computes."""
    if memory_needed(family, passage) > free_memory(passage.hidden.device):
        return Formula(reason=NO_MEMORY)
    watched = _Half(widen=False)
    formula = _tried(family, again, watched)
    if formula.proof is not None or formula.failure is None or not watched.seen:
        return formula
    # It casts to half precision by itself: what it would compute without that rounding tells.
    wider = _tried(family, again, _Half(widen=True))
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
        for number, layer in enumerate(family.readings(wide)):
            (proof,) = fidelities([layer], [wide.observed])
            proof = replace(proof, error_float32=proof.error)
            if proof.error <= proof.tolerance:
                return Formula(number, kind_of(layer), proof)
            failed.append((layer, proof))
    except FidelityError as error:  # not even of the right size
        return Formula(failure=error.with_traceback(None))  # which holds the copy
    except DiffscopeError as error:  # that it cannot be read; in half precision it will be said as well
        if not failed:
            return Formula(reason=first_line(error))
    layer, proof = failed[0]
    return Formula(failure=mismatch(layer, wide.observed, proof, wide.module, list(family.suspects(wide))))


def _wide_dtype(value: Any) -> Any:
    return torch.float32 if isinstance(value, torch.dtype) and value in HALF else value


class _Half(TorchDispatchMode):
    """Notes whether anything is computed in half precision; with `widen`, has it computed in float32 instead."""

    supports_higher_order_operators = True

    def __init__(self, widen: bool) -> None:
        super().__init__()
        self.widen = widen
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if self.widen:
            args, kwargs = tree_map(_wide_dtype, (args, kwargs))
        return tree_map(self._noted, func(*args, **(kwargs or {})))

    def _noted(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype not in HALF:
            return value
        self.seen = True
        return value.float() if self.widen else value
