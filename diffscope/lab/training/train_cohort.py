"""Train a cohort: choose the learning rate of every arm, then train and score its runs, each an item of a queue."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import xarray as xr
from transformers import PreTrainedTokenizerBase

from diffscope.errors import DiffscopeError, PromptError
from diffscope.lab.items import Item, Outcome
from diffscope.lab.queue import Progress, run
from diffscope.lab.training.cohort import Cohort
from diffscope.lab.training.drawing import Draws, filler_of
from diffscope.lab.training.formation import formation
from diffscope.lab.training.initialisation import corpus_of, tokenizer_for
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.run import read_metrics, read_run
from diffscope.lab.training.runs import identity, run_folder, run_label, run_of
from diffscope.lab.training.scores import OF_TASK, area, diverged, held_out_splits, metrics, near_grid, score, scored_text
from diffscope.lab.training.stages import BACKCOPY, RETRIEVAL
from diffscope.lab.training.train import Diverged, NotFormed, check_tools, train_run
from diffscope.models.folders import RUN
from diffscope.storage.statistics import save_statistics
from diffscope.tasks.recall import Recall
from diffscope.tasks.retrieval import Retrieval
from diffscope.tasks.text_folder import HELD_OUT

Evidence = Callable[[Path, Recipe, int], object]


def train_cohort(
    cohort: Cohort,
    *,
    processes: int | None = None,
    ray: str | None = None,
    threads: int = 1,
    tensorboard: bool = False,
    evidence: Evidence | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Train and score the runs of a cohort that are not done yet, group by group.

    Raises DiffscopeError if a prompt cannot be drawn, or the folder holds runs of another recipe.

    Parameters
    ----------
    processes, ray, threads
        As of :func:`diffscope.lab.queue.run`.
    evidence : callable, optional
        Takes the evidence of a finished run into the run's folder, ``evidence(folder, recipe, seed)``.
    progress : callable, optional
        Called with (done, total, words): in steps if this process alone works, in runs otherwise.
    """
    cohort.results()  # runs of another recipe in the folder are refused before anything runs
    check_prompts(cohort.recipe)
    if ray is None:  # whose machines may have what this one lacks
        check_tools(cohort.device, tensorboard)
    alone = processes is None and ray is None
    counter = _Counter(cohort, progress, in_steps=alone)
    steps = counter.steps if alone and progress else None
    options = dict(recipe=cohort.recipe, out=cohort.out.resolve(), device=cohort.device, progress=steps)
    tune = partial(_tune, **options)
    work = partial(_train_and_score, **options, tensorboard=tensorboard, evidence=evidence)
    gpus = cohort.device.startswith("cuda")
    how = dict(processes=processes, ray=ray, gpus=gpus, threads=threads, progress=counter.runs)
    for group in cohort.groups():
        run(group.tuning_runs(), tune, cohort.out, **how)
        group.results()  # their rates may not have been known before
        run(group.runs(), work, cohort.out, **how)
    return cohort.outcome()


class _Counter:
    """Progress over all runs of a cohort, which are several lots of a queue."""

    def __init__(self, cohort: Cohort, progress: Progress | None, in_steps: bool):
        outcome = cohort.outcome()
        self.total = len(outcome.waiting) + len(outcome.failed)
        self.size = cohort.recipe.steps if in_steps else 1
        self.before = 0  # runs of earlier lots
        self.tried = 0  # of this one
        self.progress = progress

    def runs(self, tried: int, total: int, note: str) -> None:
        """Take the progress of a lot."""
        self.tried = tried
        if self.progress and self.size == 1:
            self.progress(self.before + tried, self.total, note)
        if tried == total:
            self.before += tried
            self.tried = 0

    def steps(self, done: int, total: int, note: str) -> None:
        """Take the progress of a run in this process."""
        share = done / total * self.size
        self.progress(round((self.before + self.tried) * self.size + share), self.total * self.size, note)


def check_prompts(recipe: Recipe) -> None:
    """Draw a step of every shape and a prompt of every cell, so that a mistake is known before the training.

    Raises DiffscopeError if prompts are longer than a model has positions, or the recipe has other special tokens than its
    tokenizer; PromptError if sentences do not fit the length of their prompt, or a held-out text is shorter than a window.
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
    _check_special_tokens(recipe, tokenizer)
    _check_held_out(recipe, tokenizer)
    task = Retrieval(tokenizer, texts=filler_of(recipe, tokenizer, held_out=True))
    kinds = [(grid, {}) for grid in grids]
    if recipe.grid is not None and recipe.task == RETRIEVAL:
        kinds.append((near_grid(recipe.grid), {"near": True}))
    for grid, kind in kinds:
        for length, distractors in grid.cells:
            task.with_template(grid.template).controlled(length, distractors, 0, slots=grid.slots(length), **kind)


def _check_special_tokens(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise DiffscopeError if a recipe has other special tokens than its tokenizer: the embedding of its padding stays 0."""
    for arm in recipe.arms:
        config = recipe.config(arm, len(tokenizer))
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            of_model, of_tokenizer = getattr(config, name), getattr(tokenizer, name)
            unknown = of_tokenizer is None and name != "pad_token_id"
            if of_model is not None and of_model != of_tokenizer and not unknown:
                raise DiffscopeError(
                    f"recipe {recipe.name!r} has {name} = {of_model}, and its tokenizer {of_tokenizer}; write the tokenizer's "
                    "into [model] of the recipe, or leave the line out if it has none"
                )


def _check_held_out(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
    """Cut a window of each held-out text of a corpus, as it will be scored."""
    corpus = corpus_of(recipe)
    if corpus is None:
        return
    needed = [(split, scored_text(recipe).length) for split in held_out_splits(corpus)]
    if recipe.evaluation_text is not None:
        needed.append((HELD_OUT, recipe.evaluation_text.length))
    for split, length in needed:
        try:
            Recall(tokenizer, corpus.filler(split, tokenizer)).windows(length, 1)
        except PromptError as error:
            raise PromptError(f"{split} of {recipe.text}: {error}") from None


def _labelled(item: Item, progress: Progress | None) -> Progress | None:
    """Name the run in the notes of its progress."""
    return progress and (lambda done, total, note: progress(done, total, f"{run_label(item)}: {note}"))


def _tune(spec: dict, target: Path, recipe: Recipe, out: Path, device: str, progress: Progress | None) -> None:
    """Train one run that shows how well a rate does, and save its curves and what they come to."""
    tuned = recipe.tuned(spec["rate"])
    item = run_of(spec)
    folder = run_folder(out, item)
    try:
        train_run(tuned, spec["arm"], spec["seed"], folder, device, progress=_labelled(item, progress))
    except Diverged:
        save_statistics(xr.Dataset({"area": np.inf, "formation": np.nan}, attrs=identity(item)), target, dated=False)
        return
    rows = read_metrics(folder)
    formed = formation(rows, recipe)  # by the share of its first stage, which no longer ends by it
    taken = ("answer_loss", "text_loss", "retrieval", *OF_TASK)
    curves = metrics(rows)
    curves = curves[[key for key in taken if key in curves]]
    outcome = {"area": area(rows), "formation": np.nan if formed is None else float(formed), "seconds": rows[-1]["seconds"]}
    save_statistics(curves.assign(outcome).assign_attrs(identity(item)), target, dated=False)


def _train_and_score(
    spec: dict,
    target: Path,
    recipe: Recipe,
    out: Path,
    device: str,
    progress: Progress | None,
    tensorboard: bool,
    evidence: Evidence | None,
) -> None:
    """Train one run, let its evidence be taken, and save its scores."""
    arm, seed = spec["arm"], spec["seed"]
    tuned = replace(recipe, learning_rate=spec["rate"])
    item = run_of(spec)
    folder = run_folder(out, item)
    board = out / "tensorboard" / arm / f"seed-{seed}" if tensorboard else None
    try:
        train_run(tuned, arm, seed, folder, device, board=board, progress=_labelled(item, progress))
    except NotFormed:  # what it was to continue; a run that never formed either
        save_statistics(xr.Dataset({"formation": np.nan}, attrs=identity(item)), target, dated=False)
        return
    except Diverged:  # a run that failed, which counts as that; what it had learned before is known
        save_statistics(diverged(read_metrics(folder), tuned, arm).assign_attrs(identity(item)), target, dated=False)
        return
    if evidence is not None:
        evidence(folder, tuned, seed)
    scores = score(folder, tuned, arm, seed, device)
    save_statistics(scores.assign_attrs(identity(item), made_by=json.dumps(_made_by(folder / RUN))), target, dated=False)


def _made_by(path: Path) -> list[dict] | None:
    """Return the facts (revision, device, versions) under which a run began and resumed; None without its folder."""
    if not path.is_file():
        return None
    facts = read_run(path)
    return [{name: facts[name] for name in facts.keys() - {"gone_on", "recipe"}}, *facts.get("gone_on", [])]
