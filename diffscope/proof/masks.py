"""Which keys the queries of a model really see, where the mask that was read is not the one that it used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from diffscope.attention.components import Mask
from diffscope.attention.layer import LayerAttention
from diffscope.proof.fidelity import ROWS_TO_TRY, deviation, produced
from diffscope.proof.tolerance import rows_to_check

NEAR = 64  # widths tried below the one at which the first row is wrong: a few keys more or less may weigh next to nothing
HIDDEN = 8  # keys at the beginning, such as padding, that a model may hide by itself
WRITTEN_UP_TO = 4096  # tokens: a mask that no rule says is not held for more


def other_mask(layer: LayerAttention, observed: Tensor, index: int, enough: float) -> str | None:
    """What queries see instead of what was read, in words; None if no mask alone explains what the model computed.

    Parameters
    ----------
    layer : LayerAttention
    observed : Tensor, (batch, query, head·width)
        What entered the output projection.
    index : int
        Of the prompt to explain.
    enough : float
        The deviation up to which a layer counts as rebuilt.
    """
    prompt = layer.prompt(index)
    rows = rows_to_check(prompt.n_queries, prompt.q.device)
    few = rows[:: max(1, len(rows) // ROWS_TO_TRY)]

    def wrong(mask: Mask, some: Tensor) -> bool:
        seeing = mask.seeing(some)
        return not deviation(replace(prompt, mask=mask), seeing, produced(layer, observed, index, seeing)) <= enough

    def first_wrong(mask: Mask, some: Tensor) -> int | None:
        """The first of some rows that a mask does not rebuild."""
        if not wrong(mask, some):
            return None
        while len(some) > 1:
            first, second = some.tensor_split(2)
            some = first if wrong(mask, first) else second
        return int(some[0])

    causal = Mask("causal")
    row = first_wrong(causal, rows)
    if row is not None and row > 0:  # of a long prompt some rows are tried: it may be one of those before it
        before = int(rows[rows < row].max())
        row = first_wrong(causal, torch.arange(before + 1, row + 1, device=rows.device))
    for words, mask in _candidates(prompt, row):
        known = mask.visible is None and (mask.kind, mask.window) == (prompt.mask.kind, prompt.mask.window)
        if not known and not wrong(mask, few) and not wrong(mask, rows):
            return words
    return None


def _candidates(layer: LayerAttention, row: int | None) -> Iterator[tuple[str, Mask]]:
    """Masks of one prompt, the likeliest first, by the first row that a causal mask does not rebuild; None where it does."""
    read = f"not {_in_words(layer.mask)}"
    if row is None:
        yield f"queries see all keys up to their own, {read}", Mask("causal")
        return
    yield "queries see later keys: the causal mask is missing", Mask("full")
    width = row + layer.n_keys - layer.n_queries  # the row before it still sees all keys
    for less in range(min(NEAR, width)):
        yield f"queries see only the last {_keys(width - less)}, {read}", Mask("window", width - less)
    if layer.n_keys > WRITTEN_UP_TO or layer.n_keys != layer.n_queries:
        return
    position = torch.arange(layer.n_keys, device=layer.q.device)
    behind = position[:, None] - position  # (query, key)
    yield f"queries do not see their own key, {read}", Mask("given", visible=(behind > 0)[None])
    if row > 0:
        chunk = (position[:, None] // row == position // row) & (behind >= 0)
        yield f"queries see only their own chunk of {_keys(row)}, {read}", Mask("given", visible=chunk[None])
    for count in range(1, min(HIDDEN, layer.n_keys - 1) + 1):
        visible = (behind >= 0) & (position >= count)
        yield f"the mask hides the first {_keys(count)} from all queries", Mask("given", visible=visible[None])


def _in_words(mask: Mask) -> str:
    if mask.window is not None:
        return f"the last {_keys(mask.window)}"
    return {"causal": "all keys up to their own", "full": "all keys", "given": "those of the mask that it was given"}[mask.kind]


def _keys(count: int) -> str:
    return "key" if count == 1 else f"{count} keys"
