"""Associative recall on real text, and plain text: where has this n-gram been seen before, and what came after it then?

A token is a *hit* where the n-gram that it completes has occurred earlier in the same text: the tokens before it have been
seen together, followed by this very token, so looking there gives it away (arXiv 2312.04927 splits perplexity so, with n = 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from transformers import PreTrainedTokenizerBase

from diffscope.errors import PromptError
from diffscope.tasks.corpus import Filler, standard_library_text
from diffscope.tasks.retrieval import Prompt

TRIES = 1000  # texts in which a prompt with a hit at its end is looked for


def earlier(ids: Sequence[int], n: int) -> np.ndarray:
    """Where each token's n-gram was completed before.

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
    found, last = np.full(len(ids), -1, dtype=np.int64), {}
    for at in range(n - 1, len(ids)):
        gram = tuple(ids[at - n + 1 : at + 1])
        found[at] = last.get(gram, -1)
        last[gram] = at
    return found


@dataclass
class Recall:
    """Real text, as it is or cut before a token that the text itself gives away.

    Parameters
    ----------
    tokenizer
    texts : sequence of str, optional
        By default the documentation strings of the Python standard library.
    held_out : bool
        Of those, the ones that training never sees.
    n : int
        Tokens of the n-grams, the recalled token included.
    """

    tokenizer: PreTrainedTokenizerBase
    texts: Sequence[str] | None = None
    held_out: bool = True
    n: int = 3
    filler: Filler = field(init=False, repr=False)

    def __post_init__(self):
        self.filler = Filler.of(standard_library_text(self.held_out) if self.texts is None else self.texts, self.tokenizer)
        bos = self.tokenizer.bos_token_id
        self._first = [] if bos is None else [bos]

    def text(self, length: int, rng: np.random.Generator) -> Prompt:
        """`length` tokens of plain text, the beginning token included; ``sink`` is its only span and there is no answer."""
        text, _ = self.filler.take(length - len(self._first), rng)
        return Prompt([*self._first, *text.tolist()], [], {"sink": [0], "answer": [], "needles": [], "query": []})

    def rows(self, count: int, length: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Plain texts, and which of their tokens are hits.

        Returns
        -------
        ids : ndarray of int64, (row, length)
        hits : ndarray of bool, (row, length)
        """
        ids = np.array([self.text(length, rng).ids for _ in range(count)])
        return ids, np.array([earlier(row.tolist(), self.n) >= 0 for row in ids])

    def prompt(self, length: int, rng: np.random.Generator) -> Prompt:
        """Text of exactly `length` tokens whose next token is a hit.

        ``query`` is what is repeated, the last n − 1 tokens; ``answer`` the token that followed when they stood together last;
        ``needles`` are tokens that followed them at other times and were different.

        Raises
        ------
        PromptError
            No such place was found.
        """
        for _ in range(TRIES):
            *ids, answer = self.text(length + 1, rng).ids
            at = int(earlier([*ids, answer], self.n)[-1])
            if at < 0:
                continue
            repeated = ids[-self.n + 1 :]
            ends = [i for i in range(self.n - 1, length) if ids[i - self.n + 1 : i] == repeated]
            spans = {
                "sink": [0],
                "answer": [at],
                "needles": [i for i in ends if ids[i] != answer],
                "query": list(range(length - self.n + 1, length)),
            }
            return Prompt(ids, [answer], spans, at / length)
        raise PromptError(f"no place in {TRIES} texts where {self.n} tokens stand again; give longer prompts or a smaller n")
