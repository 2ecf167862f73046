"""Real text, the same on every machine: the documentation strings of the standard library of Python 3.11.7.

They lie beside this module as ``standard_library.json.gz``, so that a prompt drawn from a seed has the same words whatever
Python draws it.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from diffscope.errors import PromptError
from diffscope.tasks.template import USE_OWN, encode_continuation

FILE = Path(__file__).with_name("standard_library.json.gz")
MANY = 1000  # failed draws before it is checked whether any draw can succeed
AT_ONCE = 4096  # texts that are encoded together: a tokenizer holds much more of each token than its number


@cache
def standard_library_text(held_out: bool) -> tuple[str, ...]:
    """Return documentation strings of Python's standard library, in a fixed order.

    Parameters
    ----------
    held_out : bool
        Modules are split by a hash of their path; ``True`` gives the 8 % that training never sees.

    Returns
    -------
    tuple of str
        One string a docstring, white space collapsed, duplicates removed.
    """
    texts = json.loads(gzip.decompress(FILE.read_bytes()))
    return tuple(texts["held_out" if held_out else "training"])


@lru_cache(maxsize=2)  # every run of a cohort is named by that of all training texts
def fingerprint(texts: tuple[str, ...]) -> str:
    """Return the SHA-256 of texts, by which a model card names the exact text of a training."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


@dataclass
class TextStream:
    """A stream of tokens of real text that can be cut wherever a word begins."""

    ids: np.ndarray  # (token,)
    cuts: np.ndarray  # (token,) bool: a new word begins here

    @classmethod
    def of(cls, texts: Iterable[str] | TextStream, tokenizer: PreTrainedTokenizerBase) -> TextStream:
        """Encode texts as one stream; a stream is returned as it is."""
        if isinstance(texts, TextStream):
            return texts
        return _encoded(tuple(texts), tokenizer, len(tokenizer))

    def sample(self, length: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw `length` consecutive tokens that begin and end at a word border; also return which of them begin a word."""
        if length < 0:
            raise PromptError(f"the needles alone are {-length} tokens too long for the prompt; use fewer, or a longer prompt")
        if length > len(self.ids) // 2:
            raise PromptError(f"{length} tokens of filler asked of a text of {len(self.ids)}; give a longer text")
        for tries in itertools.count():
            start = int(rng.integers(len(self.ids) - length))
            if self.cuts[start] and self.cuts[start + length]:
                ids = np.asarray(self.ids[start : start + length], dtype=np.int64)  # those of a file are smaller
                return ids, np.asarray(self.cuts[start : start + length])
            if tries == MANY and not (self.cuts[: len(self.cuts) - length] & self.cuts[length:]).any():
                raise PromptError(f"nowhere in the text {length} tokens begin and end between words; give a longer text")

    def fill(self, positions: Sequence[int], rng: np.random.Generator) -> list[int]:
        """Draw a token for each of ascending positions; each stretch of neighbouring ones gets one piece of text."""
        cuts = [0, *(at + 1 for at, (one, two) in enumerate(pairwise(positions)) if two > one + 1), len(positions)]
        return [token for start, stop in pairwise(cuts) for token in self.sample(stop - start, rng)[0].tolist()]


@lru_cache(maxsize=4)  # a training and its scores ask for the same text again and again
def _encoded(texts: tuple[str, ...], tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> TextStream:
    """Encode texts; `vocabulary` distinguishes a tokenizer from itself before tokens were added to it."""
    ids = np.fromiter(chain.from_iterable(encode_texts(tokenizer, texts)), dtype=np.int64)
    cuts = word_begins(tokenizer)[ids]
    if not cuts.any():
        raise PromptError(f"nowhere in this text a token begins a word, so it cannot be cut; use another text, or {USE_OWN}")
    for array in (ids, cuts):
        array.setflags(write=False)
    return TextStream(ids, cuts)


def encode_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield the tokens of each of texts that follow one another, each after a space."""
    for first in range(0, len(texts), AT_ONCE):
        yield from encode_continuation(tokenizer, [" " + text for text in texts[first : first + AT_ONCE]])


def insert(text: np.ndarray, sentences: Sequence[Sequence[int]], places: Sequence[int]) -> tuple[np.ndarray, list[int]]:
    """Insert sentences into text (token,) at places, in ascending order.

    Returns
    -------
    ids : ndarray (token,)
    starts : list of int
        The position in `ids` at which each sentence begins.
    """
    parts = [part for start, stop, tokens in zip([0, *places], places, sentences) for part in (text[start:stop], tokens)]
    inserted = np.cumsum([0, *map(len, sentences)])
    ids = np.concatenate([*parts, text[places[-1] :] if len(places) else text]).astype(text.dtype)
    return ids, [int(place + before) for place, before in zip(places, inserted)]


def word_begins(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Return which tokens begin a word, (token of the vocabulary,) bool."""
    # A lone space would join the white space before it.
    return np.array([piece.startswith(("Ġ", "▁", " ")) and len(piece) > 1 for piece in pieces(tokenizer)])


def pieces(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the text of every token of a vocabulary by id, as the tokenizer keeps it; "" for ids that are no token."""
    size = 1 + max(tokenizer.get_vocab().values())  # some vocabularies leave ids out
    return [piece or "" for piece in tokenizer.convert_ids_to_tokens(list(range(size)))]
