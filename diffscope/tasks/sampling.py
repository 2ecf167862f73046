"""Sample sets of retrieval prompts whose answers stand at five depths in turn."""

from __future__ import annotations

import numpy as np

from diffscope.errors import PromptError
from diffscope.tasks.lookups import Seed, seeds_of
from diffscope.tasks.prompt import Prompt
from diffscope.tasks.retrieval import Retrieval

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the queried sentence, as a fraction of the text before the question


def draw(task: Retrieval, count: int, length: int, needles: int, seed: int, questions: int = 1) -> list[Prompt]:
    """Draw prompts of :meth:`diffscope.tasks.Retrieval.prompt`."""
    rng = np.random.default_rng(seed)
    return [task.prompt(length, needles, rng, depth, questions) for depth in _depths(count)]


def controlled(task: Retrieval, count: int, length: int, distractors: int, seed: Seed, **kind) -> list[Prompt]:
    """Draw prompts whose length and number of distractors are set independently.

    Prompt i of a seed has the same city, number and depth at every length and with any number of distractors; fewer distractors
    are the first of more. `kind` goes to :meth:`diffscope.tasks.Retrieval.controlled`.
    """
    return [
        task.controlled(length, distractors, [*seeds_of(seed), index], depth=depth, **kind)
        for index, depth in enumerate(_depths(count))
    ]


def graded(task: Retrieval, count: int, length: int, distractors: int, seed: Seed, grade: str, slots: int = 8) -> list[Prompt]:
    """Draw prompts of :meth:`diffscope.tasks.Retrieval.graded`, paired by seed as those of :func:`controlled` are."""
    return [
        task.graded(length, grade, [*seeds_of(seed), index], distractors=distractors, slots=slots, depth=depth)
        for index, depth in enumerate(_depths(count))
    ]


def _depths(count: int) -> list[float]:
    """Return the depth of each of `count` prompts."""
    return [DEPTHS[index % len(DEPTHS)] for index in range(count)]


def check_spread(prompts: int) -> None:
    """Raise PromptError unless a number of prompts is the same at each depth, and two or more."""
    if prompts < 2 * len(DEPTHS) or prompts % len(DEPTHS):
        raise PromptError(f"{prompts} prompts do not spread over {len(DEPTHS)} depths; give 10, 15, 20 or more by fives")
