"""What the answering query of retrieval prompts does in one model, with the controls of SCIENCE.md §4 measured beside it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import xarray as xr

from diffscope.attention.layer import LayerAttention
from diffscope.capture import Capture
from diffscope.errors import DiffscopeWarning, PromptError
from diffscope.scope import Scope
from diffscope.tasks.retrieval import Prompt

BATCH = 10  # prompts that run together
SIZED = 8  # spans of the answer's length that it is compared with
NEARBY = 0.25  # how far from the answer's depth they may lie, as a fraction of the prompt
BRANCHES = ("rho", "cosine", "js", "lambda_star")
ROWS = ("gini", "entropy_normalised", "hoyer", "pseudo_norm")


@dataclass(frozen=True)
class Reading:
    """Statistics of the last query of each prompt.

    Attributes
    ----------
    own : Dataset (prompt, layer, head, …)
        Of each head; key sets ``answer``, ``needles``, ``query``, ``context``, ``irrelevant``, ``sink``.
    sized : Dataset (prompt, layer, head)
        Of a differential model: the branch statistics on spans of the answer's length among the context, at its depth; means.
    paired : Dataset (prompt, layer, head, span)
        The branch statistics with the second map of the other heads of the layer in place of a head's own; means over these.
    spreads : list of Tensor (map,), one a layer
        Standard deviation over keys of the last query's scores, mean over prompts.
    """

    own: xr.Dataset
    sized: xr.Dataset | None
    paired: xr.Dataset | None
    spreads: list[torch.Tensor]


def read(
    scope: Scope,
    prompts: Sequence[Prompt],
    spreads: Sequence[torch.Tensor] | None = None,
    progress: Callable[[int, int], None] | None = None,
    seed: int = 0,
) -> Reading:
    """Measure the last query of every prompt, batch by batch; with `spreads`, as if its scores were as far apart as those say.

    So maps of random weights, which are nearly uniform, become as sharp as those that they are to be compared with.

    Returns
    -------
    Reading
        ``paired`` is NaN where a layer has a single head.
    """
    parts = []
    for first in range(0, len(prompts), BATCH):
        some = prompts[first : first + BATCH]
        parts.append(_of_batch(scope, some, spreads, seed + first))
        if progress:
            progress(min(first + BATCH, len(prompts)), len(prompts))
    *tables, found = zip(*parts)
    joined = [xr.concat(table, "prompt") if table[0] is not None else None for table in tables]
    return Reading(*joined, spreads=[torch.stack(layer).mean(0) for layer in zip(*found)])


def _of_batch(scope: Scope, prompts: Sequence[Prompt], spreads: Sequence[torch.Tensor] | None, seed: int):
    controls = [sized_spans(prompt, np.random.default_rng([seed, i])) for i, prompt in enumerate(prompts)]
    given = [
        {name: at for name, at in prompt.spans.items() if name != "sink" and at} | sized
        for prompt, sized in zip(prompts, controls)
    ]
    return of_capture(scope.capture([prompt.ids for prompt in prompts], given), spreads)


def of_capture(cap: Capture, spreads: Sequence[torch.Tensor] | None = None):
    """The tables of :class:`Reading` and the spreads, of a batch that has the spans ``control_…`` of :func:`sized_spans`."""
    if spreads is not None:
        cap = replace(cap, layers=[as_sharp(layer, wanted) for layer, wanted in zip(cap.layers, spreads, strict=True)])
    there, names = [spread(layer) for layer in cap.layers], [*ROWS, "span_mass", "sink_mass"]
    if not cap.differential:
        return _measure(cap, names), None, None, there
    own = _measure(cap, [*names, *BRANCHES, "selectivity", "lambda"])
    own["gain"] = _gain(cap)
    control = own["span"].str.startswith("control")
    sized = own[list(BRANCHES)].sel(span=control).mean("span")
    return own.sel(span=~control), sized, _paired(cap, own), there


def _gain(cap: Capture) -> xr.DataArray:
    """g of the last query, (prompt, layer, head); 1 but for gated models."""
    table = np.full((len(cap.prompts), cap.n_layers, cap.n_heads), np.nan)
    for at, layer in enumerate(cap.layers):
        table[:, at, : layer.n_heads] = layer.gain[..., -1].float().cpu().numpy()
    return xr.DataArray(table, dims=("prompt", "layer", "head"))


def spread(layer: LayerAttention) -> torch.Tensor:
    """Standard deviation over keys of the last query's scores, (map,), mean over prompts of one length."""
    keys = layer.k[:, layer.pairing.key_of_map]  # (batch, map, key, d)
    scores = (keys @ layer.q[:, :, -1, :, None])[..., 0] * layer.scale  # (batch, map, key)
    return scores.float().std(-1).mean(0)


def as_sharp(layer: LayerAttention, wanted: torch.Tensor) -> LayerAttention:
    """The layer with the scores of its maps as far apart at the last query as `wanted` (map,) says."""
    factor = wanted / spread(layer)
    return replace(layer, q=layer.q * factor[:, None, None].to(layer.q.dtype))


def _measure(cap: Capture, names: Sequence[str]) -> xr.Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiffscopeWarning)  # what is undefined is counted by the tests
        found = cap.measure(names, queries=[-1])
    return found.isel(query=0, drop=True)


def sized_spans(prompt: Prompt, rng: np.random.Generator) -> dict[str, list[int]]:
    """Spans of the answer's length in text that is neither answer, needle nor question, near the answer's depth."""
    width, taken = len(prompt.spans["answer"]), np.zeros(len(prompt.ids), dtype=bool)
    for at in prompt.spans.values():
        taken[list(at)] = True
    taken[:4] = True  # the first tokens draw attention of their own
    begins = prompt.spans["answer"][0] - len(prompt.spans["query"])
    taken[max(0, begins) : prompt.spans["answer"][0]] = True  # the queried city, which stands before its number
    free = np.flatnonzero(np.convolve(taken, np.ones(width), "valid") == 0)
    near = free[np.abs(free - prompt.spans["answer"][0]) <= NEARBY * len(prompt.ids)]
    if len(near) < SIZED:
        raise PromptError(
            f"the context near the answer has no {SIZED} places of {width} tokens to compare it with; use longer prompts"
        )
    return {f"control_{i}": list(range(at, at + width)) for i, at in enumerate(rng.choice(near, SIZED, replace=False))}


def _paired(cap: Capture, own: xr.Dataset) -> xr.Dataset:
    """The branch statistics with the second maps of a layer moved on by one head, by two, …: the mean over all moves."""
    heads = own.sizes["head"]
    if heads == 1:
        return xr.full_like(own[list(BRANCHES)], np.nan)
    moved = []
    for by in range(1, heads):
        found = _measure(replace(cap, layers=[_moved(layer, by) for layer in cap.layers]), BRANCHES)
        moved.append(found.where(_another(cap, by)))
    return xr.concat(moved, "by").mean("by")


def _moved(layer: LayerAttention, by: int) -> LayerAttention:
    if not layer.differential:
        return layer
    return replace(layer, pairing=replace(layer.pairing, a2=torch.roll(layer.pairing.a2, by)))


def _another(cap: Capture, by: int) -> xr.DataArray:
    """Which heads get another second map than their own: several may share one."""
    rows = [(torch.roll(layer.pairing.a2, by) != layer.pairing.a2).tolist() if layer.differential else [] for layer in cap.layers]
    table = np.zeros((len(rows), cap.n_heads), dtype=bool)
    for row, heads in zip(table, rows):
        row[: len(heads)] = heads
    return xr.DataArray(table, dims=("layer", "head"))
