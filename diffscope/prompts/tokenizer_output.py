"""Read what a tokenizer returns, or a dict with its fields: token ids or embeddings, with a mask, or a pack of sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from diffscope.errors import PromptError
from diffscope.prompts.embeddings import EMBEDDINGS, Embedded, as_embeddings
from diffscope.prompts.token_ids import as_ids, as_lists, is_scalar

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IDS = "input_ids"
MASK = "attention_mask"
POSITIONS = "position_ids"
SEGMENTS = "token_type_ids"
IMPLIED = {SEGMENTS: lambda n: [0] * n, POSITIONS: lambda n: [*range(n)]}  # values with which the model is run, by tokens
PASSED_OVER = {"special_tokens_mask", "offset_mapping", "length", "assistant_masks"}

Fields = dict[str, list[list[int]]]  # by name, a row of whole numbers a prompt


class Pack(list[list[int] | Embedded]):
    """Sequences that a model is given in one row; and its mask (1, 1, token, token), if one was given."""

    mask: Tensor | None = None


def read_fields(
    output: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase | None
) -> tuple[Sequence[list[int] | Embedded], bool]:
    """Read the prompts of a tokenizer's output, and whether they are a batch, which a :class:`Pack` is.

    Raises PromptError if fields are missing, unknown, of different shapes, or say what the model is not run with; or padding is
    not told from tokens.
    """
    output = {name: value for name, value in output.items() if value is not None and name not in PASSED_OVER}
    names = ", ".join(repr(name) for name in output)
    if IDS not in output and EMBEDDINGS not in output:
        raise PromptError(f"a dict with {names or 'nothing'} is no prompt; give input_ids in it, or a chat as a list of messages")
    if unknown := [name for name in output if name not in (IDS, EMBEDDINGS, MASK, *IMPLIED)]:
        raise PromptError(f"it is not known what {unknown[0]!r} beside input_ids asks for; leave it out")
    of_scores = output.pop(MASK) if getattr(output.get(MASK), "ndim", 2) == 4 else None
    embeddings, batch = as_embeddings(output.pop(EMBEDDINGS)) if EMBEDDINGS in output else (None, None)
    fields: Fields = {}
    for name in sorted(output, key=lambda name: name != IDS):
        fields[name], of_batch = _rows(name, output[name])
        batch = of_batch if batch is None else batch
        rows: Sequence = fields[IDS] if embeddings is None else embeddings
        if of_batch != batch or list(map(len, fields[name])) != list(map(len, rows)):
            first = IDS if embeddings is None else EMBEDDINGS
            raise PromptError(f"{name} has another shape than {first}; give one value a token")
    ids = fields.get(IDS)
    if sequences := _sequences(fields):
        return _pack(ids, embeddings, sequences, of_scores), True
    if of_scores is not None:
        raise PromptError(f"an {MASK} of 4 dimensions goes with a pack, whose {POSITIONS} start again; give one value a token")
    if ids is not None and batch and MASK not in fields and embeddings is None:
        refuse_padding(ids, tokenizer)
    count = len(ids if embeddings is None else embeddings)  # type: ignore[arg-type]  # there are ids or embeddings
    seen = [_seen(row) for row in fields[MASK]] if MASK in fields else [slice(None)] * count
    for name in IMPLIED.keys() & fields.keys():
        if any(row[part] != IMPLIED[name](len(row[part])) for row, part in zip(fields[name], seen)):
            raise PromptError(
                f"{name} are not those that the tokens have by themselves, which the model is run with; leave them out"
            )
    token_ids = None if ids is None else [row[part] for row, part in zip(ids, seen)]
    if embeddings is None:
        return token_ids or [], bool(batch)
    vectors = [row[part] for row, part in zip(embeddings, seen)]
    return [Embedded(*pair) for pair in zip(vectors, token_ids or [None] * count)], bool(batch)


def _rows(name: str, value: Any) -> tuple[list[list[int]], bool]:
    """Return a field as a row of whole numbers a prompt, and whether it is of a batch."""
    bools = name == MASK
    try:
        value = as_lists(value, bools)
        if isinstance(value, (list, tuple)) and len(value) and not is_scalar(value[0]):
            return [as_ids(row, bools) for row in value], True
        return [as_ids(value, bools)], False
    except ValueError as error:
        raise PromptError(f"{name} holds something else than a row of whole numbers a prompt: {error}") from None


def _seen(mask: list[int]) -> slice:
    """Return the stretch of tokens that an attention mask shows."""
    if not set(mask) <= {0, 1}:
        raise PromptError(f"{MASK} is 1 where there is a token and 0 where there is padding, and holds other values")
    if 1 not in mask:
        raise PromptError(f"{MASK} is 0 for all tokens of a prompt, so that none is left; give it at least one token")
    first = mask.index(1)
    stop = len(mask) - mask[::-1].index(1)
    if 0 in mask[first:stop]:
        raise PromptError(f"{MASK} hides tokens between others; only padding to the left and right can be cut away")
    return slice(first, stop)


def refuse_padding(
    rows: Sequence[Sequence[int]], tokenizer: PreTrainedTokenizerBase | None, name: str = IDS, mask: str = MASK
) -> None:
    """Refuse rows of one length that begin or end in what looks like padding, while no mask says whether it is.

    A padding token that also begins or ends texts is taken for padding only if some rows have more of it than others.
    """
    pad = getattr(tokenizer, "pad_token_id", None)
    if tokenizer is None or pad is None or len({len(row) for row in rows}) > 1:
        return
    shared = pad in (tokenizer.bos_token_id, tokenizer.eos_token_id)
    for words, step in (("begins", 1), ("ends", -1)):
        counts = [next((n for n, token in enumerate(row[::step]) if token != pad), len(row)) for row in rows]
        expected = min(counts) if shared else 0
        if max(counts) > expected:
            raise PromptError(
                f"prompt {counts.index(max(counts))} of the batch {words} with the tokenizer's padding (token {pad}); "
                f"give its {mask} too, in a dict with {name}: 0 for padding, 1 for tokens"
            )


# packs


def sequences_in(positions: Sequence[int]) -> tuple[int, ...] | None:
    """Return the lengths of the sequences of a pack by its tokens' positions; None unless they count up from 0 several times."""
    starts = [index for index, position in enumerate(positions) if position == 0]
    lengths = tuple(stop - start for start, stop in zip(starts, [*starts[1:], len(positions)]))
    counted = [position for length in lengths for position in range(length)]
    return lengths if len(lengths) > 1 and counted == list(positions) else None


def _sequences(fields: Fields) -> tuple[int, ...] | None:
    """Return the tokens of each sequence of a pack; None if it is none."""
    rows = fields.get(POSITIONS, [])
    packed = [sequences_in(row) for row in rows]
    padded = any(0 in row for row in fields.get(MASK, []))  # on the left positions may start again
    if padded or not any(packed):
        return None
    if len(rows) > 1:
        raise PromptError(
            f"{POSITIONS} start again within a row of a batch of {len(rows)}, which would be packs; give packs one by one"
        )
    if MASK in fields:
        raise PromptError(
            f"beside an {MASK} (1, N) transformers lets the sequences of a pack see each other; leave it out, or give one of "
            "all scores, (1, 1, N, N)"
        )
    if any(any(row) for row in fields.get(SEGMENTS, [])):
        raise PromptError(f"{SEGMENTS} of a pack are not 0, which the model is run with; leave them out")
    return packed[0]


def _pack(ids: list[list[int]] | None, embeddings: list[Tensor] | None, sequences: tuple[int, ...], mask: Any) -> Pack:
    """Return the sequences of a pack, of these lengths."""
    pack = Pack()
    stop = 0
    for length in sequences:
        start, stop = stop, stop + length
        row = None if ids is None else ids[0][start:stop]
        pack.append(Embedded(embeddings[0][start:stop], row) if embeddings else row or [])
    if mask is not None:
        pack.mask = torch.as_tensor(mask)
        if pack.mask.shape != (1, 1, stop, stop):
            raise PromptError(f"the {MASK} of a pack of {stop} tokens has the shape {tuple(pack.mask.shape)}; give (1, 1, N, N)")
    return pack
