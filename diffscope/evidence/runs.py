"""Take the evidence of a run with checkpoints, and store it beside the model."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.evidence.ablations import answers, replacement_losses, with_answer
from diffscope.evidence.heads import HEADS, weighted
from diffscope.evidence.last_query import LastQuery, last_query_of, layers_in_batches, read
from diffscope.evidence.noise import injection
from diffscope.evidence.quantities import OF_LAST_QUERY, lambda_fit, named, noise_sweep, parts_of_maps, share_when
from diffscope.evidence.run_file import EVIDENCE, EVIDENCE_FORMAT, defined
from diffscope.evidence.take import PARTS
from diffscope.evidence.untrained import untrained_like
from diffscope.instruments.map_parts import anatomy
from diffscope.lab.training.cohort import Cohort
from diffscope.lab.training.initialisation import tokenizer_for
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.run import last_step, revision
from diffscope.models.folders import checkpoints_as_trained
from diffscope.scope import Scope, load
from diffscope.storage.statistics import save_statistics
from diffscope.tasks.log_odds import logits_of
from diffscope.tasks.prompt import Prompt
from diffscope.tasks.recall import Recall
from diffscope.tasks.retrieval import TEMPLATE, Retrieval
from diffscope.tasks.sampling import controlled
from diffscope.tasks.scoring import text_losses

FIRST_SEED = 60_000  # prompts of no other purpose have these seeds
LENGTH = 256
DISTRACTORS = (8, 24)
PROMPTS = 20
FEW = 5  # prompts of what takes long: one at each depth
TEXTS = 16
UNTRAINED = 4  # models of random weights
CELL = ("step", "distractors")


def take_run(folder: str | Path, template: str = TEMPLATE, seed: int = 0) -> xr.Dataset:
    """Take the evidence of a run at each of its checkpoints and at its end, on prompts that belong to the run's seed.

    Parameters
    ----------
    folder : path
        Of a finished run: the model, with its checkpoints beside it.
    template : str
        The needle sentence that it was trained on.
    seed : int
        Of the training. The prompts of a seed are the same for all arms, and other than those of other seeds.

    Returns
    -------
    Dataset
        All float32, means over prompts; NaN if something is not defined, or not taken at that step. Attributes say how it was
        made. Quantities and outcomes have the names of :mod:`diffscope.evidence.take`, along a dimension of their own:

        - ``value`` (quantity, step, distractors, layer, head), and ``end_value`` (end_quantity, distractors, layer, head) with
          its standard error over prompts ``end_error``, of what is taken at the end alone;
        - ``outcome`` (measure, step, distractors): of whole models, the answers' ``loss``, ``log_odds`` and ``right`` among them;
        - ``weight`` (step, distractors, layer, head): A1's mass on the answer;
        - ``null`` (quantity, untrained, step, distractors): of models of random weights that are made like it at each
          checkpoint, mean over heads weighted by A1's mass;
          ``null_by_layer`` (…, layer): mean over the heads of each layer;
        - ``lam``, ``lambda_star`` (step, distractors, layer), ``lam_init`` (layer).
    """
    folder = Path(folder)
    names = _checkpoint_names(folder)
    last = load(folder)
    cells, several = _prompts(Retrieval(last.tokenizer, held_out=True, template=template), seed)
    *before, _ = names.values()
    rows = [_of_model(load(name), cells, several, final=False) for name in before]
    rows.append(_of_model(last, cells, several, final=True))
    null = [_null(last, FIRST_SEED + seed * UNTRAINED + index, cells, rows) for index in range(UNTRAINED)]
    return _assembled(rows, list(names), null).assign_attrs(
        format=EVIDENCE_FORMAT,
        revision=revision(),
        settings=json.dumps(
            {"seed": seed, "template": template, "length": LENGTH, "prompts": PROMPTS, "few": FEW, "untrained": UNTRAINED}
        ),
        model=last.family.name,
        differential=int(rows[-1][DISTRACTORS[0]].last_query.differential),
        extras=rows[-1][DISTRACTORS[0]].last_query.extras,
    )


def store_run(folder: str | Path, template: str = TEMPLATE, seed: int = 0, *, arm: str = "") -> Path:
    """Write the evidence of a run, of an arm if it is one of a cohort, beside its model, and return the file."""
    path = Path(folder) / EVIDENCE
    with torch.random.fork_rng(devices=[]):
        evidence = take_run(folder, template, seed)
    save_statistics(evidence.assign_attrs({"arm": arm} if arm else {}), path, dated=False)
    return path


def store_cohort_run(folder: Path, recipe: Recipe, seed: int) -> Path:
    """Store the evidence of a finished run of a cohort, on prompts of the sentence that it is scored with."""
    return store_run(folder, _template(recipe), seed, arm=folder.parent.name)


def check_cohort(cohort: Cohort) -> None:
    """Draw the prompts of the evidence of a cohort, so that those that its models cannot read are known before the training.

    Raises DiffscopeError if a prompt with its answer is longer than a model has positions, and PromptError if a prompt cannot be
    drawn.
    """
    tokenizer = tokenizer_for(cohort.recipe)
    task = Retrieval(tokenizer, held_out=True, template=_template(cohort.recipe))
    by_count = chain.from_iterable(_prompts(task, seed) for seed in cohort.seeds or cohort.recipe.seeds)
    drawn = chain.from_iterable(prompts for cells in by_count for prompts in cells.values())
    longest = max(len(with_answer(prompt)) for prompt in drawn)
    for arm in cohort.arms or cohort.recipe.arms:
        positions = cohort.recipe.config(arm, len(tokenizer)).max_position_embeddings
        if longest > positions:
            raise DiffscopeError(
                f"arm {arm!r} has {positions} positions, and evidence is taken on prompts of {longest} tokens; give it more "
                "(max_position_embeddings), or set keep_weights, with which no evidence is taken"
            )


def _template(recipe: Recipe) -> str:
    return TEMPLATE if recipe.grid is None else recipe.grid.template


def _prompts(task: Retrieval, seed: int) -> tuple[dict[int, list[Prompt]], dict[int, list[Prompt]]]:
    """Draw the prompts of the evidence of a run, with one question and with two, by their number of distractors."""
    cells = {count: controlled(task, PROMPTS, LENGTH, count, (FIRST_SEED, seed), slots=max(DISTRACTORS)) for count in DISTRACTORS}
    several = {
        count: [
            task.prompt(LENGTH, count + 1, np.random.default_rng([FIRST_SEED, seed, count, index]), questions=2)
            for index in range(PROMPTS)
        ]
        for count in DISTRACTORS
    }
    return cells, several


@dataclass(frozen=True)
class _Taken:
    """What was taken of one model on the prompts of one cell."""

    last_query: LastQuery
    values: Mapping[str, np.ndarray]  # by LABEL.NAME, (prompt, layer, head)
    ends: Mapping[str, np.ndarray]  # the same, of what is taken at the end alone
    outcomes: Mapping[str, np.ndarray]  # (prompt,)


def _checkpoint_names(folder: Path) -> dict[int, str]:
    """Return the checkpoints of a run and at the end its final model, as they are loaded, by step."""
    names = {step: f"{folder}@{step}" for step in sorted(checkpoints_as_trained(folder))}
    last = last_step(folder)
    if last is None:
        last = max(names, default=-1) + 1
    return {**{step: name for step, name in names.items() if step < last}, last: str(folder)}


def _of_model(
    scope: Scope, cells: Mapping[int, Sequence[Prompt]], several: Mapping[int, Sequence[Prompt]], final: bool
) -> dict[int, _Taken]:
    """Take what is taken of one model, by cell."""
    losses = text_losses(logits_of(scope.model), Recall(scope.tokenizer), LENGTH, texts=TEXTS)
    text = {f"text_{token}": np.array([loss]) for token, loss in losses.items()}
    return {count: _of_cell(scope, prompts, several[count], text, final) for count, prompts in cells.items()}


def _of_cell(
    scope: Scope, prompts: Sequence[Prompt], several: Sequence[Prompt], text: Mapping[str, np.ndarray], final: bool
) -> _Taken:
    last_query = read(scope, prompts)
    answered = answers(scope, prompts)
    values = named(OF_LAST_QUERY, last_query) | named([share_when], last_query, answered.right)
    values |= PARTS["flows"].take(scope, prompts[:FEW])
    if last_query.differential:
        few = prompts if final else prompts[:FEW]
        values |= PARTS["noise"].take(scope, few) | PARTS["branches"].take(scope, few)
    outcomes = {**answered._asdict(), **named([lambda_fit], last_query)}
    ends: dict[str, xr.DataArray] = {}
    if final:
        ends, more = _at_end(scope, prompts, several)
        outcomes |= more
    rows = {name: np.asarray(of) for name, of in outcomes.items()}
    return _Taken(last_query, _of_heads(values), _of_heads(ends), rows | text)


def _at_end(
    scope: Scope, prompts: Sequence[Prompt], several: Sequence[Prompt]
) -> tuple[dict[str, xr.DataArray], dict[str, xr.DataArray | np.ndarray]]:
    """Take what is taken at the end alone, because it takes long: quantities (prompt, layer, head) and outcomes (prompt,).

    `prompts` are ten or more, of which the first ones and others are used; `several` have two questions each.
    """
    few, others = prompts[:FEW], prompts[FEW : 2 * FEW]
    answered = answers(scope, several)
    outcomes = PARTS["noise_losses"].take(scope, few)
    outcomes |= {"two_questions_right": answered.right, "two_questions_loss": answered.loss}
    values = PARTS["knock_out"].take(scope, few)
    captured = scope.capture([prompt.ids for prompt in few])
    if not captured.differential:
        return values, outcomes
    values |= PARTS["a2_out"].take(scope, few) | PARTS["previous"].take(scope, prompts) | PARTS["ranks"].take(scope, few)
    values |= named([noise_sweep], injection(scope, few))
    values |= named([parts_of_maps], anatomy(captured, scope.capture([prompt.ids for prompt in others])))
    outcomes |= PARTS["signs"].take(scope, few) | PARTS["blind"].take(scope, few)
    outcomes |= dict(replacement_losses(scope, few, [with_answer(prompt) for prompt in others]).data_vars)
    of_layers = {name: values.pop(name) for name in list(values) if "head" not in values[name].dims}
    return values, outcomes | of_layers


def _of_heads(values: Mapping[str, xr.DataArray]) -> dict[str, np.ndarray]:
    """Return those that have a value, (prompt, layer, head)."""
    return {name: array.transpose("prompt", *HEADS).values for name, array in defined(values).items()}


def _null(
    scope: Scope, seed: int, cells: Mapping[int, Sequence[Prompt]], rows: Sequence[Mapping[int, _Taken]]
) -> dict[tuple[int, int], dict[str, np.ndarray]]:
    """Return means over heads of an untrained model made like each checkpoint, by number of the checkpoint and cell.

    Each array is of all heads, weighted by A1's mass on the answer, and then of the heads of each layer alike: (1 + layer,).
    """
    model = Scope(untrained_like(scope.model, seed), scope.tokenizer, "untrained", scope.family)
    table: dict[tuple[int, int], dict[str, np.ndarray]] = {}
    for count, prompts in cells.items():
        batches = layers_in_batches(model, prompts)
        matches = [row[count].last_query.matches for row in rows]
        read = [last_query_of(batches, prompts, match) for match in matches]
        weights = read[-1].answering  # the heads that answer at the end are followed
        few = prompts[:FEW]
        for number, (last_query, match) in enumerate(zip(read, matches)):
            values = named(OF_LAST_QUERY, last_query) | PARTS["flows"].take(model, few, match)
            if last_query.differential and number == len(matches) - 1:  # of trained models, too, they are judged at the end alone
                values |= PARTS["noise"].take(model, few, match) | PARTS["branches"].take(model, few, match)
            table[number, count] = {name: _means_over_heads(array, weights) for name, array in values.items()}
    return table


def _means_over_heads(array: xr.DataArray, weights: xr.DataArray) -> np.ndarray:
    """Return the means over prompts of the weighted mean over heads, and of each layer's mean over heads: (1 + layer,)."""
    whole = weighted(array, weights, HEADS).mean()
    return np.append(whole, weighted(array, None, ["head"]).mean("prompt"))


def _assembled(rows: Sequence[Mapping[int, _Taken]], labels: Sequence[int], null: Sequence[dict]) -> xr.Dataset:
    """Return what was taken as one dataset of float32."""
    counts = list(rows[-1])
    taken = [row[count] for row in rows for count in counts]
    shape = (len(rows), len(counts))
    names, value, _ = _means([of.values for of in taken], shape)
    ends, end_value, end_error = _means([of.ends for of in taken[-len(counts) :]], shape[1:])
    measures, outcome, _ = _means([of.outcomes for of in taken], shape)
    layers = taken[0].last_query.layers.sizes["layer"]
    nulls = np.full((len(names), len(null), *shape, 1 + layers), np.nan, np.float32)
    for model, table in enumerate(null):
        for (step, count), means in table.items():
            for name in set(names) & set(means):
                nulls[names.index(name), model, step, counts.index(count)] = means[name]

    def by_layer(name: str) -> np.ndarray:
        return np.stack([of.last_query.layers[name].values for of in taken]).reshape(*shape, -1).astype(np.float32)

    weight = np.stack([of.last_query.answering.transpose(*HEADS).values for of in taken]).astype(np.float32)
    by_head = (*CELL, *HEADS)
    return xr.Dataset(
        {
            "value": (("quantity", *by_head), value),
            "end_value": (("end_quantity", *by_head[1:]), end_value),
            "end_error": (("end_quantity", *by_head[1:]), end_error),
            "weight": (by_head, weight.reshape(*shape, *weight.shape[1:])),
            "null": (("quantity", "untrained", *CELL), nulls[..., 0]),
            "null_by_layer": (("quantity", "untrained", *CELL, "layer"), nulls[..., 1:]),
            "outcome": (("measure", *CELL), outcome),
            "lam": ((*CELL, "layer"), by_layer("lam")),
            "lambda_star": ((*CELL, "layer"), by_layer("lambda_star")),
            "lam_init": ("layer", by_layer("lam_init")[-1, -1]),
        },
        {"quantity": names, "end_quantity": ends, "measure": measures, "step": list(labels), "distractors": counts},
    )


def _means(tables: Sequence[Mapping[str, np.ndarray]], places: tuple[int, ...]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return means over prompts of what several tables hold, each (prompt, …), and their standard errors.

    Returns
    -------
    list of str
        Names.
    ndarray (name, *places, …)
        Means, NaN if a table lacks a name.
    ndarray (name, *places, …)
        Their standard errors.
    """
    names = list(dict.fromkeys(name for table in tables for name in table))
    of_one = next((table[name].shape[1:] for table in tables for name in table), ())
    values, errors = (np.full((len(names), len(tables), *of_one), np.nan, np.float32) for _ in range(2))
    for index, table in enumerate(tables):
        for name, array in table.items():
            values[names.index(name), index], errors[names.index(name), index] = _mean(array)
    shape = (len(names), *places, *of_one)
    return names, values.reshape(shape), errors.reshape(shape)


def _mean(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over prompts (the first axis) of what is finite, and its standard error."""
    values = np.where(np.isfinite(values), values, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # what has no value is NaN
        count = np.isfinite(values).sum(0)
        return np.nanmean(values, 0), np.nanstd(values, 0, ddof=1) / np.sqrt(count)
