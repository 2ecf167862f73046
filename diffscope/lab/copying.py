"""Measure a model of the Bigram-Backcopy task: how well it copies, and how much of its attention the first token has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from diffscope.scope import Scope
from diffscope.tasks.backcopy import Backcopy, CopyScores
from diffscope.tasks.prompt import Prompt


def mass_by_queries(scope: Scope, prompts: Sequence[Prompt], queries: Sequence[str]) -> xr.DataArray:
    """Measure the mass that groups of queries give to the spans of their prompts.

    Parameters
    ----------
    prompts : sequence of Prompt
        With the same spans, each of which holds tokens in all prompts or in none.
    queries : sequence of str
        Names of spans, such as ``dormant`` and ``triggers`` of :class:`diffscope.tasks.Backcopy`.

    Returns
    -------
    xarray.DataArray (prompt, queries, layer, head, map, span, normalisation)
        Mean of ``span_mass`` over the queries of each name.
    """
    rows = []
    for prompt in prompts:
        capture = scope.capture(prompt)
        measured = [capture.measure(["span_mass"], queries=name)["span_mass"].mean("query", skipna=False) for name in queries]
        rows.append(xr.concat(measured, xr.DataArray(list(queries), dims="queries", name="queries")))
    return xr.concat(rows, "prompt")


def copying(
    scope: Scope, task: Backcopy, length: int, sequences: int, measured: int, seed: int
) -> tuple[CopyScores, xr.DataArray]:
    """Score a model on the Bigram-Backcopy task, and measure its attention on the first token.

    Parameters
    ----------
    scope : Scope
        Of a model with the task's tokenizer.
    length, sequences : int
        Tokens of a sequence, and sequences that the model is scored on.
    measured : int
        Sequences whose attention is measured.

    Returns
    -------
    CopyScores
    xarray.DataArray (queries, layer, head, map)
        The first token's share of the weights' sizes at dormant queries and at triggers, mean over queries and sequences.
    """
    scores = task.score(scope.model, sequences, length, np.random.default_rng(seed))
    rng = np.random.default_rng([seed, 1])
    prompts = [task.prompt(length, rng) for _ in range(measured)]
    masses = mass_by_queries(scope, prompts, ("dormant", "triggers"))
    return scores, masses.sel(span="sink", normalisation="share", drop=True).mean("prompt")
