"""Histograms on a float's bits: what they tell about the order of a row (Gini index, quantiles, top-k), each with a bound.

A bin holds the float32 numbers that share an exponent and the first ``BITS`` bits of the mantissa. It counts them and adds up
the bits that are left, as integers, so both are exact and do not depend on the order of adding. Bins are wide in proportion
to what they hold: 1/16 of it at most.
"""

import torch
from torch import Tensor

BITS = 4  # of the mantissa that tell bins apart
OCTAVES = 64  # that a row's bins cover, down from the largest value that it can have
BINS = OCTAVES << BITS
SHIFT = 23 - BITS  # bits that a bin leaves
COUNT = 40  # a bin is one int64: its count from this bit on, below it the sum of the bits left
MOST_KEYS = 1 << (COUNT - SHIFT)


def empty(limit: Tensor) -> tuple[Tensor, Tensor]:
    """Bins for rows whose magnitudes do not exceed `limit`, but by rounding.

    Smaller values than the first bin's, zeros among them, are put in none: they are what is missing in the counts.

    Parameters
    ----------
    limit : float32 Tensor, (...)

    Returns
    -------
    bins : int64 Tensor, (..., BINS)
        Zeros, to which every value adds ``1 << COUNT`` and its last `SHIFT` bits.
    lowest : int32 Tensor, (...)
        The first bin's number: what the bits of its values are without the last `SHIFT`.
    """
    exponent = (limit * 1.001).view(torch.int32) >> 23
    lowest = ((exponent - OCTAVES + 1) << BITS).clamp_min(1 << BITS)
    return torch.zeros(*limit.shape, BINS, dtype=torch.int64, device=limit.device), lowest


def read(bins: Tensor, lowest: Tensor, n: Tensor, levels: tuple[float, ...], top: tuple[int, ...]) -> dict[str, Tensor]:
    """Brackets around the Gini index, the ceil(q·n)-th smallest values and the sums of the k largest.

    Parameters
    ----------
    bins, lowest : Tensor
        Of :func:`empty`, the bins filled.
    n : int64 Tensor, (...)
        Values of each row.
    levels : tuple of float
        q of each quantile.
    top : tuple of int
        k of each sum.

    Returns
    -------
    dict of float64 Tensor
        The middles of the brackets, "gini" (...), "quantiles" (..., quantile) and "top" (..., k), and with "_width" appended
        their widths.
    """
    from diffscope.kernels import brackets

    device, shape = bins.device, lowest.shape
    out = torch.empty(2, 1 + len(levels) + len(top), *shape, dtype=torch.float64, device=device)
    rows = 1 if bins.is_cuda else 64  # of one program; the interpreter is the faster the fewer there are
    brackets.brackets[(-(-lowest.numel() // rows),)](
        bins,
        lowest,
        n.contiguous(),
        torch.tensor(levels, dtype=torch.float64, device=device),
        torch.tensor(top, dtype=torch.float64, device=device),
        out,
        lowest.numel(),
        ROWS=rows,
        LEVELS=len(levels),
        SIZES=len(top),
    )
    found = {}
    for suffix, values in zip(("", "_width"), out):
        gini, quantiles, sums = values.split((1, len(levels), len(top)))
        found |= {f"gini{suffix}": gini[0], f"quantiles{suffix}": quantiles.movedim(0, -1), f"top{suffix}": sums.movedim(0, -1)}
    return found
