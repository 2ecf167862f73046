"""Intervals, nulls and p-values of means: over seeds, over prompts, over both, and against untrained models.

Functions return (interval, null, p): the 95 % interval of the mean, the range of 95 % of the values without an effect, and the
two-sided p.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product

import numpy as np
import scipy  # whose parts are imported when they are first used

from diffscope.stats.intervals import LEVEL, t_half_width

N_BOOTSTRAP = 2000
ROUNDING = 1e-12  # relative; a smaller spread is rounding error
FEWEST_SEEDS = 5  # of fewer seeds the sign-flip test cannot give a p below 0.1
MOST_ENUMERATED = 16  # seeds; with more, sign flips are sampled
N_SAMPLED = 9999  # sign flips

Range = tuple[float, float]


def students_t(means: np.ndarray) -> tuple[Range, Range, float]:
    """Test the mean of seeds (seed,) against 0 with Student's t."""
    return _t_test(float(means.mean()), means.std(ddof=1) / np.sqrt(len(means)), len(means) - 1, len(means))


def crossed(values: np.ndarray) -> tuple[Range, Range, float]:
    """Test the mean where all seeds had the same prompts, both taken as samples: a two-way analysis of variance.

    The variance of the mean is (MS_seed + MS_prompt − MS_rest) / (seeds · prompts), so that it includes what the draw of prompts
    does to all seeds alike; degrees of freedom are Satterthwaite's. Prompts that lack a seed are left out of the variance, not of
    the mean.

    Parameters
    ----------
    values : ndarray (seed, prompt)
        At least two prompts have a value in every seed.
    """
    means = np.nanmean(values, axis=1)
    complete = values[:, np.isfinite(values).all(0)]
    seeds, prompts = complete.shape
    by_seed = complete.mean(1, keepdims=True)
    by_prompt = complete.mean(0, keepdims=True)
    rest = complete - by_seed - by_prompt + complete.mean()
    squares = np.array([prompts * by_seed.var(ddof=1), seeds * by_prompt.var(ddof=1), 0.0])
    freedoms = np.array([seeds - 1, prompts - 1, (seeds - 1) * (prompts - 1)])
    squares[2] = (rest**2).sum() / freedoms[2]
    total = squares[0] + max(squares[1] - squares[2], 0.0)
    parts = squares**2 / freedoms if total > squares[0] else squares[:1] ** 2 / freedoms[:1]
    error = np.sqrt(total / (seeds * prompts))
    freedom = total**2 / parts.sum() if parts.sum() > 0 else seeds - 1
    return _t_test(float(means.mean()), error, freedom, seeds)


def _t_test(value: float, error: float, freedom: float, seeds: int) -> tuple[Range, Range, float]:
    if error <= ROUNDING * max(1.0, abs(value)):  # no spread: the least p of a sign-flip test
        return (value, value), (0.0, 0.0), 1.0 if abs(value) <= ROUNDING else 2.0 ** (1 - seeds)
    reach = t_half_width(error, freedom)
    return (value - reach, value + reach), (-reach, reach), float(2 * scipy.special.stdtr(freedom, -abs(value) / error))


def sign_flip_test(means: np.ndarray) -> float:
    """Return the two-sided p of a sign-flip permutation test of the mean of seeds (seed,).

    It is exact if the values are symmetric about 0 without an effect, and at least 2^(1 − seeds). Of more than sixteen seeds a
    sample of the flips is taken. scipy's permutation_test gives the same p, sixty times slower for eight seeds: too slow for
    simulations of cohorts.
    """
    least = abs(means.sum()) * (1 - 1e-9) - ROUNDING
    if len(means) <= MOST_ENUMERATED:
        return float(np.mean(np.abs(_signs(len(means)) @ means) >= least))
    flipped = np.random.default_rng(0).integers(2, size=(N_SAMPLED, len(means)), dtype=np.int8)
    sums = np.abs(means.sum() - 2 * flipped @ means)
    return float((1 + np.sum(sums >= least)) / (1 + N_SAMPLED))


@cache
def _signs(count: int) -> np.ndarray:
    """Enumerate all combinations of signs, (combination, seed)."""
    return np.array(list(product((1.0, -1.0), repeat=count)))


def against_untrained(means: np.ndarray, untrained: np.ndarray) -> tuple[Range, float]:
    """Return where the mean of seeds would be if they were untrained, and p: Welch's t; of one seed Student's two-sample t.

    Parameters
    ----------
    means : ndarray (seed,)
    untrained : ndarray (model,)
    """
    middle = float(untrained.mean())
    if max(np.ptp(means), np.ptp(untrained)) <= ROUNDING * max(1.0, abs(middle)):  # no spread: nothing can be told apart
        return (middle, middle), 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # one of the two may have no spread
        result = scipy.stats.ttest_ind(means, untrained, equal_var=len(means) == 1)
    interval = result.confidence_interval(1 - LEVEL)
    reach = float(interval.high - interval.low) / 2
    return (middle - reach, middle + reach), float(result.pvalue)


def bootstrap(values: np.ndarray) -> tuple[Range, Range, float]:
    """Test the prompts of one model (prompt,): percentile bootstrap, and a sign-flip test of prompts for null and p."""
    rng = np.random.default_rng(0)
    resampled = scipy.stats.bootstrap((values,), np.mean, n_resamples=N_BOOTSTRAP, method="percentile", rng=rng)
    interval = resampled.confidence_interval
    flipped = scipy.stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=N_BOOTSTRAP, rng=rng)
    null_low, null_high = np.quantile(flipped.null_distribution, (LEVEL / 2, 1 - LEVEL / 2))
    return (float(interval.low), float(interval.high)), (float(null_low), float(null_high)), float(flipped.pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Correct p so that any false finding is rare (Holm 1979); NaN stays NaN and is not counted."""

    def adjust(values: np.ndarray) -> np.ndarray:
        order = values.argsort()
        steps = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
        return np.minimum(steps, 1.0)[order.argsort()]

    return _corrected(p, adjust)


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Correct p so that few of the findings are false (Benjamini & Hochberg 1995); NaN stays NaN and is not counted."""
    return _corrected(p, scipy.stats.false_discovery_control)


def _corrected(p: Sequence[float], adjust: Callable[[np.ndarray], np.ndarray]) -> list[float]:
    corrected = np.full(len(p), np.nan)
    finite = np.isfinite(p)
    if finite.any():
        corrected[finite] = adjust(np.asarray(p)[finite])
    return corrected.tolist()
