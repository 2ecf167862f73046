"""Find the reading of a passage that rebuilds what the model computed, or refuse.

A reading is one translation of a passage into :class:`LayerAttention`; a family may allow several (``Family.readings``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from diffscope.attention.layer import LayerAttention
from diffscope.attention.stacking import alike_to_the_end
from diffscope.edits.base import Edit, apply
from diffscope.errors import FidelityError, PromptError, UnsupportedModel
from diffscope.families import Family, Passage
from diffscope.families.float32 import HALF
from diffscope.proof.diagnosis import mismatch
from diffscope.proof.fidelity import Fidelity, fidelities
from diffscope.proof.formula import Formula, kind_of
from diffscope.proof.ownership import owned, readings

OFFLOADED = "the model's weights are offloaded; use a device_map of GPUs alone, or one device"


class Unproved(NamedTuple):
    """A passage with the first of its family's readings, None where there is none, and those still to come."""

    passage: Passage
    first: LayerAttention | None
    others: Iterator[LayerAttention]
    as_proved: bool  # whether they are of the kind that was proved in float32, where one was


def read_passage(family: Family, passage: Passage) -> Unproved:
    """Read a passage while what it holds is as it was: a model may go on to change its hidden states in place."""
    found = readings(family, passage)
    as_proved = True
    if passage.formula is not None and passage.formula.reading is not None:  # half precision could take another for it
        every = list(found)
        proved = _proved(every, passage.formula)
        as_proved = bool(proved)
        found = iter(proved or every)
    laid_out = (_laid_out(owned(layer, passage)) for layer in found)
    return Unproved(passage, next(laid_out, None), laid_out, as_proved)


def _proved(readings: list[LayerAttention], formula: Formula) -> list[LayerAttention]:
    """Those of a passage's readings that are what was proved in float32; another prompt may have others to choose from."""
    if len(readings) == 1:
        return readings
    alike = [kind_of(layer) == formula.kind for layer in readings]
    number = formula.reading
    if number is not None and number < len(readings) and alike[number]:
        return [readings[number]]
    return [layer for layer, is_alike in zip(readings, alike) if is_alike]


def _laid_out(layer: LayerAttention) -> LayerAttention:
    """A layer, on a CPU with the keys of each head side by side.

    A model's keys mostly lie token by token, each with all heads; so laid, products with those of one head are a fifth faster.
    """
    return layer if layer.q.device.type != "cpu" else replace(layer, q=layer.q.contiguous(), k=layer.k.contiguous())


def prove(family: Family, passage: Passage, edits: Sequence[Edit] = (), decide: bool = True) -> tuple[LayerAttention, Fidelity]:
    """:func:`prove_all` of one passage."""
    return next(prove_all(family, [read_passage(family, passage)], edits, decide))


def prove_all(
    family: Family, passages: Sequence[Unproved], edits: Sequence[Edit] = (), decide: bool = True
) -> Iterator[tuple[LayerAttention, Fidelity]]:
    """Of each passage the first reading that rebuilds what the model computed, with `edits` made to it, and how well it does.

    Several passages are proved as one stack of heads where their layers are alike.

    Raises
    ------
    FidelityError
        No reading of a passage rebuilds it; says what the first one lacks. Raised when its turn comes.
    PromptError
        Prompts of several lengths, of a model that may attend to their padding.
    UnsupportedModel
        The model's weights are offloaded.
    """
    proved = {} if edits else dict(_proved_as_one_stack(passages, decide))
    for index, unproved in enumerate(passages):
        formula = unproved.passage.formula
        if formula is not None and formula.failure is not None:
            raise formula.failure
        layer, proof = proved.get(index) or _first_that_fits(family, unproved, edits, decide)
        yield layer, formula.judge(proof, unproved.as_proved) if _is_judged(unproved.passage) else proof


def _proved_as_one_stack(passages: Sequence[Unproved], decide: bool) -> Iterator[tuple[int, tuple[LayerAttention, Fidelity]]]:
    """The passages, by index, whose first reading rebuilds what the model computed; none where they cannot be stacked."""
    layers = [passage.first for passage in passages if passage.first is not None]
    if len(layers) < max(2, len(passages)) or any(map(_offloaded, layers)) or not alike_to_the_end(layers):
        return
    with suppress(FidelityError):  # of heads that do not fill the output; said by the passage that has them
        decide = decide and not all(_is_judged(passage.passage) for passage in passages)
        proofs = fidelities(layers, [passage.passage.observed for passage in passages], decide)
        for index, (layer, proof) in enumerate(zip(layers, proofs)):
            if proof.error <= proof.tolerance:
                yield index, (layer, proof)


def _first_that_fits(family: Family, unproved: Unproved, edits: Sequence[Edit], decide: bool) -> tuple[LayerAttention, Fidelity]:
    """The first reading of one passage that rebuilds what the model computed; raises as :func:`prove_all`."""
    passage, first, others, _ = unproved
    decide = decide and not _is_judged(passage)
    failed: list[tuple[LayerAttention, Fidelity | FidelityError]] = []
    for reading in itertools.chain([first] if first else [], others):
        if _offloaded(reading):
            raise UnsupportedModel(OFFLOADED)
        layer = apply(edits, reading)
        try:
            (proof,) = fidelities([layer], [passage.observed], decide)
        except FidelityError as error:  # not even of the right size
            failed.append((layer, error))
            continue
        if proof.error <= proof.tolerance:
            return layer, proof
        failed.append((layer, proof))
    layer, reason = failed[0]
    if isinstance(reason, FidelityError):
        raise reason
    if len(set(layer.lengths)) > 1 and any(other.mask.kind == "full" for other, _ in failed[1:]):
        raise PromptError("this model may see all keys, padding too; give prompts of one length")
    suspects = [] if edits else list(family.suspects(passage))
    raise mismatch(layer, passage.observed, reason, passage.module, suspects)


def _is_judged(passage: Passage) -> bool:
    """Whether float32 says more of a passage than its own output does."""
    formula = passage.formula
    return formula is not None and (formula.proof is not None or passage.observed.dtype in HALF)


def _offloaded(layer: LayerAttention) -> bool:
    return any(tensor.is_meta for tensor in layer.dismantle()[0].values())
