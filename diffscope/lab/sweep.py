"""Models × checkpoints × prompts × statistics: measured in shards that survive anything, joined in one labelled Dataset."""

from __future__ import annotations

import itertools
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xarray as xr
from torch import OutOfMemoryError, nn

from diffscope.errors import DiffscopeError, DiffscopeWarning, PromptError, first_line
from diffscope.lab.items import Outcome, lock
from diffscope.lab.plan import LAST, Plan, Shard, rows_of
from diffscope.lab.prompt_sets import restored
from diffscope.lab.queue import Progress, run
from diffscope.models.folders import locate
from diffscope.models.loading import load_tokenizer, move
from diffscope.scope import Scope, load
from diffscope.stats.averaging import average
from diffscope.stats.dataset import agreed
from diffscope.storage.atomic import remove, stop_on_full_disk, write_text
from diffscope.storage.provenance import other_versions
from diffscope.storage.statistics import attributes_of, open_statistics, save_statistics, statistics_format
from diffscope.tasks import Prompt, TextPrompt

FACTS = ("family", "attention", "dtype", "warnings")
KEY_SETS = ("sink", "context", "irrelevant")  # those of every prompt
AVERAGED = "queries ({}), of those rows that have a finite value; of ratios without a bound the median"
AT_ONCE = 16  # prompts that run together
TOKENS_AT_ONCE = 4096  # and tokens
Named = tuple[str, Prompt | TextPrompt]
_opened: dict[tuple, Scope] = {}  # the one model that this process holds


@dataclass(frozen=True)
class Swept:
    """The result of a sweep.

    Attributes
    ----------
    shards : list of Shard
    outcome : Outcome
    dataset : Path or None
        Where everything is together; None if no shard was measured.
    versions : str
        Which versions shards were measured with, if these are not the ones that run here; else empty.
    """

    shards: list[Shard]
    outcome: Outcome
    dataset: Path | None = None
    versions: str = ""

    @property
    def failures(self) -> list[tuple[Shard, str]]:
        """Return each shard that failed, with the cause."""
        failed = self.outcome.failed
        return [(shard, failed[shard.item.place]) for shard in self.shards if shard.item.place in failed]


def sweep(
    plan: Plan,
    out: str | os.PathLike,
    *,
    processes: int | None = None,
    ray: str | None = None,
    device: str = "cpu",
    suffix: str = ".zarr",
    changed: bool = False,
    progress: Progress | None = None,
) -> Swept:
    """Measure all shards that have no result yet, and join all results in one dataset.

    Raises DiffscopeError if the plan cannot be carried out, the folder holds the sweep of another one, or shards that other
    versions measured beside some that are to be measured, or the disk is full.

    Parameters
    ----------
    out : path
        A folder for this plan alone; it gets ``dataset.zarr``.
    processes, ray, progress
        As of :func:`diffscope.lab.queue.run`.
    device : str
        Where the models run.
    suffix : {".zarr", ".nc", ".parquet", ".csv"}
        Of the dataset.
    changed : bool
        Resume in a folder of another plan, or of shards that other versions measured: what both have in common is kept, and the
        dataset is that of this plan.
    """
    out = Path(out)
    target = out / f"dataset{statistics_format('dataset' + suffix)}"
    shards = plan.shards(device)
    items = [shard.item for shard in shards]
    if ray is None:  # whose machines may have a device that this one lacks
        move(nn.Identity(), device)
    with _forgetting(), stop_on_full_disk(out):
        span_names(plan)
        _note_plan(plan, out, changed)
        before = Outcome.of(items, out)
        versions = _other_versions(before, out)
        if versions and len(before.done) < len(items) and not changed:
            raise DiffscopeError(
                f"{out} holds shards that were measured with {versions}; give another folder to measure all of it anew, or "
                "--plan-changed to keep them and measure the rest with what is here"
            )
        if before.waiting:
            _remove_datasets(out)  # joined of other weights, or of less
        work = partial(measure, device=device)
        how = dict(processes=processes, ray=ray, gpus=device.startswith("cuda"))
        outcome = run(items, work, out, **how, progress=progress)
        if not outcome.done:
            return Swept(shards, outcome)
        with lock(out, "dataset"):  # of two runs of one sweep, which end together
            for abandoned in out.glob(f".{target.name}-*"):  # by a run that was killed while it joined
                remove(abandoned)
            versions = _other_versions(outcome, out)
            dataset = join(plan, shards, outcome, out)
            save_statistics(dataset.assign_attrs({"measured_with": versions} if versions else {}), target, dated=False)
        return Swept(shards, outcome, target, versions)


def _other_versions(outcome: Outcome, out: Path) -> str:
    """Return which versions shards were measured with, if these are not the ones that run here."""
    return other_versions(attributes_of(item.result(out)) for item in outcome.done)


def _note_plan(plan: Plan, out: Path, changed: bool) -> None:
    """Write the plan into the folder, or refuse a folder that holds another one."""
    path = out / "plan.json"
    text = plan.as_json()
    out.mkdir(parents=True, exist_ok=True)
    _plan_before(path, text, changed)  # so that no lock is left in a folder of something else
    with lock(out, "plan"):  # of two runs of one sweep, which begin together
        if _plan_before(path, text, changed) != text:
            _remove_datasets(out)
        write_text(path, text, alone=True)


def _plan_before(path: Path, text: str, changed: bool) -> str:
    """Return the plan that a folder holds as text, this one if it holds none; refuse another one unless it may have changed."""
    before = path.read_text(encoding="utf-8") if path.is_file() else text
    if before == text:
        return text
    try:
        old = dict(json.loads(before))
    except (ValueError, TypeError) as error:
        raise DiffscopeError(f"{path} is not the plan of a sweep ({first_line(error)}); give another folder") from None
    if not changed:
        differing = ", ".join(name for name, value in json.loads(text).items() if old.get(name) != value)
        raise DiffscopeError(
            f"{path.parent} holds the sweep of another plan (it differs in {differing}); give another folder, or --plan-changed "
            "to measure there what is new and keep what both have in common"
        )
    return before


def _remove_datasets(out: Path) -> None:
    for dataset in out.glob("dataset.*"):
        remove(dataset)


def span_names(plan: Plan) -> set[str]:
    """Return the names of the spans in the first prompt of every set, drawn for the first model.

    Raises PromptError if the prompts cannot be drawn, or lack the span whose queries the plan measures.
    """
    names = set()
    for prompts in plan.sets:
        name, prompt = _prompts(plan.models[0], json.dumps(prompts.spec), 1)[0]
        spans = [name for name, at in prompt.spans.items() if at and name != "sink"]  # the sink is known without being given
        if isinstance(rows_of(plan.queries), str) and plan.queries not in (*spans, *KEY_SETS):
            raise PromptError(
                f"{name} has no span {plan.queries!r} to take queries from; use all, last, sample:N or a span: "
                f"{', '.join((*spans, *KEY_SETS))}"
            )
        names.update(spans)
    return names


def values_a_prompt(plan: Plan, device: str) -> dict[str, int]:
    """Count how many numbers each model gives for a prompt, on a prompt of two tokens."""
    spans = {name: [1] for name in span_names(plan)}
    counts = {}
    with _forgetting():
        for subject in plan.subjects:
            if subject.model not in counts:
                scope = _scope(subject.opened, plan.dtype, device)
                dataset = scope.measure([0, 0], plan.measured, spans=spans, queries=[-1])
                counts[subject.model] = sum(values.size for values in dataset.values())
    return counts


def measure(spec: dict, target: Path, device: str = "cpu") -> None:
    """Measure a shard: all statistics of some prompts of one model, neighbours of one length in one pass."""
    scope = _scope(spec["model"], spec["dtype"], device)
    prompts = _prompts(spec["model"], json.dumps(spec["prompts"]), spec["stop"])[spec["first"] : spec["stop"]]
    parts = []
    for batch in _batches(scope, prompts, spec):
        for (name, prompt), dataset in zip(batch, _measured(scope, batch, spec)):
            parts.append(Part(name, {"prompt": len(parts)}, _of_prompt(scope, prompt, dataset, spec)))
    save_statistics(assemble(parts, {"prompt": range(len(parts))}), target, dated=False)


def _batches(scope: Scope, prompts: Sequence[Named], spec: dict) -> Iterator[list[Named]]:
    """Yield neighbouring prompts of one length, as many as run together; one by one if their queries may differ."""
    most = 1 if isinstance(rows_of(spec["queries"]), str) else AT_ONCE
    for length, group in itertools.groupby(prompts, lambda named: _length(scope, *named)):
        size = max(1, min(most, TOKENS_AT_ONCE // length))
        alike = list(group)
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


def _length(scope: Scope, name: str, prompt: Prompt | TextPrompt) -> int:
    try:
        return len(scope.encode(prompt).ids)
    except DiffscopeError as error:
        raise DiffscopeError(f"{name}: {error}") from error


def _measured(scope: Scope, batch: Sequence[Named], spec: dict) -> list[xr.Dataset]:
    """Measure each prompt of a batch; if they cannot run together, one by one, so that an error names its prompt."""
    if len(batch) > 1:
        with suppress(DiffscopeError, MemoryError, OutOfMemoryError), warnings.catch_warnings():
            warnings.simplefilter("ignore", DiffscopeWarning)  # they are kept among the attributes
            together = scope.measure([prompt for _, prompt in batch], spec["statistics"], queries=rows_of(spec["queries"]))
            return [together.isel(prompt=index) for index in range(len(batch))]
    return [_measured_alone(scope, name, prompt, spec) for name, prompt in batch]


def _measured_alone(scope: Scope, name: str, prompt: Prompt | TextPrompt, spec: dict) -> xr.Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiffscopeWarning)
        try:
            return scope.measure(prompt, spec["statistics"], queries=rows_of(spec["queries"]))
        except DiffscopeError as error:
            raise DiffscopeError(f"{name}: {error}") from error


def _of_prompt(scope: Scope, prompt: Prompt | TextPrompt, dataset: xr.Dataset, spec: dict) -> xr.Dataset:
    """Return the statistics of one prompt without the dimension ``query``: of its last query, or means over several."""
    about = {
        "tokens": (len(scope.encode(prompt).ids), "tokens", "length of the prompt"),
        "depth": (getattr(prompt, "depth", math.nan), "1", "where the queried needle begins: 0 first, 1 last"),
        "fidelity_worst": (
            dataset.attrs["fidelity_worst"],
            "1",
            "largest error with which a layer's output was rebuilt, of the prompts that ran together",
        ),
    }
    if "query" in dataset.dims:
        last = spec["queries"] == LAST
        dataset = dataset.isel(query=0, drop=True) if last else average(dataset)
    facts = {name: dataset.attrs[name] for name in FACTS if name in dataset.attrs}
    about = {name: ((), float(value), {"units": units, "long_name": text}) for name, (value, units, text) in about.items()}
    return dataset.drop_attrs(deep=False).assign(about).assign_attrs(facts)


class Part(NamedTuple):
    """A result, and where it belongs."""

    name: str  # whose result it is, for attributes in which parts differ
    place: Mapping  # its label along each leading dimension that it does not have itself
    dataset: xr.Dataset


def join(plan: Plan, shards: Sequence[Shard], outcome: Outcome, out: Path) -> xr.Dataset:
    """Join all that was measured, by model, step and prompt.

    Where a shard failed, or a model has no such layer, head or map, there is NaN.
    """
    steps = {} if plan.checkpoints == LAST else {"step": sorted({shard.subject.step for shard in shards})}
    done = {item.place for item in outcome.done}
    parts = []
    for shard in shards:
        if shard.item.place in done:
            place = {"model": shard.subject.model, **{name: shard.subject.step for name in steps}}
            dataset = open_statistics(shard.item.result(out))
            dataset = dataset.assign_coords(prompt=range(shard.first, shard.first + shard.count))
            facts = {name: dataset.attrs[name] for name in FACTS if name in dataset.attrs}
            parts.append(Part(shard.subject.model, place, dataset.drop_attrs(deep=False).assign_attrs(facts)))
    leading = {"model": plan.models, **steps, "prompt": range(sum(prompts.count for prompts in plan.sets))}
    failed = [f"{shard}: {outcome.failed[shard.item.place]}" for shard in shards if shard.item.place in outcome.failed]
    attrs = {
        "plan": plan.as_json(),
        "averaged_over": "nothing: the last query of each prompt" if plan.queries == LAST else AVERAGED.format(plan.queries),
        "left_out": ", ".join(plan.left_out),
        "failed": "; ".join(failed),
    }
    attrs = {name: text for name, text in attrs.items() if text}
    return assemble(parts, leading).assign_coords(_labels(plan)).assign_attrs(attrs)


def assemble(parts: Sequence[Part], leading: Mapping[str, Sequence]) -> xr.Dataset:
    """Join parts in one Dataset by their labels; values that no part has are NaN.

    Parameters
    ----------
    leading : mapping of str to labels
        The first dimensions of every variable. Along the others, labels that are numbers ascend, and texts keep the order of the
        parts.
    """
    index = {dim: np.array(labels) for dim, labels in leading.items()}
    for dim in dict.fromkeys(dim for part in parts for dim in part.dataset.dims if dim not in index):
        of_parts = [part.dataset[dim].values.tolist() for part in parts if dim in part.dataset.dims]
        labels = list(dict.fromkeys(label for labels in of_parts for label in labels))
        index[dim] = np.array(labels if isinstance(labels[0], str) else sorted(labels))
    whole = xr.Dataset(coords=index, attrs=_merged_attrs([(part.name, part.dataset.attrs) for part in parts]))
    for name in dict.fromkeys(name for part in parts for name in part.dataset.data_vars):
        holders = [(part, part.dataset[name]) for part in parts if name in part.dataset]
        dims = [*leading, *(dim for dim in holders[0][1].dims if dim not in leading)]
        dtype = np.result_type(np.float32, *(values.dtype for _, values in holders))
        array = xr.DataArray(np.full([len(index[dim]) for dim in dims], np.nan, dtype), {dim: index[dim] for dim in dims}, dims)
        for part, values in holders:
            array.loc[{**part.place, **{dim: values[dim] for dim in values.dims}}] = values
        whole[name] = array.assign_attrs(_merged_attrs([(part.name, values.attrs) for part, values in holders]))
    return whole


def _merged_attrs(named: Sequence[tuple[str, dict]]) -> dict:
    """Merge the attributes of several results: first among those of one name, then among names."""
    by_name: dict[str, list[dict]] = {}
    for name, attrs in named:
        by_name.setdefault(name, []).append(attrs)
    return agreed([agreed(attrs, [name] * len(attrs)) for name, attrs in by_name.items()], list(by_name))


def _labels(plan: Plan) -> dict:
    """Return the coordinates of prompts: their names, and the fields of their tasks as numbers or text."""
    labels = {"prompt_name": [name for prompts in plan.sets for name in prompts.names]}
    for field in dict.fromkeys(field for prompts in plan.sets for field in prompts.fields):
        values = [prompts.fields.get(field) for prompts in plan.sets for _ in prompts.names]
        if any(isinstance(value, str) for value in values):
            labels[field] = [value or "" for value in values]
        else:
            labels[field] = [math.nan if value is None else float(value) for value in values]
    return {name: ("prompt", values) for name, values in labels.items()}


def _scope(opened: str, dtype: str | None, device: str) -> Scope:
    """Load a model and hold it until another one is needed: two may be more than memory holds."""
    key = (opened, dtype, device)
    if key not in _opened:
        _opened.clear()
        _opened[key] = load(opened, device=device, dtype=dtype)
    return _opened[key]


def _prompts(opened: str, spec: str, count: int) -> list[tuple[str, Prompt | TextPrompt]]:
    """Draw at least `count` prompts of a set with a model's tokenizer, each with its name."""
    source = locate(opened)[0] or opened
    return _drawn(source, spec, 1 << (count - 1).bit_length())  # so that the shards of a set draw it a few times only


@lru_cache(maxsize=4)
def _drawn(source: str | Path, spec: str, count: int) -> list[tuple[str, Prompt | TextPrompt]]:
    prompts = restored(json.loads(spec), count)
    return list(zip(prompts.names, prompts.prompts(load_tokenizer(source, trust_remote_code=False))))


@contextmanager
def _forgetting() -> Iterator[None]:
    """Drop the cached model and prompts on exit."""
    try:
        yield
    finally:
        _opened.clear()
        _drawn.cache_clear()
