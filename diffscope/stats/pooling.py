"""Whole maps of many tokens reduced to bins, for pictures: of one head or of many, in one pass over blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from diffscope.attention.blocks import Workers
from diffscope.attention.components import Rows
from diffscope.attention.layer import Heads, LayerAttention
from diffscope.attention.maps import map_of
from diffscope.attention.memory import Workspace
from diffscope.attention.precision import without_autocast
from diffscope.errors import DiffscopeError
from diffscope.stats.formulas.distribution import entropy
from diffscope.stats.formulas.row_sums import of_maps

Reduce = Literal["largest", "mean"]
ELEMENTS = {"cpu": 2**20, "cuda": 2**26}  # of one map in a block
LEAST_ROWS = 16
ROWS_OF = {"A1": 0, "A2": 1, "D": -1}  # the maps whose rows have an entropy, and where moments have them
TOO_LITTLE = 2**20  # values of one map, over all heads, below which threads cost more than they bring


class Superseded(Exception):
    """Who asked for a picture wants it no more."""


@dataclass(frozen=True)
class Pooled:
    """Maps of some heads of one layer in bins.

    Attributes
    ----------
    maps : dict of str to Tensor, (head, query bin, key bin)
        By name; 0 where no query of a bin sees any of its keys.
    visible : bool Tensor, (query bin, key bin)
        Whether any query of a bin sees any of its keys.
    width : int
        Positions a side that one value stands for.
    exact : bool
        False where only some rows of every bin were looked at.
    received : dict of str to Tensor, (head, key)
        What a key receives from all queries together, the map's sum over them, by name; only if marginals were asked for.
    entropy : dict of str to Tensor, (head, query)
        Entropy of every query's row as the statistic of that name, of A1, A2 and D; only if marginals were asked for.
    shares : dict of str to Tensor, (head, query bin, key bin)
        As `maps`, of each row's values over the sum of their sizes, x/Σ|x|; only if shares were asked for.
    mass : dict of str to Tensor, (head, query)
        That sum, Σ|x| of every query's row; only if shares were asked for.
    """

    maps: dict[str, Tensor]
    visible: Tensor
    width: int
    exact: bool
    received: dict[str, Tensor]
    entropy: dict[str, Tensor]
    shares: dict[str, Tensor]
    mass: dict[str, Tensor]


@torch.no_grad()
@without_autocast()
def pooled(
    layer: LayerAttention,
    names: Sequence[str],
    heads: Heads = None,
    size: int = 512,
    reduce: Reduce = "largest",
    *,
    rows: int | None = None,
    marginals: bool = False,
    shares: bool = False,
    workers: Workers | None = None,
    stopped: Callable[[], bool] | None = None,
) -> Pooled:
    """Maps of some heads, reduced to at most size × size bins.

    Parameters
    ----------
    layer : LayerAttention
        Of one prompt.
    names : sequence of str
        Of :data:`diffscope.attention.maps.MAPS`.
    heads : sequence of int, optional
        By default all.
    size : int
        The largest number of bins a side.
    reduce : {"largest", "mean"}
        Of every bin the value of largest magnitude with its sign, so that spikes of either sign survive; or the mean over the
        cells whose query sees the key.
    rows : int, optional
        How many rows of every bin are looked at, the last of them and others evenly before it; by default all.
    marginals : bool
        Whether to give what keys receive and the entropy of rows too, which needs all rows.
    shares : bool
        Whether to give the bins of each row's shares, and the sums of rows, too, which needs all rows.
    workers : Workers, optional
        By default the calling thread alone.
    stopped : callable, optional
        Asked after every block of rows.

    Raises
    ------
    DiffscopeError
        Marginals or shares of some rows.
    Superseded
        When `stopped` says so.
    """
    width = max(1, -(-max(layer.n_queries, layer.n_keys) // size))
    if (marginals or shares) and rows is not None and rows < width:
        raise DiffscopeError("what keys receive, entropies and shares of rows need all rows; leave out either rows or these")
    work = _Work(layer, names, heads, width, reduce, rows, marginals, shares)
    places = work.places()
    tasks = (partial(work.piece, *place) for place in places)
    for place, piece in zip(places, (workers or Workers(1)).run(tasks, alone(layer, len(work.heads) * len(work.queries)))):
        work.add(*place, piece)
        if stopped is not None and stopped():
            raise Superseded
    return work.result()


def alone(layer: LayerAttention, rows: int) -> bool:
    """Whether so many rows, over all heads, are to stay in one thread: on a GPU, or where there is too little to do."""
    return layer.q.device.type != "cpu" or rows * layer.n_keys < TOO_LITTLE


@dataclass(frozen=True)
class _Piece:
    """What a block of rows adds; values by map."""

    keys: int  # position of the first key that it has
    bins: dict[str, Tensor]  # (head, query bin, key bin)
    seen: Tensor | None  # cells whose query sees the key, (query bin, key bin)
    received: dict[str, Tensor]  # (head, key)
    entropy: Tensor | None  # (map, head, query)
    shares: dict[str, Tensor]  # (head, query bin, key bin)
    mass: dict[str, Tensor]  # (head, query)


class _Work:
    """The blocks of a request, what each of them adds, and what they come to."""

    def __init__(
        self,
        layer: LayerAttention,
        names: Sequence[str],
        heads: Heads,
        width: int,
        reduce: Reduce,
        rows: int | None,
        marginals: bool,
        shares: bool,
    ) -> None:
        self.layer = layer
        self.heads = layer.head_numbers(heads)
        self.width = width
        self.taken = min(rows or width, width)  # rows of a bin
        self.queries = self._chosen()
        self.reduce = reduce
        self.marginals = marginals
        bins = -(-layer.n_queries // width), -(-layer.n_keys // width)
        new = partial(torch.zeros, dtype=layer.dtype, device=layer.q.device)
        self.maps = {name: new(len(self.heads), *bins) for name in names}
        self.shares = {name: new(len(self.heads), *bins) for name in names if shares}
        self.mass = {name: new(len(self.heads), layer.n_queries) for name in names if shares}
        self.seen = new(*bins)
        self.received = {name: new(len(self.heads), layer.n_keys) for name in names if marginals}
        self.entropy = new(1 if layer.d_is_a1 else 2 + layer.differential, len(self.heads), layer.n_queries * marginals)

    def _chosen(self) -> Tensor:
        """The queries that are looked at: as many of every bin but the last, which may have fewer."""
        positions = torch.arange(self.layer.n_queries, device=self.layer.q.device)
        if self.taken == self.width:
            return positions
        first = positions[:: self.width, None]
        last = (first + self.width - 1).clamp_max(self.layer.n_queries - 1)
        behind = torch.arange(self.taken - 1, -1, -1, device=positions.device) * self.width // self.taken
        chosen = last - behind  # (query bin, row)
        return chosen[chosen >= first]

    def places(self) -> list[tuple[slice, slice]]:
        """Which heads and which of the queries each block has, the last queries first: they see most keys.

        A block has whole bins, or a part of one.
        """
        window = self.layer.mask.window
        keys = self.layer.n_keys if window is None else min(self.layer.n_keys, window + self.width)
        elements = ELEMENTS.get(self.layer.q.device.type, ELEMENTS["cpu"])
        rows = max(LEAST_ROWS, elements // keys)
        rows = rows if rows < self.taken else rows - rows % self.taken
        heads = max(1, elements // (keys * min(rows, len(self.queries))))
        starts = range(0, len(self.queries), max(rows, self.taken))
        blocks = [
            slice(first, min(first + rows, start + max(rows, self.taken), len(self.queries)))
            for start in starts
            for first in range(start, min(start + max(rows, self.taken), len(self.queries)), rows)
        ]
        return [(slice(h, h + heads), block) for block in reversed(blocks) for h in range(0, len(self.heads), heads)]

    def piece(self, heads: slice, at: slice, workspace: Workspace) -> _Piece:
        rows = self.layer.visible_rows(self.queries[at], self.heads[heads], workspace, self.width)
        moments = of_maps(rows, {"logs"} if self.marginals else (), workspace) if self.marginals or self.mass else None
        bins: dict[str, Tensor] = {}
        received: dict[str, Tensor] = {}
        shares: dict[str, Tensor] = {}
        mass = {name: _mass(name, rows, moments["total"]) for name in self.mass} if moments else {}
        for name in sorted(self.maps):  # A2 before λ·A2, which is a multiple of it where λ is that of all queries
            if name == "lambda_A2" and "A2" in bins and self.layer.lam.shape[2] == 1:
                lam = rows.lam[:, :1]
                bins[name] = lam[..., None] * bins["A2"]
                received |= {name: lam * received["A2"]} if self.marginals else {}
                shares |= {name: lam.sign()[..., None] * shares["A2"]} if mass else {}
                continue
            values = map_of(rows, name)
            if name == "share":
                values = values.nan_to_num(nan=0.0)  # a row that sees nothing has none
            signed = name == "D" or name == "lambda_A2" or rows.changed
            bins[name] = self._binned(values, signed)
            received |= {name: values.sum(1)} if self.marginals else {}
            if mass and self._sums_to_one(name, rows):
                shares[name] = bins[name]
            elif mass:
                shares[name] = self._binned(values / _nonzero(mass[name])[..., None], signed)
        return _Piece(
            keys=rows.start,
            bins=bins,
            seen=self._seen(rows) if self.reduce == "mean" and heads.start == 0 else None,
            received=received,
            entropy=entropy(moments, rows.n) if moments and self.marginals else None,
            shares=shares,
            mass=mass,
        )

    def _sums_to_one(self, name: str, rows: Rows) -> bool:
        """Whether every row of a map that sees anything has the sum 1."""
        return name == "share" or (name in ("A1", "A2") and self.layer.sink_logit is None and not rows.changed)

    def _seen(self, rows: Rows) -> Tensor:
        layer = self.layer
        keys = slice(rows.start, rows.start + rows.a1.shape[-1])
        seen = layer.mask.rows(rows.queries, layer.n_keys, layer.n_keys - layer.n_queries, keys)
        return self._over(seen[None].float(), torch.sum)[0]

    def _binned(self, values: Tensor, signed: bool) -> Tensor:
        """The bins of some rows (head, query, key): (head, query bin, key bin)."""
        if self.reduce == "mean":
            return self._over(values, torch.sum)
        highest = self._over(values, torch.amax)
        return _larger(highest, self._over(values, torch.amin)) if signed else highest

    def _over(self, values: Tensor, reduce: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Rows first, side by side in memory, then keys."""
        group = min(self.taken, values.shape[1])
        whole = values.shape[1] // group * group
        parts = [reduce(values[:, :whole].unflatten(1, (-1, group)), 2)]
        if whole < values.shape[1]:
            parts.append(reduce(values[:, whole:], 1).unsqueeze(1))
        by_row = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
        return reduce(pad(by_row, (0, -by_row.shape[2] % self.width)).unflatten(2, (-1, self.width)), 3)

    def add(self, heads: slice, at: slice, piece: _Piece) -> None:
        first = int(self.queries[at.start]) // self.width
        start = piece.keys // self.width
        for whole, part in ((self.maps, piece.bins), (self.shares, piece.shares)):
            for name, bins in part.items():
                region = whole[name][heads, first : first + bins.shape[1], start : start + bins.shape[2]]
                region.copy_(region + bins if self.reduce == "mean" else _larger(region, bins))
        if piece.seen is not None:
            self.seen[first : first + piece.seen.shape[0], start : start + piece.seen.shape[1]] += piece.seen
        for name, received in piece.received.items():
            self.received[name][heads, piece.keys : piece.keys + received.shape[1]] += received
        if piece.entropy is not None:
            self.entropy[:, heads, at] = piece.entropy
        for name, mass in piece.mass.items():
            self.mass[name][heads, at] = mass

    def result(self) -> Pooled:
        layer = self.layer
        if self.reduce == "mean":
            cells = self.seen.clamp_min(1)
            self.maps = {name: bins / cells for name, bins in self.maps.items()}
            self.shares = {name: bins / cells for name, bins in self.shares.items()}
        rows_of = {name: number for name, number in ROWS_OF.items() if name in self.maps and self.marginals}
        return Pooled(
            maps=self.maps,
            visible=layer.mask.bins(self.width, layer.n_queries, layer.n_keys),
            width=self.width,
            exact=self.taken == self.width,
            received=self.received,
            entropy={name: self.entropy[number] for name, number in rows_of.items()},
            shares=self.shares,
            mass=self.mass,
        )


def _mass(name: str, rows: Rows, total: Tensor) -> Tensor:
    """Σ|x| of the rows of a map (head, query), from those of A1, A2 and D (map, head, query)."""
    if name == "share":
        return total[-1].sign()
    if name == "lambda_A2":
        return rows.lam.abs() * total[1]
    return total[ROWS_OF[name]]


def _nonzero(mass: Tensor) -> Tensor:
    """What rows are divided by: one that sees nothing has shares of 0."""
    return mass.clamp_min(torch.finfo(mass.dtype).tiny)


def _larger(values: Tensor, others: Tensor) -> Tensor:
    """Of each two that which is larger in size."""
    return torch.where(values.abs() >= others.abs(), values, others)
