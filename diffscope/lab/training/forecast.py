"""What of a cohort is done, under way and left, and how long the rest takes: from the files of its runs, without any lock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diffscope.lab.queue import Shard, result
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.run import METRICS
from diffscope.lab.training.runs import SUFFIX, home
from diffscope.lab.training.scores import read_metrics


@dataclass(frozen=True)
class Left:
    """What is left of a cohort, or of one of its arms.

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


@dataclass(frozen=True)
class UnderWay:
    """A run that has begun and not ended; whether a process works on it now, its files do not say.

    Attributes
    ----------
    run : Shard
    step, steps : int
        Done, and the most that there are.
    minutes : float
        Since it last logged anything.
    """

    run: Shard
    step: int
    steps: int
    minutes: float


@dataclass(frozen=True)
class Progress:
    """How far the runs of one arm have come.

    Attributes
    ----------
    arm : str
    done : int
    tuning : bool
        Whether they are those that choose the arm's rate.
    under_way : list of UnderWay
    left : Left
        Without those that are done; `left.runs` counts those under way too.
    """

    arm: str
    done: int
    tuning: bool
    under_way: list[UnderWay]
    left: Left


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
        expected = float(np.mean(whole)) if whole else most_steps(recipe, tuning) * step if alike else 0.0
        own = [spent[run.id]["seconds"] if spent[run.id] else 0.0 for run in alike if run.id not in done]
        seconds += float(np.maximum(0.0, expected - np.array(own)).sum())
    return Left(len(planned) - len(done), seconds, step)


def progress_by_arm(recipe: Recipe, out: Path, planned: Sequence[Shard], step: float = np.nan) -> list[Progress]:
    """How far the runs of each arm have come, those that choose its rate apart.

    An arm none of whose runs has logged a step is expected to take as long a step as the others do on average; if none has,
    `step` seconds, as pilots took.
    """
    usual = forecast(recipe, out, planned).step
    usual = step if np.isnan(usual) else usual
    rows = []
    for tuning in (True, False):
        of_kind = [run for run in planned if ("tuning" in run.spec) == tuning]
        for arm in dict.fromkeys(run.spec["arm"] for run in of_kind):
            alike = [run for run in of_kind if run.spec["arm"] == arm]
            left = forecast(recipe, out, alike)
            if np.isnan(left.step):
                left = Left(left.runs, left.runs * most_steps(recipe, tuning) * usual, usual)
            rows.append(Progress(arm, len(alike) - left.runs, tuning, _under_way(recipe, out, alike), left))
    return rows


def most_steps(recipe: Recipe, tuning: bool) -> int:
    """The most steps of a run, or of one that chooses a rate."""
    return recipe.tuning.steps if tuning else recipe.steps


def _under_way(recipe: Recipe, out: Path, runs: Sequence[Shard]) -> list[UnderWay]:
    begun = []
    for run in runs:
        last = _last(home(out, run))
        if last is None or result(out, run, SUFFIX).exists():
            continue
        minutes = (time.time() - (home(out, run) / METRICS).stat().st_mtime) / 60
        begun.append(UnderWay(run, last["step"], most_steps(recipe, "tuning" in run.spec), minutes))
    return begun


def _last(folder: Path) -> dict | None:
    """The last row that a run has logged."""
    rows = read_metrics(folder) if (folder / METRICS).is_file() else []
    return rows[-1] if rows else None
