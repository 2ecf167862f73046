"""Where the moments of a layer's rows come from: blocks of rows in memory, our Triton kernels, or stock attention kernels.

======== ===========================================================================================================
blocks   everything, exactly, on any device
triton   everything on CUDA; what depends on the order of a row's weights (Gini, quantiles, top-k) comes from a histogram,
         with a bound on its error
stock    log-sum-exp identities: what they give, with no code of ours on the device; an independent check of the others
======== ===========================================================================================================
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import present
from diffscope.errors import DiffscopeError
from diffscope.stats import logsumexp
from diffscope.stats.formulas import distribution, row_sums

BACKENDS = ("blocks", "triton", "stock")


class RowMoments(NamedTuple):
    """Moments (head, map, query, ...) of A1, A2 and D, or of standard attention's one map; NaN where a map does not have one.

    `widths` are, for the moments that come from a histogram, those of the brackets that hold them.
    """

    values: dict[str, Tensor]
    widths: dict[str, Tensor]


def check(backend: str | None) -> None:
    """Refuse a name that is none."""
    if backend is not None and backend not in BACKENDS:
        raise DiffscopeError(f"there is no back-end {backend!r}; choose from {', '.join(BACKENDS)}")


def chosen(layer: LayerAttention, backend: str | None) -> str:
    """The back-end that is asked for, or by default Triton's kernels where they serve the layer, else blocks of rows.

    Raises
    ------
    DiffscopeError
        There is none of that name, or it cannot serve the layer; says why.
    """
    check(backend)
    if backend is None:
        return "triton" if layer.q.is_cuda and _refusal(layer, "triton") is None else "blocks"
    if why := _refusal(layer, backend):
        raise DiffscopeError(f"the back-end {backend!r} cannot serve layer {layer.layer}: {why}; take 'blocks'")
    return backend


def _refusal(layer: LayerAttention, backend: str) -> str | None:
    if backend == "blocks":
        return None
    if backend == "stock":
        return logsumexp.refusal(layer)
    from diffscope.kernels import rows

    return rows.refusal(layer)


def row_moments(layer: LayerAttention, queries: Tensor, statistics: list[str], backend: str) -> RowMoments:
    """What some row statistics are made of, from kernels.

    Raises
    ------
    DiffscopeError
        The stock kernels give none of the maps what a statistic is made of.
    """
    wanted = distribution.needed(statistics)
    return _from_triton(layer, queries, wanted) if backend == "triton" else _from_stock(layer, queries, statistics, wanted)


def _from_triton(layer: LayerAttention, queries: Tensor, wanted: set[str]) -> RowMoments:
    from diffscope.kernels import rows

    constants = {"top": row_sums.TOP_K, "near_zero": row_sums.NEAR_ZERO, "levels": row_sums.QUANTILES}
    of_map = rows.moments(layer, queries, wanted, **constants)
    of_map = [of_map[name] for name in _maps(layer)]
    bracketed = wanted & {"gini", "quantiles", "top"}

    def stacked(name: str) -> Tensor:
        return torch.stack([one[name] for one in of_map], dim=1).cpu()

    return RowMoments({name: stacked(name) for name in wanted}, {name: stacked(f"{name}_width") for name in bracketed})


def _from_stock(layer: LayerAttention, queries: Tensor, statistics: list[str], wanted: set[str]) -> RowMoments:
    available = {name for names in logsumexp.AVAILABLE.values() for name in names}
    for statistic in statistics:
        if missing := set(distribution.FORMULAS[statistic][1]) - available:
            raise DiffscopeError(
                f"{statistic} needs the {' and '.join(sorted(missing))} of each row, which stock kernels do not give"
            )
    maps = _maps(layer)
    found = logsumexp.moments(layer, wanted, queries=queries, maps=maps)

    def of_maps(name: str) -> Tensor:
        missing = torch.full_like(found["A1"][name], math.nan)
        return torch.stack([found[one].get(name, missing) for one in maps], dim=1).cpu()

    return RowMoments({name: of_maps(name) for name in wanted}, {})


def _maps(layer: LayerAttention) -> tuple[str, ...]:
    return present(layer, ("A1", "A2", "D"))
