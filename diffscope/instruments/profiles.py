"""Maps of distance alone and of the key alone, fitted to maps.

Scores add, and a softmax makes weights of them. So a map "of distance alone" is here the softmax of one score a distance, and a
map "of key alone" that of one score a key. Both are fitted by maximum likelihood (Luce 1959), that is so that they give to each
distance, or to each key, what it really gets, by the steps of Hunter (2004): weight ← what is received / what a weight of 1 would
be given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffscope.attention.blocks import blocks_of
from diffscope.attention.layer import LayerAttention
from diffscope.attention.precision import without_autocast

STEPS = 50  # of a fit, at most
CLOSE = 1e-3  # a fit ends when what it gives differs from what is received by that share
LEAST = 1e-30
TEMPORARIES = 32  # of a block: two maps, each with four predictors, which are centred and scaled


def several(layer: LayerAttention) -> Tensor:
    """Return the queries that see two keys or more, int64 (query,)."""
    queries = torch.arange(layer.n_queries, device=layer.q.device)
    return queries[layer.mask.counts(queries, layer.n_keys, layer.offset) > 1]


def blocks(layer: LayerAttention, queries: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield queries in blocks, and which keys each sees up to the last one that any of the block sees, bool (query, key)."""
    for block in blocks_of(layer, queries, all_heads=True, temporaries=TEMPORARIES):
        seen = layer.visible(block.queries)
        last = int(seen.any(0).nonzero().max())
        yield block.queries, seen[:, : last + 1]


def maps_of(layer: LayerAttention, block: Tensor, keys: int) -> Tensor:
    """Return A1 and A2 of some queries on the first keys, (map, head, query, key); of standard attention A1 alone."""
    rows = layer.rows(block)
    return torch.stack([a[..., :keys] for a in (rows.a1, rows.a2) if a is not None])


def _fits(received: Tensor, given: Tensor) -> bool:
    """Return whether profiles (map, head, ...) give about what is received, in every head."""
    left = (received - given).abs().flatten(2).sum(-1)
    return bool((left <= CLOSE * received.flatten(2).sum(-1)).all())


def _ratio(received: Tensor, expected: Tensor) -> Tensor:
    """Return the next weights of a fit; 1, as of a uniform map, where nothing is known."""
    return torch.where(expected > 0, received / expected.clamp_min(torch.finfo(expected.dtype).tiny), 1.0)


@dataclass(frozen=True)
class Received:
    """Data of one layer and prompt to which the profile of distances is fitted, without the first key.

    Attributes
    ----------
    layer : LayerAttention
    by_distance : Tensor (map, head, distance)
        Sums of weights.
    mass : Tensor (map, head, query)
        What rows sum to.
    """

    layer: LayerAttention
    by_distance: Tensor
    mass: Tensor

    def visibility(self, number: int) -> tuple:
        """Return what prompts share if their rows see the same keys, as far as both have them; `number` is the prompt's."""
        mask = self.layer.mask
        if mask.kind in ("causal", "window"):
            return mask.kind, mask.window
        return ("full", self.layer.n_keys) if mask.kind == "full" else ("given", number)

    def and_(self, other: Received) -> Received:
        """Add the data of another prompt, whose rows see the same keys."""
        longer, shorter = (self, other) if self.layer.n_queries >= other.layer.n_queries else (other, self)
        mass = longer.mass.clone()
        mass[..., : shorter.layer.n_queries] += shorter.mass
        return Received(longer.layer, self.by_distance + other.by_distance, mass)


@dataclass(frozen=True)
class Distances:
    """Distances from queries to keys as places in a profile, in which that to the query itself is `zero`.

    Attributes
    ----------
    zero : int
        0 where no later key is seen.
    longest : int
        Tokens of the longest prompt that profiles are fitted to.
    """

    zero: int
    longest: int

    @classmethod
    def of(cls, layer: LayerAttention, others: LayerAttention) -> Distances:
        """Return the distances of a layer on a measured prompt and on the `others` that profiles are fitted to."""
        later = any(each.mask.kind not in ("causal", "window") for each in (layer, others))
        return cls(others.n_keys - 1 if later else 0, others.n_keys)

    @property
    def count(self) -> int:
        return self.zero + self.longest

    def places(self, layer: LayerAttention, queries: Tensor, keys: int) -> Tensor:
        """Return the place of each distance in a profile, int64 (query, key); keys that are not seen have any place."""
        position = queries + layer.offset
        return (position[:, None] - torch.arange(keys, device=queries.device) + self.zero).clamp(0, self.count - 1)

    def seen(self, layer: LayerAttention, queries: Tensor, visible: Tensor) -> Tensor:
        """Count how many keys each query sees at each distance, without the first key, float64 (query, distance)."""
        table = torch.zeros(len(queries), self.count, dtype=torch.float64, device=queries.device)
        keys = visible.shape[1]
        seen = visible & (torch.arange(keys, device=queries.device) > 0)
        return table.scatter_add_(1, self.places(layer, queries, keys), seen.double())

    @torch.no_grad()
    @without_autocast()
    def received_by(self, layers: Sequence[LayerAttention]) -> list[Received]:
        """Sum the weights of each distance in the maps of several prompts."""
        return [self._received(layer) for layer in layers]

    def _received(self, layer: LayerAttention) -> Received:
        maps = 2 if layer.differential else 1
        device = layer.q.device
        received = torch.zeros(maps, layer.n_heads, self.count, dtype=torch.float64, device=device)
        mass = torch.zeros(maps, layer.n_heads, layer.n_queries, dtype=torch.float64, device=device)
        for block, visible in blocks(layer, several(layer)):
            keys = visible.shape[1]
            a = maps_of(layer, block, keys)[..., 1:].double()
            received.index_add_(2, self.places(layer, block, keys)[:, 1:].flatten(), a.flatten(2))
            mass[..., block] = a.sum(-1)
        return Received(layer, received, mass)

    @torch.no_grad()
    def fit(self, prompts: Sequence[Received]) -> Tensor:
        """Fit the weight of each distance in the maps of prompts, in units of a uniform map's: float64 (map, head, distance)."""
        received = torch.stack([prompt.by_distance for prompt in prompts]).sum(0)
        alike: dict[tuple, Received] = {}
        for number, prompt in enumerate(prompts):
            place = prompt.visibility(number)
            alike[place] = alike[place].and_(prompt) if place in alike else prompt
        weights = torch.ones_like(received)
        for _ in range(STEPS):
            expected = torch.zeros_like(received)
            for prompt in alike.values():
                for block, visible in blocks(prompt.layer, several(prompt.layer)):
                    seen = self.seen(prompt.layer, block, visible)
                    row = weights @ seen.T  # (map, head, query)
                    expected += (prompt.mass[..., block] / row.clamp_min(LEAST)) @ seen
            if _fits(received, expected * weights):
                break
            weights = _ratio(received, expected)
        return weights

    def rows(self, layer: LayerAttention, queries: Tensor, visible: Tensor, weights: Tensor) -> Tensor:
        """Return the weights of the distances at which keys stand, 0 if a key is not seen, (map, head, query, key)."""
        places = self.places(layer, queries, visible.shape[1])
        return weights.to(layer.dtype)[..., places] * visible


def fit_keys(layer: LayerAttention, queries: Tensor, distances: Distances, by_distance: Tensor) -> Tensor:
    """Fit the weight of each key beyond its distance, by even and by odd queries: float64 (map, head, parity, key)."""
    shape = (*by_distance.shape[:2], 2, layer.n_keys)
    received = torch.zeros(shape, dtype=torch.float64, device=layer.q.device)
    mass = torch.zeros(*shape[:2], layer.n_queries, dtype=layer.dtype, device=layer.q.device)
    for block, visible in blocks(layer, queries):
        keys = visible.shape[1]
        a = maps_of(layer, block, keys)
        mass[..., block] = a.sum(-1)
        for parity in (0, 1):
            received[:, :, parity, :keys] += a[:, :, block % 2 == parity].sum(-2).double()
    weights = torch.ones_like(received)
    for _ in range(STEPS):
        expected = torch.zeros_like(received)
        for block, visible in blocks(layer, queries):
            keys = visible.shape[1]
            base = distances.rows(layer, block, visible, by_distance)
            for parity in (0, 1):
                at = block % 2 == parity
                of_parity = base[:, :, at]
                row = of_parity @ weights[:, :, parity, :keys, None].to(layer.dtype)  # (map, head, query, 1)
                share = mass[:, :, block[at], None] / row.clamp_min(LEAST)
                expected[:, :, parity, :keys] += (share.transpose(2, 3) @ of_parity)[:, :, 0].double()
        if _fits(received, expected * weights):
            break
        weights = _ratio(received, expected)
    return weights
