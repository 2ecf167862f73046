"""Which prompts are measured: a generated task with its parameters, a grid of them, or a file of the user's own."""

from __future__ import annotations

import hashlib
import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diffscope.errors import PromptError
from diffscope.tasks import Backcopy, Prompt, Recall, Retrieval, TextPrompt, read_prompts, sampling
from diffscope.tasks.lookups import check_grade
from diffscope.tasks.retrieval import TEMPLATE
from diffscope.tasks.template import check_template

DEFAULTS = {"count": 20, "length": 256, "seed": 0}


def retrieval(tokenizer, count: int, length: int, seed: int, needles: int = 4, template: str = TEMPLATE) -> list[Prompt]:
    """Prompts of the retrieval task, at depths 0, ¼, ½, ¾ and 1 in turn."""
    return sampling.draw(Retrieval(tokenizer, template=template), count, length, needles, seed)


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
    """Draw retrieval prompts whose length and number of distractors are set independently."""
    task = Retrieval(tokenizer, template=template)
    kind = {"slots": slots, "near": bool(near), "answerable": bool(answerable)}
    return sampling.controlled(task, count, length, distractors, seed, **kind)


def graded(
    tokenizer,
    count: int,
    length: int,
    seed: int,
    grade: str = "city",
    distractors: int = 3,
    slots: int = 8,
    template: str = TEMPLATE,
) -> list[Prompt]:
    """Draw questions for whose answers the text has evidence of one grade."""
    return sampling.graded(Retrieval(tokenizer, template=template), count, length, distractors, seed, grade, slots)


def backcopy(tokenizer, count: int, length: int, seed: int) -> list[Prompt]:
    """Draw sequences of the Bigram-Backcopy task that end with a trigger."""
    task = Backcopy()
    if not task.speaks(tokenizer):
        raise PromptError("this model has other tokens than the Bigram-Backcopy task; train one with Backcopy().tokenizer")
    rng = np.random.default_rng(seed)
    return [task.prompt(length, rng) for _ in range(count)]


def recall(tokenizer, count: int, length: int, seed: int, n: int = 3) -> list[Prompt]:
    """Draw real text that ends before a token which completes an n-gram seen before."""
    task = Recall(tokenizer, n=n)
    rng = np.random.default_rng(seed)
    return [task.prompt(length, rng) for _ in range(count)]


def text(tokenizer, count: int, length: int, seed: int) -> list[Prompt]:
    """Draw plain text."""
    task = Recall(tokenizer)
    rng = np.random.default_rng(seed)
    return [task.text(length, rng) for _ in range(count)]


#: Tasks by name. Their parameters after the tokenizer are the fields that a plan may give. With one seed, a task draws the same
#: first prompts however many it draws.
TASKS: dict[str, Callable[..., list[Prompt]]] = {
    task.__name__: task for task in (retrieval, controlled, graded, recall, text, backcopy)
}


OF_TEXT = {"template": check_template, "grade": check_grade}  # fields of tasks that are text, and what checks them


@dataclass(frozen=True)
class GeneratedPrompts:
    """Prompts of a task, drawn with each model's own tokenizer."""

    task: str
    count: int
    fields: dict[str, int | str]

    @property
    def names(self) -> list[str]:
        return [f"{self.task} {index}" for index in range(self.count)]

    @property
    def spec(self) -> dict:
        """Return what the prompts depend on, apart from their number and the tokenizer."""
        return {"task": self.task, **self.fields}

    def prompts(self, tokenizer) -> list[Prompt]:
        """Return all prompts, as tokens."""
        return TASKS[self.task](tokenizer, count=self.count, **self.fields)


@dataclass(frozen=True)
class FilePrompts:
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
        """Return what the prompts depend on: the file and its content."""
        return {"file": self.file, "sha256": self.sha256}

    def prompts(self, tokenizer) -> list[TextPrompt]:
        """Return all prompts, as text: the same for every tokenizer."""
        return list(read_prompts(self.file))


PromptSet = GeneratedPrompts | FilePrompts


def restored(spec: Mapping, count: int) -> PromptSet:
    """Return the set of prompts with this spec; of a task, its first `count` prompts.

    Raises PromptError if the file has changed since the spec was made.
    """
    fields = dict(spec)
    if "file" not in fields:
        return GeneratedPrompts(fields.pop("task"), count, fields)
    prompts = _from_file({"file": fields["file"]})
    if prompts.spec != spec:
        raise PromptError(f"{prompts.file} was changed after the sweep began; start it again")
    return prompts


def prompt_sets(table: Mapping, template: str | None = TEMPLATE) -> list[PromptSet]:
    """Return the sets of prompts that a table of a plan describes.

    Raises PromptError if a template is missing, a field is unknown or missing or has a value of the wrong kind, or the file
    cannot be read.

    Parameters
    ----------
    table : mapping
        Either ``file``, the name of a file of prompts, or ``task`` with its fields. Lists of values are a grid: one set for each
        combination.
    template : str, optional
        The default needle sentence. None if there is no default: then the table has to have one.
    """
    fields = dict(table)
    if "file" in fields:
        return [_from_file(fields)]
    task = fields.pop("task", "retrieval")
    if not isinstance(task, str) or task not in TASKS:
        raise PromptError(f"there is no task {task!r}; choose from {', '.join(TASKS)}, or give a file")
    parameters = inspect.signature(TASKS[task]).parameters.values()
    known = {parameter.name: parameter.default for parameter in parameters if parameter.name != "tokenizer"}
    if unknown := [name for name in fields if name not in known]:
        raise PromptError(f"the task {task!r} has no field {unknown[0]!r}; its fields are {', '.join(known)}")
    sentence = {"template": template} if "template" in known else {}
    values_of = {**known, **DEFAULTS, **sentence, **fields}
    if values_of.get("template", "") is None:
        raise PromptError("the models of this plan were trained on different sentences; say which with template=… of prompts")
    choices = {name: value if isinstance(value, list) else [value] for name, value in values_of.items()}
    for name, values in choices.items():
        _check_values(name, values, known[name])
    cells = [dict(zip(choices, values)) for values in itertools.product(*choices.values())]
    return [GeneratedPrompts(task, cell.pop("count"), cell) for cell in cells]


def _check_values(name: str, values: list, default) -> None:
    """Raise PromptError if a value is not of the kind of the field's default: text, true or false, a whole number from 0 on."""
    usual = default if isinstance(default, str | bool) else None
    if wrong := [value for value in values if not _fits(value, usual) or (name == "count" and value < 1)]:
        kinds = {str: "no text", bool: "neither true nor false"}
        kind = kinds.get(type(usual), "no whole number, or too small")
        raise PromptError(f"{name} = {wrong[0]!r} is {kind}; for example {name} = {4 if usual is None else usual!r}")
    if check := OF_TEXT.get(name):
        for value in values:
            check(value)


def _fits(value, usual) -> bool:
    """Return whether a value is of the kind of `usual`: text, true or false (or 1 and 0); if None, a whole number from 0 on."""
    if isinstance(usual, str):
        return isinstance(value, str)
    return value in (True, False) if isinstance(usual, bool) else type(value) is int and value >= 0


def _from_file(fields: Mapping) -> FilePrompts:
    if unknown := [name for name in fields if name != "file"]:
        raise PromptError(f"prompts of a file have no field {unknown[0]!r}; leave it out")
    file = str(fields["file"])
    names = [prompt.name for prompt in read_prompts(file)]
    return FilePrompts(file, names, hashlib.sha256(Path(file).expanduser().read_bytes()).hexdigest())
