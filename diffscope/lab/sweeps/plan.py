"""What a sweep measures: models × checkpoints × prompts × statistics, checked before anything runs, and cut into shards."""

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

from diffscope.errors import DiffscopeError, ModelNotFound
from diffscope.lab.jobs.shards import Shard
from diffscope.lab.sweeps.prompt_sets import PromptSet, prompt_sets
from diffscope.models.loading import TOKENIZER_FILES, checkpoints, locate, named_dtype
from diffscope.stats import STATISTICS
from diffscope.stats.registry import select
from diffscope.stats.sampling import Sample
from diffscope.store import provenance

NEEDED = ("models", "prompts", "statistics")
LAST = "last"
UNKNOWN_STEP = -1  # of a model that does not say after how many steps of training it is
PIECES, PIECE = 64, 2**18  # of a weights file, spread evenly over it: all of it up to 16 MiB


class Subject(NamedTuple):
    """A model at one step of its training."""

    model: str  # as the plan names it
    step: int | None  # None where only the last step is asked for
    opened: str  # what ``load`` takes


class Piece(NamedTuple):
    """A shard, and where in the whole its result belongs."""

    shard: Shard
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
        See :func:`diffscope.lab.sweeps.prompt_sets.prompt_sets`.
    statistics : tuple of str
        Names or groups.
    checkpoints : "all", "last", or tuple of int
        Steps of training; "last" is the model as it is.
    queries : str
        "last", "all", a span's name, or "sample:N"; over more than one query, means are taken.
    per_shard : int
        Prompts a shard: what is lost at most when a run is killed, and what fails together.
    dtype : str, optional
        What to run the models in instead of their own.
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
        """A plan from a TOML file, some of its fields perhaps given anew.

        Raises
        ------
        DiffscopeError
            It cannot be read, or says something that cannot be.
        """
        try:
            found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise DiffscopeError(f"{path} is no TOML file ({error}); docs/sweeping.md shows a plan") from None
        except OSError as error:
            raise DiffscopeError(f"{path} cannot be read ({error.strerror}); docs/sweeping.md shows a plan") from None
        return cls.of({**found, **changes})

    @classmethod
    def of(cls, said: Mapping) -> Plan:
        """A plan from fields as TOML knows them.

        Raises
        ------
        DiffscopeError
            A field is unknown or missing, or holds what cannot be.
        """
        names = [one.name for one in fields(cls)]
        if unknown := [name for name in said if name not in names]:
            raise DiffscopeError(f"a plan has no field {unknown[0]!r}; its fields are {', '.join(names)}")
        if missing := [name for name in NEEDED if not said.get(name)]:
            raise DiffscopeError(f"the plan says nothing of {missing[0]!r}; it needs {', '.join(NEEDED)}")
        several = {name: value if isinstance(value, list | tuple) else [value] for name, value in said.items() if name in NEEDED}
        values = {**said, **{name: tuple(value) for name, value in several.items()}}
        if isinstance(values.get("checkpoints"), list | tuple):
            steps = [step if type(step) is int else None for step in values["checkpoints"]]
            values["checkpoints"] = tuple(dict.fromkeys(steps))
        plan = cls(**values)
        plan._check()
        return plan

    def _check(self) -> None:
        if not all(isinstance(text, str) for text in (*self.models, *self.statistics, self.queries)):
            raise DiffscopeError("models, statistics and queries of a plan are texts in quotes")
        if len(set(self.models)) < len(self.models):
            raise DiffscopeError("a model stands in the plan twice; name each once")
        steps, listed = self.checkpoints, isinstance(self.checkpoints, tuple) and self.checkpoints
        if steps not in ("all", LAST) and not (listed and None not in steps):
            raise DiffscopeError('checkpoints is neither "all" nor "last" nor a list of steps')
        if not isinstance(self.per_shard, int) or self.per_shard < 1:
            raise DiffscopeError(f"per_shard = {self.per_shard!r} is not a number of prompts; give 1 or more")
        if not all(isinstance(table, dict) for table in self.prompts):
            raise DiffscopeError("prompts is a table with task = … or file = …, or several; docs/sweeping.md shows one")
        named_dtype(self.dtype if self.dtype is None else str(self.dtype))
        if not self.measured:
            raise DiffscopeError(f'a mean over queries says nothing of {", ".join(self.left_out)}; use queries = "last"')
        if not self.sets:
            raise DiffscopeError("the plan has no prompts; an empty list of values leaves none")

    @cached_property
    def sets(self) -> list[PromptSet]:
        """Sets of prompts, in order."""
        return [one for table in self.prompts for one in prompt_sets(table)]

    @property
    def left_out(self) -> list[str]:
        """Statistics that were asked for, and of which a mean over queries says nothing."""
        chosen = select(self.statistics) if self.queries != LAST else []
        return [one.name for one in chosen if "query" in one.dims and one.averaged == "not"]

    @property
    def measured(self) -> list[str]:
        """Names of the statistics, in the order of the register."""
        chosen = {one.name for one in select(self.statistics)} - set(self.left_out)
        return [name for name in STATISTICS if name in chosen]

    @property
    def subjects(self) -> list[Subject]:
        """Models at their steps, in order.

        Raises
        ------
        ModelNotFound
            No such model, or no such step of it.
        """
        return [subject for model in self.models for subject in self._steps(model)]

    def _steps(self, model: str) -> Iterator[Subject]:
        home, _ = locate(model)
        if self.checkpoints == LAST:
            yield Subject(model, None, model)
            return
        kept, last = _kept(home)
        for step in sorted({*kept, last}) if self.checkpoints == "all" else self.checkpoints:
            opened = model if step == last else f"{model}@{step}"
            if step != last and step not in kept:
                raise ModelNotFound(f"{model} has no checkpoint {step}; kept are the steps {', '.join(map(str, [*kept, last]))}")
            yield Subject(model, step, opened)

    def pieces(self, device: str) -> list[Piece]:
        """All that is to be done, model by model.

        Parameters
        ----------
        device : str
            Numbers differ between kinds of device, so that this is part of what a shard is.
        """
        found, common = [], {"device": device.partition(":")[0], "made_with": provenance(dated=False)}
        common |= {"statistics": self.measured, "queries": self.queries, "dtype": self.dtype}
        for subject in self.subjects:
            model, offset = {"model": subject.opened, "weights": fingerprint(subject.opened)}, 0
            for prompts in self.sets:
                for first in range(0, prompts.count, self.per_shard):
                    stop = min(first + self.per_shard, prompts.count)
                    spec = {**model, **common, "prompts": prompts.spec, "first": first, "stop": stop}
                    found.append(Piece(Shard(spec, subject.opened), subject, offset + first, stop - first))
                offset += prompts.count
        return found

    def as_json(self) -> str:
        """As text, equal if and only if the plans are."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)


def rows_of(queries: str):
    """What a plan's `queries` stands for, as ``measure`` takes it."""
    if found := re.fullmatch(r"sample:(\d+)", queries):
        return Sample(int(found[1]))
    return {"all": None, LAST: [-1]}.get(queries, queries)


def _kept(home: Path | None) -> tuple[list[int], int]:
    """Steps of the checkpoints of a model, and that of the model itself."""
    if home is None:
        return [], UNKNOWN_STEP
    kept = list(checkpoints(home))
    card = home / "card.json"
    if card.is_file():  # a bundled model, which is itself its last checkpoint
        return kept, json.loads(card.read_text(encoding="utf-8"))["curves"][-1]["step"]
    return kept[:-1], kept[-1] if kept else UNKNOWN_STEP


def fingerprint(opened: str) -> str:
    """What tells a model's weights, configuration and tokenizer from others: a hash of files and of pieces of large ones.

    Of a model of the hub it is the commit.
    """
    home, weights = locate(opened)
    if home is None:
        try:
            return Path(cached_file(opened, "config.json")).parent.name
        except Exception as error:  # the hub's client may raise anything
            raise ModelNotFound(f"no model {opened!r} to be had from the hub ({str(error).partition(chr(10))[0]})") from None
    digest = hashlib.sha256()
    for file in (home / "config.json", *(home / name for name in TOKENIZER_FILES), *sorted(weights.glob("*.safetensors"))):
        if file.is_file():
            size = file.stat().st_size
            digest.update(f"{file.name} {size}\0".encode())
            with file.open("rb") as content:
                for index in range(PIECES):
                    content.seek(max(index * PIECE, index * (size - PIECE) // (PIECES - 1)))
                    digest.update(content.read(PIECE))
    return digest.hexdigest()[:16]
