"""Evaluate a model during training: by the answers of its own task, and by the loss on held-out text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import nn
from transformers import PreTrainedTokenizerBase

from diffscope.lab.training.drawing import filler_of
from diffscope.lab.training.grid import mixture
from diffscope.lab.training.recipe import Recipe
from diffscope.tasks.backcopy import Backcopy
from diffscope.tasks.log_odds import logits_of
from diffscope.tasks.recall import Recall
from diffscope.tasks.retrieval import Retrieval
from diffscope.tasks.scoring import answers, losses

Evaluate = Callable[[nn.Module], dict[str, float]]
PROMPT_SEED = 20_000  # with the run's seed, the seed of the prompts on which a training is scored along the way


def evaluations(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, seed: int) -> list[Evaluate]:
    """Return the evaluations of a recipe during training, each a function from a model to values by name.

    ``retrieval`` is the share of exact answers and ``retrieval_log_odds`` their mean log-odds in nats; ``copied`` the share of
    tokens after a trigger that are right, ``copy_loss`` and ``bigram_excess`` as
    :class:`~diffscope.tasks.backcopy.CopyScores` has them; ``held_out_loss`` the mean loss on held-out text in nats a token.
    """
    kinds = []
    if recipe.evaluation is not None:
        kinds.append(_answers(recipe, tokenizer, seed))
    if recipe.copying is not None:
        kinds.append(_copies(recipe, seed))
    if recipe.evaluation_text is not None:
        kinds.append(_text(recipe, tokenizer))
    return kinds


def _answers(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, seed: int) -> Evaluate:
    task = Retrieval(tokenizer, texts=filler_of(recipe, tokenizer, held_out=True))
    prompts = mixture(recipe.evaluation, task, [PROMPT_SEED, seed])

    def evaluate(model: nn.Module) -> dict[str, float]:
        answered = answers(logits_of(model), prompts)
        odds = answered.log_odds[np.isfinite(answered.log_odds)]
        values = {"retrieval": float(answered.right.mean())}
        return values | ({"retrieval_log_odds": round(float(odds.mean()), 5)} if len(odds) else {})

    return evaluate


def _copies(recipe: Recipe, seed: int) -> Evaluate:
    task = Backcopy()

    def evaluate(model: nn.Module) -> dict[str, float]:
        rng = np.random.default_rng([PROMPT_SEED, seed])
        scores = task.score(model, recipe.copying.rows, recipe.copying.length, rng)
        return {"copied": scores.exact, "copy_loss": round(scores.copied, 5), "bigram_excess": round(scores.excess, 5)}

    return evaluate


def _text(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> Evaluate:
    recall = Recall(tokenizer, filler_of(recipe, tokenizer, held_out=True))
    ids, _ = recall.windows(recipe.evaluation_text.length, recipe.evaluation_text.texts)

    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"held_out_loss": round(float(losses(logits_of(model), ids).mean()), 5)}

    return evaluate
