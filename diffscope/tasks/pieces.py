"""Pieces of text in the tokens of any tokenizer, such that their tokens one after the other are those of the whole text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from transformers import PreTrainedTokenizerBase

from diffscope.errors import PromptError, first_line

WORD = "a"  # stands before a piece when it is encoded, as something does wherever pieces are put together
OWN = "give prompts of your own (--prompts FILE)"


def opening(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What a tokenizer itself puts before a text, such as <bos>; many put nothing there, whatever tokens they know."""
    encoded = tokenizer(WORD, return_special_tokens_mask=True)
    special = takewhile(lambda pair: pair[1], zip(encoded["input_ids"], encoded["special_tokens_mask"]))
    return [token for token, _ in special]


def closing(tokenizer: PreTrainedTokenizerBase) -> int:
    """How many tokens a tokenizer itself puts after a text, such as <eos>: nothing continues that."""
    mask = tokenizer(WORD, return_special_tokens_mask=True)["special_tokens_mask"]
    return len(list(takewhile(bool, reversed(mask))))


def after_word(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """The tokens of each text as it stands after a word.

    Raises
    ------
    PromptError
        A text shares a token with that word, or cannot be split.
    """
    try:
        before = tokenizer(WORD, add_special_tokens=False)["input_ids"]
        encoded = tokenizer([WORD + text for text in texts], add_special_tokens=False, verbose=False)["input_ids"]
    except Exception as error:  # the tokenizers library raises that itself, where a character is no token
        raise PromptError(f"this tokenizer cannot split the text of prompts ({first_line(error)}); {OWN}") from None
    for text, ids in zip(texts, encoded):
        if ids[: len(before)] != before:
            raise PromptError(
                f"this tokenizer joins {text[:40]!r} to the word before it, so prompts cannot be put together from sentences; "
                f"begin the template with a space, or {OWN}"
            )
    return [ids[len(before) :] for ids in encoded]


def around(tokenizer: PreTrainedTokenizerBase, before: str, inner: str, after: str) -> tuple[list[int], list[int], list[int]]:
    """The tokens of three texts that stand together after a word: those before the inner one, of it, and after it.

    White space before the inner text may be part of its first token; a token of white space alone is before it.

    Raises
    ------
    PromptError
        The inner text shares a token with another, or the tokenizer does not tell where its tokens stand in a text.
    """
    if not tokenizer.is_fast:
        raise PromptError(f"this tokenizer does not say where its tokens stand in a text; {OWN}")
    start = len(WORD) + len(before)
    stop = start + len(inner)
    (ids,) = after_word(tokenizer, [before + inner + after])
    encoded = tokenizer(WORD + before + inner + after, add_special_tokens=False, return_offsets_mapping=True)
    offsets = encoded["offset_mapping"][-len(ids) :]
    inside = [at for at, (first, last) in enumerate(offsets) if first < stop and last > start]
    shared = not inside or offsets[inside[-1]][1] > stop or (WORD + before)[offsets[inside[0]][0] : start].strip()
    if shared:
        raise PromptError(
            f"this tokenizer has no tokens of {inner!r} alone in {before + inner + after!r}; put white space around it in the "
            f"template, or {OWN}"
        )
    return ids[: inside[0]], ids[inside[0] : inside[-1] + 1], ids[inside[-1] + 1 :]
