"""What tests are made on: trained models, alone or in pairs, and untrained ones of their architecture."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.evidence.last_query import LastQuery, read
from diffscope.hypotheses.rules import Missing
from diffscope.lab.scoring import draw
from diffscope.scope import Scope
from diffscope.tasks.own import own_prompts, with_answers
from diffscope.tasks.retrieval import TEMPLATE, Prompt, Retrieval
from diffscope.tasks.user_files import TextPrompt

CHANGEABLE = ("dtype", "torch_dtype", "transformers_version")
UNTRAINED = 24  # models of random weights
FEW = 10  # prompts of what takes long: two at each depth
Progress = Callable[[float, int, str], None]
Spreads = Sequence[torch.Tensor]
Take = Callable[[Scope, Sequence[Prompt], Spreads | None], xr.Dataset]


@dataclass
class Settings:
    """The prompts of a board, and how much is spent on them.

    Attributes
    ----------
    prompts : int
        Retrieval prompts, spread over five depths.
    length : int
        Tokens a prompt.
    needles : int
        Needles a prompt, that of the question included.
    seed : int
        Of prompts and untrained models.
    template : str, optional
        The needle sentence; by default the one that a cohort was trained on, or that of the bundled models.
    untrained : int
        Models of random weights that a trained one is compared with.
    first : int
        Number of the first of these, so that several trainings can have others each.
    own : tuple of TextPrompt
        A person's own prompts in place of retrieval prompts; of those the first `prompts`.
    """

    prompts: int = 40
    length: int = 160
    needles: int = 4
    seed: int = 50_000
    template: str | None = None
    untrained: int = UNTRAINED
    first: int = 0
    own: tuple[TextPrompt, ...] = ()

    def prompts_for(self, scope: Scope) -> list[Prompt]:
        """The prompts in the tokens of a model."""
        if self.own:
            return with_answers(own_prompts(scope.tokenizer, self.own))[: self.prompts]
        if self.needles < 2:
            raise DiffscopeError("a prompt with one needle has no distractors; give two needles or more")
        task = Retrieval(scope.tokenizer, held_out=True, template=self.template or TEMPLATE)
        return draw(task, self.prompts, self.length, self.needles, self.seed)


@dataclass
class Models:
    """One trained model, or several that differ in their seed alone, and what they do with the prompts.

    Everything is measured when a test first uses it.

    Attributes
    ----------
    scopes : sequence of Scope
    settings : Settings
    progress : callable, optional
        Called with (done, total, words).
    series : bool
        Whether they are the checkpoints of one training. Then :meth:`measure_each` takes one untrained model for all steps, as
        the checkpoints are of one: what is peculiar to a model does not average out over steps. The statistics of the last query
        are of another untrained model at each step, which makes growth over steps harder to find.
    """

    scopes: Sequence[Scope]
    settings: Settings = field(default_factory=Settings)
    progress: Progress | None = None
    series: bool = False
    _taken: dict = field(default_factory=dict, repr=False)

    def __post_init__(self):
        names = [scope.name for scope in self.scopes]
        if len(set(names)) < len(names):
            raise DiffscopeError(f"{names[0]} is named twice; several models are seeds of one, each another")
        kind = _kind(self.scopes[0])
        for scope in self.scopes[1:]:
            if _kind(scope) != kind:
                raise DiffscopeError(f"{scope.name} is not made like {names[0]}; several models are seeds of one")

    @cached_property
    def prompts(self) -> list[Prompt]:
        """The same for all: seeds and untrained models have the first one's vocabulary."""
        return self.settings.prompts_for(self.scopes[0])

    @property
    def few(self) -> list[Prompt]:
        """The first prompts, two at each depth: for what takes long."""
        return self.prompts[:FEW]

    @cached_property
    def last_queries(self) -> list[LastQuery]:
        """Statistics of the last query, of each model."""
        return [self._read(scope, f"reading {scope.name}") for scope in self.scopes]

    @cached_property
    def untrained(self) -> list[LastQuery]:
        """The same of untrained models whose scores are as far apart as those of the trained ones in turn."""
        return [
            self._read(scope, f"untrained model {index + 1} of {self.settings.untrained}", spreads)
            for index, (scope, spreads) in enumerate(self.untrained_models())
        ]

    def untrained_models(self, in_a_row: int = 1) -> Iterator[tuple[Scope, list[torch.Tensor]]]:
        """Models of the first one's architecture with random weights, and how far apart their scores are to be.

        Each comes `in_a_row` times, as sharp as each of the trained ones in turn.
        """
        first = self.scopes[0]
        for index in range(self.settings.untrained):
            if index % in_a_row == 0:
                model = untrained_like(first.model, self.settings.seed + self.settings.first + index)
                scope = Scope(model, first.tokenizer, f"untrained {index}", first.family)
            yield scope, self.last_queries[index % len(self.last_queries)].spreads

    def measure_each(self, take: Take) -> tuple[list[xr.Dataset], list[xr.Dataset]]:
        """Apply ``take(scope, prompts, spreads)`` to every trained model and to untrained ones made as sharp, on few prompts.

        Done once for each `take`; `spreads` is None for the trained models.

        Returns
        -------
        list of Dataset
            Of the trained models.
        list of Dataset
            Of the untrained ones.
        """
        if take not in self._taken:
            words = take.__name__.replace("_", " ")
            trained = []
            for scope in self.scopes:
                trained.append(take(scope, self.few, None))
                self._tell(len(trained), len(self.scopes), words)
            untrained = []
            for scope, spreads in self.untrained_models(len(self.scopes) if self.series else 1):
                untrained.append(take(scope, self.few, spreads))
                self._tell(len(untrained), self.settings.untrained, f"{words}, untrained")
            self._taken[take] = trained, untrained
        return self._taken[take]

    def _tell(self, done: int, total: int, words: str) -> None:
        if self.progress:
            self.progress(done, total, words)

    def _read(self, scope: Scope, words: str, spreads: Spreads | None = None) -> LastQuery:
        return read(scope, self.prompts, spreads, lambda done, total: self._tell(done, total, words))


def _kind(scope: Scope) -> tuple:
    """What seeds of one model have in common: class, configuration, vocabulary."""
    config = getattr(scope.model, "config", None)
    fields = {} if config is None else config.to_dict()
    shared = {name: value for name, value in fields.items() if not name.startswith("_") and name not in CHANGEABLE}
    return type(scope.model), shared, None if scope.tokenizer is None else scope.tokenizer.get_vocab()


@dataclass
class Pair:
    """A DIFF model and the standard model that it is matched with, or as many seeds of each."""

    diff: Models
    standard: Models

    def check(self) -> None:
        """Raise Missing unless the first is differential, the other plain standard attention, and both have the same prompts."""
        if any(not last_query.differential for last_query in self.diff.last_queries):
            raise Missing("a differential model beside the standard one")
        for last_query in self.standard.last_queries:
            if last_query.differential:
                raise Missing("a standard model to compare with: the one given is differential")
            if last_query.besides:
                raise Missing(f"a standard model to compare with: the one given has {last_query.besides}")
        if [prompt.ids for prompt in self.diff.prompts] != [prompt.ids for prompt in self.standard.prompts]:
            raise Missing("two models of one tokenizer, so that their prompts are the same")


def untrained_like(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """A model of the same class and configuration as its library begins one: drawn from a stream of its own.

    Raises
    ------
    Missing
        The model cannot be made from its configuration.
    """
    stream = int.from_bytes(hashlib.sha256(f"untrained {seed}".encode()).digest()[:7])
    parameter = next(model.parameters())
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream)
            untrained = type(model)(model.config)
    except (AttributeError, TypeError, ValueError) as error:
        raise Missing(f"an architecture of which an untrained model can be made ({error})") from None
    return untrained.to(device=parameter.device, dtype=parameter.dtype).eval()
