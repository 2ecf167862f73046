"""Statistics of a whole layer: λ, rejection of the common mode, its scores, and how much its heads repeat each other.

How much heads repeat each other are inner products between heads, so maps are never held: the Gram matrix of a layer's heads is a
sum over blocks of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from diffscope.attention.changes import RowContext
from diffscope.stats.collect import BlockRows, Quantity, Request, add, of_three_maps, place
from diffscope.stats.outliers import streamed_outliers
from diffscope.stats.statistic import DIFF, NO_SECOND, Statistic, declare

CKA = "Similarity of Neural Network Representations Revisited (Kornblith et al., 2019)"

LAMBDA_VALUES = ("used", "fp32", "init", "minus_init")
LOGITS = 2**20  # of one block, over all maps
CENTRED_ROWS = 1024  # queries whose outputs are held in float64 at once

layer = partial(declare, kind="layer")


@layer(
    name="lambda",
    dims=("head", "query", "lambda_value"),
    units="1",
    description="the coefficient of A2",
    formula="used: after casting; fp32: before; init: at initialisation; minus_init: used - init",
    range=("-inf", "inf"),
    undefined=f"{NO_SECOND}; init where the family has none",
    source=DIFF,
)
def lam(request: Request) -> Tensor:
    """Return the coefficient of A2, float64 (head, query, lambda_value); NaN for standard attention.

    Its values are in the order of ``LAMBDA_VALUES``: as the model used it, in float32 before any cast, its value at
    initialisation, and used - init.
    """
    layer = request.layer
    used = _by_query(request, layer.lam)
    fp32 = _by_query(request, layer.lam_fp32)
    init = torch.full_like(used, math.nan if layer.lam_init is None else layer.lam_init)
    values = torch.stack([used, fp32, init, used - init], dim=-1)
    return values if layer.differential else torch.full_like(values, math.nan)


@layer(
    name="cmrr",
    dims=("head", "query"),
    units="dB",
    description="common-mode rejection ratio",
    formula="20 log10((|g + lambda|/2) / |g - lambda|), of the sizes of both gains; inf at lambda = g, -inf at lambda = -g, "
    "where nothing of the differential mode comes through",
    range=("-inf", "inf"),
    undefined=f"{NO_SECOND}; where D is changed after the subtraction, as d_plus does; where g and lambda are 0",
    source=f"{DIFF}: its analogy with differential amplifiers",
    averaged="not",
)
def cmrr_of_layer(request: Request) -> Tensor:
    """Compute the common-mode rejection ratio, (head, query); NaN for standard attention, and if D is changed afterwards."""
    layer = request.layer
    decibels = cmrr(_by_query(request, layer.lam), _by_query(request, layer.gain))
    return decibels if layer.differential and not layer.d_is_changed else torch.full_like(decibels, math.nan)


def cmrr(lam: Tensor, gain: Tensor | float = 1.0) -> Tensor:
    """Compute the common-mode rejection ratio: 20·log10((|g + lambda|/2) / |g - lambda|).

    The gains are those of the differential mode A1 - A2 and of the common mode (A1 + A2)/2 in
    D = (g - lambda)·common + ((g + lambda)/2)·differential, which is exact. As of any amplifier their sizes count: below
    lambda = -g the differential mode comes through with the other sign, and its size is still over that of the common mode.

    Parameters
    ----------
    lam : Tensor (...)
    gain : Tensor (...) or float
        g, 1 except in V3.

    Returns
    -------
    Tensor (...)
        Decibels; infinite at lambda = g, 13.06 at lambda = 0.8, -6.02 at lambda = 0, below that if lambda is negative,
        minus infinity at lambda = -g. NaN if both gains are 0.
    """
    return 20 * (((gain + lam) / 2).abs() / (gain - lam).abs()).log10()


def _by_query(request: Request, values: Tensor) -> Tensor:  # (head, query)
    layer = request.layer
    return values[0].double().expand(layer.n_heads, layer.n_queries)[:, request.queries]


@layer(
    dims=("outlier",),
    units="1",
    description="largest and median magnitude of the attention logits",
    formula="of |scale q.k|, capped where the model caps it, with the bias of positions where it adds one, over all maps of the "
    "layer and the keys each query sees, exact; keys beyond a sliding window are not seen, and a sink logit is no key; of edited "
    "scores over both maps of each head",
    range=("0", "inf"),
    undefined="the k-th largest of fewer than k",
    source=DIFF,
)
def logit_outliers(request: Request) -> Tensor:
    """Compute the largest and the median score in size, over all maps of the layer and the keys each query sees: (outlier,).

    A score is scale q.k, capped where the model caps it, with the bias of positions where it adds one. Keys beyond a sliding
    window are not seen, and a sink logit is no key. Under an edit the scores are the edited ones, over both maps of each head, so
    that a map that heads share counts once a head.
    """
    layer = request.layer
    size = max(1, LOGITS // (layer.q.shape[1] * layer.n_keys))

    def blocks() -> Iterator[Tensor]:
        for queries in request.queries.split(size):
            if not layer.changes:
                yield layer.logits(queries)[:, layer.visible(queries)].flatten()
                continue
            context = RowContext(layer, torch.arange(layer.n_heads, device=queries.device), queries)
            for branch in (1, 2) if layer.differential else (1,):
                scores = layer.changed_logits(branch, context)
                yield scores[scores > -torch.inf]

    return streamed_outliers(blocks)


def map_gram(x: Tensor, weights: Tensor | None = None) -> Tensor:
    """Compute inner products of the heads' maps (head, query, key) over a block, float64 (head, head), to be added over blocks.

    `weights` (query,) say how many queries each one stands for; by default one.
    """
    flat = x.flatten(1)
    weighted = flat if weights is None else (x * weights.to(x.dtype)[:, None]).flatten(1)
    return (flat @ weighted.T).double()


def _gram(block: BlockRows, statistics: Sequence[Statistic]) -> Tensor:  # (map, head, head)
    return of_three_maps([map_gram(x, block.weights) for x in block.maps], block.request.layer, dim=0)


@layer(
    dims=("map",),
    units="1",
    description="mean cosine distance between the heads' maps",
    formula="mean over pairs of heads of 1 - <A_i,A_j> / (|A_i||A_j|)",
    range=("0", "2"),
    undefined="layers of one head; where a map is zero",
    averaged_over="pairs of heads",
    quantity=Quantity(_gram, add, all_heads=True),
)
def map_distance(gram: Tensor, request: Request | None = None) -> Tensor:
    """Compute the mean cosine distance over all pairs of heads of `gram` (..., head, head): 1 - <A_i, A_j> / (|A_i||A_j|).

    It is 0 if all heads have one map, 1 if they share no key; up to 2 for signed maps.
    """
    heads = gram.shape[-1]
    if heads < 2:
        return gram.new_full(gram.shape[:-2], math.nan)
    norm = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    cosine = gram / (norm.unsqueeze(-1) * norm.unsqueeze(-2))
    first, second = torch.triu_indices(heads, heads, offset=1)
    return 1 - cosine[..., first, second].mean(-1)


def _outputs(block: BlockRows, statistics: Sequence[Statistic]) -> Tensor:  # (head, query, width)
    layer = block.request.layer
    of_heads = layer.pairing.value_of_head[list(block.where.block.heads)].tolist()
    values = [layer.v[0, value, block.where.keys].to(layer.dtype) for value in of_heads]  # (key, width) of each head
    return torch.stack([d @ v for d, v in zip(block.rows.d, values)])


@layer(
    name="head_cka",
    dims=("head", "other_head"),
    units="1",
    description="linear CKA between the heads' outputs",
    formula="|Yj'Yi|² / (|Yi'Yi||Yj'Yj|), Y = D V centred over queries",
    range=("0", "1"),
    undefined="heads whose output does not vary",
    source=CKA,
    quantity=Quantity(_outputs, place(query_dim=1)),
)
def head_cka_of_layer(outputs: Tensor, request: Request) -> Tensor:
    """Compute the CKA of the outputs that blocks gave, (head, query, width)."""
    return head_cka(outputs, request.weights)


def head_cka(outputs: Tensor, weights: Tensor | None = None) -> Tensor:
    """Compute the linear centred kernel alignment between the outputs of heads (Kornblith et al. 2019).

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
    parts = [slice(start, start + CENTRED_ROWS) for start in range(0, queries, CENTRED_ROWS)]
    mean = sum((outputs[:, part].double() * weights[part]).sum(1) for part in parts) / weights.sum()  # (head, width)
    products = mean.new_zeros(heads * width, heads * width)
    for part in parts:
        features = (outputs[:, part].double() - mean[:, None]).transpose(0, 1).flatten(1)  # (query, head·width)
        products += features.T @ (weights[part] * features)
    products = products.reshape(heads, width, heads, width)
    alignment = products.square().sum((1, 3))  # (head, head)
    norm = alignment.diagonal().sqrt()
    return alignment / (norm.unsqueeze(-1) * norm)
