"""Statistics of one layer, taken from its maps as they stream past in blocks of rows.

A map of N tokens has N² entries, so it is never held: a block of its rows is computed, every collector takes what
it needs from it, and it is gone. Only what was asked for is computed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import xarray as xr
from torch import Tensor

from diffscope.attention import stacking
from diffscope.attention.layer import LayerAttention
from diffscope.attention.memory import Workspace
from diffscope.errors import DiffscopeError, SpanError
from diffscope.stats import backends
from diffscope.stats.collectors import Block, Collector, Place, Request, RowStatistics
from diffscope.stats.datasets import Measured, attributes, coordinates, dataset
from diffscope.stats.registry import BY_HEAD, GROUPS, STATISTICS, Statistic, select
from diffscope.stats.threads import Workers

__all__ = ["GROUPS", "STATISTICS", "Statistic", "measure", "select"]

# Values of a (head, query, key) temporary: 4 MiB in float32, of which a block needs eight; smaller ones
# spend their time between operations, and threads theirs waiting for the interpreter. On a GPU 64 MiB, which keep it busy.
ELEMENTS = {"cpu": 2**20, "cuda": 2**24}
LEAST_ROWS = 16  # of one head: with fewer, reading the keys takes longer than the products with them
FEWEST_BLOCKS = 16  # of a long enough prompt: the fewer, the more keys are computed that no row sees
TOO_LITTLE = 2**23  # values of one map, over all heads, below which threads cost more than they bring


def measure(layer: LayerAttention, statistics: Iterable[str] | str | None = None, *asked, **how) -> xr.Dataset:
    """Statistics of one layer as a Dataset without a layer dimension; parameters as of :func:`take_all`.

    Returns
    -------
    xarray.Dataset
        One variable a statistic, with attrs units, long_name, definition; "averaged_over" where it is a mean, and
        "why" where standard attention leaves NaN. Coordinates: head, query and key sets by name.
    """
    with Workers() as workers:
        return dataset([take(layer, statistics, *asked, workers=workers, **how)])


def take(layer: LayerAttention, *asked, **how) -> Measured:
    """Statistics of one layer; parameters as of :func:`take_all`."""
    return take_all([layer], *asked, **how)[0]


@torch.no_grad()
def take_all(
    layers: Sequence[LayerAttention],
    statistics: Iterable[str] | str | None = None,
    spans: Mapping[str, Tensor] | None = None,
    queries: Sequence[int] | Tensor | None = None,
    weights: Tensor | None = None,
    elements: int | None = None,
    workers: Workers | None = None,
    progress: Callable[[float], None] | None = None,
    backend: str | None = None,
) -> list[Measured]:
    """Statistics of several layers of one prompt; what is by head is taken of all together where they are alike.

    Parameters
    ----------
    layers : sequence of LayerAttention
        Each with a batch of one, all of the same prompt.
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
    backend : str, optional
        Where row statistics come from, one of :data:`diffscope.stats.backends.BACKENDS`; by default the fastest on the device.
        Everything else comes from blocks of rows.

    Raises
    ------
    UnknownStatistic, SpanError, MapTooLarge, DiffscopeError
    """
    chosen, workers = select(statistics), workers or Workers(1)
    backends.check(backend)
    for layer in layers:
        if not layer.differential and not (layer.gain == 1).all():
            raise DiffscopeError(f"layer {layer.layer} has one map and a gain, and what its D would be is not defined here")
    found: list[dict[str, Tensor]] = [{} for _ in layers]
    said: list[dict[str, dict]] = [{} for _ in layers]
    requests = [
        Request(layer, _checked_spans(layer, spans or {"sink": [0]}), checked_queries(layer, queries), weights)
        for layer in layers
    ]
    joint = [s for s in chosen if s.collector in BY_HEAD] if len(layers) > 1 and stacking.alike(layers) else []
    rest = [statistic for statistic in chosen if statistic not in joint]
    streamed = [statistic for statistic in rest if statistic.collector]
    parts = _Parts(progress, bool(joint) + len(layers) * bool(streamed))
    if joint:
        all_of_them = replace(requests[0], layer=stacking.joined(layers))
        values, more = _of_rows(all_of_them, joint, elements, workers, parts.within, backend)
        heads = layers[0].n_heads
        for number, (of_layer, said_of_layer) in enumerate(zip(found, said)):
            of_layer.update({name: x[number * heads : (number + 1) * heads] for name, x in values.items()})
            said_of_layer.update(more)
        parts.done += 1
    for request, of_layer, said_of_layer in zip(requests, found, said):
        of_layer.update({statistic.name: statistic.compute(request) for statistic in rest if statistic.compute})
        values, more = _of_rows(request, streamed, elements, workers, parts.within, backend)
        of_layer.update(values)
        said_of_layer.update(more | {statistic.name: statistic.note(request) for statistic in rest if statistic.note})
        parts.done += 1
    dims = {dim for statistic in chosen for dim in statistic.dims}
    return [
        Measured(
            {statistic.name: of_layer[statistic.name].cpu().numpy() for statistic in chosen},
            {
                statistic.name: attributes(statistic, request.layer) | said_of_layer.get(statistic.name, {})
                for statistic in chosen
            },
            coordinates(request, dims),
        )
        for request, of_layer, said_of_layer in zip(requests, found, said)
    ]


class _Parts:
    """Progress through work of several parts."""

    def __init__(self, progress: Callable[[float], None] | None, count: int):
        self._progress, self._count, self.done = progress, count, 0

    def within(self, share: float) -> None:
        if self._progress:
            self._progress((self.done + share) / self._count)


def _of_rows(
    request: Request, statistics: list[Statistic], elements: int | None, workers: Workers, progress, backend: str | None
) -> tuple[dict[str, Tensor], dict[str, dict]]:
    """What comes from rows, by kernels or in blocks, and what is to be said of it."""
    values, said = {}, {}
    from_rows = [statistic.name for statistic in statistics if statistic.kind == "row"]
    backend = backends.chosen(request.layer, backend) if from_rows else "blocks"
    if backend != "blocks":
        values, said = _from_kernels(request, from_rows, backend)
        statistics = [statistic for statistic in statistics if statistic.kind != "row"]
    return values | _streamed(request, statistics, elements, workers, progress), said


def _from_kernels(request: Request, names: list[str], backend: str) -> tuple[dict[str, Tensor], dict[str, dict]]:
    """Row statistics from kernels, and what is to be said of each."""
    collector = RowStatistics(request, names)
    found = backends.row_moments(request.layer, request.queries, names, backend)
    collector.fill(found.values)
    said = {name: {"backend": backend} for name in names}
    for name in names:
        if (bound := collector.bound(name, found.widths)) is not None:
            said[name]["error_bound"] = bound
    values = {name: collector.result(name) for name in names}
    if backend == "stock" and request.layer.differential:
        for name in (name for name in names if values[name][:, -1].isnan().all()):
            said[name]["why"] = "D is NaN: log-sum-exp identities do not give sums over |D|"
    return values, said


def _streamed(
    request: Request, statistics: list[Statistic], elements: int | None, workers: Workers, progress: Callable | None
) -> dict[str, Tensor]:
    names: dict[Callable, list[str]] = {}
    for statistic in statistics:
        names.setdefault(statistic.collector, []).append(statistic.name)
    collectors = {make: make(request, of_it) for make, of_it in names.items()}
    if not collectors:
        return {}
    every = list(collectors.values())
    places = list(_places(request, any(collector.all_heads for collector in every), elements))
    wanted = set().union(*(collector.moments for collector in every))
    layer, tasks = request.layer, (partial(_pieces, request, every, wanted, place) for place in places)
    alone = layer.q.device.type != "cpu" or layer.n_heads * len(request.queries) * layer.n_keys < TOO_LITTLE
    for number, (place, pieces) in enumerate(zip(places, workers.run(tasks, alone))):
        for collector, piece in zip(every, pieces):
            collector.add(place, piece)
        if progress and number + 1 < len(places):
            progress((number + 1) / len(places))
    return {name: collectors[make].result(name) for make, of_it in names.items() for name in of_it}


def _pieces(request: Request, collectors: list[Collector], wanted: set[str], place: Place, workspace: Workspace) -> list[Any]:
    block = Block(request, place, wanted, workspace)
    return [collector.piece(block) for collector in collectors]


def block_size(layer: LayerAttention, all_heads: bool, elements: int | None = None) -> tuple[int, int]:
    """Of how many heads and queries a block is."""
    width = layer.n_keys if layer.mask.window is None else min(layer.n_keys, layer.mask.window + LEAST_ROWS)
    least, most = (1, layer.n_queries) if elements else (LEAST_ROWS, max(8 * LEAST_ROWS, layer.n_queries // FEWEST_BLOCKS))
    elements = elements or ELEMENTS.get(layer.q.device.type, ELEMENTS["cpu"]) * 4 // layer.dtype.itemsize
    heads = layer.n_heads if all_heads else max(1, min(layer.n_heads, elements // (4 * LEAST_ROWS * width)))
    return heads, max(least, min(most, elements // (heads * width)))


def _places(request: Request, all_heads: bool, elements: int | None) -> Iterator[Place]:
    """The blocks that a request is cut into, of neighbouring queries, which see about the same keys. The last come first: they
    see most keys under a causal mask, so that no later block needs more memory, and threads end at about the same time."""
    n_heads, (heads, rows) = request.layer.n_heads, block_size(request.layer, all_heads, elements)
    order = request.queries.argsort(stable=True)
    in_order = bool((request.queries.diff() >= 0).all())
    for stop in range(len(order), 0, -rows):
        at = slice(max(0, stop - rows), stop)
        for head in range(0, n_heads, heads):
            yield Place(range(head, min(head + heads, n_heads)), at if in_order else order[at])


def checked_queries(layer: LayerAttention, queries: Sequence[int] | Tensor | None) -> Tensor:
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
