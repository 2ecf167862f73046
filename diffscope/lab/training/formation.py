"""When a run has learned its task: by the criterion that its recipe declares, and by onsets that are the same for all runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from diffscope.lab.training.recipe import Recipe

SHARES = ("retrieval", "copied")  # of right answers; a recipe evaluates one of them
ONSETS = (0.5, 0.8, 0.9)  # shares of right answers, each reached once


@dataclass(frozen=True)
class Criterion:
    """So many evaluations in a row, in one stage, that together reach a share of right answers."""

    evaluations: int
    share: float  # if the stage names none
    together: Callable[[Sequence[float]], float]
    dated: int  # which of the evaluations gives the step of formation


CRITERIA = {
    # A test of staying near a ceiling: one evaluation below it starts the count anew.
    "twice": Criterion(2, 0.95, min, 0),
    "mean of three": Criterion(3, 0.90, np.mean, -1),
}


def formation(metrics: Sequence[dict], recipe: Recipe) -> int | None:
    """Return the step at which a run formed by the criterion of its recipe, or None."""
    criterion = CRITERIA[recipe.formed_by]
    evaluated = [row for row in metrics if share_of(row) is not None]
    for first in range(len(evaluated) - criterion.evaluations + 1):
        rows = evaluated[first : first + criterion.evaluations]
        wanted = recipe.stages[rows[0]["stage"]].formed or criterion.share
        one_stage = len({row["stage"] for row in rows}) == 1
        if one_stage and criterion.together([share_of(row) for row in rows]) >= wanted:
            return rows[criterion.dated]["step"]
    return None


def share_of(row: dict) -> float | None:
    """Return the share of right answers in a row of metrics, or None if the run was not evaluated there."""
    return next((row[name] for name in SHARES if name in row), None)


def onsets(steps: Sequence[int], shares: Sequence[float]) -> np.ndarray:
    """Return for each of ``ONSETS`` the first step with that share of right answers, NaN if it is not reached: (share,).

    Parameters
    ----------
    steps, shares
        Of the rows of a run; a share is NaN where the run was not evaluated.
    """
    reached = [np.flatnonzero(np.asarray(shares) >= level) for level in ONSETS]  # NaN reaches nothing
    return np.array([float(steps[rows[0]]) if len(rows) else np.nan for rows in reached])
