"""Score a model on prompts and text: the loss, exactness and log-odds of its answers, and the loss of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from diffscope.errors import PromptError
from diffscope.tasks.log_odds import Logits, first_token_odds, first_tokens_distinct, log_odds
from diffscope.tasks.lookups import Seed
from diffscope.tasks.prompt import Prompt
from diffscope.tasks.recall import Recall

TOKENS = 8192  # that run together
LOGITS = 2**25  # that are held in float64 at once


class Answers(NamedTuple):
    """How well a model predicts the answers of prompts.

    Attributes
    ----------
    loss : ndarray (prompt,)
        Cross-entropy of the answer's tokens in nats, mean over them. If a prompt asks several questions, only the tokens of their
        numbers count.
    right : ndarray of bool (prompt,)
        Whether each of these tokens is the first choice, so that greedy decoding gives the answer. Each of several questions is
        judged as if those before it had been answered rightly, and one wrong answer makes the prompt wrong.
    log_odds : ndarray (prompt,)
        Log-odds of the (first) answer against all distractors, in nats; see :func:`diffscope.tasks.log_odds.log_odds`. 0 means as
        likely as all of them together. NaN for a prompt without distractors.
    rank : ndarray of int (prompt,)
        Of the answer's first token among all tokens, from 1.
    against_rest : ndarray (prompt,)
        Log-odds of the answer's tokens, those that `loss` counts, against all else that may come, in nats; NaN for a prompt with
        distractors.
    """

    loss: np.ndarray
    right: np.ndarray
    log_odds: np.ndarray
    rank: np.ndarray
    against_rest: np.ndarray


def batches(
    prompts: Sequence[Prompt], tokens: int | None = None, answer_tokens: int | None = None
) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Group prompts with equally many tokens, and equally many in their answers, into batches of about equal size.

    Parameters
    ----------
    tokens : int, optional
        About how many prompt tokens may run together; by default any number.
    answer_tokens : int, optional
        About how many answer tokens may run together; by default any number.

    Yields
    ------
    ndarray of int (prompt,)
        Which of all prompts they are.
    Tensor (prompt, token)
        Each prompt with all of its answer but the last token, which nothing follows.
    Tensor (prompt, width)
        The tokens that are to be predicted.
    """
    shapes: dict[tuple[int, int], list[int]] = {}
    for index, prompt in enumerate(prompts):
        shapes.setdefault((len(prompt.ids), len(prompt.answer)), []).append(index)
    for (length, width), members in shapes.items():
        limits = ((length, tokens), (width, answer_tokens))
        parts = max([1, *(-(-len(members) * size // most) for size, most in limits if most is not None)])
        for some in np.array_split(members, min(len(members), parts)):
            ids = torch.tensor([[*prompts[i].ids, *prompts[i].answer[:-1]] for i in some])
            yield some, ids, torch.tensor([prompts[i].answer for i in some])


@torch.no_grad()
def answers(logits: Logits, prompts: Sequence[Prompt], tokens: int | None = TOKENS, answer_tokens: int | None = None) -> Answers:
    """Score the answers that a model gives to prompts.

    Parameters
    ----------
    logits : callable
        :meth:`diffscope.Scope.logits`, or that of :func:`diffscope.tasks.log_odds.logits_of` for a module.
    tokens, answer_tokens : int or None
        About how many tokens of prompts and of answers run together; None for any number.
    """
    count = len(prompts)
    loss, odds, against_rest = np.full((3, count), np.nan)
    scored = Answers(loss, np.zeros(count, bool), odds, np.zeros(count, np.int64), against_rest)
    for members, ids, answer in batches(prompts, tokens, answer_tokens):
        scores = logits(ids, answer.shape[1])  # (prompt, width, vocabulary)
        size = max(1, LOGITS // scores[0].numel())
        for start in range(0, len(members), size):
            some = slice(start, start + size)
            _score(scored, prompts, members[some], scores[some].double(), answer[some])
    longer = [index for index, prompt in enumerate(prompts) if not first_tokens_distinct(prompt)]
    scored.log_odds[longer] = log_odds(logits, [prompts[index] for index in longer], tokens)
    return scored


def _score(scored: Answers, prompts: Sequence[Prompt], members: np.ndarray, scores: Tensor, answer: Tensor) -> None:
    """Put the scores of some prompts in their places, from logits (prompt, width, vocabulary) and answers (prompt, width)."""
    wanted = answer.to(scores.device)  # (prompt, width)
    judged = np.zeros(answer.shape, dtype=bool)  # tokens of numbers; those between two numbers are given
    for row, index in enumerate(members):
        judged[row, list(chain.from_iterable(prompts[index].numbers))] = True
    losses = F.cross_entropy(scores.transpose(1, 2), wanted, reduction="none").cpu().numpy()  # (prompt, width)
    scored.loss[members] = losses.mean(1, where=judged)
    scored.right[members] = ((scores.argmax(-1) == wanted).cpu().numpy() | ~judged).all(1)
    free = [row for row, index in enumerate(members) if not prompts[index].distractors]
    if free:  # it takes a copy of their logits
        odds = _odds_against_rest(scores[free], wanted[free], torch.from_numpy(judged[free]).to(wanted.device))
        scored.against_rest[members[free]] = odds.cpu().numpy()
    first = scores[:, 0].cpu()  # (prompt, vocabulary)
    scored.rank[members] = 1 + (first > first.gather(-1, answer[:, :1])).sum(-1).numpy()
    scored.log_odds[members] = [first_token_odds(row, prompts[i]) for row, i in zip(first, members)]


def _odds_against_rest(scores: Tensor, wanted: Tensor, judged: Tensor) -> Tensor:
    """Return the log-odds of the judged tokens of answers against all else, (prompt,), from what :func:`_score` takes.

    They are exact also where p rounds to 1: 1 − p is the sum, over the tokens, of p of those before times 1 − p of the token.
    """
    total, at = scores.logsumexp(-1), wanted.unsqueeze(-1)
    others = scores.scatter(-1, at, -torch.inf).logsumexp(-1) - total  # log(1 − p) of each token, (prompt, width)
    log_p = (scores.gather(-1, at).squeeze(-1) - total).where(judged, 0.0)
    before = F.pad(log_p.cumsum(1)[:, :-1], (1, 0))
    return log_p.sum(1) - (before + others).where(judged, -torch.inf).logsumexp(1)


@torch.no_grad()
def losses(logits: Logits, ids: np.ndarray, tokens: int = TOKENS) -> Tensor:
    """Return the loss of every token of texts but the first, in nats.

    Raises PromptError if the texts have fewer than two tokens.

    Parameters
    ----------
    ids : ndarray of int (text, token)
    tokens : int
        The most that run together, unless one text has more.

    Returns
    -------
    Tensor of float64 (text, token − 1)
    """
    length = ids.shape[1]
    if length < 2:
        raise PromptError("a loss needs a text of at least two tokens; give a longer one")
    parts = []
    for batch in torch.from_numpy(ids).split(max(1, tokens // length)):
        scores = logits(batch, length)[:, :-1].float()  # (text, token − 1, vocabulary)
        wanted = batch[:, 1:].to(scores.device)
        parts.append(F.cross_entropy(scores.transpose(1, 2), wanted, reduction="none").cpu())
    return torch.cat(parts).double()


def prompt_losses(logits: Logits, prompts: Sequence[Prompt]) -> np.ndarray:
    """Return the mean loss of the tokens of each prompt in nats, (prompt,)."""
    means = np.full(len(prompts), np.nan)
    lengths: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        lengths.setdefault(len(prompt.ids), []).append(index)
    for members in lengths.values():
        means[members] = losses(logits, np.array([prompts[index].ids for index in members])).mean(1)
    return means


def text_losses(logits: Logits, recall: Recall, length: int, seed: Seed = 40_000, texts: int = 64) -> dict[str, float]:
    """Return the mean loss on plain text in nats a token, of tokens that the text gives away (``hit``) and of all ``other`` ones.

    Parameters
    ----------
    recall : Recall
        Draws the texts and says which tokens complete an n-gram that stands earlier in the text.
    length, texts : int
        Tokens of a text, and how many texts.

    Returns
    -------
    dict of str to float
        NaN if there is no such token.
    """
    ids, hits = recall.rows(texts, length, np.random.default_rng(seed))  # (text, token)
    loss = losses(logits, ids)
    hit = torch.from_numpy(hits[:, 1:])
    return {"hit": float(loss[hit].mean()), "other": float(loss[~hit].mean())}
