"""From one layer's statistics to a labelled dataset of all layers and prompts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from diffscope.attention.blocks import Workers
from diffscope.attention.layer import LayerAttention
from diffscope.attention.memory import free_memory
from diffscope.errors import DiffscopeError, InsufficientMemory, MeasurementInterrupted
from diffscope.prompts.encoded import Encoded
from diffscope.prompts.selection import is_last, token_positions
from diffscope.stats import engine, forecast
from diffscope.stats.backends import Backend
from diffscope.stats.datasets import Measured, batch_dataset, dataset, united
from diffscope.stats.forecast import size_in_words, time_in_words
from diffscope.stats.formulas.outliers import LABELS
from diffscope.stats.sampling import STRATUM, WEIGHT, Drawn, QuerySample

WORTH_SAYING = 10.0  # seconds
AT_ONCE = 2**25  # bytes of queries, keys and values: layers are measured together up to that

Queries = str | slice | Sequence[int] | Tensor | QuerySample | None


class Measuring:
    """What is measured of every layer of some prompts, one layer after another.

    Parameters
    ----------
    prompts : sequence of Encoded
    statistics, queries, backend
        As of :meth:`diffscope.capture.capture.Capture.measure`.
    n_layers : int
        How many layers will come.
    progress : callable, optional
        Called with (done, total) in layers of a prompt; within long ones `done` is a fraction.
    announce : callable, optional
        Called with one line: what time and memory it will take, where that is known to be much.

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
        announce: Callable[[str], object] | None = None,
        backend: Backend | None = None,
    ):
        self.prompts = prompts
        # The same of every prompt, whatever its spans, so that prompts can be measured together.
        self.queries = [-1] if is_last(queries, *(prompt.spans for prompt in prompts)) else queries
        self.backend = backend
        self.progress = progress
        self.announce = announce
        self.chosen = engine.select(statistics)
        self.measured: list[list[Measured]] = [[] for _ in prompts]
        self.layers: list[int] = []
        self._waiting: list[LayerAttention] = []
        self._slow = any(statistic.kind == "map" for statistic in self.chosen)
        self._reached = 0.0  # layers of a prompt that are done
        self._told = 0.0  # of them, as far as anybody was told
        self.total = n_layers * len(prompts)
        if isinstance(queries, QuerySample) and len({len(prompt.ids) for prompt in prompts}) > 1:
            raise DiffscopeError("a sample of queries needs prompts of one length; measure them one by one")

    @property
    def done(self) -> int:
        return sum(map(len, self.measured))

    @property
    def outliers(self) -> bool:
        """Whether the decoder layers' outputs are asked for."""
        return any(statistic.name == "logit_outliers" for statistic in self.chosen)

    def add(self, layer: LayerAttention, workers: Workers) -> None:
        """Measure one layer of every prompt; small ones wait for a few more, and :meth:`finish`."""
        self._waiting.append(layer)
        # What is taken of whole maps is taken layer by layer anyhow, and takes long.
        if self._slow or sum(x.nbytes for each in self._waiting for x in (each.q, each.k, each.v)) >= AT_ONCE:
            self.finish(workers)

    def finish(self, workers: Workers) -> None:
        """Measure the layers that wait.

        An interrupt leaves whole layers: as many as were said to be done, which are measured again, in a fraction of a second.
        """
        waiting = self._waiting
        self._waiting = []
        if not waiting:
            return
        try:
            self._measure_all(waiting, workers)
        except KeyboardInterrupt:
            done = int(self._told / len(self.prompts)) - len(self.layers)
            self.progress = None
            if done > 0:
                self._measure_all(waiting[:done], workers)
            raise

    def stopped(self, interrupt: KeyboardInterrupt, result: Callable[..., xr.Dataset]) -> KeyboardInterrupt:
        """What an interrupt is to be raised as: with the layers that were finished, or, where none was, as it came.

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

    def _measure_all(self, waiting: list[LayerAttention], workers: Workers) -> None:
        """Measure some layers of every prompt; they count when all of it is done."""
        names = [statistic.name for statistic in self.chosen]
        by_row = [statistic.name for statistic in self.chosen if statistic.kind == "row"] if self._together(waiting) else []
        rest = [name for name in names if name not in by_row]
        if not self.done:
            self._look_ahead(waiting[0].prompt(0), names, workers)
        every = [layer.prompt(index) for index in range(len(self.prompts)) for layer in waiting]
        rows = self._measure(every, by_row, self.prompts[0], workers, len(by_row) / len(names)) if by_row else []
        taken: list[list[Measured]] = []
        for index, prompt in enumerate(self.prompts):
            of_layers = slice(index * len(waiting), (index + 1) * len(waiting))
            measured = self._measure(every[of_layers], rest, prompt, workers, len(rest) / len(names)) if rest else []
            parts = itertools.zip_longest(rows[of_layers], measured)
            taken.append([united([part for part in of_layer if part], names) for of_layer in parts])
        for of_prompt, more in zip(self.measured, taken):
            of_prompt += more
        self.layers += [layer.layer for layer in waiting]

    def _together(self, waiting: Sequence[LayerAttention]) -> bool:
        """Whether rows of several prompts can be measured at once: as long, of the same queries, not too much to hold twice."""
        lengths = {len(prompt.ids) for prompt in self.prompts}
        several = len(self.prompts) > 1 and len(lengths) == 1 and not isinstance(self.queries, str)
        return several and sum(x.nbytes for layer in waiting for x in (layer.q, layer.k, layer.v)) <= 2 * AT_ONCE

    def _measure(
        self, layers: list[LayerAttention], names: list[str], prompt: Encoded, workers: Workers, share: float
    ) -> list[Measured]:
        """Some statistics of layers, with the spans and queries of one prompt; they are a share of the work on these layers."""
        device = layers[0].q.device
        key_sets = prompt.key_sets(device)
        queries, drawn = self._queries(layers[0], key_sets)
        measured = engine.measure_layers(
            layers,
            names,
            spans=key_sets,
            queries=queries,
            weights=None if drawn is None else drawn.weight.to(device),
            workers=workers,
            progress=lambda part: self._tell(self._reached + len(layers) * share * part),
            backend=self.backend,
        )
        self._reached += len(layers) * share
        self._tell(self._reached)
        return measured

    def _tell(self, reached: float) -> None:
        """Say how many layers are done, which may be a fraction."""
        self._told = reached
        if self.progress:
            self.progress(
                round(reached, 6), max(self.total, round(reached))
            )  # a model may run a layer more often than it has modules

    def _look_ahead(self, layer: LayerAttention, names: list[str], workers: Workers) -> None:
        """Refuse what will not fit, and say how long it will take, by a layer of the first prompt."""
        key_sets = self.prompts[0].key_sets(layer.q.device)
        queries, _ = self._queries(layer, key_sets)
        rows = layer.n_queries if queries is None else len(queries)
        results = self.total * forecast.bytes_of(self.chosen, layer, rows, len(key_sets))
        need = 2 * results + forecast.bytes_at_work(self.chosen, layer, rows, workers.count)  # stacked, results are there twice
        free = free_memory(torch.device("cpu"))
        if need > free:
            raise InsufficientMemory(
                f"the statistics of {rows} queries, {layer.n_heads} heads and {self.total} layers need {size_in_words(need)} and "
                f"{size_in_words(free)} are free; ask for fewer, or for a sample of queries: queries=diffscope.QuerySample(512)"
            )
        if self.announce:
            seconds = self.total * forecast.seconds(layer, names, key_sets, queries, workers, self.backend)
            if seconds > WORTH_SAYING:
                ranks = ", and the ranks longer" if any(statistic.kind == "map" for statistic in self.chosen) else ""
                self.announce(
                    f"measuring will take about {time_in_words(seconds)} and {size_in_words(need)} besides the model{ranks}"
                )

    def _queries(self, layer: LayerAttention, key_sets: Mapping[str, Tensor]) -> tuple[Tensor | None, Drawn | None]:
        """The queries to measure, None for all of them, and the sample that they are."""
        if isinstance(self.queries, QuerySample):
            drawn = self.queries.draw(layer.n_queries)
            return (None if drawn is None else drawn.queries), drawn
        if self.queries is None:
            return None, None
        rows = token_positions(self.queries, key_sets, layer.n_queries)
        if len(self.prompts) > 1 and len(rows.unique()) < len(rows):
            raise DiffscopeError("some queries are the same token of a prompt; in a batch, name each once")
        return rows, None

    def dataset(self, outliers: np.ndarray | None, facts: dict, batch: bool) -> xr.Dataset:
        """One dataset of what was measured of the layers that came.

        Parameters
        ----------
        outliers : ndarray, (layer, prompt, outlier), or None
            Of the decoder layers' outputs, if they are known; kept beside those of the logits.
        facts : dict
            Kept as attributes.
        batch : bool
            Whether there is a leading ``prompt`` dimension.
        """
        complete = len(self.layers)
        joined = batch_dataset(self.measured, self.layers) if batch else dataset(self.measured[0], self.layers)
        if outliers is not None:
            joined = _with_outliers(joined, np.moveaxis(outliers[:complete], 1, 0) if batch else outliers[:complete, 0])
        n = len(self.prompts[0].ids)
        drawn = self.queries.draw(n) if isinstance(self.queries, QuerySample) else None
        if drawn is not None and isinstance(self.queries, QuerySample):
            facts = {**facts, "sampled": f"{len(drawn.queries)} of {n} queries, stratified, seed {self.queries.seed}"}
            labels = {STRATUM: ("query", drawn.stratum.numpy()), WEIGHT: ("query", drawn.weight.numpy())}
            joined = joined.assign_coords(labels if "query" in joined.dims else {})
        joined.attrs.update(facts)
        return joined


def _with_outliers(dataset: xr.Dataset, values: np.ndarray) -> xr.Dataset:
    if "logit_outliers" not in dataset:
        return dataset
    attrs = {"long_name": "largest magnitudes and median of the decoder layer's output", "units": "activation"}
    dims = ("prompt", "layer", "outlier")[-values.ndim :]
    return dataset.assign(layer_output_outliers=(dims, values, attrs)).assign_coords(outlier=list(LABELS))
