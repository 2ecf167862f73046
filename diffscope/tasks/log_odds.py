"""Log-odds of the right number against the others in the text: neither floor nor ceiling, whatever tokens numbers are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy.special import logsumexp

from diffscope.errors import PromptError
from diffscope.tasks.retrieval import Prompt

Logits = Callable[[torch.Tensor, int], torch.Tensor]
Context = tuple[int, tuple[int, ...]]  # which prompt, and the tokens that follow it


@torch.no_grad()
def log_odds(logits: Logits, prompts: Sequence[Prompt], device, tokens: int | None = None) -> np.ndarray:
    """Log-odds of the right number against the numbers of all distractors together, in nats, (prompt,).

    Of each number as many tokens count as tell it from all others: log p of these, given those before them, is its score, and
    the log-odds are the right number's score minus the log of the sum of the others' exp(score). Where all first tokens differ
    this is the logit of the answer's first token minus logsumexp of the distractors' first tokens. 0: the right number is as
    likely as all others together; −log n, n of them: as likely as each. Of several questions it is that of the first.

    Parameters
    ----------
    logits, device
        ``logits(ids, width)`` of ids (prompt, token) gives the logits (prompt, width, vocabulary) of the last `width` tokens; the
        ids are on `device`.
    prompts : sequence of Prompt
        NaN for those without an answer or without ``distractors``.
    tokens : int
        The most that run together; by default any number.

    Raises
    ------
    PromptError
        A distractor is the answer.
    """
    branches = [_branches(prompt) for prompt in prompts]
    # What has to be run: a prompt, and as much of a number as others begin with too; then the log p of the tokens after it.
    following: dict[Context, set[int]] = {}
    for index, candidates in enumerate(branches):
        for candidate in candidates:
            for end, token in enumerate(candidate):
                following.setdefault((index, candidate[:end]), set()).add(token)
    known = _log_p(logits, prompts, following, device, tokens)
    values = np.full(len(prompts), np.nan)
    for index, candidates in enumerate(branches):
        if candidates:
            scores = [sum(known[index, branch[: end + 1]] for end in range(len(branch))) for branch in candidates]
            values[index] = scores[0] - logsumexp(scores[1:])
    return values


def against_numbers(prompt: Prompt, answer: Sequence[int]) -> Prompt:
    """The prompt with another answer, such as "unknown", which has all numbers of the text as its distractors."""
    stated = [prompt.answer] if prompt.spans["answer"] else []
    return replace(prompt, answer=list(answer), distractors=[*stated, *prompt.distractors], judged=[])


def _log_p(
    logits: Logits, prompts: Sequence[Prompt], following: Mapping[Context, set[int]], device, tokens: int | None
) -> dict[Context, float]:
    """log p of each token that follows a prompt and what is begun after it."""
    known: dict[Context, float] = {}
    lengths: dict[int, list[Context]] = {}
    for index, begun in following:
        lengths.setdefault(len(prompts[index].ids) + len(begun), []).append((index, begun))
    for length, contexts in lengths.items():
        size = len(contexts) if tokens is None else max(1, tokens // length)
        for first in range(0, len(contexts), size):
            batch = contexts[first : first + size]
            ids = torch.tensor([[*prompts[index].ids, *begun] for index, begun in batch], device=device)
            log_p = logits(ids, 1)[:, -1].double().log_softmax(-1)  # (context, vocabulary)
            for row, (index, begun) in zip(log_p, batch):
                for token in following[index, begun]:
                    known[index, (*begun, token)] = float(row[token])
    return known


def _branches(prompt: Prompt) -> list[tuple[int, ...]]:
    """Of the right number and of each distractor's the first tokens, as many as no other begins with; none without either."""
    right = tuple(prompt.answer[at] for at in prompt.numbers[0])
    if not right or not prompt.distractors:
        return []
    candidates = [right, *map(tuple, prompt.distractors)]
    if right in candidates[1:]:
        raise PromptError("a distractor has the right answer's own number; name other texts as distractors")
    candidates = list(dict.fromkeys(candidates))
    return [_branch(candidate, candidates) for candidate in candidates]


def _branch(candidate: tuple[int, ...], candidates: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """As many of its tokens as no other begins with, or all."""
    for end in range(1, len(candidate)):
        if sum(other[:end] == candidate[:end] for other in candidates) == 1:
            return candidate[:end]
    return candidate


def told_by_first(prompt: Prompt) -> bool:
    """Whether its first token tells each number of a prompt from all others."""
    return all(len(branch) == 1 for branch in _branches(prompt))


def first_token_odds(scores: torch.Tensor, prompt: Prompt) -> float:
    """What :func:`log_odds` comes to where first tokens tell; `scores` are the logits (vocabulary,) of that token."""
    branches = _branches(prompt)
    if not branches:
        return np.nan
    right, *others = (branch[0] for branch in branches)
    return float(scores[right] - scores[others].logsumexp(0))
