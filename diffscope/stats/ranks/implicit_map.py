"""The maps of one head as linear operators: products with maps that are never held.

A sweep computes the maps of a head once, block of rows by block of rows, and every product that is asked of it on the
way. So a sweep takes a block of vectors for each map by name, and :meth:`ImplicitMaps.gram` takes both A·X and AᵀA·X
from one: with Y = A_b·X of a block of rows b, AᵀA·X is the sum of A_bᵀ·Y.

On CUDA, products with A1, A2, lambda_A2 and D are attention with X for values, which torch's own kernels compute without
ever writing a score to memory; AᵀY is attention of the keys over the queries.

======================= ===============================================================
A1, A2, D               as the layer has them
lambda_A2               lambda·A2, lambda by token where the layer has it so
uniform                 the same weight on every key that a row can see
permuted A1 (any of     the weights of each row permuted among the keys it can see; the
the above)              same permutation for all maps of a head, and in every sweep
======================= ===============================================================

A permutation that is drawn anew for every sweep costs more than the maps, and one that is held has N² entries. So the
row of n visible keys takes its j-th weight from the (a·j + b mod n)-th, with a prime above the number of keys, which no
n divides, and a shift b, both drawn once a row. Ranks do not tell such permutations from uniformly random ones, because
they are independent from row to row.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.attention.maps import NEED_A2
from diffscope.attention.precision import tf32_allowed
from diffscope.errors import DiffscopeError
from diffscope.stats.ranks.attend import attend, attend_transposed, reason_unsupported

MAPS = ("A1", "A2", "lambda_A2", "D", "uniform")
PERMUTED = "permuted "


class ImplicitMaps:
    """The maps of one head of one prompt, by name.

    Parameters
    ----------
    layer : LayerAttention
        Of one prompt.
    head : int
    seed : int, optional
        Of the permutations; by default the head's index.
    products : {"blocks", "attention"}, optional
        What multiplies with A1, A2, lambda_A2 and D in :meth:`times` and :meth:`gram`: blocks of their rows, or torch's attention
        kernels. By default the kernels on CUDA where they can serve the layer, else blocks. All else comes from blocks.

    Attributes
    ----------
    shape : tuple of int
        (query, key) of each map.

    Raises
    ------
    DiffscopeError
        TF32 products are on, or attention kernels are asked for and cannot serve the layer.
    """

    def __init__(
        self,
        layer: LayerAttention,
        head: int,
        seed: int | None = None,
        products: Literal["blocks", "attention"] | None = None,
    ):
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
        self._visible = layer.mask.counts(queries, layer.n_keys, layer.n_keys - layer.n_queries).clamp_min(1)  # (query,)
        self._factor, self._shift = self._permutations(head if seed is None else seed)
        unsupported = reason_unsupported(layer)
        if products == "attention" and unsupported:
            raise DiffscopeError(f"attention kernels cannot multiply with the maps of layer {layer.layer}: {unsupported}")
        attends = not unsupported and (products == "attention" or (products is None and layer.q.is_cuda))
        self._products = _AttentionProducts(layer, head) if attends else None

    def times(self, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A·X of several maps in one sweep.

        Parameters
        ----------
        x : mapping of str to Tensor (key, r)
            By name of the map.

        Returns
        -------
        dict of str to Tensor (query, r)

        Raises
        ------
        ValueError
            For a name that is none of a map, or of the second map where there is none.
        """
        self._check(x)
        attended = self._attended(x)
        images = self._products.times(attended)[0] if self._products and attended else {}
        pieces: dict[str, list[Tensor]] = {name: [] for name in x if name not in images}
        for name, block, _, keys in self._sweep(pieces):
            pieces[name].append(block @ x[name][keys])
        return images | {name: torch.cat(rows) for name, rows in pieces.items()}

    def transposed(self, y: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Aᵀ·Y of several maps in one sweep: y (query, r) by name → (key, r); raises as :meth:`times`."""
        out = {name: self._zeros(each) for name, each in y.items()}
        for name, block, queries, keys in self._sweep(y):
            out[name][keys] += block.T @ y[name][queries]
        return out

    def gram(self, x: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """A·X and AᵀA·X of several maps in one sweep: x (key, r) by name → (query, r) and (key, r); raises as :meth:`times`."""
        self._check(x)
        attended = self._attended(x)
        products = self._products.gram(attended) if self._products and attended else {}
        swept = {name: each for name, each in x.items() if name not in products}
        images = {name: each.new_empty(self.shape[0], each.shape[1]) for name, each in swept.items()}
        out = {name: self._zeros(each) for name, each in swept.items()}
        for name, block, queries, keys in self._sweep(swept):
            images[name][queries] = block @ x[name][keys]
            out[name][keys] += block.T @ images[name][queries]
        return products | {name: (images[name], out[name]) for name in swept}

    def frobenius2(self, names: Iterable[str]) -> dict[str, float]:
        """The sum of all squared entries of some maps, each square summed in float64; raises as :meth:`times`."""
        names = list(names)
        plain = {name.removeprefix(PERMUTED) for name in names}  # a permutation moves no energy
        energy = dict.fromkeys(plain, 0.0)
        for name, block, _, _ in self._sweep(plain):
            energy[name] += float(block.double().square().sum())
        return {name: energy[name.removeprefix(PERMUTED)] for name in names}

    def _zeros(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.shape[1], like.shape[1])

    def _attended(self, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of the vectors that attention kernels multiply with their maps."""
        return {name: each for name, each in x.items() if name in MAPS and name != "uniform"}

    def _sweep(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor, slice, slice]]:
        """Every block of rows of the named maps, (query, key), with its queries and its keys."""
        names = list(names)
        self._check(names)
        if not names:
            return
        plain = {name.removeprefix(PERMUTED) for name in names}
        permuted = any(name.startswith(PERMUTED) for name in names)
        for rows in self.layer.blocks(heads=[self.head], trim=True):
            queries = slice(int(rows.queries[0]), int(rows.queries[-1]) + 1)
            keys = slice(rows.start, rows.start + rows.a1.shape[-1])
            blocks = {"A1": rows.a1[0], "D": rows.d[0]}
            if rows.a2 is not None:
                blocks["A2"] = rows.a2[0]
            if rows.a2 is not None and "lambda_A2" in plain:
                blocks["lambda_A2"] = rows.lam[0, :, None] * rows.a2[0]
            if permuted or "uniform" in plain:
                visible = self.layer.visible(rows.queries)[:, keys]
                blocks["uniform"] = visible / self._visible[rows.queries, None].to(rows.a1.dtype)
            if permuted:
                source = self._source(visible, queries)
            for name in names:
                block = blocks[name.removeprefix(PERMUTED)]
                yield name, block.gather(-1, source) * visible if name.startswith(PERMUTED) else block, queries, keys

    def _check(self, names: Iterable[str]) -> None:
        for name in names:
            plain = name.removeprefix(PERMUTED)
            if plain not in MAPS:
                raise ValueError(f"no map is called {name!r}; choose from {', '.join(MAPS)}, or 'permuted' before one of them")
            if plain in NEED_A2 and not self.layer.differential:
                raise ValueError(f"standard attention has no second map, so no {name!r}")

    def _permutations(self, seed: int) -> tuple[Tensor, Tensor]:
        """Factor and shift of each row's permutation, int64 (query,)."""
        generator = torch.Generator().manual_seed(seed)  # on the CPU, so that one seed gives one permutation on every device
        primes = _primes_above(self.shape[1])
        n = self._visible.cpu()
        factor = primes[torch.randint(len(primes), n.shape, generator=generator)] % n
        shift = torch.randint(2**62, n.shape, generator=generator) % n
        return factor.to(self._visible.device), shift.to(self._visible.device)

    def _source(self, visible: Tensor, queries: slice) -> Tensor:
        """From which key each visible key of some rows takes its weight, int64 (query, key); an invisible one from any."""
        factor, shift, n = (x[queries, None] for x in (self._factor, self._shift, self._visible))
        if self.layer.mask.kind == "given":
            rank = visible.cumsum(-1).sub_(1).clamp_min_(0)  # of each key among those that the row sees
            in_order = (~visible).byte().argsort(dim=-1, stable=True)  # visible keys first, ascending
            return in_order.gather(-1, (rank * factor + shift) % n)
        first = visible.byte().argmax(-1, keepdim=True)  # a row of the other masks sees keys without a gap
        rank = torch.arange(visible.shape[1], device=visible.device) - first
        return rank.mul_(factor).add_(shift).remainder_(n).add_(first)


class _AttentionProducts:
    """Products with the maps of one head by attention kernels: each map is a sum of A1 and A2, their rows times a factor."""

    def __init__(self, layer: LayerAttention, head: int):
        self.layer = layer
        self.shape = (layer.n_queries, layer.n_keys)
        gain, lam = (x[0].expand(layer.n_heads, layer.n_queries)[head, :, None].to(layer.dtype) for x in (layer.gain, layer.lam))
        first: dict[str, Tensor | float] = {"A1": 1.0, "D": gain}
        second: dict[str, Tensor | float] = {"A2": 1.0, "lambda_A2": lam, "D": -lam}
        self.branches = [(*self._inputs(int(layer.pairing.a1[head])), first)]
        if layer.pairing.a2 is not None:
            self.branches.append((*self._inputs(int(layer.pairing.a2[head])), second))
        self.causal = layer.mask.kind == "causal"
        self.offset = layer.n_keys - layer.n_queries

    def _inputs(self, index: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Queries (1, query, d), keys (1, key, d) and sink logits (1, query) of a map."""
        layer = self.layer
        key_index = int(layer.pairing.key_of_map[index])
        sink = layer.sink_logit
        if sink is not None:
            sink = sink[0].expand(layer.q.shape[1], layer.n_queries)[index][None].to(layer.dtype)
        return layer.q[0, index][None], layer.k[0, key_index][None], sink

    def times(self, x: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[Tensor | None]]:
        """A·X, (query, r) by name, and the log-sum-exp, with a sink logit in it, of each branch that was needed, (1, query)."""
        images = {name: each.new_zeros(self.shape[0], each.shape[1]) for name, each in x.items()}
        sums: list[Tensor | None] = []
        for q, k, sink, factors in self.branches:
            names = [name for name in x if name in factors]
            if not names:
                sums.append(None)
                continue
            values = torch.cat([x[name] for name in names], dim=-1)[None]  # (1, key, r of all)
            image, lse = attend(q, k, values, scale=self.layer.scale, causal=self.causal, offset=self.offset)
            if sink is not None:
                whole = torch.logaddexp(lse, sink)  # the sink logit takes its share of every row
                image = image * (lse - whole).exp()[..., None]
                lse = whole
            for name, part in zip(names, image[0].split([x[name].shape[1] for name in names], dim=-1)):
                images[name] += factors[name] * part
            sums.append(lse)
        return images, sums

    def gram(self, x: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """A·X (query, r) and AᵀA·X (key, r) by name."""
        images, sums = self.times(x)
        out = {name: torch.zeros_like(each) for name, each in x.items()}
        for (q, k, _, factors), lse in zip(self.branches, sums, strict=True):
            if lse is None:
                continue
            names = [name for name in x if name in factors]
            y = torch.cat([factors[name] * images[name] for name in names], dim=-1)[None]
            received = attend_transposed(q, k, y, lse, scale=self.layer.scale, causal=self.causal, offset=self.offset)
            for name, part in zip(names, received[0].split([x[name].shape[1] for name in names], dim=-1)):
                out[name] += part
        return {name: (images[name], out[name]) for name in x}


def _primes_above(n: int) -> Tensor:
    """The primes between n and 16·n, or a little more where n is small."""
    is_prime = np.ones(16 * n + 1000, dtype=bool)
    is_prime[:2] = False
    for p in range(2, int(len(is_prime) ** 0.5) + 1):
        if is_prime[p]:
            is_prime[p * p :: p] = False
    return torch.from_numpy(np.flatnonzero(is_prime[n + 1 :]) + n + 1)
