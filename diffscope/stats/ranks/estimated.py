"""Effective ranks of maps that are never held, each with a bound on its error.

A block Lanczos run on G = AᵀA from random vectors gives three things at once (Golub & Meurant 2010, chapters 4 and 7):

- its leading Ritz values converge to the largest singular values squared, and those count as they are, one each, until the
  random vectors see another number of them: a run from 64 vectors finds a value that is there 1,000 times only 64 times;
- the rest of the spectrum is seen through the random vectors: the squared first components of the other Ritz vectors
  are the weights of a quadrature, whose expected mass (how many values are left) and first moment (the energy
  that is left) are known exactly and take most of the noise out of all other sums;
- Gauss and Gauss-Radau quadrature (a node at 0) of the same run lie on the two sides of the truth for the square root and
  for x·ln x (Zimmerling, Druskin & Simoncini 2024), and, as the tests find, for the entropy that is made of such sums.

A half-width is half the distance of the two quadratures, three standard errors over the random vectors, and what the
rounding of the products can do. Products are made in the dtype of the maps, float32; all small matrices are float64.
A map of few queries or few keys is held, and its singular values are exact.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.stats.ranks.exact import DEFINITIONS, LABELS, RESIDUAL_RANKS, Estimate, exact, singular_values_held
from diffscope.stats.ranks.implicit_map import ImplicitMaps

SWEEPS = 30  # each computes the maps once, and costs two forwards
WIDTH = 64
LOOKS = (6, 10, 15, 22)  # after how many sweeps it is seen whether they were enough
FEW = 256  # of so many queries or keys, a map is held whole
CONVERGED = 1e-3  # residual of a Ritz value over the value
ROUNDING = 8  # of a share of the energy, in units of the dtype
TOLERANCE = 0.05  # half-width of what is given, as a share of its value


@torch.no_grad()
def estimate(
    maps: ImplicitMaps,
    names: Iterable[str],
    tolerance: float = TOLERANCE,
    sweeps: int = SWEEPS,
    width: int = WIDTH,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Effective ranks and rank residuals of some maps of a head, all from the same sweeps.

    Parameters
    ----------
    maps : ImplicitMaps
    names : iterable of str
        Which maps.
    tolerance : float
        The largest half-width, as a share of the value. Sweeps end when all are within it, or nothing new is to be seen.
    sweeps, width : int
        At most so many sweeps, of so many vectors (two or more) for each map, of which `sweeps`·`width`·(query + key) values
        are held.
    seed : int
        Of the random vectors.

    Returns
    -------
    dict of str to Estimate
    """
    names = list(names)
    energy = maps.frobenius2(names)
    estimates = {name: _unknown("the map is zero" if energy[name] == 0 else "the map is not finite") for name in names}
    regular = [name for name in names if 0 < energy[name] < math.inf]
    if min(maps.shape) <= FEW:
        return estimates | _of_held(maps, regular)
    width = min(width, *maps.shape)
    sweeps = max(1, min(sweeps, maps.shape[1] // width))
    generator = torch.Generator().manual_seed(seed)
    runs = {name: _Run(maps, width, sweeps, generator) for name in regular}
    for sweep in range(1, sweeps + 1):
        if not runs:
            break
        for name, (image, product) in maps.gram({name: run.block for name, run in runs.items()}).items():
            runs[name].add(image, product)
        for name, run in list(runs.items()):
            if sweep in LOOKS or sweep == sweeps or run.exhausted:
                run.look(energy[name])
                estimates[name] = _close_enough(run, tolerance)
                if run.exhausted or not estimates[name].why:
                    del runs[name]
    return estimates


def bytes_of_one(layer: LayerAttention, sweeps: int = SWEEPS, width: int = WIDTH) -> int:
    """The memory that :func:`estimate` needs at most for each map of a head: what it holds of a run, or the map."""
    queries = layer.n_queries
    keys = layer.n_keys
    if min(queries, keys) <= FEW:
        return queries * keys * (layer.dtype.itemsize + torch.float64.itemsize)
    columns = min(sweeps * width, keys)
    return columns * (queries + keys) * layer.dtype.itemsize + columns**2 * torch.float64.itemsize


class _Run:
    """Block Lanczos on G = AᵀA with full reorthogonalisation.

    The projected matrix is taken from the images, QᵀGQ = (AQ)ᵀ(AQ): so its rounding is relative to each singular value and
    not to the square of the largest.

    Attributes
    ----------
    block : Tensor (key, width)
        What the next sweep multiplies.
    projected : Tensor (m, m), float64
        QᵀGQ on the m vectors so far.
    start : Tensor (width, probe), float64
        The random vectors in terms of the first block.
    following : Tensor (width, width), float64
        What of G·(last block) is off the basis, in terms of `block`.
    seen : Tensor (label, 2), float64
        The closest value of each of ``LABELS`` so far, and its half-width.
    """

    def __init__(self, maps: ImplicitMaps, width: int, sweeps: int, generator: torch.Generator):
        self.queries, self.keys = maps.shape
        dtype = maps.layer.dtype
        device = maps.layer.q.device
        self._basis = torch.empty(self.keys, sweeps * width, dtype=dtype, device=device)
        self._images = torch.empty(self.queries, sweeps * width, dtype=dtype, device=device)
        self.width = width
        self.sweeps = 0
        self.epsilon = torch.finfo(dtype).eps
        self.projected = torch.empty(0, 0, dtype=torch.float64, device=device)
        start = torch.randn(self.keys, width, generator=generator, dtype=torch.float64).to(device)
        block, self.start = torch.linalg.qr(start)
        self.block = block.to(dtype)
        self.seen = torch.tensor([[math.nan, math.inf]], dtype=torch.float64).repeat(len(LABELS), 1)

    @property
    def exhausted(self) -> bool:
        """Whether what is off the basis is the rounding of Aᵀ·(A·block): nothing that the random vectors reach is left."""
        image2 = self.projected.diagonal()[-self.width :].sum()
        return bool(self.following.norm() <= self.epsilon * (self.projected.norm() * image2).sqrt())

    def look(self, energy: float) -> None:
        """See how close the values are now, and keep what was closer before: with rounding, later is not always better."""
        now = _estimate(self, energy)
        self.seen = torch.where((now[:, 1] <= self.seen[:, 1])[:, None], now, self.seen)

    def add(self, image: Tensor, product: Tensor) -> None:
        """Take A·block (query, width) and AᵀA·block (key, width)."""
        held = self.sweeps * self.width
        size = held + self.width
        self._basis[:, held:size] = self.block
        self._images[:, held:size] = image
        image = image.double()
        column = torch.cat([piece.double().T @ image for piece in self._images[:, :size].split(self.width, dim=1)])
        grown = column.new_empty(size, size)
        grown[:held, :held] = self.projected
        grown[:, held:] = column
        grown[held:] = column.T
        self.projected = grown
        self.sweeps += 1
        if size + self.width <= self._basis.shape[1]:
            block, first = torch.linalg.qr(self._off_basis(product, size).double())
            block, second = torch.linalg.qr(self._off_basis(block.to(product.dtype), size).double())
            self.block = block.to(product.dtype)
            self.following = second @ first
        else:
            self.following = torch.linalg.qr(self._off_basis(product, size).double())[1]

    def _off_basis(self, x: Tensor, size: int) -> Tensor:
        basis = self._basis[:, :size]
        for _ in range(2):  # once leaves what rounding put back
            x = x - basis @ (basis.T @ x)
        return x

    def quadratures(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gauss and Gauss-Radau nodes (node,) and weights (node, probe), largest node first, in float64 on the CPU.

        The last of the five are the residuals (node,) of the Gauss nodes as eigenvalues of G.
        """
        m = len(self.projected)
        width = self.width
        nodes, vectors = torch.linalg.eigh(self.projected)
        nodes = nodes.clamp_min(nodes[-1] * 1e-15)
        last = self.following @ vectors[-width:]  # (width, node): what G takes each Ritz vector to off the basis
        radau = nodes.new_zeros(m + width, m + width)
        radau[:m, :m] = self.projected
        radau[m:, m - width : m] = self.following
        radau[m - width : m, m:] = self.following.T
        radau[m:, m:] = last / nodes @ last.T  # makes 0 a node
        others, other_vectors = torch.linalg.eigh(radau)

        def weights(vectors: Tensor) -> Tensor:  # (node, probe)
            return (vectors[:width].T @ self.start).square().flip(0).cpu()

        return (
            nodes.flip(0).cpu(),
            weights(vectors),
            others.clamp_min(0).flip(0).cpu(),
            weights(other_vectors),
            last.norm(dim=0).flip(0).cpu(),
        )


@dataclass(frozen=True)
class _Spectrum:
    """The eigenvalues of G: some that count as they are, and a quadrature for the rest.

    Attributes
    ----------
    top : Tensor (value,)
    nodes : Tensor (node,)
    weights : Tensor (node, probe)
        Their mean over the probes stands for the number of eigenvalues.
    left : float
        Number of eigenvalues beyond `top`.
    energy : float
        Of the whole map: the sum of all eigenvalues.
    epsilon : float
        Of the products.
    """

    top: Tensor
    nodes: Tensor
    weights: Tensor
    left: float
    energy: float
    epsilon: float

    def sum_of(self, f: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """The sum of f over all eigenvalues, f(0) = 0, and its errors: (probe + 1,), whose norm is the standard error.

        The straight line that fits f best under the quadrature is summed exactly, from the mass and the energy that are
        left; the probes are only asked about the difference. The energy is known to some digits, so where the probes know
        what is left of it better, the line is flattened.
        """
        probes = self.weights.shape[1]
        density = self.weights.mean(1)
        values = f(self.nodes)
        mass = density.sum().clamp_min(torch.finfo(torch.float64).tiny)
        mean = density @ self.nodes / mass
        mean_value = density @ values / mass
        centred = self.nodes - mean
        slope = density @ (centred * (values - mean_value)) / (density @ centred.square()).clamp_min(1e-300)
        rounding = self.epsilon * self.energy
        noise = (self.weights.T @ self.nodes).var() / probes
        slope = slope * noise / (noise + rounding**2)
        line = mean_value - slope * mean
        by_probe = self.weights.T @ (values - line - slope * self.nodes)  # (probe,)
        total = f(self.top).sum() + line * self.left + slope * (self.energy - self.top.sum()) + by_probe.mean()
        errors = (by_probe - by_probe.mean()) / math.sqrt(probes * (probes - 1))
        return total, torch.cat([errors, (slope * rounding)[None]])

    def rounded(self) -> "_Spectrum":
        """The same with every singular value as much larger as rounding may have made it smaller."""
        shift = 2 * self.epsilon * float(torch.cat([self.top, self.nodes]).max().sqrt())
        return replace(self, top=(self.top.sqrt() + shift).square(), nodes=(self.nodes.sqrt() + shift).square())


def _log_erank(spectrum: _Spectrum) -> tuple[Tensor, Tensor]:
    """H(sigma / sum sigma) = ln S - T/S with S = sum sigma, T = sum sigma ln sigma, and its errors."""
    s, errors_s = spectrum.sum_of(torch.sqrt)
    t, errors_t = spectrum.sum_of(lambda x: -torch.special.entr(x.sqrt()))
    return s.log() - t / s, ((1 + t / s) * errors_s - errors_t) / s


def _log_erank_energy(spectrum: _Spectrum) -> tuple[Tensor, Tensor]:
    return spectrum.sum_of(lambda x: torch.special.entr(x / spectrum.energy))


def _log_participation(spectrum: _Spectrum) -> tuple[Tensor, Tensor]:
    s, errors = spectrum.sum_of(lambda x: (x / spectrum.energy).square())
    return -s.log(), -errors / s


LOGARITHMS = {"erank": _log_erank, "erank_energy": _log_erank_energy, "participation": _log_participation}


def _estimate(run: _Run, energy: float) -> Tensor:
    """Value and half-width of all ``LABELS``, (label, 2), as the run stands; the half-width is infinite where there is none."""
    nodes, weights, others, other_weights, residuals = run.quadratures()
    top = _counted(nodes, weights, residuals, run.epsilon)
    rest = (run.keys - top, energy, run.epsilon)
    gauss = _Spectrum(nodes[:top], nodes[top:], weights[top:], *rest)
    radau = _Spectrum(others[:top], others[top:], other_weights[top:], *rest)
    values = {name: _by_quadrature(function, gauss, radau) for name, function in LOGARITHMS.items()}
    least, most = _partial_sums(nodes, residuals, top, run)
    values["stable_rank"] = _between(energy / most[1], energy / least[1])
    values["r90"] = _r90(least, most, gauss, radau)
    ranks = torch.tensor([values[name] for name in DEFINITIONS], dtype=torch.float64)  # (definition, 2)
    least_rank = 1 - ROUNDING * run.epsilon  # a map of rank one may be found a little below
    possible = (ranks.sum(1) >= least_rank) & (ranks[:, 0] - ranks[:, 1] <= min(run.queries, run.keys))  # no for a NaN
    ranks[~possible, 1] = math.inf
    floor = math.sqrt(ROUNDING * run.epsilon)
    left = torch.tensor([_residual(least, most, energy, r, floor) for r in RESIDUAL_RANKS], dtype=torch.float64)
    return torch.cat([ranks, left])


def _counted(nodes: Tensor, weights: Tensor, residuals: Tensor, epsilon: float) -> int:
    """How many of the nodes have converged to one eigenvalue each.

    Each such node has the mass 1 in the mean over the probes, with a variance of 2 for each probe (a squared normal number).
    One that stands for many eigenvalues has more, and is left to the quadrature, with all below it. So is a value that as
    many nodes share as there are probes: a run finds it no more often.
    """
    number = torch.arange(1, len(nodes) + 1)
    probes = weights.shape[1]
    away = (weights.mean(1) - 1).cumsum(0).abs() > 5 * (2 * number / probes).sqrt()
    shared = torch.zeros_like(away)
    shared[: len(nodes) + 1 - probes] = nodes[probes - 1 :] > (1 - CONVERGED) * nodes[: len(nodes) + 1 - probes]
    loose = (residuals > CONVERGED * nodes) | ((away | shared) & (nodes > epsilon * nodes[0]))
    return int(loose.int().argmax()) if loose.any() else len(nodes)


def _close_enough(run: _Run, tolerance: float) -> Estimate:
    """What a run has seen, NaN where the half-width is above `tolerance` of the value."""
    value, error = run.seen.T
    known = error <= tolerance * value  # no for a NaN
    known |= (value == 0) & error.isfinite()  # a residual within rounding
    share = (error / value).tolist()
    why = {}
    for i, label in enumerate(LABELS):
        if not known[i] and math.isfinite(share[i]):
            why[label] = f"within {share[i]:.0%} after {run.sweeps} sweeps, {tolerance:.0%} asked"
        elif not known[i]:
            why[label] = f"no possible value and bound after {run.sweeps} sweeps"
    value = value.masked_fill(~known, math.nan)
    n = len(DEFINITIONS)
    return Estimate(value[:n], error[:n], value[n:], error[n:], why, run.sweeps)


def _by_quadrature(function: Callable, gauss: _Spectrum, radau: _Spectrum) -> tuple[float, float]:
    """exp of a function of the spectrum, and its half-width."""
    first, errors = function(gauss)
    second, other_errors = function(radau)
    noise = 3 * max(errors.norm(), other_errors.norm())
    rounding = (function(gauss.rounded())[0] - first).abs()
    value = float(((first + second) / 2).exp())
    half = (first - second).abs() / 2 + noise + rounding
    return value, value * float(half.expm1())  # infinite where it overflows


def _between(low: Tensor | float, high: Tensor | float) -> tuple[float, float]:
    return float(low + high) / 2, float(high - low) / 2


def _partial_sums(nodes: Tensor, residuals: Tensor, top: int, run: _Run) -> tuple[Tensor, Tensor]:
    """Bounds on the sum of the r largest eigenvalues for r = 0 ... key: (key + 1,) each.

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


def _r90(least: Tensor, most: Tensor, gauss: _Spectrum, radau: _Spectrum) -> tuple[float, float]:
    """The bracket of the Ritz values, or what the quadratures say where that is closer."""
    enough = (0.9 - 1e-9) * gauss.energy
    first, errors = _quantile(gauss)
    second, other_errors = _quantile(radau)
    noise = 3 * max(errors.norm(), other_errors.norm())  # a kink: neither quadrature is on a known side of the truth
    estimate = float(first + second) / 2 + 0.5, float(2 * (first - second).abs() + noise) + 0.5
    if least[-1] < enough:  # the Ritz values hold less than 90 %
        return estimate
    bracket = _between(int((most < enough).sum()), int((least < enough).sum()))
    return min(bracket, estimate, key=lambda each: each[1])


def _quantile(spectrum: _Spectrum, share: float = 0.9) -> tuple[Tensor, Tensor]:
    """How many eigenvalues hold a share of the energy, between integers, and its errors.

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
    """Middle and half-width of |A - A_r| / |A|, or 0 where it is below the floor for sure."""
    shares = torch.stack([1 - most[r] / energy, 1 - least[r] / energy])
    low, high = shares.clamp_min(0).sqrt().tolist()
    return _between(low, high) if high > floor else (0.0, high)


def _of_held(maps: ImplicitMaps, names: list[str]) -> dict[str, Estimate]:
    """Of maps of few queries or few keys, from all their singular values."""
    queries, keys = maps.shape
    every = torch.eye(min(maps.shape), dtype=maps.layer.dtype, device=maps.layer.q.device)
    product = maps.transposed if queries <= keys else maps.times  # each entry once: exact
    return {name: exact(singular_values_held(product({name: every})[name]).cpu()) for name in names}


def _unknown(why: str) -> Estimate:
    values, residuals = (torch.full((len(x),), math.nan, dtype=torch.float64) for x in (DEFINITIONS, RESIDUAL_RANKS))
    return Estimate(values, values, residuals, residuals, dict.fromkeys(LABELS, why), 0)
