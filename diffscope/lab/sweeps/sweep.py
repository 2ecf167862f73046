"""Models × checkpoints × prompts × statistics: measured in shards that survive anything, joined in one labelled Dataset."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import xarray as xr
from torch import nn

from diffscope.errors import DiffscopeError, DiffscopeWarning, PromptError
from diffscope.lab.jobs.job import alone, remove, unfinished
from diffscope.lab.jobs.ray_cluster import OnRay
from diffscope.lab.jobs.shards import Outcome, Progress, Rank, own_gpu, result, run, telling_full_disk
from diffscope.lab.sweeps.combine import Part, assemble
from diffscope.lab.sweeps.plan import LAST, Piece, Plan, rows_of
from diffscope.lab.sweeps.prompt_sets import Given, restored
from diffscope.models.loading import load_tokenizer, locate, move
from diffscope.scope import Scope, load
from diffscope.stats.sampling import average
from diffscope.store import open_statistics, save_statistics, statistics_format

SHARD = ".nc"  # one small file
FACTS = ("family", "attention", "dtype", "warnings")
KEY_SETS = ("sink", "context", "irrelevant")  # those of every prompt
AVERAGED = "queries ({}), of those rows that have a finite value"
_opened: dict[tuple, Scope] = {}  # the one model that this process holds


@dataclass(frozen=True)
class Swept:
    """What came of a sweep.

    Attributes
    ----------
    pieces : list of Piece
    outcome : Outcome
    dataset : Path or None
        Where everything is together; None as long as shards are waiting, or if none was done.
    """

    pieces: list[Piece]
    outcome: Outcome
    dataset: Path | None = None

    @property
    def failures(self) -> list[tuple[Piece, str]]:
        """What failed, and why."""
        return [(piece, self.outcome.failed[piece.shard.id]) for piece in self.pieces if piece.shard.id in self.outcome.failed]


def sweep(
    plan: Plan,
    out: str | os.PathLike,
    where=None,
    *,
    rank: Rank | None = None,
    device: str = "cpu",
    suffix: str = ".zarr",
    changed: bool = False,
    progress: Progress | None = None,
) -> Swept:
    """Measure what is not measured yet and, when nothing is waiting any more, join it.

    Parameters
    ----------
    plan : Plan
    out : path
        A folder for this plan alone; it gets ``dataset.zarr``.
    where, rank, progress
        As of :func:`diffscope.lab.jobs.shards.run`.
    device : str
        Where the models run.
    suffix : {".zarr", ".nc", ".parquet", ".csv"}
        Of the dataset.
    changed : bool
        Go on in a folder of another plan: what both have in common is kept, and the dataset will be that of this plan.

    Returns
    -------
    Swept

    Raises
    ------
    DiffscopeError
        The plan cannot be, the folder holds another, or the disk is full.
    """
    out = Path(out)
    target = out / f"dataset{statistics_format('dataset' + suffix)}"
    pieces = plan.pieces(device)
    if not isinstance(where, OnRay):  # whose machines may have what this one has not
        move(nn.Identity(), device)
    with _forgetting(), telling_full_disk(out):
        first_prompts(plan)
        _keep_plan(plan, out, changed)
        if Outcome.of([piece.shard for piece in pieces], out, SHARD).waiting:
            _remove_datasets(out)  # joined of other weights or versions
        work = partial(measure, device=own_gpu(device, rank))
        outcome = run([piece.shard for piece in pieces], work, out, where, rank=rank, suffix=SHARD, progress=progress)
        if outcome.waiting or not outcome.done:
            return Swept(pieces, outcome)
        with alone(target):  # ranks may end at the same time
            outcome = Outcome.of([piece.shard for piece in pieces], out, SHARD)  # another may have done what failed here
            for left in out.glob(f".{target.name}-*"):  # by a run that was killed while it joined
                remove(left)
            save_statistics(join(plan, pieces, outcome, out), target, dated=False)
        return Swept(pieces, outcome, target)


def _keep_plan(plan: Plan, out: Path, changed: bool) -> None:
    """Note in the folder whose it is, or refuse one of another plan."""
    kept, said = out / "plan.json", plan.as_json()
    out.mkdir(parents=True, exist_ok=True)
    with alone(kept):  # ranks begin at the same time
        before = kept.read_text(encoding="utf-8") if kept.is_file() else said
        if before != said and not changed:
            now, before = json.loads(said), json.loads(before)
            differ = ", ".join(name for name, value in now.items() if before.get(name) != value)
            raise DiffscopeError(
                f"{out} holds the sweep of another plan (it differs in {differ}); give another folder, or --changed to measure "
                "there what is new and keep what both have in common"
            )
        if before != said:
            _remove_datasets(out)
        unfinished(kept).write_text(said, encoding="utf-8")
        os.replace(unfinished(kept), kept)


def _remove_datasets(out: Path) -> None:
    for dataset in out.glob("dataset.*"):
        remove(dataset)


def first_prompts(plan: Plan) -> list[Given]:
    """The first prompt of every set as the first model is given it.

    Raises
    ------
    PromptError
        They cannot be drawn, or lack the span whose queries are asked for.
    """
    first = [_prompts(plan.models[0], json.dumps(prompts.spec), 1)[0] for prompts in plan.sets]
    for given in first:
        if isinstance(rows_of(plan.queries), str) and plan.queries not in (*given.spans, *KEY_SETS):
            raise PromptError(
                f"{given.name} has no span {plan.queries!r} to take queries from; use all, last, sample:N or a span: "
                f"{', '.join((*given.spans, *KEY_SETS))}"
            )
    return first


def values_a_prompt(plan: Plan, device: str) -> dict[str, int]:
    """How many numbers each model gives for a prompt, found on two tokens."""
    names = {name for given in first_prompts(plan) for name in given.spans}
    counts = {}
    with _forgetting():
        for subject in plan.subjects:
            if subject.model not in counts:
                scope = _scope(subject.opened, plan.dtype, device)
                found = scope.measure([0, 0], plan.measured, spans={name: [1] for name in names}, queries=[-1])
                counts[subject.model] = sum(values.size for values in found.values())
    return counts


def measure(spec: dict, target: Path, device: str = "cpu") -> None:
    """The work of a shard: all statistics of some prompts of one model, from one pass a prompt."""
    scope = _scope(spec["model"], spec["dtype"], device)
    prompts = _prompts(spec["model"], json.dumps(spec["prompts"]), spec["stop"])[spec["first"] : spec["stop"]]
    parts = [Part(given.name, {"prompt": at}, _measured(scope, given, spec)) for at, given in enumerate(prompts)]
    save_statistics(assemble(parts, {"prompt": range(len(parts))}), target, dated=False)


def _measured(scope: Scope, given: Given, spec: dict) -> xr.Dataset:
    """One prompt, without its queries: of several, means."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiffscopeWarning)  # they are kept among the attributes
        try:
            measured = scope.measure(given.prompt, spec["statistics"], spans=given.spans, queries=rows_of(spec["queries"]))
        except DiffscopeError as error:
            raise DiffscopeError(f"{given.name}: {error}") from error
    about = {
        "tokens": (len(scope.encode(given.prompt).ids), "tokens", "length of the prompt"),
        "depth": (given.depth, "1", "where the queried needle begins: 0 first, 1 last"),
        "fidelity_worst": (measured.attrs["fidelity_worst"], "1", "largest error with which a layer's output was rebuilt"),
    }
    if "query" in measured.dims:
        one = spec["queries"] == LAST
        measured = measured.isel(query=0, drop=True) if one else average(measured.map(_finite, keep_attrs=True))
    facts = {name: measured.attrs[name] for name in FACTS if name in measured.attrs}
    about = {name: ((), float(value), {"units": units, "long_name": said}) for name, (value, units, said) in about.items()}
    return measured.drop_attrs(deep=False).assign(about).assign_attrs(facts)


def _finite(values: xr.DataArray) -> xr.DataArray:
    """What a mean over queries is taken of."""
    return values.where(np.isfinite(values)) if "query" in values.dims else values


def join(plan: Plan, pieces: Sequence[Piece], outcome: Outcome, out: Path) -> xr.Dataset:
    """All that was measured, by model, step and prompt.

    Where a shard failed, or a model has no such layer, head or map, there is NaN.
    """
    steps = {} if plan.checkpoints == LAST else {"step": sorted({piece.subject.step for piece in pieces})}
    done, parts = {shard.id for shard in outcome.done}, []
    for piece in pieces:
        if piece.shard.id in done:
            place = {"model": piece.subject.model, **{name: piece.subject.step for name in steps}}
            dataset = open_statistics(result(out, piece.shard, SHARD))
            dataset = dataset.assign_coords(prompt=range(piece.first, piece.first + piece.count))
            facts = {name: dataset.attrs[name] for name in FACTS if name in dataset.attrs}
            parts.append(Part(piece.subject.model, place, dataset.drop_attrs(deep=False).assign_attrs(facts)))
    leading = {"model": plan.models, **steps, "prompt": range(sum(prompts.count for prompts in plan.sets))}
    failed = [f"{piece}: {outcome.failed[piece.shard.id]}" for piece in pieces if piece.shard.id in outcome.failed]
    said = {
        "plan": plan.as_json(),
        "averaged_over": "nothing: the last query of each prompt" if plan.queries == LAST else AVERAGED.format(plan.queries),
        "left_out": ", ".join(plan.left_out),
        "failed": "; ".join(failed),
    }
    said = {name: words for name, words in said.items() if words}
    return assemble(parts, leading).assign_coords(_labels(plan)).assign_attrs(said)


def _labels(plan: Plan) -> dict:
    """What is known of every prompt beforehand: its name, and the fields of its task as numbers."""
    labels = {"prompt_name": [name for prompts in plan.sets for name in prompts.names]}
    for field in dict.fromkeys(field for prompts in plan.sets for field in prompts.fields):
        values = [prompts.fields.get(field) for prompts in plan.sets for _ in prompts.names]
        words = any(isinstance(value, str) for value in values)
        labels[field] = [value or "" if words else math.nan if value is None else float(value) for value in values]
    return {name: ("prompt", values) for name, values in labels.items()}


def _scope(opened: str, dtype: str | None, device: str) -> Scope:
    """A model, which stays open until the next is asked for: two may be more than memory holds."""
    key = (opened, dtype, device)
    if key not in _opened:
        _opened.clear()
        _opened[key] = load(opened, device=device, dtype=dtype)
    return _opened[key]


def _prompts(opened: str, spec: str, count: int) -> list[Given]:
    """At least so many prompts for a model's tokenizer."""
    source = locate(opened)[0] or opened
    return _drawn(source, spec, 1 << (count - 1).bit_length())  # so that the shards of a set draw it a few times only


@lru_cache(maxsize=4)
def _drawn(source: str | Path, spec: str, count: int) -> list[Given]:
    return restored(json.loads(spec), count).prompts(load_tokenizer(source, trust_remote_code=False))


@contextmanager
def _forgetting() -> Iterator[None]:
    """Nothing that was opened meanwhile stays in memory."""
    try:
        yield
    finally:
        _opened.clear()
        _drawn.cache_clear()
