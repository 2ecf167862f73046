"""A matched cohort: every arm trained with every seed, scored alike, and put together as one labelled dataset."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.lab import queue as shards
from diffscope.lab.jobs.ray_cluster import OnRay
from diffscope.lab.training.beginnings import tokenizer_for
from diffscope.lab.training.drawing import Draws, filler_of
from diffscope.lab.training.formation import FORMED_BY, ONSETS, SHARES, formation, onsets
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.run import RUN, read_run, revision
from diffscope.lab.training.runs import (
    SCORES,
    SUFFIX,
    chosen_rates,
    home,
    name,
    results,
    run_of,
    runs,
    said_of,
    tuning_runs,
    tuning_table,
)
from diffscope.lab.training.scores import MEASURED, OF_TASK, area, diverged, metrics, near_grid, read_metrics, score
from diffscope.lab.training.stages import BACKCOPY, RETRIEVAL
from diffscope.lab.training.train import Diverged, NotFormed, check_tools, train
from diffscope.store import open_statistics, other_versions, save_statistics
from diffscope.tasks.retrieval import Retrieval

DATASET = "cohort.nc"
CURVES = "metrics.parquet"
FORMED = FORMED_BY["twice"].share
Evidence = Callable[[Path, Recipe, int], object]
__all__ = ["CURVES", "DATASET", "FORMED", "MEASURED", "name", "runs"]


@dataclass(frozen=True)
class Cohort:
    """A cohort that is trained, or part of it.

    Attributes
    ----------
    recipe : Recipe
    out : Path
    arms, seeds : tuple
        Those that are trained; by default all of the recipe.
    device : str
    """

    recipe: Recipe
    out: Path
    arms: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    device: str = "cpu"

    def tuning(self) -> xr.Dataset | None:
        """What came of the runs that choose a rate; None of a recipe without tuning."""
        return None if self.recipe.tuning is None else tuning_table(self.recipe, self.out, self.arms)

    def rates(self) -> dict[str, float]:
        """The learning rate of each arm for which it is known."""
        table = self.tuning()
        if table is None:
            return dict.fromkeys(self.recipe.arms, self.recipe.learning_rate)
        return chosen_rates(table, self.recipe.tuning.rule)

    def planned(self) -> list[shards.Shard]:
        """All runs, those that choose a rate first; runs whose rate is not known yet count with the first one of the recipe."""
        tuning = [] if self.recipe.tuning is None else tuning_runs(self.recipe, self.arms)
        rates = dict.fromkeys(self.recipe.arms, self.recipe.learning_rate) | self.rates()
        return [*tuning, *runs(self.recipe, self.arms, self.seeds, rates)]

    def runs(self) -> list[shards.Shard]:
        """The runs whose rates are known, without those that choose them."""
        return runs(self.recipe, self.arms, self.seeds, self.rates())

    def outcome(self) -> shards.Outcome:
        """Which of :meth:`planned` are done."""
        return shards.Outcome.of(self.planned(), self.out, SUFFIX)

    def results(self) -> dict[str, xr.Dataset]:
        """Open what finished runs came to, by id, those that choose a rate too; see :func:`diffscope.lab.training.runs.results`.

        Raises
        ------
        DiffscopeError
            The folder holds runs of another recipe.
        """
        tuning = [] if self.recipe.tuning is None else tuning_runs(self.recipe, self.arms)
        return results(self.out, [*tuning, *self.runs()])

    def other_versions(self) -> str:
        """Say which versions and revision finished runs were made with, if these are not the ones that run here."""
        made = [result.attrs for result in self.results().values()]
        facts = (each for attrs in made for each in json.loads(attrs.get("made_by", "null")) or [])
        return other_versions([*made, *({"revision": each["revision"]} for each in facts)], revision=revision())

    def groups(self) -> list[Cohort]:
        """Its arms in the groups in which they are trained."""
        groups = ([arm for arm in group if arm in (self.arms or group)] for group, _ in self.recipe.groups)
        return [replace(self, arms=tuple(group)) for group in groups if group]


def train_cohort(
    cohort: Cohort,
    where=None,
    *,
    threads: int = 1,
    tensorboard: bool = False,
    rank: shards.Rank | None = None,
    evidence: Evidence | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> shards.Outcome:
    """Choose the learning rate of every arm, then train and score the runs that are not done yet, group by group.

    Parameters
    ----------
    cohort : Cohort
    where, threads, rank
        As of :func:`diffscope.lab.queue.run`.
    tensorboard : bool
    evidence : callable, optional
        Keeps what it takes of a finished run in the run's folder, ``evidence(folder, recipe, seed)``.
    progress : callable, optional
        Called with (done, total, words): in this process in steps, elsewhere in runs.

    Raises
    ------
    DiffscopeError
        A prompt cannot be drawn, or the folder holds runs of another recipe, or the copy of a cohort, as
        ``tools/keep_cohort.py`` makes it.
    """
    if is_copy(cohort.out):
        raise DiffscopeError(
            f"{cohort.out} holds {DATASET} and no scores of runs, a copy to be read with --report; train into another folder"
        )
    cohort.results()  # a recipe that cannot be scored, or that the folder's runs are not of, is refused before anything runs
    check_prompts(cohort.recipe)
    if not isinstance(where, OnRay):  # whose machines may have what this one lacks
        check_tools(cohort.device, tensorboard)
    counter = _Counter(cohort, progress, here=where is None)
    device = shards.own_gpu(cohort.device, rank)
    options = dict(recipe=cohort.recipe, out=cohort.out.resolve(), device=device)
    steps = counter.steps if progress and where is None else None
    tune = partial(_tune, **options, progress=steps)
    work = partial(_train_and_score, **options, tensorboard=tensorboard, evidence=evidence, progress=steps)
    for group in cohort.groups():
        if cohort.recipe.tuning is not None:
            planned = tuning_runs(cohort.recipe, group.arms)
            shards.run(planned, tune, cohort.out, where, rank=rank, suffix=SUFFIX, threads=threads, progress=counter.runs)
        group.results()  # their rates may not have been known before
        shards.run(group.runs(), work, cohort.out, where, rank=rank, suffix=SUFFIX, threads=threads, progress=counter.runs)
    return cohort.outcome()


class _Counter:
    """Progress over several lots of runs, in steps where they are done in this process, else in runs."""

    def __init__(self, cohort: Cohort, progress: Callable[[int, int, str], None] | None, here: bool):
        outcome = cohort.outcome()
        self.left = len(outcome.waiting) + len(outcome.failed)
        self.size = cohort.recipe.steps if here else 1
        self.before = 0  # in earlier lots
        self.tried = 0  # in this one
        self.progress = progress

    def runs(self, tried: int, total: int, note: str) -> None:
        self.tried = tried
        if self.progress and self.size == 1:
            self.progress(self.before + tried, self.left, note)
        if tried == total:
            self.before += tried
            self.tried = 0

    def steps(self, done: int, total: int, note: str) -> None:
        share = done / total * self.size
        self.progress(round((self.before + self.tried) * self.size + share), self.left * self.size, note)


def check_prompts(recipe: Recipe) -> None:
    """Draw a step of every shape and a prompt of every cell, so that what cannot be drawn is known before the training.

    Raises
    ------
    DiffscopeError
        Prompts are longer than a model has positions.
    PromptError
        Sentences do not fit the length of their prompt.
    """
    tokenizer = tokenizer_for(recipe)
    grids = [grid for grid in (recipe.evaluation, recipe.grid) if grid is not None]
    texts = [part for part in (recipe.evaluation_text, recipe.plain_text, recipe.copying) if part is not None]
    for arm in recipe.arms:
        positions = recipe.config(arm, len(tokenizer)).max_position_embeddings
        lengths = [*(length for grid in grids for length in grid.lengths), *(part.length for part in texts)]
        longest = max([recipe.length, *lengths])
        if longest > positions:
            raise DiffscopeError(
                f"arm {arm!r} has {positions} positions (max_position_embeddings), and prompts of {longest} tokens"
            )
    for stage in recipe.stages:
        for shape in stage.shapes:
            planted = 1.0 if stage.planted else 0.0
            fullest = replace(stage, shapes=(shape,), needles=(stage.needles[1],) * 2, planted=planted)
            Draws(replace(recipe, stages=(fullest,)), tokenizer, seed=0).rows(0, 0)
    if recipe.task == BACKCOPY:
        return
    task = Retrieval(tokenizer, texts=filler_of(recipe, tokenizer, held_out=True))
    kinds = [(grid, {}) for grid in grids]
    if recipe.grid is not None and recipe.task == RETRIEVAL:
        kinds.append((near_grid(recipe.grid), {"near": True}))
    for grid, kind in kinds:
        for length, distractors in grid.cells:
            task.with_template(grid.template).controlled(length, distractors, 0, slots=grid.slots(length), **kind)


def _told(spec: dict, progress) -> Callable[[int, int, str], None] | None:
    run = shards.Shard(spec)
    return progress and (lambda done, total, note: progress(done, total, f"{name(run)}: {note}"))


def _tune(spec: dict, target: Path, recipe: Recipe, out: Path, device: str, progress) -> None:
    """Train one run that shows how well a rate does, and save its curves and what they come to."""
    tuned = recipe.tuned(spec["rate"])
    run = run_of(spec)
    folder = home(out, run)
    try:
        train(tuned, spec["arm"], folder.parents[1], seed=spec["seed"], device=device, progress=_told(spec, progress))
    except Diverged:
        save_statistics(xr.Dataset({"area": np.inf, "formation": np.nan}, attrs=said_of(run)), target, dated=False)
        return
    rows = read_metrics(folder)
    formed = formation(rows, tuned)
    taken = ("answer_loss", "text_loss", "retrieval", *OF_TASK)
    curves = metrics(rows)
    curves = curves[[key for key in taken if key in curves]]
    outcome = {"area": area(rows), "formation": np.nan if formed is None else float(formed), "seconds": rows[-1]["seconds"]}
    save_statistics(curves.assign(outcome).assign_attrs(said_of(run)), target, dated=False)


def _train_and_score(
    spec: dict, target: Path, recipe: Recipe, out: Path, device: str, tensorboard: bool, evidence: Evidence | None, progress
) -> None:
    arm = spec["arm"]
    seed = spec["seed"]
    tuned = replace(recipe, learning_rate=spec["rate"])
    said = said_of(run_of(spec))
    try:
        folder = train(tuned, arm, out, seed=seed, device=device, tensorboard=tensorboard, progress=_told(spec, progress))
    except NotFormed:  # what it was to continue; a run that never formed either
        save_statistics(xr.Dataset({"formation": np.nan}, attrs=said), target, dated=False)
        return
    except Diverged:  # a run that failed, which counts as that; what it had learned before is known
        folder = out / arm / f"seed-{seed}"
        save_statistics(diverged(read_metrics(folder), tuned).assign_attrs(said), target, dated=False)
        return
    if evidence is not None:
        evidence(folder, tuned, seed)
    scores = score(folder, tuned, arm, seed, device)
    save_statistics(scores.assign_attrs(said, made_by=json.dumps(_made_by(folder / RUN))), target, dated=False)


def collect(cohort: Cohort) -> xr.Dataset:
    """All finished runs as one dataset over (arm, seed), NaN where a run is missing.

    Returns
    -------
    xarray.Dataset
        The variables of :func:`diffscope.lab.training.scores.score`, with ``formation_limit``, the step at which runs that have
        not formed end; ``onset`` (arm, seed, share), the first step with that share of right answers; ``finished`` (arm, seed),
        0 where the run is missing; ``rate`` and ``parameters`` (arm); and, of a recipe with tuning, ``tuning_area`` and
        ``tuning_formation`` (arm, rate_tried, tuning_seed).

    Raises
    ------
    DiffscopeError
        No run is finished, or the folder holds runs of another recipe.
    """
    recipe = cohort.recipe
    everything = replace(cohort, arms=(), seeds=tuple(sorted({*_all_seeds(recipe), *cohort.seeds, *seeds_in(cohort.out)})))
    planned = everything.runs()
    opened = results(cohort.out, planned)
    if not opened:
        raise DiffscopeError(f"no run in {cohort.out} is finished yet; train with: diffscope train RECIPE --out {cohort.out}")
    finished = {(run.spec["arm"], run.spec["seed"]): opened[run.id] for run in planned if run.id in opened}
    dataset = _over_runs(recipe, finished)
    dataset["formation_limit"] = float(recipe.stages[0].steps)
    if (shares := next((dataset[name] for name in SHARES if name in dataset), None)) is not None:
        dataset["onset"] = _onsets(shares)
    rates = everything.rates()
    dataset["rate"] = "arm", [_rate_of(recipe, arm, rates) for arm in recipe.arms]
    table = everything.tuning()
    if table is not None:
        dataset = dataset.merge(table.rename(rate="rate_tried").reindex(arm=list(recipe.arms)))
    causes = shards.Outcome.of(planned, cohort.out, SUFFIX).failed
    failed = "; ".join(f"{name(run)}: {causes[run.id]}" for run in planned if run.id in causes)
    made_by = {
        f"{arm}/seed-{seed}": json.loads(result.attrs["made_by"])
        for (arm, seed), result in finished.items()
        if "made_by" in result.attrs
    }
    attrs = {"recipe": json.dumps(recipe.as_dict()), "made_by": json.dumps(made_by, sort_keys=True), "failed": failed}
    return dataset.assign_attrs({key: text for key, text in attrs.items() if text})


def _all_seeds(recipe: Recipe) -> set[int]:
    return {seed for _, seeds in recipe.groups for seed in seeds}


def _rate_of(recipe: Recipe, arm: str, rates: dict[str, float]) -> float:
    source = recipe.continued[arm].arm if arm in recipe.continued else arm
    return rates.get(source, np.nan)


def _over_runs(recipe: Recipe, results: dict[tuple[str, int], xr.Dataset]) -> xr.Dataset:
    """The results of runs over (arm, seed), NaN where there is none."""
    seeds = sorted({*_all_seeds(recipe), *(seed for _, seed in results)})
    fullest = max(results.values(), key=lambda result: len(result.data_vars))
    missing = xr.full_like(fullest.drop_attrs().astype(float), np.nan)
    rows = []
    for arm in recipe.arms:
        of_arm = [results.get((arm, seed), missing).drop_attrs().astype(float) for seed in seeds]
        rows.append(xr.concat([_filled(result, missing) for result in of_arm], "seed", join="outer"))
    dataset = xr.concat(rows, "arm", join="outer").assign_coords(arm=list(recipe.arms), seed=seeds)
    dataset["finished"] = (("arm", "seed"), [[int((arm, seed) in results) for seed in seeds] for arm in recipe.arms])
    counts = dataset.get("parameters", xr.full_like(dataset["formation"], np.nan))  # unknown of runs that diverged
    dataset["parameters"] = counts.max("seed")  # equal for all finished seeds
    return dataset


def _onsets(shares: xr.DataArray) -> xr.DataArray:
    """The onsets (arm, seed, share) of the runs whose shares of right answers (arm, seed, step) are given."""
    steps = shares["step"].values
    values = xr.apply_ufunc(
        lambda of_run: onsets(steps, of_run), shares, input_core_dims=[["step"]], output_core_dims=[["share"]], vectorize=True
    )
    return values.assign_coords(share=list(ONSETS))


def _filled(result: xr.Dataset, missing: xr.Dataset) -> xr.Dataset:
    """A run's result with all variables: those that it lacks, because it never formed, are NaN."""
    return result.merge(missing.drop_vars([name for name in missing.data_vars if name in result]), join="outer")


def is_copy(out: Path) -> bool:
    """Whether a folder holds the dataset of a cohort without the scores it was made of, as ``tools/keep_cohort.py`` copies it."""
    return (Path(out) / DATASET).is_file() and not has_scores(out)


def has_scores(out: Path) -> bool:
    """Whether a run in a folder is finished."""
    return any(Path(out).glob(f"*/seed-*/{SCORES}{SUFFIX}"))


def open_copy(out: Path, recipe: Recipe) -> xr.Dataset:
    """The dataset of a copy; DiffscopeError if it is of another recipe, seeds apart."""
    dataset = open_dataset(out)
    recipes = [json.loads(text) | {"seeds": None} for text in (dataset.attrs["recipe"], json.dumps(recipe.as_dict()))]
    if recipes[0] != recipes[1]:
        raise DiffscopeError(f"{out} is a copy of a cohort of another recipe, named {recipes[0]['name']!r}; report with that one")
    return dataset


def open_dataset(folder: Path) -> xr.Dataset:
    """The dataset that :func:`collect` made and ``diffscope train`` wrote into a folder.

    Raises
    ------
    DiffscopeError
        The folder holds none, or one with names that have changed since.
    """
    path = folder / DATASET
    old = folder / "family.nc"
    if not path.is_file() and old.is_file():
        raise DiffscopeError(f"{old} is called {DATASET}; make it anew with: diffscope train RECIPE --out {folder} --report")
    if not path.is_file():
        raise DiffscopeError(f"{folder} holds no {DATASET}; make a trained cohort with: diffscope train laptop --out {folder}")
    dataset = open_statistics(path)
    if "noise" in dataset.dims:
        raise DiffscopeError(f"the dimension 'noise' of {path} is called 'distractors'; rename it with Dataset.rename")
    return dataset


def _made_by(path: Path) -> list[dict] | None:
    """The facts (revision, device, versions) under which a run began and each under which it went on; None without its folder."""
    if not path.is_file():
        return None
    facts = read_run(path)
    return [{name: facts[name] for name in facts.keys() - {"gone_on", "recipe"}}, *facts.get("gone_on", [])]


def seeds_in(out: Path) -> set[int]:
    """The seeds of the runs in a folder."""
    return {int(folder.name.removeprefix("seed-")) for folder in out.glob("*/seed-*") if folder.name[5:].isdigit()}


def summary(cohort: xr.Dataset) -> list[dict]:
    """One row for each arm with finished runs, with means over prompts, cells and finished seeds that formed.

    ``formation`` gives the step by seed, None where the lookup circuit never formed; ``missing`` the seeds without a finished
    run.
    """
    rows = []
    for arm in cohort["arm"].values:
        finished = cohort["finished"].sel(arm=arm) == 1
        runs = cohort.sel(arm=arm, seed=finished.values)
        if runs.sizes["seed"]:
            missing = [int(seed) for seed in cohort["seed"].values[~finished.values]]
            rows.append({"arm": str(arm), **_formation_of(runs), "missing": missing, **_means(runs)})
    return rows


def _formation_of(runs: xr.Dataset) -> dict:
    steps = runs["formation"].to_series()
    return {
        "parameters": int(runs["parameters"]) if runs["parameters"].notnull() else None,
        "rate": float(runs["rate"]),
        "formation": {int(seed): None if np.isnan(step) else int(step) for seed, step in steps.items()},
    }


def _means(runs: xr.Dataset) -> dict:
    """Scores of an arm, mean over prompts, cells and seeds."""
    if "text" not in runs:  # no run formed
        return {}
    means = {f"text_{token}": float(runs["text"].sel(token=token).mean()) for token in ("hit", "other")}
    if "exact_match" not in runs:
        return means
    for variable in ("exact_match", "log_odds"):
        means[variable] = runs[variable].mean(("length", "distractors", "prompt")).to_series().to_dict()
        means[f"{variable}_by_distractors"] = runs[variable].mean(("seed", "length", "prompt")).to_series().to_dict()
        means[f"{variable}_by_length"] = runs[variable].mean(("seed", "distractors", "prompt")).to_series().to_dict()
    if "exact_match_near" not in runs:
        return means
    return means | {
        "near": float(runs["exact_match_near"].sel(near=runs["near"] > 0).mean()),
        "unknown_when_unanswerable": float(runs["says_unknown"].sel(question="unanswerable").mean()),
        "unknown_when_answerable": float(runs["says_unknown"].sel(question="answerable").mean()),
    }
