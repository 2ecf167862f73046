"""Layers, heads and prompts by number: the one check that a number is among those there are."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from diffscope.errors import DiffscopeError

Queries = slice | Sequence[int] | Tensor | None  # positions of queries; None stands for all
Heads = Sequence[int] | Tensor | None  # numbers of heads; None stands for all


def check_index(what: str, index: int | None, indices: Sequence[int], label: str = "") -> None:
    """Raise DiffscopeError unless `index` is among `indices`, or None.

    Parameters
    ----------
    what : str
        "layer", "head" or "prompt".
    index : int or None
        None where none was chosen.
    indices : sequence of int
        Those there are, ascending; a model need not have attention in every layer.
    label : str
        Who asks, to begin the message with.
    """
    if index is None or index in indices:
        return
    consecutive = len(indices) > 2 and list(indices) == list(range(indices[0], indices[-1] + 1))
    choices = f"{indices[0]} to {indices[-1]}" if consecutive else ", ".join(map(str, indices))
    begin = f"{label}: " if label else ""
    raise DiffscopeError(f"{begin}there is no {what} {index}; choose from {choices or 'none'}")
