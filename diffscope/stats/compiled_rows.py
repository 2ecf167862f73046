"""Row moments on a CPU from the functions that numba compiled (:mod:`diffscope.stats.kernels.compiled`), block by block.

Of a block only its scores and |A1|, |A2| and |D| are in memory; A1, A2 and D themselves exist while a row is worked on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module

import numpy as np
import torch
from torch import Tensor

from diffscope.attention.blocks import places_of
from diffscope.attention.layer import LayerAttention
from diffscope.attention.memory import Workspace
from diffscope.attention.workers import Workers
from diffscope.errors import first_line
from diffscope.stats.formulas.row_sums import NEAR_ZERO, QUANTILES, TOP_K, order

TOO_LITTLE = 2**21  # values of one map, over all heads, below which threads cost more than they bring
#: the moments of :mod:`diffscope.stats.formulas.row_sums` in the order of the sums of ``compiled.maps``
SUMS = ("total", "squares", "logs", "roots", "peak", "positive", "negative", "negatives")


def reason_unsupported(layer: LayerAttention) -> str | None:
    """Why numba's functions cannot serve a layer, in a few words; None if they can."""
    reasons = {
        "its tensors are not on a CPU": layer.q.device.type != "cpu",
        "its maps are in float64": layer.dtype != torch.float32,
        f"it holds {len(layer.lengths)} prompts": len(layer.lengths) != 1,
        "it is edited": bool(layer.changes),
        "its mask is no rule": layer.mask.kind not in ("causal", "window", "full"),
        "its scores are rounded to half precision": layer.score_dtype is not None,
        "some of its queries see no key": layer.n_keys < layer.n_queries,
    }
    return next((reason for reason, holds in reasons.items() if holds), None) or _without_numba()


@cache
def _without_numba() -> str | None:
    """Why numba cannot be used; None if it can. It may be there and refuse the numpy beside it."""
    try:
        import_module("diffscope.stats.kernels.compiled")
    except ModuleNotFoundError:
        return "numba is not installed (pip install 'diffscope-attention[fast]')"
    except Exception as error:
        return f"numba cannot be imported ({first_line(error)})"
    return None


def moments(
    layer: LayerAttention, queries: Tensor, wanted: set[str], workers: Workers, progress: Callable[[float], None]
) -> dict[str, Tensor]:
    """Moments of A1, A2 and D, or of standard attention's one map.

    Parameters
    ----------
    layer : LayerAttention
        One for which :func:`reason_unsupported` gives None.
    queries : int64 Tensor, (query,)
    wanted : set of str
        Moments of :mod:`diffscope.stats.formulas.row_sums`.
    workers : Workers
    progress : callable
        Called after every block but the last with the share of them that is done.

    Returns
    -------
    dict of str to Tensor, (head, map, query, ...)
    """
    places = list(places_of(layer, queries, compiled=True))
    tasks = (partial(_of_block, layer, place.heads, queries[place.at], wanted) for place in places)
    alone = layer.n_heads * len(queries) * layer.n_keys < TOO_LITTLE
    placed: dict[str, Tensor] = {}
    for number, (place, values) in enumerate(zip(places, workers.run(tasks, alone)), start=1):
        for name, of_block in values.items():  # each (head, map, query, ...)
            if name not in placed:
                placed[name] = of_block.new_empty(layer.n_heads, of_block.shape[1], len(queries), *of_block.shape[3:])
            placed[name][place.heads.start : place.heads.stop, :, place.at] = of_block
        if number < len(places):
            progress(number / len(places))
    return placed


def _of_block(
    layer: LayerAttention, of_heads: range, queries: Tensor, wanted: set[str], workspace: Workspace
) -> dict[str, Tensor]:
    """Moments of a block, each (head, map, query, ...)."""
    from diffscope.stats.kernels import compiled

    heads = torch.arange(of_heads.start, of_heads.stop)
    cut, start = layer.around(queries) if layer.mask.kind != "full" else (layer, 0)
    pairing = layer.pairing
    second = pairing.a1[:0] if pairing.a2 is None else pairing.a2[heads]
    chosen, of_head = torch.cat([pairing.a1[heads], second]).unique(return_inverse=True)
    scores = cut.scores(queries, chosen, workspace)  # (map, query, key)
    first = of_head[: len(heads)]
    shape = (1 if pairing.a2 is None else 3, len(heads), len(queries), cut.n_keys)
    sizes = workspace.take("sizes", shape, torch.float32).numpy()
    sums = np.empty((len(sizes), len(SUMS), *shape[1:3]))
    n = layer.mask.counts(queries, layer.n_keys, layer.n_keys - layer.n_queries)
    last = (queries + layer.n_keys - layer.n_queries + 1 if layer.mask.kind != "full" else n) - start
    compiled.maps(
        scores.numpy(),
        first.numpy(),
        of_head[len(heads) :].numpy(),
        torch.stack([last - n, last], dim=1).numpy(),
        _sinks(layer, chosen, queries),
        _by_row(layer.gain, layer, heads, queries),
        _by_row(layer.lam, layer, heads, queries),
        sizes,
        sums,
    )
    values = dict(zip(SUMS, sums.swapaxes(0, 1)))
    values["net"] = values["positive"] - values["negative"]
    values["peak"] += start
    if wanted & {"gini", "quantiles", "small", "top"}:
        values |= _by_order(sizes, n, values["total"])
    kept = {name: torch.from_numpy(values[name]).float() for name in wanted | {"total"}}
    return {name: x.transpose(0, 1) for name, x in kept.items()}


def _by_order(sizes: np.ndarray, n: Tensor, total: np.ndarray) -> dict[str, np.ndarray]:
    """What depends on the order of the rows of sizes, (map, head, query, key), which are sorted in place."""
    from diffscope.stats.kernels import compiled

    shape = total.shape
    rows = sizes.reshape(-1, sizes.shape[-1])
    rows.sort(-1)
    results = {
        "gini": np.empty(len(rows)),
        "small": np.empty(len(rows)),
        "quantiles": np.empty((len(rows), len(QUANTILES))),
        "top": np.empty((len(rows), len(TOP_K))),
    }
    counts = np.array(np.broadcast_to(n.numpy(), shape)).reshape(-1)
    limit = (NEAR_ZERO * total.reshape(-1) / counts).astype(np.float32)
    at = np.array(np.broadcast_to((order(QUANTILES, n) - 1).numpy(), (*shape, len(QUANTILES)))).reshape(len(rows), -1)
    compiled.order(rows, counts, limit, at, np.array(TOP_K), compiled.RANKS, *results.values())
    return {name: values.reshape(*shape, *values.shape[1:]) for name, values in results.items()}


def _by_row(x: Tensor, layer: LayerAttention, heads: Tensor, queries: Tensor) -> np.ndarray:
    """λ or gain, (1, head or 1, query or 1), as float32 (head, query)."""
    return x[0].expand(layer.n_heads, layer.n_queries)[heads[:, None], queries].float().numpy()


def _sinks(layer: LayerAttention, maps: Tensor, queries: Tensor) -> np.ndarray:
    """Sink logits as float32 (map, query), −∞ where there are none."""
    if layer.sink_logit is None:
        return np.full((len(maps), len(queries)), -np.inf, np.float32)
    return layer.sink_logit[0].expand(layer.q.shape[1], layer.n_queries)[maps[:, None], queries].float().numpy()
