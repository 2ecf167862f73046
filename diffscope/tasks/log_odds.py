"""Log-odds of the right number against the others of the text.

Unlike the share of exact answers they have neither floor nor ceiling, and they do not depend on how a tokenizer splits numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy.special import logsumexp
from torch import nn

from diffscope.errors import PromptError
from diffscope.tasks.prompt import Prompt

Logits = Callable[[torch.Tensor, int], torch.Tensor]
Context = tuple[int, tuple[int, ...]]  # which prompt, and the tokens that follow it


def logits_of(model: nn.Module) -> Logits:
    """Return the function ``logits(ids, width)`` of a model that takes ``logits_to_keep``, as those of transformers do.

    It calls the model as it is, and returns the logits (prompt, width, vocabulary) of the last `width` tokens of ids (prompt,
    token). :meth:`diffscope.Scope.logits` is that function of a scope, under its edits.
    """
    device = model.get_input_embeddings().weight.device  # type: ignore[operator, union-attr]
    return lambda ids, width: model(ids.to(device), use_cache=False, logits_to_keep=width).logits


@torch.no_grad()
def log_odds(logits: Logits, prompts: Sequence[Prompt], tokens: int | None = None) -> np.ndarray:
    """Return the log-odds of the right number against the numbers of all distractors together, in nats, (prompt,).

    The score of a number is log p of its shortest prefix that no other number shares. The log-odds are the right number's score
    minus the logsumexp of the distractors' scores. If all first tokens differ, this is the logit of the answer's first token
    minus the logsumexp of the distractors' first tokens. 0 means that the right number is as likely as all n others together,
    −log n that it is as likely as each of them. If a prompt asks several questions, the first one counts.

    Raises PromptError if a distractor is the answer, or one of the two begins with the other.

    Parameters
    ----------
    logits : callable
        ``logits(ids, width)`` gives, for ids (prompt, token) on the CPU, the logits (prompt, width, vocabulary) of the last
        `width` tokens.
    prompts : sequence of Prompt
        Those without an answer or without ``distractors`` have NaN.
    tokens : int, optional
        The most that run together; by default any number.
    """
    branches = [_branches(prompt) for prompt in prompts]
    # The contexts to run: a prompt and a prefix that several numbers share. Their next tokens need a log p.
    following: dict[Context, set[int]] = {}
    for index, candidates in enumerate(branches):
        for candidate in candidates:
            for end, token in enumerate(candidate):
                following.setdefault((index, candidate[:end]), set()).add(token)
    known = _log_p(logits, prompts, following, tokens)
    values = np.full(len(prompts), np.nan)
    for index, candidates in enumerate(branches):
        if candidates:
            scores = [sum(known[index, branch[: end + 1]] for end in range(len(branch))) for branch in candidates]
            values[index] = scores[0] - logsumexp(scores[1:])
    return values


def against_numbers(prompt: Prompt, answer: Sequence[int]) -> Prompt:
    """Return the prompt with another answer, such as "unknown", and all numbers of the text as its distractors."""
    stated = [prompt.answer] if prompt.spans["answer"] else []
    return replace(prompt, answer=list(answer), distractors=[*stated, *prompt.distractors], judged=[])


def _log_p(
    logits: Logits, prompts: Sequence[Prompt], following: Mapping[Context, set[int]], tokens: int | None
) -> dict[Context, float]:
    """Return log p of each token in `following`, given a prompt and the tokens before it."""
    known: dict[Context, float] = {}
    lengths: dict[int, list[Context]] = {}
    for index, begun in following:
        lengths.setdefault(len(prompts[index].ids) + len(begun), []).append((index, begun))
    for length, contexts in lengths.items():
        size = len(contexts) if tokens is None else max(1, tokens // length)
        for first in range(0, len(contexts), size):
            batch = contexts[first : first + size]
            ids = torch.tensor([[*prompts[index].ids, *begun] for index, begun in batch])
            log_p = logits(ids, 1)[:, -1].double().log_softmax(-1)  # (context, vocabulary)
            for row, (index, begun) in zip(log_p, batch):
                for token in following[index, begun]:
                    known[index, (*begun, token)] = float(row[token])
    return known


def _branches(prompt: Prompt) -> list[tuple[int, ...]]:
    """Return the shortest distinct prefix of the right number, then of each distractor; none if either is missing."""
    right = tuple(prompt.answer[at] for at in prompt.numbers[0])
    if not right or not prompt.distractors:
        return []
    check_told_apart(prompt)
    candidates = [right, *rivals(prompt)]
    return [_branch(candidate, candidates) for candidate in candidates]


def rivals(prompt: Prompt) -> list[tuple[int, ...]]:
    """Return the distractors of a prompt that are different answers: each once, and none that begins with another."""
    others = list(dict.fromkeys(map(tuple, prompt.distractors)))
    # Whatever continues a distractor counts as that distractor already.
    return [other for other in others if not any(_continues(other, short) for short in others)]


def check_told_apart(prompt: Prompt) -> None:
    """Raise PromptError unless some token tells the right number of a prompt from each distractor."""
    right = tuple(prompt.answer[at] for at in prompt.numbers[0])
    others = list(map(tuple, prompt.distractors))
    of = f"prompt {prompt.city!r}: " if prompt.city else ""
    if right in others:
        raise PromptError(f"{of}a distractor has the right answer's own number; name other texts")
    if any(_continues(right, other) or _continues(other, right) for other in others):
        raise PromptError(
            f"{of}the right answer begins with a distractor, or a distractor with it, so that no token tells them apart; name "
            "other texts"
        )


def _continues(longer: tuple[int, ...], shorter: tuple[int, ...]) -> bool:
    """Return whether some tokens begin with others and go on."""
    return len(longer) > len(shorter) and longer[: len(shorter)] == shorter


def _branch(candidate: tuple[int, ...], candidates: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shortest prefix that no other candidate shares."""
    for end in range(1, len(candidate)):
        if sum(other[:end] == candidate[:end] for other in candidates) == 1:
            return candidate[:end]
    return candidate


def first_tokens_distinct(prompt: Prompt) -> bool:
    """Return whether the first token of each number of a prompt differs from those of all others."""
    return all(len(branch) == 1 for branch in _branches(prompt))


def first_token_odds(scores: torch.Tensor, prompt: Prompt) -> float:
    """Return the log-odds of a prompt whose numbers have distinct first tokens, from the logits (vocabulary,) of that token."""
    branches = _branches(prompt)
    if not branches:
        return np.nan
    right, *others = (branch[0] for branch in branches)
    return float(token_odds(scores, right, others))


def token_odds(scores: torch.Tensor, right: int, others: Sequence[int]) -> torch.Tensor:
    """Return the log-odds of one token against several others in nats, (...), from the logits (..., vocabulary) of a position."""
    return scores[..., right] - scores[..., list(others)].logsumexp(-1)
