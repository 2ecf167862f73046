"""What tests are made on: trained models, and untrained ones of their architecture."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.evidence.last_query import Reading, read
from diffscope.hypotheses.rules import Missing
from diffscope.lab.scoring import draw
from diffscope.scope import Scope
from diffscope.tasks.retrieval import TEMPLATE, Prompt, Retrieval

CHANGEABLE = ("dtype", "torch_dtype", "transformers_version")
UNTRAINED = 24  # models of random weights
FEW = 10  # prompts of what takes long: two at each depth
Progress = Callable[[int, int, str], None]


@dataclass
class Asked:
    """The prompts of a board, and how much is spent on them.

    Attributes
    ----------
    prompts, length, needles, seed : int
    template : str
    untrained : int
        Models of random weights that a trained one is compared with.
    first : int
        Number of the first of them, so that several subjects can have others each.
    """

    prompts: int = 40
    length: int = 160
    needles: int = 4
    seed: int = 50_000
    template: str = TEMPLATE
    untrained: int = UNTRAINED
    first: int = 0

    def of(self, scope: Scope) -> list[Prompt]:
        if self.needles < 2:
            raise DiffscopeError("a prompt without other needles has no noise that competes; give two needles or more")
        task = Retrieval(scope.tokenizer, held_out=True, template=self.template)
        return draw(task, self.prompts, self.length, self.needles, self.seed)


@dataclass
class Subject:
    """One trained model, or several that differ in their seed alone, and what they do with the prompts.

    Everything is read when a test asks for it first.

    Attributes
    ----------
    scopes : sequence of Scope
    asked : Asked
    progress : callable, optional
    series : bool
        Whether they are the checkpoints of one training. Then :meth:`of_each` takes one untrained model for all steps, as the
        checkpoints are of one: what is peculiar to a model does not average out over steps. The readings are of another one at
        each step, which makes growth over steps harder to find.
    """

    scopes: Sequence[Scope]
    asked: Asked = field(default_factory=Asked)
    progress: Progress | None = None
    series: bool = False
    _taken: dict = field(default_factory=dict, repr=False)

    def __post_init__(self):
        names, first = [scope.name for scope in self.scopes], self.scopes[0]
        if len(set(names)) < len(names):
            raise DiffscopeError(f"{names[0]} is named twice; several models are seeds of one, each another")
        if other := next((scope.name for scope in self.scopes if _made_like(scope) != _made_like(first)), None):
            raise DiffscopeError(f"{other} is not made like {names[0]}; several models are seeds of one")

    @cached_property
    def prompts(self) -> list[Prompt]:
        """The same for all: seeds and untrained models have the first one's vocabulary."""
        return self.asked.of(self.scopes[0])

    @cached_property
    def readings(self) -> list[Reading]:
        """Of each model."""
        return [self._read(scope, f"reading {scope.name}") for scope in self.scopes]

    @cached_property
    def untrained(self) -> list[Reading]:
        """Of models of the first one's architecture, with random weights and scores as far apart as the trained ones' in turn."""
        return [
            self._read(scope, f"untrained model {i + 1} of {count}", spreads) for i, count, scope, spreads in self.at_random()
        ]

    def at_random(self, each: int = 1) -> Iterator[tuple[int, int, Scope, list[torch.Tensor]]]:
        """The untrained models one by one: number, how many, model, and how far apart its scores are to be.

        With `each` a model comes so many times in a row, as sharp as each of the trained ones in turn.
        """
        first, count = self.scopes[0], self.asked.untrained
        for i in range(count):
            if i % each == 0:
                fresh = anew(first.model, self.asked.seed + self.asked.first + i)
                scope = Scope(fresh, first.tokenizer, f"untrained {i}", first.family)
            yield i, count, scope, self.readings[i % len(self.readings)].spreads

    @property
    def few(self) -> list[Prompt]:
        """The first prompts, two at each depth: for what takes long."""
        return self.prompts[:FEW]

    def of_each(self, take: Callable, what: str) -> tuple[list, list]:
        """What ``take(scope, prompts, spreads)`` gives of each model, and of each untrained one made as sharp, on few prompts.

        Taken once; `spreads` is None for the trained ones.
        """
        if take not in self._taken:
            own = [self._told(what, i, len(self.scopes), take(scope, self.few, None)) for i, scope in enumerate(self.scopes)]
            others = [
                self._told(f"{what}, untrained", i, count, take(scope, self.few, spreads))
                for i, count, scope, spreads in self.at_random(len(self.scopes) if self.series else 1)
            ]
            self._taken[take] = own, others
        return self._taken[take]

    def _told(self, what: str, done: int, total: int, result):
        if self.progress:
            self.progress(done + 1, total, what)
        return result

    def _read(self, scope: Scope, what: str, spreads=None) -> Reading:
        return read(scope, self.prompts, spreads, lambda done, total: self._told(what, done - 1, total, None))


def _made_like(scope: Scope) -> tuple:
    """What seeds of one model have in common: class, configuration, vocabulary."""
    config = getattr(scope.model, "config", None)
    fields = {} if config is None else config.to_dict()
    said = {name: value for name, value in fields.items() if not name.startswith("_") and name not in CHANGEABLE}
    return type(scope.model), said, None if scope.tokenizer is None else scope.tokenizer.get_vocab()


@dataclass
class Pair:
    """A DIFF model and the standard model that it is matched with, or as many seeds of each."""

    diff: Subject
    standard: Subject

    def check(self) -> None:
        """Raise Missing unless the first is differential, the other standard, and both have the same prompts."""
        if any(reading.paired is None for reading in self.diff.readings):
            raise Missing("a differential model beside the standard one")
        if any(reading.paired is not None for reading in self.standard.readings):
            raise Missing("a standard model to compare with: the one given is differential")
        if [prompt.ids for prompt in self.diff.prompts] != [prompt.ids for prompt in self.standard.prompts]:
            raise Missing("two models of one tokenizer, so that their prompts are the same")


def anew(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """A model of the same class and configuration as its library begins one: drawn from a stream of its own.

    Raises
    ------
    Missing
        The model cannot be made from its configuration.
    """
    stream = int.from_bytes(hashlib.sha256(f"untrained {seed}".encode()).digest()[:7])
    device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream)
            fresh = type(model)(model.config)
    except (AttributeError, TypeError, ValueError) as error:
        raise Missing(f"an architecture of which an untrained model can be made ({error})") from None
    return fresh.to(device=device, dtype=dtype).eval()
