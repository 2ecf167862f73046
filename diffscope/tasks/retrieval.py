"""Multi-needle retrieval over real text: "The magic number: CITY N", asked at the end.

A prompt is <bos>, real text with needle sentences in it, and one question. Its length in tokens is exact and its spans are known
by position. Encoding the decoded text gives the same tokens again, because pieces are joined only where a word begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from diffscope.errors import PromptError
from diffscope.tasks.corpus import Filler, standard_library_text
from diffscope.tasks.tokenizer import CITIES, QUALIFIERS, UNKNOWN

# The number follows its city at once, so that looking it up is one step of induction, which small models learn early.
TEMPLATE = " The magic number: {city} {number}."


@dataclass(frozen=True)
class Prompt:
    """A generated prompt.

    Attributes
    ----------
    ids : list of int
        Tokens up to and including the question; the answer is what comes next.
    answer : list of int
        Tokens of the right answer, empty if there is none.
    spans : dict of str to list of int
        Token positions: ``answer`` (the queried number where the text states it; empty if it does not), ``needles`` (every
        sentence about another city), ``query`` (the question), ``sink`` (position 0).
    depth : float
        Where the queried needle begins, as a fraction of the text before the question; NaN without one.
    city : str
        The one that the question is about.
    distractors : list of list of int
        Tokens of the number in each sentence about another city, as the sentences stand in the text.
    """

    ids: list[int]
    answer: list[int]
    spans: dict[str, list[int]]
    depth: float = float("nan")
    city: str = ""
    distractors: list[list[int]] = field(default_factory=list)


class _Piece(NamedTuple):
    """What is inserted into the text of a prompt."""

    place: int
    tokens: list[int]
    kind: str  # "answer", "needles" or "text"
    number: list[int]  # that a sentence states


def check_template(template: str) -> None:
    """Raise PromptError where a template does not hold ``{city}`` once and then, after a space, ``{number}`` once."""
    city = "{city}"
    number = " {number}"
    rest = template.replace(city, "", 1).replace(number, "", 1)
    if not (-1 < template.find(city) < template.find(number)) or set(rest) & set("{}"):
        raise PromptError(
            f"template {template!r} has to hold {{city}} once and after it, with a space before, {{number}} once, and no other "
            "braces; what stands before the number is the question"
        )


@dataclass
class Retrieval:
    """The retrieval task for one tokenizer.

    Parameters
    ----------
    tokenizer
        A tokenizer in which every city is one token, such as the bundled models' own.
    held_out : bool
        Draw the filler from modules that training never sees.
    template : str
        The sentence; the question is what stands before the number.
    texts : sequence of str, optional
        Other text for the filler than the documentation strings of the Python standard library.
    """

    tokenizer: PreTrainedTokenizerBase
    held_out: bool = True
    template: str = TEMPLATE
    texts: Sequence[str] | None = field(default=None, repr=False)
    filler: Filler = field(init=False, repr=False)

    def __post_init__(self):
        if self.tokenizer is None or self.tokenizer.bos_token_id is None:
            raise PromptError("retrieval prompts need a tokenizer with a token for the beginning, and this model has none")
        self.filler = Filler.of(standard_library_text(self.held_out) if self.texts is None else self.texts, self.tokenizer)
        self._prepare()

    def with_template(self, template: str) -> Retrieval:
        """The same task with another sentence."""
        other = copy(self)
        other.template = template
        other._prepare()
        return other

    def _prepare(self) -> None:
        check_template(self.template)
        self._head, tail = self.template.split(" {number}")
        self._tail = self._encode(tail)
        self._question = cache(lambda city: tuple(self._encode(self._head.format(city=city))))
        self._number = [[self._single(f"{space}{n:02d}") for n in range(100)] for space in (" ", "")]

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _single(self, text: str) -> int:
        token = self._encode(text)
        if len(token) != 1:
            raise PromptError(
                f"this tokenizer has no single token for {text!r}, which retrieval prompts need; use a bundled model"
            )
        return token[0]

    def _sentence(self, city: str, number: list[int]) -> list[int]:
        return [*self._question(city), *number, *self._tail]

    def _cities(self, count: int, rng) -> list[str]:
        return [CITIES[i] for i in rng.choice(len(CITIES), count, replace=False)]

    def _numbers(self, count: int, rng) -> list[list[int]]:
        """Numbers of two tokens each, of which all first ones differ."""
        first = rng.choice(100, count, replace=False)
        second = rng.integers(100, size=count)
        return [[self._number[0][a], self._number[1][b]] for a, b in zip(first, second)]

    def _places(self, cuts: np.ndarray, count: int, rng, depth: float | None, which: int) -> np.ndarray:
        """Positions of the filler at which sentences are inserted; the one numbered `which` is moved to `depth` if given."""
        borders = np.flatnonzero(cuts)
        places = rng.choice(borders, count, replace=len(borders) < count)
        if depth is not None:
            places[which] = borders[np.abs(borders - depth * len(cuts)).argmin()]
        return places

    def prompt(self, length: int, needles: int, rng: np.random.Generator, depth: float | None = None) -> Prompt:
        """One prompt of exactly `length` tokens with one question.

        Parameters
        ----------
        length : int
            Tokens of the prompt, <bos> and question included.
        needles : int
            Sentences in the text, each about another city; one of them is asked for.
        rng : numpy.random.Generator
        depth : float, optional
            0 puts the queried needle first, 1 right before the question; by default it is drawn.

        Raises
        ------
        PromptError
            The needles do not fit the length.
        """
        cities = self._cities(needles, rng)
        numbers = self._numbers(needles, rng)
        sentences = [self._sentence(city, number) for city, number in zip(cities, numbers)]
        text, cuts = self.filler.take(self._room(length, cities[0], sentences), rng)
        places = self._places(cuts, needles, rng, depth, which=0)
        # At equal places the queried needle goes to its own side: first at depth 0, last at depth 1.
        order = sorted(range(needles), key=lambda i: (places[i], (i == 0) == (depth is None or depth >= 0.5)))
        kinds = ["answer"] + ["needles"] * (needles - 1)
        pieces = [_Piece(places[i], sentences[i], kinds[i], numbers[i]) for i in order]
        return self._assemble(text, pieces, cities[0], numbers[0])

    def controlled(
        self,
        length: int,
        distractors: int,
        seed: int | Sequence[int],
        *,
        slots: int = 8,
        depth: float = 0.5,
        near: bool = False,
        answerable: bool = True,
    ) -> Prompt:
        """A prompt whose length and whose number of distractors are set independently.

        The text has room for `slots` distractors. It holds `distractors` of them; in the places of the others stand as many
        tokens of real text. So two prompts of one seed that differ only in `distractors` (or in `answerable`) are equal token by
        token everywhere else. Two that differ in `length` or `slots` have the same sentences in the same order, with more or less
        text between them, each at the word border nearest to its place as a fraction of that text.

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
        if not 0 <= distractors <= slots <= most:
            raise PromptError(f"{distractors} distractors in {slots} slots; give from 0 to slots, and at most {most} slots")
        seeds = [seed] if isinstance(seed, int) else list(seed)
        # Each draws the same whatever the slots and the length; a 0 at the end of a seed would be lost.
        what, where, reading, filling = (np.random.default_rng([*seeds, stream]) for stream in (1, 2, 3, 4))
        cities = self._cities(len(CITIES), what)
        numbers = self._numbers(len(CITIES), what)
        if near:
            first, *others = what.permutation(QUALIFIERS)
            cities[1] = f"{first} {cities[1]}"
            cities[2 : 2 + len(others)] = [f"{other} {cities[0]}" for other in others]
            cities[0] = f"{first} {cities[0]}"
        stated = [0 if answerable else 1, *range(2, slots + 2)]
        sentences = [self._sentence(cities[i], numbers[i]) for i in stated]
        fillings = [self.filler.take(len(sentence), filling)[0].tolist() for sentence in sentences]
        text, cuts = self.filler.take(self._room(length, cities[0], sentences), reading)
        depths = np.array([depth, *where.random(slots)])
        borders = np.flatnonzero(cuts)
        places = [borders[np.abs(borders - fraction * len(text)).argmin()] for fraction in depths]
        kinds = ["answer" if answerable else "needles"] + ["needles"] * distractors + ["text"] * (slots - distractors)
        chosen = [fillings[i] if kind == "text" else sentences[i] for i, kind in enumerate(kinds)]
        order = np.argsort(depths, kind="stable")
        pieces = [_Piece(places[i], chosen[i], kinds[i], numbers[stated[i]]) for i in order]
        return self._assemble(text, pieces, cities[0], numbers[0] if answerable else self._encode(UNKNOWN))

    def _room(self, length: int, city: str, sentences: list[list[int]]) -> int:
        """Tokens of a prompt that are left for text.

        Raises
        ------
        PromptError
            There are too few.
        """
        room = length - 1 - len(self._question(city)) - sum(map(len, sentences))
        if room < len(sentences):
            least = length - room + len(sentences)
            raise PromptError(f"{len(sentences)} needles do not fit {length} tokens; use at least {least}")
        return room

    def _assemble(self, text: np.ndarray, pieces: list[_Piece], city: str, answer: list[int]) -> Prompt:
        """A prompt of <bos>, the text with pieces inserted, and the question."""
        question = self._question(city)
        ids = [self.tokenizer.bos_token_id]
        spans = {"sink": [0], "answer": [], "needles": []}
        done = 0
        begin = 0  # of the queried needle
        queried = []
        distractors = []
        for place, tokens, kind, stated in pieces:
            ids += text[done:place].tolist()
            done = place
            if kind == "answer":
                begin = len(ids)
                queried = tokens
                number = begin + len(question)
                spans["answer"] = list(range(number, number + len(answer)))
            elif kind == "needles":
                spans["needles"] += range(len(ids), len(ids) + len(tokens))
                distractors.append(list(stated))
            ids += tokens
        ids += text[done:].tolist()
        spans["query"] = list(range(len(ids), len(ids) + len(question)))
        depth = (begin - 1) / max(1, len(ids) - 1 - len(queried)) if queried else float("nan")
        return Prompt([*ids, *question], answer, spans, depth, city, distractors)

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
        """Prompts for training, in which every city is mentioned again and again with its number.

        Parameters
        ----------
        rows, length : int
        needles : int
            Cities a row.
        mentions : int
            Sentences a row.
        rng : numpy.random.Generator
        near : float
            Share of rows whose cities are near-duplicates of each other.
        unanswerable : float
            Share of rows that end with a city not mentioned before, whose number is "unknown".

        Returns
        -------
        ids : ndarray of int64, (row, length)
        kind : ndarray of int8, (row, length)
            0 text, 1 an answer that follows from what stands before it, 2 a number that nothing could predict.
        """
        ids = np.full((rows, length), self.tokenizer.bos_token_id, dtype=np.int64)
        kind = np.zeros((rows, length), dtype=np.int8)
        for row in range(rows):
            sentences = self._mentions(needles, mentions, rng, near, unanswerable)
            text, cuts = self.filler.take(length - 1 - sum(len(tokens) for tokens, _ in sentences), rng)
            places = np.sort(self._places(cuts, len(sentences), rng, None, 0))
            places[-1] = len(text)
            column = 1
            done = 0
            for (tokens, kinds), place in zip(sentences, places):
                ids[row, column : column + place - done] = text[done:place]
                column += place - done
                done = place
                ids[row, column : column + len(tokens)] = tokens
                kind[row, column : column + len(tokens)] = kinds
                column += len(tokens)
        return ids, kind

    def _mentions(self, needles: int, mentions: int, rng, near: float, unanswerable: float) -> list[tuple[list[int], list[int]]]:
        """The sentences of a training row in their order, each with the kind of its tokens."""
        cities = self._cities(needles, rng)
        numbers = self._numbers(needles, rng)
        if near and rng.random() < near:
            similar = [f"{other} {cities[0]}" for other in rng.permutation(QUALIFIERS)[: min(needles, len(QUALIFIERS) - 1)]]
            cities = similar + cities[len(similar) :]
        order = np.concatenate([rng.permutation(needles), rng.integers(needles, size=max(0, mentions - needles))])
        if mentions > needles:  # the last mention stands at the end, as the question does
            order = np.concatenate([rng.permutation(order[:-1]), order[-1:]])
        ends_unknown = unanswerable and rng.random() < unanswerable
        sentences = []
        seen = set()
        for which in order[:-1] if ends_unknown else order:
            question = self._question(cities[which])
            number = numbers[which]
            kinds = [0] * len(question) + [1 if which in seen else 2] * len(number) + [0] * len(self._tail)
            sentences.append(([*question, *number, *self._tail], kinds))
            seen.add(which)
        if ends_unknown:
            question = self._question(self._never_mentioned(cities, rng))
            answer = self._encode(UNKNOWN)
            kinds = [0] * len(question) + [1] * len(answer) + [0] * len(self._tail)
            sentences.append(([*question, *answer, *self._tail], kinds))
        return sentences

    def _never_mentioned(self, cities: list[str], rng) -> str:
        """A city that is none of these, but a near-duplicate of them if they are near-duplicates."""
        qualified = " " in cities[0]
        others = [f"{qualifier} {cities[0].split()[1]}" for qualifier in QUALIFIERS] if qualified else CITIES
        others = [city for city in others if city not in cities]
        return others[int(rng.integers(len(others)))]
