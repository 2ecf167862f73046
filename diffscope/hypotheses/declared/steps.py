"""What values over the checkpoints of a training come to."""

from __future__ import annotations

import numpy as np

from diffscope.hypotheses.subjects import Models

AS_TRAINED = "series of untrained models, each made as sharp as the checkpoint in its place and given its λ"


def log_steps(series: Models) -> np.ndarray:
    """log2(1 + step) of the checkpoints: (step,)."""
    return np.log2(1 + series.steps)


def growth(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Least-squares slope of values (step, …) over steps (step,), times the range of the steps: (…)."""
    centred = steps - steps.mean()
    return np.tensordot(centred, values, 1) / (centred @ centred) * np.ptp(steps)


def late_mean(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Mean of values (step, …) weighted by log2(1 + step), of what is defined: (…). Before the first step nothing is learned."""
    weights = np.where(np.isfinite(values), steps.reshape(-1, *[1] * (values.ndim - 1)), 0)
    with np.errstate(invalid="ignore"):
        return (np.nan_to_num(values) * weights).sum(0) / weights.sum(0)
