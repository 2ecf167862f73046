"""Associative recall on real text, and plain text.

A token is a *hit* where the n-gram that it completes occurs earlier in the same text: whoever looks there sees which token
followed. arXiv 2312.04927 splits perplexity into hits and other tokens, with n = 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from transformers import PreTrainedTokenizerBase

from diffscope.errors import PromptError
from diffscope.tasks.prompt import Prompt
from diffscope.tasks.template import prefix_tokens
from diffscope.tasks.text import TextStream, standard_library_text

TRIES = 1000  # texts drawn to find one with a hit at its end


def earlier(ids: Sequence[int], n: int) -> np.ndarray:
    """Return where each token's n-gram was completed earlier in the same text.

    Parameters
    ----------
    ids : sequence of int, (token,)
    n : int
        Tokens of an n-gram, the token itself included; at least 2.

    Returns
    -------
    ndarray of int64, (token,)
        Position of the latest earlier token that completes the same n-gram; −1 where there is none, and for the first n − 1.
    """
    if n < 2:
        raise PromptError(f"an n-gram of {n} tokens leaves nothing to recall by; use n of at least 2")
    positions = np.full(len(ids), -1, dtype=np.int64)
    last = {}
    for end in range(n - 1, len(ids)):
        gram = tuple(ids[end - n + 1 : end + 1])
        positions[end] = last.get(gram, -1)
        last[gram] = end
    return positions


@dataclass
class Recall:
    """Draw prompts of real text, whole or cut before a hit.

    Parameters
    ----------
    tokenizer
    texts : sequence of str or TextStream, optional
        By default the documentation strings of the Python standard library.
    held_out : bool
        Of those, take the ones that training never sees.
    n : int
        Tokens of the n-grams, the recalled token included.
    """

    tokenizer: PreTrainedTokenizerBase
    texts: Sequence[str] | TextStream | None = None
    held_out: bool = True
    n: int = 3
    filler: TextStream = field(init=False, repr=False)

    def __post_init__(self):
        self.filler = TextStream.of(standard_library_text(self.held_out) if self.texts is None else self.texts, self.tokenizer)
        self._first = prefix_tokens(self.tokenizer)

    def text(self, length: int, rng: np.random.Generator) -> Prompt:
        """Draw plain text of `length` tokens, with the tokenizer's prefix, no span but ``sink`` and no answer."""
        text, _ = self.filler.sample(length - len(self._first), rng)
        return Prompt([*self._first, *text.tolist()], [], {"sink": [0], "answer": [], "needles": [], "query": []})

    def rows(self, count: int, length: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw plain texts, and find their hits.

        Returns
        -------
        ids : ndarray of int64, (row, length)
        hits : ndarray of bool, (row, length)
        """
        ids = np.array([self.text(length, rng).ids for _ in range(count)])
        return ids, np.array([earlier(row.tolist(), self.n) >= 0 for row in ids])

    def windows(self, length: int, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Cut the whole text into windows, or `most` of them evenly spaced, and find their hits.

        Returns
        -------
        ids : ndarray of int64, (window, length)
        hits : ndarray of bool, (window, length)

        Raises
        ------
        PromptError
            The text is shorter than a window.
        """
        inside = length - len(self._first)
        if len(self.filler.ids) < inside:
            raise PromptError(
                f"the text has {len(self.filler.ids)} tokens, and a window needs {inside}; add text, or shorten windows"
            )
        starts = np.arange(0, len(self.filler.ids) - inside + 1, inside)
        if most is not None and most < len(starts):
            starts = starts[np.arange(most) * len(starts) // most]
        ids = np.array([[*self._first, *self.filler.ids[start : start + inside]] for start in starts])
        return ids, np.array([earlier(row.tolist(), self.n) >= 0 for row in ids])

    def prompt(self, length: int, rng: np.random.Generator) -> Prompt:
        """Draw text of exactly `length` tokens whose next token is a hit.

        ``query`` is the last n − 1 tokens, which occurred before; ``answer`` where the next token followed them last;
        ``needles`` are the different tokens that followed them at other times.

        Raises
        ------
        PromptError
            None of many texts has a hit at its end.
        """
        for _ in range(TRIES):
            *ids, answer = self.text(length + 1, rng).ids
            position = int(earlier([*ids, answer], self.n)[-1])
            if position < 0:
                continue
            repeated = ids[-self.n + 1 :]
            ends = [i for i in range(self.n - 1, length) if ids[i - self.n + 1 : i] == repeated]
            spans = {
                "sink": [0],
                "answer": [position],
                "needles": [i for i in ends if ids[i] != answer],
                "query": list(range(length - self.n + 1, length)),
            }
            return Prompt(ids, [answer], spans, position / length)
        raise PromptError(f"no place in {TRIES} texts where {self.n} tokens stand again; give longer prompts or a smaller n")
