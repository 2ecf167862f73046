"""The confidence intervals of a mean and of a share, in one place."""

from __future__ import annotations

import math

from scipy import special

LEVEL = 0.05  # of tests; intervals are of 1 − LEVEL


def t_half_width(standard_error: float, freedom: float) -> float:
    """Return half the 95 % interval (Student's t) of a mean; NaN without a degree of freedom."""
    return float(special.stdtrit(freedom, 1 - LEVEL / 2)) * float(standard_error) if freedom > 0 else math.nan


def of_share(count: int, total: int) -> tuple[float, float]:
    """Return the ends of the 95 % interval (Wilson) of a share, `count` of `total`."""
    from scipy.stats import binomtest  # it loads slowly, and showing a study needs no share

    interval = binomtest(count, total).proportion_ci(1 - LEVEL, method="wilson")
    return float(interval.low), float(interval.high)
