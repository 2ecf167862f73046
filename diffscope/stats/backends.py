"""Choose what computes the moments of a layer's rows: blocks of rows in memory, or Triton kernels.

====== ===========================================================================================================
blocks everything, exactly, on any device
triton row statistics on CUDA; what depends on the order of a row's weights (Gini, quantiles, top-k) comes from a
       histogram, with a bound on its error
====== ===========================================================================================================
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import present
from diffscope.errors import DiffscopeError
from diffscope.stats.moments import NEAR_ZERO, QUANTILES, TOP_K

Backend = Literal["blocks", "triton"]
BACKENDS: tuple[Backend, ...] = ("blocks", "triton")


class RowMoments(NamedTuple):
    """Moments (head, map, query, ...) of A1, A2 and D, or of standard attention's one map.

    `widths` are those of the brackets that hold the moments which come from a histogram.
    """

    values: dict[str, Tensor]
    widths: dict[str, Tensor]


def check(backend: str | None) -> None:
    """Raise :class:`DiffscopeError` for a name that no back end has."""
    if backend is not None and backend not in BACKENDS:
        raise DiffscopeError(f"there is no back end {backend!r}; choose from {', '.join(BACKENDS)}")


def chosen(layer: LayerAttention, backend: Backend | None) -> Backend:
    """Return the back end that is asked for; by default "triton" on CUDA if it can serve the layer, else "blocks".

    On the first use of Triton for such a layer it is compared with blocks, and not used if it differs
    (:mod:`diffscope.stats.kernels.guard`).

    Raises
    ------
    DiffscopeError
        The back end cannot serve the layer.
    """
    if backend == "blocks" or (backend is None and not layer.q.is_cuda):
        return "blocks"
    from diffscope.stats.kernels import guard, rows

    unsupported = rows.reason_unsupported(layer)
    if unsupported and backend:
        raise DiffscopeError(f"the back end {backend!r} cannot serve layer {layer.layer}: {unsupported}; take 'blocks'")
    return "triton" if not unsupported and guard.agrees(layer) else "blocks"


def row_moments(layer: LayerAttention, queries: Tensor, wanted: set[str]) -> RowMoments:
    """Return moments of the rows, computed by Triton kernels."""
    from diffscope.stats.kernels import rows

    by_map = rows.moments(layer, queries, wanted, top=TOP_K, near_zero=NEAR_ZERO, levels=QUANTILES)
    names = present(layer, ("A1", "A2", "D"))

    def stacked(moment: str) -> Tensor:
        return torch.stack([by_map[name][moment] for name in names], dim=1).cpu()

    bracketed = wanted & {"gini", "quantiles", "top"}
    return RowMoments({name: stacked(name) for name in wanted}, {name: stacked(f"{name}_width") for name in bracketed})
