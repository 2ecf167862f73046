"""What the answer loses under edits: a simpler second map, keys that are hidden, coarse scores, single heads taken out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from diffscope import edits
from diffscope.edits import Edit
from diffscope.errors import PromptError
from diffscope.evidence.key_sets import sized_spans
from diffscope.scope import Scope
from diffscope.tasks import scoring
from diffscope.tasks.prompt import Prompt

LOW_RANKS = (1, 5)  # at most what was reported: "effective rank of only 2–5"
BITS = (8, 6, 4)


def answers(scope: Scope, prompts: Sequence[Prompt], *under: Edit) -> scoring.Answers:
    """Score the answers of a model under some edits; ``right`` is 1 or 0, so that means and differences can be taken."""
    with scope.edit(*under):
        answered = scoring.answers(scope.logits, prompts, tokens=None)
    return answered._replace(right=answered.right.astype(float))


def with_answer(prompt: Prompt) -> list[int]:
    """Return a prompt's tokens and those of its answer but the last, which nothing follows."""
    return [*prompt.ids, *prompt.answer[:-1]]


def replacement_losses(scope: Scope, prompts: Sequence[Prompt], others: Sequence[Sequence[int]]) -> xr.Dataset:
    """Measure how much each replacement of A2 raises the loss of the answer.

    Parameters
    ----------
    others : sequence of token ids
        Other prompts with their answers, whose mean map, and whose mean by distance, are two of the replacements.

    Returns
    -------
    Dataset (prompt,)
        In nats: ``low_1``, ``low_5``, ``uniform``, ``zero``, ``mean``, ``distance``. The last two are NaN without other prompts
        of the same length.
    """
    before = answers(scope, prompts).loss
    stand_ins = {f"low_{rank}": edits.low_rank_a2(rank, normalise=True) for rank in LOW_RANKS}
    stand_ins |= {"uniform": edits.uniform_a2(), "zero": edits.zero_a2()}
    losses = {name: answers(scope, prompts, edit).loss - before for name, edit in stand_ins.items()}
    for name, of_others in (("mean", edits.mean_a2), ("distance", edits.positional_a2)):
        try:
            losses[name] = answers(scope, prompts, of_others(scope.capture(ids) for ids in others)).loss - before
        except PromptError:  # prompts of several lengths have no mean map, and there may be no others
            losses[name] = np.full(len(before), np.nan)
    return xr.Dataset({name: ("prompt", values) for name, values in losses.items()})


def hidden_answer_losses(scope: Scope, prompts: Sequence[Prompt]) -> xr.Dataset:
    """Measure how much the loss rises if the queries that answer do not see the answer, above that of a span of its size.

    Returns
    -------
    Dataset
        In nats: ``together`` (prompt,), hidden in all layers; ``layers`` (prompt, layer), hidden in one layer.
    """
    rises = np.zeros((len(prompts), len(scope.layer_numbers) + 1))
    for index, prompt in enumerate(prompts):
        control = sized_spans(prompt, np.random.default_rng([0, index]))["control_0"]
        for place, layer in enumerate((*scope.layer_numbers, None)):
            rises[index, place] = _above_control(scope, prompt, control, layer)
    return xr.Dataset({"together": ("prompt", rises[:, -1]), "layers": (("prompt", "layer"), rises[:, :-1])})


def _above_control(scope: Scope, prompt: Prompt, control: list[int], layer: int | None) -> float:
    """Return the loss with the answer hidden minus that with the control span hidden, of one prompt, in nats."""
    queries = range(len(prompt.ids) - 1, len(prompt.ids) - 1 + len(prompt.answer))
    answer, size = (
        answers(scope, [prompt], edits.knock_out(keys, queries, layers=layer)).loss[0]
        for keys in (prompt.spans["answer"], control)
    )
    return answer - size


def quantisation_losses(scope: Scope, prompts: Sequence[Prompt]) -> xr.Dataset:
    """Count the exact answers that are lost if scores are quantised by their largest magnitude.

    Returns
    -------
    Dataset (prompt,)
        ``bits_8``, ``bits_6``, ``bits_4``: 1 if the answer is lost, −1 if it is gained.
    """
    before = answers(scope, prompts).right
    lost = {bits: before - answers(scope, prompts, edits.quantise_logits(bits)).right for bits in BITS}
    return xr.Dataset({f"bits_{bits}": ("prompt", values) for bits, values in lost.items()})


def exact_answers_without_heads(scope: Scope, prompts: Sequence[Prompt]) -> xr.Dataset:
    """Count the exact answers that are lost without one head.

    Returns
    -------
    Dataset (prompt,)
        ``mean_head``, mean over heads; ``worst_head``, without the head that loses most over these prompts.
    """
    layers = scope.capture(prompts[0].ids).layers
    places = [(layer.layer, head) for layer in layers for head in range(layer.n_heads)]
    before = answers(scope, prompts).right
    ablated = [edits.ablate_heads(layers=layer, heads=head) for layer, head in places]
    lost = np.stack([before - answers(scope, prompts, edit).right for edit in ablated])  # (head, prompt)
    return xr.Dataset({"mean_head": ("prompt", lost.mean(0)), "worst_head": ("prompt", lost[lost.mean(1).argmax()])})
