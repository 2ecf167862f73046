"""Statistics of one layer, taken from its maps as they stream past in blocks of rows.

A map of N tokens has N² entries, so it is never held: a block of its rows is computed, every collector takes what
it needs from it, and it is gone. Only what was asked for is computed.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from diffscope.attention import LayerAttention
from diffscope.errors import DiffscopeError, SpanError
from diffscope.stats import backends, together
from diffscope.stats.collect import Block, Collector, Place, Request, RowStatistics
from diffscope.stats.registry import BY_HEAD, GROUPS, LABELS, STATISTICS, Statistic, select
from diffscope.stats.workers import Workers
from diffscope.workspace import Workspace

__all__ = ["GROUPS", "STATISTICS", "Statistic", "measure", "select"]

AVERAGED = {
    "sink_rate": "queries, then heads",
    "column_sink": "queries",
    "column_sink_position": "queries",
    "map_distance": "pairs of heads",
}
# Values of a (head, query, key) temporary: 1 MiB in float32, of which a block needs eleven; smaller ones
# spend their time between operations, larger ones in memory. On a GPU 64 MiB, which keep it busy.
ELEMENTS = {"cpu": 2**18, "cuda": 2**24}
LEAST_ROWS = 16  # of one head: with fewer, reading the keys takes longer than the products with them
FEWEST_BLOCKS = 16  # of a long enough prompt: the fewer, the more keys are computed that no row sees
PROBED = 2  # blocks a thread that are measured to tell how long all of them will take
TOO_LITTLE = 2**23  # values of one map, over all heads, below which threads cost more than they bring


class Measured(NamedTuple):
    """Statistics of one layer: by name the values, and what a Dataset says about them; and its coordinates."""

    values: dict[str, np.ndarray]
    attrs: dict[str, dict]
    coords: dict[str, list]


def measure(
    layer: LayerAttention,
    statistics: Iterable[str] | str | None = None,
    spans: Mapping[str, Tensor] | None = None,
    queries: Sequence[int] | Tensor | None = None,
    elements: int | None = None,
    backend: str | None = None,
) -> xr.Dataset:
    """Statistics of one layer as a Dataset without a layer dimension; parameters as of :func:`take`.

    Returns
    -------
    xarray.Dataset
        One variable a statistic, with attrs units, long_name, definition; "averaged_over" where it is a mean, and
        "why" where standard attention leaves NaN. Coordinates: head, query and key sets by name.
    """
    with Workers() as workers:
        return dataset([take(layer, statistics, spans, queries, elements=elements, workers=workers, backend=backend)])


def take(
    layer: LayerAttention,
    statistics: Iterable[str] | str | None = None,
    spans: Mapping[str, Tensor] | None = None,
    queries: Sequence[int] | Tensor | None = None,
    weights: Tensor | None = None,
    elements: int | None = None,
    workers: Workers | None = None,
    progress: Callable[[float], None] | None = None,
    backend: str | None = None,
) -> Measured:
    """Statistics of one layer.

    Parameters
    ----------
    layer : LayerAttention
        With a batch of one.
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
        one head. By default what is fastest on the device.
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
    how = {"elements": elements, "workers": workers, "progress": progress, "backend": backend}
    return take_all([layer], statistics, spans, queries, weights, **how)[0]


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
    """The same of several layers of one prompt; what is by head is taken of all together where they are alike."""
    chosen, workers = select(statistics), workers or Workers(1)
    found: list[dict[str, Tensor]] = [{} for _ in layers]
    said: dict[str, dict] = {}
    requests = [
        Request(layer, _checked_spans(layer, spans or {"sink": [0]}), _checked_queries(layer, queries), weights)
        for layer in layers
    ]
    if len(layers) > 1 and together.alike(layers):
        by_head = [statistic for statistic in chosen if statistic.collector in BY_HEAD]
        values, said = _of_rows(
            replace(requests[0], layer=together.joined(layers)), by_head, elements, workers, progress, backend
        )
        heads = layers[0].n_heads
        for number, of_layer in enumerate(found):
            of_layer.update({name: x[number * heads : (number + 1) * heads] for name, x in values.items()})
        rest = [statistic for statistic in chosen if statistic.name not in values]
    else:
        rest = chosen
    for request, of_layer in zip(requests, found):
        of_layer.update({statistic.name: statistic.compute(request) for statistic in rest if statistic.compute})
        streamed = [statistic for statistic in rest if statistic.collector]
        values, more = _of_rows(request, streamed, elements, workers, progress, backend)
        of_layer.update(values)
        said |= more | {statistic.name: statistic.note(request) for statistic in rest if statistic.note}
    dims = {dim for statistic in chosen for dim in statistic.dims}
    return [
        Measured(
            {statistic.name: of_layer[statistic.name].cpu().numpy() for statistic in chosen},
            {statistic.name: _attrs(statistic, request.layer) | said.get(statistic.name, {}) for statistic in chosen},
            _coordinates(request, dims),
        )
        for request, of_layer in zip(requests, found)
    ]


def dataset(measured: Sequence[Measured], layers: Sequence[int] | None = None) -> xr.Dataset:
    """One Dataset of one layer, or of several along a dimension ``layer``.

    Layers may differ in their number of heads: what a layer does not have is NaN there. What a Dataset says of a statistic is
    what it says of the first layer.
    """
    first, coords = measured[0], {}
    for one in measured:
        coords |= {dim: values for dim, values in one.coords.items() if len(values) > len(coords.get(dim, ()))}
    variables = {}
    for name, attrs in first.attrs.items():
        dims = STATISTICS[name].dims
        values = [one.values[name] for one in measured]
        if layers is None:
            variables[name] = (dims, values[0], attrs)
        else:
            variables[name] = (("layer", *dims), _stacked(values), attrs)
    coords = {dim: (dim, values) for dim, values in coords.items()}
    return xr.Dataset(variables, coords if layers is None else {"layer": list(layers), **coords})


def _stacked(values: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays as one, each filled up with NaN to the size of the largest."""
    shape = np.max([array.shape for array in values], axis=0)
    if all(array.shape == tuple(shape) for array in values):
        return np.stack(values)
    out = np.full((len(values), *shape), np.nan, dtype=values[0].dtype)
    for place, array in zip(out, values):
        place[tuple(map(slice, array.shape))] = array
    return out


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


def _places(request: Request, all_heads: bool, elements: int | None) -> Iterator[Place]:
    """The blocks that a request is cut into: queries in ascending order, so that neighbours see about the same keys."""
    layer = request.layer
    width = layer.n_keys if layer.mask.window is None else min(layer.n_keys, layer.mask.window + LEAST_ROWS)
    least, most = (1, layer.n_queries) if elements else (LEAST_ROWS, max(2 * LEAST_ROWS, layer.n_queries // FEWEST_BLOCKS))
    elements = elements or _elements(layer)
    heads = layer.n_heads if all_heads else max(1, min(layer.n_heads, elements // (2 * LEAST_ROWS * width)))
    rows = max(least, min(most, elements // (heads * width)))
    order = request.queries.argsort(stable=True)
    in_order = bool((request.queries.diff() >= 0).all())
    for start in range(0, len(order), rows):
        at = slice(start, min(start + rows, len(order)))
        for head in range(0, layer.n_heads, heads):
            yield Place(range(head, min(head + heads, layer.n_heads)), at if in_order else order[at])


def seconds(
    layer: LayerAttention, names: Sequence[str], spans, queries: Tensor | None, workers: Workers, backend: str | None
) -> float:
    """How long :func:`take` will need, judged by a few of the queries; without what is made of whole maps."""
    names = [name for name in names if STATISTICS[name].collector]
    queries = _checked_queries(layer, queries)
    some = queries.sort().values[-PROBED * LEAST_ROWS * workers.count :]
    start = time.perf_counter()
    take(layer, names, spans, some, workers=workers, backend=backend)
    took = time.perf_counter() - start
    n, of_some = (layer.mask.counts(these, layer.n_keys, layer.n_keys - layer.n_queries).sum() for these in (queries, some))
    return took * float(n / of_some.clamp_min(1))


def bytes_of(statistics: Iterable[Statistic], layer: LayerAttention, rows: int, spans: int) -> int:
    """Memory of the results of one layer."""
    sizes = {name: len(labels) for name, labels in LABELS.items()}
    sizes |= {"head": layer.n_heads, "other_head": layer.n_heads, "query": rows, "span": spans}
    values = sum(math.prod(sizes[dim] for dim in statistic.dims) for statistic in statistics)
    return values * layer.dtype.itemsize


def bytes_of_block(layer: LayerAttention, rows: int) -> int:
    """Memory that one thread works in: scores, A1, A2, |D|, D, and for three maps a pass and the sorted rows."""
    most = max(_elements(layer), LEAST_ROWS * layer.n_keys)
    return 11 * min(most, layer.n_heads * rows * layer.n_keys) * layer.dtype.itemsize


def _elements(layer: LayerAttention) -> int:
    return ELEMENTS.get(layer.q.device.type, ELEMENTS["cpu"]) * 4 // layer.dtype.itemsize


def _attrs(statistic: Statistic, layer: LayerAttention) -> dict[str, str]:
    attrs = {"units": statistic.units, "long_name": statistic.description, "definition": statistic.definition}
    if statistic.name in AVERAGED:
        attrs["averaged_over"] = AVERAGED[statistic.name]
    if not layer.differential and (why := _why(statistic)):
        attrs["why"] = why
    if "ranked_map" in statistic.dims and layer.differential:
        scalar = layer.lam.shape[-1] == 1
        attrs["lambda"] = "one value a head, cancels in the rank of noise" if scalar else "by token, does not cancel"
    return attrs


def _why(statistic: Statistic) -> str | None:
    if "map" in statistic.dims:
        return "standard attention has no second map: A2 is NaN and D is A1"
    if "ranked_map" in statistic.dims:
        return "standard attention has no second map: noise is NaN and D is A1"
    if statistic.kind == "branch" or statistic.name in ("lambda", "cmrr"):
        return "standard attention has no second map and no lambda"
    return None


def _coordinates(request: Request, dims: set[str]) -> dict[str, list]:
    heads = range(request.layer.n_heads)
    labels = {
        **LABELS,
        "head": heads,
        "other_head": heads,
        "query": request.queries.cpu().numpy(),
        "span": list(request.spans),
    }
    return {dim: list(values) for dim, values in labels.items() if dim in dims}


def _checked_queries(layer: LayerAttention, queries: Sequence[int] | Tensor | None) -> Tensor:
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
