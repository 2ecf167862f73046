"""The blocks of rows that a layer's maps are cut into: of which heads and queries each is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from diffscope.attention.layer import LayerAttention

# Values of a (head, query, key) temporary: 4 MiB in float32, of which a block needs eight; smaller ones spend their time between
# operations, and threads theirs waiting for the interpreter. On a GPU 64 MiB, which keep it busy.
ELEMENTS = {"cpu": 2**20, "cuda": 2**24}
LEAST_ROWS = 16  # of one head: with fewer, reading the keys takes longer than the products with them
FEWEST_BLOCKS = 16  # of a long enough prompt: the fewer, the more keys are computed that no row sees


@dataclass(frozen=True)
class Place:
    """Which heads and which of some queries a block holds."""

    heads: range
    at: slice | Tensor  # of the queries


def block_size(layer: LayerAttention, all_heads: bool, elements: int | None = None) -> tuple[int, int]:
    """Of how many heads and queries a block is; parameters as of :func:`places_of`."""
    width = layer.n_keys if layer.mask.window is None else min(layer.n_keys, layer.mask.window + LEAST_ROWS)
    least = 1 if elements else LEAST_ROWS
    most = layer.n_queries if elements else max(8 * LEAST_ROWS, layer.n_queries // FEWEST_BLOCKS)
    usual = ELEMENTS.get(layer.q.device.type, ELEMENTS["cpu"])
    elements = elements or usual * 4 // layer.dtype.itemsize
    heads = layer.n_heads if all_heads else max(1, min(layer.n_heads, elements // (4 * LEAST_ROWS * width)))
    return heads, max(least, min(most, elements // (heads * width)))


def places_of(
    layer: LayerAttention, queries: Tensor, all_heads: bool = False, elements: int | None = None
) -> Iterator[Place]:
    """The blocks that queries are cut into, of neighbouring ones, which see about the same keys.

    The last come first: they see most keys under a causal mask, so that no later block needs more memory, and threads end at
    about the same time.

    Parameters
    ----------
    layer : LayerAttention
    queries : int64 Tensor, (query,)
    all_heads : bool
        Whether every block has all heads.
    elements : int, optional
        The largest number of (head, query, key) entries that a temporary may have, though it always has one row of one head, or
        of all where heads are compared. By default what is fastest on the device.
    """
    heads, rows = block_size(layer, all_heads, elements)
    order = queries.argsort(stable=True)
    in_order = bool((queries.diff() >= 0).all())
    for stop in range(len(order), 0, -rows):
        at = slice(max(0, stop - rows), stop)
        for head in range(0, layer.n_heads, heads):
            yield Place(range(head, min(head + heads, layer.n_heads)), at if in_order else order[at])
