"""Scores of a model on the retrieval task: does it answer, and where does it look when it does?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import xarray as xr
from scipy.stats import binomtest

from diffscope.errors import PromptError
from diffscope.lab.training.recipe import Grid
from diffscope.scope import Scope
from diffscope.tasks.recall import Recall
from diffscope.tasks.retrieval import Prompt, Retrieval

Judge = Callable[[torch.nn.Module, list[Prompt]], np.ndarray]
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


def draw(task: Retrieval, count: int, length: int, needles: int, seed: int) -> list[Prompt]:
    """`count` prompts, their queried needles at depths 0, ¼, ½, ¾ and 1 in turn."""
    rng = np.random.default_rng(seed)
    return [task.prompt(length, needles, rng, depth=DEPTHS[index % len(DEPTHS)]) for index in range(count)]


def controlled(task: Retrieval, count: int, length: int, distractors: int, seed: int, **kind) -> list[Prompt]:
    """The same with length and distractors set apart; `kind` goes to :meth:`~diffscope.tasks.Retrieval.controlled`.

    Prompt i of a seed has the same city, number, depth and distractors at every length and distractors.
    """
    return [task.controlled(length, distractors, [seed, i], depth=DEPTHS[i % len(DEPTHS)], **kind) for i in range(count)]


def mixture(grid: Grid, task: Retrieval, seed: int = 20_000) -> list[Prompt]:
    """The prompts at which a training is scored along the way: all cells of the grid in turn, and all depths in each."""
    task, cells = task.with_template(grid.template), grid.cells
    places = [(*cells[index % len(cells)], DEPTHS[index // len(cells) % len(DEPTHS)]) for index in range(grid.prompts)]
    return [
        task.controlled(length, distractors, [seed, index], slots=grid.slots, depth=depth)
        for index, (length, distractors, depth) in enumerate(places)
    ]


def on_grid(model, task: Retrieval, grid: Grid, seed: int = 30_000, judge: Judge | None = None, **kind) -> xr.DataArray:
    """Exact answers in every cell of a grid, bool (length, distractors, prompt), or what another judge says of each prompt."""
    task, judge = task.with_template(grid.template), judge or exact_answers
    drawn = (controlled(task, grid.prompts, *cell, seed, slots=grid.slots, **kind) for cell in grid.cells)
    shape = (len(grid.lengths), len(grid.distractors), grid.prompts)
    coords = {"length": list(grid.lengths), "distractors": list(grid.distractors)}
    judged = np.reshape([judge(model, prompts) for prompts in drawn], shape)
    return xr.DataArray(judged, dims=("length", "distractors", "prompt"), coords=coords)


@torch.no_grad()
def text_losses(model, recall: Recall, length: int, seed: int = 40_000, texts: int = 64, tokens: int = 8192) -> dict[str, float]:
    """Loss on plain text, in nats a token, on tokens that the text gives away (``hit``) and on all ``other`` ones.

    Means over the tokens of `texts` texts of `length` tokens; NaN where there are no such tokens. As many texts run at once as
    `tokens` hold.
    """
    ids, hits = recall.rows(texts, length, np.random.default_rng(seed))
    device, each = model.get_input_embeddings().weight.device, []
    for some in torch.from_numpy(ids).split(max(1, tokens // length)):
        some = some.to(device)
        logits = model(some, use_cache=False).logits[:, :-1].float()
        each.append(torch.nn.functional.cross_entropy(logits.transpose(1, 2), some[:, 1:], reduction="none").cpu())
    loss, hit = torch.cat(each).double(), torch.from_numpy(hits[:, 1:])
    return {"hit": float(loss[hit].mean()), "other": float(loss[~hit].mean())}


@torch.no_grad()
def exact_answers(model, prompts: list[Prompt], tokens: int = 8192) -> np.ndarray:
    """Which prompts a model answers exactly, bool (prompt,).

    An answer counts when every token of it is the model's first choice, which is when greedy decoding gives it. Prompts of one
    shape run together, as many as `tokens` hold.
    """
    right, device = np.zeros(len(prompts), dtype=bool), model.get_input_embeddings().weight.device
    shapes: dict[tuple[int, int], list[int]] = {}
    for index, prompt in enumerate(prompts):
        shapes.setdefault((len(prompt.ids), len(prompt.answer)), []).append(index)
    for (length, width), found in shapes.items():
        for some in np.array_split(found, min(len(found), -(-len(found) * length // tokens))):
            ids = torch.tensor([prompts[i].ids + prompts[i].answer[:-1] for i in some], device=device)
            answers = torch.tensor([prompts[i].answer for i in some], device=device)
            chosen = model(ids, use_cache=False, logits_to_keep=width).logits.argmax(-1)
            right[some] = (chosen == answers).all(1).cpu().numpy()
    return right


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


def check_spread(prompts: int) -> None:
    """Raise PromptError where so many prompts are not the same number, two at least, at each depth."""
    if prompts < 2 * len(DEPTHS) or prompts % len(DEPTHS):
        raise PromptError(f"{prompts} prompts do not spread over {len(DEPTHS)} depths; give 10, 15, 20 or more by fives")


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
    check_spread(len(prompts))
    each = len(prompts) // len(DEPTHS)
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
