"""Run a model on prompts with answers: its logits, and the log-odds and loss of an answer that continues a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from diffscope.errors import PromptError, UnsupportedModel
from diffscope.prompts.encoded import Chars, Encoded, encode
from diffscope.prompts.inputs import broadcast, naming_prompt
from diffscope.scope.hooked import HookedModel
from diffscope.scope.runners import Inputs
from diffscope.tasks import Prompt, TextPrompt
from diffscope.tasks.encoding import encode_prompt, split_common_space, split_gap
from diffscope.tasks.log_odds import check_told_apart
from diffscope.tasks.scoring import LOGITS, answers
from diffscope.tasks.template import encode_continuation, suffix_count

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Values of an answer: name, formula, units. Of several questions the tokens are those of their numbers, since the rest is given.
DEFINITIONS = {
    "log_p": ("log probability of the answer", "sum over its tokens of log p(token | the prompt and the tokens before)", "nats"),
    "loss": ("loss of the answer", "-log_p / tokens of the answer", "nats a token"),
    "log_odds": (
        "log-odds of the answer",
        "log p(answer) - log sum p(distractor), each by the tokens that tell it apart; without distractors log p - log(1 - p)",
        "nats",
    ),
    "rank": ("rank of the answer's first token", "1 + #{tokens with a larger logit}", "1"),
    "exact": ("whether greedy decoding gives the answer", "every token of it has the largest logit", "1"),
    "tokens": ("tokens of the answer", "#{tokens}; of several questions those of their numbers", "tokens"),
}


def encode_question(
    scope: HookedModel,
    encoded: Encoded,
    answer: str,
    distractors: Sequence[str] = (),
    *,
    given_as_ids: bool = False,
    whole: bool = True,
) -> Prompt:
    """Encode a prompt with its answer and distractors in the tokens of the model, as :func:`diffscope.tasks.encode_prompts` does.

    If the prompt states the answer as its span ``answer``, the white space before the answer is that before the span. After white
    space or a special token, as a chat ends with, the answer begins without any.

    White space at the end of a text may become part of the answer's first token; with `given_as_ids` the prompt's tokens stay as
    they are. With `whole`, all of each answer but its last token has to fit the model; without, nothing of it.

    Raises
    ------
    PromptError
        There is no tokenizer, an answer or distractor is empty or shares a token with the end of the prompt, or it is beyond the
        model's positions.
    SpanError
        The span ``answer`` is of tokens that cover no text, such as that of the beginning.
    """
    if scope.tokenizer is None:
        raise PromptError(f"{scope.name} came without a tokenizer, so that an answer cannot be read; load it with one")
    if isinstance(distractors, str) or not isinstance(distractors, Sequence):
        raise PromptError(f"distractors are a list of texts, not {distractors!r}; give the other answers that may come next")
    if not all(isinstance(text, str) for text in (answer, *distractors)):
        raise PromptError("an answer or distractor is no text; give the text that may come next")
    if not answer.strip() or not all(text.strip() for text in distractors):
        raise PromptError("an answer or distractor is empty; give the text that may come next")
    spans = {"answer": _characters(encoded)} if "answer" in encoded.spans else {}
    prompt = TextPrompt("", encoded.text or "", spans, answer, tuple(text.strip() for text in distractors))
    of_text = encoded.text is not None and encode(scope.tokenizer, encoded.text).ids == encoded.ids
    if not of_text or (given_as_ids and prompt.text != prompt.text.rstrip()):
        question = _encode_after_ids(scope.tokenizer, encoded, prompt)
    else:
        question = encode_prompt(scope.tokenizer, prompt)
    length = len(question.ids) + (max(map(len, (question.answer, *question.distractors))) - 1 if whole else 0)
    if scope.max_length is not None and length > scope.max_length:
        raise PromptError(f"with its answer the prompt has {length} tokens, and {scope.name} takes {scope.max_length}")
    return question


def _encode_after_ids(tokenizer: PreTrainedTokenizerBase, encoded: Encoded, prompt: TextPrompt) -> Prompt:
    """Encode the answers of a prompt whose tokens are not those of its text, such as token ids without <bos>, or a chat."""
    texts = [(prompt.answer or "").strip(), *prompt.distractors]
    ended = prompt.text.rstrip() != prompt.text or encoded.ids[-1] in tokenizer.all_special_ids
    gap = "" if ended else split_gap(prompt, prompt.text)[0]
    if gap:
        candidates = encode_continuation(tokenizer, [gap + text for text in texts])
    else:
        candidates = [_right_after(tokenizer, encoded, text) for text in texts]
    lead, (own, *others) = split_common_space(tokenizer, candidates)
    return Prompt([*encoded.ids, *lead], own, encoded.span_positions(), distractors=others)


def _right_after(tokenizer: PreTrainedTokenizerBase, encoded: Encoded, text: str) -> list[int]:
    """Return the tokens of a text that follows the tokens of a prompt with no white space between the two."""
    ids = list(encoded.ids)
    for special in (False, True):  # written in the text of the prompt, or added to it
        whole = list(tokenizer((encoded.text or "") + text, add_special_tokens=special, verbose=False)["input_ids"])
        whole = whole[: len(whole) - special * suffix_count(tokenizer)]
        if whole[: len(ids)] == ids and len(whole) > len(ids):
            return whole[len(ids) :]
    with suppress(PromptError):  # behind a line break, since some tokenizers put a space before a text that nothing precedes
        return encode_continuation(tokenizer, [text], word="\n")[0]
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def encode_questions(scope: HookedModel, inputs: Inputs, answer: Any, distractors: Any) -> list[Prompt]:
    """Encode every prompt with its answer and distractors, which are given for all or one by one; errors name the prompt."""
    count = len(inputs.prompts)
    given_as_ids = [not isinstance(original, str) for original in inputs.originals]
    each = zip(inputs.prompts, given_as_ids, broadcast(answer, count, "answers"), distractors_of_each(distractors, count))
    questions = []
    for number, (encoded, as_ids, text, rivals) in enumerate(each):
        with naming_prompt(number, inputs.batch):
            questions.append(encode_question(scope, encoded, text, rivals, given_as_ids=as_ids))
            check_told_apart(questions[-1])
    return questions


def _characters(encoded: Encoded) -> list[Chars]:
    """Return the span ``answer`` as ranges of characters, one for each stretch of neighbouring tokens."""
    positions = np.array(encoded.spans["answer"])
    stretches = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
    return [Chars(encoded.offsets[run[0]][0], encoded.offsets[run[-1]][1]) for run in stretches]


def score_answers(scope: HookedModel, questions: Sequence[Prompt]) -> xr.Dataset:
    """Score prompts with their answers in tokens; :meth:`diffscope.Scope.answer` documents the values."""
    if not scope.runner.predicts:
        raise UnsupportedModel(f"{scope.name} predicts no next tokens, so that it gives no answer")
    answer_tokens = max(1, LOGITS // (scope.runner.vocabulary or LOGITS))
    loss, exact, log_odds, rank, against_rest = answers(scope.logits, questions, answer_tokens=answer_tokens)
    tokens = np.array([sum(map(len, question.numbers)) for question in questions])
    rivalled = [bool(question.distractors) for question in questions]
    odds = np.where(rivalled, log_odds, against_rest)
    values = {"log_odds": odds, "loss": loss, "log_p": -loss * tokens, "rank": rank, "exact": exact, "tokens": tokens}
    attributes = ("long_name", "definition", "units")
    return xr.Dataset({name: ("prompt", x, dict(zip(attributes, DEFINITIONS[name]))) for name, x in values.items()})


def distractors_of_each(distractors: Any, count: int) -> list[Sequence[str]]:
    """Return the distractors of each prompt, from texts for all prompts or a list of texts for each."""
    if isinstance(distractors, str) or not isinstance(distractors, Sequence):
        raise PromptError(f"distractors are a list of texts, or one a prompt, and not {distractors!r}")
    if all(isinstance(each, str) for each in distractors):
        return [distractors] * count
    return broadcast(list(distractors), count, "lists of distractors")
