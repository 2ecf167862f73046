"""The quantities that statistics are computed from: what a block of rows gives, and how values of blocks are put together.

A map of N tokens has N² entries, so it is never held: a block of its rows is computed, every quantity takes what it needs from
it, and it is gone. A quantity is a function of a block, and a reduction that puts its values of all blocks together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from diffscope.attention.blocks import Block
from diffscope.attention.components import Rows
from diffscope.attention.layer import LayerAttention
from diffscope.stats.moments import of_maps

if TYPE_CHECKING:
    from diffscope.stats.statistic import Statistic


T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """Request for statistics of one layer of one prompt.

    Attributes
    ----------
    layer : LayerAttention
    spans : dict of str to int64 Tensor
        Key sets by name.
    queries : int64 Tensor, (query,)
    weights : Tensor, (query,), optional
        How many queries each stands for, if they are a sample.
    """

    layer: LayerAttention
    spans: dict[str, Tensor]
    queries: Tensor
    weights: Tensor | None = None
    _shared: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, make: Callable[[Request], T]) -> T:
        """Return ``make(self)``, computed for the first statistic that needs it and shared with the others."""
        if make not in self._shared:
            self._shared[make] = make(self)
        return self._shared[make]

    @property
    def counts(self) -> Tensor:
        """Keys that each query sees, int64 (query,)."""
        layer = self.layer
        return layer.mask.counts(self.queries, layer.n_keys, layer.offset)


class Where(NamedTuple):
    """Part of a layer that a block covers."""

    request: Request
    block: Block  # heads and queries
    keys: slice


class Columns(NamedTuple):
    """A key set in the rows of a block."""

    keys: slice | Tensor  # a slice if the keys are consecutive, so that taking them copies nothing
    seen: Tensor  # how many of them each row sees, int64 (query,)


class BlockRows:
    """The rows of a block, and what several quantities share of them.

    Attributes
    ----------
    request : Request
    where : Where
    rows : Rows
        Without the keys that no query of the block sees.
    maps : list of Tensor, (head, query, key)
        A1, A2 of differential attention, and D if it is not A1.
    n : int64 Tensor, (query,)
        Keys that each row sees.
    weights : Tensor, (query,), or None
        How many queries each row stands for; None if each stands for itself.
    moments : dict of str to Tensor, (map, head, query, ...)
        Those that some quantity needs, of `maps`; of A1 alone or of A1 and D in standard attention.
    """

    def __init__(self, request: Request, block: Block, rows: Rows, wanted: set[str]) -> None:
        self.request = request
        self.where = Where(request, block, slice(rows.start, rows.start + rows.a1.shape[-1]))
        self.rows = rows
        self.maps = [x for x in (rows.a1, rows.a2, None if request.layer.d_is_a1 else rows.d) if x is not None]
        self.n = rows.n
        self.weights = None if request.weights is None else request.weights[block.at]
        self.moments = of_maps(rows, wanted) if wanted else {}

    @cached_property
    def net(self) -> Tensor:
        """Sum of the rows of `maps`, (map, head, query)."""
        if self.rows.changed or self.request.layer.sink_logit is not None:
            return torch.stack([x.sum(-1) for x in self.maps])
        ones = torch.ones_like(self.rows.lam)
        return torch.stack([ones] if self.rows.a2 is None else [ones, ones, self.rows.gain - self.rows.lam])

    def columns(self, key_sets: Iterable[Tensor]) -> list[Columns]:
        """Find key sets among the keys of the block."""
        layer = self.request.layer
        first, last = self.where.keys.start, self.where.keys.stop
        visible = layer.mask.rows(self.rows.queries, layer.n_keys, layer.offset, self.where.keys)
        columns = []
        for positions in key_sets:
            at = positions[(positions >= first) & (positions < last)] - first
            neighbours = len(at) and bool((at.diff() == 1).all())
            keys = slice(int(at[0]), int(at[0]) + len(at)) if neighbours else at
            columns.append(Columns(keys, take(visible, keys).sum(-1)))
        return columns

    @cached_property
    def of_spans(self) -> list[Columns]:
        """The requested key sets."""
        return self.columns(self.request.spans.values())


def take(x: Tensor, keys: slice | Tensor) -> Tensor:
    """Take the columns of a key set, (..., key) → (..., chosen): a view of a slice, else a copy."""
    return x[..., keys] if isinstance(keys, slice) else x.index_select(-1, keys)


def of_three_maps(values: Sequence[Tensor], layer: LayerAttention, dim: int) -> Tensor:
    """Stack values of a layer's maps, as ``BlockRows.maps`` has them, as those of A1, A2 and D along a dimension of the result.

    Standard attention has NaN for A2, and for D the values of A1 unless the layer changes D.
    """
    if layer.differential:
        return torch.stack(list(values), dim)
    return torch.stack([values[0], torch.full_like(values[0], math.nan), values[-1]], dim)


Reduction = Callable[["Tensor | None", Tensor, Where], Tensor]


def place(query_dim: int) -> Reduction:
    """Return the reduction that puts values (head, ..., query, ...) where their heads and queries belong."""

    def placed(collected: Tensor | None, values: Tensor, where: Where) -> Tensor:
        if collected is None:
            shape = list(values.shape)
            shape[0] = where.request.layer.n_heads
            shape[query_dim] = len(where.request.queries)
            collected = values.new_empty(shape, device="cpu")
        at = where.block.at if isinstance(where.block.at, slice) else where.block.at.cpu()
        by_query = collected.movedim(query_dim, 1)  # (head, query, ...), the same memory
        by_query[where.block.heads.start : where.block.heads.stop, at] = values.movedim(query_dim, 1).cpu()
        return collected

    return placed


def add(collected: Tensor | None, values: Tensor, where: Where) -> Tensor:
    """Add values over blocks."""
    return values if collected is None else collected + values


def add_by_key(collected: Tensor | None, values: Tensor, where: Where) -> Tensor:
    """Add values (head, ..., key + 1) of the keys of a block, and behind them of one more sum, over blocks: on the CPU."""
    if collected is None:
        layer = where.request.layer
        collected = values.new_zeros(layer.n_heads, *values.shape[1:-1], layer.n_keys + 1, device="cpu")
    values = values.cpu()
    of_heads = collected[where.block.heads.start : where.block.heads.stop]
    of_heads[..., where.keys] += values[..., :-1]
    of_heads[..., -1] += values[..., -1]
    return collected


@dataclass(frozen=True, eq=False)
class Quantity:
    """Quantity that blocks of rows give for one or more statistics.

    Attributes
    ----------
    of_block : callable
        (BlockRows, statistics) → Tensor; runs in the thread that has the block.
    reduce : callable
        (collected, values, Where) → Tensor: :func:`place`, :func:`add` or :func:`add_by_key`. It runs in the calling thread, in
        the order of the blocks.
    moments : frozenset of str
        Moments of the rows that it makes use of, besides what the statistics need.
    all_heads : bool
        Whether it needs all heads in one block.
    finish : callable, optional
        (collected values, statistics, request) → the statistics by name; by default by the function of each.
    """

    of_block: Callable[[BlockRows, Sequence[Statistic]], Tensor]
    reduce: Reduction
    moments: frozenset[str] = frozenset()
    all_heads: bool = False
    finish: Callable[[Tensor, Sequence[Statistic], Request], dict[str, Tensor]] | None = None
