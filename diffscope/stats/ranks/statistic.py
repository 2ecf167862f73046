"""Effective ranks of whole maps, exact or estimated, with their controls."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.stats.collectors import MAPS, RANKED_MAPS, Request
from diffscope.stats.ranks import estimated as estimated_rank
from diffscope.stats.ranks import exact as rank
from diffscope.stats.ranks.implicit_map import PERMUTED, ImplicitMaps

AT_ONCE = 2**32  # bytes, of the maps whose ranks are estimated from the same sweeps
REASONS = 3  # why ranks are NaN, of all that there are


def effective_rank(request: Request) -> Tensor:
    """Effective ranks and their controls: (head, ranked_map, definition, control).

    From all singular values up to ``rank.LARGEST`` tokens, else from :func:`estimated_ranks`.
    """
    return request.once(_ranks)[0]


def rank_residual(request: Request) -> Tensor:
    """What the best rank-r approximation leaves of A1, A2 (not of lambda·A2) and D: (head, map, rank); computed likewise."""
    layer = request.layer
    if not _exact(layer):
        return request.once(_estimates).residuals
    spectra = request.once(_spectra)[:, :, 0].clone()  # (head, ranked map, singular value)
    for head in range(layer.n_heads):
        a2 = layer.rows(heads=[head]).a2 if layer.differential else None
        if a2 is not None:
            spectra[head, 1] = rank.singular_values(a2[0])
    return rank.rank_residual(spectra)


def effective_rank_error(request: Request) -> Tensor:
    """Half-widths of :func:`effective_rank`, in its shape; zeros where it is exact, but for the draws of the permuted control."""
    return request.once(_ranks)[1]


def rank_residual_error(request: Request) -> Tensor:
    """Half-widths of :func:`rank_residual`, in its shape; zeros where it is exact."""
    return 0 * rank_residual(request) if _exact(request.layer) else request.once(_estimates).residuals_error


@dataclass(frozen=True)
class EstimatedRanks:
    """Ranks of the maps of a layer that are too large for an exact spectrum.

    Attributes
    ----------
    ranks, ranks_error : Tensor (head, ranked_map, definition, control), float64
        Values, and half-widths on the same scale; NaN where the half-width is above the tolerance. That of the permuted control
        is the mean of its draws', and the standard error of their mean.
    residuals, residuals_error : Tensor (head, map, rank), float64
    why : tuple of str
        One line for each value that is NaN for want of a close enough bound.
    sweeps : int
        How often the maps of a head were computed, at most.
    """

    ranks: Tensor
    ranks_error: Tensor
    residuals: Tensor
    residuals_error: Tensor
    why: tuple[str, ...]
    sweeps: int


def estimated_ranks(layer: LayerAttention, tolerance: float = estimated_rank.TOLERANCE) -> EstimatedRanks:
    """Effective ranks and rank residuals of a layer without a whole map in memory.

    Parameters
    ----------
    layer : LayerAttention
        Of one prompt.
    tolerance : float
        The largest half-width, as a share of the value; what cannot be had within it is NaN. That of a ratio to a control may
        be twice as large.

    Returns
    -------
    EstimatedRanks
    """
    names = _named_maps(layer)
    uniform = _of_uniform(layer, tolerance)
    heads = []
    why = []
    sweeps = 0
    for head in range(layer.n_heads):
        draws = [_estimates_of_head(layer, head, draw, tolerance) for draw in range(rank.DRAWS)]
        for draw, drawn in enumerate(draws):
            of_draw = f", draw {draw}" if draw else ""
            for name, estimate in drawn.items():
                why += [f"head {head}, {name}{of_draw}: {what} {line}" for what, line in estimate.why.items()]
                sweeps = max(sweeps, estimate.sweeps)
        controlled = [_controlled(draws, names[ranked], uniform) for ranked in RANKED_MAPS]
        residuals = [_residuals(draws[0], names[name]) for name in MAPS]
        heads.append([torch.stack(values) for values in (*zip(*controlled, strict=True), *zip(*residuals, strict=True))])
    joined = [torch.stack(values) for values in zip(*heads, strict=True)]
    return EstimatedRanks(joined[0], joined[1], joined[2], joined[3], tuple(why), sweeps)


def _estimates_of_head(layer: LayerAttention, head: int, draw: int, tolerance: float) -> dict[str, rank.Estimate]:
    """Of the maps of a head and of the permuted ones; in draws after the first of the permuted ones alone."""
    maps = ImplicitMaps(layer, head, seed=head + draw * layer.n_heads)
    every = [name for name in _estimated_maps(layer) if draw == 0 or name.startswith(PERMUTED)]
    size = _at_once(layer)
    estimates: dict[str, rank.Estimate] = {}
    for first in range(0, len(every), size):
        estimates |= estimated_rank.estimate(maps, every[first : first + size], tolerance)
    return estimates


def bytes_of_estimates(layer: LayerAttention) -> int:
    """The memory that the estimated ranks of one head need at most, in bytes; 0 where all singular values are computed."""
    if _exact(layer):
        return 0
    return min(len(_estimated_maps(layer)), _at_once(layer)) * estimated_rank.bytes_of_one(layer)


def _at_once(layer: LayerAttention) -> int:
    """How many maps of a head go through the same sweeps."""
    return max(1, AT_ONCE // estimated_rank.bytes_of_one(layer))


def _estimated_maps(layer: LayerAttention) -> list[str]:
    """The maps of a head, and the permuted ones beside them."""
    names = _named_maps(layer)
    plain = [name for label in (*RANKED_MAPS, *MAPS) if (name := names[label])]
    permuted = [PERMUTED + name for label in RANKED_MAPS if (name := names[label])]
    return list(dict.fromkeys([*plain, *permuted]))


def _exact(layer: LayerAttention) -> bool:
    return max(layer.n_queries, layer.n_keys) <= rank.LARGEST


def attrs_of_ranks(request: Request) -> dict[str, str]:
    """Attributes of ranks: "estimated" says how, where they are, and "unknown" why some are NaN."""
    if _exact(request.layer):
        unknown = request.once(_spectra)[:, 0].isnan().any() | request.once(_spectra)[:, -1].isnan().any()  # A1 and D
        return {"unknown": "the map is not finite"} if unknown else {}
    estimates = request.once(_estimates)
    estimated = (
        f"matrix-free, in at most {estimates.sweeps} sweeps over the map; half-widths stand in the statistic of that name with "
        f"_error; NaN where one is above {estimated_rank.TOLERANCE:.0%} of its value"
    )
    return {"estimated": estimated} | ({"unknown": "; ".join(estimates.why[:REASONS])} if estimates.why else {})


def _ranks(request: Request) -> tuple[Tensor, Tensor]:
    """Effective ranks and their errors: (head, ranked map, definition, control) each."""
    if _exact(request.layer):
        return rank.controlled_ranks(request.once(_spectra))
    estimates = request.once(_estimates)
    return estimates.ranks, estimates.ranks_error


def _estimates(request: Request) -> EstimatedRanks:
    return estimated_ranks(request.layer)


def _spectra(request: Request) -> Tensor:
    """Singular values of whole maps and their controls: (head, ranked map, 2 + draw, singular value), float64."""
    layer = request.layer
    visible = layer.visible()
    uniform = rank.singular_values(rank.uniform_map(visible).to(layer.dtype))
    return torch.stack([_spectra_of_head(layer, head, visible, uniform) for head in range(layer.n_heads)]).cpu()


def _spectra_of_head(layer: LayerAttention, head: int, visible: Tensor, uniform: Tensor) -> Tensor:
    def spectra(a: Tensor) -> Tensor:  # every map of a head is permuted in the same way
        return rank.controlled_spectra(a, visible, torch.Generator().manual_seed(head), uniform)

    rows = layer.rows(heads=[head])
    a1 = spectra(rows.a1[0])
    subtracted = torch.full_like(a1, math.nan) if rows.a2 is None else spectra(rows.lam[0, :, None] * rows.a2[0])
    return torch.stack([a1, subtracted, a1 if layer.d_is_a1 else spectra(rows.d[0])])


def _named_maps(layer: LayerAttention) -> dict[str, str | None]:
    """Which map to take for each of ``MAPS`` and ``RANKED_MAPS``."""
    if not layer.differential:
        return {"A1": "A1", "A2": None, "lambda_A2": None, "D": "A1" if layer.d_is_a1 else "D"}
    scalar = layer.lam.shape[-1] == 1 and bool((layer.lam != 0).all())  # then it cancels, and lambda_A2 is as A2
    return {"A1": "A1", "A2": "A2", "lambda_A2": "A2" if scalar and not layer.changes else "lambda_A2", "D": "D"}


def _of_uniform(layer: LayerAttention, tolerance: float) -> rank.Estimate:
    if layer.mask.kind == "causal" and layer.n_queries == layer.n_keys:
        return rank.exact(rank.causal_uniform_singular_values(layer.n_keys))
    if layer.mask.kind == "full":  # all entries 1/key
        sigma = torch.zeros(min(layer.n_queries, layer.n_keys), dtype=torch.float64)
        sigma[0] = math.sqrt(layer.n_queries / layer.n_keys)
        return rank.exact(sigma)
    return estimated_rank.estimate(ImplicitMaps(layer, 0), ["uniform"], tolerance)["uniform"]


def _controlled(draws: list[dict[str, rank.Estimate]], name: str | None, uniform: rank.Estimate) -> tuple[Tensor, Tensor]:
    """Ranks of a map beside its controls, and their half-widths: (definition, control) each."""
    if name is None:
        nan = torch.full((len(rank.DEFINITIONS), len(rank.CONTROLS)), math.nan, dtype=torch.float64)
        return nan, nan
    all_of = (draws[0][name], uniform, *(estimates[PERMUTED + name] for estimates in draws))
    values = torch.stack([each.ranks for each in all_of], dim=-1)  # (definition, 2 + draw)
    errors = torch.stack([each.ranks_error for each in all_of], dim=-1)
    return rank.beside_controls(values, errors)


def _residuals(estimates: dict[str, rank.Estimate], name: str | None) -> tuple[Tensor, Tensor]:
    """Rank residuals of a map, and their half-widths: (rank,) each."""
    if name is None:
        nan = torch.full((len(rank.RESIDUAL_RANKS),), math.nan, dtype=torch.float64)
        return nan, nan
    return estimates[name].residuals, estimates[name].residuals_error
