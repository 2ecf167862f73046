"""The rank of an attention map: several definitions, always beside two controls.

A causal softmax matrix is triangular with a positive diagonal, so its algebraic rank is full, and "effective rank"
names two quantities that differ by orders of magnitude on one map. So :func:`ranks` gives all definitions by name,
and :func:`controlled_spectra` their controls: the uniform map over the same visible keys, whose erank grows like
sqrt(N) though it attends to nothing in particular, and the map with the weights of each row permuted among its
visible keys, which keeps every row statistic. One draw of the latter differs from another by some per cent, so it is
the mean of ``DRAWS``, with the standard error of that mean.

Maps above ``LARGEST`` rows or columns are refused; :mod:`diffscope.stats.ranks.estimated` estimates those.
"""

from dataclasses import dataclass

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from diffscope.errors import DiffscopeError

DEFINITIONS = ("erank", "erank_energy", "participation", "stable_rank", "r90")
CONTROLS = ("map", "uniform", "permuted", "ratio_uniform", "ratio_permuted")
RESIDUAL_RANKS = (1, 2, 4, 8, 16, 32, 64)
LABELS = (*DEFINITIONS, *(f"residual {r}" for r in RESIDUAL_RANKS))
LARGEST = 4096
DRAWS = 3  # of the permuted control


class MapTooLarge(DiffscopeError, ValueError):
    """The map is larger than its singular values can be computed exactly."""


@dataclass(frozen=True)
class Estimate:
    """Effective ranks and rank residuals of one map.

    Attributes
    ----------
    ranks, ranks_error : Tensor (definition,), float64
        In the order of ``DEFINITIONS``, and their half-widths; NaN where the half-width is above the tolerance; it is
        infinite where nothing is known.
    residuals, residuals_error : Tensor (rank,), float64
        In the order of ``RESIDUAL_RANKS``, and their half-widths. One that rounding does not tell from 0 is 0.
    why : dict of str to str
        By definition, or "residual r", why it is NaN.
    sweeps : int
        How often the map was computed.
    """

    ranks: Tensor
    ranks_error: Tensor
    residuals: Tensor
    residuals_error: Tensor
    why: dict[str, str]
    sweeps: int


def check_size(queries: int, keys: int) -> None:
    """Raise :class:`MapTooLarge` for a map above ``LARGEST`` rows or columns."""
    if max(queries, keys) > LARGEST:
        raise MapTooLarge(
            f"the effective rank of a map of {queries} x {keys} tokens would not be exact; the limit is {LARGEST}: "
            "use a shorter prompt, or leave effective_rank and rank_residual (the group rank) out"
        )


def singular_values(a: Tensor) -> Tensor:
    """Singular values of one map in descending order, exact to the digits the map was given with.

    A float64 map goes through an SVD. A float32 map goes through the eigenvalues of its Gram matrix in float64,
    where the products of its entries are exact: three times as fast, and resolved to 1e-8 of the largest, while the
    map's own rounding is 6e-8.

    Parameters
    ----------
    a : Tensor (query, key)

    Returns
    -------
    Tensor (min(query, key),), float64
        NaN for a map that is not finite.

    Raises
    ------
    MapTooLarge
    """
    check_size(*a.shape)
    return singular_values_held(a)


def singular_values_held(a: Tensor) -> Tensor:
    """The same of a map of any size, for one that is small in one direction."""
    if not a.isfinite().all():
        return torch.full((min(a.shape),), torch.nan, dtype=torch.float64, device=a.device)
    if a.dtype == torch.float64:
        return torch.linalg.svdvals(a)
    a = a.double() if a.shape[0] <= a.shape[1] else a.double().T
    return torch.linalg.eigvalsh(a @ a.T).flip(0).clamp_min(0).sqrt()


def ranks(sigma: Tensor) -> Tensor:
    """Every definition of effective rank, in the order of ``DEFINITIONS``.

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


def controlled_ranks(spectra: Tensor) -> tuple[Tensor, Tensor]:
    """Effective ranks of a map and its controls, and the map's ratio to each, with their errors: see :func:`beside_controls`.

    Parameters
    ----------
    spectra : Tensor (..., 2 + draw, singular value)
        Of the map, the uniform map and the permuted maps: :func:`controlled_spectra`.
    """
    values = ranks(spectra).movedim(-2, -1)  # (..., definition, 2 + draw)
    return beside_controls(values, 0 * values)


def beside_controls(values: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
    """Effective ranks of a map, its controls and its ratio to each, and their errors.

    To the error of the permuted control is added the standard error of the mean over its draws; ratios have the sum of the
    relative errors of their parts.

    Parameters
    ----------
    values, errors : Tensor (..., definition, 2 + draw)
        Of the map, the uniform map and each draw of the permuted map.

    Returns
    -------
    values, errors : Tensor (..., definition, control)
        In the order of ``CONTROLS``.
    """
    plain, draws = values[..., :2], values[..., 2:]
    spread = draws.std(-1, keepdim=True) / draws.shape[-1] ** 0.5
    values = torch.cat([plain, draws.mean(-1, keepdim=True)], dim=-1)
    errors = torch.cat([errors[..., :2], errors[..., 2:].mean(-1, keepdim=True) + spread], dim=-1)
    ratios = values[..., :1] / values[..., 1:]
    shares = errors / values
    ratio_errors = ratios * (shares[..., :1] + shares[..., 1:])
    return torch.cat([values, ratios], dim=-1), torch.cat([errors, ratio_errors], dim=-1)


def rank_residual(sigma: Tensor, ranks: tuple[int, ...] = RESIDUAL_RANKS) -> Tensor:
    """What the best approximation of rank r leaves: |A - A_r| / |A| in Frobenius norm (Eckart & Young 1936).

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


def exact(sigma: Tensor) -> Estimate:
    """Of all singular values of a map, (singular value,) in descending order, float64."""
    values = ranks(sigma)
    residuals = rank_residual(sigma)
    return Estimate(values, torch.zeros_like(values), residuals, torch.zeros_like(residuals), {}, 0)


def controlled_spectra(a: Tensor, visible: Tensor, generator: torch.Generator, uniform: Tensor | None = None) -> Tensor:
    """Singular values of a map, of the uniform map, and of the map with each row's visible keys permuted, ``DRAWS`` times.

    Parameters
    ----------
    a : Tensor (query, key)
    visible : BoolTensor (query, key)
    generator : torch.Generator
        On the CPU; decides the permutations.
    uniform : Tensor (singular value,), optional
        Singular values of the uniform map, where they are known already.

    Returns
    -------
    Tensor (2 + draw, singular value), float64
    """
    uniform = singular_values(uniform_map(visible).to(a.dtype)) if uniform is None else uniform
    permuted = [singular_values(permute_visible(a, visible, generator)) for _ in range(DRAWS)]
    return torch.stack([singular_values(a), uniform, *permuted])


def uniform_map(visible: Tensor) -> Tensor:
    """The map that gives every visible key of a row the same weight.

    Parameters
    ----------
    visible : BoolTensor (query, key)

    Returns
    -------
    Tensor (query, key), float64
    """
    return visible.double() / visible.sum(-1, keepdim=True).clamp_min(1)


def causal_uniform_singular_values(n: int) -> Tensor:
    """Singular values of the uniform causal map of n tokens, exact for tens of thousands.

    The map is U = diag(1/t)·L with L the lower triangle of ones, so its inverse is bidiagonal, with t on the diagonal and
    -(t - 1) before it, and (UᵀU)⁻¹ is tridiagonal: t² + (t - 1)² on the diagonal, -t² beside it.

    Parameters
    ----------
    n : int

    Returns
    -------
    Tensor (singular value,), float64, descending
    """
    squares = np.arange(n + 1, dtype=np.float64) ** 2
    inverse = scipy.linalg.eigvalsh_tridiagonal(squares[1:] + squares[:-1], -squares[1:-1], lapack_driver="sterf")
    return torch.from_numpy(inverse).rsqrt()


def permute_visible(a: Tensor, visible: Tensor, generator: torch.Generator) -> Tensor:
    """The map with the weights of each row permuted among the keys that the row can see.

    Parameters
    ----------
    a : Tensor (query, key)
    visible : BoolTensor (query, key)
    generator : torch.Generator
        On the CPU, so that one seed gives one permutation on every device.

    Returns
    -------
    Tensor (query, key)
    """
    draw = torch.rand(a.shape, generator=generator).to(a.device)
    shuffled = draw.masked_fill(~visible, 2).argsort(-1)  # (query, key): visible keys first, in random order
    in_order = (~visible).byte().argsort(dim=-1, stable=True)  # (query, key): visible keys first, ascending
    return torch.zeros_like(a).scatter(-1, in_order, a.gather(-1, shuffled))
