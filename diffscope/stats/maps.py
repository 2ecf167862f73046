"""Compute parts of a layer's maps on the stream of rows: any window, a whole map in bins, the keys of largest weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from diffscope.attention.blocks import Block, Workers, stream
from diffscope.attention.components import Rows
from diffscope.attention.layer import Heads, LayerAttention
from diffscope.attention.maps import map_of
from diffscope.attention.precision import without_autocast
from diffscope.stats.moments import of_maps
from diffscope.stats.rows import entropy

ROW_OF_MOMENTS = {"A1": 0, "A2": 1, "D": -1}  # where the moments (map, head, query) have each map


@torch.no_grad()
@without_autocast()
def window(
    layer: LayerAttention,
    names: Sequence[str],
    heads: Heads,
    queries: Tensor,
    keys: Tensor,
    workers: Workers | None = None,
) -> dict[str, Tensor]:
    """Compute some maps of some heads of one prompt at some queries and keys, in any order: (head, query, key) by name."""
    count = len(layer.head_numbers(heads))
    maps = {name: torch.zeros(count, len(queries), len(keys), dtype=layer.dtype, device=keys.device) for name in names}

    def cut(block: Block, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        inside = (keys >= rows.start) & (keys < rows.start + rows.a1.shape[-1])
        columns = (keys - rows.start)[inside]
        return inside.nonzero()[:, 0], {name: map_of(rows, name).index_select(2, columns) for name in names}

    for block, (columns, values) in stream(layer, queries, cut, heads=heads, temporaries=4, workers=workers):
        for name, of_block in values.items():
            of_heads = maps[name][block.heads.start : block.heads.stop]
            if len(columns) == len(keys):
                of_heads[:, block.at] = of_block
            else:
                at = torch.arange(len(queries), device=keys.device)[block.at]
                of_heads[:, at[:, None], columns] = of_block
    return maps


@torch.no_grad()
@without_autocast()
def top_keys(
    layer: LayerAttention, name: str, heads: Heads, queries: Tensor, count: int, workers: Workers | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the keys of largest weight in some rows of a map of one prompt, with their weights, and Σ|x| of each row.

    Keys, int32, and weights are (head, query, rank), by decreasing size of the weight; a key is −1, and its weight 0, if there is
    no further one of a weight other than 0. Σ|x| is (head, query).
    """
    shape = len(layer.head_numbers(heads)), len(queries)
    keys = torch.full((*shape, count), -1, dtype=torch.int32, device=layer.q.device)
    weights = torch.zeros(*shape, count, dtype=layer.dtype, device=layer.q.device)
    mass = torch.empty(*shape, dtype=layer.dtype, device=layer.q.device)

    def largest(block: Block, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        values = map_of(rows, name)  # (head, query, key)
        size = values.abs()
        at = size.topk(min(count, size.shape[-1])).indices
        return (at + rows.start).to(torch.int32), values.gather(-1, at), size.sum(-1)

    for block, (at, values, total) in stream(layer, queries, largest, heads=heads, workers=workers):
        of_block = slice(block.heads.start, block.heads.stop)
        keys[of_block, block.at, : at.shape[-1]] = at
        weights[of_block, block.at, : at.shape[-1]] = values
        mass[of_block, block.at] = total
    return keys.masked_fill_(weights == 0, -1), weights, mass


@dataclass(frozen=True)
class Bins:
    """Maps of some heads of one layer in bins.

    Attributes
    ----------
    maps : dict of str to Tensor, (head, query bin, key bin)
        By name: the value of largest magnitude, with its sign; 0 if no query of a bin sees any of its keys.
    visible : bool Tensor, (query bin, key bin)
        Whether any query of a bin sees any of its keys.
    width : int
        Positions along each side of a bin.
    received : dict of str to Tensor, (head, key)
        Sum of the map over all queries, by name; only with marginals.
    entropy : dict of str to Tensor, (head, query)
        Entropy of each row as the statistic of that name, of A1, A2 and D; only with marginals.
    shares : dict of str to Tensor, (head, query bin, key bin)
        As `maps`, of each row's values over the sum of their sizes, x/Σ|x|; only with shares.
    mass : dict of str to Tensor, (head, query)
        That sum, Σ|x| of each row; only with shares.
    """

    maps: dict[str, Tensor]
    visible: Tensor
    width: int
    received: dict[str, Tensor]
    entropy: dict[str, Tensor]
    shares: dict[str, Tensor]
    mass: dict[str, Tensor]


@torch.no_grad()
@without_autocast()
def bins(
    layer: LayerAttention,
    names: Sequence[str],
    heads: Heads = None,
    size: int = 512,
    *,
    marginals: bool = False,
    shares: bool = False,
    workers: Workers | None = None,
) -> Bins:
    """Reduce maps of some heads of one prompt to at most size × size bins, in one pass over their rows.

    `marginals` adds the sums over queries and the entropies of rows, `shares` the bins of each row's shares and the sums of rows.
    """
    width = max(1, -(-max(layer.n_queries, layer.n_keys) // size))
    count = len(layer.head_numbers(heads))

    def zeros(*shape: int) -> dict[str, Tensor]:
        return {name: torch.zeros(count, *shape, dtype=layer.dtype, device=layer.q.device) for name in names}

    binned = -(-layer.n_queries // width), -(-layer.n_keys // width)
    maps = zeros(*binned)
    of_shares, mass = (zeros(*binned), zeros(layer.n_queries)) if shares else ({}, {})
    received = zeros(layer.n_keys) if marginals else {}
    entropies = {name: x for name, x in zeros(layer.n_queries).items() if name in ROW_OF_MOMENTS} if marginals else {}

    def reduce(block: Block, rows: Rows) -> _BlockBins:
        return _reduce(layer, names, rows, width, marginals, shares)

    for block, part in stream(layer, None, reduce, heads=heads, workers=workers):
        of_heads = slice(block.heads.start, block.heads.stop)
        first, start = int(block.queries[0]) // width, part.start // width
        for whole, values in ((maps, part.maps), (of_shares, part.shares)):
            for name, x in values.items():
                region = whole[name][of_heads, first : first + x.shape[1], start : start + x.shape[2]]
                region.copy_(_larger(region, x))
        for name, x in part.received.items():
            received[name][of_heads, part.start : part.start + x.shape[1]] += x
        for whole, values in ((entropies, part.entropy), (mass, part.mass)):
            for name, x in values.items():
                whole[name][of_heads, block.at] = x
    return Bins(maps, layer.mask.bins(width, layer.n_queries, layer.n_keys), width, received, entropies, of_shares, mass)


@dataclass
class _BlockBins:
    """Contributions of a block of rows, by map; arrays as of :class:`Bins`, of the bins that the block reaches."""

    start: int  # position of its first key
    maps: dict[str, Tensor] = field(default_factory=dict)
    received: dict[str, Tensor] = field(default_factory=dict)
    entropy: dict[str, Tensor] = field(default_factory=dict)
    shares: dict[str, Tensor] = field(default_factory=dict)
    mass: dict[str, Tensor] = field(default_factory=dict)


def _reduce(layer: LayerAttention, names: Sequence[str], rows: Rows, width: int, marginals: bool, shares: bool) -> _BlockBins:
    """Reduce a block of rows to bins."""
    out = _BlockBins(rows.start)
    first = int(rows.queries[0])
    if marginals or shares:
        moments = of_maps(rows, {"logs"} if marginals else ())
    if marginals:
        entropies = entropy(moments, rows.n)  # (map, head, query)
        out.entropy = {name: entropies[number] for name, number in ROW_OF_MOMENTS.items() if name in names}
    for name in sorted(names):  # A2 before lambda_A2, which is a multiple of it if λ does not depend on the query
        if shares:
            out.mass[name] = _mass(name, rows, moments["total"])
        if name == "lambda_A2" and "A2" in out.maps and layer.lam.shape[2] == 1:
            lam = rows.lam[:, :1]
            out.maps[name] = lam[..., None] * out.maps["A2"]
            if marginals:
                out.received[name] = lam * out.received["A2"]
            if shares:
                out.shares[name] = lam.sign()[..., None] * out.shares["A2"]
            continue
        values = map_of(rows, name)  # (head, query, key)
        signed = name in ("D", "lambda_A2") or rows.changed
        out.maps[name] = _extremes(values, signed, first, rows.start, width)
        if marginals:
            out.received[name] = values.sum(1)
        if shares and _sums_to_one(layer, name, rows):
            out.shares[name] = out.maps[name]
        elif shares:
            mass = out.mass[name].clamp_min(torch.finfo(values.dtype).tiny)  # a row that sees nothing has shares of 0
            out.shares[name] = _extremes(values / mass[..., None], signed, first, rows.start, width)
    return out


def _extremes(values: Tensor, signed: bool, first: int, start: int, width: int) -> Tensor:
    """Return the value of largest magnitude of every bin of values (head, query, key): (head, query bin, key bin).

    Only `signed` values may be negative; `first` and `start` are the positions of the first query and of the first key.
    """
    if width == 1:
        return values.clone()  # the memory of rows is used again
    highest = _binned(values, torch.amax, first, start, width)
    return _larger(highest, _binned(values, torch.amin, first, start, width)) if signed else highest


def _binned(values: Tensor, reduce: Callable[[Tensor, int], Tensor], first: int, start: int, width: int) -> Tensor:
    """Reduce rows, which lie side by side in memory, and then keys, to bins; a bin of keys may gain a 0 at an end."""
    stop = values.shape[1]
    before = min(-first % width, stop)  # rows of a bin that begins in an earlier block
    whole = (stop - before) // width * width
    parts = [reduce(values[:, :before], 1).unsqueeze(1)] if before else []
    if whole:
        parts.append(reduce(values[:, before : before + whole].unflatten(1, (-1, width)), 2))
    if before + whole < stop:
        parts.append(reduce(values[:, before + whole :], 1).unsqueeze(1))
    by_row = torch.cat(parts, 1) if len(parts) > 1 else parts[0]  # (head, query bin, key)
    ahead = start % width
    by_row = pad(by_row, (ahead, -(ahead + by_row.shape[2]) % width))
    return reduce(by_row.unflatten(2, (-1, width)), 3)


def _sums_to_one(layer: LayerAttention, name: str, rows: Rows) -> bool:
    """Return whether every row of a map that sees any key sums to 1."""
    return name == "share" or (name in ("A1", "A2") and layer.sink_logit is None and not rows.changed)


def _mass(name: str, rows: Rows, total: Tensor) -> Tensor:
    """Return Σ|x| of the rows of a map (head, query), given those of A1, A2 and D (map, head, query)."""
    if name == "share":
        return total[-1].sign()
    if name == "lambda_A2":
        return rows.lam.abs() * total[1]
    return total[ROW_OF_MOMENTS[name]]


def _larger(values: Tensor, others: Tensor) -> Tensor:
    """Return the value of larger magnitude of each pair."""
    return torch.where(values.abs() >= others.abs(), values, others)
