"""Find the reading of a layer that rebuilds what the model computed, or refuse."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from diffscope.attention.layer import LayerAttention
from diffscope.attention.stacking import alike_to_the_end
from diffscope.edits.base import Edit, apply
from diffscope.errors import FidelityError, UnsupportedModel
from diffscope.families import Family, Passage
from diffscope.proof.diagnosis import refusal
from diffscope.proof.fidelity import Fidelity, fidelities, fidelity

OFFLOADED = "the model's weights are offloaded; use a device_map of GPUs alone, or one device"


class Read(NamedTuple):
    """A passage with the first of its family's readings, None where there is none, and those still to come."""

    passage: Passage
    first: LayerAttention | None
    others: Iterator[LayerAttention]


def read(family: Family, passage: Passage) -> Read:
    """Read a passage while what it holds is as it was: a model may go on to change its hidden states in place."""
    readings = _readings(family, passage)
    return Read(passage, next(readings, None), readings)


def prove(
    family: Family, passage: Passage | Read, edits: Sequence[Edit] = (), decide: bool = True
) -> tuple[LayerAttention, Fidelity]:
    """The reading of a passage that rebuilds what the model computed, and how well it does.

    Raises
    ------
    FidelityError
        No reading does; says what the first one lacks.
    """
    passage, first, others = passage if isinstance(passage, Read) else read(family, passage)
    failed: list[tuple[LayerAttention, Fidelity | FidelityError]] = []
    for layer in itertools.chain([first], others) if first else ():
        if _offloaded(layer):
            raise UnsupportedModel(OFFLOADED)
        layer = apply(edits, layer)
        try:
            proof = fidelity(layer, passage.observed, decide)
        except FidelityError as error:  # not even of the right size
            failed.append((layer, error))
            continue
        if proof.error <= proof.tolerance:
            return layer, proof
        failed.append((layer, proof))
    layer, proof = failed[0]
    if isinstance(proof, FidelityError):
        raise proof
    suspects = [] if edits else list(family.suspects(passage))
    raise refusal(layer, passage.observed, proof, passage.module, suspects)


def _readings(family: Family, passage: Passage) -> Iterator[LayerAttention]:
    """The family's readings. A model's keys mostly lie token by token, each with all heads; products with those of one head are a
    fifth faster on a CPU where they lie together."""
    for layer in family.readings(passage):
        yield layer if layer.q.device.type != "cpu" else replace(layer, q=layer.q.contiguous(), k=layer.k.contiguous())


def _offloaded(layer: LayerAttention) -> bool:
    return any(tensor.is_meta for tensor in layer.dismantle()[0].values())


def prove_all(family: Family, passages: Sequence[Read], edits: Sequence[Edit] = ()) -> Iterator[tuple[LayerAttention, Fidelity]]:
    """:func:`prove` of several passages, together where they are of one prompt and alike.

    Raises
    ------
    FidelityError
        As of :func:`prove`, at the passage that cannot be proved.
    """
    layers = [passage.first for passage in passages]
    together: list[Fidelity | None] = [None] * len(passages)
    of_one_prompt = all(layer and len(layer.lengths) == 1 and not _offloaded(layer) for layer in layers)
    if len(layers) > 1 and not edits and of_one_prompt and alike_to_the_end(layers):
        with suppress(FidelityError):  # of heads that do not fill the output; said by the passage that has them
            together = fidelities(layers, [one.passage.observed for one in passages])
    for one, proof in zip(passages, together):
        fits = proof is not None and proof.error <= proof.tolerance
        yield (one.first, proof) if fits else prove(family, one, edits)
