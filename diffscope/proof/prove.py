"""Find the reading of a passage that rebuilds what the model computed, or refuse.

A reading is one translation of a passage into :class:`LayerAttention`; a family may allow several (``Family.readings``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from diffscope.attention.fidelity import Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import HALF
from diffscope.attention.stacking import alike_to_the_end
from diffscope.edits.base import Edit, apply
from diffscope.errors import FidelityError, PromptError, UnsupportedModel
from diffscope.families import AttentionPass, Family
from diffscope.families.hooks import own_implementation
from diffscope.proof.fidelity import fidelities
from diffscope.proof.float32 import matching_readings
from diffscope.proof.ownership import owned, readings
from diffscope.proof.sequences import of_sequences, set_apart

OFFLOADED = "the model's weights are offloaded, or on the meta device; use a device_map of GPUs alone, or one device"


class Unproved(NamedTuple):
    """A passage with the first of its family's readings, None where there is none, and those still to come."""

    passage: AttentionPass
    first: LayerAttention | None
    others: Iterator[LayerAttention]
    as_proved: bool  # whether the readings are of the kind that float32 proved; true if none was proved


def read_passage(family: Family, passage: AttentionPass) -> Unproved:
    """Read a passage while what it holds is as it was: a model may go on to change its hidden states in place.

    Raises
    ------
    UnsupportedModel
        The family does not read it, its keys are not those of the prompt's tokens, or the sequences of a pack see each other.
    """
    found = readings(family, passage)
    as_proved = True
    if passage.float32 is not None and passage.float32.reading is not None:  # half precision could take another for it
        every = list(found)
        proved = matching_readings(passage.float32, every)
        as_proved = bool(proved)
        found = iter(proved or every)
    laid_out = (_laid_out(owned(_checked(passage, layer), passage)) for layer in found)
    first = next(laid_out, None)
    set_apart(passage)
    return Unproved(passage, first, laid_out, as_proved)


def _checked(passage: AttentionPass, layer: LayerAttention) -> LayerAttention:
    """A layer whose keys are those of its tokens; of a pack, that of a batch of its sequences."""
    _check_keys(passage, layer)
    return of_sequences(layer, passage)


def _check_keys(passage: AttentionPass, layer: LayerAttention) -> None:
    """Raise UnsupportedModel where a layer's keys are others than those of the prompt's tokens and of the cache it came with.

    A cache of a window holds fewer; one that several rounds of a module share holds those of every round.
    """
    alone = 0 if passage.cache is None else None  # a part of the model that somebody called by itself
    before = passage.call.cached if passage.call else alone
    if before is None or (passage.repeat and passage.cache is not None):
        return
    tokens = before + layer.n_queries
    if layer.n_keys > tokens or (layer.n_keys < tokens and not before):
        kind = type(passage.module).__name__
        raise UnsupportedModel(
            f"layer {layer.layer}: {kind} attends to {layer.n_keys} keys where there are {tokens} tokens, so that keys are not "
            "those of the tokens (a learned prefix, a cartridge, meta tokens, merged keys); open the model without what adds or "
            "merges keys"
        )


def _laid_out(layer: LayerAttention) -> LayerAttention:
    """A layer, on a CPU with the keys of each head side by side.

    A model's keys mostly lie token by token, each with all heads; so laid, products with those of one head are a fifth faster.
    """
    return layer if layer.q.device.type != "cpu" else replace(layer, q=layer.q.contiguous(), k=layer.k.contiguous())


def prove(
    family: Family, passage: AttentionPass, edits: Sequence[Edit] = (), decide: bool = True
) -> tuple[LayerAttention, Fidelity]:
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
        float32 = unproved.passage.float32
        if float32 is not None and float32.error is not None:
            raise _of_added_mask(unproved.passage) or float32.error
        layer, proof = proved.get(index) or _first_that_fits(family, unproved, edits, decide)
        yield layer, float32.with_proof(proof, unproved.as_proved) if _is_judged(unproved.passage) else proof


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
    if added := _of_added_mask(passage):
        raise added
    from diffscope.proof.diagnosis import mismatch, not_rebuilt  # loaded on refusal alone

    raise not_rebuilt(family, passage, layer, reason) if not edits else mismatch(layer, passage.observed, reason, passage.module)


def _of_added_mask(passage: AttentionPass) -> UnsupportedModel | None:
    """Why a layer cannot be rebuilt whose eager attention was given a mask of true and false, which it adds to its scores."""
    eager = own_implementation(str(getattr(getattr(passage.module, "config", None), "_attn_implementation", ""))) == "eager"
    if not eager or not any(isinstance(call.mask, Tensor) and call.mask.dtype == torch.bool for call in passage.calls):
        return None
    return UnsupportedModel(
        f"layer {passage.number}: eager attention adds its mask to the scores, and one of true and false adds 1 and 0 and hides "
        "no key; give a mask of 0 and the dtype's lowest number, or load the model with attn_implementation='sdpa'"
    )


def _is_judged(passage: AttentionPass) -> bool:
    """Whether float32 says more of a passage than its own output does."""
    float32 = passage.float32
    return float32 is not None and (float32.fidelity is not None or passage.observed.dtype in HALF)


def _offloaded(layer: LayerAttention) -> bool:
    return any(tensor.is_meta for tensor in layer.to_tensors()[0].values())
