"""Score the answers of monitored prompts, as a model under way gives them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from diffscope.scope.answers import encode_questions, score_answers
from diffscope.scope.runners import Inputs
from diffscope.scope.scope import Scope

ANSWERED = ("answer_log_odds", "answer_loss", "answer_exact")  # averages over prompts


class Questions:
    """Prompts with their answers, in the tokens of a model.

    Raises
    ------
    PromptError
        As of :meth:`diffscope.Scope.answer`.
    """

    def __init__(self, scope: Scope, inputs: Inputs, answers: str | Sequence[str], distractors: Any) -> None:
        self._questions = encode_questions(scope, inputs, answers, distractors)

    @property
    def digest(self) -> str:
        """What tells these answers from others."""
        tokens = [[list(each.answer), [list(other) for other in each.distractors]] for each in self._questions]
        return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()

    def scores(self, scope: Scope) -> dict[str, float]:
        """Return averages over prompts: log-odds of the answer in nats, its loss in nats a token, the share of exact answers."""
        scores = score_answers(scope, self._questions)
        odds = scores["log_odds"].values
        odds = odds[np.isfinite(odds)]
        known = {"answer_log_odds": float(odds.mean())} if len(odds) else {}
        return known | {"answer_loss": float(scores["loss"].mean()), "answer_exact": float(scores["exact"].mean())}
