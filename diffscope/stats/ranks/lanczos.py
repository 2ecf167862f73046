"""Block Lanczos on AᵀA, and the quadratures of its spectrum.

A run from random vectors gives three things at once (Golub & Meurant 2010, chapters 4 and 7):

- its leading Ritz values converge to the largest singular values squared;
- the rest of the spectrum is seen through the random vectors: the squared first components of the other Ritz vectors
  are the weights of a quadrature, whose expected mass (how many values are left) and first moment (the energy
  that is left) are known exactly and remove most of the noise from all other sums;
- Gauss and Gauss-Radau quadrature (a node at 0) of the same run lie on the two sides of the truth for the square root and
  for x·ln x (Zimmerling, Druskin & Simoncini 2024).

Products are made in the dtype of the maps; all small matrices are float64.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diffscope.stats.ranks.implicit_map import ImplicitMaps


class Lanczos:
    """Run block Lanczos on G = AᵀA with full reorthogonalisation.

    The projected matrix is computed from the images, QᵀGQ = (AQ)ᵀ(AQ): so its rounding is relative to each singular value and
    not to the square of the largest.

    Parameters
    ----------
    maps : ImplicitMaps
    width : int
        Number of random vectors.
    sweeps : int
        Largest number of blocks that are added.
    generator : torch.Generator
        Of the random vectors.

    Attributes
    ----------
    block : Tensor (key, width)
        Vectors that the next sweep multiplies.
    projected : Tensor, float64 (m, m)
        QᵀGQ on the m vectors so far.
    start : Tensor, float64 (width, probe)
        The random vectors in terms of the first block.
    following : Tensor, float64 (width, width)
        The part of G·(last block) that is off the basis, in terms of `block`.
    sweeps : int
        Number of blocks so far.
    epsilon : float
        Rounding of the products.
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

    @property
    def exhausted(self) -> bool:
        """Return whether all that is left off the basis is the rounding of Aᵀ·(A·block): the random vectors reach no more."""
        image2 = self.projected.diagonal()[-self.width :].sum()
        return bool(self.following.norm() <= self.epsilon * (self.projected.norm() * image2).sqrt())

    def add(self, image: Tensor, product: Tensor) -> None:
        """Extend the basis by the products of a sweep, A·block (query, width) and AᵀA·block (key, width)."""
        before = self.sweeps * self.width
        size = before + self.width
        self._basis[:, before:size] = self.block
        self._images[:, before:size] = image
        image = image.double()
        column = torch.cat([piece.double().T @ image for piece in self._images[:, :size].split(self.width, dim=1)])
        grown = column.new_empty(size, size)
        grown[:before, :before] = self.projected
        grown[:, before:] = column
        grown[before:] = column.T
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
        for _ in range(2):  # the first pass leaves its own rounding
            x = x - basis @ (basis.T @ x)
        return x

    def quadratures(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Compute the Gauss and the Gauss-Radau quadrature of the run, float64 on the CPU.

        Each has nodes (node,), the largest first, and their weights (node, probe); the latter has a node at 0. Behind them are
        the residuals (node,) of the Gauss nodes as eigenvalues of G.
        """
        m = len(self.projected)
        width = self.width
        nodes, vectors = torch.linalg.eigh(self.projected)
        nodes = nodes.clamp_min(nodes[-1] * 1e-15)
        last = self.following @ vectors[-width:]  # (width, node): the part of G·(Ritz vector) off the basis
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
class Spectrum:
    """Hold the eigenvalues of G: some that count as they are, and a quadrature for the rest.

    Attributes
    ----------
    top : Tensor (value,)
    nodes : Tensor (node,)
    weights : Tensor (node, probe)
        Their mean over the probes stands for the number of eigenvalues.
    left : float
        Number of eigenvalues other than `top`.
    energy : float
        Of the whole map: the sum of all eigenvalues.
    epsilon : float
        Rounding of the products.
    """

    top: Tensor
    nodes: Tensor
    weights: Tensor
    left: float
    energy: float
    epsilon: float

    def sum_of(self, f: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Sum f over all eigenvalues, f(0) = 0; return the sum and its errors (probe + 1,), whose norm is the standard error.

        The straight line that fits f best under the quadrature is summed exactly, from the mass and the energy that are
        left; the probes only estimate the difference. The energy is known to some digits, so the line is flattened if the probes
        know the rest of it better.
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

    def rounded(self) -> "Spectrum":
        """Return the spectrum with every singular value larger by what rounding may have taken off it."""
        shift = 2 * self.epsilon * float(torch.cat([self.top, self.nodes]).max().sqrt())
        return replace(self, top=(self.top.sqrt() + shift).square(), nodes=(self.nodes.sqrt() + shift).square())
