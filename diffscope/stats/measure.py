"""Measure statistics: of a layer, and of all layers of some prompts as a model runs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from diffscope.attention import stacking
from diffscope.attention.blocks import Workers, block_size
from diffscope.attention.layer import LayerAttention
from diffscope.attention.memory import free_memory
from diffscope.attention.precision import without_autocast
from diffscope.errors import DiffscopeError, InsufficientMemory, MeasurementInterrupted, SpanError
from diffscope.prompts.encoded import Encoded
from diffscope.prompts.selection import is_last, token_positions
from diffscope.render import size_in_words
from diffscope.stats import backends
from diffscope.stats.backends import Backend
from diffscope.stats.collect import Request, collect
from diffscope.stats.dataset import Measured, along_prompts, attributes, coordinates, dataset, with_outliers
from diffscope.stats.ranks.statistic import bytes_of_estimates
from diffscope.stats.registry import LABELS, select
from diffscope.stats.rows import error_bound, needed, statistics_of
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
    weights: Tensor | None = None,
    elements: int | None = None,
    progress: Callable[[float], None] | None = None,
    backend: Backend | None = None,
) -> xr.Dataset:
    """Measure statistics of one layer.

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
        if it is a mean already, and "why" if standard attention leaves NaN. Coordinates: head, query and key sets by name.

    Raises
    ------
    UnknownStatistic, SpanError, MapTooLarge, DiffscopeError
    """
    with Workers() as workers:
        how = {"spans": spans, "queries": queries, "weights": weights, "elements": elements, "backend": backend}
        measured = measure_layers([layer], statistics, workers=workers, progress=progress, **how)  # type: ignore[arg-type]
    return dataset(measured, select(statistics))


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
    """Measure statistics of several layers; those by head of all layers side by side, if they can be stacked.

    Parameters
    ----------
    layers : sequence of LayerAttention
        Each with a batch of one, all of the same prompt, or of prompts with the same spans and queries.
    statistics : iterable of str, optional
        Names from ``STATISTICS`` or ``KINDS``; by default the kind "row".
    spans : mapping of str to LongTensor, optional
        Key sets by name; by default "sink" alone, the first key.
    queries : sequence of int or LongTensor, optional
        Query positions, by default all. Ranks always take the whole map.
    weights : Tensor (query,), optional
        How many queries each of `queries` stands for, if they are a sample; means over queries weight them so.
    elements : int, optional
        The largest number of (head, query, key) entries that a temporary may have, though it always has one row of
        one head, or of all if heads are compared. By default what is fastest on the device.
    workers : Workers, optional
        By default the calling thread alone.
    progress : callable, optional
        Called after every block with the share of them that is done.
    backend : {"blocks", "triton"}, optional
        What computes row statistics: :mod:`diffscope.stats.backends`; by default the fastest for the layer.
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
    requests = [_request(layer, spans or {"sink": torch.tensor([0])}, queries, weights) for layer in layers]
    joint = [each for each in chosen if each.by_head] if len(layers) > 1 and stacking.can_stack(layers, outputs=False) else []
    single = [each for each in chosen if each not in joint]
    # The back end is that of a layer by itself, so that its numbers do not depend on the layers measured with it.
    passes = [(layer, request, single) for layer, request in zip(layers, requests)] if single else []
    if joint:
        stacked = replace(requests[0], layer=stacking.stack(layers, outputs=False))
        passes.insert(0, (layers[0], stacked, joint))
    computed = []
    for done, (layer, request, some) in enumerate(passes):
        by_rows = any(each.kind == "row" for each in some) and not (elements and backend is None)
        chosen_backend = backends.chosen(layer, backend) if by_rows else "blocks"
        report = (lambda share, done=done: progress((done + share) / len(passes))) if progress else None
        computed.append(_computed(request, some, chosen_backend, elements, workers or Workers(1), report))
    results: list[_Results] = [({}, {}) for _ in layers]
    if joint:
        values, attrs = computed.pop(0)
        heads = [slice(number * layer.n_heads, (number + 1) * layer.n_heads) for number, layer in enumerate(layers)]
        results = [({name: x[of_layer] for name, x in values.items()}, dict(attrs)) for of_layer in heads]
    for (values, attrs), (more_values, more_attrs) in zip(results, computed):
        values |= more_values
        attrs |= more_attrs
    dims = {dim for statistic in chosen for dim in statistic.dims}
    return [
        Measured(
            {each.name: values[each.name].cpu().numpy() for each in chosen},
            {each.name: attributes(each, layer) | attrs.get(each.name, {}) for each in chosen},
            coordinates(request, dims),
        )
        for layer, request, (values, attrs) in zip(layers, requests, results)
    ]


_Results = tuple[dict[str, Tensor], dict[str, dict]]  # values, and attributes besides those of the declaration; by name


def _computed(
    request: Request,
    statistics: Sequence[Statistic],
    backend: Backend,
    elements: int | None,
    workers: Workers,
    progress: Callable[[float], None] | None,
) -> _Results:
    """Compute statistics of one layer: rows by kernels or in blocks, what has a quantity in blocks, the rest from the layer."""
    values: dict[str, Tensor] = {}
    attrs: dict[str, dict] = {}
    rows = [each for each in statistics if each.kind == "row" and backend != "blocks"]
    if rows:
        moments, widths = backends.row_moments(request.layer, request.queries, set(needed(rows)))
        values |= statistics_of(moments, rows, request)
        for each in rows:
            bound = error_bound(each, moments, widths, request)
            attrs[each.name] = {"backend": backend} | ({} if bound is None else {"error_bound": bound})
    values |= {each.name: each.function(request) for each in statistics if each.quantity is None}
    values |= collect(request, [each for each in statistics if each not in rows], elements, workers, progress)
    return values, attrs | {each.name: each.notes(request) for each in statistics if each.notes}


def _request(
    layer: LayerAttention, spans: Mapping[str, Tensor], queries: Sequence[int] | Tensor | None, weights: Tensor | None
) -> Request:
    if not layer.differential and not (layer.gain == 1).all():
        raise DiffscopeError(f"layer {layer.layer} has one map and a gain, and what its D would be is not defined here")
    device = layer.q.device
    key_sets = {name: torch.as_tensor(keys, dtype=torch.int64, device=device) for name, keys in spans.items()}
    for name, keys in key_sets.items():
        if len(keys) and (int(keys.min()) < 0 or int(keys.max()) >= layer.n_keys):
            raise SpanError(f"span {name!r} reaches outside of the prompt; its positions go from 0 to {layer.n_keys - 1}")
    if queries is None:
        return Request(layer, key_sets, torch.arange(layer.n_queries, device=device), weights)
    positions = torch.as_tensor(queries, dtype=torch.int64, device=device)
    if not len(positions):
        raise DiffscopeError("no query was chosen; give at least one position")
    outside = positions[(positions < 0) | (positions >= layer.n_queries)]
    if len(outside):
        raise DiffscopeError(f"query {int(outside[0])} is outside of the prompt; choose from 0 to {layer.n_queries - 1}")
    return Request(layer, key_sets, positions, weights)


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
    ):
        self.prompts = prompts
        self.statistics = select(statistics)
        # The same of every prompt, whatever its spans, so that prompts can be measured together.
        self.queries = [-1] if is_last(queries, *(prompt.spans for prompt in prompts)) else queries
        self.sample = None  # of the queries; None if all of them, or chosen ones, are measured
        if isinstance(queries, QuerySample):
            lengths = {len(prompt.ids) for prompt in prompts}
            if len(lengths) > 1:
                raise DiffscopeError("a sample of queries needs prompts of one length; measure them one by one")
            self.sample = queries.draw(*lengths)
        self.backend = backend
        self.progress = progress
        self.outliers = any(
            statistic.name == "logit_outliers" for statistic in self.statistics
        )  # shown with the layers' outputs'
        self.measured: list[list[Measured]] = [[] for _ in prompts]
        self.layers: list[int] = []
        self.total = n_layers * len(prompts)
        self._waiting: list[LayerAttention] = []
        self._slow = any(statistic.kind == "rank" for statistic in self.statistics)
        self._reached = 0.0  # layers of a prompt that are done
        self._reported = 0.0  # layers of a prompt last reported to `progress`

    def add(self, layer: LayerAttention, workers: Workers) -> None:
        """Measure one layer of every prompt; small ones wait for a few more, and :meth:`finish`."""
        self._waiting.append(layer)
        # Ranks are computed layer by layer anyhow, and take long.
        if self._slow or _nbytes(self._waiting) >= MAX_JOINT_BYTES:
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
            done = int(self._reported / len(self.prompts)) - len(self.layers)
            self.progress = None
            if done > 0:
                self._measure(waiting[:done], workers)
            raise

    def interrupted(self, interrupt: KeyboardInterrupt, result: Callable[..., xr.Dataset]) -> KeyboardInterrupt:
        """Return MeasurementInterrupted with the finished layers, or the original interrupt if no layer is finished.

        Parameters
        ----------
        interrupt : KeyboardInterrupt
        result : callable
            Makes a dataset of what is measured, with attributes given by name.
        """
        self.progress = None
        with Workers() as workers:
            self.finish(workers)  # what had been read already
        if not self.layers:
            return interrupt
        return MeasurementInterrupted(result(stopped=f"after {len(self.layers)} of {self.total // len(self.prompts)} layers"))

    def _measure(self, waiting: list[LayerAttention], workers: Workers) -> None:
        """Measure some layers of every prompt; they count when all of it is done.

        Rows are measured at once of prompts that are as long and of the same queries, unless that would take too much memory.
        """
        layers = [[layer.prompt(number) for layer in waiting] for number in range(len(self.prompts))]
        key_sets = [prompt.key_sets(waiting[0].q.device) for prompt in self.prompts]
        queries = [self._positions(of_prompt[0], spans) for of_prompt, spans in zip(layers, key_sets)]
        weights = None if self.sample is None else self.sample.weight.to(waiting[0].q.device)
        if not self.layers:
            self._check_memory(layers[0][0], queries[0], len(key_sets[0]), workers)
        several = len(layers) > 1 and len({of_prompt[0].n_queries for of_prompt in layers}) == 1
        joint = several and not isinstance(self.queries, str) and _nbytes(waiting) <= 2 * MAX_JOINT_BYTES
        rows = [statistic for statistic in self.statistics if joint and statistic.kind == "row"]
        others = [statistic for statistic in self.statistics if statistic not in rows]
        passes = [(0, list(chain(*layers)), rows)] if rows else []
        passes += [(number, of_prompt, others) for number, of_prompt in enumerate(layers)] if others else []
        results = [Measured({}, {}, {}) for _ in chain(*layers)]
        for number, some, statistics in passes:
            share = len(some) * len(statistics) / len(self.statistics)
            measured = measure_layers(
                some,
                [statistic.name for statistic in statistics],
                spans=key_sets[number],
                queries=queries[number],
                weights=weights,
                workers=workers,
                progress=partial(self._report, share),
                backend=self.backend,
            )
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

    def _check_memory(self, layer: LayerAttention, queries: Tensor | None, spans: int, workers: Workers) -> None:
        """Refuse results that will not fit into memory, judged by a layer of the first prompt."""
        rows = layer.n_queries if queries is None else len(queries)
        sizes = {name: len(labels) for name, labels in LABELS.items()}
        sizes |= {"head": layer.n_heads, "other_head": layer.n_heads, "query": rows, "span": spans}
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

    def _positions(self, layer: LayerAttention, key_sets: Mapping[str, Tensor]) -> Tensor | None:
        """Return the queries to measure, (query,); None for all of them."""
        if self.queries is None or isinstance(self.queries, QuerySample):
            return None if self.sample is None else self.sample.queries
        rows = token_positions(self.queries, key_sets, layer.n_queries)
        if len(self.prompts) > 1 and len(rows.unique()) < len(rows):
            raise DiffscopeError("some queries are the same token of a prompt; in a batch, name each once")
        return rows

    def dataset(self, outliers: np.ndarray | None, facts: dict, batch: bool) -> xr.Dataset:
        """Return one dataset of what was measured of the layers that came.

        Parameters
        ----------
        outliers : ndarray, (layer, prompt, outlier), or None
            Of the decoder layers' outputs, if they are known; shown with those of the logits.
        facts : dict
            Kept as attributes.
        batch : bool
            Whether there is a leading ``prompt`` dimension.
        """
        prompts = [dataset(of_layers, self.statistics, self.layers) for of_layers in self.measured]
        joined = along_prompts(prompts) if batch else prompts[0]
        if outliers is not None and self.outliers:
            outliers = outliers[: len(self.layers)]
            joined = with_outliers(joined, np.moveaxis(outliers, 1, 0) if batch else outliers[:, 0])
        if self.sample is not None and isinstance(self.queries, QuerySample):
            some, n = len(self.sample.queries), len(self.prompts[0].ids)
            facts = {**facts, "sampled": f"{some} of {n} queries, stratified, seed {self.queries.seed}"}
            if "query" in joined.dims:
                labels = {STRATUM: ("query", self.sample.stratum.numpy()), WEIGHT: ("query", self.sample.weight.numpy())}
                joined = joined.assign_coords(labels)
        joined.attrs.update(facts)
        return joined


def _nbytes(layers: Iterable[LayerAttention]) -> int:
    return sum(x.nbytes for layer in layers for x in (layer.q, layer.k, layer.v))
