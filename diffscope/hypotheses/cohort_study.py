"""Run every test on a trained cohort: its boards, when its circuits form, and what else its runs hold."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import CensoredData, logrank

from diffscope.files import plain
from diffscope.hypotheses.cohort import formed as formed_runs
from diffscope.hypotheses.cohort import went_on
from diffscope.hypotheses.described import described
from diffscope.hypotheses.gathering import Subjects, gather
from diffscope.hypotheses.outcomes import outcomes
from diffscope.hypotheses.settings import Settings
from diffscope.hypotheses.stored import formed_models_of, open_cohort
from diffscope.hypotheses.study import ALL, WEIGHTS, Study
from diffscope.hypotheses.subjects import Progress
from diffscope.hypotheses.verdict import Board
from diffscope.scope import Scope, load

VERSIONS = ("python", "torch", "transformers", "revision")


def run_study(
    cohort: Path,
    tests: str | Sequence[str] | None = None,
    *,
    settings: Settings | None = None,
    progress: Progress | None = None,
    opener: Callable[[str], Scope] = load,
) -> Study:
    """Run all tests on a cohort's DIFF models, pairs, checkpoints and arms.

    Parameters
    ----------
    cohort : path
        Folder of a trained cohort with the evidence of its runs, or with its models.
    tests : str or sequence of str, optional
        Their ids; by default all.
    settings : Settings, optional
        Prompts, and how much is spent on them.
    progress : callable, optional
        Called with (done, total, words).
    opener : callable
        Opens a model by its name.
    """
    dataset = open_cohort(cohort)
    options = {"settings": settings, "progress": progress, "opener": opener}
    subjects = gather(cohort=cohort, **options)
    boards = {ALL: subjects.run(tests)}
    if (live := _with_weights(boards[ALL], cohort, dataset, options)) is not None:
        boards[WEIGHTS] = live[0].run(live[1])
    facts = {
        "cohort": cohort.name,
        "arms": {str(arm): _finished(dataset, arm) for arm in dataset["arm"].values},
        "settings": asdict(subjects.settings),
        "made_with": _made_with(dataset),
        "recipe": json.loads(dataset.attrs["recipe"])["name"],
        "training": _training(dataset),
    }
    return Study(facts, boards, survival(dataset), described(cohort, dataset), outcomes(dataset))


def _with_weights(
    board: Board, cohort: Path, dataset: xr.Dataset, options: Mapping[str, Any]
) -> tuple[Subjects, list[str]] | None:
    """Return the formed pairs at hand, and the ids of measurements of models that no stored evidence answers whole.

    None if all are answered, or there are not two such pairs.
    """
    of_models = [verdict for verdict in board if verdict.test.needs in ("model", "pair") and not verdict.test.judged]
    left = [verdict.test.id for verdict in of_models if set(verdict.test.quantities) - set(verdict.estimates)]
    pairs = formed_models_of(cohort, dataset, "diff", "standard")
    if not left or len(pairs[0]) < 2:
        return None
    return gather(*pairs, cohort, needs={"model", "pair"}, **options), left


def _made_with(cohort: xr.Dataset) -> dict[str, str]:
    """Return the versions that runs were made with, several in a row."""
    made_by = json.loads(cohort.attrs.get("made_by", "{}"))
    facts = [facts for of_run in made_by.values() for facts in of_run or []]
    known = {name: sorted({str(of[name]) for of in facts if name in of}) for name in VERSIONS}
    return {name: ", ".join(values) for name, values in known.items() if values}


def _training(cohort: xr.Dataset) -> dict:
    """How the arms were trained: learning rates, what choosing them came to, parameters, and runs that failed."""
    arms = [str(arm) for arm in cohort["arm"].values]
    facts = {name: dict(zip(arms, cohort[name].values.tolist())) for name in ("rate", "parameters") if name in cohort}
    if "tuning_area" in cohort:
        facts["rates_tried"] = cohort["rate_tried"].values.tolist()
        for name in ("tuning_area", "tuning_formation"):
            facts[name] = dict(zip(arms, cohort[name].transpose("arm", "rate_tried", "tuning_seed").values.tolist()))
    return plain({**facts, "failed": cohort.attrs.get("failed", "")})


def _finished(cohort: xr.Dataset, arm: str) -> list[int]:
    return [int(seed) for seed in cohort["seed"].values[cohort["finished"].sel(arm=arm).values == 1]]


def survival(cohort: xr.Dataset) -> list[dict]:
    """When the lookup circuit of every arm forms, runs in which it never does counted as what they are.

    Returns
    -------
    list of dict
        By arm of which a run is finished: ``runs``, ``formed``, ``median`` step (Kaplan–Meier; None where fewer than half
        form), ``restricted_mean`` step up to the most that a run was given to form in, and ``p`` of the log-rank test against
        DIFF (asymptotic, not corrected; None for DIFF itself); all three None of an arm that continues another's formed model.
    """
    last = float(cohort["formation_limit"] if "formation_limit" in cohort else cohort["step"].max())
    runs = {}
    rows = []
    for arm in map(str, cohort["arm"].values):
        ended = cohort["finished"].sel(arm=arm).values == 1
        formed = formed_runs(cohort).sel(arm=arm).values[ended]
        if not ended.any():
            continue
        rows.append({"arm": arm, "runs": int(ended.sum()), "formed": int(formed.sum())})
        steps = cohort["formation"].sel(arm=arm).values[ended]
        if np.isfinite(steps[formed]).all() and arm not in went_on(cohort):
            runs[arm] = np.where(formed, steps, last), formed
    return plain([{**row, **_when(row["arm"], runs)} for row in rows])


def _when(arm: str, runs: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """When the circuit of an arm forms, of runs (steps, formed) by arm; undefined of one that goes on from another's."""
    if arm not in runs:
        return dict.fromkeys(("median", "restricted_mean", "p"), math.nan)
    steps, formed = runs[arm]
    return {
        "median": _median(steps, formed),
        "restricted_mean": float(steps.mean()),  # nobody is lost before the last step: the area under the curve
        "p": math.nan if arm == "diff" or "diff" not in runs else _log_rank(runs["diff"], (steps, formed)),
    }


def _median(steps: np.ndarray, formed: np.ndarray) -> float:
    """Take the Kaplan–Meier median: an order statistic, since no run is lost before the last step; NaN if half never form."""
    ordered = np.sort(np.where(formed, steps, np.inf))
    middle = float(ordered[len(ordered) // 2])
    return middle if math.isfinite(middle) else math.nan


def _log_rank(*groups: tuple[np.ndarray, np.ndarray]) -> float:
    """p of two groups of runs, each (steps, formed); NaN where none formed."""
    if not any(formed.any() for _, formed in groups):
        return math.nan
    data = [CensoredData(uncensored=steps[formed], right=steps[~formed]) for steps, formed in groups]
    return float(logrank(*data).pvalue)
