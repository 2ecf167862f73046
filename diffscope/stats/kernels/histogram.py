"""Count a row's magnitudes in bins on their bits: Gini index, quantiles and top-k follow, each with a bound.

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
    """Return empty bins for rows whose magnitudes do not exceed `limit`, but by rounding.

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
