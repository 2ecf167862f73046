"""Multiply with the maps of one head, which are never in memory.

A sweep computes the maps of a head once, block of rows by block of rows, and multiplies each block. So all maps that are needed
share a sweep, and :meth:`ImplicitMaps.gram` computes both A·X and AᵀA·X in one: with Y = A_b·X of a block of rows b, AᵀA·X is
the sum of A_bᵀ·Y.

======================= ===============================================================
A1, A2, D               as the layer has them
share                   the sizes of D's weights over their sum in the row
lambda_A2               lambda·A2, lambda by token where the layer has it so
uniform                 the same weight on every key that a row can see
permuted A1 (any of     the weights of each row permuted among the keys it can see; the
the above)              same permutation for all maps of a head, and in every sweep
======================= ===============================================================

Drawing a permutation anew for every sweep would cost more than the maps, and holding it takes N² entries. So a row of n
visible keys takes its j-th weight from the (a·j + b mod n)-th, with a prime a above the number of keys, which no n divides,
and a shift b, both drawn once a row. Ranks do not differ between such permutations and uniformly random ones, because they
are independent from row to row.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from diffscope.attention.blocks import Block, stream
from diffscope.attention.components import Rows
from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import map_of
from diffscope.attention.precision import tf32_allowed
from diffscope.errors import DiffscopeError

PERMUTED = "permuted "

T = TypeVar("T")


class ImplicitMaps:
    """Hold the maps of one head of one prompt, by name, as linear operators.

    Parameters
    ----------
    layer : LayerAttention
        Of one prompt.
    head : int
    seed : int, optional
        Of the permutations; by default the head's index.

    Attributes
    ----------
    shape : tuple of int
        (query, key) of each map.

    Raises
    ------
    DiffscopeError
        TF32 products are on.
    """

    def __init__(self, layer: LayerAttention, head: int, seed: int | None = None):
        if layer.q.is_cuda and tf32_allowed():
            # the rounding of one product is 1e-3 of the largest singular value, where half of the others may be smaller
            raise DiffscopeError(
                "TF32 products would drown the small singular values: torch.set_float32_matmul_precision('highest'), "
                "or torch.backends.cuda.matmul.fp32_precision = 'ieee'"
            )
        self.layer = layer
        self.head = head
        self.shape = (layer.n_queries, layer.n_keys)
        queries = torch.arange(layer.n_queries, device=layer.q.device)
        self._visible = layer.mask.counts(queries, layer.n_keys, layer.offset).clamp_min(1)  # (query,)
        self._factor, self._shift = self._permutations(head if seed is None else seed)

    def transposed(self, y: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute Aᵀ·Y of several maps in one sweep: y (query, r) by name → (key, r); raises as :meth:`gram`."""
        out = {name: self._zeros(each) for name, each in y.items()}
        for name, _, keys, product in self._sweep(y, lambda name, a, queries, keys: a.T @ y[name][queries]):
            out[name][keys] += product
        return out

    def gram(self, x: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """Compute A·X and AᵀA·X of several maps in one sweep: x (key, r) by name → (query, r) and (key, r).

        Raises ValueError if a name is not that of a map, or the layer has no second map.
        """
        images = {name: each.new_empty(self.shape[0], each.shape[1]) for name, each in x.items()}
        out = {name: self._zeros(each) for name, each in x.items()}

        def products(name: str, a: Tensor, queries: slice, keys: slice) -> tuple[Tensor, Tensor]:
            image = a @ x[name][keys]
            return image, a.T @ image

        for name, queries, keys, (image, product) in self._sweep(x, products):
            images[name][queries] = image
            out[name][keys] += product
        return {name: (images[name], out[name]) for name in x}

    def frobenius2(self, names: Iterable[str]) -> dict[str, float]:
        """Sum all squared entries of some maps in float64; raises as :meth:`gram`."""
        names = list(names)
        plain = {name.removeprefix(PERMUTED) for name in names}  # a permutation moves no energy
        energy = dict.fromkeys(plain, 0.0)
        for name, _, _, squares in self._sweep(plain, lambda name, a, queries, keys: float(a.double().square().sum())):
            energy[name] += squares
        return {name: energy[name.removeprefix(PERMUTED)] for name in names}

    def _zeros(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.shape[1], like.shape[1])

    def _sweep(
        self, names: Iterable[str], product: Callable[[str, Tensor, slice, slice], T]
    ) -> Iterator[tuple[str, slice, slice, T]]:
        """Multiply every block of rows of the named maps: yield name, queries, keys and product(name, block, queries, keys)."""
        names = list(names)
        plain = {name.removeprefix(PERMUTED) for name in names}
        permuted = any(name.startswith(PERMUTED) for name in names)

        def multiply(block: Block, rows: Rows) -> tuple[slice, dict[str, T]]:
            queries = cast(slice, block.at)  # all are streamed, in order
            keys = slice(rows.start, rows.start + rows.a1.shape[-1])
            maps = {name: map_of(rows, name)[0] for name in plain if name != "uniform"}  # (query, key)
            if permuted or "uniform" in plain:
                visible = self.layer.visible(rows.queries)[:, keys]
                maps["uniform"] = visible / self._visible[queries, None].to(rows.a1.dtype)
            if permuted:
                source = self._source(visible, queries)
            products = {}
            for name in names:
                a = maps[name.removeprefix(PERMUTED)]
                a = a.gather(-1, source) * visible if name.startswith(PERMUTED) else a
                products[name] = product(name, a, queries, keys)
            return keys, products

        for block, (keys, products) in stream(self.layer, None, multiply, heads=[self.head]):
            for name, of_map in products.items():
                yield name, cast(slice, block.at), keys, of_map

    def _permutations(self, seed: int) -> tuple[Tensor, Tensor]:
        """Draw factor and shift of each row's permutation, int64 (query,)."""
        generator = torch.Generator().manual_seed(seed)  # on the CPU, so that one seed gives one permutation on every device
        primes = _primes_above(self.shape[1])
        n = self._visible.cpu()
        factor = primes[torch.randint(len(primes), n.shape, generator=generator)] % n
        shift = torch.randint(2**62, n.shape, generator=generator) % n
        return factor.to(self._visible.device), shift.to(self._visible.device)

    def _source(self, visible: Tensor, queries: slice) -> Tensor:
        """Return the key from which each visible key of some rows takes its weight, int64 (query, key); any if invisible."""
        factor, shift, n = (x[queries, None] for x in (self._factor, self._shift, self._visible))
        if self.layer.mask.kind == "given":
            rank = visible.cumsum(-1).sub_(1).clamp_min_(0)  # of each key among those that the row sees
            in_order = (~visible).byte().argsort(dim=-1, stable=True)  # visible keys first, ascending
            return in_order.gather(-1, (rank * factor + shift) % n)
        first = visible.byte().argmax(-1, keepdim=True)  # a row of the other masks sees keys without a gap
        rank = torch.arange(visible.shape[1], device=visible.device) - first
        return rank.mul_(factor).add_(shift).remainder_(n).add_(first)


def _primes_above(n: int) -> Tensor:
    """Return the primes between n and 16·n, or a little more if n is small."""
    is_prime = np.ones(16 * n + 1000, dtype=bool)
    is_prime[:2] = False
    for p in range(2, int(len(is_prime) ** 0.5) + 1):
        if is_prime[p]:
            is_prime[p * p :: p] = False
    return torch.from_numpy(np.flatnonzero(is_prime[n + 1 :]) + n + 1)
