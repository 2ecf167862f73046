"""The keys that each query weighs most: few of them, however long the prompt."""

from __future__ import annotations

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
def strongest(
    layer: LayerAttention, name: str, heads: Heads, queries: Tensor, count: int, workers: Workers | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The keys of largest weight in some rows of a map.

    Parameters
    ----------
    layer : LayerAttention
        Of one prompt.
    name : str
        Of :data:`diffscope.attention.maps.MAPS`.
    heads : sequence of int, optional
        By default all.
    queries : int64 Tensor, (query,)
    count : int
        How many keys of each query.
    workers : Workers, optional
        By default the calling thread alone.

    Returns
    -------
    keys : int32 Tensor, (head, query, rank)
        By decreasing size of the weight; −1 where there is no further key of a weight other than 0.
    weights : Tensor, (head, query, rank)
        0 where there is no key.
    mass : Tensor, (head, query)
        Σ|x| of the row.
    """
    index = layer.head_numbers(heads)
    places = [(head, block) for head in index.split(1) for block in queries.split(ROWS)]
    tasks = (partial(_piece, layer, name, count, *place) for place in places)
    pieces = list((workers or Workers(1)).run(tasks, alone(layer, len(index) * len(queries))))
    keys, weights, mass = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    shape = (len(index), len(queries))
    return keys.unflatten(0, shape), weights.unflatten(0, shape), mass.unflatten(0, shape)


def _piece(
    layer: LayerAttention, name: str, count: int, head: Tensor, queries: Tensor, workspace: Workspace
) -> tuple[Tensor, Tensor, Tensor]:
    """Some rows of one head: (query, rank) twice, and (query,)."""
    rows = layer.visible_rows(queries, head, workspace)
    values = map_of(rows, name)[0].nan_to_num(nan=0.0)
    size = values.abs()
    at = size.topk(min(count, size.shape[1])).indices
    weights = values.new_zeros(len(queries), count)
    keys = torch.full((len(queries), count), -1, dtype=torch.int32, device=values.device)
    weights[:, : at.shape[1]] = values.gather(1, at)
    keys[:, : at.shape[1]] = (at + rows.start).to(torch.int32)
    return keys.masked_fill_(weights == 0, -1), weights, size.sum(1)
