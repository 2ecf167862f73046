"""The Triton program that reads histograms; imported only when it is run."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffscope.stats.kernels import histogram

BINS = tl.constexpr(histogram.BINS)
SHIFT = tl.constexpr(histogram.SHIFT)
COUNT = tl.constexpr(histogram.COUNT)
EXCESS = tl.constexpr((1 << histogram.COUNT) - 1)
LAST = tl.constexpr(2.0**-histogram.SHIFT)  # of a bin's width, the step between two numbers
ROUNDING = tl.constexpr(1e-12)  # of a Gini index in float64


@triton.jit
def _edge(number):
    """Return the smallest float of a bin."""
    return (number << SHIFT).to(tl.float32, bitcast=True).to(tl.float64)


@triton.jit
def _store(out, low, high, real, n_rows, SLOTS: tl.constexpr):
    """Store the middles of brackets, and SLOTS times all rows further on their widths."""
    tl.store(out, (low + high) / 2, mask=real)
    tl.store(out + SLOTS * n_rows, high - low, mask=real)


@triton.jit
def brackets(bins, lowest, n, levels, sizes, out, n_rows, LEVELS: tl.constexpr, SIZES: tl.constexpr, ROWS: tl.constexpr):
    """Compute the brackets of ROWS rows, out (middle | width, gini | levels | sizes, row); bins (row, BINS)."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = row < n_rows
    packed = tl.load(bins + row[:, None] * BINS + tl.arange(0, BINS)[None, :], mask=real[:, None], other=0)
    first = tl.load(lowest + row, mask=real, other=0)
    number = first[:, None] + tl.arange(0, BINS)[None, :]
    edge = _edge(number)
    smallest = _edge(first)
    width = _edge(number + 1) - edge
    count = (packed >> COUNT).to(tl.float64)
    excess = (packed & EXCESS).to(tl.float64) * (width * LAST)  # of all values over the edge
    total = count * edge + excess
    n = tl.load(n + row, mask=real, other=1).to(tl.float64)
    rest = n - tl.sum(count, 1)  # values below all bins, taken to be zeros
    up_to = rest[:, None] + tl.cumsum(count, 1)
    out += row

    # With every value at its bin's mean the Gini index is least. It is largest where each bin's values lie at its two edges,
    # which adds c²·(m - a)(b - m)/(b - a)/(n·sum) for c values of mean m between a and b. What the smallest hold, s, moves it
    # by 2s/sum at most.
    row_total = tl.sum(total, 1)
    safe = tl.where(row_total > 0, row_total, 1.0)
    gini = (tl.sum(total * (2 * up_to - count + 1), 1) / safe - n - 1) / n
    spread = tl.sum(tl.where(count > 1, excess * (count * width - excess) / width, 0.0), 1) / (n * safe)
    slack = 2 * rest * smallest / safe
    largest = 1 - 1 / n
    low = tl.where(row_total > 0, tl.minimum(tl.maximum(gini - slack, 0.0), largest), 0.0)
    high = tl.where(row_total > 0, tl.minimum(gini + spread + slack, largest), largest)
    _store(out, low - ROUNDING, tl.maximum(high, low) + ROUNDING, real, n_rows, 1 + LEVELS + SIZES)

    for i in tl.static_range(LEVELS):
        rank = tl.maximum(tl.ceil(tl.load(levels + i) * n - 1e-9), 1.0)  # 0.1·30 is a little more than 3
        inside = (up_to >= rank[:, None]) & (up_to - count < rank[:, None])
        low = tl.sum(tl.where(inside, edge, 0.0), 1)
        high = tl.where(rank > rest, low + tl.sum(tl.where(inside, width, 0.0), 1), smallest)
        _store(out + (1 + i) * n_rows, low, high, real, n_rows, 1 + LEVELS + SIZES)

    # Of a bin of which only j values are among the k largest, these hold its mean each or more, and no more than either its
    # upper edge each or what the others leave if they are at the lower edge.
    mean = total / tl.maximum(count, 1.0)
    for i in tl.static_range(SIZES):
        k = tl.load(sizes + i)
        taken = tl.minimum(tl.maximum(k - (n[:, None] - up_to), 0.0), count)
        least = taken * mean
        most = tl.minimum(taken * (edge + width), least + (count - taken) * (mean - edge))
        below = tl.minimum(tl.maximum(k - (n - rest), 0.0), rest) * smallest
        _store(out + (1 + LEVELS + i) * n_rows, tl.sum(least, 1), tl.sum(most, 1) + below, real, n_rows, 1 + LEVELS + SIZES)


def read(bins: Tensor, lowest: Tensor, n: Tensor, levels: tuple[float, ...], top: tuple[int, ...]) -> dict[str, Tensor]:
    """Bracket the Gini index, the ceil(q·n)-th smallest values and the sums of the k largest of rows of n (...) values.

    `bins`, filled, and `lowest` are of :func:`~diffscope.stats.kernels.histogram.empty`, q are the levels and k the sizes in
    `top`. Returned are, in float64, the middles of the brackets, "gini" (...), "quantiles" (..., quantile) and "top" (..., k),
    and with "_width" appended their widths.
    """
    device = bins.device
    shape = lowest.shape
    out = torch.empty(2, 1 + len(levels) + len(top), *shape, dtype=torch.float64, device=device)
    rows = 1 if bins.is_cuda else 64  # of one program; the interpreter is the faster the fewer there are
    brackets[(-(-lowest.numel() // rows),)](
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
        enable_fp_fusion=True,
    )
    values_of: dict[str, Tensor] = {}
    for suffix, values in zip(("", "_width"), out):
        gini, quantiles, sums = values.split((1, len(levels), len(top)))
        values_of |= {
            f"gini{suffix}": gini[0],
            f"quantiles{suffix}": quantiles.movedim(0, -1),
            f"top{suffix}": sums.movedim(0, -1),
        }
    return values_of
