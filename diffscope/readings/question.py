"""The question that a prompt ends with: its answer among what competes with it, as tokens; and other prompts to compare with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from diffscope import tasks
from diffscope.capture.capture import Capture
from diffscope.errors import PromptError
from diffscope.readings.captures import one_prompt
from diffscope.readings.predictions import asked
from diffscope.scope import Scope
from diffscope.tasks import Retrieval
from diffscope.tasks.template import prefix_tokens
from diffscope.tasks.training_sentence import template_of

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
        """What distinguishes it from other questions about one prompt."""
        return self.answer, *self.distractors.values()


def question(scope: Scope, cap: Capture, answer: str, distractors: Sequence[str] = ()) -> Question:
    """What a prompt asks for, as the tokens that may come next.

    Parameters
    ----------
    scope : Scope
    cap : Capture
        Of one prompt.
    answer : str
        As of :func:`diffscope.readings.predictions.asked`.
    distractors : sequence of str
        Other answers; by default all other numbers of the prompt.

    Raises
    ------
    PromptError
        There are no distractors, all begin like the answer, or the answer cannot be read.
    """
    cap = one_prompt(cap)
    answer = answer.strip()
    texts = [other.strip() for other in distractors] or NUMBER.findall(cap.text or "")
    others = [other for other in dict.fromkeys(texts) if other != answer]
    if not others:
        raise PromptError("log-odds are of the answer against others, and there are none; give other answers")
    prompt = asked(scope, cap, answer, others)
    candidates: dict[str, int] = {}
    for text, tokens in zip(others, prompt.distractors):
        if tokens[0] != prompt.answer[0] and tokens[0] not in candidates.values():
            candidates[text] = tokens[0]
    if not candidates:
        raise PromptError("every other answer begins with the same token as the answer; give others")
    last = len(prompt.ids)  # white space at the end of the prompt may belong to the answer
    kept = {name: [at for at in keys if at < last] for name, keys in cap.spans.items()}
    spans = {name: keys for name, keys in kept.items() if keys}
    return Question(prompt.ids, spans, prompt.answer[0], candidates, [text for text in others if text not in candidates])


def made_up(scope: Scope, length: int, count: int) -> list[list[int]]:
    """Other prompts of exactly `length` tokens of a model's own, always the same ones: retrieval over real text, or text alone.

    Retrieval is in the sentence that the model was trained on, where its folder says so.

    Raises
    ------
    PromptError
        The model has no tokenizer, or none that such prompts can be made for.
    """
    task = Retrieval(scope.tokenizer, template=template_of(scope.model))  # type: ignore[arg-type]  # it says what it needs
    return [_one_made_up(task, length, np.random.default_rng(number)) for number in range(count)]


def _one_made_up(task: Retrieval, length: int, rng: np.random.Generator) -> list[int]:
    for needles in NEEDLES:
        with suppress(PromptError):  # so many do not fit
            return task.prompt(length, needles, rng).ids
    begin = prefix_tokens(task.tokenizer)
    return [*begin, *task.filler.sample(length - len(begin), rng)[0].tolist()]


def other_prompts(scope: Scope, cap: Capture, count: int) -> Capture:
    """Captures of other prompts that are as long as this one at least: the examples, and more that are made up.

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
    try:
        chosen += made_up(scope, cap.n_tokens, count - len(chosen))
    except PromptError:
        if not chosen:
            raise
    return scope.capture(chosen)
