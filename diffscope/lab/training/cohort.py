"""A matched cohort: every arm trained with every seed, scored alike, and put together as one labelled dataset."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.lab.jobs import shards
from diffscope.lab.jobs.ray_cluster import OnRay
from diffscope.lab.scoring import exact_answers, on_grid, text_losses
from diffscope.lab.training.recipe import Grid, Recipe, parameters
from diffscope.lab.training.train import RUN, check_tools, recipe_text, tokenizer_for, train
from diffscope.scope import load
from diffscope.store import open_statistics, provenance, save_statistics
from diffscope.tasks.recall import Recall
from diffscope.tasks.retrieval import Retrieval
from diffscope.tasks.tokenizer import UNKNOWN

FORMED = 0.9  # share of exact answers above which the lookup circuit has formed
NEAR = (0, 2, 4, 6)  # competing near-duplicates, at the middle length of the grid
DATASET, CURVES = "cohort.nc", "metrics.parquet"
MEASURED = ("answer_loss", "text_loss", "answer_tokens_right", "gradient_norm", "seconds", "retrieval")


def plan(recipe: Recipe, arms: Sequence[str] = (), seeds: Sequence[int] = (), device: str = "cpu") -> list[shards.Shard]:
    """The runs of a cohort, all arms of a seed before those of the next; by default all of them.

    What a run's scores depend on is part of what it is, so another device, version or grid scores it anew.

    Raises
    ------
    DiffscopeError
        An arm that the recipe does not have, or a recipe without a grid to score its models on.
    """
    if recipe.grid is None:
        raise DiffscopeError(f"recipe {recipe.name!r} has no [grid] to score its models on; compare it with laptop.toml")
    for arm in arms or recipe.arms:
        recipe.config(arm, recipe.vocab_size)
    common = {"grid": recipe.as_dict()["grid"], "near": NEAR, "device": device.partition(":")[0], "made_with": provenance(False)}
    chosen = [(arm, seed) for seed in dict.fromkeys(seeds or recipe.seeds) for arm in dict.fromkeys(arms or recipe.arms)]
    return [shards.Shard({"arm": arm, "seed": seed, "run": recipe_text(recipe, arm), **common}) for arm, seed in chosen]


def run(
    recipe: Recipe,
    out: Path,
    chosen: Sequence[shards.Shard],
    where=None,
    *,
    threads: int = 1,
    device: str = "cpu",
    tensorboard: bool = False,
    rank: shards.Rank | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> shards.Outcome:
    """Train and score the chosen runs that are not done yet; see :func:`diffscope.lab.jobs.shards.run`.

    In this process, progress is counted in steps, elsewhere in runs.
    """
    _check_prompts(recipe)
    if not isinstance(where, OnRay):  # whose machines may have what this one has not
        check_tools(device, tensorboard)
    how = dict(recipe=recipe, out=Path(out).resolve(), device=shards.own_gpu(device, rank), tensorboard=tensorboard)
    runs = left = 0

    def of_steps(done: int, total: int, note: str) -> None:
        progress(runs * recipe.steps + done, left * recipe.steps, note)

    def of_runs(done: int, total: int, note: str) -> None:
        nonlocal runs, left
        runs, left = done, total
        if progress and where is not None:
            progress(done, total, note)

    work = partial(_train_and_score, **how, progress=of_steps if progress and where is None else None)
    return shards.run(chosen, work, out, where, rank=rank, threads=threads, progress=of_runs)


def _check_prompts(recipe: Recipe) -> None:
    """Draw a step of every shape and a prompt of every cell: what cannot be drawn is to be known before the training."""
    seen, task = (Retrieval(tokenizer_for(recipe), held_out=held_out) for held_out in (False, True))
    for arm in recipe.arms:
        positions = recipe.config(arm, recipe.vocab_size).max_position_embeddings
        longest = max(recipe.length, *recipe.evaluation.lengths, *recipe.grid.lengths)
        if longest > positions:
            raise DiffscopeError(
                f"arm {arm!r} has {positions} positions (max_position_embeddings), and prompts of {longest} tokens"
            )
    for stage in recipe.stages:
        for shape in stage.shapes:
            most = replace(stage, shapes=(shape,), needles=(stage.needles[1],) * 2)
            most.draw(seen.with_template(stage.template), np.random.default_rng(0))
    for grid, kind in ((recipe.evaluation, {}), (recipe.grid, {}), (_near(recipe.grid), {"near": True})):
        for length, distractors in grid.cells:
            task.with_template(grid.template).controlled(length, distractors, 0, slots=grid.slots, **kind)


def _middle(grid: Grid) -> Grid:
    return replace(grid, lengths=(grid.lengths[len(grid.lengths) // 2],))


def _near(grid: Grid) -> Grid:
    return replace(_middle(grid), distractors=NEAR)


def _train_and_score(spec: dict, target: Path, recipe: Recipe, out: Path, device: str, tensorboard: bool, progress) -> None:
    arm, seed = spec["arm"], spec["seed"]

    def of_run(done: int, total: int, note: str) -> None:
        if progress:
            progress(done, total, f"{arm}, seed {seed}: {note}")

    folder = train(recipe, arm, out, seed=seed, device=device, tensorboard=tensorboard, progress=of_run)
    save_statistics(score(folder, recipe, device), target, dated=False)


def score(folder: Path, recipe: Recipe, device: str = "cpu") -> xr.Dataset:
    """What one finished run did along the way, and what its model can do in the end.

    Returns
    -------
    xarray.Dataset
        ``retrieval`` and the other metrics (step); ``exact_match`` (length, distractors, prompt) of the answers; ``exact_match_near``
        the same among near-duplicate cities (near, prompt) and ``says_unknown`` (question, distractors, prompt), both at the middle
        length of the grid; ``text`` mean loss in nats on held-out text (token): on tokens that the text gives away, and others.
    """
    scope, middle = load(folder, device=device), _middle(recipe.grid)
    task = Retrieval(scope.tokenizer, held_out=True)
    near = on_grid(scope.model, task, _near(recipe.grid), near=True).isel(length=0, drop=True).rename(distractors="near")
    losses = text_losses(scope.model, Recall(scope.tokenizer), middle.lengths[0])
    scored = {
        "exact_match": on_grid(scope.model, task, recipe.grid),
        "exact_match_near": near,
        "says_unknown": _says_unknown(scope.model, task, middle),
        "text": xr.DataArray(list(losses.values()), dims="token", coords={"token": list(losses)}),
        "parameters": xr.DataArray(parameters(scope.model.config.to_dict())),
    }
    return metrics(folder).merge(
        {name: values.astype("int8") if values.dtype == bool else values for name, values in scored.items()}
    )


def _says_unknown(model, task: Retrieval, grid: Grid) -> xr.DataArray:
    """Whether the answer is "unknown", bool (question, distractors, prompt), where there is one and where there is none."""
    unanswerable = on_grid(model, task, grid, answerable=False)
    word = task.tokenizer(UNKNOWN, add_special_tokens=False)["input_ids"]

    def hears_unknown(model, prompts):
        return exact_answers(model, [replace(prompt, answer=word) for prompt in prompts])

    answerable = on_grid(model, task, grid, judge=hears_unknown)
    both = xr.concat([answerable, unanswerable], "question").isel(length=0, drop=True)
    return both.assign_coords(question=["answerable", "unanswerable"])


def metrics(folder: Path) -> xr.Dataset:
    """What a run has logged, by step; NaN where something was not evaluated."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    columns = {name: ("step", np.array([row.get(name, np.nan) for row in rows], dtype=float)) for name in MEASURED}
    return xr.Dataset(columns, coords={"step": [row["step"] for row in rows]})


def collect(recipe: Recipe, out: Path, outcome: shards.Outcome, device: str = "cpu") -> xr.Dataset:
    """All finished runs as one dataset over (arm, seed), NaN where a run is missing; `device` is that of their plan.

    Returns
    -------
    xarray.Dataset
        What :func:`score` gives, with ``formation`` (arm, seed): the first evaluated step with more than 90 % exact answers,
        NaN where there was none; ``finished`` (arm, seed), 0 where the run is missing; and ``parameters`` (arm).

    Raises
    ------
    DiffscopeError
        No run is finished.
    """
    if not outcome.done:
        others = len(list(out.glob("shards/*.nc")))
        other = f"; it holds {others} of other seeds, recipes, versions or another device" if others else ""
        raise DiffscopeError(f"no run in {out} is finished yet{other}")
    found = {(shard.spec["arm"], shard.spec["seed"]): open_statistics(shards.result(out, shard, ".nc")) for shard in outcome.done}
    blank = xr.full_like(next(iter(found.values())).astype(float), np.nan)
    seeds = sorted({*recipe.seeds, *(seed for _, seed in found)})
    rows = [xr.concat([found.get((arm, seed), blank).astype(float) for seed in seeds], "seed") for arm in recipe.arms]
    cohort = xr.concat(rows, "arm").assign_coords(arm=list(recipe.arms), seed=seeds)
    cohort["formation"] = formation(cohort["retrieval"])
    cohort["finished"] = (("arm", "seed"), [[int((arm, seed) in found) for seed in seeds] for arm in recipe.arms])
    cohort["parameters"] = cohort["parameters"].max("seed")  # equal for all that are there
    runs = plan(recipe, seeds=seeds, device=device)
    failed = "; ".join(f"{name(run)}: {outcome.failed[run.id]}" for run in runs if run.id in outcome.failed)
    made_by = {f"{arm}/seed-{seed}": _made_by(out / arm / f"seed-{seed}" / RUN) for arm, seed in found}
    said = {"recipe": json.dumps(recipe.as_dict()), "made_by": json.dumps(made_by, sort_keys=True), "failed": failed}
    cohort.attrs = {name: words for name, words in said.items() if words}
    return cohort


def _made_by(path: Path) -> list[dict] | None:
    """Under what a run was begun and gone on with: revision, device, versions; None where only its scores are left."""
    if not path.is_file():
        return None
    begun = json.loads(path.read_text(encoding="utf-8"))
    return [{name: begun[name] for name in begun.keys() - {"gone_on", "recipe"}}, *begun.get("gone_on", [])]


def seeds_in(out: Path) -> set[int]:
    """The seeds of which a folder has runs."""
    return {int(folder.name.removeprefix("seed-")) for folder in out.glob("*/seed-*") if folder.name[5:].isdigit()}


def name(run: shards.Shard) -> str:
    """A run in words."""
    return f"{run.spec['arm']}, seed {run.spec['seed']}"


def formation(retrieval: xr.DataArray) -> xr.DataArray:
    """The first step at which more than 90 % of the answers are exact; NaN where there is none, or no run."""
    formed = retrieval > FORMED
    first = retrieval["step"].astype(float)[formed.argmax("step")].drop_vars("step")
    return first.where(formed.any("step"))


def summary(cohort: xr.Dataset) -> list[dict]:
    """One row an arm with finished runs: formation step of each, and means over prompts, cells and finished seeds.

    ``formation`` is by seed, None where the arm never formed; seeds without a finished run are ``missing``.
    """
    rows = []
    for arm in cohort["arm"].values:
        there = cohort["finished"].sel(arm=arm) == 1
        one = cohort.sel(arm=arm, seed=there.values)
        if not one.sizes["seed"]:
            continue
        steps = one["formation"].to_series()
        match = one["exact_match"]
        rows.append(
            {
                "arm": str(arm),
                "parameters": int(one["parameters"]),
                "formation": {int(seed): None if np.isnan(step) else int(step) for seed, step in steps.items()},
                "missing": [int(seed) for seed in cohort["seed"].values[~there.values]],
                "exact_match": match.mean(("length", "distractors", "prompt")).to_series().to_dict(),
                "by_distractors": match.mean(("seed", "length", "prompt")).to_series().to_dict(),
                "by_length": match.mean(("seed", "distractors", "prompt")).to_series().to_dict(),
                "near": float(one["exact_match_near"].sel(near=cohort["near"] > 0).mean()),
                "unknown_when_unanswerable": float(one["says_unknown"].sel(question="unanswerable").mean()),
                "unknown_when_answerable": float(one["says_unknown"].sel(question="answerable").mean()),
                "text_hit": float(one["text"].sel(token="hit").mean()),
                "text_other": float(one["text"].sel(token="other").mean()),
            }
        )
    return rows
