"""How well a model answers retrieval prompts, as it is or under edits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr

from diffscope import edits
from diffscope.edits import Edit
from diffscope.lab import scoring
from diffscope.scope import Scope
from diffscope.tasks.retrieval import Prompt


def answers(scope: Scope, prompts: Sequence[Prompt], *edits: Edit) -> scoring.Answers:
    """How well a model predicts the answers of prompts, under `edits` if there are any."""

    def logits(ids: torch.Tensor, width: int) -> torch.Tensor:
        with scope.running((ids.shape[1],) * len(ids)):
            return scope.runner.logits(ids, torch.ones_like(ids), columns=range(ids.shape[1] - width, ids.shape[1]))

    with scope.edit(*edits):
        answered = scoring.answers(logits, prompts, scope.runner.device)
    return answered._replace(right=answered.right.astype(float))


def with_answer(prompt: Prompt) -> list[int]:
    """A prompt's tokens with those of its answer but the last, which nothing follows."""
    return [*prompt.ids, *prompt.answer[:-1]]


def lost_without_heads(scope: Scope, prompts: Sequence[Prompt]) -> xr.DataArray:
    """By how much the loss of the answer rises without each head, (layer, head, prompt), in nats; NaN where there is no head."""
    layers = scope.capture(prompts[0].ids).layers
    before = answers(scope, prompts).loss
    lost = np.full((len(layers), max(layer.n_heads for layer in layers), len(prompts)), np.nan)
    for number, layer in enumerate(layers):
        for head in range(layer.n_heads):
            lost[number, head] = answers(scope, prompts, edits.ablate_heads(layer.layer, head)).loss - before
    return xr.DataArray(lost, dims=("layer", "head", "prompt"))
