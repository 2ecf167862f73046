"""Whether the second map carries signal with a minus sign: where it looks, and what its sign and what it sees are worth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr

from diffscope import edits
from diffscope.attention.changes import ScatterNegatives
from diffscope.attention.layer import LayerAttention
from diffscope.edits.base import Edit, Stage
from diffscope.errors import PromptError
from diffscope.evidence.ablations import answers
from diffscope.evidence.last_query import BATCH
from diffscope.evidence.untrained import Match, matched
from diffscope.prompts.selection import Indices
from diffscope.scope import Scope
from diffscope.stats.ragged import stack_layers
from diffscope.tasks.prompt import Prompt

SEED = 0  # of the keys that negative weights are scattered to
BLINDED = {"A2": (2, 1), "A1": (1, 1), "A2 elsewhere": (2, 2)}  # the map, and how far before the number the hidden key is
SIGNS = ["negative", "scattered", "plus", "zero"]


def scattered_negatives(layers: Indices = None, seed: int = SEED) -> Edit:
    """Return the control of D⁺: what setting negative weights to 0 adds to a row is added at keys drawn at random instead."""
    label = "negative weights of D made up for at random keys"
    return Edit(label, lambda layer, heads: ScatterNegatives(heads, seed), Stage.DIFFERENCE, layers)


def rises_by_signs(scope: Scope, prompts: Sequence[Prompt]) -> xr.Dataset:
    """Measure how much the loss of the answer rises if signs are taken away.

    Returns
    -------
    Dataset
        In nats, ``layers`` (change, layer, prompt) in one layer and ``together`` (change, prompt) in all: ``negative``, D's
        negative weights are 0; ``scattered``, as much is added at random keys; ``plus``, A1 + λA2; ``zero``, no A2.
    """
    before = answers(scope, prompts).loss
    table = np.full((len(SIGNS), len(scope.layer_numbers) + 1, len(prompts)), np.nan)
    for place, layer in enumerate((*scope.layer_numbers, None)):
        changes = {
            "negative": edits.d_plus(layers=layer),
            "scattered": scattered_negatives(layer),
            "plus": edits.scale_lambda(-1.0, layers=layer),
            "zero": edits.zero_a2(layers=layer),
        }
        for number, name in enumerate(SIGNS):
            table[number, place] = answers(scope, prompts, changes[name]).loss - before
    return xr.Dataset(
        {
            "layers": (("change", "layer", "prompt"), table[:, :-1]),
            "together": (("change", "prompt"), table[:, -1]),
        },
        {"change": SIGNS},
    )


def previous_token_share(scope: Scope, prompts: Sequence[Prompt], match: Sequence[Match] | None = None) -> xr.Dataset:
    """Measure what the two maps give to the token before the answer's number, at the number's first token: the city, in a lookup.

    A head that looks there makes a number findable by its city, which is the first half of a lookup.

    Parameters
    ----------
    match : list of Match, optional
        Of another model's layers, which each layer is made like.

    Returns
    -------
    Dataset (prompt, layer, head)
        ``a1`` and ``a2``, masses from 0 to 1; ``a2`` is NaN without a second map.
    """
    shares: list[np.ndarray] = []
    for first in range(0, len(prompts), BATCH):
        batch = prompts[first : first + BATCH]
        layers = scope.capture([prompt.ids for prompt in batch]).layers
        if match is not None:
            layers = [matched(*two) for two in zip(layers, match, strict=True)]
        shares += [_on_previous(layers, index, start_of_number(prompt)) for index, prompt in enumerate(batch)]
    table = np.stack(shares)  # (prompt, map, layer, head)
    dims = ("prompt", "layer", "head")
    return xr.Dataset({name: (dims, table[:, number]) for number, name in enumerate(("a1", "a2"))})


def _on_previous(layers: Sequence[LayerAttention], index: int, query: int) -> np.ndarray:
    """Return masses of one prompt on the token before a query: (map, layer, head)."""
    shares = []
    for layer in layers:
        maps = layer.prompt(index).rows([query])
        nothing = torch.full_like(maps.a1, torch.nan)
        both = torch.stack([maps.a1, nothing if maps.a2 is None else maps.a2])  # (map, head, query, key)
        shares.append(both[:, :, 0, query - 1].float().cpu().numpy())
    return stack_layers(shares, axis=1)


def start_of_number(prompt: Prompt) -> int:
    """Return where the text states the answer.

    Raises PromptError if it does not, or nothing stands before it.
    """
    start = min(prompt.spans.get("answer") or [0])
    if not start:
        raise PromptError("the prompt states no answer that a map could look back from")
    return start


def rises_when_blind(scope: Scope, prompts: Sequence[Prompt]) -> xr.DataArray:
    """Measure how much the loss of the answer rises if a map no longer sees one key, at the first token of the answer's number.

    Returns
    -------
    DataArray (blind, prompt)
        In nats: ``A2`` and ``A1`` do not see the token before the number, ``A2 elsewhere`` not the one before that. What a map
        loses there its other keys get.
    """
    table = np.full((len(BLINDED), len(prompts)), np.nan)
    before = answers(scope, prompts).loss
    for index, prompt in enumerate(prompts):
        start = start_of_number(prompt)
        for number, (branch, back) in enumerate(BLINDED.values()):
            if start >= back:
                edit = edits.knock_out([start - back], [start], branch=branch)
                table[number, index] = answers(scope, [prompt], edit).loss[0] - before[index]
    return xr.DataArray(table, {"blind": list(BLINDED)}, ("blind", "prompt"))
