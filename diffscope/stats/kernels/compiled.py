"""Passes over a row of scores in a CPU's memory, compiled by numba: each is read once, and stays in the core's first cache.

Rows are float32. At most ``PART`` terms are added up in float32, and those sums in float64. A NaN makes
its row's sums NaN, but neither counts nor positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

PART = 1024  # keys, of which several rows fit into the first cache
RANKS = np.arange(PART, dtype=np.float32)

single = np.float32
ZERO = single(0)
HALF = single(0.5)
ONE = single(1)
TINY = np.finfo(single).tiny
# Both functions as in the Cephes Mathematical Library (Moshier, 1989): e^r of |r| ≤ ln 2 / 2, and ln x of x in [√½, √2).
LOG2_E = single(1.44269504088896341)
LEAST_EXPONENT = single(-103.9)
BELOW = single(-1e4)
LN_2_HIGH = single(0.693359375)
LN_2_LOW = single(-2.12194440e-4)
E0 = single(1.9875691500e-4)
E1 = single(1.3981999507e-3)
E2 = single(8.3334519073e-3)
E3 = single(4.1665795894e-2)
E4 = single(1.6666665459e-1)
E5 = single(5.0000001201e-1)
L0 = single(7.0376836292e-2)
L1 = single(-1.1514610310e-1)
L2 = single(1.1676998740e-1)
L3 = single(-1.2420140846e-1)
L4 = single(1.4249322787e-1)
L5 = single(-1.6668057665e-1)
L6 = single(2.0000714765e-1)
L7 = single(-2.4999993993e-1)
L8 = single(3.3333331174e-1)
SQRT_HALF = np.int32(0x3F3504F3)  # the bits of √½
MANTISSA = np.int32(23)  # bits
BIAS = np.int32(127)  # of exponents

# Sums may be reordered, which is what makes them fast; NaN and infinity keep their meaning. So may the two steps with which `exp`
# and `ln` take ln 2 away: their errors stay below 3e-7.
OPTIONS: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz"}, "nogil": True, "error_model": "numpy"}


def compiled(function: Callable[..., Any]) -> Any:
    """A function that numba compiles at its first call, and keeps on disk where it can."""
    try:
        return numba.njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written to
        return numba.njit(**OPTIONS)(function)


def _reinterpreted(target: types.Type, source: types.Type) -> Any:
    """A function that takes the bits of one type for those of another."""

    @intrinsic
    def reinterpret(context, x):
        def generate(context, builder, signature, args):
            return builder.bitcast(args[0], context.get_value_type(target))

        return target(source), generate

    return reinterpret


bits_of = _reinterpreted(types.int32, types.float32)
float_of = _reinterpreted(types.float32, types.int32)


@numba.njit(inline="always")
def exp(x):
    """e^x of x ≤ 0, down to the least number there is."""
    k = np.floor(x * LOG2_E + HALF)
    r = x - k * LN_2_HIGH - k * LN_2_LOW
    y = (((((E0 * r + E1) * r + E2) * r + E3) * r + E4) * r + E5) * (r * r) + r + ONE
    power = np.int32(k)
    half = power >> np.int32(1)  # 2^k itself may be less than a normal number
    return ZERO if x < LEAST_EXPONENT else y * float_of((half + BIAS) << MANTISSA) * float_of((power - half + BIAS) << MANTISSA)


@numba.njit(inline="always")
def ln(x):
    """ln x of x ≥ 0, of 0 that of the least normal number: 0 ln 0 is 0."""
    x = x if not x < TINY else TINY
    bits = bits_of(x)
    exponent = (bits - SQRT_HALF) >> MANTISSA
    r = float_of(bits - (exponent << MANTISSA)) - ONE
    z = r * r
    y = ((((((((L0 * r + L1) * r + L2) * r + L3) * r + L4) * r + L5) * r + L6) * r + L7) * r + L8) * r * z
    e = single(exponent)
    return r + (y + e * LN_2_LOW - HALF * z) + e * LN_2_HIGH


@compiled
def _largest(x):
    largest = x[0]
    for j in range(len(x)):
        largest = x[j] if x[j] > largest else largest
    return largest


@compiled
def _first(x, value):
    """Where a value is first; 0 where it is not there, such as NaN."""
    for j in range(len(x)):
        if x[j] == value:
            return j
    return 0


@compiled
def _exponentials(x, largest, out):
    """e^(x − largest) into `out`; their sum, and that of each times x − largest."""
    total = ZERO
    weighted = ZERO
    for j in range(len(x)):
        distance = x[j] - largest
        distance = BELOW if distance < BELOW else distance  # of −∞ the product would not be 0
        weight = exp(distance)
        out[j] = weight
        total += weight
        weighted += weight * distance
    return total, weighted


@compiled
def _scaled(x, factor):
    """x times a factor, in place; Σx² and Σ√x of that."""
    squares = ZERO
    roots = ZERO
    for j in range(len(x)):
        value = x[j] * factor
        x[j] = value
        squares += value * value
        roots += np.sqrt(value)
    return squares, roots


@compiled
def weigh(scores, sink, out, sums):
    """A row of a map from its scores, and the sums over it.

    Parameters
    ----------
    scores : float32 array, (key,)
        Of visible keys.
    sink : float
        Sink logit; −∞ where there is none.
    out : float32 array, (key,)
        Gets p = exp(s) / (exp(sink) + Σ exp(s)).
    sums : float64 array, (5,)
        Gets Σp, Σp², Σp ln p, Σ√p and the position of the largest p, the first of equals.
    """
    highest = _largest(scores)
    largest = max(highest, single(sink))
    total = 0.0
    weighted = 0.0
    for start in range(0, len(scores), PART):
        stop = start + PART
        of_total, of_weighted = _exponentials(scores[start:stop], largest, out[start:stop])
        total += of_total
        weighted += of_weighted
    z = total + np.exp(sink - np.float64(largest))
    squares = 0.0
    roots = 0.0
    for start in range(0, len(scores), PART):
        of_squares, of_roots = _scaled(out[start : start + PART], single(1 / z))
        squares += of_squares
        roots += of_roots
    sums[0] = total / z
    sums[1] = squares
    sums[2] = (weighted - np.log(z) * total) / z
    sums[3] = roots
    sums[4] = _first(scores, highest)


@compiled
def _subtracted(a1, a2, gain, lam, out):
    """|gain·A1 − λ·A2| into `out`, and sums over it and over the difference d: |d|, d², max(d, 0), max(−d, 0), how many d < 0.

    |d| + d is 2d or 0, exactly.
    """
    total = ZERO
    squares = ZERO
    positive = ZERO
    negative = ZERO
    count = ZERO
    for j in range(len(a1)):
        d = gain * a1[j] - lam * a2[j]
        size = abs(d)
        out[j] = size
        total += size
        squares += size * size
        positive += HALF * (size + d)
        negative += HALF * (size - d)
        count += ONE if d < ZERO else ZERO
    return total, squares, positive, negative, count


@compiled
def _logs_and_roots(x):
    """Σx ln x and Σ√x."""
    logs = ZERO
    roots = ZERO
    for j in range(len(x)):
        logs += x[j] * ln(x[j])
        roots += np.sqrt(x[j])
    return logs, roots


@compiled
def subtract(a1, a2, gain, lam, out, sums):
    """A row of D from those of A1 and A2, and the sums over it.

    Parameters
    ----------
    a1, a2 : float32 array, (key,)
    gain, lam : float
    out : float32 array, (key,)
        Gets |d| of d = gain·A1 − λ·A2.
    sums : float64 array, (8,)
        Gets Σ|d|, Σd², Σ|d| ln |d|, Σ√|d|, the position of the largest |d|, Σmax(d, 0), Σmax(−d, 0), and how many d < 0.
    """
    sums[:] = 0
    for start in range(0, len(a1), PART):
        stop = start + PART
        part = out[start:stop]
        total, squares, positive, negative, count = _subtracted(a1[start:stop], a2[start:stop], single(gain), single(lam), part)
        logs, roots = _logs_and_roots(part)
        sums[0] += total
        sums[1] += squares
        sums[2] += logs
        sums[3] += roots
        sums[5] += positive
        sums[6] += negative
        sums[7] += count
    sums[4] = _first(out, _largest(out))


@compiled
def maps(scores, first, second, seen, sink, gain, lam, sizes, sums):
    """Sizes of A1, A2 and D of a block of rows, and the sums over each row.

    Parameters
    ----------
    scores : float32 array, (map, query, key)
    first, second : int64 array, (head,)
        Which of the maps are a head's A1 and A2; `second` is empty of standard attention, whose one map is A1.
    seen : int64 array, (query, 2)
        The first key that each query sees, and one past the last.
    sink : float32 array, (map, query)
    gain, lam : float32 array, (head, query)
    sizes : float32 array, (A1 | A2 | D, head, query, key)
        Gets |x|, and zeros where a query does not see a key.
    sums : float64 array, (A1 | A2 | D, 8, head, query)
        Gets Σ|x|, Σx², Σ|x| ln |x|, Σ√|x|, the position of the largest |x|, Σmax(x, 0), Σmax(−x, 0), and how many x < 0.
    """
    of_map = np.zeros(8)
    for head in range(len(first)):
        for query in range(len(seen)):
            start = seen[query, 0]
            stop = seen[query, 1]
            for number in range(len(sizes)):
                row = sizes[number, head, query]
                row[:start] = ZERO
                row[stop:] = ZERO
                if number < 2:
                    source = first[head] if number == 0 else second[head]
                    weigh(scores[source, query][start:stop], sink[source, query], row[start:stop], of_map)
                    of_map[5] = of_map[0]
                    of_map[6:] = 0
                else:
                    a1 = sizes[0, head, query][start:stop]
                    a2 = sizes[1, head, query][start:stop]
                    subtract(a1, a2, gain[head, query], lam[head, query], row[start:stop], of_map)
                of_map[4] += start
                sums[number, :, head, query] = of_map


@compiled
def _ranked(x, ranks):
    """Σx and Σrank·x."""
    total = ZERO
    ranked = ZERO
    for j in range(len(x)):
        total += x[j]
        ranked += x[j] * ranks[j]
    return total, ranked


@compiled
def _below(ascending, limit):
    """How many of sorted values are below a limit."""
    low = 0
    high = len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < limit:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def order(ascending, n, limit, at, most, ranks, gini, small, quantiles, top):
    """What is read off each sorted row of sizes, whose last n[row] values are those of visible keys.

    Parameters
    ----------
    ascending : float32 array, (row, key)
    n : int64 array, (row,)
    limit : float32 array, (row,)
    at : int64 array, (row, quantile)
        Which of the visible values each quantile is, counted from 0.
    most : int64 array, (k,)
        How many of the largest values are added up, ascending.
    ranks : float32 array
        ``RANKS``: a constant would be copied for every row.
    gini, small : float64 array, (row,)
        Get Σ(2i − n − 1)·x_(i) / (n·Σx), and the number of visible values below the limit.
    quantiles : float64 array, (row, quantile)
    top : float64 array, (row, k)
    """
    rows, keys = ascending.shape
    for row in range(rows):
        count = n[row]
        x = ascending[row][keys - count :]
        total = 0.0
        ranked = 0.0  # by rank, counted from 0
        for start in range(0, count, PART):
            of_total, of_ranked = _ranked(x[start : start + PART], ranks)
            total += of_total
            ranked += of_ranked + start * np.float64(of_total)
        gini[row] = (2 * ranked + (1 - count) * total) / (count * total)
        small[row] = _below(x, limit[row])
        for i in range(at.shape[1]):
            quantiles[row, i] = x[min(at[row, i], count - 1)]
        largest = 0.0
        taken = 0
        for i in range(len(most)):
            while taken < min(most[i], count):
                taken += 1
                largest += x[count - taken]
            top[row, i] = largest
