"""The plan of a sweep: models × checkpoints × prompts × statistics, checked before anything runs, and cut into shards."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from transformers.utils import cached_file

from diffscope.errors import DiffscopeError, ModelNotFound, first_line
from diffscope.lab.items import Item
from diffscope.lab.prompt_sets import PromptSet, prompt_sets
from diffscope.lab.training.run import last_step
from diffscope.models.folders import TOKENIZER_FILES, checkpoints_as_trained, locate, tokenizer_folder
from diffscope.models.loading import named_dtype
from diffscope.stats import STATISTICS
from diffscope.stats.registry import select
from diffscope.stats.sample import QuerySample
from diffscope.tasks.retrieval import TEMPLATE
from diffscope.tasks.training_sentence import training_template

REQUIRED = ("models", "prompts", "statistics")
LAST = "last"
#: Raised by one where a statistic would come out otherwise under its name, so that finished shards are measured anew.
STATISTICS_FORMAT = 1
UNKNOWN_STEP = -1  # of a model that does not say after how many steps of training it is
PIECE = 2**20  # bytes of a file that are read at once


class Subject(NamedTuple):
    """A model at one step of its training."""

    model: str  # as the plan names it
    step: int | None  # None where the plan measures the last step only
    opened: str  # what ``load`` takes


class Shard(NamedTuple):
    """Some prompts of one model: an item of the queue, and where in the dataset its result belongs."""

    item: Item
    subject: Subject
    first: int  # number of its first prompt among those of all prompt sets
    count: int

    def __str__(self) -> str:
        return f"{self.subject.opened}, prompts {self.first} to {self.first + self.count - 1}"


@dataclass(frozen=True)
class Plan:
    """A sweep.

    Attributes
    ----------
    models : tuple of str
        Bundled names, folders or hub ids.
    prompts : tuple of dict
        See :func:`diffscope.lab.prompt_sets.prompt_sets`.
    statistics : tuple of str
        Names or groups.
    checkpoints : "all", "last", or tuple of int
        Steps of training; "last" is the model as it is.
    queries : str
        "last", "all", a span's name, or "sample:N"; over more than one query, means are taken.
    per_shard : int
        Prompts a shard: what is lost at most when a run is killed, and what fails together.
    dtype : str, optional
        What to run the models in instead of their own dtype.
    """

    models: tuple[str, ...]
    prompts: tuple[dict, ...]
    statistics: tuple[str, ...]
    checkpoints: str | tuple[int, ...] = "last"
    queries: str = "last"
    per_shard: int = 8
    dtype: str | None = None

    @classmethod
    def load(cls, path: str | os.PathLike, **changes) -> Plan:
        """Read a plan from a TOML file; `changes` are fields that replace those of the file.

        Raises DiffscopeError if the file cannot be read, or as :meth:`of`.
        """
        try:
            fields_of_file = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise DiffscopeError(f"{path} is no TOML file ({error}); docs/large_scale.md shows a plan") from None
        except OSError as error:
            raise DiffscopeError(f"{path} cannot be read ({error.strerror}); docs/large_scale.md shows a plan") from None
        return cls.of({**fields_of_file, **changes})

    @classmethod
    def of(cls, table: Mapping) -> Plan:
        """Make a plan of fields as TOML knows them.

        Raises DiffscopeError if a field is unknown or missing, or has a value of the wrong kind.
        """
        names = [field.name for field in fields(cls)]
        if unknown := [name for name in table if name not in names]:
            raise DiffscopeError(f"a plan has no field {unknown[0]!r}; choose from {', '.join(names)}")
        if missing := [name for name in REQUIRED if not table.get(name)]:
            raise DiffscopeError(f"the plan has no {missing[0]!r}; it needs {', '.join(REQUIRED)}")
        values = dict(table)
        for name in REQUIRED:
            value = table[name]
            values[name] = tuple(value) if isinstance(value, list | tuple) else (value,)
        if isinstance(values.get("checkpoints"), list | tuple):
            steps = [step if type(step) is int else None for step in values["checkpoints"]]
            values["checkpoints"] = tuple(dict.fromkeys(steps))
        plan = cls(**values)
        plan._check()
        return plan

    def _check(self) -> None:
        if not all(isinstance(text, str) for text in (*self.models, *self.statistics, self.queries)):
            raise DiffscopeError("models, statistics and queries of a plan are strings; write them in quotes")
        if len(set(self.models)) < len(self.models):
            raise DiffscopeError("the plan names a model twice; name each once")
        steps = self.checkpoints
        listed = isinstance(steps, tuple) and steps and None not in steps
        if steps not in ("all", LAST) and not listed:
            raise DiffscopeError('checkpoints is none of "all", "last" and a list of steps; give one of them')
        if not isinstance(self.per_shard, int) or self.per_shard < 1:
            raise DiffscopeError(f"per_shard = {self.per_shard!r} is not a number of prompts; give 1 or more")
        if not all(isinstance(table, dict) for table in self.prompts):
            raise DiffscopeError("prompts is a table with task = … or file = …, or several; docs/large_scale.md shows one")
        named_dtype(self.dtype if self.dtype is None else str(self.dtype))
        if not self.measured:
            raise DiffscopeError(f'{", ".join(self.left_out)} cannot be averaged over queries; use queries = "last"')
        if not self.sets:
            raise DiffscopeError("the plan has no prompts; give each field at least one value")

    @cached_property
    def sets(self) -> list[PromptSet]:
        """Return the sets of prompts, in order; a task without a template takes the sentence that the models were trained on."""
        sentences = {training_template(model) for model in self.models} - {None}
        template = None if len(sentences) > 1 else next(iter(sentences), TEMPLATE)
        return [prompts for table in self.prompts for prompts in prompt_sets(table, template)]

    @property
    def left_out(self) -> list[str]:
        """Return the statistics of the plan that are not measured because a mean over queries means nothing."""
        chosen = select(self.statistics) if self.queries != LAST else []
        return [statistic.name for statistic in chosen if "query" in statistic.dims and statistic.averaged == "not"]

    @property
    def measured(self) -> list[str]:
        """Return the names of the statistics that are measured, in the order of the registry."""
        chosen = {statistic.name for statistic in select(self.statistics)} - set(self.left_out)
        return [name for name in STATISTICS if name in chosen]

    @property
    def subjects(self) -> list[Subject]:
        """Return the models at their steps, in order.

        Raises ModelNotFound if there is no such model, or no such step of it.
        """
        return [subject for model in self.models for subject in self._steps(model)]

    def _steps(self, model: str) -> Iterator[Subject]:
        home, _ = locate(model)
        if self.checkpoints == LAST:
            yield Subject(model, None, model)
            return
        saved, last = _saved_steps(home)
        for step in sorted({*saved, last}) if self.checkpoints == "all" else self.checkpoints:
            if step != last and step not in saved:
                raise ModelNotFound(f"{model} has no checkpoint {step}; choose from {', '.join(map(str, [*saved, last]))}")
            yield Subject(model, step, model if step == last else f"{model}@{step}")

    def shards(self, device: str) -> list[Shard]:
        """Return all shards of the plan, model by model.

        A shard is named by what it measures. The versions that measured it are attributes of its file, not part of its spec.

        Parameters
        ----------
        device : str
            Its kind is part of a shard's spec, since numbers differ between kinds of device.
        """
        common = {
            "device": device.partition(":")[0],
            "statistics": self.measured,
            "statistics_format": STATISTICS_FORMAT,
            "queries": self.queries,
            "averaged": {} if self.queries == LAST else {name: STATISTICS[name].averaged for name in self.measured},
            "dtype": self.dtype,
        }
        shards = []
        for subject in self.subjects:
            model = {"model": subject.opened, "weights": fingerprint(subject.opened)}
            offset = 0
            for prompts in self.sets:
                for first in range(0, prompts.count, self.per_shard):
                    stop = min(first + self.per_shard, prompts.count)
                    spec = {**model, **common, "prompts": prompts.spec, "first": first, "stop": stop}
                    item = Item(f"shards/{_digest(spec)}.nc", spec)
                    shards.append(Shard(item, subject, offset + first, stop - first))
                offset += prompts.count
        return shards

    def as_json(self) -> str:
        """Return the plan as JSON; plans are equal if and only if their texts are."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)


def _digest(spec: dict) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a spec as canonical JSON."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def rows_of(queries: str):
    """Return a plan's `queries` as ``Scope.measure`` takes them."""
    if sample := re.fullmatch(r"sample:(\d+)", queries):
        return QuerySample(int(sample[1]))
    return {"all": None, LAST: [-1]}.get(queries, queries)


def _saved_steps(home: Path | None) -> tuple[list[int], int]:
    """Return the steps of the checkpoints in a model's folder, and the step of the model itself."""
    if home is None:
        return [], UNKNOWN_STEP
    steps = sorted(checkpoints_as_trained(home))
    last = last_step(home)
    if last is None:  # nothing says it: the model itself is its last checkpoint
        last = steps[-1] if steps else UNKNOWN_STEP
    return [step for step in steps if step != last], last


def fingerprint(opened: str) -> str:
    """Hash all bytes of a model's weights, configuration and tokenizer; for a model of the hub, return its commit.

    Raises ModelNotFound if there is no such model.
    """
    home, weights = locate(opened)
    if home is None:
        try:
            return Path(cached_file(opened, "config.json")).parent.name
        except Exception as error:  # the hub's client may raise anything
            raise ModelNotFound(f"no model {opened!r} to be had from the hub ({first_line(error)})") from None
    digest = hashlib.sha256()
    beside = tokenizer_folder(home) or home
    for file in (home / "config.json", *(beside / name for name in TOKENIZER_FILES), *sorted(weights.glob("*.safetensors"))):
        if file.is_file():
            digest.update(f"{file.name} {file.stat().st_size}\0".encode())
            with file.open("rb") as content:
                while piece := content.read(PIECE):
                    digest.update(piece)
    return digest.hexdigest()[:16]
