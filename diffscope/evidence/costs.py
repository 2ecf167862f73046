"""What a model's answers lose without a head, and without the second map of a head, of a layer, and of all: in nats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from diffscope import edits
from diffscope.edits import Edit
from diffscope.evidence.answers import answers
from diffscope.scope import Scope
from diffscope.stats.ragged import stack_layers
from diffscope.tasks.prompt import Prompt

ENOUGH = 8  # tokens, to see what heads there are
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
    heads = heads_of(scope, prompts[0].ids)
    lost = [
        np.stack([_lost(scope, prompts, before, edits.ablate_heads(layer, head)) for head in range(count)], 1)
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
    heads = heads_of(scope, prompts[0].ids, differential=True)
    alone, after = _table(heads, len(prompts)), _table(heads, len(prompts))
    whole = np.full((len(MEASURES), len(heads), len(prompts)), np.nan)
    for number, (layer, count) in enumerate(heads.items()):
        if not count:
            continue
        whole[:, number] = _lost(scope, prompts, before, edits.zero_a2(layers=layer))
        for head in range(count):
            others = [other for other in range(count) if other != head]
            alone[:, number, head] = _lost(scope, prompts, before, edits.zero_a2(layers=layer, heads=head))
            without = _lost(scope, prompts, before, edits.zero_a2(layers=layer, heads=others)) if others else 0.0
            after[:, number, head] = whole[:, number] - without
    together = _lost(scope, prompts, before, *(edits.zero_a2(layers=layer) for layer, count in heads.items() if count))
    by_head = ("measure", "layer", "head", "prompt")
    return xr.Dataset(
        {
            "alone": (by_head, alone),
            "after_others": (by_head, after),
            "of_head": (by_head, (alone + after) / 2),
            "layer_together": (("measure", "layer", "prompt"), whole),
            "together": (("measure", "prompt"), together),
        },
        {"measure": MEASURES},
    )


def heads_of(scope: Scope, ids: Sequence[int], differential: bool = False) -> dict[int, int]:
    """Return how many heads each layer has, by the layer's number; with `differential` 0 of a layer without a second map."""
    layers = scope.capture(list(ids)[:ENOUGH]).layers
    return {layer.layer: layer.n_heads if layer.differential or not differential else 0 for layer in layers}


def _table(heads: dict[int, int], prompts: int) -> np.ndarray:
    """Return a table of NaN, (measure, layer, head, prompt)."""
    return np.full((len(MEASURES), len(heads), max(heads.values()), prompts), np.nan)


def _answered(scope: Scope, prompts: Sequence[Prompt], *edits: Edit) -> np.ndarray:
    """Return loss and log-odds of answers, (measure, prompt)."""
    answered = answers(scope, prompts, *edits)
    return np.stack([answered.loss, answered.log_odds])


def _lost(scope: Scope, prompts: Sequence[Prompt], before: np.ndarray, *edits: Edit) -> np.ndarray:
    """Measure what is lost under edits, (measure, prompt): a loss that rises, log-odds that fall."""
    return (_answered(scope, prompts, *edits) - before) * np.array([[1.0], [-1.0]])
