"""Estimate effective ranks of maps that are never in memory, each with a bound on its error.

The singular values come from a block Lanczos run (:mod:`diffscope.stats.ranks.lanczos`). Its leading Ritz values count as they
are, one each, until the random vectors see another number of them: a run from 64 vectors finds a value that is there 1,000 times
only 64 times. All other values are summed by two quadratures, which lie on the two sides of the truth; the tests find the same of
the entropy that is made of such sums.

A half-width is half the distance of the two quadratures, three standard errors over the random vectors, and the largest effect
of the rounding of the products. A map of few queries or few keys is held in memory, and its singular values are exact.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.stats.ranks.exact import (
    DEFINITIONS,
    LABELS,
    RESIDUAL_RANKS,
    Estimate,
    from_singular_values,
    singular_values,
    unknown,
)
from diffscope.stats.ranks.implicit_map import ImplicitMaps
from diffscope.stats.ranks.lanczos import Lanczos, Spectrum

SWEEPS = 30  # at most; each computes the maps once, and costs two forwards
WIDTH = 64  # random vectors, two or more
SEED = 0  # of the random vectors
CHECKED_AFTER = (6, 10, 15, 22)  # sweeps, after which it is seen whether they were enough
HELD_UP_TO = 256  # queries or keys of a map that is held in memory
CONVERGED = 1e-3  # residual of a Ritz value over the value
ROUNDING = 8  # of a share of the energy, in units of the dtype
TOLERANCE = 0.05  # largest half-width of a reported value, as a share of it


@torch.no_grad()
def estimate(maps: ImplicitMaps, names: Iterable[str]) -> dict[str, Estimate]:
    """Estimate effective ranks and rank residuals of some maps of a head, by name, all from the same sweeps.

    Sweeps end when all half-widths are within ``TOLERANCE``, or nothing new is to be seen; ``SWEEPS``·``WIDTH``·(query + key)
    values of each map are in memory.
    """
    names = list(names)
    energy = maps.frobenius2(names)
    estimates = {name: unknown("the map is zero" if energy[name] == 0 else "the map is not finite") for name in names}
    regular = [name for name in names if 0 < energy[name] < math.inf]
    if min(maps.shape) <= HELD_UP_TO:
        return estimates | _of_held(maps, regular)
    width = min(WIDTH, *maps.shape)
    sweeps = max(1, min(SWEEPS, maps.shape[1] // width))
    generator = torch.Generator().manual_seed(SEED)
    runs = {name: Lanczos(maps, width, sweeps, generator) for name in regular}
    closest = {name: torch.tensor([[math.nan, math.inf]], dtype=torch.float64).repeat(len(LABELS), 1) for name in regular}
    for sweep in range(1, sweeps + 1):
        if not runs:
            break
        for name, (image, product) in maps.gram({name: run.block for name, run in runs.items()}).items():
            runs[name].add(image, product)
        for name, run in list(runs.items()):
            if sweep in CHECKED_AFTER or sweep == sweeps or run.exhausted:
                closest[name] = _closer(closest[name], _values(run, energy[name]))
                estimates[name] = _within(closest[name], TOLERANCE, run.sweeps)
                if run.exhausted or not estimates[name].why:
                    del runs[name]
    return estimates


def _closer(before: Tensor, now: Tensor) -> Tensor:
    """Return the values, (label, 2), with the smaller half-width each: with rounding, later is not always better."""
    return torch.where((now[:, 1] <= before[:, 1])[:, None], now, before)


def bytes_of_one(layer: LayerAttention) -> int:
    """Return the memory that :func:`estimate` needs at most for each map of a head, in bytes: that of a run, or of the map."""
    queries = layer.n_queries
    keys = layer.n_keys
    if min(queries, keys) <= HELD_UP_TO:
        return queries * keys * (layer.dtype.itemsize + torch.float64.itemsize)
    columns = min(SWEEPS * WIDTH, keys)
    return columns * (queries + keys) * layer.dtype.itemsize + columns**2 * torch.float64.itemsize


def _log_erank(spectrum: Spectrum) -> tuple[Tensor, Tensor]:
    """Return H(sigma / sum sigma) = ln S - T/S with S = sum sigma, T = sum sigma ln sigma, and its errors."""
    s, errors_s = spectrum.sum_of(torch.sqrt)
    t, errors_t = spectrum.sum_of(lambda x: -torch.special.entr(x.sqrt()))
    return s.log() - t / s, ((1 + t / s) * errors_s - errors_t) / s


def _log_erank_energy(spectrum: Spectrum) -> tuple[Tensor, Tensor]:
    return spectrum.sum_of(lambda x: torch.special.entr(x / spectrum.energy))


def _log_participation(spectrum: Spectrum) -> tuple[Tensor, Tensor]:
    s, errors = spectrum.sum_of(lambda x: (x / spectrum.energy).square())
    return -s.log(), -errors / s


LOGARITHMS = {"erank": _log_erank, "erank_energy": _log_erank_energy, "participation": _log_participation}


def _values(run: Lanczos, energy: float) -> Tensor:
    """Return value and half-width of all ``LABELS``, (label, 2), after the sweeps so far; infinite half-widths if unknown."""
    nodes, weights, others, other_weights, residuals = run.quadratures()
    top = _counted(nodes, weights, residuals, run.epsilon)
    rest = (run.keys - top, energy, run.epsilon)
    gauss = Spectrum(nodes[:top], nodes[top:], weights[top:], *rest)
    radau = Spectrum(others[:top], others[top:], other_weights[top:], *rest)
    values = {name: _by_quadrature(function, gauss, radau) for name, function in LOGARITHMS.items()}
    least, most = _partial_sums(nodes, residuals, top, run)
    values["stable_rank"] = _between(energy / most[1], energy / least[1])
    values["r90"] = _r90(least, most, gauss, radau)
    ranks = torch.tensor([values[name] for name in DEFINITIONS], dtype=torch.float64)  # (definition, 2)
    least_rank = 1 - ROUNDING * run.epsilon  # a map of rank one may come out a little below
    possible = (ranks.sum(1) >= least_rank) & (ranks[:, 0] - ranks[:, 1] <= min(run.queries, run.keys))  # false for NaN
    ranks[~possible, 1] = math.inf
    floor = math.sqrt(ROUNDING * run.epsilon)
    left = torch.tensor([_residual(least, most, energy, r, floor) for r in RESIDUAL_RANKS], dtype=torch.float64)
    return torch.cat([ranks, left])


def _counted(nodes: Tensor, weights: Tensor, residuals: Tensor, epsilon: float) -> int:
    """Count the nodes that have converged to one eigenvalue each.

    Each such node has the mass 1 in the mean over the probes, with a variance of 2 for each probe (a squared normal number).
    One that stands for many eigenvalues has more, and is left to the quadrature, with all below it. So is a value that is
    shared by as many nodes as there are probes: a run finds it no more often.
    """
    number = torch.arange(1, len(nodes) + 1)
    probes = weights.shape[1]
    away = (weights.mean(1) - 1).cumsum(0).abs() > 5 * (2 * number / probes).sqrt()
    shared = torch.zeros_like(away)
    shared[: len(nodes) + 1 - probes] = nodes[probes - 1 :] > (1 - CONVERGED) * nodes[: len(nodes) + 1 - probes]
    loose = (residuals > CONVERGED * nodes) | ((away | shared) & (nodes > epsilon * nodes[0]))
    return int(loose.int().argmax()) if loose.any() else len(nodes)


def _within(values: Tensor, tolerance: float, sweeps: int) -> Estimate:
    """Return an estimate of values and half-widths, (label, 2); NaN where the half-width is above `tolerance` of the value."""
    value, error = values.T
    known = error <= tolerance * value  # false for NaN
    known |= (value == 0) & error.isfinite()  # a residual within rounding
    share = (error / value).tolist()
    why = {}
    for i, label in enumerate(LABELS):
        if not known[i] and math.isfinite(share[i]):
            why[label] = f"within {share[i]:.0%} after {sweeps} sweeps, {tolerance:.0%} asked"
        elif not known[i]:
            why[label] = f"no possible value and bound after {sweeps} sweeps"
    value = value.masked_fill(~known, math.nan)
    n = len(DEFINITIONS)
    return Estimate(value[:n], error[:n], value[n:], error[n:], why, sweeps)


def _by_quadrature(function: Callable, gauss: Spectrum, radau: Spectrum) -> tuple[float, float]:
    """Return exp of a function of the spectrum, and its half-width."""
    first, errors = function(gauss)
    second, other_errors = function(radau)
    noise = 3 * max(errors.norm(), other_errors.norm())
    rounding = (function(gauss.rounded())[0] - first).abs()
    value = float(((first + second) / 2).exp())
    half = (first - second).abs() / 2 + noise + rounding
    return value, value * float(half.expm1())  # infinite where it overflows


def _between(low: Tensor | float, high: Tensor | float) -> tuple[float, float]:
    return float(low + high) / 2, float(high - low) / 2


def _partial_sums(nodes: Tensor, residuals: Tensor, top: int, run: Lanczos) -> tuple[Tensor, Tensor]:
    """Return bounds on the sum of the r largest eigenvalues for r = 0 ... key: (key + 1,) each.

    Ritz values are below the eigenvalues they stand for (Cauchy), by no more than their residual once they have converged;
    all other eigenvalues are below the last of those.
    """
    lower = torch.zeros(run.keys, dtype=torch.float64)
    lower[: len(nodes)] = nodes
    largest = (nodes + residuals)[: max(top, 1)]
    upper = largest[-1].repeat(run.keys)
    upper[: len(largest)] = largest
    zero = torch.zeros(1, dtype=torch.float64)
    rounding = 2 * run.epsilon
    return torch.cat([zero, lower.cumsum(0)]) * (1 - rounding), torch.cat([zero, upper.cumsum(0)]) * (1 + rounding)


def _r90(least: Tensor, most: Tensor, gauss: Spectrum, radau: Spectrum) -> tuple[float, float]:
    """Return the middle and half-width of r90: from the Ritz values, or from the quadratures if they are closer."""
    enough = (0.9 - 1e-9) * gauss.energy
    first, errors = _quantile(gauss)
    second, other_errors = _quantile(radau)
    noise = 3 * max(errors.norm(), other_errors.norm())  # a kink: neither quadrature is on a known side of the truth
    estimate = float(first + second) / 2 + 0.5, float(2 * (first - second).abs() + noise) + 0.5
    if least[-1] < enough:  # the Ritz values hold less than 90 %
        return estimate
    bracket = _between(int((most < enough).sum()), int((least < enough).sum()))
    return min(bracket, estimate, key=lambda each: each[1])


def _quantile(spectrum: Spectrum, share: float = 0.9) -> tuple[Tensor, Tensor]:
    """Return how many eigenvalues hold a share of the energy, between integers, and its errors.

    The r largest hold at most r·t + sum max(x - t, 0) for any t, and just that for the r-th eigenvalue t. So r is the largest
    (share·energy - sum max(x - t, 0)) / t of all t, and an error of t makes one of second order.
    """
    rest = spectrum.weights.mean(1) * spectrum.nodes
    rest = rest * (spectrum.energy - spectrum.top.sum()) / rest.sum().clamp_min(torch.finfo(rest.dtype).tiny)
    held = torch.cat([spectrum.top, rest]).cumsum(0)
    position = int((held < share * spectrum.energy).sum().clamp_max(len(held) - 1))
    t = torch.cat([spectrum.top, spectrum.nodes])[position]
    above, errors = spectrum.sum_of(lambda x: (x - t).clamp_min(0))
    return (share * spectrum.energy - above) / t, errors / t


def _residual(least: Tensor, most: Tensor, energy: float, r: int, floor: float) -> tuple[float, float]:
    """Return middle and half-width of |A - A_r| / |A|, or 0 if it is certainly below the floor."""
    shares = torch.stack([1 - most[r] / energy, 1 - least[r] / energy])
    low, high = shares.clamp_min(0).sqrt().tolist()
    return _between(low, high) if high > floor else (0.0, high)


def _of_held(maps: ImplicitMaps, names: list[str]) -> dict[str, Estimate]:
    """Estimate maps of few queries or few keys, from all of their singular values."""
    queries, keys = maps.shape
    every = torch.eye(min(maps.shape), dtype=maps.layer.dtype, device=maps.layer.q.device)

    def held(name: str) -> Tensor:  # each entry once: exact
        return maps.transposed({name: every})[name] if queries <= keys else maps.gram({name: every})[name][0]

    return {name: from_singular_values(singular_values(held(name)).cpu()) for name in names}
