"""Packs in a proof: what was read and what was observed of one row, as the batch of its sequences, which is what is shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from diffscope.attention.components import Mask
from diffscope.attention.layer import LayerAttention
from diffscope.families import AttentionPass
from diffscope.families.packs import apart, together, unpacked
from diffscope.proof.fidelity import fidelities

_BY_TOKEN = ("q", "k", "v", "lam", "gain", "lam_fp32", "sink_logit", "gate")


def of_sequences(layer: LayerAttention, passage: AttentionPass) -> LayerAttention:
    """A reading of a passage; of a pack, that of a batch of its sequences.

    Raises
    ------
    UnsupportedModel
        The sequences of the pack see each other, or the reading cannot be taken apart.
    """
    if passage.pack is None:
        return layer
    return unpacked(layer, passage.pack, next((call.window for call in passage.calls if call.window), None))


def set_apart(passage: AttentionPass) -> None:
    """Set what was observed of a pack to that of a batch of its sequences."""
    if passage.pack:
        passage.observed = apart(passage.observed, passage.pack, 1)


def attends_across(layer: LayerAttention, observed: Tensor) -> bool:
    """Whether the row of a pack, read as one sequence, rebuilds what the model computed.

    Parameters
    ----------
    layer : LayerAttention
        Of the batch of its sequences.
    observed : Tensor, (sequence, query, head·width)
        What entered the output projection, of the same batch.
    """
    lengths = layer.lengths

    def joined(x: Tensor) -> Tensor:  # (sequence, head, token, ...), or of one for all
        return x if len(x) == 1 else together(x.transpose(1, 2), lengths).transpose(1, 2)

    parts: dict[str, Any] = {name: joined(x) for name in _BY_TOKEN if (x := getattr(layer, name)) is not None}
    mask = layer.mask if layer.mask.visible is None else Mask("causal")
    row = replace(layer, **parts, mask=mask, lengths=(sum(lengths),))
    (proof,) = fidelities([row], [together(observed, lengths)], decide=False)
    return proof.error <= proof.tolerance
