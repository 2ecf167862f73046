"""What tests are made on: trained models, and untrained ones of their architecture."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.reading import Reading, read
from diffscope.hypotheses.rules import Missing
from diffscope.lab.evaluate import draw
from diffscope.scope import Scope
from diffscope.tasks.retrieval import TEMPLATE, Prompt, Retrieval

CHANGEABLE = ("dtype", "torch_dtype", "transformers_version")
UNTRAINED = 24  # models of random weights
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
    """

    prompts: int = 40
    length: int = 160
    needles: int = 4
    seed: int = 50_000
    template: str = TEMPLATE
    untrained: int = UNTRAINED

    def of(self, scope: Scope) -> list[Prompt]:
        if self.needles < 2:
            raise DiffscopeError("a prompt without other needles has no noise that competes; give two needles or more")
        task = Retrieval(scope.tokenizer, held_out=True, template=self.template)
        return draw(task, self.prompts, self.length, self.needles, self.seed)


@dataclass
class Subject:
    """One trained model, or several that differ in their seed alone, and what they do with the prompts.

    Everything is read when a test asks for it first.
    """

    scopes: Sequence[Scope]
    asked: Asked = field(default_factory=Asked)
    progress: Progress | None = None

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
        first, found = self.scopes[0], []
        for i in range(self.asked.untrained):
            scope = Scope(anew(first.model, self.asked.seed + i), first.tokenizer, f"untrained {i}", first.family)
            spreads = self.readings[i % len(self.readings)].spreads
            found.append(self._read(scope, f"untrained model {i + 1} of {self.asked.untrained}", spreads))
        return found

    def _read(self, scope: Scope, what: str, spreads=None) -> Reading:
        def tell(done: int, total: int) -> None:
            if self.progress:
                self.progress(done, total, what)

        return read(scope, self.prompts, spreads, tell)


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
