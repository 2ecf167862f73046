"""Runs that fail: when a circuit forms, and what may be said of an outcome that only formed models have."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from diffscope.hypotheses.intervals import LEVEL, sign_flip_test
from diffscope.hypotheses.statistics import Estimate


def first_to_form(steps: np.ndarray, other: np.ndarray, formed: np.ndarray, other_formed: np.ndarray, note: str = "") -> Estimate:
    """Does one arm form later than another, seed by seed? The log-rank statistic stratified by seed, its p exact.

    A stratum of two runs says which forms first, and nothing if they form at the same step or neither does: the statistic is that
    of the sign test, z = (times it was later − times it was earlier) / √(both), and so is its p.

    Parameters
    ----------
    steps, other : ndarray (seed,)
        Steps until the circuit formed, or at which a run in which it did not was stopped.
    formed, other_formed : ndarray (seed,), bool
    """
    later = int(np.sum(other_formed & (~formed | (steps > other))))
    earlier = int(np.sum(formed & (~other_formed | (steps < other))))
    told = later + earlier
    reach = float(stats.norm.ppf(1 - LEVEL / 2))
    return Estimate(
        value=(later - earlier) / math.sqrt(told) if told else 0.0,
        low=math.nan,
        high=math.nan,
        null_low=-reach,
        null_high=reach,
        p=float(stats.binomtest(later, told).pvalue) if told else 1.0,
        prompts=1,
        seeds=len(steps),
        untrained=0,
        method="which of the two runs of a seed forms first",
        note=note,
    )


def failures_at_worst(values: np.ndarray, other: np.ndarray, note: str = "") -> Estimate:
    """Median over seeds of the difference of two arms where a run that failed is worse than any that did not, and two alike.

    The interval goes from order statistic to order statistic, so that at least 95 % of such intervals hold the median; NaN is an
    end without a bound, or a median that a failed run decides. p turns the signs of the ranks (Wilcoxon's test, exact).

    Parameters
    ----------
    values, other : ndarray (seed,)
        NaN where a run failed.
    """
    failed, other_failed = np.isnan(values), np.isnan(other)
    differences = np.where(failed & other_failed, 0.0, np.where(failed, -np.inf, np.where(other_failed, np.inf, values - other)))
    count = len(differences)
    ordered = np.sort(differences)
    outer = int(stats.binom.ppf(LEVEL / 2, count, 0.5))  # so many may be cut off on each side
    low, high = (ordered[outer - 1], ordered[count - outer]) if outer else (-np.inf, np.inf)
    middle = ordered[[(count - 1) // 2, count // 2]]
    value = float(middle.mean()) if np.isfinite(middle).all() else math.nan
    ranks = np.sign(differences) * stats.rankdata(np.abs(differences))
    return Estimate(
        value=value,
        low=float(low) if np.isfinite(low) else math.nan,
        high=float(high) if np.isfinite(high) else math.nan,
        null_low=math.nan,
        null_high=math.nan,
        p=sign_flip_test(ranks),
        prompts=1,
        seeds=count,
        untrained=0,
        method="signs of ranks turned, failed runs at worst",
        interval="from order statistic to order statistic",
        note=note,
    )
