"""A prompt with spans, an answer and distractors: as tokens, and as text that any tokenizer can encode."""

from __future__ import annotations

from dataclasses import dataclass, field

from diffscope.prompts.encoded import Chars


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
