"""How long the rest of a cohort takes, from the runs that are finished or under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diffscope.lab.jobs.shards import Shard, result
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.run_folder import METRICS
from diffscope.lab.training.runs import SUFFIX, home
from diffscope.lab.training.scores import read_metrics


@dataclass(frozen=True)
class Left:
    """What is left of a cohort.

    Attributes
    ----------
    runs : int
    seconds : float
        Of one process; NaN as long as no run has logged anything.
    step : float
        Mean seconds of a step of the runs so far.
    """

    runs: int
    seconds: float
    step: float

    def words(self, processes: int = 1) -> str:
        """For people: how many runs, and how long they take so many processes."""
        if not self.runs:
            return "nothing is left"
        if np.isnan(self.seconds):
            return f"{self.runs} runs are left"
        hours = self.seconds / processes / 3600
        time = f"{hours:.1f} hours" if hours >= 1 else f"{hours * 60:.0f} minutes"
        together = f" of {processes} processes" if processes > 1 else ""
        return f"{self.runs} runs are left, about {time}{together}, at {self.step:.2f} s a step"


def forecast(recipe: Recipe, out: Path, planned: Sequence[Shard]) -> Left:
    """What is left of some runs: each as long as the finished ones of its kind took, or all its steps where there is none."""
    spent = {run.id: _last(home(out, run)) for run in planned}
    done = {run.id for run in planned if result(out, run, SUFFIX).exists()}
    logged = [last for last in spent.values() if last is not None]
    steps = sum(last["step"] for last in logged)
    step = sum(last["seconds"] for last in logged) / steps if steps > 0 else np.nan
    seconds = 0.0
    for tuning in (True, False):
        alike = [run for run in planned if ("tuning" in run.spec) == tuning]
        whole = [spent[run.id]["seconds"] for run in alike if run.id in done and spent[run.id]]
        most = recipe.tuning.steps if tuning and alike else recipe.steps
        expected = float(np.mean(whole)) if whole else most * step
        own = [spent[run.id]["seconds"] if spent[run.id] else 0.0 for run in alike if run.id not in done]
        seconds += float(np.maximum(0.0, expected - np.array(own)).sum())
    return Left(len(planned) - len(done), seconds, step)


def _last(folder: Path) -> dict | None:
    """The last row that a run has logged."""
    rows = read_metrics(folder) if (folder / METRICS).is_file() else []
    return rows[-1] if rows else None
