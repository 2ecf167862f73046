"""Score the answers that a model gives to retrieval prompts, with edits or without."""

from __future__ import annotations

from collections.abc import Sequence

from diffscope.edits import Edit
from diffscope.scope import Scope
from diffscope.scope.answering import logits_of
from diffscope.tasks import scoring
from diffscope.tasks.prompt import Prompt


def answers(scope: Scope, prompts: Sequence[Prompt], *edits: Edit) -> scoring.Answers:
    """Score the answers of a model under `edits`; ``right`` is 1 or 0, so that means and differences can be taken."""
    with scope.edit(*edits):
        answered = scoring.answers(logits_of(scope), prompts, tokens=None)
    return answered._replace(right=answered.right.astype(float))


def with_answer(prompt: Prompt) -> list[int]:
    """Return a prompt's tokens and those of its answer but the last, which nothing follows."""
    return [*prompt.ids, *prompt.answer[:-1]]
