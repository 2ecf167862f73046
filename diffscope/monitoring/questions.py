"""Score the answers of monitored prompts, as a model under way gives them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from diffscope.scope.answers import score_answers
from diffscope.scope.scope import Scope
from diffscope.tasks.prompt import Prompt

ANSWERED = ("answer_log_odds", "answer_loss", "answer_exact")  # averages over prompts


def digest(questions: Sequence[Prompt]) -> str:
    """Return what tells answers from others."""
    tokens = [[list(each.answer), [list(other) for other in each.distractors]] for each in questions]
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()


def averages(scope: Scope, questions: Sequence[Prompt]) -> dict[str, float]:
    """Return averages over prompts: log-odds of the answer in nats, its loss in nats a token, the share of exact answers."""
    scores = score_answers(scope, questions)
    odds = scores["log_odds"].values
    odds = odds[np.isfinite(odds)]
    known = {"answer_log_odds": float(odds.mean())} if len(odds) else {}
    return known | {"answer_loss": float(scores["loss"].mean()), "answer_exact": float(scores["exact"].mean())}
