"""Where the moments of a layer's rows come from: blocks of rows in memory, functions that numba compiles, or Triton kernels.

======== ===========================================================================================================
blocks   everything, exactly, on any device
compiled row statistics on a CPU in float32, the same to rounding: all sums over a row while it is in the core's first cache
triton   everything on CUDA; what depends on the order of a row's weights (Gini, quantiles, top-k) comes from a histogram,
         with a bound on its error
======== ===========================================================================================================
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import present
from diffscope.attention.workers import Workers
from diffscope.errors import DiffscopeError
from diffscope.stats import compiled_rows
from diffscope.stats.formulas import distribution, row_sums

Backend = Literal["blocks", "compiled", "triton"]
BACKENDS: tuple[Backend, ...] = ("blocks", "compiled", "triton")
# Values of one map of a layer, over all heads, from which on a few layers save the second that importing numba takes.
WORTH_COMPILING = 2**27


class RowMoments(NamedTuple):
    """Moments (head, map, query, ...) of A1, A2 and D, or of standard attention's one map.

    `widths` are, for the moments that come from a histogram, those of the brackets that hold them.
    """

    values: dict[str, Tensor]
    widths: dict[str, Tensor]


def check(backend: str | None) -> None:
    """Raise :class:`DiffscopeError` for a name that no back-end has."""
    if backend is not None and backend not in BACKENDS:
        raise DiffscopeError(f"there is no back-end {backend!r}; choose from {', '.join(BACKENDS)}")


def chosen(layer: LayerAttention, backend: str | None, queries: int) -> Backend:
    """The back-end that is asked for, or by default the fastest for that many queries of the layer that is installed.

    Raises
    ------
    DiffscopeError
        There is none of that name, or it cannot serve the layer; says why.
    """
    check(backend)
    small = layer.n_heads * queries * layer.n_keys < WORTH_COMPILING
    if backend == "blocks" or (backend is None and not layer.q.is_cuda and small):
        return "blocks"
    fast: Backend = "triton" if backend == "triton" or (backend is None and layer.q.is_cuda) else "compiled"
    if fast == "triton":
        from diffscope.stats.kernels import rows

        unsupported = rows.reason_unsupported(layer)
    else:
        unsupported = compiled_rows.reason_unsupported(layer)
    if unsupported and backend:
        raise DiffscopeError(f"the back-end {backend!r} cannot serve layer {layer.layer}: {unsupported}; take 'blocks'")
    return "blocks" if unsupported else fast


def row_moments(
    layer: LayerAttention,
    queries: Tensor,
    statistics: list[str],
    backend: Backend,
    workers: Workers,
    progress: Callable[[float], None],
) -> RowMoments:
    """What some row statistics are made of, from the kernels of a back-end other than blocks."""
    wanted = distribution.needed(statistics)
    if backend == "compiled":
        return RowMoments(compiled_rows.moments(layer, queries, wanted, workers, progress), {})
    from diffscope.stats.kernels import rows

    by_map = rows.moments(layer, queries, wanted, top=row_sums.TOP_K, near_zero=row_sums.NEAR_ZERO, levels=row_sums.QUANTILES)
    names = present(layer, ("A1", "A2", "D"))

    def stacked(moment: str) -> Tensor:
        return torch.stack([by_map[name][moment] for name in names], dim=1).cpu()

    bracketed = wanted & {"gini", "quantiles", "top"}
    return RowMoments({name: stacked(name) for name in wanted}, {name: stacked(f"{name}_width") for name in bracketed})
