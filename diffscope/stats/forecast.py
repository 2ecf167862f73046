"""How long measuring a layer will take, and in what memory, before it is done."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from diffscope.attention.blocks import Workers, block_size
from diffscope.attention.layer import LayerAttention
from diffscope.stats import backends
from diffscope.stats.backends import Backend
from diffscope.stats.collectors import RowStatistics
from diffscope.stats.engine import checked_queries, measure_layers
from diffscope.stats.ranks import statistic as effective_rank
from diffscope.stats.registry import LABELS, STATISTICS, Statistic

PROBED = 128  # queries a thread that are measured to tell how long all of them will take


def seconds(
    layer: LayerAttention,
    names: Sequence[str],
    spans: Mapping[str, Tensor],
    queries: Tensor | None,
    workers: Workers,
    backend: Backend | None,
) -> float:
    """How long measuring will take, judged by a few of the queries; without what is made of whole maps."""
    names = [name for name in names if STATISTICS[name].collector]
    positions = checked_queries(layer, queries)
    some = positions.sort().values[-PROBED * workers.count :]
    rows = any(STATISTICS[name].collector is RowStatistics for name in names)
    chosen = backends.chosen(layer, backend) if rows else "blocks"
    runs = 1 if chosen == "blocks" else 2  # kernels are compiled the first time
    for _ in range(runs):
        start = time.perf_counter()
        measure_layers([layer], names, spans=spans, queries=some, workers=workers, backend=chosen)
        took = time.perf_counter() - start
    n, of_some = (layer.mask.counts(at, layer.n_keys, layer.n_keys - layer.n_queries).sum() for at in (positions, some))
    return took * float(n / of_some.clamp_min(1))


def bytes_of(statistics: Iterable[Statistic], layer: LayerAttention, rows: int, spans: int) -> int:
    """Memory of the results of one layer."""
    sizes = {name: len(labels) for name, labels in LABELS.items()}
    sizes |= {"head": layer.n_heads, "other_head": layer.n_heads, "query": rows, "span": spans}
    values = sum(math.prod(sizes[dim] for dim in statistic.dims) for statistic in statistics)
    return values * layer.dtype.itemsize


def bytes_at_work(statistics: Iterable[Statistic], layer: LayerAttention, rows: int, threads: int) -> int:
    """Memory that measuring itself takes.

    A thread holds eight times a block: scores, A1, A2, |D|, D, and a pass over three maps.
    """
    statistics = list(statistics)
    heads, queries = block_size(
        layer, all_heads=any(getattr(statistic.collector, "all_heads", False) for statistic in statistics)
    )
    blocks = threads * 8 * heads * min(queries, rows) * layer.n_keys * layer.dtype.itemsize
    ranks = any(statistic.kind == "map" for statistic in statistics)
    return blocks + (effective_rank.bytes_of_estimates(layer) if ranks else 0)


def size_in_words(nbytes: float) -> str:
    """A number of bytes as a person reads it."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.0f} MiB"


def time_in_words(seconds: float) -> str:
    """A duration as a person reads it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
