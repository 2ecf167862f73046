"""Effective ranks of an attention map from all of its singular values, by several definitions, and their controls.

A causal softmax map is triangular with a positive diagonal, so its algebraic rank is full, and "effective rank" names
quantities that differ by orders of magnitude on one map. So :func:`ranks` computes all definitions by name. Two controls are
reported with them: the uniform map over the same visible keys, whose erank grows like sqrt(N) though it attends to nothing in
particular, and the map with the weights of each row permuted among its visible keys, which leaves every row statistic as it is.
One permutation differs from another by some per cent, so that control is the mean of ``DRAWS``, with the standard error of that
mean.

The ranks of layers above ``LARGEST`` queries or keys are estimated by :mod:`diffscope.stats.ranks.estimated`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from diffscope.attention.changes import permuted

DEFINITIONS = ("erank", "erank_energy", "participation", "stable_rank", "r90")
CONTROLS = ("map", "uniform", "permuted", "ratio_uniform", "ratio_permuted")
RESIDUAL_RANKS = (1, 2, 4, 8, 16, 32, 64)
LABELS = (*DEFINITIONS, *(f"residual {r}" for r in RESIDUAL_RANKS))
LARGEST = 4096
DRAWS = 3  # permutations of each map


@dataclass(frozen=True)
class Estimate:
    """Effective ranks and rank residuals of one map, with bounds on their errors; all errors are 0 if computed exactly.

    Attributes
    ----------
    ranks, ranks_error : Tensor, float64 (definition,)
        In the order of ``DEFINITIONS``, and their half-widths. A rank is NaN if its half-width is above the tolerance, and the
        half-width is infinite if nothing is known.
    residuals, residuals_error : Tensor, float64 (rank,)
        In the order of ``RESIDUAL_RANKS``, and their half-widths. A residual that rounding cannot tell from 0 is 0.
    why : dict of str to str
        By definition, or "residual r": the reason why that value is NaN.
    sweeps : int
        Number of times that the map was computed; 0 if all of its singular values are known.
    """

    ranks: Tensor
    ranks_error: Tensor
    residuals: Tensor
    residuals_error: Tensor
    why: dict[str, str]
    sweeps: int


def estimate(a: Tensor) -> Estimate:
    """Compute the ranks of one map, (query, key), from all of its singular values."""
    return from_singular_values(singular_values(a).cpu())


def from_singular_values(sigma: Tensor) -> Estimate:
    """Return the ranks of a map whose singular values are known, float64 (singular value,) in descending order."""
    if not sigma.isfinite().all():
        return unknown("the map is not finite")
    if not sigma.any():
        return unknown("the map is zero")
    values = ranks(sigma)
    residuals = rank_residual(sigma)
    return Estimate(values, torch.zeros_like(values), residuals, torch.zeros_like(residuals), {}, 0)


def unknown(why: str) -> Estimate:
    """Return an estimate in which every value is NaN, for one reason."""
    values, residuals = (torch.full((len(x),), math.nan, dtype=torch.float64) for x in (DEFINITIONS, RESIDUAL_RANKS))
    return Estimate(values, values, residuals, residuals, dict.fromkeys(LABELS, why), 0)


def singular_values(a: Tensor) -> Tensor:
    """Compute the singular values of one map, exact to the precision of the map.

    A float64 map is decomposed by an SVD. Of a float32 map the eigenvalues of its Gram matrix in float64 are computed, where the
    products of its entries are exact: that is three times as fast, and resolves 1e-8 of the largest value, while the map's
    rounding is 6e-8.

    Parameters
    ----------
    a : Tensor (query, key)

    Returns
    -------
    Tensor, float64 (min(query, key),)
        In descending order; NaN for a map that is not finite.
    """
    if not a.isfinite().all():
        return torch.full((min(a.shape),), torch.nan, dtype=torch.float64, device=a.device)
    if a.dtype == torch.float64:
        return torch.linalg.svdvals(a)
    a = a.double() if a.shape[0] <= a.shape[1] else a.double().T
    return torch.linalg.eigvalsh(a @ a.T).flip(0).clamp_min(0).sqrt()


def ranks(sigma: Tensor) -> Tensor:
    """Compute every definition of effective rank, in the order of ``DEFINITIONS``.

    ============= =========================================================================
    erank         exp(H(sigma / sum sigma)) (Roy & Vetterli 2007)
    erank_energy  exp(H(sigma² / sum sigma²))
    participation (sum sigma²)² / sum sigma⁴
    stable_rank   sum sigma² / max sigma²
    r90           the fewest sigma² that hold 90 % of their sum
    ============= =========================================================================

    Parameters
    ----------
    sigma : Tensor (..., singular value), descending

    Returns
    -------
    Tensor (..., definition)
        Each between 1 and the number of singular values. NaN for a map of zeros.
    """
    p = sigma / sigma.sum(-1, keepdim=True)
    energy = sigma.square() / sigma.square().sum(-1, keepdim=True)
    missing = (energy.cumsum(-1) < 0.9 - 1e-9).sum(-1).to(sigma.dtype)  # 90 % but for rounding is 90 %
    return torch.stack(
        [
            torch.special.entr(p).sum(-1).exp(),
            torch.special.entr(energy).sum(-1).exp(),
            energy.square().sum(-1).reciprocal(),
            energy[..., 0].reciprocal(),
            missing + 1 + 0 * energy[..., 0],  # NaN for a map of zeros
        ],
        dim=-1,
    )


def beside_controls(of_map: Estimate, uniform: Estimate, draws: Sequence[Estimate]) -> tuple[Tensor, Tensor]:
    """Combine the effective ranks of a map with those of its controls, and divide them by each control.

    To the error of the permuted control the standard error of the mean over its draws is added; a ratio has the sum of the
    relative errors of its parts. Values and errors are float64 (definition, control), in the order of ``CONTROLS``.
    """
    every = (of_map, uniform, *draws)
    values = torch.stack([each.ranks for each in every], dim=-1)  # (definition, 2 + draw)
    errors = torch.stack([each.ranks_error for each in every], dim=-1)
    spread = values[..., 2:].std(-1, keepdim=True) / len(draws) ** 0.5
    values = torch.cat([values[..., :2], values[..., 2:].mean(-1, keepdim=True)], dim=-1)
    errors = torch.cat([errors[..., :2], errors[..., 2:].mean(-1, keepdim=True) + spread], dim=-1)
    ratios = values[..., :1] / values[..., 1:]
    shares = errors / values
    ratio_errors = ratios * (shares[..., :1] + shares[..., 1:])
    return torch.cat([values, ratios], dim=-1), torch.cat([errors, ratio_errors], dim=-1)


def rank_residual(sigma: Tensor, ranks: tuple[int, ...] = RESIDUAL_RANKS) -> Tensor:
    """Compute the error of the best approximation of rank r: |A - A_r| / |A| in Frobenius norm (Eckart & Young 1936).

    Parameters
    ----------
    sigma : Tensor (..., singular value), descending

    Returns
    -------
    Tensor (..., rank)
        Between 0 and 1, and 0 from the size of the map on. NaN for a map of zeros.
    """
    energy = sigma.square().flip(-1).cumsum(-1).flip(-1)  # (..., singular value): what is left from each one on
    energy = torch.cat([energy, torch.zeros_like(energy[..., :1])], dim=-1)
    last = torch.tensor(ranks, device=sigma.device).clamp_max(sigma.shape[-1])
    return (energy[..., last] / energy[..., :1]).sqrt()


def permuted_estimates(a: Tensor, visible: Tensor, seed: int) -> list[Estimate]:
    """Compute the ranks of a map (query, key) with each row's visible keys permuted, for each of ``DRAWS`` permutations.

    Maps with the same seed are permuted alike.
    """
    generator = torch.Generator().manual_seed(seed)
    return [estimate(permute_visible(a, visible, generator)) for _ in range(DRAWS)]


def uniform_map(visible: Tensor) -> Tensor:
    """Return the map that gives every visible key of a row the same weight.

    Parameters
    ----------
    visible : BoolTensor (query, key)

    Returns
    -------
    Tensor (query, key), float64
    """
    return visible.double() / visible.sum(-1, keepdim=True).clamp_min(1)


def causal_uniform_singular_values(n: int) -> Tensor:
    """Compute the singular values of the uniform causal map of n tokens, descending, exactly for tens of thousands.

    The map is U = diag(1/t)·L with L the lower triangle of ones. So its inverse is bidiagonal, with t on the diagonal and 1 - t
    before it, and (UᵀU)⁻¹ is tridiagonal, with t² + (t - 1)² on the diagonal and -t² beside it.
    """
    squares = np.arange(n + 1, dtype=np.float64) ** 2
    inverse = scipy.linalg.eigvalsh_tridiagonal(squares[1:] + squares[:-1], -squares[1:-1], lapack_driver="sterf")
    return torch.from_numpy(inverse).rsqrt()


def permute_visible(a: Tensor, visible: Tensor, generator: torch.Generator) -> Tensor:
    """Permute the weights of each row of a map (query, key) among the keys that the row can see.

    The generator is on the CPU, so that one seed gives one permutation on every device.
    """
    return permuted(a, visible, torch.rand(a.shape, generator=generator).to(a.device))
