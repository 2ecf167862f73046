"""When a curve of exact answers rises: the step of its onset, by any of several criteria."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr

ROUNDING = 1e-6  # what a mean of shares may lack of a bound that it reaches


@dataclass(frozen=True)
class Criterion:
    """What a curve has to reach.

    Attributes
    ----------
    share : float
        Of exact answers, above 0 and up to 1.
    evaluations : int
        How many in a row.
    averaged : bool
        Whether their mean has to reach the share, in place of each of them. A mean asks less of a single evaluation: 100 prompts
        have a standard error of 3 points at 90 %.
    """

    share: float
    evaluations: int = 1
    averaged: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share = {self.share} has to be above 0, and at most 1")
        if self.evaluations < 1:
            raise ValueError(f"evaluations = {self.evaluations} has to be 1 or more")


AVERAGED = Criterion(0.9, evaluations=3, averaged=True)
TWICE = Criterion(0.95, evaluations=2)
#: What a recipe's `formed_by` asks for, at the share that its stage names.
FORMED_BY = {"twice": TWICE, "mean of three": AVERAGED}
#: by the words of tables, from the least that is asked to the most
CRITERIA = {
    "50 % once": Criterion(0.5),
    "80 % once": Criterion(0.8),
    "90 % once": Criterion(0.9),
    "95 % once": Criterion(0.95),
    "90 %, mean of three evaluations": AVERAGED,
    "95 % twice in a row": TWICE,
}


def onset(steps: Sequence[int] | np.ndarray, shares: Sequence[float] | np.ndarray, criterion: Criterion) -> float:
    """Return the step at which a curve first meets a criterion, inf if it never does.

    Of evaluations that each have to reach the share it is the step of the first, as in the formation of a recipe; of a mean it is
    the step of the last, by which the mean is known.

    Parameters
    ----------
    steps : array-like (step,)
        Ascending.
    shares : array-like (step,)
        Exact answers, 0 to 1; NaN at steps without an evaluation, which are left out.
    """
    curve = np.asarray(shares, dtype=float)
    evaluated = np.isfinite(curve)
    at, curve = np.asarray(steps)[evaluated], curve[evaluated]
    if len(curve) < criterion.evaluations:
        return math.inf
    windows = np.lib.stride_tricks.sliding_window_view(curve, criterion.evaluations)  # (start, evaluation)
    reached = windows.mean(1) if criterion.averaged else windows.min(1)
    met = np.flatnonzero(reached >= criterion.share - ROUNDING)
    return float(at[met[0] + (criterion.evaluations - 1 if criterion.averaged else 0)]) if met.size else math.inf


def onsets_of(shares: xr.DataArray, criterion: Criterion) -> xr.DataArray:
    """Return the onset, as of :func:`onset`, of every curve of shares (…, step): (…)."""
    of_curve = partial(onset, shares["step"].values, criterion=criterion)
    return xr.apply_ufunc(of_curve, shares, input_core_dims=[["step"]], vectorize=True, output_dtypes=[float])
