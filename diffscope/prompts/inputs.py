"""The forms in which people hold prompts: texts, token ids, a tokenizer's output, embeddings, chats, batches and packs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from diffscope.errors import PromptError, first_line
from diffscope.families.packs import sequences_in
from diffscope.prompts.encoded import ChatText, listed, shown, whole_numbers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Of tensors, arrays and a tokenizer's output only their dimensions tell: (N,) is one prompt, (B, N) a batch.
OnePrompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
PromptBatch = list[str] | list[Tensor] | Sequence[Sequence[int]] | Sequence[Sequence[Mapping[str, Any]]]
Spans = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None  # of one prompt or of all, or one mapping a prompt


@dataclass(frozen=True, eq=False)
class Embedded:
    """A prompt given as embeddings (token, hidden), with the ids of its tokens if they are known."""

    embeddings: Tensor
    ids: list[int] | None = None


Plain = str | list[int] | Embedded  # what every form comes down to: a text, which may be a ChatText, token ids, or embeddings


class Pack(list[Plain]):
    """The sequences of a pack, which a model is given in one row; and its mask (1, 1, token, token), if one was given."""

    mask: Tensor | None = None


Tables = Mapping[str, tuple[list[list[int]], bool]]  # fields by name, as rows of whole numbers, and whether each is of a batch
FORMS = "a text, token ids, a tokenizer's output, a chat, or a list of these"
NESTED = "it is a batch itself, such as (1, N); give (N,), which is one prompt"
PACKED = "it is a pack, which is a batch itself; give packs one by one"
BYTES = (bytes, bytearray, memoryview)
MASK = "attention_mask"
# The model is run without these fields, so they have to be what it makes of n tokens by itself.
IMPLIED = {"token_type_ids": lambda n: [0] * n, "position_ids": lambda n: [*range(n)]}
IDS = "input_ids"
EMBEDDINGS = "inputs_embeds"
POSITIONS = "position_ids"
SAYS_NOTHING_NEW = {"special_tokens_mask", "offset_mapping", "length", "assistant_masks"}  # of what a tokenizer gives


def split_prompts(prompt: Any, tokenizer: PreTrainedTokenizerBase | None) -> tuple[list[Plain], bool]:
    """Whatever a person holds as texts and token ids, and whether it is a batch.

    Parameters
    ----------
    prompt
        Dimensions tell one prompt from a batch, also from a batch of one:

        - a text, or a list of texts;
        - token ids as a sequence, tensor or array (token,); (batch, token), or a list of those;
        - a tokenizer's output, or a dict with ``input_ids`` and an ``attention_mask`` (token,) or (batch, token), or a list of
          those of one prompt each. What the mask hides to the left and right is cut away;
        - a dict with ``inputs_embeds`` (token, hidden) or (batch, token, hidden), with ``input_ids`` beside them or without;
        - a pack: ``position_ids`` that start again from 0 in the one row that ``input_ids`` or ``inputs_embeds`` have. It is a
          batch of its sequences;
        - a chat, which is a list of messages ``{"role": …, "content": …}``, or a list of chats. The tokenizer's chat template
          writes it; unless the last message is the assistant's, with what begins the assistant's answer.
    tokenizer : PreTrainedTokenizerBase or None

    Raises
    ------
    PromptError
        It is something else, or may be meant in more than one way.
    """
    if isinstance(prompt, Mapping):
        return _of_fields(prompt, tokenizer)
    prompt = _opened(prompt)
    if not _is_batch(prompt):
        return [_one(prompt, tokenizer)], False
    prompts = [_of_batch(index, each, tokenizer) for index, each in enumerate(prompt)]
    kinds = sorted({_kind(each) for each in prompts})
    if len(kinds) > 1:
        raise PromptError(f"the prompts of a batch are {' and '.join(kinds)}; give all as one kind")
    masked = any(isinstance(each, Mapping) and each.get(MASK) is not None for each in prompt)
    if kinds == ["token ids"] and not masked:
        _refuse_padding(prompts, tokenizer)
    return prompts, True


def broadcast(values: Any, count: int, what: str) -> list:
    """Return a value for each of `count` prompts: each its own of a list or tuple, or anything else for all of them.

    Raises
    ------
    PromptError
        A list has another length; `what` it holds begins the message.
    """
    if not isinstance(values, (list, tuple)):
        return [values] * count
    if len(values) != count:
        raise PromptError(f"{count} prompts but {len(values)} {what}; give one for all or one each")
    return list(values)


def _opened(prompt: Any) -> str | Sequence | Embedded:
    """A prompt or batch as a text or sequence, in place of tensors and arrays."""
    if isinstance(prompt, (str, Embedded)):
        return prompt
    if getattr(prompt, "ndim", 1) not in (1, 2):
        raise PromptError(f"token ids have the shape (N,), of a batch (B, N), and not {tuple(prompt.shape)}")
    try:
        prompt = listed(prompt)
    except ValueError as error:
        raise PromptError(f"token ids are whole numbers: {error}; give {FORMS}") from None
    if not isinstance(prompt, Sequence) or isinstance(prompt, BYTES):
        raise PromptError(f"{shown(prompt)} is no prompt; {_instead_of(prompt)}")
    if not len(prompt):
        raise PromptError("the prompt is empty; give it at least one token of text")
    return prompt


def _instead_of(prompt: Any) -> str:
    if isinstance(prompt, BYTES):
        return "decode the bytes to text first"
    if isinstance(prompt, os.PathLike):
        return "read the text from the file first"
    if isinstance(prompt, Iterable):
        return "what has no order or can be read only once does not do, give a list"
    return f"give {FORMS}"


def _is_scalar(value: Any) -> bool:
    """Whether it is a number, a missing one included, and no text or sequence."""
    return value is None or isinstance(value, (int, float, complex)) or getattr(value, "ndim", 1) == 0


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and IDS not in value and EMBEDDINGS not in value


def _is_batch(prompt: str | Sequence | Embedded) -> bool:
    return not (isinstance(prompt, (str, Embedded)) or _is_scalar(prompt[0]) or _is_message(prompt[0]))


def _one(prompt: Any, tokenizer: PreTrainedTokenizerBase | None) -> Plain:
    if isinstance(prompt, Mapping):
        rows, batch = _of_fields(prompt, tokenizer)
        if batch:
            raise PromptError(PACKED if isinstance(rows, Pack) else NESTED)
        return rows[0]
    prompt = _opened(prompt)
    if isinstance(prompt, (str, Embedded)):
        return prompt
    if _is_batch(prompt):
        raise PromptError(NESTED)
    if _is_message(prompt[0]):
        return _written(prompt, tokenizer)
    try:
        return whole_numbers(prompt)
    except ValueError as error:
        raise PromptError(f"token ids are whole numbers: {error}; give {FORMS}") from None


def _of_batch(index: int, prompt: Any, tokenizer: PreTrainedTokenizerBase | None) -> Plain:
    try:
        return _one(prompt, tokenizer)
    except PromptError as error:
        raise PromptError(f"prompt {index} of the batch: {error}") from None


def _kind(prompt: Plain) -> str:
    if isinstance(prompt, Embedded):
        return "embeddings"
    if isinstance(prompt, list):
        return "token ids"
    return "chats" if isinstance(prompt, ChatText) else "texts"


# a tokenizer's output


def _of_fields(fields: Mapping, tokenizer: PreTrainedTokenizerBase | None) -> tuple[list[Plain], bool]:
    """The prompts of a tokenizer's output, or of embeddings, and whether they are a batch; a pack is a :class:`Pack`."""
    fields = {name: value for name, value in fields.items() if value is not None and name not in SAYS_NOTHING_NEW}
    names = ", ".join(repr(name) for name in fields)
    if IDS not in fields and EMBEDDINGS not in fields:
        raise PromptError(f"a dict with {names or 'nothing'} is no prompt; give input_ids in it, or a chat as a list of messages")
    if unknown := [name for name in fields if name not in (IDS, EMBEDDINGS, MASK, *IMPLIED)]:
        raise PromptError(f"it is not known what {unknown[0]!r} beside input_ids asks for; leave it out")
    of_pack = getattr(fields.get(MASK), "ndim", 2) == 4
    mask = fields.pop(MASK) if of_pack else None
    vectors = _vectors(fields.pop(EMBEDDINGS)) if EMBEDDINGS in fields else None
    tables = {name: _table(name, value) for name, value in fields.items()}
    lengths, batch = _shape(tables, vectors)
    ids = tables[IDS][0] if IDS in tables else None
    if sequences := _sequences(tables, lengths):
        return _pack(ids, vectors[0] if vectors else None, sequences, mask), True
    if of_pack:
        raise PromptError(f"an {MASK} of 4 dimensions goes with a pack, whose {POSITIONS} start again; give one value a token")
    if MASK not in tables and batch and ids is not None and vectors is None:
        _refuse_padding(ids, tokenizer)
    kept = [_seen(row) for row in tables[MASK][0]] if MASK in tables else [slice(None)] * len(lengths)
    for name in IMPLIED.keys() & tables.keys():
        if any(row[part] != IMPLIED[name](len(row[part])) for row, part in zip(tables[name][0], kept)):
            raise PromptError(
                f"{name} are not those that the tokens have by themselves, which the model is run with; leave them out"
            )
    rows = None if ids is None else [row[part] for row, part in zip(ids, kept)]
    if vectors is None:
        assert rows is not None  # there are ids or embeddings
        return list(rows), batch
    return [Embedded(row[part], rows and rows[i]) for i, (row, part) in enumerate(zip(vectors[0], kept))], batch


def _shape(
    tables: Mapping[str, tuple[list[list[int]], bool]], vectors: tuple[list[Tensor], bool] | None
) -> tuple[list[int], bool]:
    """The tokens of each prompt and whether they are a batch, which all fields agree about."""
    first, (rows, batch) = (EMBEDDINGS, vectors) if vectors else (IDS, tables[IDS])
    lengths = [len(row) for row in rows]
    for name, (table, of_batch) in tables.items():
        if of_batch != batch or [len(row) for row in table] != lengths:
            raise PromptError(f"{name} has another shape than {first}; give one value a token")
    return lengths, batch


def _vectors(value: Any) -> tuple[list[Tensor], bool]:
    """Embeddings as one tensor (token, hidden) a prompt, and whether they are a batch."""
    try:
        vectors = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise PromptError(f"{EMBEDDINGS} is {shown(value)}; give a tensor (token, hidden), or (batch, token, hidden)") from None
    if vectors.dim() not in (2, 3) or not vectors.is_floating_point() or 0 in vectors.shape:
        kind = f"{str(vectors.dtype).removeprefix('torch.')} of shape {tuple(vectors.shape)}"
        raise PromptError(f"{EMBEDDINGS} is {kind}; give floats (token, hidden), or (batch, token, hidden)")
    return (list(vectors), True) if vectors.dim() == 3 else ([vectors], False)


def _sequences(tables: Tables, lengths: Sequence[int]) -> tuple[int, ...] | None:
    """Tokens of each sequence of a pack; None where it is none."""
    positions = tables[POSITIONS][0] if POSITIONS in tables else []
    packed = [sequences_in(row) for row in positions]
    padded = MASK in tables and any(0 in row for row in tables[MASK][0])  # on the left positions may start again
    if padded or not any(packed):
        return None
    if len(lengths) > 1:
        raise PromptError(
            f"{POSITIONS} start again within a row of a batch of {len(lengths)}, which would be packs; give packs one by one"
        )
    if MASK in tables:
        raise PromptError(
            f"beside an {MASK} (1, N) transformers lets the sequences of a pack see each other; leave it out, or give one of "
            "all scores, (1, 1, N, N)"
        )
    if "token_type_ids" in tables and any(tables["token_type_ids"][0][0]):
        raise PromptError("token_type_ids of a pack are not 0, which the model is run with; leave them out")
    return packed[0]


def _pack(ids: list[list[int]] | None, vectors: list[Tensor] | None, sequences: tuple[int, ...], mask: Any) -> Pack:
    """The sequences of a pack, of their lengths."""
    pack = Pack()
    stop = 0
    for length in sequences:
        start, stop = stop, stop + length
        row = None if ids is None else ids[0][start:stop]
        pack.append(Embedded(vectors[0][start:stop], row) if vectors else row or [])
    if mask is not None:
        pack.mask = torch.as_tensor(mask)
        if pack.mask.shape != (1, 1, stop, stop):
            raise PromptError(f"the {MASK} of a pack of {stop} tokens has the shape {tuple(pack.mask.shape)}; give (1, 1, N, N)")
    return pack


def _table(name: str, value: Any) -> tuple[list[list[int]], bool]:
    """A field of a tokenizer's output as rows of whole numbers, and whether it is of a batch."""
    bools = name == MASK
    try:
        value = listed(value, bools)
        if isinstance(value, (list, tuple)) and len(value) and not _is_scalar(value[0]):
            return [whole_numbers(row, bools) for row in value], True
        return [whole_numbers(value, bools)], False
    except ValueError as error:
        raise PromptError(f"{name} holds something else than a row of whole numbers a prompt: {error}") from None


def _seen(mask: list[int]) -> slice:
    """The stretch of tokens that an attention mask shows."""
    if not set(mask) <= {0, 1}:
        raise PromptError(f"{MASK} is 1 where there is a token and 0 where there is padding, and holds other values")
    if 1 not in mask:
        raise PromptError(f"{MASK} is 0 for all tokens of a prompt, so that none is left; give it at least one token")
    first = mask.index(1)
    stop = len(mask) - mask[::-1].index(1)
    if 0 in mask[first:stop]:
        raise PromptError(f"{MASK} hides tokens between others; only padding to the left and right can be cut away")
    return slice(first, stop)


def _refuse_padding(rows: Sequence[Plain], tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Raise PromptError where rows of one length begin or end in what looks like padding, and no mask says whether it is.

    A padding token that also begins or ends texts is taken for padding only where some rows have more of it than others.
    """
    pad = getattr(tokenizer, "pad_token_id", None)
    if pad is None or len({len(row) for row in rows}) > 1:
        return
    shared = pad in (tokenizer.bos_token_id, tokenizer.eos_token_id)
    for words, step in (("begins", 1), ("ends", -1)):
        counts = [next((n for n, token in enumerate(row[::step]) if token != pad), len(row)) for row in rows]
        expected = min(counts) if shared else 0
        if max(counts) > expected:
            raise PromptError(
                f"prompt {counts.index(max(counts))} of the batch {words} with the tokenizer's padding (token {pad}); "
                f"give its {MASK} too, in a dict with input_ids: 0 for padding, 1 for tokens"
            )


# chats


def _written(messages: Sequence, tokenizer: PreTrainedTokenizerBase | None) -> ChatText:
    """A chat as the tokenizer's template writes it."""
    for number, message in enumerate(messages):
        _check_message(number, message)
    if tokenizer is None:
        raise PromptError("this model came without a tokenizer; give the chat as token ids")
    if not getattr(tokenizer, "chat_template", None):
        raise PromptError("the tokenizer has no chat template; give the chat as text, or set tokenizer.chat_template")
    answer_next = messages[-1]["role"] != "assistant"
    chat = [dict(message) for message in messages]
    try:
        text = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=answer_next))
    except Exception as error:  # what a template does, and raises, is its author's choice
        reason = first_line(error) or type(error).__name__
        raise PromptError(f"the tokenizer's chat template refuses this chat ({reason}); change it, or give it as text") from None
    for parts in (message["content"] for message in chat if isinstance(message.get("content"), (list, tuple))):
        # A template that knows no parts writes them as Python does, or leaves them out.
        if str(parts) in text or not all(part["text"].strip() in text for part in parts):
            raise PromptError("the tokenizer's chat template takes no content in parts; give each message's content as one text")
    return ChatText(text)


def _check_message(number: int, message: Any) -> None:
    """Raise PromptError unless it is a message of a chat, made of text alone."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise PromptError(f"message {number} of the chat is {shown(message)}; a message is {{'role': …, 'content': …}}")
    content = message.get("content")
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return
    if not isinstance(content, (list, tuple)) or not content:
        raise PromptError(f"the content of message {number} of the chat is {shown(content)}; give a text, or parts of text")
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else part
        if kind != "text" or not isinstance(part.get("text"), str):
            words = "{'type': 'text', 'text': …}"
            raise PromptError(f"message {number} of the chat has a part {shown(kind)}; diffscope reads text alone: {words}")
