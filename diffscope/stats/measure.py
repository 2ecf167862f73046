"""Measure statistics: of a layer, and of all layers of some prompts as a model runs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from diffscope.attention import stacking
from diffscope.attention.blocks import Block, Workers, block_size, stream
from diffscope.attention.components import Rows
from diffscope.attention.layer import LayerAttention
from diffscope.attention.memory import free_memory
from diffscope.attention.precision import without_autocast
from diffscope.errors import DiffscopeError, InsufficientMemory, MeasurementInterrupted, SpanError
from diffscope.prompts.encoded import Encoded
from diffscope.prompts.selection import query_positions, token_positions
from diffscope.render import size_in_words
from diffscope.stats import backends
from diffscope.stats.backends import Backend
from diffscope.stats.collect import BlockRows, Quantity, Request, Where
from diffscope.stats.dataset import Measured, along_prompts, attributes, coordinates, dataset, with_outliers
from diffscope.stats.ranks.statistic import bytes_of_estimates
from diffscope.stats.registry import LABELS, select
from diffscope.stats.rows import MOMENTS
from diffscope.stats.sample import STRATUM, WEIGHT, QuerySample
from diffscope.stats.statistic import Statistic

MAX_JOINT_BYTES = 2**25  # of queries, keys and values: layers are measured together up to that

Queries = str | slice | Sequence[int] | Tensor | QuerySample | None


def measure_layer(
    layer: LayerAttention,
    statistics: Iterable[str] | str | None = None,
    *,
    spans: Mapping[str, Tensor] | None = None,
    queries: Sequence[int] | Tensor | None = None,
    backend: Backend | None = None,
) -> xr.Dataset:
    """Measure statistics of one layer.

    Parameters
    ----------
    layer : LayerAttention
        Of one prompt.
    statistics : str or sequence of str, optional
        Names or groups from ``diffscope.stats.STATISTICS``; by default the row statistics.
    spans : mapping of str to int tensor (position,), optional
        Key sets by name, negative positions counted from the last key; by default ``sink``, the first key.
    queries : sequence of int, or int tensor, optional
        Which rows to measure, negative ones counted from the last; by default all.
    backend : {"blocks", "triton"}, optional
        What computes row statistics; by default triton on CUDA if it serves the layer, else blocks.

    Returns
    -------
    xarray.Dataset
        One variable a statistic, with attrs units, long_name, definition, averaged ("mean", "median" or "not"); "averaged_over"
        if it is a mean already, and "why" if standard attention leaves NaN. Coordinates: head, query and key sets by name.

    Raises
    ------
    UnknownStatistic
        There is no such statistic or group.
    SpanError
        A span is not among the keys, or names one twice.
    DiffscopeError
        There is no such query or back end, or the layer has one map and a gain, for which D is not defined.
    """
    chosen = select(statistics)
    requests = requests_of([layer], spans or {"sink": torch.tensor([0])}, queries, None)
    with Workers() as workers:
        measured = measure_layers(requests, chosen, workers, backend=backend)
    return dataset(measured, chosen)


def requests_of(
    layers: Sequence[LayerAttention],
    spans: Mapping[str, Tensor],
    queries: Sequence[int] | Tensor | None,
    weights: Tensor | None,
) -> list[Request]:
    """Return a request of each of several layers of one prompt, or refuse key sets and queries that are outside of it."""
    device, rows, keys = layers[0].q.device, layers[0].n_queries, min(layer.n_keys for layer in layers)
    key_sets = {name: _key_set(name, positions, keys).to(device) for name, positions in spans.items()}
    chosen = query_positions(queries, {}, rows).to(device)
    return [Request(layer, key_sets, chosen, weights) for layer in layers]


def _key_set(name: str, positions: Sequence[int] | Tensor, keys: int) -> Tensor:
    """Return the positions of a span among the keys of a prompt, int64 (position,); raise SpanError if they are none."""
    try:
        found = token_positions(positions, {}, keys, "keys")
    except DiffscopeError as error:
        raise SpanError(f"span {name!r}: {error}") from None
    if len(found.unique()) < len(found):
        raise SpanError(f"span {name!r} names a position twice; name each once")
    return found


@torch.no_grad()
@without_autocast()
def measure_layers(
    requests: Sequence[Request],
    statistics: Sequence[Statistic],
    workers: Workers | None = None,
    *,
    progress: Callable[[float], None] | None = None,
    backend: Backend | None = None,
) -> list[Measured]:
    """Measure statistics of several layers; those by head of all layers side by side, if they can be stacked.

    Requests are of layers with a batch of one, all of the same prompt, or of prompts with the same spans and queries. `progress`
    is called after every block with the share of them that is done. `backend` computes row statistics
    (:mod:`diffscope.stats.backends`), by default the fastest for the layer; everything else comes from blocks of rows.
    Raises DiffscopeError if a layer has one map and a gain, for which D is not defined.
    """
    layers = [request.layer for request in requests]
    for layer in layers:
        if not layer.differential and not (layer.gain == 1).all():
            raise DiffscopeError(f"layer {layer.layer} has one map and a gain, and what its D would be is not defined here")
    dims = {dim for statistic in statistics for dim in statistic.dims}
    measured = [
        Measured({}, {each.name: attributes(each, request.layer) for each in statistics}, coordinates(request, dims))
        for request in requests
    ]
    stacked = len(layers) > 1 and stacking.can_stack(layers, outputs=False)
    joint = [each for each in statistics if stacked and each.by_head]
    single = [each for each in statistics if each not in joint]
    passes = [(replace(requests[0], layer=stacking.stack(layers, outputs=False)), joint, measured)] if joint else []
    passes += [(request, single, [of_layer]) for request, of_layer in zip(requests, measured)] if single else []
    for done, (request, some, results) in enumerate(passes):
        # The back end is that of a layer by itself, so that its numbers do not depend on the layers measured with it.
        layer = layers[0] if results is measured else request.layer
        rows = any(each.kind == "row" for each in some)
        report = (lambda share, done=done: progress((done + share) / len(passes))) if progress else None
        values, notes = _computed(request, some, backends.chosen(layer, backend, rows), workers or Workers(1), report)
        arrays = {name: x.cpu().numpy() for name, x in values.items()}
        for number, result in enumerate(results):
            heads = slice(number * layer.n_heads, (number + 1) * layer.n_heads) if len(results) > 1 else ...
            result.values.update((name, array[heads]) for name, array in arrays.items())
            for name, note in notes.items():
                result.attrs[name].update(note)
    return measured


def _computed(
    request: Request,
    statistics: Sequence[Statistic],
    backend: Backend,
    workers: Workers,
    progress: Callable[[float], None] | None,
) -> tuple[dict[str, Tensor], dict[str, dict]]:
    """Compute statistics of one layer: rows by kernels or in blocks, what has a quantity in blocks, the rest from the layer.

    Returned are the values, and the attributes of statistics that their declarations do not have, both by name.
    """
    rows = [each for each in statistics if each.kind == "row" and backend != "blocks"]
    values, notes = backends.row_statistics(request, rows) if rows else ({}, {})
    values |= {each.name: each.function(request) for each in statistics if each.quantity is None}
    notes |= {each.name: each.notes(request) for each in statistics if each.notes}
    by_quantity: dict[Quantity, list[Statistic]] = {}
    for each in statistics:
        if each.quantity is not None and each not in rows:
            by_quantity.setdefault(each.quantity, []).append(each)
    if not by_quantity:
        return values, notes
    wanted = {name for quantity in by_quantity for name in quantity.moments}
    wanted |= {name for each in by_quantity.get(MOMENTS, ()) for name in each.needs}

    def of_block(block: Block, rows: Rows) -> tuple[Where, list[Tensor]]:
        shared = BlockRows(request, block, rows, wanted)
        return shared.where, [quantity.of_block(shared, some) for quantity, some in by_quantity.items()]

    all_heads = any(quantity.all_heads for quantity in by_quantity)
    how: dict[str, Any] = {"all_heads": all_heads, "workers": workers, "progress": progress}
    collected: list[Any] = [None] * len(by_quantity)
    for _, (where, of_quantities) in stream(request.layer, request.queries, of_block, **how):
        collected = [quantity.reduce(so_far, new, where) for quantity, so_far, new in zip(by_quantity, collected, of_quantities)]
    for (quantity, some), whole in zip(by_quantity.items(), collected):
        if quantity.finish:
            values |= quantity.finish(whole, some, request)
        else:
            values |= {each.name: each.function(whole, request) for each in some}
    return values, notes


class MeasurementRun:
    """Measure every layer of some prompts, one layer after another.

    Parameters
    ----------
    prompts : sequence of Encoded
    statistics, queries, backend
        As of :meth:`diffscope.Capture.measure`.
    n_layers : int
        How many layers will come.
    progress : callable, optional
        Called with (done, total) in layers of a prompt; within long ones `done` is a fraction.
    key_prompts : sequence of Encoded, optional
        What cross-attention looks at, whose spans are the key sets; by default the prompts.

    Raises
    ------
    InsufficientMemory
        From the first layer on: the results would fill the memory that is free.
    """

    def __init__(
        self,
        prompts: Sequence[Encoded],
        statistics: Iterable[str] | str | None,
        queries: Queries,
        n_layers: int,
        progress: Callable[[float, int], object] | None = None,
        backend: Backend | None = None,
        key_prompts: Sequence[Encoded] | None = None,
    ):
        self.statistics = select(statistics)
        self.of_cross = key_prompts is not None
        of_queries = [prompt.key_sets() for prompt in prompts]
        self.key_sets = of_queries if key_prompts is None else [prompt.key_sets() for prompt in key_prompts]
        lengths = [len(prompt.ids) for prompt in prompts]
        self.sample = None  # of the queries; None if all of them, or chosen ones, are measured
        self.sampled = ""  # the sample in words
        if isinstance(queries, QuerySample):
            if len(set(lengths)) > 1:
                raise DiffscopeError("a sample of queries needs prompts of one length; measure them one by one")
            self.sample = queries.draw(lengths[0])
            self.sampled = f"{queries.rows} of {lengths[0]} queries, stratified, seed {queries.seed}"
            queries = self.sample and self.sample.queries
        self.queries = [token_positions(queries, spans, n) for spans, n in zip(of_queries, lengths)]
        if len(prompts) > 1 and any(len(rows.unique()) < len(rows) for rows in self.queries):
            raise DiffscopeError("some queries are the same token of a prompt; in a batch, name each once")
        self.backend = backend
        self.progress = progress
        self.outliers = any(each.name == "logit_outliers" for each in self.statistics)  # shown with the layers' outputs'
        self.measured: list[list[Measured]] = [[] for _ in prompts]  # of each prompt, layer by layer
        self.layers: list[int] = []
        self.total = n_layers * len(prompts)
        self._waiting: list[LayerAttention] = []
        self._waiting_bytes = 0  # of their queries, keys and values
        self._slow = any(statistic.kind == "rank" for statistic in self.statistics)
        self._reached = 0.0  # layers of a prompt that are done
        self._reported = 0.0  # layers of a prompt last reported to `progress`

    def add(self, layer: LayerAttention, workers: Workers) -> None:
        """Measure one layer of every prompt; small ones wait for a few more, and :meth:`finish`."""
        if (layer.kind == "cross") != self.of_cross:
            raise DiffscopeError(f"layer {layer.layer} is of the kind {layer.kind!r}, which is measured of a capture alone")
        self._waiting.append(layer)
        self._waiting_bytes += layer.q.nbytes + layer.k.nbytes + layer.v.nbytes
        # Ranks are computed layer by layer anyhow, and take long.
        if self._slow or self._waiting_bytes >= MAX_JOINT_BYTES:
            self.finish(workers)

    def finish(self, workers: Workers) -> None:
        """Measure the layers that wait.

        On KeyboardInterrupt the layers already reported as done are measured again, so that only complete layers are kept.
        """
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            self._measure(waiting, workers)
        except KeyboardInterrupt:
            done = int(self._reported / len(self.measured)) - len(self.layers)
            self.progress = None
            if done > 0:
                self._measure(waiting[:done], workers)
            raise
        self._waiting_bytes = 0

    def interrupted(self, interrupt: KeyboardInterrupt, result: Callable[..., xr.Dataset]) -> KeyboardInterrupt:
        """Return MeasurementInterrupted with the finished layers, or the original interrupt if no layer is finished.

        `result` makes a dataset of what is measured, with attributes given by name.
        """
        self.progress = None
        with Workers() as workers:
            self.finish(workers)  # what had been read already
        if not self.layers:
            return interrupt
        return MeasurementInterrupted(result(stopped=f"after {len(self.layers)} of {self.total // len(self.measured)} layers"))

    def _measure(self, waiting: list[LayerAttention], workers: Workers) -> None:
        """Measure some layers of every prompt; they count when all of it is done.

        Rows are measured at once of prompts that are as long and of the same queries, unless that would take too much memory.
        """
        weights = None if self.sample is None else self.sample.weight.to(waiting[0].q.device)
        requests = [
            requests_of([layer.prompt(number) for layer in waiting], spans, queries, weights)
            for number, (spans, queries) in enumerate(zip(self.key_sets, self.queries))
        ]
        if not self.layers:
            self._check_memory(requests[0][0], workers)
        alike = all(torch.equal(queries, self.queries[0]) for queries in self.queries[1:]) and len(set(waiting[0].lengths)) == 1
        joint = len(requests) > 1 and alike and self._waiting_bytes <= 2 * MAX_JOINT_BYTES
        rows = [each for each in self.statistics if joint and each.kind == "row"]
        others = [each for each in self.statistics if each not in rows]
        passes = [(0, list(chain(*requests)), rows)] if rows else []
        passes += [(number, of_prompt, others) for number, of_prompt in enumerate(requests)] if others else []
        results = [Measured({}, {}, {}) for _ in chain(*requests)]
        for number, some, statistics in passes:
            share = len(some) * len(statistics) / len(self.statistics)
            report = partial(self._report, share)
            measured = measure_layers(some, statistics, workers, progress=report, backend=self.backend)
            for result, more in zip(results[number * len(waiting) :], measured):
                result.values.update(more.values)
                result.attrs.update(more.attrs)
                result.coords.update(more.coords)
            self._report(share, 1)
            self._reached += share
        for number, so_far in enumerate(self.measured):
            so_far += results[number * len(waiting) : (number + 1) * len(waiting)]
        self.layers += [layer.layer for layer in waiting]

    def _report(self, share: float, done: float) -> None:
        """Report that some of the next `share` of a layer, or layers, is done besides what was before."""
        self._reported = self._reached + share * done
        if self.progress:  # a model may run a layer more often than it has modules
            self.progress(round(self._reported, 6), max(self.total, round(self._reported)))

    def _check_memory(self, request: Request, workers: Workers) -> None:
        """Refuse results that will not fit into memory, judged by a layer of the first prompt."""
        layer, rows = request.layer, len(request.queries)
        sizes = {name: len(labels) for name, labels in LABELS.items()}
        sizes |= {"head": layer.n_heads, "other_head": layer.n_heads, "query": rows, "span": len(request.spans)}
        values = sum(math.prod(sizes[dim] for dim in statistic.dims) for statistic in self.statistics)
        all_heads = any(statistic.quantity.all_heads for statistic in self.statistics if statistic.quantity)
        heads, of_block = block_size(layer, all_heads=all_heads)
        block = heads * min(of_block, rows) * layer.n_keys
        # Stacked, results are there twice; a thread holds eight times a block: scores, A1, A2, |D|, D, a pass over three maps.
        need = (2 * self.total * values + workers.count * 8 * block) * layer.dtype.itemsize
        need += bytes_of_estimates(layer) if self._slow else 0
        free = free_memory(torch.device("cpu"))
        if need > free:
            raise InsufficientMemory(
                f"the statistics of {rows} queries, {layer.n_heads} heads and {self.total} layers need {size_in_words(need)} and "
                f"{size_in_words(free)} are free; ask for fewer, or for a sample of queries: queries=diffscope.QuerySample(512)"
            )

    def dataset(self, outliers: np.ndarray | None, facts: dict, batch: bool) -> xr.Dataset:
        """Return one dataset of what was measured of the layers that came, with facts as attributes; of a batch along ``prompt``.

        `outliers` (layer, prompt, outlier) are of the decoder layers' outputs, if they are known; shown with those of the logits.
        """
        prompts = [dataset(of_layers, self.statistics, self.layers) for of_layers in self.measured]
        joined = along_prompts(prompts) if batch else prompts[0]
        if outliers is not None and self.outliers:
            outliers = outliers[: len(self.layers)]
            joined = with_outliers(joined, np.moveaxis(outliers, 1, 0) if batch else outliers[:, 0])
        if self.sample is not None:
            facts = {**facts, "sampled": self.sampled}
            if "query" in joined.dims:
                labels = {STRATUM: ("query", self.sample.stratum.numpy()), WEIGHT: ("query", self.sample.weight.numpy())}
                joined = joined.assign_coords(labels)
        joined.attrs.update(facts)
        return joined
