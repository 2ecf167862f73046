"""The evidence of one run: every statistic that tests read, along its checkpoints, in a file that needs no model any more."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.evidence.answers import answers
from diffscope.evidence.at_end import at_end
from diffscope.evidence.branches import attributed
from diffscope.evidence.flows import flows
from diffscope.evidence.heads import HEADS, weighted
from diffscope.evidence.last_query import BATCH, LastQuery, last_query_of
from diffscope.evidence.noise import injected
from diffscope.evidence.quantities import (
    FROM_ATTRIBUTION,
    FROM_FLOWS,
    FROM_INJECTION,
    FROM_LAST_QUERY,
    label_of,
    lambda_fit,
    share_when,
)
from diffscope.evidence.untrained import untrained_like
from diffscope.lab.training.run import METRICS, revision
from diffscope.models.loading import checkpoints
from diffscope.scope import Scope, load
from diffscope.scope.answering import logits_of
from diffscope.store import open_statistics, save_statistics
from diffscope.tasks.prompt import Prompt
from diffscope.tasks.recall import Recall
from diffscope.tasks.retrieval import TEMPLATE, Retrieval
from diffscope.tasks.sampling import controlled
from diffscope.tasks.scoring import text_losses

EVIDENCE = "evidence.nc"
#: Raised by one where what is taken of a run would come out otherwise, or be named otherwise, than in the files that there are.
EVIDENCE_FORMAT = 2
#: Formats that are read: what the first lacks, costs of A2, A1's mass on irrelevant tokens and untrained layers, was not kept.
READABLE = (1, 2)
SEEDED = re.compile(r"seed-\d+")  # the folder of a run of a cohort
FIRST_SEED = 60_000  # prompts of no other purpose have these seeds
LENGTH = 256
DISTRACTORS = (8, 24)
PROMPTS = 20
DEPTHS = 5  # prompts of what takes long: one at each depth
TEXTS = 16
UNTRAINED = 4
CELL = ("step", "distractors")
Progress = Callable[[int, int, str], None]


def evidence_of_run(
    folder: str | Path, template: str = TEMPLATE, seed: int = 0, *, untrained: int = UNTRAINED, progress: Progress | None = None
) -> xr.Dataset:
    """What tests read of a run, at each of its checkpoints and at its end, on prompts that belong to the run's seed.

    Parameters
    ----------
    folder : path
        Of a finished run: the model, with its checkpoints beside it.
    template : str
        The needle sentence that it was trained on.
    seed : int
        Of the training. The prompts of a seed are the same for all arms, and other than those of other seeds.
    untrained : int
        Models of random weights that are made like it at each checkpoint.
    progress : callable, optional
        Called with (done, total, words).

    Returns
    -------
    Dataset
        ``value`` and ``error`` (quantity, step, distractors, layer, head): mean over prompts and its standard error of every
        quantity of :mod:`diffscope.evidence.quantities`, named LABEL.NAME. ``weight`` (step, distractors, layer,
        head): A1's mass on the answer. ``end_value`` and ``end_error`` (end_quantity, distractors, layer, head): the same of what
        is taken at the end alone. ``null`` (quantity, untrained, step, distractors): of the untrained models, weighted mean
        over heads, and ``null_by_layer`` (…, layer): mean over the heads of each layer alike. ``lam``, ``lambda_star`` (step,
        distractors, layer), ``lam_init`` (layer,). ``outcome`` and ``outcome_error`` (measure, step, distractors): the answers'
        ``loss``, ``log_odds``, ``right``, the loss of text, and at the end what stand-ins for A2 cost, and to lose it in a layer.
        All float32; NaN where something is not defined, or not taken at that step. Attributes say how it was made.
    """
    folder = Path(folder)
    names = _names_of(folder)
    last = load(folder)
    task = Retrieval(last.tokenizer, held_out=True, template=template)
    cells = {count: controlled(task, PROMPTS, LENGTH, count, (FIRST_SEED, seed), slots=max(DISTRACTORS)) for count in DISTRACTORS}
    several = {
        count: [
            task.prompt(LENGTH, count + 1, np.random.default_rng([FIRST_SEED, seed, count, index]), questions=2)
            for index in range(PROMPTS)
        ]
        for count in DISTRACTORS
    }
    total = len(names) + untrained
    rows = []
    for done, (step, name) in enumerate(names.items()):
        if progress:
            progress(done, total, f"evidence of step {step}")
        final = done == len(names) - 1
        rows.append(_of_model(last if final else load(name), cells, several, final))
    null = []
    for index in range(untrained):
        if progress:
            progress(len(names) + index, total, f"untrained model {index + 1}")
        null.append(_untrained(last, FIRST_SEED + seed * untrained + index, cells, rows))
    dataset = _assembled(rows, list(names), null)
    return dataset.assign_attrs(
        format=EVIDENCE_FORMAT,
        revision=revision(),
        settings=json.dumps(
            {"seed": seed, "template": template, "length": LENGTH, "prompts": PROMPTS, "few": DEPTHS, "untrained": untrained}
        ),
        model=last.family.name,
        differential=int(rows[-1][DISTRACTORS[0]].last_query.differential),
        besides=rows[-1][DISTRACTORS[0]].last_query.besides,
    )


def keep_evidence(
    folder: str | Path, template: str = TEMPLATE, seed: int = 0, progress: Progress | None = None, *, arm: str = ""
) -> Path:
    """Write the evidence of a run, of an arm if it is one of a cohort, beside its model, and return the file."""
    path = Path(folder) / EVIDENCE
    with torch.random.fork_rng(devices=[]):
        evidence = evidence_of_run(folder, template, seed, progress=progress)
    save_statistics(evidence.assign_attrs({"arm": arm} if arm else {}), path, dated=False)
    return path


def outdated(folder: str | Path) -> list[str]:
    """The runs of a cohort, ``ARM/seed-N``, whose evidence is of a format that is not read here, or is missing."""
    names = []
    for run in sorted(
        path for path in Path(folder).glob("*/seed-*") if (path / "config.json").is_file() or (path / EVIDENCE).is_file()
    ):
        path = run / EVIDENCE
        if not path.is_file() or open_statistics(path).attrs.get("format") not in READABLE:
            names.append(f"{run.parent.name}/{run.name}")
    return names


def open_evidence(path: str | Path) -> xr.Dataset:
    """Open the evidence that :func:`keep_evidence` wrote.

    Raises
    ------
    DiffscopeError
        It is of another format, or of another run than the one of a cohort, ``ARM/seed-N``, in whose folder it lies.
    """
    path = Path(path)
    dataset = open_statistics(path)
    if (found := dataset.attrs.get("format")) not in READABLE:
        raise DiffscopeError(
            f"{path} has format {found} of evidence, and formats {', '.join(map(str, READABLE))} are read here; take it "
            "anew with: diffscope train RECIPE --out FOLDER --evidence"
        )
    folder = path.absolute().parent
    here = f"{folder.parent.name}/{folder.name}"
    of = f"{dataset.attrs.get('arm', folder.parent.name)}/seed-{json.loads(dataset.attrs['settings'])['seed']}"
    if SEEDED.fullmatch(folder.name) and of != here:
        raise DiffscopeError(
            f"{path} is the evidence of another run ({of}); put it into that run's folder, and take this run's "
            "with: diffscope train RECIPE --out FOLDER --evidence"
        )
    return dataset


@dataclass(frozen=True)
class _Taken:
    """What was taken of one model on the prompts of one cell."""

    last_query: LastQuery
    values: Mapping[str, np.ndarray]  # by LABEL.NAME, (prompt, layer, head)
    ends: Mapping[str, np.ndarray]  # the same, of what is taken at the end alone
    outcomes: Mapping[str, np.ndarray]  # (prompt,)


def _names_of(folder: Path) -> dict[int, str]:
    """The checkpoints of a run and at the end its final model, as they are loaded, by step."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # While top-k is annealed, a model has another k than the configuration says that its checkpoints are opened with.
    steps = [] if config.get("attention") == "top_k" else sorted(checkpoints(folder))
    names = {step: f"{folder}@{step}" for step in steps}
    metrics = folder / METRICS
    if metrics.is_file():
        last = int(json.loads(metrics.read_text(encoding="utf-8").splitlines()[-1])["step"])
    else:
        last = max(names, default=-1) + 1
    return {**{step: name for step, name in names.items() if step < last}, last: str(folder)}


def _of_model(
    scope: Scope, cells: Mapping[int, Sequence[Prompt]], several: Mapping[int, Sequence[Prompt]], final: bool
) -> dict[int, _Taken]:
    """What is taken of one model, by cell."""
    losses = text_losses(logits_of(scope.model), Recall(scope.tokenizer), LENGTH, texts=TEXTS)
    text = {f"text_{token}": np.array([loss]) for token, loss in losses.items()}
    return {count: _taken(scope, prompts, several[count], text, final) for count, prompts in cells.items()}


def _taken(
    scope: Scope, prompts: Sequence[Prompt], several: Sequence[Prompt], text: Mapping[str, np.ndarray], final: bool
) -> _Taken:
    last_query = last_query_of(_captured(scope, prompts), prompts)
    answered = answers(scope, prompts)
    values = _named(FROM_LAST_QUERY, last_query)
    values |= {f"{label_of(share_when)}.{name}": array for name, array in share_when(last_query, answered.right).items()}
    few = prompts if final else prompts[:DEPTHS]
    values |= _named(FROM_FLOWS if last_query.differential else FROM_FLOWS[:1], flows(scope, prompts[:DEPTHS]))
    if last_query.differential:
        values |= _named(FROM_INJECTION, injected(scope, few)) | _named(FROM_ATTRIBUTION, attributed(scope, few))
    fits = {name: array.values for name, array in _named((lambda_fit,), last_query).items()}
    outcomes = {**answered._asdict(), **fits, **text}
    ends: dict[str, xr.DataArray] = {}
    if final:
        ends, more = at_end(scope, prompts, several)
        outcomes |= more
    return _Taken(last_query, _defined(values), _defined(ends), outcomes)


def _defined(values: Mapping[str, xr.DataArray]) -> dict[str, np.ndarray]:
    """Those that have a value, (prompt, layer, head)."""
    return {name: array.transpose("prompt", *HEADS).values for name, array in values.items() if array.notnull().any()}


def _captured(scope: Scope, prompts: Sequence[Prompt]) -> list:
    starts = range(0, len(prompts), BATCH)
    return [scope.capture([prompt.ids for prompt in prompts[first : first + BATCH]]).layers for first in starts]


def _named(functions: Sequence[Callable], taken: LastQuery | xr.Dataset) -> dict[str, xr.DataArray]:
    return {f"{label_of(read)}.{name}": array for read in functions for name, array in read(taken).items()}


def _untrained(
    scope: Scope, seed: int, cells: Mapping[int, Sequence[Prompt]], rows: Sequence[Mapping[int, _Taken]]
) -> dict[tuple[int, int], dict[str, np.ndarray]]:
    """Means over heads of an untrained model made like each checkpoint, by number of the checkpoint and cell.

    Each array is of all heads, weighted by A1's mass on the answer, and then of the heads of each layer alike: (1 + layer,).
    """
    model = Scope(untrained_like(scope.model, seed), scope.tokenizer, "untrained", scope.family)
    table: dict[tuple[int, int], dict[str, np.ndarray]] = {}
    for count, prompts in cells.items():
        batches = _captured(model, prompts)
        matches = [row[count].last_query.matches for row in rows]
        read = [last_query_of(batches, prompts, match) for match in matches]
        weights = read[-1].answering  # the heads that answer at the end are followed
        few = prompts[:DEPTHS]
        for number, (last_query, match) in enumerate(zip(read, matches)):
            values = _named(FROM_LAST_QUERY, last_query)
            values |= _named(FROM_FLOWS if last_query.differential else FROM_FLOWS[:1], flows(model, few, match))
            if last_query.differential and number == len(matches) - 1:  # of trained models, too, they are judged at the end alone
                values |= _named(FROM_INJECTION, injected(model, few, match))
                values |= _named(FROM_ATTRIBUTION, attributed(model, few, match))
            table[number, count] = {name: _means_over_heads(array, weights) for name, array in values.items()}
    return table


def _means_over_heads(array: xr.DataArray, weights: xr.DataArray) -> np.ndarray:
    """Mean over prompts of the weighted mean over all heads, and of the mean over the heads of each layer: (1 + layer,)."""
    whole = weighted(array, weights, HEADS).mean()
    return np.append(whole, weighted(array, None, ["head"]).mean("prompt"))


def _assembled(rows: Sequence[Mapping[int, _Taken]], labels: Sequence[int], null: Sequence[dict]) -> xr.Dataset:
    """What was taken as one dataset of float32."""
    counts = list(rows[-1])
    taken = [row[count] for row in rows for count in counts]
    shape = (len(rows), len(counts))
    names, value, error = _means([of.values for of in taken], shape)
    ends, end_value, end_error = _means([of.ends for of in taken[-len(counts) :]], shape[1:])
    measures, outcome, outcome_error = _means([of.outcomes for of in taken], shape)
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
            "error": (("quantity", *by_head), error),
            "end_value": (("end_quantity", *by_head[1:]), end_value),
            "end_error": (("end_quantity", *by_head[1:]), end_error),
            "weight": (by_head, weight.reshape(*shape, *weight.shape[1:])),
            "null": (("quantity", "untrained", *CELL), nulls[..., 0]),
            "null_by_layer": (("quantity", "untrained", *CELL, "layer"), nulls[..., 1:]),
            "outcome": (("measure", *CELL), outcome),
            "outcome_error": (("measure", *CELL), outcome_error),
            "lam": ((*CELL, "layer"), by_layer("lam")),
            "lambda_star": ((*CELL, "layer"), by_layer("lambda_star")),
            "lam_init": ("layer", by_layer("lam_init")[-1, -1]),
        },
        {"quantity": names, "end_quantity": ends, "measure": measures, "step": list(labels), "distractors": counts},
    )


def _means(tables: Sequence[Mapping[str, np.ndarray]], places: tuple[int, ...]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Means over prompts of what several tables hold, each (prompt, …), and their standard errors.

    Returns
    -------
    list of str
        Names.
    ndarray (name, *places, …)
        Means, NaN where a table lacks a name.
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
    """Mean over prompts (the first axis) of what is finite, and its standard error."""
    values = np.where(np.isfinite(values), values, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # what has no value is NaN
        count = np.isfinite(values).sum(0)
        return np.nanmean(values, 0), np.nanstd(values, 0, ddof=1) / np.sqrt(count)
