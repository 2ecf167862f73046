"""Collect the quantities that statistics are computed from, while the rows of a layer stream past in blocks.

A map of N tokens has N² entries, so it is never held: a block of its rows is computed, every quantity takes what it needs from
it, and it is gone. A quantity is a function of a block, and a reduction that puts its values of all blocks together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from diffscope.attention.blocks import Block, Workers, stream
from diffscope.attention.components import Rows
from diffscope.attention.layer import LayerAttention

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
        return layer.mask.counts(self.queries, layer.n_keys, layer.n_keys - layer.n_queries)


class Where(NamedTuple):
    """Part of a layer that a block covers."""

    request: Request
    block: Block  # heads and queries
    keys: slice


class BlockRows:
    """The rows of a block, and what several quantities share of them.

    Attributes
    ----------
    request : Request
    where : Where
    rows : Rows
        Without the keys that no query of the block sees.
    maps : dict of str to Tensor, (head, query, key)
        "A1", "D" and, of differential attention, "A2".
    n : int64 Tensor, (query,)
        Keys that each row sees.
    wanted : set of str
        The moments that some quantity needs.
    """

    def __init__(self, request: Request, block: Block, rows: Rows, wanted: set[str]) -> None:
        self.request = request
        self.where = Where(request, block, slice(rows.start, rows.start + rows.a1.shape[-1]))
        self.rows = rows
        self.n = rows.n
        self.maps = {"A1": rows.a1, "D": rows.d} if rows.a2 is None else {"A1": rows.a1, "A2": rows.a2, "D": rows.d}
        self.wanted = wanted
        self._shared: dict[Callable, Any] = {}

    def once(self, make: Callable[[BlockRows], T]) -> T:
        """Return ``make(self)``, computed for the first quantity that needs it and shared with the others."""
        if make not in self._shared:
            self._shared[make] = make(self)
        return self._shared[make]

    @property
    def differential(self) -> bool:
        return self.rows.a2 is not None

    @property
    def weights(self) -> Tensor | None:
        """How many queries each row stands for, (query,); None if each stands for itself."""
        weights = self.request.weights
        return None if weights is None else weights[self.where.block.at]

    def net(self, name: str) -> Tensor:
        """Return the sum of the rows of a map, (head, query)."""
        if self.rows.changed or self.request.layer.sink_logit is not None:
            return self.maps[name].sum(-1)
        return self.rows.gain - self.rows.lam if name == "D" else torch.ones_like(self.rows.lam)

    def columns(self, key_sets: Iterable[Tensor]) -> list[Tensor]:
        """Return the columns of the rows that belong to each key set."""
        first, last = self.where.keys.start, self.where.keys.stop
        return [keys[(keys >= first) & (keys < last)] - first for keys in key_sets]

    def of_maps(self, function: Callable[[BlockRows, str], Tensor], dim: int) -> Tensor:
        """Return a function's values for A1, A2 and D, stacked along `dim`.

        Standard attention has NaN for A2, and for D the values of A1 unless the layer changes D.
        """
        a1 = function(self, "A1")
        a2 = function(self, "A2") if self.differential else torch.full_like(a1, torch.nan)
        return torch.stack([a1, a2, a1 if self.request.layer.d_is_a1 else function(self, "D")], dim)


Reduction = Callable[["Tensor | None", Tensor, Where], Tensor]


def place(query_dim: int) -> Reduction:
    """Return the reduction that puts values (head, ..., query, ...) where their heads and queries belong.

    Parameters
    ----------
    query_dim : int
        The dimension of the query.
    """

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


def each(values: Tensor, statistics: Sequence[Statistic], request: Request) -> dict[str, Tensor]:
    """Compute each statistic by its function of the collected values and the request."""
    return {statistic.name: statistic.function(values, request) for statistic in statistics}


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
    finish : callable
        (collected values, statistics, request) → the statistics by name.
    """

    of_block: Callable[[BlockRows, Sequence[Statistic]], Tensor]
    reduce: Reduction
    moments: frozenset[str] = frozenset()
    all_heads: bool = False
    finish: Callable[[Tensor, Sequence[Statistic], Request], dict[str, Tensor]] = each


def collect(
    request: Request,
    statistics: Sequence[Statistic],
    elements: int | None,
    workers: Workers,
    progress: Callable[[float], None] | None,
) -> dict[str, Tensor]:
    """Compute the statistics that come from quantities, by name, in one pass over the rows.

    Parameters
    ----------
    request : Request
    statistics : sequence of Statistic
        Those without a quantity are left out.
    elements, workers, progress
        As of :func:`diffscope.stats.measure.measure_layers`.
    """
    by_quantity: dict[Quantity, list[Statistic]] = {}
    for statistic in statistics:
        if statistic.quantity is not None:
            by_quantity.setdefault(statistic.quantity, []).append(statistic)
    if not by_quantity:
        return {}
    wanted = {name for quantity in by_quantity for name in quantity.moments}
    wanted |= {name for statistic in statistics if statistic.kind == "row" for name in statistic.needs}

    def of_block(block: Block, rows: Rows) -> tuple[Where, list[Tensor]]:
        shared = BlockRows(request, block, rows, wanted)
        return shared.where, [quantity.of_block(shared, computed) for quantity, computed in by_quantity.items()]

    all_heads = any(quantity.all_heads for quantity in by_quantity)
    how: dict[str, Any] = {"all_heads": all_heads, "elements": elements, "workers": workers, "progress": progress}
    collected: list[Tensor | None] = [None] * len(by_quantity)
    for _, (where, values) in stream(request.layer, request.queries, of_block, **how):
        collected = [each.reduce(so_far, new, where) for each, so_far, new in zip(by_quantity, collected, values)]
    results: dict[str, Tensor] = {}
    for (quantity, computed), whole in zip(by_quantity.items(), collected):
        assert whole is not None, "every request has a block"
        results |= quantity.finish(whole, computed, request)
    return results
