"""What a model says next before and after a change: tokens, and the probability and log-odds of an answer."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from transformers import PreTrainedTokenizerBase

from diffscope import tasks
from diffscope.capture.capture import Capture
from diffscope.errors import PromptError
from diffscope.numbers import counted, course, two_figures
from diffscope.readings.captures import any_capture
from diffscope.readings.reading import Reading, described
from diffscope.scope import Scope
from diffscope.scope import answers as answering
from diffscope.tasks import Prompt, Retrieval
from diffscope.tasks.log_odds import rivals
from diffscope.tasks.template import prefix_tokens
from diffscope.tasks.training_sentence import template_of

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
        How many different ones there are, as :func:`diffscope.tasks.log_odds.rivals` has them.
    """

    log_p: np.ndarray
    answer: float = math.nan
    log_odds: float = math.nan
    distractors: int = 0


def encode_question(scope: Scope, cap: Capture, answer: str, distractors: Sequence[str] = ()) -> Prompt:
    """Encode the prompt of a capture with its answer, as :func:`diffscope.scope.answers.encode_question` does."""
    return answering.encode_question(scope, cap.prompts[0], answer, distractors)


def predict(scope: Scope, cap: Capture, question: Prompt | None = None) -> Prediction:
    """Predict what comes after the prompt of a capture, under the edits that are on.

    Parameters
    ----------
    scope : Scope
    cap : Capture
        Of the prompt, under whatever edits: only its tokens count.
    question : Prompt, optional
        What :func:`encode_question` gives, for the answer.
    """
    following = scope.logits(torch.tensor([cap.ids]), 1)[0, 0].double().log_softmax(-1)
    if question is None:
        return Prediction(following.cpu().numpy())
    answer = answering.score_answers(scope, [question])
    log_p, odds = float(answer["log_p"][0]), float(answer["log_odds"][0])
    return Prediction(following.cpu().numpy(), log_p, odds, len(rivals(question)))


def next_tokens(before: Prediction, after: Prediction, tokenizer: PreTrainedTokenizerBase | None, count: int = 5) -> xr.Dataset:
    """Return the most probable next tokens of both sides.

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
    """Compare the answer before and after, and with no preference at all.

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


NUMBER = re.compile(r"\d+")
NEEDLES = (4, 2, 1)  # sentences of a prompt that is made up, as many as fit


@dataclass(frozen=True)
class Question:
    """A prompt, and the tokens that may come next.

    Attributes
    ----------
    ids : list of int
        The prompt up to its answer.
    spans : dict of str to list of int
        Token positions.
    answer : int
        The first token of the answer.
    distractors : dict of str to int
        The first token of each distractor, by its text.
    left_out : list of str
        Distractors that begin with the same token as the answer or one of the others, and so cannot be told from it.
    """

    ids: list[int]
    spans: dict[str, list[int]]
    answer: int
    distractors: dict[str, int]
    left_out: list[str]

    @property
    def key(self) -> tuple[int, ...]:
        """Return what tells it from other questions about one prompt."""
        return self.answer, *self.distractors.values()


def question(scope: Scope, cap: Capture, answer: str, distractors: Sequence[str] = ()) -> Question:
    """Read what a prompt asks for as the tokens that may come next.

    Parameters
    ----------
    scope : Scope
    cap : Capture
        Of one prompt.
    answer : str
        As of :func:`encode_question`.
    distractors : sequence of str
        Other answers; by default all other numbers of the prompt.

    Raises
    ------
    PromptError
        There are no distractors, all begin like the answer, or the answer cannot be read.
    """
    cap = any_capture(cap).only()
    answer = answer.strip()
    texts = [other.strip() for other in distractors] or NUMBER.findall(cap.text or "")
    others = [other for other in dict.fromkeys(texts) if other != answer]
    if not others:
        raise PromptError("log-odds are of the answer against others, and there are none; give other answers")
    prompt = encode_question(scope, cap, answer, others)
    candidates: dict[str, int] = {}
    for text, tokens in zip(others, prompt.distractors):
        if tokens[0] != prompt.answer[0] and tokens[0] not in candidates.values():
            candidates[text] = tokens[0]
    if not candidates:
        raise PromptError("every other answer begins with the same token as the answer; give others")
    last = len(prompt.ids)  # white space at the end of the prompt may belong to the answer
    before_answer = {name: [at for at in keys if at < last] for name, keys in cap.spans.items()}
    spans = {name: keys for name, keys in before_answer.items() if keys}
    return Question(prompt.ids, spans, prompt.answer[0], candidates, [text for text in others if text not in candidates])


def synthetic_prompts(scope: Scope, length: int, count: int) -> list[list[int]]:
    """Make other prompts of exactly `length` tokens, always the same: retrieval over real text, or text alone.

    Retrieval is in the sentence that the model was trained on, where its folder says so.

    Raises
    ------
    PromptError
        The model has no tokenizer, or none that such prompts can be made for.
    """
    task = Retrieval(scope.tokenizer, template=template_of(scope.model))  # type: ignore[arg-type]  # it says what it needs
    return [_one_synthetic_prompt(task, length, np.random.default_rng(number)) for number in range(count)]


def _one_synthetic_prompt(task: Retrieval, length: int, rng: np.random.Generator) -> list[int]:
    for needles in NEEDLES:
        with suppress(PromptError):  # so many do not fit
            return task.prompt(length, needles, rng).ids
    begin = prefix_tokens(task.tokenizer)
    return [*begin, *task.filler.sample(length - len(begin), rng)[0].tolist()]


def other_prompts(scope: Scope, cap: Capture, count: int) -> Capture:
    """Capture other prompts that are at least as long as this one, and not it: the examples, then synthetic ones.

    Raises
    ------
    PromptError
        There is none that is as long.
    """
    if scope.tokenizer is None:
        raise PromptError("other prompts to compare with are texts, and this model has no tokenizer")
    most = scope.max_length or np.inf
    known = [scope.tokenize(example.text) for example in tasks.examples()]
    chosen = [ids for ids in known if cap.n_tokens <= len(ids) <= most and ids != cap.ids][:count]
    missing = count - len(chosen)
    try:
        drawn = synthetic_prompts(scope, cap.n_tokens, missing + 1)  # this prompt may be one of them
        chosen += [ids for ids in drawn if ids != cap.ids][:missing]
    except PromptError:
        if not chosen:
            raise
    return scope.capture(chosen)
