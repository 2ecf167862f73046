"""Say how far a right reading may be off by rounding, row by row.

What rounding does to a row grows with the keys that the row sees. So the early rows of a long prompt are held as tightly as a
short prompt, and a wrong λ, scale, norm or pairing is wrong in them too.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from diffscope.attention.layer import LayerAttention
from diffscope.attention.memory import NO_REUSE, Workspace

# In units of what rounding acts on (see `rounding`). Float64 is no tighter than float32's rounding because the eager
# attention of Hugging Face models takes its softmax in float32 even there.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-5, torch.float16: 0.015, torch.bfloat16: 0.1}
# A score s is rounded by some units of s·ε, and its weight by that share: published models have scores beyond 300.
TOLERANCE_PER_SCORE = 4 * torch.finfo(torch.float32).eps
# The factors of the terms of `rounding`: with twice what was seen on random queries, keys and values of many kinds.
OF_EACH_WEIGHT = 0.5
OF_SUMS = 4
OF_LOST = 2
ALL_ROWS_UP_TO = 2048
SAMPLED_ROWS = 512


def rows_to_check(n: int, device: torch.device) -> Tensor:
    """Return all rows of short prompts; of long ones 512 rows spread evenly, first and last included."""
    if n <= ALL_ROWS_UP_TO:
        return torch.arange(n, device=device)
    return torch.linspace(0, n - 1, SAMPLED_ROWS, device=device).round().long()


def rms(x: Tensor) -> Tensor:
    """Return the root mean square over the last dimension."""
    return torch.linalg.vector_norm(x, dim=-1) * x.shape[-1] ** -0.5


def rounding(
    weights: Tensor, products: Tensor, square: Tensor, count: Tensor, dtype: torch.dtype, workspace: Workspace = NO_REUSE
) -> Tensor:
    """Return the unit in which rounding moves the sums Σ p·v of some rows, (map, query).

    With n keys that a row sees, weights p, values v, all sizes root mean squares over the width, t the tolerance of the dtype and
    u = 2⁻²⁴, half the spacing of float32, in which sums are kept (2⁻⁵³ of a float64 model), it is

        |Σ p·v| + ½·√(Σ p²·v²) + (4·u·√n·√(Σ p·v²) + 2·Σ p·|v| over the keys of p < u + least) / t

    - The result is rounded by its own size.
    - Each weight is rounded by itself, by its dtype and with its score. Such errors add up as √(Σ p²·v²), and stay where the
      values cancel.
    - Each of n additions is rounded by u of what the sum has come to, at most Σ p·|v| ≤ √(Σ p·v²). Independent errors come to
      √n·u of it (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019), the worst case is n·u.
    - They are not independent where an addition changes nothing. A sum kept key by key loses all weights that are below u of it.
    - `least` is the smallest number of the dtype, by which float16 rounds small outputs.

    Parameters
    ----------
    weights : Tensor, (map, query, key)
        Not negative.
    products : Tensor, (map, query, width)
        Σ p·v.
    square : Tensor, (map, key)
        The mean square of the values over the width.
    count : int64 Tensor, (query,)
        How many keys each row sees.
    dtype : torch.dtype
        That of the model's queries, keys and values.
    workspace : Workspace
        Where temporaries as large as the weights are put.
    """
    # Products with one vector are several times as fast with the vector in front.
    square = square[..., None, :]  # (map, 1, key)
    unit = torch.finfo(weights.dtype).eps / 2
    room = workspace.take("rounding", weights.shape, weights.dtype, weights.device)
    each = (square @ torch.square(weights, out=room).mT)[..., 0, :].sqrt()
    added = (square @ weights.mT)[..., 0, :].sqrt() * count.sqrt() * unit
    # Weights below u are what is left without those from u on, which takes a fifth of the time of `where`.
    from_unit_on = torch.threshold(weights, unit * (1 - unit), 0.0, out=room)
    lost = (square.sqrt() @ torch.sub(weights, from_unit_on, out=room).mT)[..., 0, :]
    info = torch.finfo(dtype)
    absolute = OF_SUMS * added + OF_LOST * lost + info.tiny * info.eps
    return rms(products) + OF_EACH_WEIGHT * each + absolute / TOLERANCE[dtype]


def tolerated(layer: LayerAttention, dtype: torch.dtype, error: float = np.inf, exact: bool = True) -> float:
    """Return the error that rounding explains.

    It grows with the size of the scores, which is looked up only where `error` is beyond what small scores explain.

    Parameters
    ----------
    layer : LayerAttention
    dtype : torch.dtype
        Of what the model produced.
    error : float
    exact : bool
        Whether to look up the largest score; otherwise the norms of queries and keys give a bound on it, which takes less time.
    """
    least = max(TOLERANCE[dtype], TOLERANCE[layer.q.dtype])  # under autocast the one is wider than the other
    if layer.score_dtype is not None:  # the model may round a score s the other way, by up to s·eps: of two keys of weight ½ and
        per_score = 1.5 * torch.finfo(layer.score_dtype).eps  # values that cancel, that moves the output by √2·s·eps of the unit
    else:  # half precision rounds weights by more
        per_score = TOLERANCE_PER_SCORE if least <= TOLERANCE[torch.float32] else 0.0
    if not error > least or not per_score:
        return least
    if exact:
        return max(least, per_score * max(_largest_score(layer.prompt(i)) for i in range(len(layer.lengths))))
    longest = [torch.linalg.vector_norm(x, dim=-1, dtype=layer.dtype).max() for x in (layer.q, layer.k)]
    largest = abs(layer.scale) * float(longest[0] * longest[1])
    return max(least, per_score * (largest if layer.soft_cap is None else min(largest, layer.soft_cap)))


def _largest_score(layer: LayerAttention) -> float:
    """Return the largest magnitude among the visible scores of the rows that are compared."""
    largest = 0.0
    rows = max(1, 2**22 // (layer.q.shape[1] * layer.n_keys))
    for queries in rows_to_check(layer.n_queries, layer.q.device).split(rows):
        scores = layer.logits(queries)
        largest = max(largest, float(scores.masked_fill(scores == -torch.inf, 0).abs().max()))
    return largest
