"""Select queries, keys, layers, heads and prompts: turn what a user wrote into positions and numbers, or say what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from diffscope.errors import DiffscopeError, check_index

LAST = "last"  # the last token of a prompt, unless a span has this name

Indices = int | Sequence[int] | None  # a number or several; None stands for all


def is_last(choice: Any, *spans: Mapping[str, Any]) -> bool:
    """Return whether a choice of queries is the word "last", and no span of these has that name."""
    return isinstance(choice, str) and choice == LAST and not any(LAST in named for named in spans)


def checked_query(query: Any, *words: str) -> int | str:
    """Return a position, which "last" is too (-1), or one of some words.

    Raises DiffscopeError if it is something else.
    """
    if is_last(query):
        return -1
    if (isinstance(query, str) and query in words) or (isinstance(query, (int, np.integer)) and not isinstance(query, bool)):
        return query
    others = "".join(f", or {word!r}" for word in words)
    raise DiffscopeError(f"there is no query {query!r}; give a position, 'last'{others}")


def token_positions(choice: Any, spans: Mapping[str, Any], n: int, what: str = "queries") -> Tensor:
    """Return token positions of a prompt of n tokens, however queries or keys are chosen.

    Raises DiffscopeError if there is no such span, or positions are not whole numbers in one row, or are outside of the prompt.

    Parameters
    ----------
    choice : str, slice, int, sequence of int, Tensor or None
        A span's name; "last", the last token, unless a span has this name; positions, negative ones counted from the end; None
        for all tokens.
    what : str
        What is chosen, for messages.

    Returns
    -------
    int64 Tensor, (position,)
    """
    if is_last(choice, spans):
        return torch.tensor([n - 1])
    if isinstance(choice, str):
        if choice not in spans:
            known = ", ".join(spans) or "none"
            raise DiffscopeError(
                f"there is no span {choice!r} to take {what} from; spans are {known}, or say {LAST!r}, or give positions"
            )
        choice = spans[choice]
    if choice is None or isinstance(choice, slice):
        return _of_slice(choice or slice(None), n)
    try:
        values = choice.cpu() if isinstance(choice, Tensor) else torch.as_tensor(np.atleast_1d(choice))
    except (ValueError, TypeError):  # rows of several lengths; words
        values = torch.zeros(0, 0)
    whole = not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)
    if values.dim() != 1 or (values.numel() and not whole):
        such = "[0, 5, -1] or numpy.flatnonzero(mask)"
        raise DiffscopeError(f"positions are whole numbers in one row, such as {such}, not {choice!r}")
    positions = values.to(torch.int64)
    positions = torch.where(positions < 0, positions + n, positions)
    if positions.numel() and not 0 <= int(positions.min()) <= int(positions.max()) < n:
        raise DiffscopeError(f"positions {choice} are outside the prompt's tokens 0 to {n - 1}")
    return positions


def query_positions(choice: Any, spans: Mapping[str, Any], n: int) -> Tensor:
    """Return the positions of some queries as :func:`token_positions` does, or raise DiffscopeError if none was chosen."""
    positions = token_positions(choice, spans, n)
    if not len(positions):
        raise DiffscopeError("no query was chosen; give at least one position")
    return positions


def _of_slice(tokens: slice, n: int) -> Tensor:
    """Return the positions in a slice of a prompt of n tokens, int64 (position,)."""
    try:
        positions = range(n)[tokens]
    except (TypeError, ValueError) as error:  # bounds that are no whole numbers; a step of 0
        raise DiffscopeError(f"{tokens} is no slice of tokens: {error}; give whole numbers, such as slice(0, 10)") from None
    return torch.tensor(positions, dtype=torch.int64)


def as_indices(choice: Indices) -> tuple[int, ...] | None:
    """Return one number or several as a tuple, and None, which stands for all, as it is.

    Raises DiffscopeError if it is anything else.
    """
    if choice is None:
        return None
    try:
        return (index(cast(int, choice)),)  # an array that holds one number has an index as well
    except TypeError:
        pass
    try:
        return tuple(index(number) for number in cast(Sequence[int], choice))
    except TypeError:
        raise DiffscopeError(f"layers and heads are whole numbers, such as 3 or [0, 5], and not {choice!r}") from None


def indices_among(what: str, choice: Indices, known: Sequence[int], label: str = "") -> tuple[int, ...]:
    """Return the chosen numbers of layers or heads, by default all that are known.

    Raises DiffscopeError if they are no whole numbers, or one of them is not known.

    Parameters
    ----------
    what : str
        "layer" or "head".
    known : sequence of int
        Ascending.
    label : str
        Begins the message.
    """
    chosen = as_indices(choice)
    for number in chosen or ():
        check_index(what, number, known, label)
    return tuple(known) if chosen is None else chosen


def from_zero(choice: Indices, what: str) -> tuple[int, ...]:
    """Return whole numbers from 0, such as positions or seeds, one at least, as a tuple.

    Raises DiffscopeError if they are not whole numbers from 0, or there is none.

    Parameters
    ----------
    what : str
        What is taken, to begin the message with.
    """
    try:
        numbers = as_indices(choice)
    except DiffscopeError:
        numbers = None
    if not numbers or min(numbers) < 0:
        raise DiffscopeError(f"{what}, and not {choice!r}")
    return numbers


def whole_number(value: object, least: int, most: float, what: str) -> int:
    """Return a whole number within bounds, both included.

    Raises DiffscopeError if it is not a whole number, or out of bounds.

    Parameters
    ----------
    what : str
        What is taken, to begin the message with.
    """
    try:
        number: int | None = index(cast(int, value))
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise DiffscopeError(f"{what}, and not {value!r}")
    return number
