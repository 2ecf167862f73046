"""When a run has learned its task, by the criterion that its recipe declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from diffscope.lab.training.onsets import FORMED_BY, onset
from diffscope.lab.training.recipe import Recipe

SHARES = ("retrieval", "copied")  # of right answers; a recipe evaluates one of them


def formation(metrics: Sequence[dict], recipe: Recipe) -> int | None:
    """Return the step at which a run formed by the criterion of its recipe, within one stage, or None."""
    evaluated = [row for row in metrics if share_of(row) is not None]
    for number in sorted({row["stage"] for row in evaluated}):
        rows = [row for row in evaluated if row["stage"] == number]
        criterion = FORMED_BY[recipe.formed_by]
        wanted = recipe.stages[number].formed or criterion.share
        step = onset([row["step"] for row in rows], [share_of(row) for row in rows], replace(criterion, share=wanted))
        if np.isfinite(step):
            return int(step)
    return None


def formation_limit(recipe: Recipe) -> int:
    """Return the step at which a run that has not formed ends: with its first stage that has to form, or with its last one."""
    ending = next((number for number, stage in enumerate(recipe.stages) if stage.formed is not None), len(recipe.stages) - 1)
    return sum(stage.steps for stage in recipe.stages[: ending + 1])


def share_of(row: dict) -> float | None:
    """Return the share of right answers in a row of metrics, or None if the run was not evaluated there."""
    return next((row[name] for name in SHARES if name in row), None)
