"""How much the heads of a layer repeat each other.

Both measures are inner products between heads, so maps are never held: the Gram matrix of a layer's heads is a sum
over blocks of rows.
"""

import math

import torch
from torch import Tensor

ROWS = 1024  # queries that are held in float64 at once


def map_gram(x: Tensor, weights: Tensor | None = None) -> Tensor:
    """Inner products of the heads' maps over a block of rows, to be added over blocks.

    Parameters
    ----------
    x : Tensor (head, query, key)
    weights : Tensor (query,), optional
        How many queries each one stands for; by default one.

    Returns
    -------
    Tensor (head, head), float64
    """
    flat = x.flatten(1)
    weighted = flat if weights is None else (x * weights.to(x.dtype)[:, None]).flatten(1)
    return (flat @ weighted.T).double()


def map_distance(gram: Tensor) -> Tensor:
    """Mean cosine distance over all pairs of heads: 1 - <A_i, A_j> / (|A_i||A_j|).

    Parameters
    ----------
    gram : Tensor (..., head, head)

    Returns
    -------
    Tensor (...)
        0 where all heads have one map, 1 where they share no key; up to 2 for signed maps. NaN with one head, or
        where a head's map is zero.
    """
    heads = gram.shape[-1]
    if heads < 2:
        return gram.new_full(gram.shape[:-2], math.nan)
    norm = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    cosine = gram / (norm.unsqueeze(-1) * norm.unsqueeze(-2))
    first, second = torch.triu_indices(heads, heads, offset=1)
    return 1 - cosine[..., first, second].mean(-1)


def head_cka(outputs: Tensor, weights: Tensor | None = None) -> Tensor:
    """Linear centred kernel alignment between the outputs of heads (Kornblith et al. 2019).

    |Yj'Yi|² / (|Yi'Yi|·|Yj'Yj|) in Frobenius norm, each column of Y centred over the queries.

    Parameters
    ----------
    outputs : Tensor (head, query, width)
    weights : Tensor (query,), optional
        How many queries each one stands for; by default one.

    Returns
    -------
    Tensor (head, head), float64
        Between 0 and 1, with 1 on the diagonal. NaN for heads whose output does not vary.
    """
    heads, queries, width = outputs.shape
    weights = torch.ones(queries) if weights is None else weights
    weights = weights.to(outputs.device, torch.float64)[:, None]  # (query, 1)
    parts = [slice(start, start + ROWS) for start in range(0, queries, ROWS)]
    mean = sum((outputs[:, part].double() * weights[part]).sum(1) for part in parts) / weights.sum()  # (head, width)
    products = mean.new_zeros(heads * width, heads * width)
    for part in parts:
        features = (outputs[:, part].double() - mean[:, None]).transpose(0, 1).flatten(1)  # (query, head·width)
        products += features.T @ (weights[part] * features)
    products = products.reshape(heads, width, heads, width)
    alignment = products.square().sum((1, 3))  # (head, head)
    norm = alignment.diagonal().sqrt()
    return alignment / (norm.unsqueeze(-1) * norm)
