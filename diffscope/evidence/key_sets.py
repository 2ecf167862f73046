"""Key sets of a prompt that the answer is compared with: places of its size in the text, numbers of the other sentences."""

from __future__ import annotations

import numpy as np
import torch

from diffscope.errors import PromptError
from diffscope.prompts.encoded import Encoded
from diffscope.tasks.prompt import Prompt

SIZED = 8  # spans of the answer's length that it is compared with
FEWEST = 3
NEARBY = 0.25  # how far from the answer's depth they may lie, as a fraction of the prompt, if there are enough
SETS = ("answer", "needles", "context", "irrelevant", "sink", "first_four")
KeySets = dict[str, torch.Tensor]  # by name, bool (key,)


def as_spans(prompt: Prompt) -> dict[str, tuple[int, ...]]:
    """Return the spans of a prompt as a capture has them."""
    return {"sink": (0,)} | {name: tuple(positions) for name, positions in prompt.spans.items() if positions}


def key_sets(prompt: Prompt) -> KeySets:
    """Return the sets that statistics are taken on, each bool (key,); ``needles`` is empty where there are none."""
    length = len(prompt.ids)
    sets = Encoded(None, tuple(prompt.ids), ("",) * length, ((0, 0),) * length, as_spans(prompt)).key_sets()
    sets["first_four"] = torch.arange(min(4, length))
    nothing = torch.zeros(0, dtype=torch.int64)
    return {name: torch.isin(torch.arange(length), sets.get(name, nothing)) for name in SETS}


def sized_spans(prompt: Prompt, rng: np.random.Generator) -> dict[str, list[int]]:
    """Draw the size control: spans of the answer's length in text beside all sentences and the question, near the answer's depth.

    Raises PromptError if there are too few such places.

    Returns
    -------
    dict of str to list of int
        ``control_0``, ``control_1``, …: token positions.
    """
    width = len(prompt.spans["answer"])
    start = prompt.spans["answer"][0]
    taken = np.zeros(len(prompt.ids), dtype=bool)
    for positions in prompt.spans.values():
        taken[list(positions)] = True
    taken[:4] = True  # the first tokens draw attention of their own
    taken[max(0, start - len(prompt.spans["query"])) : start] = True  # the queried city, which stands before its number
    free = np.flatnonzero(np.convolve(taken, np.ones(width), "valid") == 0)
    if len(free) < FEWEST:
        raise PromptError(
            f"the text beside the sentences has no {FEWEST} places of {width} tokens to compare the answer with; use longer "
            f"prompts"
        )
    distance = np.abs(free - start)
    near = free[distance <= NEARBY * len(prompt.ids)]
    if len(near) < SIZED:  # among many sentences there is little text
        near = free[np.argsort(distance, kind="stable")[:SIZED]]
    starts = rng.choice(near, min(SIZED, len(near)), replace=False)
    return {f"control_{number}": list(range(first, first + width)) for number, first in enumerate(starts)}


def number_spans(prompt: Prompt) -> list[list[int]]:
    """Return the kind control: where the numbers of the other sentences stand, in this order; none where one is lacking."""
    left = sorted(prompt.spans.get("needles", ()))
    spans = []
    for number in prompt.distractors:
        starts = (i for i in range(len(left)) if [prompt.ids[at] for at in left[i : i + len(number)]] == list(number))
        start = next(starts, None)
        spans.append([] if start is None else left[start : start + len(number)])
        left = left if start is None else left[start + len(number) :]
    return spans
