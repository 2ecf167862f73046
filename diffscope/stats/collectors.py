"""What is asked of one layer, and the collectors that take statistics from its maps as they stream past.

A collector's ``piece(block)`` runs in whatever thread has the block; ``add`` runs in the calling thread and is given the pieces
in the order of the blocks. The maps exist for one block at a time; what several statistics need of a block is computed once and
shared through it.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from diffscope.attention.blocks import Block as Place
from diffscope.attention.layer import LayerAttention, Rows
from diffscope.attention.memory import NO_REUSE, Workspace
from diffscope.stats.formulas import branches, distribution, redundancy, sinks, spans
from diffscope.stats.formulas.row_sums import Moments, of_maps

MAPS = ("A1", "A2", "D")
RANKED_MAPS = ("A1", "lambda_A2", "D")


@dataclass(frozen=True)
class Request:
    """One layer of one prompt, the key sets by name, the queries to measure, and how many queries each of them stands for."""

    layer: LayerAttention
    spans: dict[str, Tensor]
    queries: Tensor
    weights: Tensor | None = None  # (query,), where the queries are a sample
    _shared: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def sink_sets(self) -> list[Tensor]:
        """S, the span of that name or else the first key; and the first four keys."""
        device = self.queries.device
        sink = self.spans.get("sink", torch.zeros(1, dtype=torch.int64, device=device))
        return [sink, torch.arange(min(4, self.layer.n_keys), device=device)]

    def once(self, make: Callable[["Request"], Any]) -> Any:
        """What `make` makes of the request, made for the first statistic that needs it and kept for the others."""
        if make not in self._shared:
            self._shared[make] = make(self)
        return self._shared[make]


class lazy:
    """A cached property without the lock that ``functools.cached_property`` has until Python 3.12.

    That lock is one for all instances, and threads would take turns at their blocks.
    """

    def __init__(self, make: Callable[[Any], Any]):
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        value = instance.__dict__[self._name] = self._make(instance)
        return value


class Block:
    """A block of rows, and what several statistics take from it; keys that none of its rows sees are left out."""

    def __init__(
        self, request: Request, place: Place, wanted: Collection[str] = frozenset(), workspace: Workspace = NO_REUSE
    ) -> None:
        rows: Rows = request.layer.visible_rows(request.queries[place.at], place.heads, workspace)
        self.request = request
        self.place = place
        self.rows = rows
        self.n = rows.n
        self.keys = slice(rows.start, rows.start + rows.a1.shape[-1])
        self.maps = {"A1": rows.a1, "D": rows.d} if rows.a2 is None else {"A1": rows.a1, "A2": rows.a2, "D": rows.d}
        self.differential = rows.a2 is not None
        self._wanted = wanted
        self._workspace = workspace

    @lazy
    def moments(self) -> Moments:
        """Moments of A1, A2 and D, or of standard attention's one map, each (map, head, query, ...): all that were wanted."""
        return of_maps(self.rows, self._wanted, self._workspace)

    def moment(self, moment: str, name: str) -> Tensor:
        """A moment of one map, (head, query, ...)."""
        return self.moments[moment][{"A1": 0, "A2": 1, "D": -1}[name]]

    def net(self, name: str) -> Tensor:
        """What the rows of a map sum to, (head, query)."""
        if self.rows.changed or self.request.layer.sink_logit is not None:
            return self.maps[name].sum(-1)
        return self.rows.gain - self.rows.lam if name == "D" else torch.ones_like(self.rows.lam)

    def denominators(self, name: str) -> Tensor:
        """What each normalisation divides a map's rows by, (head, query, normalisation)."""
        return spans.denominators(self.moment("total", name), self.moment("positive", name), self.net(name))

    @lazy
    def visible(self) -> Tensor:
        """(query, key)."""
        layer = self.request.layer
        return layer.mask.rows(self.rows.queries, layer.n_keys, layer.n_keys - layer.n_queries, self.keys)

    def local(self, key_sets: Sequence[Tensor]) -> list[Tensor]:
        """Key sets as far as the block has keys, in its columns."""
        first = self.keys.start
        last = self.keys.stop
        return [keys[(keys >= first) & (keys < last)] - first for keys in key_sets]

    @lazy
    def spans(self) -> list[Tensor]:
        """The requested key sets in the block's columns."""
        return self.local(list(self.request.spans.values()))

    def seen(self, columns: Sequence[Tensor]) -> Tensor:
        """How many keys of each set each row sees, (query, span)."""
        return torch.stack([spans.take(self.visible, keys).sum(-1) for keys in columns], dim=-1)

    @lazy
    def on_spans(self) -> list["OnSpan"]:
        """The rows restricted to each key set, in the order of the request."""
        total = self.moment("total", "D")
        total_a1 = self.net("A1")
        return [
            OnSpan(
                a1=spans.take(self.maps["A1"], keys),
                a2=spans.take(self.maps["A2"], keys),
                d=spans.take(self.maps["D"], keys),
                gain=self.rows.gain,
                total=total,
                total_a1=total_a1,
                seen=self.seen([keys])[:, 0],
            )
            for keys in self.spans
        ]


@dataclass(frozen=True)
class OnSpan:
    """The rows of a block on one key set: maps (head, query, X), the rest (head, query) or (query,)."""

    a1: Tensor
    a2: Tensor
    d: Tensor
    gain: Tensor
    total: Tensor  # sum |D| over the whole row
    total_a1: Tensor  # of A1; 1 but for sink logits and edits
    seen: Tensor


class Collector(Protocol):
    """Takes pieces of blocks of rows one after another, then gives the statistics of the layer.

    Attributes
    ----------
    moments : set of str
        Those that it makes use of.
    all_heads : bool
        Whether it needs all heads in one block.
    """

    moments: set[str]
    all_heads: bool

    def piece(self, block: Block) -> Any: ...

    def add(self, place: Place, piece: Any) -> None: ...

    def result(self, name: str) -> Tensor: ...


class Placed:
    """Values by head and query, put where they belong; `query_dim` is theirs in a piece (head, ..., query, ...)."""

    all_heads = False

    def __init__(self, request: Request, query_dim: int, moments: Collection[str] = frozenset()) -> None:
        self.moments = set(moments)
        self.request = request
        self._dim = query_dim
        self._placed: Tensor | None = None

    @property
    def values(self) -> Tensor:
        """All that was placed, (head, ..., query, ...)."""
        assert self._placed is not None, "every request has a block"
        return self._placed

    def add(self, place: Place, piece: Tensor) -> None:
        if self._placed is None:
            shape = list(piece.shape)
            shape[0] = self.request.layer.n_heads
            shape[self._dim] = len(self.request.queries)
            self._placed = piece.new_empty(shape, device="cpu")
        by_query = self._placed.movedim(self._dim, 1)  # (head, query, ...), the same memory
        at = place.at if isinstance(place.at, slice) else place.at.cpu()
        by_query[place.heads.start : place.heads.stop, at] = piece.movedim(self._dim, 1).cpu()


class RowStatistics:
    """All row statistics of a request: moments by block, formulas at the end; each (head, map, query, ...)."""

    all_heads = False

    def __init__(self, request: Request, names: Sequence[str]):
        self.moments = distribution.needed(names)
        several = self.moments & {"top", "quantiles"}  # values a row; all others are put into their places together
        self._groups = [sorted(self.moments - several), *([name] for name in sorted(several))]
        self._request = request
        self._placed = [Placed(request, 3) for _ in self._groups]
        self._values: dict[str, Tensor] = {}

    def piece(self, block: Block) -> list[Tensor]:  # of each group (head, map, moment, query, ...)
        return [torch.stack([block.moments[name] for name in group], dim=2).transpose(0, 1) for group in self._groups]

    def add(self, place: Place, piece: list[Tensor]) -> None:
        for placed, values in zip(self._placed, piece):
            placed.add(place, values)

    def fill(self, moments: dict[str, Tensor]) -> None:
        """Take all moments at once, as a kernel gives them, each (head, map, query, ...)."""
        self._values = moments

    @property
    def values(self) -> dict[str, Tensor]:
        """All moments, each (head, map, query, ...)."""
        if not self._values:
            for group, placed in zip(self._groups, self._placed):
                self._values |= {name: placed.values[:, :, i] for i, name in enumerate(group)}
        return self._values

    def result(self, name: str) -> Tensor:
        formula, moments = distribution.FORMULAS[name]
        values = formula({moment: self.values[moment] for moment in moments}, self.counts)  # (head, map, query, ...)
        if self._request.layer.differential:
            return values.contiguous()  # a view would hold all other moments
        a1 = values[:, :1]
        d = values[:, -1:]
        return torch.cat([a1, torch.full_like(a1, math.nan), d], dim=1)

    def bound(self, name: str, widths: dict[str, Tensor]) -> float | None:
        """The error bound of a statistic whose moment is the middle of a bracket: half the widest of them, else None.

        `widths` are those of the brackets, by moment, each (head, map, query, ...).
        """
        moment = {"gini": "gini", "quantiles": "quantiles", "top_k_mass": "top"}.get(name)
        if moment is None or moment not in widths:
            return None
        if name == "gini":
            return float(widths[moment].nan_to_num().max()) / 2
        unit = self.values["total"] / (self.counts if name == "quantiles" else 1)
        return float((widths[moment] / unit.unsqueeze(-1)).nan_to_num(posinf=0).max()) / 2

    @cached_property
    def counts(self) -> Tensor:
        """Visible keys of each query, (query,)."""
        layer = self._request.layer
        return layer.mask.counts(self._request.queries, layer.n_keys, layer.n_keys - layer.n_queries).cpu()


class SpanMass(Placed):
    """Mass on the requested key sets: (head, map, query, span, normalisation)."""

    def __init__(self, request: Request, names: Sequence[str]):
        super().__init__(request, 2, {"total", "positive"})

    def columns(self, block: Block) -> list[Tensor]:
        """The key sets in a block's columns."""
        return block.spans

    def piece(self, block: Block) -> Tensor:
        columns = self.columns(block)
        seen = block.seen(columns)

        def mass(block: Block, name: str) -> Tensor:
            return spans.span_mass(block.maps[name], columns, block.denominators(name), block.n, seen)

        return torch.stack(list(over_maps(block, mass)), dim=1)

    def result(self, name: str) -> Tensor:
        return self.values


class SinkMass(SpanMass):
    """Mass on the sink sets: (head, map, query, sink set, normalisation)."""

    def columns(self, block: Block) -> list[Tensor]:
        return block.local(block.request.sink_sets)


class PerSpan(Placed):
    """Statistics of the two branches on each key set, (head, query, span); NaN in rows with one visible key."""

    def __init__(self, request: Request, names: Sequence[str]):
        super().__init__(request, 2, {"total"})
        self._names = list(names)

    def piece(self, block: Block) -> Tensor:  # (head, statistic, query, span)
        if not block.differential:
            lam = block.rows.lam
            return lam.new_full((len(lam), len(self._names), lam.shape[1], len(block.request.spans)), math.nan)
        values = [torch.stack([ON_SPAN[name](on) for on in block.on_spans], dim=-1) for name in self._names]
        return torch.where((block.n > 1)[:, None], torch.stack(values, dim=1), math.nan)

    def result(self, name: str) -> Tensor:
        return self.values[:, self._names.index(name)]


class SinkRate(SinkMass):
    """The share of heads with a sink: (map, sink set, normalisation)."""

    def result(self, name: str) -> Tensor:
        weights = self.request.weights
        return sinks.sink_rate(self.values.movedim(2, -1), None if weights is None else weights.cpu())


class ColumnSink:
    """The most attended key, its mass and its position: (head, map, normalisation)."""

    all_heads = False

    def __init__(self, request: Request, names: Sequence[str]):
        self.moments = {"total", "positive"}
        self._request = request
        self._totals: Tensor | None = None  # (head, map, normalisation, key + 1): mass received, and behind it the rows

    def piece(self, block: Block) -> tuple[slice, Tensor, Tensor]:
        weights = _weights_of(self._request, block)

        def sums(block: Block, name: str) -> Tensor:
            received, rows = sinks.column_sums(block.maps[name], block.denominators(name), block.n, weights)
            return torch.cat([received, rows.unsqueeze(-1)], dim=-1)

        both = torch.stack(list(over_maps(block, sums)), dim=1).cpu()  # (head, map, normalisation, key + 1)
        return block.keys, both[..., :-1], both[..., -1]

    def add(self, place: Place, piece: tuple[slice, Tensor, Tensor]) -> None:
        keys, received, rows = piece
        if self._totals is None:
            layer = self._request.layer
            self._totals = received.new_zeros(layer.n_heads, *received.shape[1:-1], layer.n_keys + 1)
        of_heads = self._totals[place.heads.start : place.heads.stop]
        of_heads[..., keys] += received
        of_heads[..., -1] += rows

    def result(self, name: str) -> Tensor:
        assert self._totals is not None, "every request has a block"
        mass, position = sinks.column_sink(self._totals[..., :-1], self._totals[..., -1])
        return position if name == "column_sink_position" else mass


class MapDistance:
    """Mean pairwise cosine distance between the heads' maps: (map,)."""

    all_heads = True

    def __init__(self, request: Request, names: Sequence[str]):
        self.moments: set[str] = set()
        self._request = request
        self._gram = torch.zeros(())  # (map, head, head), summed over blocks

    def piece(self, block: Block) -> Tensor:
        weights = _weights_of(self._request, block)
        return torch.stack(list(over_maps(block, lambda block, name: redundancy.map_gram(block.maps[name], weights))))

    def add(self, place: Place, piece: Tensor) -> None:
        self._gram = piece if self._gram.dim() == 0 else self._gram + piece

    def result(self, name: str) -> Tensor:
        return redundancy.map_distance(self._gram)


class HeadCKA(Placed):
    """Linear CKA between the heads' outputs D·V: (head, other head)."""

    def __init__(self, request: Request, names: Sequence[str]):
        super().__init__(request, 1)

    def piece(self, block: Block) -> Tensor:
        layer = block.request.layer
        of_heads = layer.pairing.value_of_head[list(block.place.heads)].tolist()
        values = [layer.v[0, value, block.keys].to(layer.dtype) for value in of_heads]  # (key, width) of each head
        return torch.stack([d @ v for d, v in zip(block.rows.d, values)])

    def result(self, name: str) -> Tensor:
        return redundancy.head_cka(self.values, self.request.weights)


def _weights_of(request: Request, block: Block) -> Tensor | None:
    """How many queries each row of a block stands for, (query,); None where each stands for itself."""
    return None if request.weights is None else request.weights[block.place.at]


def over_maps(block: Block, function: Callable[[Block, str], Tensor]) -> Iterator[Tensor]:
    """The values of a function for A1, A2 and D; standard attention has NaN for A2, and D is A1 unless its rows are changed."""
    a1 = function(block, "A1")
    yield a1
    yield function(block, "A2") if block.differential else torch.full_like(a1, math.nan)
    yield a1 if block.request.layer.d_is_a1 else function(block, "D")


#: branch statistics of a block on one key set: (head, query)
ON_SPAN: dict[str, Callable[[OnSpan], Tensor]] = {
    "cosine": lambda on: branches.cosine(on.a1, on.a2, on.seen),
    "lambda_star": lambda on: branches.lambda_star(on.a1, on.a2),
    "residual_noise": lambda on: branches.residual_noise(on.a1, on.d, on.gain),
    "residual_floor": lambda on: branches.residual_floor(on.a1, on.a2, on.seen),
    "noise_gain": lambda on: branches.noise_gain(on.a1, on.d),
    "signal_gain": lambda on: branches.signal_gain(on.a1, on.d),
    "selectivity": lambda on: branches.selectivity(on.a1, on.d, on.total, on.total_a1),
    "overlap": lambda on: branches.overlap(on.a1, on.a2),
    "kl_12": lambda on: branches.kl(on.a1, on.a2, on.seen),
    "kl_21": lambda on: branches.kl(on.a2, on.a1, on.seen),
    "js": lambda on: branches.js(on.a1, on.a2, on.seen),
    "shape_overlap": lambda on: branches.shape_overlap(on.a1, on.a2, on.seen),
}
