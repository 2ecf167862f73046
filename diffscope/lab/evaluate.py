"""Scores of a model on the retrieval task: does it answer, and where does it look when it does?"""

from __future__ import annotations

import numpy as np
import torch

from diffscope.tasks.retrieval import Prompt, Retrieval

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


def draw(task: Retrieval, count: int, length: int, needles: int, seed: int) -> list[Prompt]:
    """`count` prompts, their queried needles at depths 0, ¼, ½, ¾ and 1 in turn."""
    rng = np.random.default_rng(seed)
    return [task.prompt(length, needles, rng, depth=DEPTHS[index % len(DEPTHS)]) for index in range(count)]


@torch.no_grad()
def exact_answers(model, prompts: list[Prompt], rows: int = 32) -> np.ndarray:
    """Which prompts a model answers exactly, bool (prompt,).

    An answer counts when every token of it is the model's first choice, which is when greedy decoding gives it.
    """
    right, device = [], model.get_input_embeddings().weight.device
    for start in range(0, len(prompts), rows):
        some = prompts[start : start + rows]
        ids = torch.tensor([prompt.ids + prompt.answer[:-1] for prompt in some], device=device)
        answers = torch.tensor([prompt.answer for prompt in some], device=device)
        chosen = model(ids, use_cache=False, logits_to_keep=answers.shape[1]).logits.argmax(-1)
        right.append((chosen == answers).all(1).cpu().numpy())
    return np.concatenate(right)
