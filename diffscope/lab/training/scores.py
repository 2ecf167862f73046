"""Score a finished run: its curves, when it formed, and how its final model answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import xarray as xr

from diffscope.lab.training.drawing import filler_of
from diffscope.lab.training.formation import formation
from diffscope.lab.training.grid import Grid, PlainText, on_grid
from diffscope.lab.training.initialisation import corpus_of
from diffscope.lab.training.parameter_matching import parameters
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.run import read_metrics
from diffscope.lab.training.runs import NEAR
from diffscope.lab.training.stages import BACKCOPY, LOG_EVERY, RETRIEVAL
from diffscope.scope import Scope, load
from diffscope.tasks.log_odds import logits_of
from diffscope.tasks.recall import Recall
from diffscope.tasks.retrieval import Retrieval
from diffscope.tasks.scoring import answers, losses, text_losses
from diffscope.tasks.text_folder import HELD_OUT, TRAIN, TextFolder
from diffscope.tasks.tokenizer import UNKNOWN

MEASURED = ("answer_loss", "text_loss", "answer_tokens_right", "gradient_norm", "seconds", "stage", "retrieval")
#: Curves that only some recipes have.
OF_TASK = ("loss", "retrieval_log_odds", "copied", "copy_loss", "bigram_excess", "held_out_loss")
LOSSES = ("loss", "answer_loss", "text_loss")  # the first of them that a run has is the one that it lowers
PROMPT_SEED = 30_000  # with the seed of a run, the seed of the prompts that it is scored on
TEXTS = 40_000
MOST_TEXTS = 64


def score(folder: Path, recipe: Recipe, arm: str, seed: int, device: str = "cpu") -> xr.Dataset:
    """Return the metrics of a finished run by step, and the scores of its final model on prompts drawn by its seed.

    Returns
    -------
    xarray.Dataset
        ``retrieval`` and the other metrics (step); ``formation``, the step at which it formed, NaN where it did not or continues
        another arm, that had; ``parameters``. Of a run that came to its last stage, formed or not, too: ``exact_match``,
        ``log_odds`` (length, distractors, prompt) of the answers, and with the ending ``_near`` (near, prompt) those among
        near-duplicate cities; ``says_unknown`` (question, distractors, prompt), both at the middle length of the grid; ``text``
        (token), the mean loss in nats on held-out text, on tokens that the text gives away and on others; of a corpus on ``all``
        too, and ``text_by_domain`` (domain, token). Of Bigram-Backcopy the curves are all there is.
    """
    rows = read_metrics(folder)
    scope = load(folder, device=device)
    scores = metrics(rows)
    scores["formation"] = _formed(rows, recipe, arm)
    scores["parameters"] = float(parameters(scope.model.config.to_dict()))
    if rows[-1]["stage"] < len(recipe.stages) - 1:  # it ended early, since it had not formed
        return scores
    if recipe.task == BACKCOPY:  # whose last evaluation is of the final model
        return scores
    scores.update(_text(scope, recipe, seed))
    if recipe.grid is None:
        return scores
    task = Retrieval(scope.tokenizer, texts=filler_of(recipe, scope.tokenizer, held_out=True))
    if recipe.task != RETRIEVAL:  # it was trained on no near-duplicates, and to say "unknown" never
        scores.update(on_grid(scope.model, task, recipe.grid, [PROMPT_SEED, seed]).astype("float32"))
        return scores
    near = on_grid(scope.model, task, near_grid(recipe.grid), [PROMPT_SEED, seed], near=True).isel(length=0, drop=True)
    parts = [
        on_grid(scope.model, task, recipe.grid, [PROMPT_SEED, seed]),
        near.rename({"distractors": "near", **{name: f"{name}_near" for name in near}}),
        _says_unknown(scope.model, task, middle(recipe.grid), seed),
    ]
    for part in parts:
        scores.update({name: values.astype("float32") for name, values in part.items()})
    return scores


def _text(scope: Scope, recipe: Recipe, seed: int) -> dict[str, xr.DataArray]:
    """Return the loss on held-out text: drawn by the seed, or with a corpus the same windows for all runs, and another domain."""
    texts = scored_text(recipe)
    logits = logits_of(scope.model)
    corpus = corpus_of(recipe)
    if corpus is None:
        means = text_losses(logits, Recall(scope.tokenizer), texts.length, [TEXTS, seed], texts.texts)
        return {"text": xr.DataArray(list(means.values()), dims="token", coords={"token": list(means)})}
    rows = []
    splits = held_out_splits(corpus)
    for split in splits:
        recall = Recall(scope.tokenizer, corpus.filler(split, scope.tokenizer))
        ids, hits = recall.windows(texts.length, texts.texts)  # (window, token)
        loss = losses(logits, ids).numpy()
        rows.append([loss[hits[:, 1:]].mean(), loss[~hits[:, 1:]].mean(), loss.mean()])
    coords = {"domain": splits, "token": ["hit", "other", "all"]}
    by_domain = xr.DataArray(rows, dims=("domain", "token"), coords=coords)
    return {"text": by_domain.sel(domain=HELD_OUT, drop=True), "text_by_domain": by_domain}


def scored_text(recipe: Recipe) -> PlainText:
    """Return how many texts of which length the loss of a finished run is scored on."""
    return recipe.plain_text or PlainText(middle(recipe.grid).lengths[0], MOST_TEXTS)


def held_out_splits(corpus: TextFolder) -> list[str]:
    """Return the splits of a corpus that it is not trained on."""
    return [split for split in corpus.splits if split != TRAIN]


def diverged(rows: list[dict], recipe: Recipe, arm: str) -> xr.Dataset:
    """Return the result of a run that diverged: its metrics until then, and when it had formed."""
    return metrics(rows).assign(formation=_formed(rows, recipe, arm))


def _formed(rows: list[dict], recipe: Recipe, arm: str) -> float:
    """Return the step at which a run formed; NaN if it did not, or continues another arm, that had."""
    formed = None if arm in recipe.continued else formation(rows, recipe)
    return np.nan if formed is None else float(formed)


def middle(grid: Grid) -> Grid:
    """Return the grid at its middle length alone."""
    return replace(grid, lengths=(grid.lengths[len(grid.lengths) // 2],))


def near_grid(grid: Grid) -> Grid:
    """Return the grid of near-duplicates, at the middle length."""
    return replace(middle(grid), distractors=NEAR)


def _says_unknown(model, task: Retrieval, grid: Grid, seed: int) -> xr.Dataset:
    """Return whether the model answers "unknown", (question, distractors, prompt), to questions with and without an answer."""
    word = task.tokenizer(UNKNOWN, add_special_tokens=False)["input_ids"]

    def answers_unknown(model, prompts):
        return {"says_unknown": answers(logits_of(model), [replace(prompt, answer=word) for prompt in prompts]).right}

    questions = [
        on_grid(model, task, grid, [PROMPT_SEED, seed], answers_unknown, answerable=answerable) for answerable in (True, False)
    ]
    both = xr.concat(questions, "question").isel(length=0, drop=True)
    return both.assign_coords(question=["answerable", "unanswerable"])


def metrics(rows: list[dict]) -> xr.Dataset:
    """Return the rows that a run logged as a Dataset by step; NaN if a metric was not logged at a step."""
    names = [*MEASURED, *(name for name in OF_TASK if any(name in row for row in rows))]
    columns = {name: ("step", np.array([row.get(name, np.nan) for row in rows], dtype=float)) for name in names}
    return xr.Dataset(columns, coords={"step": [row["step"] for row in rows]})


def area(rows: list[dict]) -> float:
    """Return the mean over steps of the loss that a run lowers."""
    name = next(name for name in LOSSES if name in rows[0])
    return float(np.mean([row[name] for row in rows if row["step"] % LOG_EVERY == 0]))
