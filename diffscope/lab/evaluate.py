"""Scores of a model on the retrieval task: does it answer, and where does it look when it does?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import xarray as xr
from scipy.stats import binomtest

from diffscope.errors import PromptError
from diffscope.scope import Scope
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


def score(right: np.ndarray) -> dict:
    """Share of exact answers with its 95 % interval (Wilson), overall and by depth; `right` as :func:`draw` orders it."""
    interval = binomtest(int(right.sum()), len(right)).proportion_ci(method="wilson")
    by_depth = {str(depth): float(right[index :: len(DEPTHS)].mean()) for index, depth in enumerate(DEPTHS)}
    return {
        "retrieval": float(right.mean()),
        "interval": [float(interval.low), float(interval.high)],
        "by_depth": by_depth,
        "prompts": len(right),
    }


def span_by_depth(scope: Scope, prompts: list[Prompt], progress: Callable[[int, int], None] | None = None) -> xr.Dataset:
    """Where the last query, the one that answers, looks: the form of the Differential Transformer's Table 3.

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
        then layers, and its ``standard_error`` over prompts: (depth, map, span, normalisation). Where a layer has no value
        (``signed`` with λ near 1), neither has the mean.

    Raises
    ------
    PromptError
        Not the same number, two at least, of prompts a depth.
    """
    each = len(prompts) // len(DEPTHS)
    if each < 2 or each * len(DEPTHS) != len(prompts):
        raise PromptError(f"{len(prompts)} prompts do not spread over {len(DEPTHS)} depths; give 10, 15, 20 or more by fives")
    measured = []
    for index, prompt in enumerate(prompts):
        spans = {name: prompt.spans[name] for name in ("answer", "needles", "query")}
        masses = scope.capture(prompt.ids, spans=spans).measure(["span_mass"], queries=[len(prompt.ids) - 1])
        measured.append(masses["span_mass"].isel(query=0, drop=True))
        if progress:
            progress(index + 1, len(prompts))
    at = xr.DataArray([DEPTHS[index % len(DEPTHS)] for index in range(len(prompts))], dims="prompt", name="depth")
    masses = xr.concat(measured, "prompt").assign_coords(depth=at)
    overall = masses.mean("head", skipna=False).mean("layer", skipna=False).groupby("depth")
    mass, mean = masses.groupby("depth").mean("prompt", skipna=False), overall.mean("prompt", skipna=False)
    error = overall.std("prompt", ddof=1, skipna=False) / np.sqrt(each)
    attrs = {"averaged_over": f"{each} prompts a depth, the last query of each", "model": scope.name}
    return xr.Dataset({"mass": mass, "mean": mean, "standard_error": error}, attrs=attrs)
