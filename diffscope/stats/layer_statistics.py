"""Statistics of a layer that come neither from its rows nor from whole maps: λ, rejection of the common mode, logits."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from diffscope.attention.changes import RowContext
from diffscope.stats.collectors import Request
from diffscope.stats.formulas import branches, outliers

LOGITS = 2**20  # of one block, over all maps
LAMBDA_VALUES = ("used", "fp32", "init", "minus_init")


def lam(request: Request) -> Tensor:
    """The coefficient of A2 in the order of ``LAMBDA_VALUES``; NaN for standard attention.

    Returns
    -------
    Tensor (head, query, lambda_value), float64
        As the model used it, in float32 before any cast, its value at initialisation, and used - init.
    """
    layer = request.layer
    used = _per_query(request, layer.lam)
    fp32 = _per_query(request, layer.lam_fp32)
    init = torch.full_like(used, math.nan if layer.lam_init is None else layer.lam_init)
    values = torch.stack([used, fp32, init, used - init], dim=-1)
    return values if layer.differential else torch.full_like(values, math.nan)


def cmrr(request: Request) -> Tensor:
    """Common-mode rejection ratio, (head, query), in decibels; NaN for standard attention, and where D is changed afterwards."""
    layer = request.layer
    decibels = branches.cmrr(_per_query(request, layer.lam), _per_query(request, layer.gain))
    return decibels if layer.differential and not layer.d_is_changed else torch.full_like(decibels, math.nan)


def logit_outliers(request: Request) -> Tensor:
    """Largest and median |scale q.k| over all maps of the layer and the keys each query sees: (outlier,).

    Keys beyond a sliding window are not seen, and a sink logit is no key. Under an edit the scores are the edited ones, over both
    maps of each head, so that a map that heads share counts once a head.
    """
    layer = request.layer
    size = max(1, LOGITS // (layer.q.shape[1] * layer.n_keys))

    def blocks() -> Iterator[Tensor]:
        for queries in request.queries.split(size):
            if not layer.changes:
                yield layer.logits(queries)[:, layer.visible(queries)].flatten()
                continue
            context = RowContext(layer, torch.arange(layer.n_heads, device=queries.device), queries)
            for branch in (1, 2) if layer.differential else (1,):
                scores = layer.changed_logits(branch, context)
                yield scores[scores > -torch.inf]

    return outliers.streamed_outliers(blocks)


def _per_query(request: Request, values: Tensor) -> Tensor:
    layer = request.layer
    return values[0].double().expand(layer.n_heads, layer.n_queries)[:, request.queries]  # (head, query)
