"""Run every test on a trained cohort, and make its study."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import xarray as xr

from diffscope.hypotheses.cohort import formed
from diffscope.hypotheses.gathering import Subjects, gather
from diffscope.hypotheses.settings import Settings
from diffscope.hypotheses.stored import models_of, open_cohort
from diffscope.hypotheses.study import ALL, WEIGHTS, Study
from diffscope.hypotheses.study_tables import arm_results, descriptives, survival
from diffscope.hypotheses.subjects import Progress
from diffscope.hypotheses.verdict import Board
from diffscope.scope import Scope, load
from diffscope.storage.atomic import plain

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
    return Study(facts, boards, survival(dataset), descriptives(cohort, dataset), arm_results(dataset))


def _with_weights(
    board: Board, cohort: Path, dataset: xr.Dataset, options: Mapping[str, Any]
) -> tuple[Subjects, list[str]] | None:
    """Return the formed pairs at hand, and the ids of measurements of models that no stored evidence answers whole.

    None if all are answered, or there are not two such pairs.
    """
    of_models = [verdict for verdict in board if verdict.test.needs in ("model", "pair") and not verdict.test.judged]
    left = [verdict.test.id for verdict in of_models if set(verdict.test.quantities) - set(verdict.estimates)]
    pairs = models_of(cohort, dataset, "diff", "standard", which=formed)
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
    """Return how the arms were trained: learning rates, what choosing them came to, parameters, and runs that failed."""
    arms = [str(arm) for arm in cohort["arm"].values]
    facts = {name: dict(zip(arms, cohort[name].values.tolist())) for name in ("rate", "parameters") if name in cohort}
    if "tuning_area" in cohort:
        facts["rates_tried"] = cohort["rate_tried"].values.tolist()
        for name in ("tuning_area", "tuning_formation"):
            facts[name] = dict(zip(arms, cohort[name].transpose("arm", "rate_tried", "tuning_seed").values.tolist()))
    return plain({**facts, "failed": cohort.attrs.get("failed", "")})


def _finished(cohort: xr.Dataset, arm: str) -> list[int]:
    return [int(seed) for seed in cohort["seed"].values[cohort["finished"].sel(arm=arm).values == 1]]
