"""Which prompts are measured: a generated task with its parameters, a grid of them, or a file of the user's own."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from diffscope.errors import PromptError
from diffscope.lab import scoring
from diffscope.lab.scoring import draw
from diffscope.tasks import Prompt, Recall, Retrieval, read_prompts
from diffscope.tasks.retrieval import TEMPLATE, check_template

DEFAULTS = {"count": 20, "length": 256, "seed": 0}


class Given(NamedTuple):
    """One prompt as a model is given it."""

    name: str
    prompt: str | list[int]
    spans: dict
    depth: float = math.nan  # of the queried needle


def retrieval(tokenizer, count: int, length: int, seed: int, needles: int = 4, template: str = TEMPLATE) -> list[Prompt]:
    """Prompts of the retrieval task, at depths 0, ¼, ½, ¾ and 1 in turn."""
    return draw(Retrieval(tokenizer, template=template), count, length, needles, seed)


def controlled(
    tokenizer,
    count: int,
    length: int,
    seed: int,
    distractors: int = 3,
    slots: int = 8,
    near: bool = False,
    answerable: bool = True,
    template: str = TEMPLATE,
) -> list[Prompt]:
    """The same with length and distractors set apart from each other."""
    kind = {"slots": slots, "near": bool(near), "answerable": bool(answerable)}
    return scoring.controlled(Retrieval(tokenizer, template=template), count, length, distractors, seed, **kind)


def recall(tokenizer, count: int, length: int, seed: int, n: int = 3) -> list[Prompt]:
    """Real text that ends before a token which completes an n-gram seen before."""
    task, rng = Recall(tokenizer, n=n), np.random.default_rng(seed)
    return [task.prompt(length, rng) for _ in range(count)]


def text(tokenizer, count: int, length: int, seed: int) -> list[Prompt]:
    """Plain text."""
    task, rng = Recall(tokenizer), np.random.default_rng(seed)
    return [task.text(length, rng) for _ in range(count)]


#: by name; parameters after the tokenizer are the fields that a plan may give; the first of many prompts are those of few
TASKS: dict[str, Callable[..., list[Prompt]]] = {task.__name__: task for task in (retrieval, controlled, recall, text)}


@dataclass(frozen=True)
class Drawn:
    """Prompts of a task, drawn anew for every tokenizer; the first of many are those of few."""

    task: str
    count: int
    fields: dict[str, int | str]

    @property
    def names(self) -> list[str]:
        return [f"{self.task} {index}" for index in range(self.count)]

    @property
    def spec(self) -> dict:
        return {"task": self.task, **self.fields}

    def prompts(self, tokenizer) -> list[Given]:
        drawn = TASKS[self.task](tokenizer, count=self.count, **self.fields)
        return [Given(name, list(one.ids), _spans(one), one.depth) for name, one in zip(self.names, drawn)]


def _spans(prompt: Prompt) -> dict[str, list[int]]:
    """Without those that are empty, as the answer of a question that has none; the sink is found without being given."""
    return {name: at for name, at in prompt.spans.items() if at and name != "sink"}


@dataclass(frozen=True)
class Own:
    """The user's own prompts, from a file."""

    file: str
    names: list[str]
    sha256: str
    fields = {}

    @property
    def count(self) -> int:
        return len(self.names)

    @property
    def spec(self) -> dict:
        return {"file": self.file, "sha256": self.sha256}

    def prompts(self, tokenizer) -> list[Given]:
        return [Given(own.name, own.prompt, own.spans) for own in read_prompts(self.file)]


PromptSet = Drawn | Own


def restored(spec: Mapping, count: int) -> PromptSet:
    """The set of prompts that a spec stands for, or the first `count` of it.

    Raises
    ------
    PromptError
        Its file is another by now.
    """
    fields = dict(spec)
    if "file" not in fields:
        return Drawn(fields.pop("task"), count, fields)
    own = _own({"file": fields["file"]})
    if own.spec != spec:
        raise PromptError(f"{own.file} was changed after the sweep began; start it again")
    return own


def prompt_sets(table: Mapping) -> list[PromptSet]:
    """What a table of a plan describes: ``file`` names a file of prompts, ``task`` a task; lists of values are a grid.

    Raises
    ------
    PromptError
        Unknown or missing fields, values that are none, or a file that cannot be read.
    """
    fields = dict(table)
    if "file" in fields:
        return [_own(fields)]
    task = fields.pop("task", "retrieval")
    if not isinstance(task, str) or task not in TASKS:
        raise PromptError(f"there is no task {task!r}; choose from {', '.join(TASKS)}, or give a file")
    known = {name: one.default for name, one in inspect.signature(TASKS[task]).parameters.items() if name != "tokenizer"}
    if unknown := [name for name in fields if name not in known]:
        raise PromptError(f"the task {task!r} has no field {unknown[0]!r}; its fields are {', '.join(known)}")
    choices = {name: value if isinstance(value, list) else [value] for name, value in {**known, **DEFAULTS, **fields}.items()}
    for name, values in choices.items():
        usual = known[name] if isinstance(known[name], str | bool) else None
        if wrong := [value for value in values if not _fits(value, usual) or name == "count" and value < 1]:
            kinds = {str: "no text", bool: "neither true nor false"}
            kind = kinds.get(type(usual), "no whole number, or too small")
            raise PromptError(f"{name} = {wrong[0]!r} is {kind}; for example {name} = {4 if usual is None else usual!r}")
    for template in choices.get("template", ()):
        check_template(template)
    cells = [dict(zip(choices, values)) for values in itertools.product(*choices.values())]
    return [Drawn(task, cell.pop("count"), cell) for cell in cells]


def _fits(value, usual) -> bool:
    """Whether a value is of the kind of another: text, yes or no (0 and 1 will do), or a whole number from 0 on."""
    if isinstance(usual, str):
        return isinstance(value, str)
    return value in (True, False) if isinstance(usual, bool) else type(value) is int and value >= 0


def _own(fields: Mapping) -> Own:
    if unknown := [name for name in fields if name != "file"]:
        raise PromptError(f"prompts of a file have no field {unknown[0]!r}; leave it out")
    file = str(fields["file"])
    names = [own.name for own in read_prompts(file)]
    return Own(file, names, hashlib.sha256(Path(file).expanduser().read_bytes()).hexdigest())
