"""The question that a prompt ends with: its answer among what competes with it, as tokens; and other prompts to compare with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from diffscope import tasks
from diffscope.capture import Capture, CaptureBatch
from diffscope.errors import PromptError, SpanError
from diffscope.prompts import DERIVED_SETS, Chars
from diffscope.readings.captures import one_prompt
from diffscope.scope import Scope
from diffscope.tasks import Retrieval, TextPrompt, own_prompts
from diffscope.tasks.pieces import opening

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


def question(scope: Scope, cap: Capture, distractors: Sequence[str] = ()) -> Question:
    """What a prompt asks for, as tokens.

    Parameters
    ----------
    scope : Scope
    cap : Capture
        Of one prompt, with a span ``answer`` where its text states what comes next.
    distractors : sequence of str
        Other answers; by default the numbers in the span ``needles``, or without it all other numbers of the text.

    Raises
    ------
    SpanError
        No answer is marked.
    PromptError
        There are no distractors, or the prompt is no text.
    """
    cap = one_prompt(cap)
    if "answer" not in cap.spans:
        raise SpanError("log-odds are of an answer, and none is marked; give the answer as it stands in the prompt")
    if cap.text is None or scope.tokenizer is None:
        raise PromptError("answers are read off a text, and this model has no tokenizer or this prompt no text")
    stated = _stated(cap, "answer")
    if not stated:
        raise SpanError("the span 'answer' holds no text; mark the tokens of the answer")
    numbers = NUMBER.findall(_text(cap, _stated(cap, "needles")) if "needles" in cap.spans else cap.text)
    texts = [other.strip() for other in distractors if other.strip()] or numbers
    others = [other for other in dict.fromkeys(texts) if other != _text(cap, stated).strip()]
    if not others:
        raise PromptError("log-odds are of the answer against others, and there are none; give other answers")
    ids, (answer, *tokens) = _continued(scope, cap, stated, others)
    told: dict[str, int] = {}
    for text, token in zip(others, tokens):
        if token != answer and token not in told.values():
            told[text] = token
    if not told:
        raise PromptError("every other answer begins with the same token as the answer; give others")
    spans = {name: keys for name, keys in cap.spans.items() if name not in DERIVED_SETS}
    return Question(ids, spans, answer, told, [text for text in others if text not in told])


def _stated(cap: Capture, span: str) -> list[Chars]:
    """Where in the text the tokens of a span stand."""
    pieces = [cap.offsets[at] for at in cap.spans.get(span, ())]
    return [Chars(start, stop) for start, stop in pieces if stop > start]


def _text(cap: Capture, ranges: Sequence[Chars]) -> str:
    """The text of some ranges; what does not stand side by side is apart."""
    pieces: list[str] = []
    last = -1
    for start, stop in ranges:
        pieces += [" "] * (start > last >= 0) + [(cap.text or "")[start:stop]]
        last = stop
    return "".join(pieces)


def _continued(scope: Scope, cap: Capture, stated: Sequence[Chars], others: Sequence[str]) -> tuple[list[int], list[int]]:
    """The prompt up to its answer, and the first tokens of the answer and of others."""
    answer = _text(cap, stated)
    if scope.tokenize(cap.text) != cap.ids:  # a template wrote it: the answer begins a line of its own
        texts = [answer.strip(), *others]
        return cap.ids, [scope.tokenizer(text, add_special_tokens=False)["input_ids"][0] for text in texts]  # type: ignore[misc]
    whole = Chars(stated[0].start, stated[-1].stop)
    asked = TextPrompt("the prompt", cap.text or "", {"answer": [whole]}, answer.strip(), tuple(others))
    (prompt,) = own_prompts(scope.tokenizer, [asked])
    return prompt.ids, [prompt.answer[0], *(other[0] for other in prompt.distractors)]


def made_up(scope: Scope, length: int, count: int) -> list[list[int]]:
    """Other prompts of exactly `length` tokens of a model's own, always the same ones: retrieval over real text, or text alone.

    Raises
    ------
    PromptError
        The model has no tokenizer, or none that such prompts can be made for.
    """
    task = Retrieval(scope.tokenizer)  # type: ignore[arg-type]  # it says what it needs
    return [_one_made_up(task, length, np.random.default_rng(number)) for number in range(count)]


def _one_made_up(task: Retrieval, length: int, rng: np.random.Generator) -> list[int]:
    for needles in NEEDLES:
        with suppress(PromptError):  # so many do not fit
            return task.prompt(length, needles, rng).ids
    begin = opening(task.tokenizer)
    return [*begin, *task.filler.take(length - len(begin), rng)[0].tolist()]


def other_prompts(scope: Scope, cap: Capture, count: int) -> CaptureBatch:
    """Captures of other prompts that are as long as this one at least: the examples, and more that are made up.

    Raises
    ------
    PromptError
        There is none that is as long.
    """
    if scope.tokenizer is None:
        raise PromptError("other prompts to compare with are texts, and this model has no tokenizer")
    most = scope.positions or np.inf
    known = [scope.tokenize(example.text) for example in tasks.examples()]
    chosen = [ids for ids in known if cap.n_tokens <= len(ids) <= most and ids != cap.ids][:count]
    try:
        chosen += made_up(scope, cap.n_tokens, count - len(chosen))
    except PromptError:
        if not chosen:
            raise
    return scope.capture(chosen)
