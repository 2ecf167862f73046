"""What a model says next before and after a change: tokens, and the probability and log-odds of an answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from transformers import PreTrainedTokenizerBase

from diffscope.capture.capture import Capture
from diffscope.numbers import counted, course, two_figures
from diffscope.readings.reading import Reading, described
from diffscope.scope import Scope
from diffscope.scope import answers as answering
from diffscope.tasks import Prompt

SIDES = ("before", "after")


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model says next.

    Attributes
    ----------
    log_p : ndarray, (vocabulary,)
        Log probability of each token as the next one, in nats.
    answer : float
        Log probability of the answer, of all its tokens one after the other; NaN without an answer.
    log_odds : float
        Of the answer against its distractors as :func:`diffscope.tasks.log_odds.log_odds` has them; where there are none, against
        all else that the model may say: log p − log(1 − p). NaN without an answer.
    distractors : int
        How many there are.
    """

    log_p: np.ndarray
    answer: float = math.nan
    log_odds: float = math.nan
    distractors: int = 0


def asked(scope: Scope, cap: Capture, answer: str, distractors: Sequence[str] = ()) -> Prompt:
    """The prompt of a capture with what is to come next, in tokens: :func:`diffscope.scope.answers.encode_question`."""
    return answering.encode_question(scope, cap.prompts[0], answer, distractors)


def predict(scope: Scope, cap: Capture, question: Prompt | None = None) -> Prediction:
    """What a model says after the prompt of a capture, under the edits that are on.

    Parameters
    ----------
    scope : Scope
    cap : Capture
        Of the prompt, under whatever edits: only its tokens count.
    question : Prompt, optional
        What :func:`asked` gives, for the answer.
    """
    following = scope.logits(torch.tensor([cap.ids]), 1)[0, 0].double().log_softmax(-1)
    if question is None:
        return Prediction(following.cpu().numpy())
    answer = answering.score_answers(scope, [question])
    log_p, odds = float(answer["log_p"][0]), float(answer["log_odds"][0])
    return Prediction(following.cpu().numpy(), log_p, odds, len(question.distractors))


def next_tokens(before: Prediction, after: Prediction, tokenizer: PreTrainedTokenizerBase | None, count: int = 5) -> xr.Dataset:
    """The most probable next tokens of either side, beside each other.

    Parameters
    ----------
    before, after : Prediction
    tokenizer : PreTrainedTokenizerBase or None
        Without one, tokens are called by their ids.
    count : int
        The most of each side; one that both have is one row.

    Returns
    -------
    Dataset
        ``probability`` (token, side) and ``change`` (token,), those with the largest probability on either side first;
        ``text`` (token,).
    """
    likely = np.stack([before.log_p, after.log_p])  # (side, token)
    best = np.unique(np.argsort(-likely, axis=1, kind="stable")[:, :count])
    ids = best[np.argsort(-likely[:, best].max(0), kind="stable")]
    texts = [str(token) if tokenizer is None else str(tokenizer.decode([token])) for token in ids]
    coords = {"token": ids, "side": list(SIDES), "text": ("token", texts)}
    probability = xr.DataArray(np.exp(likely[:, ids].T), coords, ("token", "side"))
    change = probability.sel(side="after", drop=True) - probability.sel(side="before", drop=True)
    return xr.Dataset(
        {
            "probability": described(probability, "probability as the next token", "softmax of the logits"),
            "change": described(change, "change of the probability", "after - before"),
        }
    )


def answers(before: Prediction, after: Prediction) -> Reading:
    """The answer before and after, beside what no preference would be.

    Returns
    -------
    Reading
        ``estimates``: ``probability`` and ``log_odds`` (side,) of the answer, and ``indifferent``, the log-odds of an answer that
        is as likely as each distractor; NaN without an answer, or without distractors.
    """
    chance = -math.log(before.distractors) if before.distractors else math.nan
    against = counted(before.distractors, "distractor") if before.distractors else "all else"
    sides = {"side": list(SIDES)}
    probability = xr.DataArray([math.exp(side.answer) for side in (before, after)], sides)
    odds = xr.DataArray([side.log_odds for side in (before, after)], sides)
    variables = {
        "probability": described(probability, "probability of the answer", "product over its tokens"),
        "log_odds": described(odds, f"log-odds of the answer against {against}", "log p / q", "nats"),
        "indifferent": described(xr.DataArray(chance), "log-odds where all are as likely", "-log n, n distractors", "nats"),
    }
    estimates = xr.Dataset(variables, attrs={"against": against})
    return Reading(_sentence(before, after, against, chance), estimates)


def _sentence(before: Prediction, after: Prediction, against: str, chance: float) -> str:
    if math.isnan(before.answer):
        return "No answer is given, so that there are no log-odds."
    odds = course(before.log_odds, after.log_odds, plural=True)
    words = f"Log-odds of the answer against {against} {odds}, in nats"
    if math.isnan(chance):
        return f"{words}; at 0 it would be as likely as all else together."
    if not chance:
        return f"{words}; at 0 both would be as likely."
    return f"{words}; at 0 it would be as likely as all of them together, at {two_figures(chance)} as each."
