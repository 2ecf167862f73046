"""The Triton programs of :mod:`diffscope.stats.kernels.rows`: each for a block of rows of one map.

Scores are kept as the plain products q·k, and their distance from a row's largest is what is scaled: so a large score costs
no digits. `factor` is scale·log2(e), and weights are powers of two. A soft cap and sink logits come in the unit of the products,
divided by the scale: c·tanh(x/c) of a product is then what takes its place. Sums are those of a tree within a tile of keys, and
of float64 from tile to tile: at 64K keys they are as good as at 64.
"""

import triton
import triton.language as tl

from diffscope.stats.kernels import histogram

FULL = tl.constexpr(0)
WINDOW = tl.constexpr(2)
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
LN2 = tl.constexpr(0.6931471805599453)
NOTHING = tl.constexpr(-1e30)  # below every score, and finite, so that its distance from itself is zero
TINY = tl.constexpr(1.1754943508222875e-38)
VARYING = ("n_rows", "n_keys", "offset", "window")  # no program is compiled anew for another of these
SHIFT = tl.constexpr(histogram.SHIFT)
BINS = tl.constexpr(histogram.BINS)
ONE = tl.constexpr(1 << histogram.COUNT)
REST = tl.constexpr((1 << histogram.SHIFT) - 1)


@triton.jit
def _rows(queries, n_rows, offset, BLOCK_M: tl.constexpr):
    """Return the rows that a program computes: number, whether there is such a row, query, and position among the keys."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    real = row < n_rows
    query = tl.load(queries + row, mask=real, other=0)
    return row, real, query, (query + offset).to(tl.int32)


@triton.jit
def _bound(x):
    """Return a bound of a loop as a number: scalars of the interpreter are arrays of one element."""
    if INTERPRETED:
        return x.handle.data.item()
    return x


@triton.jit
def _bounds(position, real, n_keys, window, KIND: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the tiles' start and stop: between them is every key that any row of a block sees."""
    start = 0
    stop = n_keys
    if KIND != FULL:
        stop = tl.max(tl.where(real, position, -1), 0) + 1
    if KIND == WINDOW:
        first = tl.min(tl.where(real, position, n_keys), 0) - window + 1
        start = tl.maximum(first, 0) // BLOCK_N * BLOCK_N
    return start, stop


@triton.jit
def _visible(position, key, n_keys, window, KIND: tl.constexpr):
    """Return whether each row sees each key, (row, key)."""
    behind = position[:, None] - key[None, :]
    seen = (key < n_keys)[None, :]
    if KIND != FULL:
        seen &= behind >= 0
    if KIND == WINDOW:
        seen &= behind < window
    return seen


@triton.jit
def _query_tile(q, map, query, real, map_stride, query_stride, d_stride, d, WIDEN: tl.constexpr, BLOCK_D: tl.constexpr):
    """Load the queries of a block, (row, d)."""
    within = tl.arange(0, BLOCK_D)
    at = map * map_stride + query[:, None] * query_stride + within[None, :] * d_stride
    tile = tl.load(q + at, mask=real[:, None] & (within < d)[None, :], other=0.0)
    return tile.to(tl.float32) if WIDEN else tile


@triton.jit
def _capped(x, cap):
    """Compute cap·tanh(x/cap), by tanh's series if the exponential would lose the digits."""
    t = tl.minimum(tl.maximum(x / cap, -15.0), 15.0)  # beyond, tanh is 1 in float32
    t2 = t * t
    series = t * (1 + t2 * (-1 / 3 + t2 * (2 / 15 + t2 * (-17 / 315 + t2 * (62 / 2835 - t2 * (1382 / 155925))))))
    return cap * tl.where(t2 < 0.1, series, 1 - 2 / (tl.exp(2 * t) + 1))


@triton.jit
def _products(
    tile, k, key, exists, cap, key_stride, d_stride, d,
    CAPPED: tl.constexpr, WIDEN: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compute q·k of a block's queries and a tile of keys, capped if the model caps its scores, (row, key)."""
    within = tl.arange(0, BLOCK_D)
    at = key.to(tl.int64)[None, :] * key_stride + within[:, None] * d_stride
    keys = tl.load(k + at, mask=exists[None, :] & (within < d)[:, None], other=0.0)  # (d, key)
    # TF32, the default for float32, has ten bits of mantissa: a score of 10 would be off by half a percent.
    products = tl.dot(tile, keys.to(tl.float32) if WIDEN else keys, input_precision="ieee")
    return _capped(products, cap) if CAPPED else products


@triton.jit
def _normalised(
    q, k, map_of, key_of, largest, over_z, map, query, row, real, n_rows, q_map, q_query, q_d, k_map, d,
    WIDEN: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Load the queries of a map (row, d), the address of its keys, and the results of :func:`branch` (row, 1)."""
    tile = _query_tile(q, tl.load(map_of + map), query, real, q_map, q_query, q_d, d, WIDEN, BLOCK_D)
    top = tl.load(largest + map * n_rows + row, mask=real, other=0.0)
    over = tl.load(over_z + map * n_rows + row, mask=real, other=0.0)
    return tile, k + tl.load(key_of + map) * k_map, top[:, None], over[:, None]


@triton.jit
def _weights(
    tile, k, top, over, key, exists, seen, factor, cap, k_key, k_d, d,
    CAPPED: tl.constexpr, WIDEN: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compute the attention weights of a tile of keys, (row, key); zero if a key is not seen."""
    products = _products(tile, k, key, exists, cap, k_key, k_d, d, CAPPED, WIDEN, BLOCK_D)
    return tl.where(seen, tl.exp2((products - top) * factor) * over, 0.0)


@triton.jit(do_not_specialize=VARYING)
def branch(
    q, k, queries, map_of, key_of, sink, out, n_rows, n_keys, offset, window, factor, cap, d,
    q_map, q_query, q_d, k_map, k_key, k_d,
    KIND: tl.constexpr, CAPPED: tl.constexpr, SINK: tl.constexpr, SUMS: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compute one map's largest product and normaliser, and its sums, which are rescaled as the largest so far grows.

    sink (map, row) float32 are sink logits, whose exponential counts in Z alone.
    out (slot, map, row) float64: largest product or sink logit, 1/Z, sum p, largest p; with SUMS further sum p², sum p ln p,
    sum sqrt p, position of the largest.
    """
    unit = tl.program_id(1)
    row, real, query, position = _rows(queries, n_rows, offset, BLOCK_M)
    tile = _query_tile(q, tl.load(map_of + unit), query, real, q_map, q_query, q_d, d, WIDEN, BLOCK_D)
    k += tl.load(key_of + unit) * k_map
    largest = tl.full([BLOCK_M], NOTHING, tl.float32)
    peak = tl.zeros([BLOCK_M], tl.int32)
    z = tl.zeros([BLOCK_M], tl.float64)
    squares = tl.zeros([BLOCK_M], tl.float64)
    bits = tl.zeros([BLOCK_M], tl.float64)  # sum of e·log2(e), e = 2^distance
    roots = tl.zeros([BLOCK_M], tl.float64)
    start, stop = _bounds(position, real, n_keys, window, KIND, BLOCK_N)
    for first in range(_bound(start), _bound(stop), BLOCK_N):
        key = first + tl.arange(0, BLOCK_N)
        seen = _visible(position, key, n_keys, window, KIND)
        products = _products(tile, k, key, key < n_keys, cap, k_key, k_d, d, CAPPED, WIDEN, BLOCK_D)
        scores = tl.where(seen, products, NOTHING)
        if SUMS:
            top, where = tl.max(scores, 1, return_indices=True)  # the first of equals
            peak = tl.where(top > largest, first + where, peak)
        else:
            top = tl.max(scores, 1)
        grown = tl.maximum(largest, top)
        step = (largest - grown) * factor
        distance = (scores - grown[:, None]) * factor
        e = tl.where(seen, tl.exp2(distance), 0.0)
        shrunk = tl.exp2(step).to(tl.float64)
        if SUMS:
            # e is zero long before the distance is -1000, so that 0·distance stays 0.
            bits = shrunk * (bits + step.to(tl.float64) * z) + tl.sum(e * tl.maximum(distance, -1000.0), 1).to(tl.float64)
            squares = shrunk * shrunk * squares + tl.sum(e * e, 1).to(tl.float64)
            halved = tl.where(seen, tl.exp2(0.5 * distance), 0.0)
            roots = tl.exp2(0.5 * step).to(tl.float64) * roots + tl.sum(halved, 1).to(tl.float64)
        z = shrunk * z + tl.sum(e, 1).to(tl.float64)
        largest = grown
    on_keys = z
    height = tl.full([BLOCK_M], 1.0, tl.float64)
    if SINK:
        logit = tl.load(sink + unit.to(tl.int64) * n_rows + row, mask=real, other=0.0)
        grown = tl.maximum(largest, logit)
        step = (largest - grown) * factor
        height = tl.exp2(step).to(tl.float64)
        if SUMS:
            bits = height * (bits + step.to(tl.float64) * z)
            squares = height * height * squares
            roots = tl.exp2(0.5 * step).to(tl.float64) * roots
        on_keys = height * z
        z = on_keys + tl.exp2((logit - grown) * factor).to(tl.float64)
        largest = grown
    slot = tl.num_programs(1).to(tl.int64) * n_rows
    out += unit.to(tl.int64) * n_rows + row
    tl.store(out, largest.to(tl.float64), mask=real)
    tl.store(out + slot, 1 / z, mask=real)
    tl.store(out + 2 * slot, on_keys / z, mask=real)
    tl.store(out + 3 * slot, height / z, mask=real)
    if SUMS:
        tl.store(out + 4 * slot, squares / (z * z), mask=real)
        tl.store(out + 5 * slot, (bits / z) * LN2 - on_keys / z * tl.log(z), mask=real)
        tl.store(out + 6 * slot, roots / tl.sqrt(z), mask=real)
        tl.store(out + 7 * slot, peak.to(tl.float64), mask=real)


@triton.jit(do_not_specialize=VARYING)
def signed(  # noqa: C901 (switches are resolved when it is compiled)
    q, k, queries, map_of, key_of, first_of, second_of, largest, over_z, gain, lam, threshold, lowest, bins, out,
    n_rows, n_keys, offset, window, factor, cap, d, q_map, q_query, q_d, k_map, k_key, k_d,
    KIND: tl.constexpr, CAPPED: tl.constexpr, BOTH: tl.constexpr, SUMS: tl.constexpr, LOGS: tl.constexpr, ROOTS: tl.constexpr,
    PEAK: tl.constexpr, SMALL: tl.constexpr, HISTOGRAM: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Sum over the rows x = gain·first - lam·second, or gain·first without BOTH.

    largest, over_z (map, row), gain, lam, threshold, lowest (unit, row); bins (unit, row, BINS) int64, zeros at the start;
    out (slot, unit, row) float64, in the order of the stores below.
    """
    unit = tl.program_id(1)
    row, real, query, position = _rows(queries, n_rows, offset, BLOCK_M)
    at = unit.to(tl.int64) * n_rows + row
    g = tl.load(gain + at, mask=real, other=0.0)[:, None]
    tile1, k1, top1, over1 = _normalised(
        q, k, map_of, key_of, largest, over_z, tl.load(first_of + unit), query, row, real, n_rows,
        q_map, q_query, q_d, k_map, d, WIDEN, BLOCK_D,
    )  # fmt: skip
    if BOTH:
        tile2, k2, top2, over2 = _normalised(
            q, k, map_of, key_of, largest, over_z, tl.load(second_of + unit), query, row, real, n_rows,
            q_map, q_query, q_d, k_map, d, WIDEN, BLOCK_D,
        )  # fmt: skip
        subtracted = tl.load(lam + at, mask=real, other=0.0)[:, None]
    if SMALL:
        below = tl.load(threshold + at, mask=real, other=0.0)[:, None]
    if HISTOGRAM:
        lowest_bin = tl.load(lowest + at, mask=real, other=0)[:, None]
        row_bins = (bins + at * BINS)[:, None]
    total = tl.zeros([BLOCK_M], tl.float64)
    net = tl.zeros([BLOCK_M], tl.float64)
    squares = tl.zeros([BLOCK_M], tl.float64)
    negative = tl.zeros([BLOCK_M], tl.float64)
    negatives = tl.zeros([BLOCK_M], tl.int32)
    logs = tl.zeros([BLOCK_M], tl.float64)
    roots = tl.zeros([BLOCK_M], tl.float64)
    height = tl.full([BLOCK_M], -1.0, tl.float32)
    peak = tl.zeros([BLOCK_M], tl.int32)
    small = tl.zeros([BLOCK_M], tl.int32)
    start, stop = _bounds(position, real, n_keys, window, KIND, BLOCK_N)
    for first in range(_bound(start), _bound(stop), BLOCK_N):
        key = first + tl.arange(0, BLOCK_N)
        exists = key < n_keys
        seen = _visible(position, key, n_keys, window, KIND)
        p1 = _weights(tile1, k1, top1, over1, key, exists, seen, factor, cap, k_key, k_d, d, CAPPED, WIDEN, BLOCK_D)
        x = g * p1
        if BOTH:
            p2 = _weights(tile2, k2, top2, over2, key, exists, seen, factor, cap, k_key, k_d, d, CAPPED, WIDEN, BLOCK_D)
            x -= subtracted * p2
        size = tl.abs(x)
        if SUMS:
            total += tl.sum(size, 1).to(tl.float64)
            net += tl.sum(x, 1).to(tl.float64)
            squares += tl.sum(x * x, 1).to(tl.float64)
            negative += tl.sum(tl.maximum(-x, 0.0), 1).to(tl.float64)
            negatives += tl.sum((x < 0).to(tl.int32), 1)
        if LOGS:
            logs += tl.sum(size * tl.log2(tl.maximum(size, TINY)), 1).to(tl.float64)  # 0 ln 0 = 0
        if ROOTS:
            roots += tl.sum(tl.sqrt(size), 1).to(tl.float64)
        if PEAK:
            top, where = tl.max(tl.where(seen, size, -1.0), 1, return_indices=True)  # the first of equals
            peak = tl.where(top > height, first + where, peak)
            height = tl.maximum(height, top)
        if SMALL:
            small += tl.sum((seen & (size < below)).to(tl.int32), 1)
        if HISTOGRAM:
            number = size.to(tl.int32, bitcast=True)
            slot = (number >> SHIFT) - lowest_bin
            value = (number & REST).to(tl.int64) + ONE
            held = seen & (slot >= 0) & real[:, None]
            tl.atomic_add(row_bins + tl.minimum(slot, BINS - 1), value, mask=held, sem="relaxed")
    slot = tl.num_programs(1).to(tl.int64) * n_rows
    out += at
    if SUMS:
        tl.store(out, total, mask=real)
        tl.store(out + slot, net, mask=real)
        tl.store(out + 2 * slot, squares, mask=real)
        tl.store(out + 3 * slot, negative, mask=real)
        tl.store(out + 4 * slot, negatives.to(tl.float64), mask=real)
    if LOGS:
        tl.store(out + 5 * slot, logs * LN2, mask=real)
    if ROOTS:
        tl.store(out + 6 * slot, roots, mask=real)
    if PEAK:
        tl.store(out + 7 * slot, height.to(tl.float64), mask=real)
        tl.store(out + 8 * slot, peak.to(tl.float64), mask=real)
    if SMALL:
        tl.store(out + 9 * slot, small.to(tl.float64), mask=real)
