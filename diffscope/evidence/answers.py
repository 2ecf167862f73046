"""How well a model answers retrieval prompts, as it is or under edits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

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
