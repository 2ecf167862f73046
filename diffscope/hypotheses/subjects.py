"""What tests are made on: trained models, alone or in pairs, and untrained ones of their architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError, Missing
from diffscope.evidence.costs import lost_without_a2, lost_without_heads
from diffscope.evidence.heads import Table
from diffscope.evidence.last_query import LastQuery, read
from diffscope.evidence.matching import Match
from diffscope.evidence.quantities import DIFFERENCES, RATIOS, a1_on, label_of
from diffscope.evidence.untrained import untrained_like
from diffscope.hypotheses.a2_cost import A2Cost, a2_cost
from diffscope.hypotheses.weights import A2, ANSWER, BY, KNOCK_OUT, Weights
from diffscope.scope import Scope
from diffscope.tasks.encoding import encode_prompts, require_answers
from diffscope.tasks.prompt import Prompt, TextPrompt
from diffscope.tasks.retrieval import Retrieval
from diffscope.tasks.sampling import draw
from diffscope.tasks.trained_on import template_of

CHANGEABLE = ("dtype", "torch_dtype", "transformers_version")
UNTRAINED = 24  # models of random weights
FEW = 10  # prompts of what takes long: two at each depth
FEWER = 5  # of untrained models, which differ more from each other than with the prompt
Progress = Callable[[float, int, str], None]
Take = Callable[[Scope, Sequence[Prompt], Sequence[Match] | None], xr.Dataset]
T = TypeVar("T")
Read = Callable[[Any], dict[str, xr.DataArray]]  # of what was taken, LastQuery or Dataset, quantities by name


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
        The needle sentence; by default the one that a cohort or a model was trained on.
    untrained : int
        Models of random weights that a trained one is compared with.
    first : int
        Number of the first of these, so that several trainings can have others each.
    own : tuple of TextPrompt
        A person's own prompts in place of retrieval prompts; of those the first `prompts`.
    weights : {"knock-out", "a2", "answer"}
        What heads count with: by how much the answer's loss rises without them, or without their second map alone, or A1's mass
        on the answer. By the first two untrained models' heads count as those of the trained model in their place, a head whose
        loss costs nothing counts 0, and what comes of A1's mass on the answer stands beside, as the second view. A standard head
        has one map: it counts with what the head costs by either.
    """

    prompts: int = 40
    length: int = 160
    needles: int = 4
    seed: int = 50_000
    template: str | None = None
    untrained: int = UNTRAINED
    first: int = 0
    own: tuple[TextPrompt, ...] = ()
    weights: Weights = KNOCK_OUT

    def __post_init__(self):
        if self.weights not in BY:
            raise DiffscopeError(f"heads are not weighted by {self.weights!r}; choose {', '.join(BY)}")

    def prompts_for(self, scope: Scope) -> list[Prompt]:
        """The prompts in the tokens of a model."""
        if self.own:
            return require_answers(encode_prompts(scope.tokenizer, self.own))[: self.prompts]
        if self.needles < 2:
            raise DiffscopeError("a prompt with one needle has no distractors; give two needles or more")
        task = Retrieval(scope.tokenizer, held_out=True, template=self.template or template_of(scope.model))
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
        Whether they are the checkpoints of one training. Then the statistics of the last query are of another untrained model at
        each step, since how much two maps are alike by chance changes as weights do; what :meth:`measure_each` takes is of one
        model for all steps, since what is peculiar to a model does not average out over steps.
    """

    scopes: Sequence[Scope]
    settings: Settings = field(default_factory=Settings)
    progress: Progress | None = None
    series: bool = False
    _taken: dict = field(default_factory=dict, repr=False)

    seeds: ClassVar[tuple[int, ...]] = ()  # of their trainings, which a model does not say
    prompts_are: ClassVar[Literal["crossed", "nested"]] = "crossed"  # with the models, which all get the same

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

    @property
    def names(self) -> list[str]:
        """What the models are called."""
        return [scope.name for scope in self.scopes]

    @property
    def steps(self) -> np.ndarray:
        """The steps of checkpoints, which are called NAME@STEP: (step,)."""
        return np.array([float(name.rpartition("@")[2]) for name in self.names])

    @property
    def differential(self) -> bool:
        """Whether all of them have a second map."""
        return all(last_query.differential for last_query in self.last_queries)

    @property
    def besides(self) -> str:
        """What the attention of one of them has that standard attention has not, besides a second map."""
        return next((last_query.besides for last_query in self.last_queries if last_query.besides), "")

    @property
    def asked(self) -> list[list[int]]:
        """The tokens of the prompts."""
        return [prompt.ids for prompt in self.prompts]

    @property
    def layers(self) -> list[xr.Dataset]:
        """λ, λ_init and λ* by layer, of each model."""
        return [last_query.layers for last_query in self.last_queries]

    @cached_property
    def last_queries(self) -> list[LastQuery]:
        """Statistics of the last query, of each model."""
        return [self._read(scope, f"reading {scope.name}") for scope in self.scopes]

    @cached_property
    def untrained(self) -> list[LastQuery]:
        """The same of untrained models that are made like the trained ones in turn."""
        return [
            self._read(scope, f"untrained model {index + 1} of {self.settings.untrained}", match)
            for index, (scope, match) in enumerate(self.untrained_models())
        ]

    @cached_property
    def knocked_out(self) -> list[xr.DataArray]:
        """What each head's loss costs the answer in each model, (layer, head, prompt), nats."""
        costs = []
        for scope in self._counted:
            costs.append(lost_without_heads(scope, self.few).sel(measure="loss", drop=True))
            self._tell(len(costs), len(self._counted), f"{scope.name} without each head")
        return costs

    @cached_property
    def without_a2(self) -> list[xr.Dataset]:
        """What the second map of each head and layer costs the answer in each model, in nats of its loss."""
        costs = []
        for scope in self._counted:
            costs.append(lost_without_a2(scope, self.few).sel(measure="loss", drop=True))
            self._tell(len(costs), len(self._counted), f"{scope.name} without A2 of each head")
        return costs

    @property
    def _counted(self) -> Sequence[Scope]:
        """The models whose heads are weighed: of a series its last, whose heads are followed from the first step on."""
        return self.scopes[-1:] if self.series else self.scopes

    @cached_property
    def costs(self) -> list[xr.DataArray] | None:
        """What heads count with in each model, (layer, head) in nats, no less than 0; None by A1's mass on the answer."""
        by = self.settings.weights
        if by == ANSWER:
            return None
        a2 = by == A2 and self.differential
        each = [of["of_head"] for of in self.without_a2] if a2 else self.knocked_out
        costs = [cost.mean("prompt").clip(min=0) for cost in each]
        if not all(float(cost.sum()) > 0 for cost in costs):
            raise Missing(f"a model that loses something without {'A2 of ' if a2 else ''}one of its heads, to weight them by it")
        return costs

    @cached_property
    def a2_cost(self) -> A2Cost | None:
        """What the second map costs the answer in the heads that count, as they count; None without a second map."""
        if not self.differential:
            return None
        reads = self.last_queries[-1:] if self.series else self.last_queries
        counting = self.costs or [read.answering for read in reads]
        return a2_cost(
            [of["of_head"] for of in self.without_a2],
            counting,
            [of["layer_together"] for of in self.without_a2],
            self.prompts_are,
        )

    def untrained_models(self, in_a_row: int = 1) -> Iterator[tuple[Scope, list[Match]]]:
        """Models of the first one's architecture with random weights, and what of the trained ones in turn they are given.

        Each comes `in_a_row` times.
        """
        first = self.scopes[0]
        for index in range(self.settings.untrained):
            if index % in_a_row == 0:
                model = untrained_like(first.model, self.settings.seed + self.settings.first + index)
                scope = Scope(model, first.tokenizer, f"untrained {index}", first.family)
            yield scope, self.last_queries[index % len(self.last_queries)].matches

    def tables(self, quantities: Read, take: Take | None = None, apart: Sequence[str] = ()) -> tuple[list[Table], list[Table]]:
        """Quantities of the trained models and of the untrained ones, heads weighted as the settings say.

        Parameters
        ----------
        quantities : callable
            From what was taken of one model to arrays by name.
        take : callable, optional
            What is taken of each model; by default the statistics of the last query.
        apart : sequence of str
            Quantities that are given of the heads that answer and of the others too, of trained models.
        """
        trained, untrained = (self.last_queries, self.untrained) if take is None else self.measure_each(take)
        tables = [tables_of(quantities, *two) for two in ((trained, self.last_queries), (untrained, self.untrained))]
        if (costs := self.costs) is not None:
            by = self.settings.weights
            tables = [
                [replace(table, costs=costs[i % len(costs)], weighted_by=by) for i, table in enumerate(models)]
                for models in tables
            ]
        return [table.apart(apart) for table in tables[0]], tables[1]

    def take_of_trained(self, take: Callable[[Scope, Models], T]) -> list[T]:
        """Apply ``take(scope, models)`` to every trained model, once for each `take`."""
        if take not in self._taken:
            taken = []
            for scope in self.scopes:
                taken.append(take(scope, self))
                self._tell(len(taken), len(self.scopes), take.__name__.strip("_").replace("_", " "))
            self._taken[take] = taken
        return self._taken[take]

    def measure_each(self, take: Take) -> tuple[list[xr.Dataset], list[xr.Dataset]]:
        """Apply ``take(scope, prompts, match)`` to every trained model and to untrained ones made like them, on few prompts.

        Done once for each `take`; `match` is None for the trained models.

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
            for scope, match in self.untrained_models(len(self.scopes) if self.series else 1):
                untrained.append(take(scope, self.few[:FEWER], match))
                self._tell(len(untrained), self.settings.untrained, f"{words}, untrained")
            self._taken[take] = trained, untrained
        return self._taken[take]

    def _tell(self, done: int, total: int, words: str) -> None:
        if self.progress:
            self.progress(done, total, words)

    def _read(self, scope: Scope, words: str, match: Sequence[Match] | None = None) -> LastQuery:
        return read(scope, self.prompts, match, lambda done, total: self._tell(done, total, words))


def tables_of(quantities: Read, taken: Sequence, last_queries: Sequence[LastQuery]) -> list[Table]:
    """Quantities of models, from what was taken of them; their heads are weighted by A1's mass on the answer."""
    label = label_of(quantities) or ""
    ratios, differences = RATIOS.get(label, {}), DIFFERENCES.get(label, {})
    return [
        Table(
            quantities(of_model),
            read.answering,
            over={name: a1_on(read, span) for name, span in ratios.items()},
            differences=differences,
            weighted_by=ANSWER,
        )
        for of_model, read in zip(taken, last_queries, strict=True)
    ]


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

    @property
    def prompts_are(self) -> Literal["crossed", "nested"]:
        """Whether all pairs got the same prompts, or each its own."""
        return self.diff.prompts_are

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the trainings, where they are known."""
        return self.diff.seeds

    def check(self) -> None:
        """Raise Missing unless the first is differential, the other plain standard attention, and both have the same prompts."""
        if not self.diff.differential:
            raise Missing("a differential model beside the standard one")
        if self.standard.differential:
            raise Missing("a standard model to compare with: the one given is differential")
        if self.standard.besides:
            raise Missing(f"a standard model to compare with: the one given has {self.standard.besides}")
        if self.diff.asked != self.standard.asked:
            raise Missing("two models of one tokenizer, so that their prompts are the same")

    def tables(self, quantities: Read, take: Take | None = None, apart: Sequence[str] = ()) -> tuple[list[Table], list[Table]]:
        """Quantities of DIFF minus the means of standard, whose heads need not be as many; each model's own heads weighted."""
        self.check()
        diff, standard = (models.tables(quantities, take, apart) for models in (self.diff, self.standard))
        trained, untrained = ([_minus(*two) for two in zip(*both, strict=True)] for both in zip(diff, standard))
        return trained, untrained


def _minus(diff: Table, standard: Table) -> Table:
    both = [name for name in diff.values if name in standard.values]
    second = None
    if diff.costs is not None:
        by_answer = {name: standard.by_answer(name) for name in both}
        second = {name: diff.values[name] - (standard.mean(name) if of is None else of) for name, of in by_answer.items()}
    return replace(diff, values={name: diff.values[name] - standard.mean(name) for name in both}, second=second)
