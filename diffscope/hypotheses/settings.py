"""The prompts that models are tested with, and how much is spent on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from diffscope.errors import DiffscopeError
from diffscope.evidence.ablations import with_answer
from diffscope.hypotheses.rules import BY, KNOCK_OUT, Weights
from diffscope.prompts.selection import whole_number
from diffscope.scope import Scope
from diffscope.tasks.encoding import encode_prompts, require_answers
from diffscope.tasks.prompt import Prompt, TextPrompt
from diffscope.tasks.retrieval import Retrieval
from diffscope.tasks.sampling import draw
from diffscope.tasks.training_sentence import template_of


@dataclass
class Settings:
    """The prompts of a board, and how much is spent on them.

    Attributes
    ----------
    prompts : int
        Retrieval prompts, spread over five depths.
    length : int
        Tokens a prompt.
    needles : int
        Needles a prompt, that of the question included.
    seed : int
        Of prompts and untrained models.
    template : str, optional
        The needle sentence; by default the one that a cohort or a model was trained on.
    untrained : int
        Models of random weights that a trained one is compared with.
    first : int
        Number of the first of these, so that several trainings can have others each.
    own : tuple of TextPrompt
        A person's own prompts in place of retrieval prompts; of those the first `prompts`.
    weights : {"knock-out", "a2", "answer"}
        What heads count with: by how much the answer's loss rises without them, or without their second map alone, or A1's mass
        on the answer. By the first two untrained models' heads count as those of the trained model in their place, a head without
        which the loss does not rise counts 0, and what comes of A1's mass on the answer stands beside, as the second view. A
        standard head has one map: it counts with what the head costs by either.
    """

    prompts: int = 40
    length: int = 160
    needles: int = 4
    seed: int = 50_000
    template: str | None = None
    untrained: int = 24
    first: int = 0
    own: tuple[TextPrompt, ...] = ()
    weights: Weights = KNOCK_OUT

    def __post_init__(self):
        whole_number(self.prompts, 1, math.inf, "prompts are a whole number from 1")
        whole_number(self.untrained, 0, math.inf, "untrained models are a whole number from 0")
        whole_number(self.length, 1, math.inf, "the length of prompts is a whole number from 1")
        whole_number(self.needles, 1, math.inf, "needles are a whole number from 1")
        whole_number(self.seed, 0, math.inf, "the seed is a whole number from 0")
        whole_number(self.first, 0, math.inf, "the first untrained model has a whole number from 0")
        if not isinstance(self.template, str | None):
            raise DiffscopeError(f"the template is a sentence with {{city}} and {{number}}, and not {self.template!r}")
        if self.weights not in tuple(BY):
            raise DiffscopeError(f"heads are not weighted by {self.weights!r}; choose {', '.join(BY)}")

    def prompts_for(self, scope: Scope) -> list[Prompt]:
        """Return the prompts in the tokens of a model."""
        if self.own:
            return require_answers(encode_prompts(scope.tokenizer, self.own))[: self.prompts]
        if self.needles < 2:
            raise DiffscopeError("a prompt with one needle has no distractors; give two needles or more")
        task = Retrieval(scope.tokenizer, held_out=True, template=self.template or template_of(scope.model))
        return draw(task, self.prompts, self.length, self.needles, self.seed)

    def other_prompts_for(self, scope: Scope, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Return other prompts of the same kind with their answers, as long as the longest of `prompts`: token ids."""
        if self.own:
            return []  # there are no others of their kind, and the mean map is not defined
        drawn = replace(self, seed=self.seed + 1).prompts_for(scope)
        longest = max(len(with_answer(prompt)) for prompt in prompts)
        return [ids for ids in map(with_answer, drawn) if len(ids) == longest]
