"""Multi-needle retrieval over real text: "The magic number: CITY N", asked at the end, in the tokens of any tokenizer.

A prompt is what the tokenizer puts before a text (<bos> or nothing), real text with needle sentences in it, and one question or
several. Its length in tokens is exact and its spans are known by position. Encoding its text gives the same tokens again, because
pieces are joined only where a word begins; a template that a tokenizer joins to what stands around it is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from diffscope.errors import PromptError
from diffscope.tasks.exchanging import runs
from diffscope.tasks.pieces import OWN, opening
from diffscope.tasks.template import Wording
from diffscope.tasks.text import Filler, standard_library_text
from diffscope.tasks.tokenizer import CITIES, QUALIFIERS, UNKNOWN

# The number follows its city at once, so that looking it up is one step of induction, which small models learn early.
TEMPLATE = " The magic number: {city} {number}."


@dataclass(frozen=True)
class Prompt:
    """A generated prompt.

    Attributes
    ----------
    ids : list of int
        Tokens up to and including the question; the answer is what comes next. Where a tokenizer writes every number with a space
        before it that is a token of its own, that one still belongs to the question.
    answer : list of int
        Tokens of the right answer, empty if there is none. Of several questions it holds the later ones too, each with its number
        after it, as if the ones before had been answered rightly.
    spans : dict of str to list of int
        Token positions: ``answer`` (the number asked for where the text states it; empty if it does not), ``needles`` (every
        sentence about another city), ``query`` (the question), ``sink`` (position 0, whatever stands there); of several questions
        also ``answer_2``, ``answer_3`` and so on, which lie in ``needles``, since the query is the first question.
    depth : float
        Where the queried needle begins, as a fraction of the text before the question; NaN without one.
    city : str
        The one that the (first) question is about.
    distractors : list of list of int
        Tokens of the number in each sentence about another city, as the sentences stand in the text.
    judged : list of list of int
        For each of several questions, where its number is in `answer`; without any, all of `answer` is one number.
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
        """For each question, where its number is in `answer`."""
        return self.judged or [list(range(len(self.answer)))]


# Grades of evidence for a question of Retrieval.graded, weakest first, and how often the text states the answer.
GRADES = {"nothing": 0, "qualifier": 0, "city": 0, "stated": 1, "stated 2": 2, "stated 4": 4}

Mention = tuple[list[int], list[int]]  # the tokens of a sentence of a training row, and the kind of each


class _Piece(NamedTuple):
    """What is inserted into the text of a prompt."""

    tokens: list[int]
    kind: str  # "answer", "needles" or "text"
    number: list[int]  # that a sentence states
    span: str = ""  # the name of its number's span


@dataclass
class Retrieval:
    """The retrieval task for one tokenizer.

    Parameters
    ----------
    tokenizer
        Any that marks where words begin; cities and numbers may be of several tokens.
    held_out : bool
        Draw the filler from modules that training never sees.
    template : str
        The sentence; the question is what stands before the number.
    texts : sequence of str or Filler, optional
        Other text for the filler than the documentation strings of the Python standard library, or the filler itself.

    Attributes
    ----------
    opening : list of int
        Tokens that the tokenizer puts before a text.
    """

    tokenizer: PreTrainedTokenizerBase
    held_out: bool = True
    template: str = TEMPLATE
    texts: Sequence[str] | Filler | None = field(default=None, repr=False)
    filler: Filler = field(init=False, repr=False)

    def __post_init__(self):
        if self.tokenizer is None:
            raise PromptError(f"retrieval prompts need a tokenizer, and this model has none; load one with it, or {OWN}")
        self.opening = opening(self.tokenizer)
        self._wording = Wording(self.tokenizer, self.template)
        self.filler = Filler.of(standard_library_text(self.held_out) if self.texts is None else self.texts, self.tokenizer)

    @property
    def unknown(self) -> list[int]:
        """Tokens of the answer to what no sentence states."""
        return self._wording.encode(UNKNOWN)

    def with_template(self, template: str) -> Retrieval:
        """The same task with another sentence."""
        other = copy(self)
        other.template = template
        other._wording = Wording(self.tokenizer, template)
        return other

    def _cities(self, count: int, rng) -> list[str]:
        return [CITIES[i] for i in rng.choice(len(CITIES), count, replace=False)]

    def _numbers(self, count: int, rng) -> list[list[int]]:
        """Numbers of four digits, of which the first two differ in all."""
        first = rng.choice(100, count, replace=False)
        second = rng.integers(100, size=count)
        return [self._wording.number(f"{a:02d}{b:02d}") for a, b in zip(first, second)]

    def _places(self, cuts: np.ndarray, count: int, rng, depth: float | None, which: int) -> np.ndarray:
        """Positions of the filler at which sentences are inserted; the one numbered `which` is moved to `depth` if given."""
        borders = np.flatnonzero(cuts)
        places = rng.choice(borders, count, replace=len(borders) < count)
        if depth is not None:
            places[which] = borders[np.abs(borders - depth * len(cuts)).argmin()]
        return places

    def prompt(
        self, length: int, needles: int, rng: np.random.Generator, depth: float | None = None, questions: int = 1
    ) -> Prompt:
        """One prompt of exactly `length` tokens up to the end of the first question.

        Parameters
        ----------
        length : int
            Tokens of the prompt, those that the tokenizer puts before a text and the first question included.
        needles : int
            Sentences in the text, each about another city.
        rng : numpy.random.Generator
        depth : float, optional
            0 puts the needle of the first question first, 1 right before that question; by default it is drawn.
        questions : int
            How many of the cities are asked for, one after the other. The first is the same whatever follows it.

        Raises
        ------
        PromptError
            The needles do not fit the length, or there are more questions than needles.
        """
        if not 1 <= questions <= needles:
            raise PromptError(f"{questions} questions about {needles} needles; ask for 1 to {needles} of them")
        cities = self._cities(needles, rng)
        numbers = self._numbers(needles, rng)
        sentences = [self._wording.sentence(city, number) for city, number in zip(cities, numbers)]
        question = self._wording.question(cities[0])
        text, cuts = self.filler.take(self._room(length, question, sentences), rng)
        places = self._places(cuts, needles, rng, depth, which=0)
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

    def redrawn(self, prompt: Prompt, rng: np.random.Generator) -> list[int]:
        """The tokens of another prompt like a prompt of this task: its text, and what its other sentences are about, drawn anew.

        The question, the sentence that answers it, and the places and lengths of all sentences stay.

        Parameters
        ----------
        prompt : Prompt
            Of one question.
        rng : numpy.random.Generator

        Raises
        ------
        PromptError
            There is no other sentence of as many tokens.
        """
        ids = np.array(prompt.ids)
        number = prompt.spans["answer"]
        asked = range(number[0] - len(prompt.spans["query"]), number[-1] + 1 + len(self._wording.tail)) if number else ()
        sentences = self._sentences(prompt)
        named = {*prompt.spans["query"], *prompt.spans["sink"], *range(len(self.opening)), *asked}
        text = sorted(set(range(len(ids))) - named - {at for sentence in sentences for at in sentence})
        for run in runs(text):
            ids[run] = self.filler.take(len(run), rng)[0]
        cities = [city for city in self._cities(len(CITIES), rng) if city != prompt.city]
        for sentence, stated in zip(sentences, self._numbers(len(sentences), rng)):
            fitting = (city for city in cities if len(self._wording.sentence(city, stated)) == len(sentence))
            city = next(fitting, None)
            if city is None:
                raise PromptError(
                    f"this tokenizer has no other sentence of {len(sentence)} tokens for {prompt.city!r} to stand among"
                )
            cities.remove(city)
            ids[sentence] = self._wording.sentence(city, stated)
        return ids.tolist()

    def _sentences(self, prompt: Prompt) -> list[list[int]]:
        """The positions of each sentence about another city."""
        needles = prompt.spans["needles"]
        sentences = []
        for stated in prompt.distractors:
            end = [*stated, *self._wording.tail]
            stop = len(end)
            while [prompt.ids[at] for at in needles[stop - len(end) : stop]] != end:
                stop += 1
            sentences.append(needles[:stop])
            needles = needles[stop:]
        return sentences

    def _answers(self, cities: Sequence[str], numbers: Sequence[list[int]]) -> tuple[list[int], list[list[int]]]:
        """The number of the first city, then question and number of each further one, and where the numbers are in that."""
        tokens: list[int] = []
        judged = []
        for city, number in zip(cities, numbers):
            tokens += [*self._wording.tail, *self._wording.question(city)] if judged else []
            judged.append(list(range(len(tokens), len(tokens) + len(number))))
            tokens += number
        return tokens, judged

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
        _check_slots(distractors, slots, most)
        what, where, reading, filling = _streams(seed)
        cities = self._cities(len(CITIES), what)
        numbers = self._numbers(len(CITIES), what)
        if near:
            first, *others = what.permutation(QUALIFIERS)
            cities[1] = f"{first} {cities[1]}"
            cities[2 : 2 + len(others)] = [f"{other} {cities[0]}" for other in others]
            cities[0] = f"{first} {cities[0]}"
        stated = [0 if answerable else 1, *range(2, slots + 2)]
        sentences = [self._wording.sentence(cities[i], numbers[i]) for i in stated]
        question = self._wording.question(cities[0]) if answerable else self._wording.asked(cities[0])
        kinds = ["answer" if answerable else "needles"] + ["needles"] * distractors + ["text"] * (slots - distractors)
        names = ["answer" if answerable else "", *[""] * slots]
        pieces = [_Piece(*each) for each in zip(sentences, kinds, [numbers[i] for i in stated], names)]
        answer = numbers[0] if answerable else self.unknown
        return self._placed(length, [depth, *where.random(slots)], pieces, cities[0], question, answer, reading, filling)

    def graded(
        self, length: int, grade: str, seed: int | Sequence[int], *, distractors: int = 3, slots: int = 8, depth: float = 0.5
    ) -> Prompt:
        """A question such as "Old Paris" for whose answer the text has evidence of a given grade.

        Prompts of one seed state the same numbers, whatever their grade. Those of the grades up to ``stated`` have equal tokens
        but for one city: that of the sentence which says the first number. In ``stated 2`` and ``stated 4`` the sentence about
        the asked city also stands in the places of as many tokens of real text.

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
            Its answer is "unknown" in the grades that do not state the number; ``answer`` spans each statement of it. Where a
            token of white space begins every number, it is part of the numbers and not of the question, so that numbers and
            "unknown" continue the same tokens.

        Raises
        ------
        PromptError
            There is no such grade; as :meth:`controlled`; or no cities have equally many tokens.
        """
        check_grade(grade)
        _check_slots(distractors, slots, len(CITIES) - 3)
        what, where, reading, filling = _streams(seed)
        cities = self._cities(len(CITIES), what)
        asked, alike = self._of_grades(cities, what.permutation(QUALIFIERS))
        numbers = self._numbers(len(CITIES), what)
        others = [city for city in cities if city not in {name.split()[1] for name in (asked, *alike.values())}][:slots]
        times = GRADES[grade]
        sentence = self._wording.sentence(alike.get(grade, asked), numbers[0])
        kinds = ["answer" if times else "needles", *(["answer" if i < times else "text" for i in range(1, max(GRADES.values()))])]
        pieces = [_Piece(sentence, kind, numbers[0], "answer" if kind == "answer" else "") for kind in kinds]
        for i, city in enumerate(others, 1):
            kind = "needles" if i <= distractors else "text"
            pieces.append(_Piece(self._wording.sentence(city, numbers[i]), kind, numbers[i]))
        depths = [depth, *where.random(len(pieces) - 1)]
        question = self._wording.asked(asked)
        prompt = self._placed(length, depths, pieces, asked, question, numbers[0], reading, filling)
        lead = list(self._wording.question(asked)[len(question) :])
        answer = [*lead, *numbers[0]] if times else self.unknown
        return replace(prompt, answer=answer, distractors=[[*lead, *number] for number in prompt.distractors])

    def _of_grades(self, cities: Sequence[str], qualifiers: Sequence[str]) -> tuple[str, dict[str, str]]:
        """The city to ask for, and those of as many tokens that stand in its place in the grades that do not state its number."""
        for city, qualifier in itertools.product(cities, qualifiers):
            asked = f"{qualifier} {city}"
            others = [other for other in cities if other != city]
            another = [other for other in qualifiers if other != qualifier]
            choices = {
                "nothing": (f"{what} {where}" for where in others for what in another),
                "qualifier": (f"{qualifier} {where}" for where in others),
                "city": (f"{what} {city}" for what in another),
            }
            tokens = len(self._wording.asked(asked))
            alike = {
                grade: next((name for name in names if len(self._wording.asked(name)) == tokens), "")
                for grade, names in choices.items()
            }
            if all(alike.values()):
                return asked, alike
        raise PromptError(f"this tokenizer has no cities of equally many tokens, one for each grade; {OWN}")

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
        """A prompt of `length` tokens whose pieces stand at `depths`, fractions of its text; of kind "text" they are that.

        `reading` draws the text around them, `filling` as many tokens of text as each of them has.
        """
        sentences = [piece.tokens for piece in pieces]
        fillings = [self.filler.take(len(sentence), filling)[0].tolist() for sentence in sentences]
        text, cuts = self.filler.take(self._room(length, question, sentences), reading)
        borders = np.flatnonzero(cuts)
        places = np.array([borders[np.abs(borders - fraction * len(text)).argmin()] for fraction in depths])
        chosen = [piece._replace(tokens=instead) if piece.kind == "text" else piece for piece, instead in zip(pieces, fillings)]
        order = np.argsort(depths, kind="stable")
        return self._assemble(text, places[order], [chosen[i] for i in order], city, question, answer)

    def _room(self, length: int, question: tuple[int, ...], sentences: list[list[int]]) -> int:
        """Tokens of a prompt that are left for text.

        Raises
        ------
        PromptError
            There are too few.
        """
        room = length - len(self.opening) - len(question) - sum(map(len, sentences))
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
        """A prompt of what the tokenizer puts first, the text with pieces inserted at places that rise, and the question."""
        ids = [*self.opening]
        spans: dict[str, list[int]] = {"sink": [0], "answer": [], "needles": []}
        done = 0
        begin = 0  # of the queried needle
        queried: list[int] = []
        distractors = []
        for place, (tokens, kind, stated, name) in zip(places, pieces):
            ids += text[done:place].tolist()
            done = place
            if name:
                number = len(ids) + len(tokens) - len(self._wording.tail) - len(stated)
                spans.setdefault(name, []).extend(range(number, number + len(stated)))
            if kind == "answer" and not queried:
                begin = len(ids)
                queried = tokens
            elif kind == "needles":
                spans["needles"] += range(len(ids), len(ids) + len(tokens))
                distractors.append(list(stated))
            ids += tokens
        ids += text[done:].tolist()
        spans["query"] = list(range(len(ids), len(ids) + len(question)))
        before = len(self.opening)
        depth = (begin - before) / max(1, len(ids) - before - len(queried)) if queried else float("nan")
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
        first = len(self.opening)
        ids = np.zeros((rows, length), dtype=np.int64)
        ids[:, :first] = self.opening
        kind = np.zeros((rows, length), dtype=np.int8)
        for row in range(rows):
            sentences = self.mentions(needles, mentions, rng, near, unanswerable)
            text, cuts = self.filler.take(length - first - sum(len(tokens) for tokens, _ in sentences), rng)
            places = np.sort(self._places(cuts, len(sentences), rng, None, 0))
            places[-1] = len(text)
            ids[row, first:], kind[row, first:] = mentioned(text, sentences, places)
        return ids, kind

    def mentions(
        self, needles: int, mentions: int, rng: np.random.Generator, near: float = 0.0, unanswerable: float = 0.0
    ) -> list[Mention]:
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
            question = self._wording.question(cities[which])
            number = numbers[which]
            kinds = [0] * len(question) + [1 if which in seen else 2] * len(number) + [0] * len(self._wording.tail)
            sentences.append(([*question, *number, *self._wording.tail], kinds))
            seen.add(which)
        if ends_unknown:
            question = self._wording.asked(self._never_mentioned(cities, rng))
            answer = self.unknown
            kinds = [0] * len(question) + [1] * len(answer) + [0] * len(self._wording.tail)
            sentences.append(([*question, *answer, *self._wording.tail], kinds))
        return sentences

    def _never_mentioned(self, cities: list[str], rng) -> str:
        """A city that is none of these, but a near-duplicate of them if they are near-duplicates."""
        qualified = " " in cities[0]
        others = [f"{qualifier} {cities[0].split()[1]}" for qualifier in QUALIFIERS] if qualified else CITIES
        others = [city for city in others if city not in cities]
        return others[int(rng.integers(len(others)))]


def check_grade(grade: str) -> None:
    """Raise PromptError where there is no such grade of evidence."""
    if grade not in GRADES:
        raise PromptError(f"there is no grade {grade!r} of evidence; choose from {', '.join(GRADES)}")


def _check_slots(distractors: int, slots: int, most: int) -> None:
    """Raise PromptError unless there are slots for the distractors, and cities for the slots."""
    if not 0 <= distractors <= slots <= most:
        raise PromptError(f"{distractors} distractors in {slots} slots; give from 0 to slots, and at most {most} slots")


def _streams(seed: int | Sequence[int]) -> list[np.random.Generator]:
    """Random numbers for what is said, where, the text, and the text in place of sentences.

    Each draws the same whatever the slots and the length; a 0 at the end of a seed would be lost.
    """
    seeds = [seed] if isinstance(seed, int) else list(seed)
    return [np.random.default_rng([*seeds, stream]) for stream in (1, 2, 3, 4)]


def mentioned(text: np.ndarray, sentences: Sequence[Mention], places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Text (token,) with sentences inserted at `places`, which rise; the tokens of both, and the kind of each."""
    of_text = np.zeros(len(text), dtype=np.int8)
    ids, kinds = [], []
    for start, end, (tokens, of_tokens) in zip([0, *places[:-1]], places, sentences):
        ids += [text[start:end], np.array(tokens, dtype=np.int64)]
        kinds += [of_text[start:end], np.array(of_tokens, dtype=np.int8)]
    return np.concatenate([*ids, text[places[-1] :]]), np.concatenate([*kinds, of_text[places[-1] :]])
