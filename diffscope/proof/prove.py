"""Find the reading of a passage that rebuilds what the model computed, or refuse.

A reading is one translation of a passage into :class:`LayerAttention`; a family may allow several (``Family.readings``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from diffscope.attention.fidelity import Fidelity
from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import HALF
from diffscope.attention.stacking import can_stack
from diffscope.errors import DiffscopeError, FidelityError, PromptError, UnsupportedModel
from diffscope.families import AttentionPass, Family
from diffscope.families.interface import own_implementation
from diffscope.proof.fidelity import fidelities
from diffscope.proof.float32 import matching_readings
from diffscope.proof.readings import layer_of_sequences, observe_sequences, readings, unshared


@dataclass
class Reading:
    """Hold a passage with the first layer that its family reads in it, and the other layers that it allows.

    Attributes
    ----------
    family : Family
    passage : AttentionPass
    first : LayerAttention
    others : iterator of LayerAttention
        Read when they are asked for.
    matches : bool
        Whether the layers match the one proved in float32; true if none was.
    """

    family: Family
    passage: AttentionPass
    first: LayerAttention
    others: Iterator[LayerAttention]
    matches: bool

    @property
    def decided_in_float32(self) -> bool:
        """Whether the float32 run of the module says more of the layer than its own output does."""
        float32 = self.passage.float32
        return float32 is not None and (float32.fidelity is not None or self.passage.observed.dtype in HALF)


def read_passage(family: Family, passage: AttentionPass) -> Reading:
    """Read a passage before the model goes on: it may change its hidden states in place.

    Raises
    ------
    UnsupportedModel
        The family does not read the passage, its keys are not those of the prompt's tokens, the sequences of a pack see each
        other, or the model's weights are offloaded.
    """
    found = readings(family, passage)
    matches = True
    if passage.float32 is not None and passage.float32.reading is not None:  # half precision could take another for it
        every = list(found)
        matching = matching_readings(passage.float32, every)
        matches = bool(matching)
        found = iter(matching or every)
    checked = _with_keys_of_tokens(passage, found)
    layers = (unshared(layer_of_sequences(layer, passage), passage) for layer in checked)
    first = next(layers, None)
    if first is None:
        raise UnsupportedModel(
            f"layer {passage.number}: family {family.name!r} allows no reading of {type(passage.module).__name__}"
        )
    observe_sequences(passage)
    return Reading(family, passage, first, layers, matches)


def _with_keys_of_tokens(passage: AttentionPass, layers: Iterable[LayerAttention]) -> Iterator[LayerAttention]:
    """Yield layers; raise UnsupportedModel at one whose keys are not those of the prompt's tokens and of the cache before them.

    A cache of a window holds fewer; one that several rounds of a module share holds those of every round.
    """
    alone = 0 if passage.cache is None else None  # a part of the model that was called by itself
    before = passage.call.cached if passage.call else alone
    unknown = before is None or (passage.repeat and passage.cache is not None)
    for layer in layers:
        if layer.key_lengths is not None:
            if layer.n_keys < max(layer.key_lengths):
                raise UnsupportedModel(f"layer {layer.layer} looks at {layer.n_keys} keys of {max(layer.key_lengths)} tokens")
            yield layer
            continue
        tokens = layer.n_queries + (before or 0)
        if not unknown and (layer.n_keys > tokens or (layer.n_keys < tokens and not before)):
            kind = type(passage.module).__name__
            raise UnsupportedModel(
                f"layer {layer.layer}: {kind} attends to {layer.n_keys} keys where there are {tokens} tokens, so that keys are "
                "not those of the tokens (a learned prefix, a cartridge, meta tokens, merged keys); open the model without what "
                "adds or merges keys"
            )
        yield layer


def prove_passage(family: Family, passage: AttentionPass) -> tuple[LayerAttention, Fidelity]:
    """Read one passage, and :func:`prove` it."""
    return next(prove([read_passage(family, passage)]))


def prove(readings: Sequence[Reading], decide: bool = True) -> Iterator[tuple[LayerAttention, Fidelity]]:
    """Yield the first layer of each reading that rebuilds what the model computed, and how well it does.

    Several readings are rebuilt as one stack of heads if their layers are alike.

    Parameters
    ----------
    readings : sequence of Reading
    decide : bool
        Whether to try other pairings of the maps too.

    Raises
    ------
    FidelityError
        No layer of a reading rebuilds it; says what the first one lacks. Raised when its turn comes.
    PromptError
        Prompts have several lengths, and the model may attend to their padding.
    UnsupportedModel
        Eager attention was given a mask of true and false, or the sequences of a pack see each other.
    """
    together = len(readings) > 1 and can_stack([reading.first for reading in readings])
    for stack in [readings] if together else [[reading] for reading in readings]:
        pairings = decide and not all(reading.decided_in_float32 for reading in stack)
        rebuilt = _rebuilt([reading.first for reading in stack], [reading.passage.observed for reading in stack], pairings)
        for reading, of_first in zip(stack, rebuilt):
            float32 = reading.passage.float32
            if float32 is not None and float32.error is not None:
                raise _of_added_mask(reading.passage) or float32.error
            layer, fidelity = _first_that_fits(reading, of_first, pairings)
            if float32 is not None and reading.decided_in_float32:
                fidelity = float32.with_proof(fidelity, reading.matches)
            yield layer, fidelity


def _rebuilt(layers: list[LayerAttention], observed: list[Tensor], decide: bool) -> list[Fidelity | FidelityError]:
    """Rebuild a stack of layers; a layer whose heads do not fill the output has an error in place of a fidelity."""
    try:
        return list(fidelities(layers, observed, decide))
    except FidelityError as error:
        if len(layers) == 1:
            return [error]
        return [_rebuilt([layer], [tensor], decide)[0] for layer, tensor in zip(layers, observed)]


def _first_that_fits(reading: Reading, of_first: Fidelity | FidelityError, decide: bool) -> tuple[LayerAttention, Fidelity]:
    """Return the first layer of a reading that rebuilds what the model computed; errors as of :func:`prove`."""
    observed = reading.passage.observed
    of_others = ((layer, _rebuilt([layer], [observed], decide)[0]) for layer in reading.others)
    failed = []
    for layer, result in itertools.chain([(reading.first, of_first)], of_others):
        if isinstance(result, Fidelity) and result.error <= result.tolerance:
            return layer, result
        failed.append((layer, result))
    raise _refusal(reading, failed)


def _refusal(reading: Reading, failed: list[tuple[LayerAttention, Fidelity | FidelityError]]) -> DiffscopeError:
    """Return the error to raise of a reading of which no layer fits."""
    layer, result = failed[0]
    if isinstance(result, FidelityError):
        return result
    if len(set(layer.lengths)) > 1 and any(other.mask.kind == "full" for other, _ in failed[1:]):
        return PromptError("this model may see all keys, padding too; give prompts of one length")
    from diffscope.proof.diagnosis import not_rebuilt  # loaded on refusal alone

    return _of_added_mask(reading.passage) or not_rebuilt(reading.family, reading.passage, layer, result)


def _of_added_mask(passage: AttentionPass) -> UnsupportedModel | None:
    """Return why a layer cannot be rebuilt whose eager attention adds a mask of true and false to its scores."""
    eager = own_implementation(str(getattr(getattr(passage.module, "config", None), "_attn_implementation", ""))) == "eager"
    if not eager or not any(isinstance(call.mask, Tensor) and call.mask.dtype == torch.bool for call in passage.calls):
        return None
    return UnsupportedModel(
        f"layer {passage.number}: eager attention adds its mask to the scores, and one of true and false adds 1 and 0 and hides "
        "no key; give a mask of 0 and the dtype's lowest number, or load the model with attn_implementation='sdpa'"
    )


class EditedLayer(NamedTuple):
    """Hold a layer that edits changed, after the unedited layer was proved.

    Attributes
    ----------
    layer : LayerAttention
        With the edits made to it.
    fidelity : Fidelity
        How well the layer without edits rebuilt what the model itself computed.
    output : Tensor, as it enters the output projection
        What the edited layer computes, and the model goes on with.
    """

    layer: LayerAttention
    fidelity: Fidelity
    output: Tensor

    def check(self, passage: AttentionPass) -> None:
        """Raise FidelityError unless what entered the output projection is what the edited layer computes.

        It is if nothing changed it after the edits. If something did, it may still be within rounding.

        Parameters
        ----------
        passage : AttentionPass
            The passage as it is after the edits.
        """
        if torch.equal(passage.observed, self.output):
            return
        observe_sequences(passage)
        (result,) = fidelities([self.layer], [passage.observed], decide=False)
        if not result.error <= result.tolerance:
            from diffscope.proof.diagnosis import mismatch  # loaded on refusal alone

            raise mismatch(self.layer, passage.observed, result, passage.module)
