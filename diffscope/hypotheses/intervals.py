"""Intervals, nulls and p-values of means, as functions of arrays: of seeds, of prompts, of both, and beside untrained models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product

import numpy as np
from scipy import special, stats

LEVEL = 0.05
RESAMPLES = 2000
TINY = 1e-12  # a spread that is rounding
FEWEST_FLIPPED = 5  # of fewer seeds no way to turn signs is rare
MOST_FLIPPED = 16  # of more seeds not every way to turn signs is looked at, but
DRAWN = 9999  # of them

Range = tuple[float, float]


def students_t(means: np.ndarray) -> tuple[Range, Range, float]:
    """95 % interval of the mean, where it would be without an effect, and p: Student's t."""
    return _of_t(float(means.mean()), means.std(ddof=1) / np.sqrt(len(means)), len(means) - 1, len(means))


def crossed(values: np.ndarray) -> tuple[Range, Range, float]:
    """The same of seeds and prompts that are crossed, so that both are a sample.

    The error of the mean has the variance (MS_seed + MS_prompt − MS_rest) / (seeds · prompts), which adds what the draw of
    prompts does to all seeds alike; its degrees of freedom are Satterthwaite's. Prompts that lack a seed are left out of it.

    Parameters
    ----------
    values : ndarray (seed, prompt)
    """
    means = np.nanmean(values, axis=1)
    complete = values[:, np.isfinite(values).all(0)]
    seeds, prompts = complete.shape
    if prompts < 2:
        return students_t(means)
    of_seeds = complete.mean(1, keepdims=True)
    of_prompts = complete.mean(0, keepdims=True)
    rest = complete - of_seeds - of_prompts + complete.mean()
    squares = np.array([prompts * of_seeds.var(ddof=1), seeds * of_prompts.var(ddof=1), 0.0])
    freedoms = np.array([seeds - 1, prompts - 1, (seeds - 1) * (prompts - 1)])
    squares[2] = (rest**2).sum() / freedoms[2]
    total = squares[0] + max(squares[1] - squares[2], 0.0)
    parts = squares**2 / freedoms if total > squares[0] else squares[:1] ** 2 / freedoms[:1]
    error = np.sqrt(total / (seeds * prompts))
    freedom = total**2 / parts.sum() if parts.sum() > 0 else seeds - 1
    return _of_t(float(means.mean()), error, freedom, seeds)


def crossed_medians(values: np.ndarray, seed: int = 0) -> tuple[Range, Range, float]:
    """The same of the median over prompts: to the variance over seeds comes that of the draw of prompts, by bootstrap.

    It errs on the wide side, for what prompts do within a seed is in both.
    """
    means = np.nanmedian(values, axis=1)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(values.shape[1], size=(RESAMPLES, values.shape[1]))
    of_prompts = np.array([np.nanmean(np.nanmedian(values[:, prompts], axis=1)) for prompts in drawn]).std(ddof=1)
    error = np.hypot(means.std(ddof=1) / np.sqrt(len(means)), of_prompts)
    return _of_t(float(means.mean()), error, len(means) - 1, len(means))


def _of_t(value: float, error: float, freedom: float, seeds: int) -> tuple[Range, Range, float]:
    if error <= TINY * max(1.0, abs(value)):  # all seeds and prompts agree; as many signs could have been turned
        return (value, value), (0.0, 0.0), 1.0 if abs(value) <= TINY else 2.0 ** (1 - seeds)
    reach = float(special.stdtrit(freedom, 1 - LEVEL / 2)) * error
    return (value - reach, value + reach), (-reach, reach), float(2 * special.stdtr(freedom, -abs(value) / error))


def sign_flip_test(means: np.ndarray) -> float:
    """p of the mean by every way to turn the signs of seeds: exact where without an effect each could as well have been opposite.

    Its smallest value is 2^(1 − seeds). Of more than sixteen seeds a sample of the ways is drawn.
    """
    far = abs(means.sum()) * (1 - 1e-9) - TINY
    if len(means) <= MOST_FLIPPED:
        return float(np.mean(np.abs(_signs(len(means)) @ means) >= far))
    turned = np.random.default_rng(0).integers(2, size=(DRAWN, len(means)), dtype=np.int8)
    sums = np.abs(means.sum() - 2 * turned @ means)
    return float((1 + np.sum(sums >= far)) / (1 + DRAWN))


@cache
def _signs(count: int) -> np.ndarray:
    """Every way to give signs, (way, value)."""
    return np.array(list(product((1.0, -1.0), repeat=count)))


def against_untrained(means: np.ndarray, untrained: np.ndarray) -> tuple[Range, float]:
    """Where seeds would be if they were untrained, and p: Welch's t, of one seed the t of one more draw."""
    count = len(untrained)
    middle = untrained.mean()
    spread = untrained.std(ddof=1)
    trained_spread = means.std(ddof=1) if len(means) > 1 else spread
    error = np.hypot(trained_spread / np.sqrt(len(means)), spread / np.sqrt(count))
    freedom = count - 1
    if len(means) > 1 and error > TINY:
        parts = trained_spread**2 / len(means), spread**2 / count
        freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(means) - 1) + parts[1] ** 2 / (count - 1))
    reach = special.stdtrit(freedom, 1 - LEVEL / 2) * error
    distance = abs(means.mean() - middle)
    p = 2 * special.stdtr(freedom, -distance / error) if error > TINY else 1.0  # without any spread nothing can be told apart
    return (float(middle - reach), float(middle + reach)), float(p)


def bootstrap(values: np.ndarray, statistic=np.mean, seed: int = 0) -> tuple[Range, Range, float]:
    """Of the prompts of one model: percentiles over resampled prompts; null and p by turning the signs of prompts."""
    rng = np.random.default_rng(seed)
    drawn = stats.bootstrap((values,), statistic, n_resamples=RESAMPLES, method="percentile", rng=rng).confidence_interval
    turned = stats.permutation_test((values,), statistic, permutation_type="samples", n_resamples=RESAMPLES, rng=rng)
    null_low, null_high = np.quantile(turned.null_distribution, (LEVEL / 2, 1 - LEVEL / 2))
    return (float(drawn.low), float(drawn.high)), (float(null_low), float(null_high)), float(turned.pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """p corrected for how many there are, so that any false finding is rare (Holm 1979); NaN stays NaN and counts for nothing."""

    def adjust(values: np.ndarray) -> np.ndarray:
        # not statsmodels' multipletests, which collects garbage at each call: hours over the cohorts of a simulation
        order = values.argsort()
        steps = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
        return np.minimum(steps, 1.0)[order.argsort()]

    return _corrected(p, adjust)


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """p corrected so that few of the findings are false (Benjamini & Hochberg 1995); NaN stays NaN and counts for nothing."""
    return _corrected(p, stats.false_discovery_control)


def _corrected(p: Sequence[float], adjust: Callable[[np.ndarray], np.ndarray]) -> list[float]:
    corrected = np.full(len(p), np.nan)
    finite = np.isfinite(p)
    if finite.any():
        corrected[finite] = adjust(np.asarray(p)[finite])
    return corrected.tolist()
