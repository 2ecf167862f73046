"""From one layer's statistics to a labelled dataset of all layers and prompts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.attention.memory import free_memory
from diffscope.errors import DiffscopeError, OutOfMemoryAhead
from diffscope.prompts import Encoded
from diffscope.stats import engine, forecast
from diffscope.stats.datasets import Measured, agreed, dataset
from diffscope.stats.formulas.outliers import LABELS
from diffscope.stats.sampling import STRATUM, WEIGHT, Drawn, Sample
from diffscope.stats.threads import Workers

WORTH_SAYING = 10.0  # seconds
AT_ONCE = 2**25  # bytes of queries, keys and values: layers are measured together up to that


class Measuring:
    """What is measured of every layer of some prompts, one layer after another.

    Parameters
    ----------
    prompts : sequence of Encoded
    statistics, queries, backend
        As of :meth:`diffscope.capture.Capture.measure`.
    n_layers : int
        How many layers will come.
    progress : callable, optional
        Called with (done, total) in layers of a prompt; within long ones `done` is a fraction.
    announce : callable, optional
        Called with one line: what time and memory it will take, where that is known to be much.

    Raises
    ------
    OutOfMemoryAhead
        From the first layer on: the results would fill the memory that is free.
    """

    def __init__(
        self, prompts: Sequence[Encoded], statistics, queries, n_layers: int, progress=None, announce=None, backend=None
    ):
        self.prompts, self.queries, self.backend = prompts, queries, backend
        self.progress, self.announce = progress, announce
        self.chosen = engine.select(statistics)
        self.measured: list[list[Measured]] = [[] for _ in prompts]
        self.layers: list[int] = []
        self._waiting: list[LayerAttention] = []
        self.total = n_layers * len(prompts)
        if isinstance(queries, Sample) and len({len(prompt.ids) for prompt in prompts}) > 1:
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
        if sum(x.nbytes for one in self._waiting for x in (one.q, one.k, one.v)) >= AT_ONCE:
            self.finish(workers)

    def finish(self, workers: Workers) -> None:
        """Measure the layers that wait."""
        layers, self._waiting = self._waiting, []
        if not layers:
            return
        names = [statistic.name for statistic in self.chosen]
        for index, of_prompt in enumerate(self.measured):
            found = [layer.prompt(index) for layer in layers]
            sets = self.prompts[index].key_sets(found[0].q.device)
            queries, drawn = self._queries(found[0], sets)
            weights = None if drawn is None else drawn.weight.to(found[0].q.device)
            if not self.done:
                self._look_ahead(found[0], names, sets, queries, workers)
            within = partial(self._within, len(found))
            how = {"workers": workers, "progress": within, "backend": self.backend}
            for taken in engine.take_all(found, names, sets, queries, weights, **how):
                of_prompt.append(taken)
                self._within()
        self.layers += [layer.layer for layer in layers]

    def _within(self, layers: int = 0, share: float = 0.0) -> None:
        """What is done, and of some layers at work a share."""
        if self.progress:
            self.progress(self.done + layers * share if layers * share else self.done, self.total)

    def _look_ahead(self, layer: LayerAttention, names: list[str], sets, queries, workers: Workers) -> None:
        """Refuse what will not fit, and say how long it will take."""
        rows = layer.n_queries if queries is None else len(queries)
        results = self.total * forecast.bytes_of(self.chosen, layer, rows, len(sets))
        need = 2 * results + forecast.bytes_at_work(self.chosen, layer, rows, workers.count)  # stacked, results are there twice
        free = free_memory(torch.device("cpu"))
        if need > free:
            raise OutOfMemoryAhead(
                f"the statistics of {rows} queries, {layer.n_heads} heads and {self.total} layers need {_size(need)} and "
                f"{_size(free)} are free; ask for fewer of them, or for a sample of queries: queries=diffscope.Sample(512)"
            )
        if self.announce:
            seconds = self.total * forecast.seconds(layer, names, sets, queries, workers, self.backend)
            if seconds > WORTH_SAYING:
                ranks = ", and the ranks longer" if any(statistic.kind == "map" for statistic in self.chosen) else ""
                self.announce(f"measuring will take about {_duration(seconds)} and {_size(need)} besides the model{ranks}")

    def _queries(self, layer: LayerAttention, sets: dict[str, Tensor]) -> tuple[Tensor | None, Drawn | None]:
        if isinstance(self.queries, Sample):
            drawn = self.queries.draw(layer.n_queries)
            return (None if drawn is None else drawn.queries), drawn
        rows = self.queries
        if isinstance(rows, str):
            if rows not in sets:
                raise DiffscopeError(f"there is no span {rows!r} to take queries from; spans are {', '.join(sets)}")
            rows = sets[rows]
        rows = None if rows is None else positions(rows, layer.n_queries)
        if rows is not None and len(self.prompts) > 1 and len(rows.unique()) < len(rows):
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
        complete = len(self.layers)  # a layer may have been measured on some prompts of a batch only
        datasets = [dataset(of_layers[:complete], self.layers) for of_layers in self.measured]
        if outliers is not None:
            datasets = [_with_outliers(one, outliers[:complete, index]) for index, one in enumerate(datasets)]
        joined = datasets[0]
        if batch:
            joined, names = xr.concat(datasets, "prompt", **_EXACT), [f"prompt {i}" for i in range(len(datasets))]
            for name, values in joined.data_vars.items():
                values.attrs = agreed([one[name].attrs for one in datasets], names)
        n = len(self.prompts[0].ids)
        drawn = self.queries.draw(n) if isinstance(self.queries, Sample) else None
        if drawn is not None:
            facts = {**facts, "sampled": f"{len(drawn.queries)} of {n} queries, stratified, seed {self.queries.seed}"}
            labels = {STRATUM: ("query", drawn.stratum.numpy()), WEIGHT: ("query", drawn.weight.numpy())}
            joined = joined.assign_coords(labels if "query" in joined.dims else {})
        joined.attrs.update(facts)
        return joined


_EXACT = dict(combine_attrs="override", join="outer", coords="minimal", compat="override", data_vars="all")


def _with_outliers(dataset: xr.Dataset, values: np.ndarray) -> xr.Dataset:
    if "logit_outliers" not in dataset:
        return dataset
    attrs = {"long_name": "largest magnitudes and median of the decoder layer's output", "units": "activation"}
    return dataset.assign(layer_output_outliers=(("layer", "outlier"), values, attrs)).assign_coords(outlier=list(LABELS))


def _size(n: float) -> str:
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.0f} MiB"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _numbers(given) -> bool:
    try:
        return np.atleast_1d(given).dtype.kind in "iuf"
    except ValueError:  # rows of several lengths
        return False


def positions(given, n: int) -> Tensor:
    """Positions as an int64 tensor, checked against the prompt's length."""
    if given is None or isinstance(given, slice):
        return torch.arange(n)[given or slice(None)]
    at = given if isinstance(given, Tensor) else torch.as_tensor(np.atleast_1d(given)) if _numbers(given) else None
    if at is None or at.dim() != 1 or at.numel() and (at.is_floating_point() or at.dtype == torch.bool):
        raise DiffscopeError(f"positions are whole numbers in one row, such as [0, 5, -1], not {given!r}")
    at = at.to(torch.int64)
    at = torch.where(at < 0, at + n, at)
    if at.numel() and not 0 <= int(at.min()) <= int(at.max()) < n:
        raise DiffscopeError(f"positions {given} are outside the prompt's tokens 0 to {n - 1}")
    return at
