"""Score a model on the retrieval task: how well it answers, and where it looks when it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from scipy.stats import binomtest
from torch.nn import functional as F

from diffscope.errors import PromptError
from diffscope.scope import Scope
from diffscope.stats.negative_mass import NEEDED, negative_mass
from diffscope.tasks.backcopy import Backcopy, CopyScores
from diffscope.tasks.log_odds import Logits, first_token_odds, log_odds, told_by_first
from diffscope.tasks.recall import Recall
from diffscope.tasks.retrieval import Prompt, Retrieval

Seed = int | Sequence[int]
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


class Answers(NamedTuple):
    """How well a model predicts the answers of prompts.

    Attributes
    ----------
    loss : ndarray (prompt,)
        Cross-entropy of the answer's tokens in nats, mean over them; of several questions over their numbers' tokens alone.
    right : ndarray of bool (prompt,)
        Whether every one of these tokens is the first choice. That is when greedy decoding gives the answer, of several questions
        all answers: each is judged as if those before it had been given, and one that is wrong makes the prompt wrong.
    log_odds : ndarray (prompt,)
        Of the (first) answer against all distractors, in nats, as :func:`diffscope.tasks.log_odds.log_odds` says: the logit of
        its first token minus log Σ exp of the logits of the first tokens of the distractors' numbers, where these differ.
        0 is as likely as all of them together; it has neither floor nor ceiling. NaN of a prompt without distractors.
    """

    loss: np.ndarray
    right: np.ndarray
    log_odds: np.ndarray


def seeds_of(seed: Seed) -> list[int]:
    """Return a seed as a list of numbers, to which more can be added."""
    return [seed] if isinstance(seed, int) else list(seed)


def draw(task: Retrieval, count: int, length: int, needles: int, seed: int, questions: int = 1) -> list[Prompt]:
    """`count` prompts, their (first) queried needles at depths 0, ¼, ½, ¾ and 1 in turn."""
    rng = np.random.default_rng(seed)
    return [task.prompt(length, needles, rng, DEPTHS[index % len(DEPTHS)], questions) for index in range(count)]


def controlled(task: Retrieval, count: int, length: int, distractors: int, seed: Seed, **kind) -> list[Prompt]:
    """`count` prompts with length and number of distractors set independently.

    `kind` goes to :meth:`~diffscope.tasks.Retrieval.controlled`. Prompt i of a seed has the same city, number and depth at every
    length and with any number of distractors, which are the first of the same ones.
    """
    seeds = seeds_of(seed)
    return [task.controlled(length, distractors, [*seeds, i], depth=DEPTHS[i % len(DEPTHS)], **kind) for i in range(count)]


def graded(task: Retrieval, count: int, length: int, distractors: int, seed: Seed, grade: str, slots: int = 8) -> list[Prompt]:
    """`count` prompts with evidence of one grade, paired by seed as those of :func:`controlled`; see :meth:`Retrieval.graded`."""
    seeds = [[*seeds_of(seed), i] for i in range(count)]
    return [
        task.graded(length, grade, each, distractors=distractors, slots=slots, depth=DEPTHS[i % len(DEPTHS)])
        for i, each in enumerate(seeds)
    ]


def text_losses(model, recall: Recall, length: int, seed: Seed = 40_000, texts: int = 64, tokens: int = 8192) -> dict[str, float]:
    """Loss on plain text, in nats a token, on tokens that the text gives away (``hit``) and on all ``other`` ones.

    Means over the tokens of `texts` texts of `length` tokens; NaN where there are no such tokens. As many texts run at once as
    fit into `tokens` tokens.
    """
    ids, hits = recall.rows(texts, length, np.random.default_rng(seed))  # (text, token)
    loss = losses_of_texts(model, ids, tokens)
    hit = torch.from_numpy(hits[:, 1:])
    return {"hit": float(loss[hit].mean()), "other": float(loss[~hit].mean())}


@torch.no_grad()
def losses_of_texts(model, ids: np.ndarray, tokens: int = 8192) -> torch.Tensor:
    """Loss in nats on every token of texts (text, token) but the first: (text, token − 1)."""
    device = model.get_input_embeddings().weight.device
    losses = []
    for batch in torch.from_numpy(ids).split(max(1, tokens // ids.shape[1])):
        batch = batch.to(device)
        logits = model(batch, use_cache=False).logits[:, :-1].float()
        losses.append(F.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none").cpu())
    return torch.cat(losses).double()


@torch.no_grad()
def answers(logits: Logits, prompts: Sequence[Prompt], device, tokens: int | None = None) -> Answers:
    """How well a model predicts the answers of prompts.

    Parameters
    ----------
    logits : callable
        ``logits(ids, width)`` of ids (prompt, token) gives the logits (prompt, width, vocabulary) of the last `width` tokens.
    prompts : sequence of Prompt
        Prompts with equally many tokens, and equally many in their answers, run together.
    device
        Of the ids.
    tokens : int, optional
        The most tokens that run together; by default any number.
    """
    answered = Answers(np.full(len(prompts), np.nan), np.zeros(len(prompts), dtype=bool), np.full(len(prompts), np.nan))
    shapes: dict[tuple[int, int], list[int]] = {}
    for index, prompt in enumerate(prompts):
        shapes.setdefault((len(prompt.ids), len(prompt.answer)), []).append(index)
    for (length, width), members in shapes.items():
        parts = 1 if tokens is None else min(len(members), -(-len(members) * length // tokens))
        for batch in np.array_split(members, parts):
            ids = torch.tensor([prompts[i].ids + prompts[i].answer[:-1] for i in batch], device=device)
            wanted = torch.tensor([prompts[i].answer for i in batch], device=device)  # (prompt, width)
            scores = logits(ids, width).float()
            asked = np.zeros((len(batch), width), dtype=bool)  # the numbers; what stands between them is given
            for row, index in enumerate(batch):
                asked[row, list(chain.from_iterable(prompts[index].numbers))] = True
            losses = F.cross_entropy(scores.transpose(1, 2), wanted, reduction="none").double().cpu().numpy()
            answered.loss[batch] = losses.mean(1, where=asked)
            answered.right[batch] = ((scores.argmax(-1) == wanted).cpu().numpy() | ~asked).all(1)
            answered.log_odds[batch] = [first_token_odds(row, prompts[i]) for row, i in zip(scores[:, 0].double().cpu(), batch)]
    longer = [index for index, prompt in enumerate(prompts) if not told_by_first(prompt)]
    answered.log_odds[longer] = log_odds(logits, [prompts[index] for index in longer], device, tokens)
    return answered


def model_answers(model, prompts: Sequence[Prompt], tokens: int = 8192) -> Answers:
    """How well a model predicts the answers of prompts; see :func:`answers`."""

    def logits(ids: torch.Tensor, width: int) -> torch.Tensor:
        return model(ids, use_cache=False, logits_to_keep=width).logits

    return answers(logits, prompts, model.get_input_embeddings().weight.device, tokens)


def exact_answers(model, prompts: Sequence[Prompt], tokens: int = 8192) -> np.ndarray:
    """Which prompts a model answers exactly, bool (prompt,); see :class:`Answers`."""
    return model_answers(model, prompts, tokens).right


def score(right: np.ndarray) -> dict:
    """Share of exact answers, overall with its 95 % interval (Wilson) and by depth, of prompts in the order of :func:`draw`."""
    interval = binomtest(int(right.sum()), len(right)).proportion_ci(method="wilson")
    by_depth = {str(depth): float(right[index :: len(DEPTHS)].mean()) for index, depth in enumerate(DEPTHS)}
    return {
        "retrieval": float(right.mean()),
        "interval": [float(interval.low), float(interval.high)],
        "by_depth": by_depth,
        "prompts": len(right),
    }


def check_spread(prompts: int) -> None:
    """Raise PromptError where a number of prompts cannot be equally many, and two at least, at each depth."""
    if prompts < 2 * len(DEPTHS) or prompts % len(DEPTHS):
        raise PromptError(f"{prompts} prompts do not spread over {len(DEPTHS)} depths; give 10, 15, 20 or more by fives")


def span_by_depth(scope: Scope, prompts: list[Prompt], progress: Callable[[int, int], None] | None = None) -> xr.Dataset:
    """Where the last query, the one that answers, looks, as in Table 3 of "Differential Transformer" (Ye et al., 2024).

    Parameters
    ----------
    scope : Scope
    prompts : list of Prompt
        As :func:`draw` orders them.
    progress : callable, optional
        Called with (prompts done, prompts in all).

    Returns
    -------
    xarray.Dataset
        ``mass`` (depth, layer, head, map, span, normalisation), mean over the prompts of a depth; ``mean`` of it over heads,
        then layers, and its ``standard_error`` over prompts: (depth, map, span, normalisation); ``negative`` (depth, map, span),
        what negative weights have of the mean share. Where a layer has no value (``signed`` with λ near 1), neither has the
        mean.

    Raises
    ------
    PromptError
        There are not equally many prompts at each depth, or fewer than two.
    """
    check_spread(len(prompts))
    count = len(prompts) // len(DEPTHS)
    rows, signs = [], []
    for index, prompt in enumerate(prompts):
        spans = {name: prompt.spans[name] for name in ("answer", "needles", "query")}
        measured = scope.capture(prompt.ids, spans=spans).measure(NEEDED, queries=[len(prompt.ids) - 1]).isel(query=0, drop=True)
        rows.append(measured["span_mass"])
        signs.append(negative_mass(measured))
        if progress:
            progress(index + 1, len(prompts))
    depths = xr.DataArray([DEPTHS[index % len(DEPTHS)] for index in range(len(prompts))], dims="prompt", name="depth")
    masses = xr.concat(rows, "prompt").assign_coords(depth=depths)
    overall = masses.mean("head", skipna=False).mean("layer", skipna=False).groupby("depth")
    negative = xr.concat(signs, "prompt").assign_coords(depth=depths).mean("head", skipna=False).mean("layer", skipna=False)
    table = {
        "mass": masses.groupby("depth").mean("prompt", skipna=False),
        "mean": overall.mean("prompt", skipna=False),
        "negative": negative.groupby("depth").mean("prompt", skipna=False),
        "standard_error": overall.std("prompt", ddof=1, skipna=False) / np.sqrt(count),
    }
    return xr.Dataset(table, attrs={"averaged_over": f"{count} prompts a depth, the last query of each", "model": scope.name})


def mass_by_queries(scope: Scope, prompts: Sequence[Prompt], queries: Sequence[str]) -> xr.DataArray:
    """The mass that queries of each name give to the spans of their prompts.

    Parameters
    ----------
    scope : Scope
    prompts : sequence of Prompt
        With the same spans, each of which holds tokens or is empty in all of them.
    queries : sequence of str
        Names of spans, such as ``dormant`` and ``triggers`` of :class:`~diffscope.tasks.Backcopy`.

    Returns
    -------
    xarray.DataArray (prompt, queries, layer, head, map, span, normalisation)
        Mean of ``span_mass`` over the queries of a name.
    """
    rows = []
    for prompt in prompts:
        capture = scope.capture(prompt.ids, spans={name: positions for name, positions in prompt.spans.items() if positions})
        measured = [capture.measure(["span_mass"], queries=name)["span_mass"].mean("query", skipna=False) for name in queries]
        rows.append(xr.concat(measured, xr.DataArray(list(queries), dims="queries", name="queries")))
    return xr.concat(rows, "prompt")


def copying(
    scope: Scope, task: Backcopy, length: int, sequences: int, looked_at: int, seed: int
) -> tuple[CopyScores, xr.DataArray]:
    """How well a model does the Bigram-Backcopy task, and how much of its attention the first token has.

    Parameters
    ----------
    scope : Scope
        Of a model of the task's tokenizer.
    task : Backcopy
    length, sequences : int
        Tokens of a sequence, and sequences that it is scored on.
    looked_at : int
        Sequences whose attention is measured.
    seed : int

    Returns
    -------
    CopyScores
    xarray.DataArray (queries, layer, head, map)
        The first token's share of the weights' sizes at dormant queries and at triggers, mean over them and over sequences.
    """
    scores = task.score(scope.model, sequences, length, np.random.default_rng(seed))
    rng = np.random.default_rng([seed, 1])
    prompts = [task.prompt(length, rng) for _ in range(looked_at)]
    masses = mass_by_queries(scope, prompts, ("dormant", "triggers"))
    return scores, masses.sel(span="sink", normalisation="share", drop=True).mean("prompt")
