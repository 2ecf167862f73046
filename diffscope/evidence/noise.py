"""What the heads that answer make of injected noise, and what it costs the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import xarray as xr

from diffscope.capture.capture import Capture
from diffscope.errors import PromptError
from diffscope.evidence.last_query import BATCH
from diffscope.evidence.untrained import Match, matched
from diffscope.instruments.injection import DRAWS, SIGMAS, cmrr_by_injection, log_odds_under_noise, with_a2_moved
from diffscope.scope import Scope
from diffscope.stats.ragged import stack_layers
from diffscope.tasks.prompt import Prompt

SPANS = ("irrelevant", "needles", "context", "answer")
SIGMA = 0.5  # standard deviation of the noise that tests ask about, in nats of the scores
RUNS = 4  # draws of noise in whole runs of the model, which take longer than rows of maps
SQUARES = ("change_common", "change_differential")


def injection(
    scope: Scope,
    prompts: Sequence[Prompt],
    match: Sequence[Match] | None = None,
    sigmas: Sequence[float] = SIGMAS,
    draws: int = DRAWS,
) -> xr.Dataset:
    """Measure CMRR by injection at the answering query, and the same with A2 of another head.

    Parameters
    ----------
    prompts : sequence of Prompt
        Each gets draws of its own, so that their spread holds that of the noise.
    match : sequence of Match, optional
        As of :func:`diffscope.evidence.last_query.read`.
    sigmas, draws
        As of :func:`diffscope.instruments.injection.cmrr_by_injection`.

    Returns
    -------
    Dataset (prompt, layer, head, sigma, span)
        ``cmrr_injected`` and ``cmrr_injected_paired``, in dB; ``change_common`` and ``change_differential``, and the same
        ``…_paired``, whose ratios are the former: of several heads or prompts take ratios of mean squares. Those that are paired
        are root mean squares over all other second maps of the layer; NaN where there is none.
    """
    tables = []
    for first in range(0, len(prompts), BATCH):
        batch = prompts[first : first + BATCH]
        spans = [{name: at for name, at in prompt.spans.items() if name != "sink" and at} for prompt in batch]
        cap = scope.capture([prompt.ids for prompt in batch], spans)
        if match is not None:
            cap = replace(cap, layers=[matched(*two) for two in zip(cap.layers, match, strict=True)])
        tables += [injection_of(each, sigmas, draws, (first + index) * draws) for index, each in enumerate(cap)]
    return xr.concat(tables, "prompt", join="outer", combine_attrs="drop_conflicts")


def injection_of(cap: Capture, sigmas: Sequence[float] = SIGMAS, draws: int = DRAWS, seed: int = 0) -> xr.Dataset:
    """Return the table of :func:`injection` of one prompt that was captured with its spans, (layer, head, sigma, span)."""
    spans = [name for name in SPANS if name in cap.key_sets]
    own = cmrr_by_injection(cap, spans=spans, sigmas=sigmas, draws=draws, seed=seed, ceiling=False)
    squares = []
    heads = max((layer.n_heads for layer in cap.layers if layer.differential), default=1)
    for by in range(1, heads):
        moved = with_a2_moved(cap, by) if _several_second_maps(cap) else cap
        changed = cmrr_by_injection(moved, spans=spans, sigmas=sigmas, draws=draws, seed=seed, ceiling=False)
        squares.append(changed[list(SQUARES)].where(_another(cap, moved)) ** 2)
    paired = xr.full_like(own[list(SQUARES)], np.nan)
    if squares:
        paired = np.sqrt(xr.concat(squares, "by").mean("by"))
    paired["cmrr_injected"] = 20 * np.log10(paired["change_differential"] / paired["change_common"])
    return own[["cmrr_injected", *SQUARES]].assign({f"{name}_paired": values for name, values in paired.items()})


def _several_second_maps(cap: Capture) -> bool:
    return any(layer.differential and len(set(layer.pairing.of_branch(2).tolist())) > 1 for layer in cap.layers)


def _another(cap: Capture, moved: Capture) -> xr.DataArray:
    """Return which heads have another second map than in the capture as it was, bool (layer, head)."""
    others = []
    for before, after in zip(cap.layers, moved.layers):
        differ = torch.zeros(before.n_heads, dtype=torch.bool)
        if before.differential:
            differ = before.pairing.of_branch(2) != after.pairing.of_branch(2)
        others.append(differ.cpu().numpy())
    return xr.DataArray(stack_layers(others) == 1, dims=("layer", "head"))


def log_odds_lost(
    scope: Scope, prompts: Sequence[Prompt], sigmas: Sequence[float] = SIGMAS, draws: int = RUNS, span: str = "irrelevant"
) -> xr.Dataset:
    """Measure what noise costs the answer's log-odds against all distractors' first number tokens, in all layers at once.

    Raises PromptError if a prompt has no distractors, or none is left in any.

    Parameters
    ----------
    prompts : sequence of Prompt
        Each gets draws of its own. Distractors that begin with the answer's token are left out.
    sigmas, draws, span
        As of :func:`diffscope.instruments.injection.log_odds_under_noise`.

    Returns
    -------
    Dataset (prompt, sigma, mode)
        ``log_odds`` (prompt,) without noise, ``log_odds_lost`` and its standard error over draws, in nats. NaN of a prompt of
        which no distractor is left.
    """
    tables = {}
    for index, prompt in enumerate(prompts):
        if not prompt.distractors:
            raise PromptError("log-odds are of the answer against distractors, and a prompt has none; give two needles or more")
        spans = {name: at for name, at in prompt.spans.items() if name != "sink" and at}
        others = [number[0] for number in prompt.distractors if number[0] != prompt.answer[0]]
        if others:
            tables[index] = log_odds_under_noise(
                scope,
                prompt.ids,
                prompt.answer[0],
                others,
                span=span,
                spans=spans,
                sigmas=sigmas,
                draws=draws,
                seed=index * draws,
            )
    if not tables:
        raise PromptError("all distractors begin with the answer's own token; give prompts with more or other distractors")
    joined = xr.concat(tables.values(), "prompt", combine_attrs="drop_conflicts").assign_coords(prompt=list(tables))
    return joined.reindex(prompt=range(len(prompts))).drop_vars("prompt").transpose("prompt", "sigma", "mode")


def injected(scope: Scope, prompts: Sequence[Prompt], match: Sequence[Match] | None = None) -> xr.Dataset:
    """Return the table of :func:`injection` with one strength of noise."""
    return injection(scope, prompts, match, (SIGMA,))
