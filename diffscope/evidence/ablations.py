"""What is lost when a simpler map stands in for the second one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diffscope import edits
from diffscope.errors import PromptError
from diffscope.evidence.answers import answers
from diffscope.scope import Scope
from diffscope.tasks.prompt import Prompt

LOW_RANKS = (1, 5)  # at most what was reported: "effective rank of only 2–5"


def rises(scope: Scope, prompts: Sequence[Prompt], others: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """By how much each stand-in for A2 raises the loss of every answer, (prompt,) in nats.

    Parameters
    ----------
    scope : Scope
    prompts : sequence of Prompt
    others : sequence of token ids
        Other prompts with their answers, whose mean map, and whose mean by distance, are two of the stand-ins.
    """
    before = answers(scope, prompts).loss
    stand_ins = {f"low_{rank}": edits.low_rank_a2(rank, normalise=True) for rank in LOW_RANKS}
    stand_ins |= {"uniform": edits.uniform_a2(), "zero": edits.zero_a2()}
    table = {name: answers(scope, prompts, edit).loss - before for name, edit in stand_ins.items()}
    for name, of_others in (("mean", edits.mean_a2), ("distance", edits.positional_a2)):
        try:
            table[name] = answers(scope, prompts, of_others(scope, others)).loss - before
        except PromptError:  # prompts of several lengths have no mean map, and there may be no others
            table[name] = np.full(len(before), np.nan)
    return table
