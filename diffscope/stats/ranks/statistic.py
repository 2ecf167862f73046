"""The statistics of whole maps: effective ranks and rank residuals, with controls and errors.

Up to ``exact.LARGEST`` tokens ranks come from all singular values, beyond from products with the map. Both give an
:class:`~diffscope.stats.ranks.exact.Estimate` for every map; an exact one has the error 0.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import MEASURED_MAPS, RANKED_MAPS, map_of
from diffscope.stats.collect import Request
from diffscope.stats.ranks import estimated, exact
from diffscope.stats.ranks.exact import Estimate
from diffscope.stats.ranks.implicit_map import PERMUTED, ImplicitMaps
from diffscope.stats.statistic import declare

MAX_BYTES_OF_RUNS = 2**32  # of the maps of a head that are estimated in the same sweeps
SHOWN_REASONS = 3  # of all reasons why ranks are NaN
ERANK = "The Effective Rank: A Measure of Effective Dimensionality (Roy & Vetterli, 2007)"
ECKART = "The Approximation of One Matrix by Another of Lower Rank (Eckart & Young, 1936)"
UNKNOWN_RANK = "maps of zeros, or not finite; estimates that are not within 5 %"

effective = partial(declare, kind="rank", dims=("head", "ranked_map", "definition", "control"), units="1", averaged="median")
residual = partial(declare, kind="rank", dims=("head", "map", "rank"), units="1")

#: the estimates of a head by name of the map: one, or of "permuted ..." one for every draw
HeadEstimates = dict[str, list[Estimate]]


@effective(
    description="effective ranks beside their controls",
    formula="of singular values s: erank: exp H(s/sum s); erank_energy: exp H(s²/sum s²); "
    "participation: (sum s²)²/sum s⁴; stable_rank: sum s²/max s²; r90: fewest s² that hold 90 %; controls: the uniform "
    "map over the same visible keys, the map with each row's visible keys permuted (the mean of 3 draws); always of all "
    "queries; beyond 4,096 tokens estimated matrix-free",
    range=("0", "inf"),
    undefined=UNKNOWN_RANK,
    source=ERANK,
    notes=lambda request: attrs_of_ranks(request),
)
def effective_rank(request: Request) -> Tensor:
    """Return effective ranks and their controls, float64 (head, ranked_map, definition, control)."""
    return request.once(_ranks).ranks


@effective(
    description="half-widths of the effective ranks",
    formula="0 where they are exact, else half the bracket of their quadrature and three standard errors of its vectors; of the "
    "permuted control that and the standard error of its mean over 3 draws; of a ratio the relative errors of both parts",
    range=("0", "inf"),
    undefined="where nothing is known",
)
def effective_rank_error(request: Request) -> Tensor:
    """Return the half-widths of :func:`effective_rank`, in its shape."""
    return request.once(_ranks).ranks_error


@residual(
    description="what the best approximation of rank r leaves",
    formula="|A - A_r|_F / |A|_F, for A2 without lambda; always of all queries",
    range=("0", "1"),
    undefined=UNKNOWN_RANK,
    source=ECKART,
    notes=lambda request: attrs_of_ranks(request),
)
def rank_residual(request: Request) -> Tensor:
    """Return what the best rank-r approximation leaves of A1, A2 (not of lambda_A2) and D, float64 (head, map, rank)."""
    return request.once(_ranks).residuals


@residual(
    description="half-widths of the rank residuals",
    formula="0 where they are exact",
    range=("0", "inf"),
    undefined="where nothing is known",
)
def rank_residual_error(request: Request) -> Tensor:
    """Return the half-widths of :func:`rank_residual`, in its shape."""
    return request.once(_ranks).residuals_error


def attrs_of_ranks(request: Request) -> dict[str, str]:
    """Return attributes of ranks: "estimated" if they are, and "unknown" with the reasons if some are NaN."""
    ranks = request.once(_ranks)
    attrs = {}
    if not _is_exact(request.layer):
        attrs["estimated"] = (
            f"matrix-free, in at most {ranks.sweeps} sweeps over the map; half-widths stand in the statistic of that name with "
            f"_error; NaN where one is above {estimated.TOLERANCE:.0%} of its value"
        )
    return attrs | ({"unknown": "; ".join(ranks.why[:SHOWN_REASONS])} if ranks.why else {})


@dataclass(frozen=True)
class LayerRanks:
    """Ranks of the maps of a layer.

    Attributes
    ----------
    ranks, ranks_error : Tensor, float64 (head, ranked_map, definition, control)
        Values and half-widths on the same scale. A value is NaN if its half-width is above the tolerance. The permuted control
        is the mean of its draws, and its half-width holds the standard error of that mean.
    residuals, residuals_error : Tensor, float64 (head, map, rank)
    why : tuple of str
        Reasons, by head and map, why values are NaN.
    sweeps : int
        Largest number of times that the maps of a head were computed; 0 if all are exact.
    """

    ranks: Tensor
    ranks_error: Tensor
    residuals: Tensor
    residuals_error: Tensor
    why: tuple[str, ...]
    sweeps: int


def layer_ranks(layer: LayerAttention) -> LayerRanks:
    """Compute effective ranks and rank residuals of every head: exactly up to ``exact.LARGEST`` tokens, else estimated.

    The layer is of one prompt. An estimate that is not known within ``estimated.TOLERANCE`` of its value is NaN. The half-width
    of a ratio to a control may be twice as large.
    """
    if _is_exact(layer):
        visible = layer.visible()
        uniform = exact.estimate(exact.uniform_map(visible).to(layer.dtype))
        heads = [_exact_head(layer, head, visible) for head in range(layer.n_heads)]
    else:
        uniform = _estimated_uniform(layer)
        heads = [_estimated_head(layer, head) for head in range(layer.n_heads)]
    names = _map_names(layer)
    ranks, ranks_error, residuals, residuals_error = (
        torch.stack(parts) for parts in zip(*(_tables(estimates, names, uniform) for estimates in heads))
    )
    every = [(head, name, draws) for head, estimates in enumerate(heads) for name, draws in estimates.items()]
    why = tuple(
        f"head {head}, {name}{f', draw {draw}' if draw else ''}: {reason}"
        for head, name, draws in every
        for draw, estimate in enumerate(draws)
        for reason in _reasons(estimate)
    )
    sweeps = max(estimate.sweeps for _, _, draws in every for estimate in draws)
    return LayerRanks(ranks, ranks_error, residuals, residuals_error, why, sweeps)


def bytes_of_estimates(layer: LayerAttention) -> int:
    """Return the memory that estimating the ranks of one head needs at most, in bytes; 0 if they are computed exactly."""
    if _is_exact(layer):
        return 0
    return min(len(_every_map(layer)), _joint_maps(layer)) * estimated.bytes_of_one(layer)


def _ranks(request: Request) -> LayerRanks:
    return layer_ranks(request.layer)


def _is_exact(layer: LayerAttention) -> bool:
    return max(layer.n_queries, layer.n_keys) <= exact.LARGEST


def _map_names(layer: LayerAttention) -> dict[str, str | None]:
    """Return the map to compute for each of ``MEASURED_MAPS`` and ``RANKED_MAPS``; None if the layer has none."""
    d = "A1" if layer.d_is_a1 else "D"
    if not layer.differential:
        return {"A1": "A1", "A2": None, "lambda_A2": None, "D": d}
    # A factor per head changes no rank: the sweeps over A2 then serve lambda_A2 too.
    cancels = layer.lam.shape[-1] == 1 and bool((layer.lam != 0).all()) and not layer.changes
    return {"A1": "A1", "A2": "A2", "lambda_A2": "A2" if cancels and not _is_exact(layer) else "lambda_A2", "D": d}


def _every_map(layer: LayerAttention) -> list[str]:
    """Return the maps to compute of a head, and after them the permuted ones."""
    names = _map_names(layer)
    plain = [name for label in (*RANKED_MAPS, *MEASURED_MAPS) if (name := names[label])]
    permuted = [PERMUTED + name for label in RANKED_MAPS if (name := names[label])]
    return list(dict.fromkeys([*plain, *permuted]))


def _exact_head(layer: LayerAttention, head: int, visible: Tensor) -> HeadEstimates:
    """Compute the maps of a head and decompose each, and each of its permutations."""
    rows = layer.rows(heads=[head])
    estimates: HeadEstimates = {}
    for name in _every_map(layer):
        a = map_of(rows, name.removeprefix(PERMUTED))[0]  # (query, key)
        # All maps of a head are permuted alike.
        estimates[name] = exact.permuted_estimates(a, visible, head) if name.startswith(PERMUTED) else [exact.estimate(a)]
    return estimates


def _estimated_head(layer: LayerAttention, head: int) -> HeadEstimates:
    """Estimate the ranks of the maps of a head, and of their permutations, from products with them."""
    every = _every_map(layer)
    estimates: HeadEstimates = {name: [] for name in every}
    size = _joint_maps(layer)
    for draw in range(exact.DRAWS):
        maps = ImplicitMaps(layer, head, seed=head + draw * layer.n_heads)
        names = [name for name in every if draw == 0 or name.startswith(PERMUTED)]
        for first in range(0, len(names), size):
            for name, estimate in estimated.estimate(maps, names[first : first + size]).items():
                estimates[name].append(estimate)
    return estimates


def _joint_maps(layer: LayerAttention) -> int:
    """Return how many maps of a head are estimated in the same sweeps."""
    return max(1, MAX_BYTES_OF_RUNS // estimated.bytes_of_one(layer))


def _estimated_uniform(layer: LayerAttention) -> Estimate:
    """Return the ranks of the uniform map over visible keys; from a formula for causal and full masks."""
    if layer.mask.kind == "causal" and layer.n_queries == layer.n_keys:
        return exact.from_singular_values(exact.causal_uniform_singular_values(layer.n_keys))
    if layer.mask.kind == "full":  # all entries are 1/key
        sigma = torch.zeros(min(layer.n_queries, layer.n_keys), dtype=torch.float64)
        sigma[0] = math.sqrt(layer.n_queries / layer.n_keys)
        return exact.from_singular_values(sigma)
    return estimated.estimate(ImplicitMaps(layer, 0), ["uniform"])["uniform"]


def _tables(estimates: HeadEstimates, names: dict[str, str | None], uniform: Estimate) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the ranks of a head and their errors (ranked_map, definition, control), its residuals and theirs (map, rank)."""
    missing = torch.full((len(exact.DEFINITIONS), len(exact.CONTROLS)), math.nan, dtype=torch.float64)
    controlled = [
        exact.beside_controls(estimates[name][0], uniform, estimates[PERMUTED + name]) if name else (missing, missing)
        for name in map(names.get, RANKED_MAPS)
    ]
    plain = [estimates[name][0] if name else exact.unknown("there is no such map") for name in map(names.get, MEASURED_MAPS)]
    return (
        torch.stack([values for values, _ in controlled]),
        torch.stack([errors for _, errors in controlled]),
        torch.stack([each.residuals for each in plain]),
        torch.stack([each.residuals_error for each in plain]),
    )


def _reasons(estimate: Estimate) -> list[str]:
    """Return the reasons why values of an estimate are NaN; a reason that all share once."""
    if len(estimate.why) == len(exact.LABELS) and len(set(estimate.why.values())) == 1:
        return [estimate.why[exact.LABELS[0]]]
    return [f"{label} {reason}" for label, reason in estimate.why.items()]
