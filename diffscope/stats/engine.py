"""Statistics of one layer, taken from its maps as they stream past in blocks of rows.

A map of N tokens has N² entries, so it is never held: a block of its rows is computed, every collector takes what
it needs from it, and it is gone. Only what was asked for is computed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import xarray as xr
from torch import Tensor

from diffscope.attention import stacking
from diffscope.attention.blocks import Block as Place
from diffscope.attention.blocks import Workers, blocks_of
from diffscope.attention.layer import LayerAttention
from diffscope.attention.memory import Workspace
from diffscope.attention.precision import without_autocast
from diffscope.errors import DiffscopeError, SpanError
from diffscope.stats import backends
from diffscope.stats.backends import Backend
from diffscope.stats.collectors import Block, Collector, Request, RowStatistics
from diffscope.stats.datasets import Measured, attributes, coordinates, dataset
from diffscope.stats.registry import BY_HEAD, GROUPS, STATISTICS, Statistic, select

__all__ = ["GROUPS", "STATISTICS", "Statistic", "measure", "select"]

TOO_LITTLE = 2**23  # values of one map, over all heads, below which threads cost more than they bring


def measure(
    layer: LayerAttention,
    statistics: Iterable[str] | str | None = None,
    *,
    spans: Mapping[str, Tensor] | None = None,
    queries: Sequence[int] | Tensor | None = None,
    weights: Tensor | None = None,
    elements: int | None = None,
    progress: Callable[[float], None] | None = None,
    backend: Backend | None = None,
) -> xr.Dataset:
    """Statistics of one layer as a Dataset without a layer dimension.

    Parameters
    ----------
    layer : LayerAttention
        Of one prompt.
    statistics, spans, queries, weights, elements, progress, backend
        As of :func:`measure_layers`.

    Returns
    -------
    xarray.Dataset
        One variable a statistic, with attrs units, long_name, definition, averaged ("mean", "median" or "not"); "averaged_over"
        where it is a mean already, and "why" where standard attention leaves NaN. Coordinates: head, query and key sets by name.

    Raises
    ------
    UnknownStatistic, SpanError, MapTooLarge, DiffscopeError
    """
    with Workers() as workers:
        measured = measure_layers(
            [layer],
            statistics,
            spans=spans,
            queries=queries,
            weights=weights,
            elements=elements,
            workers=workers,
            progress=progress,
            backend=backend,
        )
    return dataset(measured)


@torch.no_grad()
@without_autocast()
def measure_layers(
    layers: Sequence[LayerAttention],
    statistics: Iterable[str] | str | None = None,
    *,
    spans: Mapping[str, Tensor] | None = None,
    queries: Sequence[int] | Tensor | None = None,
    weights: Tensor | None = None,
    elements: int | None = None,
    workers: Workers | None = None,
    progress: Callable[[float], None] | None = None,
    backend: Backend | None = None,
) -> list[Measured]:
    """Statistics of several layers; what is by head is taken of all together where they are alike.

    Parameters
    ----------
    layers : sequence of LayerAttention
        Each with a batch of one, all of the same prompt, or of prompts with the same spans and queries.
    statistics : iterable of str, optional
        Names from ``STATISTICS`` or ``GROUPS``; by default the group "row".
    spans : mapping of str to LongTensor, optional
        Key sets by name; by default "sink" alone, the first key.
    queries : sequence of int or LongTensor, optional
        Query positions, by default all. Map statistics always take the whole map.
    weights : Tensor (query,), optional
        How many queries each of `queries` stands for, where they are a sample; statistics that are means over queries
        weight them so.
    elements : int, optional
        The largest number of (head, query, key) entries that a temporary may have, though it always has one row of
        one head, or of all where heads are compared. By default what is fastest on the device.
    workers : Workers, optional
        By default the calling thread alone.
    progress : callable, optional
        Called after every block with the share of them that is done.
    backend : {"blocks", "triton"}, optional
        Where row statistics come from: :mod:`diffscope.stats.backends`; by default the fastest for the layer.
        Everything else comes from blocks of rows.

    Returns
    -------
    list of Measured
        One for each layer.

    Raises
    ------
    UnknownStatistic, SpanError, MapTooLarge, DiffscopeError
    """
    chosen = select(statistics)
    backends.check(backend)
    for layer in layers:
        if not layer.differential and not (layer.gain == 1).all():
            raise DiffscopeError(f"layer {layer.layer} has one map and a gain, and what its D would be is not defined here")
    key_sets = spans or {"sink": torch.tensor([0])}
    requests = [Request(layer, _checked_spans(layer, key_sets), checked_queries(layer, queries), weights) for layer in layers]
    joint = [statistic for statistic in chosen if statistic.collector in BY_HEAD]
    joint = joint if len(layers) > 1 and stacking.can_stack(layers, outputs=False) else []
    by_layer = [statistic for statistic in chosen if statistic not in joint]
    streamed = [statistic for statistic in by_layer if statistic.collector]
    parts = _Parts(progress, bool(joint) + len(layers) * bool(streamed))
    rows = partial(_of_rows, elements=elements, workers=workers or Workers(1), progress=parts.within)
    ways = [_way(request, chosen, backend, elements) for request in requests]  # by layer, so that none depends on its company
    taken = [_Taken({}, {}) for _ in layers]
    if joint:
        together = rows(replace(requests[0], layer=stacking.stack(layers, outputs=False)), joint, ways[0])
        heads = layers[0].n_heads
        for number, of_layer in enumerate(taken):
            at = slice(number * heads, (number + 1) * heads)
            of_layer.update({name: values[at] for name, values in together.values.items()}, together.attrs)
        parts.done += 1
    for request, way, of_layer in zip(requests, ways, taken):
        of_layer.update({statistic.name: statistic.compute(request) for statistic in by_layer if statistic.compute}, {})
        of_layer.update(*rows(request, streamed, way))
        of_layer.update({}, {statistic.name: statistic.note(request) for statistic in by_layer if statistic.note})
        parts.done += 1
    return [_measured(request, chosen, of_layer) for request, of_layer in zip(requests, taken)]


class _Taken(NamedTuple):
    """Statistics of a layer, and what is to be said of them as attributes; both by name."""

    values: dict[str, Tensor]
    attrs: dict[str, dict]

    def update(self, values: dict[str, Tensor], attrs: dict[str, dict]) -> None:
        self.values.update(values)
        self.attrs.update(attrs)


def _measured(request: Request, chosen: list[Statistic], taken: _Taken) -> Measured:
    dims = {dim for statistic in chosen for dim in statistic.dims}
    return Measured(
        {statistic.name: taken.values[statistic.name].cpu().numpy() for statistic in chosen},
        {statistic.name: attributes(statistic, request.layer) | taken.attrs.get(statistic.name, {}) for statistic in chosen},
        coordinates(request, dims),
    )


class _Parts:
    """Progress through work of several parts."""

    def __init__(self, progress: Callable[[float], None] | None, count: int):
        self._progress = progress
        self._count = count
        self.done = 0

    def within(self, share: float) -> None:
        if self._progress:
            self._progress((self.done + share) / self._count)


def _way(request: Request, statistics: list[Statistic], backend: Backend | None, elements: int | None) -> Backend:
    """Where row statistics of a layer come from; blocks where it is said how large they may be."""
    if (elements and backend is None) or all(statistic.kind != "row" for statistic in statistics):
        return "blocks"
    return backends.chosen(request.layer, backend)


def _of_rows(
    request: Request,
    statistics: list[Statistic],
    chosen: Backend,
    elements: int | None,
    workers: Workers,
    progress: Callable[[float], None],
) -> _Taken:
    """What comes from rows, by kernels or in blocks, and what is to be said of it."""
    from_rows = [statistic.name for statistic in statistics if statistic.kind == "row"]
    if chosen == "blocks" or not from_rows:
        return _Taken(_streamed(request, statistics, elements, workers, progress), {})
    collector = RowStatistics(request, from_rows)
    moments = backends.row_moments(request.layer, request.queries, from_rows)
    collector.fill(moments.values)
    attrs: dict[str, dict] = {name: {"backend": chosen} for name in from_rows}
    for name in from_rows:
        bound = collector.bound(name, moments.widths)
        if bound is not None:
            attrs[name]["error_bound"] = bound
    values = {name: collector.result(name) for name in from_rows}
    others = [statistic for statistic in statistics if statistic.kind != "row"]
    return _Taken(values | _streamed(request, others, elements, workers, progress), attrs)


def _streamed(
    request: Request,
    statistics: list[Statistic],
    elements: int | None,
    workers: Workers,
    progress: Callable[[float], None],
) -> dict[str, Tensor]:
    """What collectors take from the rows as they stream past, block by block."""
    names: dict[Callable[[Request, Sequence[str]], Collector], list[str]] = {}
    for statistic in statistics:
        if statistic.collector:
            names.setdefault(statistic.collector, []).append(statistic.name)
    if not names:
        return {}
    collectors = [make(request, of_collector) for make, of_collector in names.items()]
    all_heads = any(collector.all_heads for collector in collectors)
    places = list(blocks_of(request.layer, request.queries, all_heads=all_heads, elements=elements))
    moments = {moment for collector in collectors for moment in collector.moments}
    layer = request.layer
    tasks = (partial(_pieces, request, collectors, moments, place) for place in places)
    alone = layer.q.device.type != "cpu" or layer.n_heads * len(request.queries) * layer.n_keys < TOO_LITTLE
    for number, (place, pieces) in enumerate(zip(places, workers.run(tasks, alone)), start=1):
        for collector, piece in zip(collectors, pieces):
            collector.add(place, piece)
        if number < len(places):
            progress(number / len(places))
    return {name: collector.result(name) for collector, of_collector in zip(collectors, names.values()) for name in of_collector}


def _pieces(request: Request, collectors: list[Collector], moments: set[str], place: Place, workspace: Workspace) -> list[Any]:
    block = Block(request, place, moments, workspace)
    return [collector.piece(block) for collector in collectors]


def checked_queries(layer: LayerAttention, queries: Sequence[int] | Tensor | None) -> Tensor:
    """Query positions, int64 (query,), by default all; raises :class:`DiffscopeError` for none, or one outside of the prompt."""
    if queries is None:
        return torch.arange(layer.n_queries, device=layer.q.device)
    queries = torch.as_tensor(queries, dtype=torch.int64, device=layer.q.device)
    if not len(queries):
        raise DiffscopeError("no query was chosen; give at least one position")
    outside = queries[(queries < 0) | (queries >= layer.n_queries)]
    if len(outside):
        raise DiffscopeError(f"query {int(outside[0])} is outside of the prompt; choose from 0 to {layer.n_queries - 1}")
    return queries


def _checked_spans(layer: LayerAttention, spans: Mapping[str, Tensor]) -> dict[str, Tensor]:
    checked = {name: torch.as_tensor(keys, dtype=torch.int64, device=layer.q.device) for name, keys in spans.items()}
    for name, keys in checked.items():
        if len(keys) and (int(keys.min()) < 0 or int(keys.max()) >= layer.n_keys):
            raise SpanError(f"span {name!r} reaches outside of the prompt; its positions go from 0 to {layer.n_keys - 1}")
    return checked
