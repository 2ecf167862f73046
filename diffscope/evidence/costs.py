"""What a model's answers lose without a head, and without the second map of a head, of a layer, and of all: in nats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from diffscope import edits
from diffscope.edits import Edit
from diffscope.evidence.ablations import answers
from diffscope.scope import Scope
from diffscope.scope.heads import heads_by_layer
from diffscope.stats.ragged import stack_layers
from diffscope.tasks.prompt import Prompt

MEASURES = ["loss", "log_odds"]


def lost_without_heads(scope: Scope, prompts: Sequence[Prompt]) -> xr.DataArray:
    """Measure what answers lose without each head.

    Returns
    -------
    DataArray (measure, layer, head, prompt)
        By how much the ``loss`` of the answer rises, and by how much its ``log_odds`` against the distractors fall, in nats; NaN
        where there is no head, and log-odds of a prompt without distractors.
    """
    before = _answered(scope, prompts)
    heads = heads_by_layer(scope, prompts[0].ids)
    lost = [
        np.stack([_lost(scope, prompts, before, edits.ablate_heads(layers=layer, heads=head)) for head in range(count)], 1)
        for layer, count in heads.items()
    ]
    return xr.DataArray(stack_layers(lost, axis=1), {"measure": MEASURES}, ("measure", "layer", "head", "prompt"))


def lost_without_a2(scope: Scope, prompts: Sequence[Prompt]) -> xr.Dataset:
    """Measure what answers lose without the second map of each head, of each layer, and of all layers.

    Two heads of a layer may do one thing twice: then A2 of either costs nothing alone. So what A2 of a head costs is the mean of
    what it costs alone and of what it costs where A2 is out of the layer's other heads already: of two heads the Shapley value,
    whose sum over the layer is what all of the layer's A2 costs at once. Heads of other layers that stand in are not seen.

    Returns
    -------
    Dataset
        In nats, as :func:`lost_without_heads` has them: ``alone`` and ``after_others`` (measure, layer, head, prompt),
        ``of_head``, the mean of both, ``layer_together`` (measure, layer, prompt), and ``together`` (measure, prompt). NaN where
        there is no head or no second map.
    """
    before = _answered(scope, prompts)
    heads = heads_by_layer(scope, prompts[0].ids, with_a2=True)
    parts = [_lost_in_layer(scope, prompts, before, layer, heads.get(layer, 0)) for layer in scope.layer_numbers]
    alone, after = (stack_layers([part[number] for part in parts], axis=1) for number in range(2))
    everywhere = [edits.zero_a2(layers=layer) for layer in heads]
    together = _lost(scope, prompts, before, *everywhere) if everywhere else np.full_like(before, np.nan)
    by_head = ("measure", "layer", "head", "prompt")
    return xr.Dataset(
        {
            "alone": (by_head, alone),
            "after_others": (by_head, after),
            "of_head": (by_head, (alone + after) / 2),
            "layer_together": (("measure", "layer", "prompt"), np.stack([part[2] for part in parts], 1)),
            "together": (("measure", "prompt"), together),
        },
        {"measure": MEASURES},
    )


def _lost_in_layer(
    scope: Scope, prompts: Sequence[Prompt], before: np.ndarray, layer: int, heads: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Measure what is lost without A2 in one layer that has it in so many heads.

    Returns
    -------
    alone : ndarray (measure, head, prompt)
        Without that of each head.
    after_others : ndarray (measure, head, prompt)
        The same where that of the other heads is out already.
    together : ndarray (measure, prompt)
        Without that of all heads; NaN if there is none.
    """
    nothing = np.empty((len(MEASURES), 0, len(prompts)))
    if not heads:
        return nothing, nothing, np.full((len(MEASURES), len(prompts)), np.nan)
    together = _lost(scope, prompts, before, edits.zero_a2(layers=layer))
    alone, after = [], []
    for head in range(heads):
        others = [other for other in range(heads) if other != head]
        alone.append(_lost(scope, prompts, before, edits.zero_a2(layers=layer, heads=head)))
        without = _lost(scope, prompts, before, edits.zero_a2(layers=layer, heads=others)) if others else 0.0
        after.append(together - without)
    return np.stack(alone, 1), np.stack(after, 1), together


def _answered(scope: Scope, prompts: Sequence[Prompt], *under: Edit) -> np.ndarray:
    """Return loss and log-odds of answers, (measure, prompt)."""
    answered = answers(scope, prompts, *under)
    return np.stack([answered.loss, answered.log_odds])


def _lost(scope: Scope, prompts: Sequence[Prompt], before: np.ndarray, *under: Edit) -> np.ndarray:
    """Measure what is lost under edits, (measure, prompt): a loss that rises, log-odds that fall."""
    return (_answered(scope, prompts, *under) - before) * np.array([[1.0], [-1.0]])
