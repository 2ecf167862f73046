"""Multi-needle retrieval over real text: "The magic number: CITY N", asked at the end.

A prompt is <bos>, real text with needle sentences in it, and one question per queried city. Its
length in tokens is exact, every key set of SCIENCE.md §0 is known by position, and encoding the
decoded text gives the same tokens again, because pieces are joined only where a word begins.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field

import numpy as np
from transformers import PreTrainedTokenizerBase

from diffscope.errors import PromptError
from diffscope.tasks.text import standard_library_text
from diffscope.tasks.vocabulary import CITIES

# The number follows its city at once, so that looking it up is one step of induction, which small models learn soon.
TEMPLATE = " The magic number: {city} {number}."


@dataclass(frozen=True)
class Prompt:
    """A generated prompt.

    Attributes
    ----------
    ids : list of int
        Tokens up to and including the question; the answer is what comes next.
    answer : list of int
        Tokens of the right answer.
    spans : dict of str to list of int
        Token positions: ``answer`` (the queried number where the text states it), ``needles`` (every sentence about
        another city), ``query`` (the question), ``sink`` (position 0).
    depth : float
        Where the queried needle begins, as a fraction of the text before the question.
    city : str
    """

    ids: list[int]
    answer: list[int]
    spans: dict[str, list[int]]
    depth: float
    city: str


@dataclass
class Filler:
    """A stream of tokens of real text that can be cut wherever a word begins."""

    ids: np.ndarray  # (token,)
    cuts: np.ndarray  # (token,) bool: a new word begins here

    @classmethod
    def of(cls, texts, tokenizer: PreTrainedTokenizerBase) -> Filler:
        encoded = tokenizer([" " + text for text in texts], add_special_tokens=False)["input_ids"]
        ids = np.array([token for text in encoded for token in text], dtype=np.int64)
        pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        # A lone space would join the white space before it.
        begins = np.array([piece.startswith(("Ġ", "▁", " ")) and len(piece) > 1 for piece in pieces])
        if not begins[ids].any():
            raise PromptError("no token of this tokenizer begins a word, so text cannot be cut between words; use another model")
        return cls(ids, begins[ids])

    def take(self, length: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """`length` consecutive tokens that begin and end at a word border, and where in them a word begins."""
        if length < 0:
            raise PromptError(f"the needles alone are {-length} tokens too long for the prompt; use fewer, or a longer prompt")
        if length > len(self.ids) // 2:
            raise PromptError(f"{length} tokens of filler asked of a text of {len(self.ids)}; give a longer text")
        while True:
            start = int(rng.integers(len(self.ids) - length))
            if self.cuts[start] and self.cuts[start + length]:
                return self.ids[start : start + length], self.cuts[start : start + length]


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
    """

    tokenizer: PreTrainedTokenizerBase
    held_out: bool = True
    template: str = TEMPLATE
    filler: Filler = field(init=False, repr=False)

    def __post_init__(self):
        if self.tokenizer is None or self.tokenizer.bos_token_id is None:
            raise PromptError("retrieval prompts need a tokenizer with a token for the beginning, and this model has none")
        self.filler = Filler.of(standard_library_text(self.held_out), self.tokenizer)
        self._prepare()

    def with_template(self, template: str) -> Retrieval:
        """The same task with another sentence."""
        other = copy(self)
        other.template = template
        other._prepare()
        return other

    def _prepare(self) -> None:
        marker = "{number}"
        head, tail = self.template.split(f" {marker}")
        self._heads = {city: self._encode(head.format(city=city)) for city in CITIES}
        self._tail = self._encode(tail)
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

    def _draw(self, count: int, rng) -> tuple[list[str], list[list[int]]]:
        """Distinct cities with numbers whose first halves differ, so that two halves name one needle."""
        cities = [CITIES[i] for i in rng.choice(len(CITIES), count, replace=False)]
        first, second = rng.choice(100, count, replace=False), rng.integers(100, size=count)
        return cities, [[self._number[0][a], self._number[1][b]] for a, b in zip(first, second)]

    def _places(self, cuts: np.ndarray, count: int, rng, depth: float | None, which: int) -> np.ndarray:
        """Sorted filler positions at which to insert; the one numbered `which` moves to `depth` if given."""
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
        cities, numbers = self._draw(needles, rng)
        sentences = [self._heads[city] + number + self._tail for city, number in zip(cities, numbers)]
        question = self._heads[cities[0]]
        room = length - 1 - len(question) - sum(map(len, sentences))
        if room < 2 * needles:
            raise PromptError(f"{needles} needles do not fit {length} tokens; use at least {length - room + 2 * needles}")
        text, cuts = self.filler.take(room, rng)
        places = self._places(cuts, needles, rng, depth, which=0)

        ids, spans = [self.tokenizer.bos_token_id], {"sink": [0], "answer": [], "needles": []}
        done, begin = 0, 0
        # At equal places the queried needle goes to its own side: first at depth 0, last at depth 1.
        for which in sorted(range(needles), key=lambda i: (places[i], (i == 0) == (depth is None or depth >= 0.5))):
            ids += text[done : places[which]].tolist()
            done = places[which]
            here = range(len(ids), len(ids) + len(sentences[which]))
            if which == 0:
                begin, answer_at = here.start, here.start + len(question)
                spans["answer"] = [answer_at, answer_at + 1]
            else:
                spans["needles"] += here
            ids += sentences[which]
        ids += text[done:].tolist()
        spans["query"] = list(range(len(ids), length))
        depth = (begin - 1) / max(1, len(ids) - 1 - len(sentences[0]))
        return Prompt(ids + question, numbers[0], spans, depth, cities[0])

    def training_rows(self, rows: int, length: int, needles: int, mentions: int, rng: np.random.Generator):
        """Prompts for training, in which every city is mentioned again and again with its number.

        Returns
        -------
        ids : ndarray of int64, (row, length)
        kind : ndarray of int8, (row, length)
            0 text, 1 a number that an earlier mention gives away, 2 a number that nothing could predict.
        """
        ids = np.full((rows, length), self.tokenizer.bos_token_id, dtype=np.int64)
        kind = np.zeros((rows, length), dtype=np.int8)
        for row in range(rows):
            cities, numbers = self._draw(needles, rng)
            order = np.concatenate([rng.permutation(needles), rng.integers(needles, size=max(0, mentions - needles))])
            if mentions > needles:  # the last mention stands at the end, as the question does
                tail, order = order[-1:], rng.permutation(order[:-1])
                order = np.concatenate([order, tail])
            sentences = [self._heads[cities[i]] + numbers[i] + self._tail for i in order]
            text, cuts = self.filler.take(length - 1 - sum(map(len, sentences)), rng)
            places = np.sort(self._places(cuts, len(order), rng, None, 0))
            places[-1] = len(text)
            at, done, seen = 1, 0, set()
            for which, place, sentence in zip(order, places, sentences):
                ids[row, at : at + place - done] = text[done:place]
                at, done = at + place - done, place
                ids[row, at : at + len(sentence)] = sentence
                number = at + len(self._heads[cities[which]])
                kind[row, number : number + 2] = 1 if which in seen else 2
                seen.add(which)
                at += len(sentence)
        return ids, kind
