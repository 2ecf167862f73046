"""Choose what computes the moments of a layer's rows: blocks of rows in memory, or Triton kernels.

====== ===========================================================================================================
blocks everything, exactly, on any device
triton row statistics on CUDA; what depends on the order of a row's weights (Gini, quantiles, top-k) comes from a
       histogram, with a bound on its error
====== ===========================================================================================================
"""

from collections.abc import Sequence
from math import inf
from typing import Literal

import torch
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import MEASURED_MAPS, present
from diffscope.errors import DiffscopeError, check_choice
from diffscope.stats.collect import Request
from diffscope.stats.moments import Moments
from diffscope.stats.rows import needed, statistics_of
from diffscope.stats.statistic import Statistic

Backend = Literal["blocks", "triton"]
BACKENDS: tuple[Backend, ...] = ("blocks", "triton")


def chosen(layer: LayerAttention, backend: Backend | None, rows: bool) -> Backend:
    """Return the back end that is asked for; by default "triton" on CUDA if it can serve the layer, else "blocks".

    It is "blocks" as well if there are no row statistics to compute. On the first use of Triton for such a layer it is compared
    with blocks, and not used if it differs (:mod:`diffscope.stats.kernels.guard`). DiffscopeError if there is no such back end,
    or it cannot serve the layer.
    """
    if backend is not None:
        check_choice("back end", backend, BACKENDS)
    if not rows or backend == "blocks" or (backend is None and not layer.q.is_cuda):
        return "blocks"
    from diffscope.stats.kernels import guard
    from diffscope.stats.kernels import rows as kernels

    unsupported = kernels.reason_unsupported(layer)
    if unsupported and backend:
        raise DiffscopeError(f"the back end {backend!r} cannot serve layer {layer.layer}: {unsupported}; take 'blocks'")
    return "triton" if not unsupported and guard.agrees(layer) else "blocks"


def row_statistics(request: Request, statistics: Sequence[Statistic]) -> tuple[dict[str, Tensor], dict[str, dict]]:
    """Compute row statistics by Triton kernels; return values and attributes by name, bounds of errors among these."""
    from diffscope.stats.kernels import rows as kernels

    wanted = set(needed(statistics))
    by_map = kernels.moments(request.layer, request.queries, wanted)
    names = present(request.layer, MEASURED_MAPS)

    def stacked(moment: str) -> Tensor:  # (head, map, query, ...)
        return torch.stack([by_map[name][moment] for name in names], dim=1).cpu()

    moments = {name: stacked(name) for name in wanted}
    attrs: dict[str, dict] = {statistic.name: {"backend": "triton"} for statistic in statistics}
    for name, moment in {"gini": "gini", "quantiles": "quantiles", "top_k_mass": "top"}.items():
        if name in attrs:
            widest = _relative(name, stacked(f"{moment}_width"), moments, request).nan_to_num(posinf=inf).max()
            attrs[name]["error_bound"] = float(widest) / 2  # the moment is the middle of a bracket of that width
    return statistics_of(moments, statistics, request), attrs


def _relative(name: str, width: Tensor, moments: Moments, request: Request) -> Tensor:
    """Return the width of a moment's bracket in the unit of the statistic."""
    if name == "gini":
        return width
    unit = moments["total"] / (request.counts.cpu() if name == "quantiles" else 1)
    return width / unit.unsqueeze(-1)
