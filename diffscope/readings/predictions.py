"""What a model says next before and after a change: tokens, and the probability and log-odds of an answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from diffscope.capture import Capture
from diffscope.errors import PromptError, SpanError
from diffscope.lab.odds import log_odds
from diffscope.prompts import Chars, encode
from diffscope.readings.reading import Reading, described
from diffscope.readings.words import counted, figures
from diffscope.scope import Scope
from diffscope.tasks import Prompt, TextPrompt, own_prompts

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
        Of the answer against its distractors as :func:`diffscope.lab.odds.log_odds` has them; where there are none, against all
        else that the model may say: log p − log(1 − p). NaN without an answer.
    distractors : int
        How many there are.
    """

    log_p: np.ndarray
    answer: float = math.nan
    log_odds: float = math.nan
    distractors: int = 0


def asked(scope: Scope, cap: Capture, answer: str, distractors: Sequence[str] = ()) -> Prompt:
    """The prompt of a capture with what is to come next, in the tokens of the model.

    Where the prompt states the answer as its span ``answer``, the white space before the answer is that before the span. All that
    is said of a person's own prompts holds (:func:`diffscope.tasks.own_prompts`); the answer of a chat begins its reply.

    Raises
    ------
    PromptError
        There is no tokenizer, an answer or distractor is empty or cannot be told from the end of the prompt, or is beyond the
        model's positions.
    """
    if scope.tokenizer is None:
        raise PromptError(f"{scope.name} came without a tokenizer, so that an answer cannot be read; load it with one")
    if not answer.strip() or not all(text.strip() for text in distractors):
        raise PromptError("an answer or distractor is empty; give the text that may come next")
    if cap.text is None or list(encode(scope.tokenizer, cap.text).ids) != cap.ids:
        texts = [text.strip() for text in (answer, *distractors)]
        candidates = [list(scope.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
        question = Prompt(cap.ids, candidates[0], cap.spans, distractors=candidates[1:])
    else:
        spans = {"answer": _characters(cap)} if "answer" in cap.spans else {}
        question = _own(scope, TextPrompt("", cap.text, spans, answer, tuple(text.strip() for text in distractors)))
    length = len(question.ids) + max(map(len, (question.answer, *question.distractors))) - 1
    if scope.positions is not None and length > scope.positions:
        raise PromptError(f"with its answer the prompt has {length} tokens, and {scope.name} has positions for {scope.positions}")
    return question


def _own(scope: Scope, prompt: TextPrompt) -> Prompt:
    """A prompt that has no name in the tokens of a model; nor has it one in errors."""
    try:
        return own_prompts(scope.tokenizer, [prompt])[0]
    except (PromptError, SpanError) as error:
        raise type(error)(str(error).removeprefix(f"prompt {prompt.name!r}: ")) from None


def _characters(cap: Capture) -> list[Chars]:
    """The span ``answer`` as ranges of characters, one for each stretch of neighbouring tokens."""
    positions = np.array(cap.spans["answer"])
    stretches = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
    return [Chars(cap.offsets[run[0]][0], cap.offsets[run[-1]][1]) for run in stretches]


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

    def logits(ids: Tensor, width: int) -> Tensor:  # (prompt, token) → (prompt, width, vocabulary)
        with scope.running((ids.shape[1],) * len(ids)):
            return scope.runner.logits(ids, torch.ones_like(ids), columns=range(ids.shape[1] - width, ids.shape[1]))

    device = scope.runner.device
    following = logits(torch.tensor([cap.ids], device=device), 1)[0, 0].double().log_softmax(-1)
    if question is None:
        return Prediction(following.cpu().numpy())
    answer = torch.tensor(question.answer, device=device)
    whole = torch.tensor([[*question.ids, *question.answer[:-1]]], device=device)
    log_p = logits(whole, len(answer))[0].double().log_softmax(-1).gather(1, answer[:, None]).sum().item()
    if question.distractors:
        odds = float(log_odds(logits, [question], device)[0])
    else:
        odds = against_all_else(log_p)
    return Prediction(following.cpu().numpy(), log_p, odds, len(question.distractors))


def against_all_else(log_p: float) -> float:
    """Log-odds of what has this log probability, in nats."""
    rest = -math.expm1(log_p)  # 1 − p, exact also where p is nearly 1
    return log_p - math.log(rest) if rest > 0 else math.inf


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
    odds = f"{figures(before.log_odds)} before and {figures(after.log_odds)} after"
    words = f"Log-odds of the answer against {against}: {odds}, in nats"
    if math.isnan(chance):
        return f"{words}; at 0 it would be as likely as all else together."
    if not chance:
        return f"{words}; at 0 both would be as likely."
    return f"{words}; at 0 it would be as likely as all of them together, at {figures(chance)} as each."
