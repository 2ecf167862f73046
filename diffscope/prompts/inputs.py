"""Read prompts in the forms in which people hold them: texts, token ids, a tokenizer's output, embeddings, chats, and batches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from diffscope.errors import PromptError, SpanError
from diffscope.fields import shown
from diffscope.prompts.chats import write_chat
from diffscope.prompts.embeddings import EMBEDDINGS, Embedded
from diffscope.prompts.encoded import ChatText
from diffscope.prompts.token_ids import as_ids, as_lists, is_scalar
from diffscope.prompts.tokenizer_output import IDS, MASK, Pack, read_fields, refuse_padding

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Spans = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None  # of one prompt or of all, or one mapping a prompt
Plain = str | list[int] | Embedded  # every form comes down to a text, which may be a ChatText, token ids, or embeddings

FORMS = "a text, token ids, a tokenizer's output, a chat, or a list of these"
NESTED = "it is a batch itself, such as (1, N); give (N,), which is one prompt"
PACKED = "it is a pack, which is a batch itself; give packs one by one"
BYTES = (bytes, bytearray, memoryview)


def split_prompts(prompt: Any, tokenizer: PreTrainedTokenizerBase | None) -> tuple[Sequence[Plain], bool]:
    """Return the prompts that a person holds as texts, token ids or embeddings, and whether they are a batch.

    Raises PromptError if it is something else, or may be meant in more than one way.

    Parameters
    ----------
    prompt
        One prompt or a batch in any form of docs/prompts.md. Dimensions tell one from the other, also a batch of one.

    Returns
    -------
    prompts : sequence of str, list of int or Embedded
        A :class:`~diffscope.prompts.tokenizer_output.Pack` if they are run in one row.
    batch : bool
    """
    if isinstance(prompt, (str, Embedded)):
        return [prompt], False
    if isinstance(prompt, Mapping):
        return read_fields(prompt, tokenizer)
    prompt = _as_sequence(prompt)
    if not _is_batch(prompt):
        return [_one(prompt, tokenizer)], False
    prompts = [_of_batch(index, each, tokenizer) for index, each in enumerate(prompt)]
    kinds = sorted({_kind(each) for each in prompts})
    if len(kinds) > 1:
        raise PromptError(f"the prompts of a batch are {' and '.join(kinds)}; give all as one kind")
    masked = any(isinstance(each, Mapping) and each.get(MASK) is not None for each in prompt)
    if kinds == ["token ids"] and not masked:
        refuse_padding(prompts, tokenizer)  # type: ignore[arg-type]  # they are token ids
    return prompts, True


def broadcast(values: Any, count: int, what: str) -> list:
    """Return a value for each of `count` prompts: each its own of a list or tuple, or anything else for all of them.

    Raises PromptError if a list has another length; `what` it holds is in the message.
    """
    if not isinstance(values, (list, tuple)):
        return [values] * count
    if len(values) != count:
        raise PromptError(f"{count} prompts but {len(values)} {what}; give one for all or one each")
    return list(values)


def _as_sequence(prompt: Any) -> str | Sequence | Embedded:
    """Return a prompt or batch as a text or sequence, in place of tensors and arrays."""
    if isinstance(prompt, (str, Embedded)):
        return prompt
    if getattr(prompt, "ndim", 1) not in (1, 2):
        raise PromptError(f"token ids have the shape (N,), of a batch (B, N), and not {tuple(prompt.shape)}")
    try:
        prompt = as_lists(prompt)
    except ValueError as error:
        raise PromptError(f"token ids are whole numbers: {error}; give {FORMS}") from None
    if not isinstance(prompt, Sequence) or isinstance(prompt, BYTES):
        raise PromptError(f"{shown(prompt)} is no prompt; {_instead_of(prompt)}")
    if not len(prompt):
        raise PromptError("the prompt is empty; give it at least one token of text")
    return prompt


def _instead_of(prompt: Any) -> str:
    """Return advice on what to give in place of something that is no prompt."""
    if isinstance(prompt, BYTES):
        return "decode the bytes to text first"
    if isinstance(prompt, os.PathLike):
        return "read the text from the file first"
    if isinstance(prompt, Iterable):
        return "what has no order or can be read only once does not do, give a list"
    return f"give {FORMS}"


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and IDS not in value and EMBEDDINGS not in value


def _is_batch(prompt: str | Sequence | Embedded) -> bool:
    return not (isinstance(prompt, (str, Embedded)) or is_scalar(prompt[0]) or _is_message(prompt[0]))


def _one(prompt: str | Sequence | Embedded, tokenizer: PreTrainedTokenizerBase | None) -> Plain:
    """Read one prompt that is no dict and no tensor."""
    if isinstance(prompt, (str, Embedded)):
        return prompt
    if _is_message(prompt[0]):
        return write_chat(prompt, tokenizer)
    try:
        return as_ids(prompt)
    except ValueError as error:
        raise PromptError(f"token ids are whole numbers: {error}; give {FORMS}") from None


@contextmanager
def naming_prompt(number: int, batch: bool = True) -> Iterator[None]:
    """Have errors of a prompt and of its spans name the prompt, by its number in the batch; of one that is none, nothing."""
    try:
        yield
    except (PromptError, SpanError) as error:
        raise type(error)(f"prompt {number} of the batch: {error}" if batch else str(error)) from None


def _of_batch(index: int, prompt: Any, tokenizer: PreTrainedTokenizerBase | None) -> Plain:
    """Read one prompt of a batch."""
    with naming_prompt(index):
        if isinstance(prompt, Mapping):
            prompts, batch = read_fields(prompt, tokenizer)
            if batch:
                raise PromptError(PACKED if isinstance(prompts, Pack) else NESTED)
            return prompts[0]
        prompt = _as_sequence(prompt)
        if _is_batch(prompt):
            raise PromptError(NESTED)
        return _one(prompt, tokenizer)


def _kind(prompt: Plain) -> str:
    """Return the name of what a prompt was given as, in the plural."""
    if isinstance(prompt, Embedded):
        return "embeddings"
    if isinstance(prompt, list):
        return "token ids"
    return "chats" if isinstance(prompt, ChatText) else "texts"
