"""Score a model on a grid of prompts: every length with every number of distractors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from torch import nn

from diffscope.lab.training.stages import Rule
from diffscope.tasks.log_odds import against_numbers, logits_of
from diffscope.tasks.lookups import GRADES, Seed, seeds_of
from diffscope.tasks.prompt import Prompt
from diffscope.tasks.retrieval import TEMPLATE, Retrieval
from diffscope.tasks.sampling import DEPTHS, controlled, graded
from diffscope.tasks.scoring import answers
from diffscope.tasks.template import check_template

Judge = Callable[[nn.Module, list[Prompt]], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Grid:
    """The prompts that a model is scored on: every length with every number of distractors, at five depths in turn."""

    lengths: tuple[int, ...]
    distractors: tuple[int, ...]  # sentences beside the queried one
    prompts: int
    template: str = TEMPLATE
    without: tuple[tuple[int, int], ...] = ()  # (length, distractors) of cells whose sentences do not fit

    def rules(self) -> Iterator[Rule]:
        check_template(self.template)
        yield (
            f"lengths = {self.lengths} and distractors = {self.distractors} have to hold a number each",
            bool(self.lengths and self.distractors),
        )
        yield f"distractors = {self.distractors} have to be 0 or more", min(self.distractors) >= 0
        yield f"prompts = {self.prompts} has to be 1 or more", self.prompts >= 1
        yield (
            f"without = {self.without} leaves a length without a cell",
            all(any((length, distractors) not in self.without for distractors in self.distractors) for length in self.lengths),
        )

    def slots(self, length: int) -> int:
        """Return the largest number of distractors used at a length, for which its prompts have room."""
        return max(distractors for of_length, distractors in self.cells if of_length == length)

    @property
    def cells(self) -> list[tuple[int, int]]:
        """(length, distractors) of every cell of the grid."""
        cells = ((length, distractors) for length in self.lengths for distractors in self.distractors)
        return [cell for cell in cells if cell not in self.without]


@dataclass(frozen=True)
class PlainText:
    """The held-out text that a model is scored on."""

    length: int  # tokens of a text, the first one included
    texts: int

    def rules(self) -> Iterator[Rule]:
        yield f"length = {self.length} and texts = {self.texts} have to be 2 or more", min(self.length, self.texts) >= 2


def mixture(grid: Grid, task: Retrieval, seed: Seed = 20_000) -> list[Prompt]:
    """Draw the prompts that a training is scored on along the way, from all cells of the grid and all depths in turn."""
    task = task.with_template(grid.template)
    cells = grid.cells
    places = [(*cells[index % len(cells)], DEPTHS[index // len(cells) % len(DEPTHS)]) for index in range(grid.prompts)]
    return [
        task.controlled(length, distractors, [*seeds_of(seed), index], slots=grid.slots(length), depth=depth)
        for index, (length, distractors, depth) in enumerate(places)
    ]


def on_grid(
    model,
    task: Retrieval,
    grid: Grid,
    seed: Seed = 30_000,
    judge: Judge | None = None,
    prompts: Callable[..., list[Prompt]] = controlled,
    **kind,
) -> xr.Dataset:
    """Score a model in every cell of a grid.

    Parameters
    ----------
    judge : callable, optional
        ``judge(model, prompts)`` gives values by name, one a prompt; by default :func:`exactness`.
    prompts : callable
        Draws the prompts of a cell: :func:`diffscope.tasks.sampling.controlled` or ``graded``.
    kind
        Further arguments of that function.

    Returns
    -------
    xarray.Dataset (length, distractors, prompt)
        NaN in cells that the grid leaves out.
    """
    task = task.with_template(grid.template)
    judge = judge or exactness
    coords = {"length": list(grid.lengths), "distractors": list(grid.distractors)}
    shape = (len(grid.lengths), len(grid.distractors), grid.prompts)
    table: dict[str, np.ndarray] = {}
    for length, distractors in grid.cells:
        drawn = prompts(task, grid.prompts, length, distractors, seed, slots=grid.slots(length), **kind)
        cell = grid.lengths.index(length), grid.distractors.index(distractors)
        for name, values in judge(model, drawn).items():
            table.setdefault(name, np.full(shape, np.nan))[cell] = values
    return xr.Dataset({name: (("length", "distractors", "prompt"), values) for name, values in table.items()}, coords)


def unknown_by_evidence(model, task: Retrieval, grid: Grid, seed: Seed = 30_000) -> xr.Dataset:
    """Score how much a model prefers "unknown", by the evidence that the text gives for an answer, in nats.

    The share of exact answers "unknown" has a floor and a ceiling, log-odds have neither. So they tell whether a model prefers
    "unknown" more if a question has no answer, even of a model that never says it.

    Parameters
    ----------
    grid : Grid
        Each length needs room for three sentences more than its fullest cell has.

    Returns
    -------
    xarray.Dataset
        ``unknown`` (grade, length, distractors, prompt): log-odds of "unknown" against all numbers of the text together; every
        grade of a prompt states the same numbers. ``sensitivity`` (unanswerable, length, distractors, prompt): the log-odds in a
        grade without an answer minus those of the same prompt with its answer stated once. ``bias``, of the same shape: their
        mean, which is higher the more cautious a model is whatever the evidence.
    """

    def judge(model, prompts):
        unknown = [against_numbers(prompt, task.unknown) for prompt in prompts]
        return {"unknown": answers(logits_of(model), unknown).log_odds}

    parts = [on_grid(model, task, grid, seed, judge, graded, grade=grade) for grade in GRADES]
    table = xr.concat(parts, xr.DataArray(list(GRADES), dims="grade", name="grade"))
    stated = table["unknown"].sel(grade="stated", drop=True)
    without = table["unknown"].sel(grade=[grade for grade, times in GRADES.items() if not times]).rename(grade="unanswerable")
    return table.assign(sensitivity=without - stated, bias=(without + stated) / 2)


def exactness(model, prompts: Sequence[Prompt]) -> dict[str, np.ndarray]:
    """Return ``exact_match`` and ``log_odds`` of a model's answers; see :class:`diffscope.tasks.scoring.Answers`."""
    answered = answers(logits_of(model), prompts)
    return {"exact_match": answered.right, "log_odds": answered.log_odds}
