"""Running text with lookups planted in a few of its windows, for training a language model that can be asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from transformers import PreTrainedTokenizerBase

from diffscope.errors import PromptError
from diffscope.tasks.lookups import Mention, blank_rows, draw_mentions, insert_mentions
from diffscope.tasks.prompt import Prompt
from diffscope.tasks.retrieval import Retrieval
from diffscope.tasks.text import MANY, TextStream

PLANTED = " {city} {number}."  # the city alone is the question


@dataclass
class PlantedLookups:
    """Windows of running text, in a share of which " CITY N." stands early and again later.

    Parameters
    ----------
    tokenizer
        Any that marks where words begin; cities and numbers may be of several tokens.
    texts : sequence of str or TextStream, optional
        By default the documentation strings of the Python standard library; or text that is tokens already.
    share : float
        Of the windows that have a lookup; each is drawn with this probability.
    distractors : (int, int)
        Fewest and most other cities whose sentences stand in the first half of a planted window.
    template : str
        The planted sentence; the question is what stands before the number.
    held_out : bool
        Of the standard library's text, take that which training never sees.

    Attributes
    ----------
    retrieval : Retrieval
        The same sentences over the same text as a task of its own, for what scores models on one.

    Raises
    ------
    PromptError
        `share` or `distractors` are out of range.
    """

    tokenizer: PreTrainedTokenizerBase
    texts: Sequence[str] | TextStream | None = field(default=None, repr=False)
    share: float = 0.05
    distractors: tuple[int, int] = (0, 0)
    template: str = PLANTED
    held_out: bool = True
    retrieval: Retrieval = field(init=False, repr=False)

    def __post_init__(self):
        fewest, most = self.distractors
        if not 0 <= self.share <= 1:
            raise PromptError(f"share = {self.share} is no share; give a number from 0 to 1")
        if not 0 <= fewest <= most:
            raise PromptError(f"distractors = {self.distractors} are not the fewest and the most; give two numbers from 0 on")
        self.retrieval = Retrieval(self.tokenizer, self.held_out, self.template, self.texts)

    def prompt(self, length: int, rng: np.random.Generator, distractors: int = 0, depth: float | None = None) -> Prompt:
        """Draw a prompt of exactly `length` tokens that ends with the city of a sentence in it.

        As :meth:`Retrieval.prompt`, with its spans; :meth:`Retrieval.controlled` of ``retrieval`` gives prompts that are equal
        but for their distractors.
        """
        return self.retrieval.prompt(length, 1 + distractors, rng, depth)

    def training_rows(self, rows: int, length: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw windows of text.

        Parameters
        ----------
        rows, length : int
            Windows, and tokens of each, those that the tokenizer puts before a text included.
        rng : numpy.random.Generator

        Returns
        -------
        ids : ndarray of int64, (row, length)
        kind : ndarray of int8, (row, length)
            0 text, 1 a planted number that its first mention gives away, 2 a planted number that nothing could predict. Many
            draws have no planted window, and so no token of kind 1.

        Raises
        ------
        PromptError
            No text that is drawn has room for the sentences and is without their cities and numbers.
        """
        first = len(self.retrieval.prefix)
        ids, kind = blank_rows(self.retrieval.prefix, rows, length)
        for row in range(rows):
            if rng.random() < self.share:
                ids[row, first:], kind[row, first:] = self._planted(length - first, rng)
            else:
                ids[row, first:] = self.retrieval.filler.sample(length - first, rng)[0]
        return ids, kind

    def _planted(self, length: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw the tokens and kinds of a window with its sentences in the first half, and one of them again in the second."""
        fewest, most = self.distractors
        cities = 1 + int(rng.integers(fewest, most + 1))
        sentences = draw_mentions(self.retrieval.encoded, cities, cities + 1, rng)
        text, early, late = self._room(sentences, length - sum(len(tokens) for tokens, _ in sentences), rng)
        places = [*np.sort(rng.choice(early, cities, replace=False)), rng.choice(late)]
        return insert_mentions(text, sentences, places)

    def _room(self, sentences: Sequence[Mention], length: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Draw text without the cities and numbers of these sentences that has room for them at word borders.

        Returns the text and its word borders in the first half, where all sentences but the last stand, and in the second.
        """
        parts = []
        for tokens, kinds in sentences:
            number = np.flatnonzero(kinds)
            parts += [tokens[: number[0]], tokens[number[0] : number[-1] + 1]]
        for _ in range(MANY):
            text, cuts = self.retrieval.filler.sample(length, rng)
            borders = np.flatnonzero(cuts)
            early, late = borders[borders < length // 2], borders[borders >= length // 2]
            if len(early) >= len(sentences) - 1 and len(late) and not any(_holds(text, part) for part in parts):
                return text, early, late
        raise PromptError(
            f"none of {MANY} texts of {length} tokens has places for {len(sentences)} sentences and is without their cities; "
            "use longer windows, fewer distractors, or a longer text"
        )


def _holds(text: np.ndarray, part: Sequence[int]) -> bool:
    """Return whether text (token,) holds these tokens in a row."""
    return len(text) >= len(part) and bool((sliding_window_view(text, len(part)) == part).all(1).any())
