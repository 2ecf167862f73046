"""How well a model answers retrieval prompts, as it is or under edits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from diffscope.edits import Edit
from diffscope.scope import Scope
from diffscope.tasks.retrieval import Prompt


@dataclass(frozen=True)
class Answers:
    """Loss and exactness of the answers to some prompts.

    Attributes
    ----------
    loss : ndarray (prompt,)
        Cross-entropy of the answer's tokens in nats, mean over them.
    right : ndarray (prompt,), float
        1 where every token of the answer is the model's first choice.
    """

    loss: np.ndarray
    right: np.ndarray


def answers(scope: Scope, prompts: Sequence[Prompt], *edits: Edit) -> Answers:
    """What a model makes of prompts with their answers appended, under `edits` if there are any."""
    loss, right = np.full(len(prompts), np.nan), np.zeros(len(prompts))
    shapes: dict[tuple[int, int], list[int]] = {}
    for index, prompt in enumerate(prompts):
        shapes.setdefault((len(prompt.ids), len(prompt.answer)), []).append(index)
    with scope.edit(*edits):
        for (length, width), found in shapes.items():
            each, exact = _of_shape(scope, [prompts[i] for i in found], length, width)
            loss[found], right[found] = each, exact
    return Answers(loss, right)


def _of_shape(scope: Scope, prompts: Sequence[Prompt], length: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    ids = torch.tensor([whole(prompt) for prompt in prompts], device=scope.runner.device)
    wanted = torch.tensor([prompt.answer for prompt in prompts], device=ids.device)  # (prompt, token)
    with scope.running((ids.shape[1],) * len(prompts)):
        logits = scope.runner.logits(ids, torch.ones_like(ids), columns=range(length - 1, length - 1 + width)).float()
    loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none").mean(1)
    return loss.double().cpu().numpy(), (logits.argmax(-1) == wanted).all(1).double().cpu().numpy()


def whole(prompt: Prompt) -> list[int]:
    """A prompt's tokens with those of its answer but the last, which nothing follows."""
    return [*prompt.ids, *prompt.answer[:-1]]
