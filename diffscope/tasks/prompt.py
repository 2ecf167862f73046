"""A prompt with spans, an answer and distractors: as tokens, and as text that any tokenizer can encode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diffscope.errors import SpanError
from diffscope.fields import shown
from diffscope.prompts.encoded import Chars
from diffscope.prompts.inputs import Spans, broadcast


@dataclass(frozen=True)
class Prompt:
    """A prompt in tokens.

    Attributes
    ----------
    ids : list of int
        Tokens up to and including the question; the answer comes next. If a tokenizer puts the same token of white space before
        every number, that token belongs to the question.
    answer : list of int
        Tokens of the right answer, empty if there is none. If there are several questions, it continues with the second question,
        its number, and so on, as if each had been answered rightly.
    spans : dict of str to list of int
        Token positions: ``answer`` (the number asked for, empty if the text does not state it), ``needles`` (every sentence about
        another city), ``query`` (the question), ``sink`` (position 0, whatever its token); for several questions also
        ``answer_2``, ``answer_3`` and so on, which lie in ``needles``, since the query is the first question.
    depth : float
        Where the queried needle begins, as a fraction of the text before the question; NaN without one.
    city : str
        The one that the (first) question is about; the name of a prompt of one's own.
    distractors : list of list of int
        Tokens of the number in each sentence about another city, in the order of the text.
    judged : list of list of int
        For each of several questions, the positions of its number in `answer`; empty if all of `answer` is one number.
    """

    ids: list[int]
    answer: list[int]
    spans: dict[str, list[int]]
    depth: float = float("nan")
    city: str = ""
    distractors: list[list[int]] = field(default_factory=list)
    judged: list[list[int]] = field(default_factory=list)

    @property
    def numbers(self) -> list[list[int]]:
        """For each question, the positions of its number in `answer`."""
        return self.judged or [list(range(len(self.answer)))]


@dataclass(frozen=True)
class TextPrompt:
    """A prompt as text.

    Attributes
    ----------
    name : str
    text : str
    spans : dict of str to list of Chars
        Character ranges, as ``Scope.capture`` and :func:`diffscope.prompts.encoded.encode` take them.
    answer : str or None
        What should come next.
    distractors : tuple of str
        Other answers that one might give, such as those that the text states about something else.
    """

    name: str
    text: str
    spans: dict[str, list[Chars]]
    answer: str | None
    distractors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.spans, Mapping):
            raise SpanError(f"spans of a TextPrompt are given by name, and not as {shown(self.spans)}")
        for name, ranges in self.spans.items():
            several = isinstance(ranges, (list, tuple)) and not isinstance(ranges, Chars)
            if not several or not all(isinstance(each, Chars) for each in ranges):
                raise SpanError(
                    f"span {name!r} of a TextPrompt is a list of Chars(start, stop), not {shown(ranges)}; "
                    "diffscope.tasks.read_prompts([{…}]) takes texts too"
                )


def unpacked(prompt: Any, spans: Spans = None) -> tuple[Any, Spans]:
    """Return a prompt, or each of a batch, as text or token ids, with its own spans and those that are given.

    Raises PromptError if there are not as many mappings as prompts.

    Parameters
    ----------
    prompt : Prompt, TextPrompt, or list or tuple with some of these
        Anything else is returned as it is.
    spans : mapping of str to span, or one mapping a prompt
        One that is given stands in place of the prompt's own of that name.
    """
    batch = isinstance(prompt, (list, tuple))
    prompts = list(prompt) if batch else [prompt]
    if not any(isinstance(each, (Prompt, TextPrompt)) for each in prompts):
        return prompt, spans
    contents, named = [], []
    for each, given in zip(prompts, broadcast(spans or {}, len(prompts), "sets of spans")):
        content, own = _parts(each)
        contents.append(content)
        named.append({**own, **given} if isinstance(given, Mapping) else given or own)
    return (contents, named) if batch else (contents[0], named[0])


def _parts(prompt: Any) -> tuple[Any, dict]:
    """Return a prompt as text or token ids, with its spans; empty ones are left out."""
    if isinstance(prompt, TextPrompt):
        return prompt.text, prompt.spans
    if isinstance(prompt, Prompt):
        return prompt.ids, {name: positions for name, positions in prompt.spans.items() if positions}
    return prompt, {}
