"""Encode prompts as tokens with their places in the text, and find named spans among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from diffscope.errors import PromptError, SpanError, first_line
from diffscope.fields import LARGEST, TEXT, by_name, check_fields, listed, maybe, shown, whole
from diffscope.prompts.spans import SpanExpr, resolved
from diffscope.prompts.token_ids import as_ids, check_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = Any  # a text, a list of token positions, a slice of tokens, Chars or a list of Chars, or a SpanExpr
Parts = tuple[str | None, list[int], list[str], list[tuple[int, int]]]  # text, ids, tokens, offsets

# The key sets of docs/statistics.md: R, N, U and S are spans, and C and I are derived from them.
GIVEN_SETS = ("answer", "needles", "query", "sink")
DERIVED_SETS = ("context", "irrelevant")


# Kinds of the fields of a saved prompt.
FIELDS = {
    "text": maybe(TEXT),
    "ids": listed(whole()),
    "tokens": listed(TEXT),
    "offsets": listed(listed(whole(), 2)),
    "spans": by_name(listed(whole())),
}


class Chars(NamedTuple):
    """A span given by characters of the text: ``Chars(start, stop)``."""

    start: int
    stop: int


class ChatText(str):
    """A chat as its template writes it: the special tokens stand in the text already, and none are added to it."""


@dataclass(frozen=True)
class Encoded:
    """One prompt.

    Attributes
    ----------
    text : str or None
        None for token ids without a tokenizer.
    ids : tuple of int
    tokens : tuple of str
        The text of each token.
    offsets : tuple of (int, int)
        Characters of the text that each token covers; empty for tokens that are not in it, such as <bos>.
    spans : dict of str to tuple of int
        Sorted token positions, by name.
    """

    text: str | None
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    spans: dict[str, tuple[int, ...]]

    @classmethod
    def from_record(cls, record: dict, what: str) -> Encoded:
        """Return the prompt whose fields a file holds; `what` names it in messages.

        Raises
        ------
        ValueError
            They are no prompt.
        """
        check_fields(what, record, FIELDS)
        text, ids, tokens, offsets = (record[name] for name in ("text", "ids", "tokens", "offsets"))
        if not len(ids) == len(tokens) == len(offsets) > 0:
            counts = f"{len(ids)} ids, {len(tokens)} tokens and {len(offsets)} offsets"
            raise ValueError(f"{what} has {counts}, and has to have as many of each, at least one")
        end = LARGEST if text is None else len(text)
        if outside := next((pair for pair in offsets if not pair[0] <= pair[1] <= end), None):
            raise ValueError(f"offsets of {what} hold {shown(outside)}, which is no part of its text")
        for name, at in record["spans"].items():
            if name in DERIVED_SETS or not all(position < len(ids) for position in at):
                raise ValueError(f"{what} has the span {shown(name)} at {shown(at)}, and has tokens 0 to {len(ids) - 1}")
        spans = {name: tuple(at) for name, at in record["spans"].items()}
        return cls(text, tuple(ids), tuple(tokens), tuple(map(tuple, offsets)), spans)

    def key_sets(self, device: torch.device | str | None = None) -> dict[str, Tensor]:
        """Return the spans and the sets derived from them, as int64 position tensors.

        ``context`` has the tokens outside of answer, needles, query and sink, the queried needle's other words included;
        ``irrelevant`` has the needles and the context, without tokens that are answer, query or sink as well.
        """
        named = {name: set(positions) for name, positions in self.spans.items()}
        known = set().union(*(named.get(name, set()) for name in GIVEN_SETS))
        named["context"] = set(range(len(self.ids))) - known
        relevant = set().union(*(named.get(name, set()) for name in ("answer", "query", "sink")))
        named["irrelevant"] = set(range(len(self.ids))) - relevant
        return {name: torch.tensor(sorted(at), dtype=torch.int64, device=device) for name, at in named.items()}

    def span_positions(self) -> dict[str, list[int]]:
        """Return the spans and derived sets as sorted lists."""
        return {name: at.tolist() for name, at in self.key_sets().items()}

    def pieces(self) -> list[str]:
        """Return the text that each token adds; together they are the text, with special tokens at their places.

        Without a text they are the tokens, each with a space after it.
        """
        if self.text is None:
            return [f"{token} " for token in self.tokens]
        pieces = []
        done = 0  # characters of the text
        for token, (start, stop) in zip(self.tokens, self.offsets):
            if start == stop and token.strip():
                pieces.append(token)
            else:  # some tokenizers give white space no place: it comes with the next token
                pieces.append(self.text[done:stop])
                done = max(done, stop)
        return [*pieces[:-1], pieces[-1] + self.text[done:]]


def encode(
    tokenizer: PreTrainedTokenizerBase | None,
    prompt: str | Sequence[int] | Tensor | np.ndarray,
    spans: Mapping[str, Span] | None = None,
    vocabulary: int | None = None,
) -> Encoded:
    """Tokenise a prompt and find its spans.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase or None
        None only for prompts that are token ids.
    prompt : str, or token ids as a sequence, tensor or array (token,)
        Whatever else ``Scope.capture`` takes goes through :meth:`diffscope.scope.Scope.encode`.
    spans : mapping of str to span, optional
        A span is a text, a ``slice`` of tokens or a list of token positions, ``Chars(start, stop)`` or a list of ``Chars``, or
        made of others, ``SpanExpr("before(answer)")``.
    vocabulary : int, optional
        How many tokens the model knows; by default any id is taken.

    Raises
    ------
    PromptError
        The prompt is empty, is neither text nor token ids, has ids outside the vocabulary, or is text and there is no tokenizer.
    SpanError
        A span is not there, or can be read in more than one way.
    """
    if isinstance(prompt, str):
        if tokenizer is None:
            raise PromptError("this model came without a tokenizer; give the prompt as token ids")
        if not prompt.strip():
            raise PromptError("the prompt is empty or white space alone; give it some text")
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            half = ascii(prompt[error.start])
            raise PromptError(f"the prompt has half a character, {half}, at {error.start}; give it whole ones") from None
        parts = _tokenised(tokenizer, str(prompt), not isinstance(prompt, ChatText))
        check_ids(parts[1], vocabulary)
    else:
        ids = _token_ids(prompt)
        check_ids(ids, vocabulary)  # a tokenizer cannot decode just any number
        parts = _decode_ids(tokenizer, ids)
    text, ids, tokens, offsets = parts
    return with_spans(Encoded(text, tuple(ids), tuple(tokens), tuple(offsets), {}), spans)


def numbered(tokens: Sequence[str], spans: Mapping[str, Span]) -> Encoded:
    """Return a prompt without a text whose tokens have names, and their number as ids."""
    return with_spans(Encoded(None, tuple(range(len(tokens))), tuple(tokens), ((0, 0),) * len(tokens), {}), spans)


def with_spans(encoded: Encoded, spans: Mapping[str, Span] | None) -> Encoded:
    """Return a prompt with its spans as positions; the sink is its first token unless it is given."""
    if not isinstance({} if spans is None else spans, Mapping):
        raise SpanError(f"spans are given by name, such as spans={{'answer': '7421'}}, and not as {shown(spans)}")
    given = dict(spans or {})
    if derived := next((name for name in given if name in DERIVED_SETS), None):
        raise SpanError(f"{derived!r} follows from the other spans and cannot be given; choose another name")
    of_others = {name: span for name, span in given.items() if isinstance(span, SpanExpr)}
    found = {"sink": (0,)} | {name: find_span(encoded, name, span) for name, span in given.items() if name not in of_others}
    if of_others:
        found |= resolved(of_others, {name: at for name, at in found.items() if name not in of_others}, len(encoded.ids))
    return replace(encoded, spans={name: found[name] for name in ("sink", *given)})


def _token_ids(prompt: Any) -> list[int]:
    try:
        return as_ids(prompt)
    except ValueError as error:
        raise PromptError(f"token ids are whole numbers in one row: {error}") from None


def _tokenised(tokenizer: PreTrainedTokenizerBase, text: str, special: bool) -> Parts:
    """Tokenise a text, with or without special tokens added to it."""
    if not tokenizer.is_fast:  # it does not say which characters a token covers
        return _spelled_out(tokenizer, tokenizer(text, add_special_tokens=special)["input_ids"])
    try:
        encoded = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True, verbose=False)
    except BaseException as error:  # the tokenizers library raises Exception itself, and panics where a pattern takes too long
        if isinstance(error, MemoryError) or not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
            raise
        raise PromptError(f"the tokenizer cannot split this text ({first_line(error)}); give the prompt as token ids") from None
    ids = encoded["input_ids"]
    return text, ids, _token_texts(tokenizer, ids), [tuple(pair) for pair in encoded["offset_mapping"]]


#: By tokenizer, and whether it cleans up spaces, the texts of tokens.
_TEXTS: WeakKeyDictionary[PreTrainedTokenizerBase, dict[bool, dict[int, str]]] = WeakKeyDictionary()


def _token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Decode each token by itself, and each once for a tokenizer."""
    cleans = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
    known = _TEXTS.setdefault(tokenizer, {}).setdefault(cleans, {})
    texts = {token: known.get(token) or str(tokenizer.decode([token])) for token in set(ids)}
    known.update({token: text for token, text in texts.items() if text})  # one without a text may be given one by add_tokens
    return [texts[token] for token in ids]


def _decode_ids(tokenizer: PreTrainedTokenizerBase | None, ids: list[int]) -> Parts:
    """Find the text that is tokenised to these ids, with special tokens added or written in it; else the tokens' own texts."""
    if tokenizer is None:
        return None, ids, [str(token) for token in ids], [(0, 0)] * len(ids)
    for added in (True, False) if tokenizer.is_fast else ():
        text = str(tokenizer.decode(ids, skip_special_tokens=added, clean_up_tokenization_spaces=False))
        parts = _tokenised(tokenizer, text, added)
        if parts[1] == ids:
            return parts
    return _spelled_out(tokenizer, ids)


def _spelled_out(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> Parts:
    """Join the tokens' own texts one after the other."""
    special = set(tokenizer.all_special_ids)
    tokens = _token_texts(tokenizer, ids)
    pieces = ["" if token in special else text for token, text in zip(ids, tokens)]
    ends = [0]
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    return "".join(pieces), ids, tokens, list(pairwise(ends))


def find_span(prompt: Encoded, name: str, span: Span) -> tuple[int, ...]:
    """Return the token positions of a span, sorted.

    Raises SpanError if it is not in the prompt; a text stands there twice; a text or character range begins or ends inside a
    token. The message shows both readings.
    """
    if isinstance(span, str):
        if prompt.text is None:
            raise SpanError(f"span {name!r} is a text, but the prompt is token ids without a tokenizer; give slice(start, stop)")
        if not span.strip():
            raise SpanError(f"span {name!r} is empty; give the text it covers")
        starts = [at for at in range(len(prompt.text)) if prompt.text.startswith(span, at)]
        if not starts:
            raise SpanError(f"span {name!r}: {span!r} is not in the prompt; check its spelling, or give a slice of tokens")
        if len(starts) > 1:
            readings = "; ".join(_reading(prompt, at, at + len(span)) for at in starts[:2])
            raise SpanError(
                f"span {name!r}: {span!r} stands {len(starts)} times in the prompt: {readings}; say which by its slice of tokens"
            )
        return _by_characters(prompt, name, starts[0], starts[0] + len(span))
    if isinstance(span, Chars):
        return _by_characters(prompt, name, *span)
    if isinstance(span, list) and span and all(isinstance(piece, Chars) for piece in span):
        return tuple(sorted({at for piece in span for at in _by_characters(prompt, name, *piece)}))
    if isinstance(span, tuple):
        raise SpanError(
            f"span {name!r} is the tuple {shown(span)}; give slice(start, stop) for a range of tokens, or a list of positions"
        )
    try:
        positions = sorted(set(_of_slice(span, len(prompt.ids)) if isinstance(span, slice) else as_ids(span)))
    except (TypeError, ValueError) as error:
        raise SpanError(
            f"span {name!r} is {shown(span)} ({error}); give a text, a slice of tokens, a list of token positions, or Chars"
        ) from None
    if not positions or positions[0] < 0 or positions[-1] >= len(prompt.ids):
        raise SpanError(f"span {name!r} asks for token positions {span}, but the prompt has tokens 0 to {len(prompt.ids) - 1}")
    return tuple(positions)


def _of_slice(tokens: slice, n: int) -> range:
    """Return the positions in a slice; ValueError if it reaches beyond a prompt of n tokens."""
    positions = range(n)[tokens]
    if any(end is not None and not -n <= end <= n for end in (tokens.start, tokens.stop)):
        raise ValueError(f"the prompt has tokens 0 to {n - 1}")
    return positions


def _by_characters(prompt: Encoded, name: str, start: int, stop: int) -> tuple[int, ...]:
    """Return the tokens that cover characters start to stop; white space at either border may be left out or included."""
    whole = isinstance(start, Integral) and isinstance(stop, Integral)
    if prompt.text is None or not whole or not 0 <= start < stop <= len(prompt.text):
        raise SpanError(f"span {name!r} asks for characters {start} to {stop} of a prompt of {len(prompt.text or '')}")
    touched = [at for at, (a, b) in enumerate(prompt.offsets) if a < stop and b > start and a < b]
    end = start + len(prompt.text[start:stop].rstrip())
    while end > start and touched and prompt.offsets[touched[-1]][0] >= end and prompt.offsets[touched[-1]][1] > stop:
        touched.pop()  # the next word, whose token begins with the white space at the end of the span
    if not touched:
        raise SpanError(f"span {name!r}: no token covers {prompt.text[start:stop]!r}; give a slice of tokens")
    inside = [at for at in touched if start <= prompt.offsets[at][0] and prompt.offsets[at][1] <= stop]
    first = prompt.offsets[touched[0]][0]
    last = prompt.offsets[touched[-1]][1]
    if prompt.text[first:stop].strip() != prompt.text[start:stop].strip() or prompt.text[stop:last].strip():
        wider = f"tokens {touched[0]}:{touched[-1] + 1} {prompt.text[first:last]!r}"
        narrower = f"tokens {inside[0]}:{inside[-1] + 1} {_text_of(prompt, inside)!r}" if inside else "no whole token"
        raise SpanError(
            f"span {name!r}: {prompt.text[start:stop]!r} cuts a token; wider: {wider}; narrower: {narrower}; "
            "give one as a slice of tokens"
        )
    return tuple(touched)


def _text_of(prompt: Encoded, positions: list[int]) -> str:
    assert prompt.text is not None
    return prompt.text[prompt.offsets[positions[0]][0] : prompt.offsets[positions[-1]][1]]


def _reading(prompt: Encoded, start: int, stop: int) -> str:
    touched = [at for at, (a, b) in enumerate(prompt.offsets) if a < stop and b > start and a < b]
    assert prompt.text is not None
    around = prompt.text[max(0, start - 20) : stop + 10].replace("\n", " ")
    tokens = f"tokens {touched[0]}:{touched[-1] + 1}" if touched else "no token"
    return f"{tokens} in '…{around}…'"
