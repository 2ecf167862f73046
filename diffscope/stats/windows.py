"""Any window of a layer's maps, computed from q and k when somebody looks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from diffscope.attention.blocks import Workers
from diffscope.attention.layer import Heads, LayerAttention
from diffscope.attention.maps import map_of
from diffscope.attention.memory import Workspace
from diffscope.attention.precision import without_autocast
from diffscope.stats.pooling import alone

ROWS = 128  # of a block, in which keys that none of them sees are left out


@torch.no_grad()
@without_autocast()
def windows(
    layer: LayerAttention, names: Sequence[str], heads: Heads, queries: Tensor, keys: Tensor, workers: Workers | None = None
) -> dict[str, Tensor]:
    """The values of some maps of some heads at some queries and keys.

    Parameters
    ----------
    layer : LayerAttention
        Of one prompt.
    names : sequence of str
        Of :data:`diffscope.attention.maps.MAPS`.
    heads : sequence of int, optional
        By default all.
    queries, keys : int64 Tensor, (query,), (key,)
        Positions, in any order.
    workers : Workers, optional
        By default the calling thread alone.

    Returns
    -------
    dict of str to Tensor, (head, query, key)
    """
    index = layer.head_numbers(heads)
    places = [(head, block) for block in queries.split(ROWS) for head in index.split(1)]
    tasks = (partial(_piece, layer, names, keys, *place) for place in places)
    pieces = (workers or Workers(1)).run(tasks, alone(layer, len(index) * len(queries)))
    maps = {name: torch.empty(len(index), len(queries), len(keys), dtype=layer.dtype, device=keys.device) for name in names}
    for number, piece in enumerate(pieces):
        first = number // len(index) * ROWS
        for name, values in piece.items():
            maps[name][number % len(index), first : first + ROWS] = values
    return maps


def _piece(
    layer: LayerAttention, names: Sequence[str], keys: Tensor, head: Tensor, queries: Tensor, workspace: Workspace
) -> dict[str, Tensor]:
    """Some rows of one head, each (query, key)."""
    rows = layer.visible_rows(queries, head, workspace)
    inside = (keys >= rows.start) & (keys < rows.start + rows.a1.shape[-1])
    columns = (keys - rows.start)[inside]
    piece = {}
    for name in names:
        values = map_of(rows, name)[0]
        piece[name] = values.new_zeros(len(queries), len(keys))
        piece[name][:, inside] = values.index_select(1, columns)
    return piece
