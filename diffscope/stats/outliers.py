"""Find the largest magnitudes of a set of numbers and their median, exactly and in bounded memory.

What makes activations hard to quantise is the distance between their few largest magnitudes and their typical one.
Numbers arrive in blocks that are made again for every pass. Magnitudes of floats order like their bit patterns, so
a histogram of the leading 16 bits tells in which bin an order statistic lies, and one of the next 16 bits within
that bin which float32 it is: two passes, 65,536 counters, no approximation. What is in memory and small is partly
sorted, to the same numbers.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

TOP = (1, 2, 3, 10, 100)
LABELS = (*(f"top_{k}" for k in TOP), "median")

DIGIT = 16
SORTED_UP_TO = 2**22  # numbers: that is then faster, and its copy takes no more than 16 MiB in float32


def outliers(x: Tensor) -> Tensor:
    """Find the largest magnitudes and the median magnitude of a tensor, such as a layer's output: float64 (outlier,).

    In the order of ``LABELS`` they are the 1st, 2nd, 3rd, 10th and 100th largest |x|, and their median, in units of `x`; NaN if
    there are fewer values than that.
    """
    values = x.flatten().to(torch.promote_types(x.dtype, torch.float32))
    if values.numel() > SORTED_UP_TO:
        return streamed_outliers(lambda: [values])
    sizes = values.abs()
    count = len(sizes)
    if count == 0:
        return torch.full((len(LABELS),), math.nan, dtype=torch.float64)
    ranks = [*(max(count - k, 0) for k in TOP), (count - 1) // 2, count // 2]
    if sizes.device.type == "cpu":
        sizes.numpy().partition(sorted(set(ranks)))  # sorts what lies between ranks no further
    else:
        sizes = sizes.sort().values
    *top, lower, upper = sizes[ranks].tolist()
    top = [size if k <= count else math.nan for k, size in zip(TOP, top)]
    return torch.tensor([*top, (lower + upper) / 2], dtype=torch.float64)


def streamed_outliers(blocks: Callable[[], Iterable[Tensor]]) -> Tensor:
    """Find the same of numbers that come in blocks (value,), all float32 or all float64, from the beginning at each call."""
    largest, count = _largest(blocks)
    if count == 0:
        return torch.full((len(LABELS),), math.nan, dtype=torch.float64)
    top = [largest[k - 1].item() if k <= count else math.nan for k in TOP]
    lower, upper = order_statistics(blocks, [(count - 1) // 2, count // 2])
    return torch.tensor([*top, (lower + upper) / 2], dtype=torch.float64)


def order_statistics(blocks: Callable[[], Iterable[Tensor]], ranks: list[int]) -> list[float]:
    """Find the magnitudes at given ranks (0 the smallest) in blocks as of :func:`streamed_outliers`, by radix selection."""
    dtype = next(iter(blocks())).dtype
    width = torch.finfo(dtype).bits
    prefixes = [0] * len(ranks)
    left = list(ranks)
    for shift in range(width - DIGIT, -1, -DIGIT):
        counts = _digit_counts(blocks, set(prefixes), shift, width)
        for i, prefix in enumerate(prefixes):
            below = counts[prefix].cumsum(0)
            digit = int(torch.searchsorted(below, left[i], right=True))
            left[i] -= int(below[digit - 1]) if digit else 0
            prefixes[i] = prefix << DIGIT | digit
    return torch.tensor(prefixes, dtype=torch.int64).to(_integers(dtype)).view(dtype).tolist()


def _digit_counts(blocks: Callable, prefixes: set[int], shift: int, width: int) -> dict[int, Tensor]:
    """Count how often each 16-bit digit occurs among the values that begin with each prefix: (digit,) by prefix."""
    counts = {prefix: torch.zeros(2**DIGIT, dtype=torch.int64) for prefix in prefixes}
    for block in blocks():
        bits = block.abs().view(_integers(block.dtype))
        for prefix, count in counts.items():
            chosen = bits if shift + DIGIT == width else bits[bits >> (shift + DIGIT) == prefix]
            count += torch.bincount((chosen >> shift) & (2**DIGIT - 1), minlength=2**DIGIT).cpu()
    return counts


def _largest(blocks: Callable) -> tuple[Tensor, int]:
    """Return the largest magnitudes in descending order, and how many numbers there are."""
    largest = torch.empty(0)
    count = 0
    for block in blocks():
        size = block.abs()
        candidates = torch.cat([largest.to(size), size.topk(min(TOP[-1], len(size))).values])
        largest = candidates.topk(min(TOP[-1], len(candidates))).values
        count += len(size)
    return largest.double(), count


def _integers(dtype: torch.dtype) -> torch.dtype:
    return {torch.float32: torch.int32, torch.float64: torch.int64}[dtype]
