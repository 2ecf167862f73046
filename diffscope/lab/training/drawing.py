"""Draw the rows of a training: each stage has a task, which draws the rows of a step."""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedTokenizerBase

from diffscope.lab.training.initialisation import corpus_of
from diffscope.lab.training.passes import Passes
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.stages import BACKCOPY, PLANTED, Stage
from diffscope.tasks.backcopy import Backcopy
from diffscope.tasks.planted import PlantedLookups
from diffscope.tasks.retrieval import Retrieval
from diffscope.tasks.text import TextStream, standard_library_text
from diffscope.tasks.text_folder import HELD_OUT, TRAIN


def filler_of(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, held_out: bool) -> TextStream:
    """Return the text that a recipe trains on, or the text that it holds out."""
    corpus = corpus_of(recipe)
    if corpus is None:
        return TextStream.of(standard_library_text(held_out), tokenizer)
    return corpus.filler(HELD_OUT if held_out else TRAIN, tokenizer)


class Draws:
    """The rows of every step of a training, which depend on its seed, the stage and the step's number within it alone."""

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, seed: int):
        self.seed = seed
        self.stages = recipe.stages
        text = None if recipe.task == BACKCOPY else filler_of(recipe, tokenizer, held_out=False)
        self.tasks = [_task(stage, tokenizer, text, (seed, index)) for index, stage in enumerate(recipe.stages)]

    def rows(self, stage: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw the rows of one step of a stage and the kind of each token, both (row, token)."""
        if self.stages[stage].task == PLANTED:
            self.tasks[stage].retrieval.filler.taken = self.stages[stage].shapes[0][0] * step
        return self.stages[stage].draw(self.tasks[stage], np.random.default_rng([self.seed, stage, step]))


def _task(
    stage: Stage, tokenizer: PreTrainedTokenizerBase, text: TextStream | None, seed: tuple[int, int]
) -> Retrieval | Backcopy | PlantedLookups:
    if stage.task == BACKCOPY:
        return Backcopy()
    if stage.task == PLANTED:
        fewest, most = stage.needles
        passes = Passes(text.ids, text.cuts, stage.shapes[0][1], seed)
        return PlantedLookups(tokenizer, passes, stage.planted, (fewest - 1, most - 1), stage.template)
    return Retrieval(tokenizer, held_out=False, template=stage.template, texts=text)
