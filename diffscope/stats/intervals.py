"""The confidence interval of a mean, in one place."""

from __future__ import annotations

import math

from scipy import special

LEVEL = 0.05  # of tests; intervals are of 1 − LEVEL


def t_half_width(standard_error: float, freedom: float) -> float:
    """Return half the 95 % interval (Student's t) of a mean; NaN without a degree of freedom."""
    return float(special.stdtrit(freedom, 1 - LEVEL / 2)) * float(standard_error) if freedom > 0 else math.nan
