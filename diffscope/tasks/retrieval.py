"""Draw prompts of multi-needle retrieval: "The magic number: CITY N" in real text, asked for at the end, with any tokenizer.

A prompt is what the tokenizer puts before a text (<bos> or nothing), real text with needle sentences in it, and one question or
several. Its length in tokens is exact and its spans are known by position. Encoding its text gives the same tokens again, because
fragments are joined only where a word begins. A template that a tokenizer joins to the text around it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from diffscope.errors import PromptError
from diffscope.tasks.lookups import (
    GRADES,
    Seed,
    blank_rows,
    check_grade,
    cities_by_grade,
    draw_cities,
    draw_mentions,
    draw_numbers,
    insert_mentions,
    seeds_of,
)
from diffscope.tasks.prompt import Prompt
from diffscope.tasks.template import USE_OWN, Template, prefix_tokens
from diffscope.tasks.text import TextStream, insert, standard_library_text
from diffscope.tasks.tokenizer import CITIES, QUALIFIERS, UNKNOWN

# The number follows its city at once, so that looking it up is one step of induction, which small models learn early.
TEMPLATE = " The magic number: {city} {number}."


class _Piece(NamedTuple):
    """A sentence that is inserted into the text of a prompt."""

    tokens: list[int]
    kind: str  # "answer", "needles" or "text"
    number: list[int]  # that a sentence states
    span: str = ""  # the name of its number's span


@dataclass
class Retrieval:
    """Draw retrieval prompts with one tokenizer.

    Parameters
    ----------
    tokenizer
        Any that marks where words begin; cities and numbers may be of several tokens.
    held_out : bool
        Draw the filler from modules that training never sees.
    template : str
        The sentence; the question is what stands before the number.
    texts : sequence of str or TextStream, optional
        Other text for the filler than the documentation strings of the Python standard library, or the filler itself.

    Attributes
    ----------
    prefix : list of int
        Tokens that the tokenizer puts before every text.
    encoded : Template
        The sentence in tokens.
    filler : TextStream
        The text that sentences are inserted into.
    """

    tokenizer: PreTrainedTokenizerBase
    held_out: bool = True
    template: str = TEMPLATE
    texts: Sequence[str] | TextStream | None = field(default=None, repr=False)
    prefix: list[int] = field(init=False, repr=False)
    encoded: Template = field(init=False, repr=False)
    filler: TextStream = field(init=False, repr=False)

    def __post_init__(self):
        if self.tokenizer is None:
            raise PromptError(f"retrieval prompts need a tokenizer, and this model has none; load one with it, or {USE_OWN}")
        self.prefix = prefix_tokens(self.tokenizer)
        self.encoded = Template(self.tokenizer, self.template)
        self.filler = TextStream.of(standard_library_text(self.held_out) if self.texts is None else self.texts, self.tokenizer)

    @property
    def unknown(self) -> list[int]:
        """Tokens of the right answer if no sentence states it."""
        return self.encoded.encode(UNKNOWN)

    def with_template(self, template: str) -> Retrieval:
        """Return the same task with another sentence."""
        other = copy(self)
        other.template = template
        other.encoded = Template(self.tokenizer, template)
        return other

    def prompt(
        self, length: int, needles: int, rng: np.random.Generator, depth: float | None = None, questions: int = 1
    ) -> Prompt:
        """Draw a prompt of exactly `length` tokens up to the end of the first question.

        Parameters
        ----------
        length : int
            Tokens of the prompt, with the tokenizer's prefix and the first question.
        needles : int
            Sentences in the text, each about another city.
        rng : numpy.random.Generator
        depth : float, optional
            0 puts the needle of the first question first, 1 right before that question; by default it is drawn.
        questions : int
            How many of the cities are asked for, one after the other. The first question does not depend on it.

        Raises
        ------
        PromptError
            The needles do not fit the length, or there are more questions than needles, or more needles than cities.
        """
        if not 1 <= questions <= needles:
            raise PromptError(f"{questions} questions about {needles} needles; ask for 1 to {needles} of them")
        cities = draw_cities(needles, rng)
        numbers = draw_numbers(self.encoded, needles, rng)
        sentences = [self.encoded.sentence(city, number) for city, number in zip(cities, numbers)]
        question = self.encoded.question(cities[0])
        text, cuts = self.filler.sample(self._room(length, question, sentences), rng)
        places = _draw_places(cuts, needles, rng)
        if depth is not None:
            places[0] = _nearest(cuts, depth)
        # At equal places the queried needle goes to its own side: first at depth 0, last at depth 1.
        order = sorted(range(needles), key=lambda i: (places[i], (i == 0) == (depth is None or depth >= 0.5)))
        kinds = ["answer"] + ["needles"] * (needles - 1)
        names = ["answer", *(f"answer_{number}" for number in range(2, questions + 1)), *[""] * (needles - questions)]
        pieces = [_Piece(sentences[i], kinds[i], numbers[i], names[i]) for i in order]
        prompt = self._assemble(text, places[order], pieces, cities[0], question, numbers[0])
        if questions == 1:
            return prompt
        answer, judged = self._answers(cities[:questions], numbers)
        return replace(prompt, answer=answer, judged=judged)

    def _answers(self, cities: Sequence[str], numbers: Sequence[list[int]]) -> tuple[list[int], list[list[int]]]:
        """Return the number of the first city, then question and number of each further one; and where the numbers are in it."""
        tokens: list[int] = []
        judged = []
        for city, number in zip(cities, numbers):
            tokens += [*self.encoded.suffix, *self.encoded.question(city)] if judged else []
            judged.append(list(range(len(tokens), len(tokens) + len(number))))
            tokens += number
        return tokens, judged

    def controlled(
        self,
        length: int,
        distractors: int,
        seed: Seed,
        *,
        slots: int = 8,
        depth: float = 0.5,
        near: bool = False,
        answerable: bool = True,
    ) -> Prompt:
        """Return a prompt whose length and whose number of distractors are set independently.

        The text has room for `slots` distractors and holds `distractors` of them. The places of the others hold as many tokens of
        real text. So two prompts of one seed that differ only in `distractors` (or in `answerable`) have equal tokens everywhere
        else. Two that differ in `length` or `slots` have the same sentences in the same order, with more or less text between
        them, each at the word border nearest to its place as a fraction of that text.

        Parameters
        ----------
        length : int
            Tokens of the prompt, <bos> and question included.
        distractors : int
            Sentences about other cities, up to `slots`.
        seed : int or sequence of int
        slots : int
            The most distractors that this seed's prompts can have.
        depth : float
            Where the queried needle stands, 0 the beginning, 1 right before the question.
        near : bool
            Ask for "Old Paris" among "New Paris", "North Paris", … instead of for one city among others.
        answerable : bool
            If not, a sentence about another city stands in the place of the queried needle, and the right answer is "unknown".

        Raises
        ------
        PromptError
            More distractors than slots, or than there are near-duplicates; or the sentences do not fit the length.
        """
        most = len(QUALIFIERS) - 1 if near else len(CITIES) - 2
        _check_slots(distractors, slots, most)
        contents, depths_of, reading, filling = _streams(seed)
        cities = draw_cities(len(CITIES), contents)
        numbers = draw_numbers(self.encoded, len(CITIES), contents)
        if near:
            first, *others = contents.permutation(QUALIFIERS)
            cities[1] = f"{first} {cities[1]}"
            cities[2 : 2 + len(others)] = [f"{other} {cities[0]}" for other in others]
            cities[0] = f"{first} {cities[0]}"
        stated = [0 if answerable else 1, *range(2, slots + 2)]
        sentences = [self.encoded.sentence(cities[i], numbers[i]) for i in stated]
        question = self.encoded.question(cities[0]) if answerable else self.encoded.head(cities[0])
        kinds = ["answer" if answerable else "needles"] + ["needles"] * distractors + ["text"] * (slots - distractors)
        names = ["answer" if answerable else "", *[""] * slots]
        pieces = [_Piece(*each) for each in zip(sentences, kinds, [numbers[i] for i in stated], names)]
        answer = numbers[0] if answerable else self.unknown
        return self._placed(length, [depth, *depths_of.random(slots)], pieces, cities[0], question, answer, reading, filling)

    def graded(self, length: int, grade: str, seed: Seed, *, distractors: int = 3, slots: int = 8, depth: float = 0.5) -> Prompt:
        """Return a question, such as "Old Paris", whose answer the text gives evidence for to a given grade.

        Prompts of one seed state the same numbers, whatever their grade. Up to ``stated`` they differ in one city alone: that of
        the sentence with the first number. In ``stated 2`` and ``stated 4`` the sentence about the asked city also stands in
        places that hold real text in the other grades.

        Parameters
        ----------
        length : int
            Tokens of the prompt, <bos> and question included.
        grade : str
            One of :data:`GRADES`, from nothing alike to the answer stated four times.
        seed : int or sequence of int
        distractors, slots, depth
            As of :meth:`controlled`; the distractors are cities without a qualifier.

        Returns
        -------
        Prompt
            Its answer is "unknown" in the grades that do not state the number; ``answer`` spans each statement of it. If a token
            of white space begins every number, it is part of the numbers and not of the question, so that numbers and "unknown"
            continue the same tokens.

        Raises
        ------
        PromptError
            There is no such grade; as :meth:`controlled`; or no cities have equally many tokens.
        """
        check_grade(grade)
        _check_slots(distractors, slots, len(CITIES) - 3)
        contents, depths_of, reading, filling = _streams(seed)
        cities = draw_cities(len(CITIES), contents)
        asked, alike = cities_by_grade(self.encoded, cities, contents.permutation(QUALIFIERS))
        numbers = draw_numbers(self.encoded, len(CITIES), contents)
        others = [city for city in cities if city not in {name.split()[1] for name in (asked, *alike.values())}][:slots]
        times = GRADES[grade]
        sentence = self.encoded.sentence(alike.get(grade, asked), numbers[0])
        kinds = ["answer" if times else "needles", *(["answer" if i < times else "text" for i in range(1, max(GRADES.values()))])]
        pieces = [_Piece(sentence, kind, numbers[0], "answer" if kind == "answer" else "") for kind in kinds]
        for i, city in enumerate(others, 1):
            kind = "needles" if i <= distractors else "text"
            pieces.append(_Piece(self.encoded.sentence(city, numbers[i]), kind, numbers[i]))
        depths = [depth, *depths_of.random(len(pieces) - 1)]
        question = self.encoded.head(asked)
        prompt = self._placed(length, depths, pieces, asked, question, numbers[0], reading, filling)
        space = list(self.encoded.question(asked)[len(question) :])
        answer = [*space, *numbers[0]] if times else self.unknown
        return replace(prompt, answer=answer, distractors=[[*space, *number] for number in prompt.distractors])

    def _placed(
        self,
        length: int,
        depths: Sequence[float],
        pieces: Sequence[_Piece],
        city: str,
        question: tuple[int, ...],
        answer: list[int],
        reading: np.random.Generator,
        filling: np.random.Generator,
    ) -> Prompt:
        """Return a prompt of `length` tokens whose pieces stand at `depths`, fractions of its text.

        `reading` draws the text around them. `filling` draws text in place of each piece, which those of kind "text" become.
        """
        sentences = [piece.tokens for piece in pieces]
        fillings = [self.filler.sample(len(sentence), filling)[0].tolist() for sentence in sentences]
        text, cuts = self.filler.sample(self._room(length, question, sentences), reading)
        places = np.array([_nearest(cuts, fraction) for fraction in depths])
        chosen = [piece._replace(tokens=instead) if piece.kind == "text" else piece for piece, instead in zip(pieces, fillings)]
        order = np.argsort(depths, kind="stable")
        return self._assemble(text, places[order], [chosen[i] for i in order], city, question, answer)

    def _room(self, length: int, question: tuple[int, ...], sentences: list[list[int]]) -> int:
        """Return how many tokens of a prompt are left for text.

        Raises PromptError if there are too few.
        """
        room = length - len(self.prefix) - len(question) - sum(map(len, sentences))
        if room < len(sentences):
            least = length - room + len(sentences)
            raise PromptError(f"{len(sentences)} needles do not fit {length} tokens; use at least {least}")
        return room

    def _assemble(
        self,
        text: np.ndarray,
        places: Sequence[int],
        pieces: Sequence[_Piece],
        city: str,
        question: tuple[int, ...],
        answer: list[int],
    ) -> Prompt:
        """Return the tokenizer's prefix, the text with pieces inserted at ascending places, and the question, as a prompt."""
        inserted, starts = insert(text, [piece.tokens for piece in pieces], places)
        begin = len(self.prefix)
        spans: dict[str, list[int]] = {"sink": [0], "answer": [], "needles": []}
        distractors = []
        queried = None
        for start, piece in zip(starts, pieces):
            first, stop = begin + start, begin + start + len(piece.tokens)
            if piece.span:
                end = stop - len(self.encoded.suffix)
                spans.setdefault(piece.span, []).extend(range(end - len(piece.number), end))
            if piece.kind == "answer" and queried is None:
                queried = start / max(1, len(inserted) - len(piece.tokens))
            elif piece.kind == "needles":
                spans["needles"] += range(first, stop)
                distractors.append(list(piece.number))
        ids = [*self.prefix, *inserted.tolist(), *question]
        spans["query"] = list(range(len(ids) - len(question), len(ids)))
        return Prompt(ids, answer, spans, float("nan") if queried is None else queried, city, distractors)

    def training_rows(
        self,
        rows: int,
        length: int,
        needles: int,
        mentions: int,
        rng: np.random.Generator,
        near: float = 0.0,
        unanswerable: float = 0.0,
    ):
        """Draw prompts for training, in which every city is mentioned again and again with its number.

        Parameters
        ----------
        rows, length : int
            Prompts, and tokens of each.
        needles, mentions, near, unanswerable
            Of a row, as of :func:`diffscope.tasks.lookups.draw_mentions`.
        rng : numpy.random.Generator

        Returns
        -------
        ids : ndarray of int64, (row, length)
        kind : ndarray of int8, (row, length)
            0 text, 1 an answer that an earlier mention gives away, 2 a number that nothing could predict.
        """
        first = len(self.prefix)
        ids, kind = blank_rows(self.prefix, rows, length)
        for row in range(rows):
            sentences = draw_mentions(self.encoded, needles, mentions, rng, near, unanswerable)
            text, cuts = self.filler.sample(length - first - sum(len(tokens) for tokens, _ in sentences), rng)
            places = np.sort(_draw_places(cuts, len(sentences), rng))
            places[-1] = len(text)
            ids[row, first:], kind[row, first:] = insert_mentions(text, sentences, places)
        return ids, kind


def _draw_places(cuts: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw word borders of a text at which sentences are inserted; a border is drawn twice only if there are too few."""
    borders = np.flatnonzero(cuts)
    return rng.choice(borders, count, replace=len(borders) < count)


def _nearest(cuts: np.ndarray, fraction: float) -> int:
    """Return the word border nearest to a fraction of a text."""
    borders = np.flatnonzero(cuts)
    return int(borders[np.abs(borders - fraction * len(cuts)).argmin()])


def _check_slots(distractors: int, slots: int, most: int) -> None:
    """Raise PromptError unless there are slots for the distractors, and cities for the slots."""
    if not 0 <= distractors <= slots <= most:
        raise PromptError(f"{distractors} distractors in {slots} slots; give from 0 to slots, and at most {most} slots")


def _streams(seed: Seed) -> list[np.random.Generator]:
    """Return random numbers for the sentences, their places, the text, and the text in place of sentences.

    Each stream draws the same whatever the slots and the length. Numbers begin at 1, since a 0 at the end of a seed is lost.
    """
    return [np.random.default_rng([*seeds_of(seed), stream]) for stream in (1, 2, 3, 4)]
