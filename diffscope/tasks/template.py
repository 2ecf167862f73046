"""The sentence of retrieval prompts, and fragments of text, in the tokens of any tokenizer.

Fragments are tokenised such that their tokens, one after the other, equal those of the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from itertools import takewhile

from transformers import PreTrainedTokenizerBase

from diffscope.errors import PromptError, first_line
from diffscope.tasks.tokenizer import CITIES

WORD = "a"  # stands before a fragment while it is encoded, since something stands before it in every prompt
USE_OWN = "give prompts of your own (--prompts FILE)"
SAMPLE = [f"{n:02d}{n * 37 % 100:02d}" for n in range(100)]  # numbers that show how a tokenizer splits numbers


def prefix_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that a tokenizer puts before every text, such as <bos>; many put none."""
    encoded = tokenizer(WORD, return_special_tokens_mask=True)
    special = takewhile(lambda pair: pair[1], zip(encoded["input_ids"], encoded["special_tokens_mask"]))
    return [token for token, _ in special]


def suffix_count(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return how many tokens a tokenizer puts after every text, such as <eos>, which no answer could follow."""
    mask = tokenizer(WORD, return_special_tokens_mask=True)["special_tokens_mask"]
    return len(list(takewhile(bool, reversed(mask))))


def encode_continuation(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], word: str = WORD) -> list[list[int]]:
    """Return the tokens of each text as it continues `word`.

    Raises PromptError if a text shares a token with `word`, or cannot be split.
    """
    return _encode(tokenizer, texts, word=word)[0]


def _encode(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], offsets: bool = False, word: str = WORD
) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
    """Return the tokens of each text as it continues a word, and if asked for where each stands in the word and the text."""
    try:
        continued = [word, *(word + text for text in texts)]
        encoded = tokenizer(continued, add_special_tokens=False, verbose=False, return_offsets_mapping=offsets)
    except Exception as error:  # the tokenizers library raises that itself if a character is no token
        raise PromptError(f"this tokenizer cannot split the text of prompts ({first_line(error)}); {USE_OWN}") from None
    before, *encoded_texts = encoded["input_ids"]
    for text, ids in zip(texts, encoded_texts):
        if ids[: len(before)] != before:
            raise PromptError(
                f"this tokenizer joins {text[:40]!r} to the word before it, so prompts cannot be put together from sentences; "
                f"begin the template with a space, or {USE_OWN}"
            )
    places = encoded["offset_mapping"][1:] if offsets else []
    return [ids[len(before) :] for ids in encoded_texts], [of_text[len(before) :] for of_text in places]


def encode_inside(
    tokenizer: PreTrainedTokenizerBase, before: str, inner: Sequence[str], after: str
) -> list[tuple[list[int], list[int], list[int]]]:
    """Return, for each inner text, the tokens of three texts that continue a word together: before it, of it, and after it.

    White space before the inner text may be part of its first token. A token of white space alone is before it.

    Raises PromptError if an inner text shares a token with another, or the tokenizer does not give the offsets of its tokens.
    """
    if not tokenizer.is_fast:
        raise PromptError(f"this tokenizer does not say where its tokens stand in a text; {USE_OWN}")
    start = len(WORD) + len(before)
    parts = []
    for text, ids, offsets in zip(inner, *_encode(tokenizer, [before + text + after for text in inner], offsets=True)):
        stop = start + len(text)
        inside = [at for at, (first, last) in enumerate(offsets) if first < stop and last > start]
        shared = not inside or offsets[inside[-1]][1] > stop or (WORD + before)[offsets[inside[0]][0] : start].strip()
        if shared:
            raise PromptError(
                f"this tokenizer has no tokens of {text!r} alone in {before + text + after!r}; put white space around it in the "
                f"template, or {USE_OWN}"
            )
        parts.append((ids[: inside[0]], ids[inside[0] : inside[-1] + 1], ids[inside[-1] + 1 :]))
    return parts


def check_template(template: str) -> None:
    """Raise PromptError unless a template holds ``{city}`` once and then, after a space, ``{number}`` once."""
    city = "{city}"
    number = " {number}"
    rest = template.replace(city, "", 1).replace(number, "", 1)
    if not (-1 < template.find(city) < template.find(number)) or set(rest) & set("{}"):
        raise PromptError(
            f"template {template!r} has to hold {{city}} once and after it, with a space before, {{number}} once, and no other "
            "braces; what stands before the number is the question"
        )


class Template:
    """A needle sentence in tokens: the question, the number, and what comes after it.

    Parameters
    ----------
    tokenizer
        Any that marks where words begin; cities and numbers may be of several tokens.
    text : str
        The sentence, with ``{city}`` and after it ``{number}``.

    Attributes
    ----------
    suffix : list of int
        Tokens of what comes after the number.

    Raises
    ------
    PromptError
        The text is no such sentence, or the tokenizer joins it to what stands around it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, text: str):
        check_template(text)
        self.text = text
        self._tokenizer = tokenizer
        self._head, self._end = text.split(" {number}")
        self.head = cache(self._head_tokens)
        self.number = cache(self._number_tokens)
        parts = encode_inside(tokenizer, " ", SAMPLE, self._end)
        self.suffix = parts[0][2]
        spaces = {tuple(space) for space, _, _ in parts}
        # A token of white space that stands before every number does not depend on the number: it belongs to the question.
        self._space = list(spaces.pop()) if len(spaces) == 1 else []
        self._check([[*space, *digits] for space, digits, _ in parts])

    def _check(self, numbers: Sequence[list[int]]) -> None:
        """Raise PromptError unless sentences have the same tokens alone as between words.

        Parameters
        ----------
        numbers : sequence of list of int
            The tokens of :data:`SAMPLE`, with those of the white space before them.
        """
        heads = [self._head.format(city=city) for city, _ in zip(CITIES, SAMPLE)]
        wholes = [f"{head} {number}{self._end} a" for head, number in zip(heads, SAMPLE)]
        after = self.encode(" a")
        encode = partial(encode_continuation, self._tokenizer)
        for whole, head, number in zip(encode(wholes), encode(heads), numbers):
            if not self.text[0].isspace() or [*head, *number, *self.suffix, *after] != whole:
                raise PromptError(
                    f"this tokenizer has other tokens for the template {self.text!r} alone than between words; begin it with "
                    f"a space and end it with a point, or {USE_OWN}"
                )

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text that continues a word."""
        return encode_continuation(self._tokenizer, [text])[0]

    def _head_tokens(self, city: str) -> tuple[int, ...]:
        """Return the tokens before the number and before any white space that belongs to it."""
        return tuple(self.encode(self._head.format(city=city)))

    def question(self, city: str) -> tuple[int, ...]:
        """Return the tokens before the number; the next token is the first that tells numbers apart."""
        return (*self.head(city), *self._space)

    def _number_tokens(self, number: str) -> list[int]:
        """Return the tokens of a number that follows a question."""
        ((space, digits, _),) = encode_inside(self._tokenizer, " ", [number], self._end)
        if self._space and space != self._space:
            raise PromptError(f"this tokenizer begins the number {number} otherwise than others; {USE_OWN}")
        return digits if self._space else [*space, *digits]

    def sentence(self, city: str, number: list[int]) -> list[int]:
        """Return the tokens of a whole sentence, from those of its number."""
        return [*self.question(city), *number, *self.suffix]
