"""What tests are made on: models by their evidence, alone, in pairs, or as the checkpoints of one training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import xarray as xr

from diffscope.errors import DiffscopeError, Missing
from diffscope.evidence.heads import (
    HEADS,
    UNTRAINED,
    Table,
    mean_over_prompts,
    names_of,
    table_of,
    untrained_table_of,
    weighted,
)
from diffscope.evidence.quantities import A2_OUT, KNOCK_OUT
from diffscope.evidence.take import LAST_QUERY, PART_OF_LABEL, PARTS, OpenModels, part_of_outcome
from diffscope.hypotheses.rules import A2, ANSWER, Cost, Weights
from diffscope.hypotheses.rules import KNOCK_OUT as BY_KNOCK_OUT
from diffscope.hypotheses.settings import Settings
from diffscope.hypotheses.statistics import Sample, estimate
from diffscope.scope import Scope
from diffscope.stats.intervals import t_half_width
from diffscope.tasks.prompt import Prompt

CHANGEABLE = ("dtype", "torch_dtype", "transformers_version")
WHOLE = "whole heads"
NOT_HELD = "open models, since evidence that was stored or simulated does not hold it"
NO_A2_COST = "what A2 of each head costs, which this evidence does not hold; weight heads by knock-out"
Progress = Callable[[float, int, str], None]


class Models:
    """One model, or several that differ in their seed alone, or the checkpoints of one training, by their evidence.

    Parameters
    ----------
    evidence : sequence of Dataset
        One a model, or one a checkpoint, as :mod:`diffscope.evidence.take` and
        :func:`diffscope.evidence.run_file.at_step` give them.
    names : sequence of str
        What the models are called.
    steps : sequence of int, optional
        Of the checkpoints of one training, in order.
    weights : {"knock-out", "a2", "answer"}
        What heads count with, as of :class:`Settings`.
    source : OpenModels, optional
        From which parts of the evidence are taken when a test first needs them.
    """

    def __init__(
        self,
        evidence: Sequence[xr.Dataset] = (),
        names: Sequence[str] = (),
        *,
        steps: Sequence[int] | None = None,
        weights: Weights = BY_KNOCK_OUT,
        source: OpenModels | None = None,
    ):
        self.names = list(names)
        self.weights = weights
        self.source = source
        self._steps = steps
        self._evidence = list(evidence) or [xr.Dataset() for _ in self.names]
        self._taken: set[tuple[str, int]] = set()

    @classmethod
    def open(
        cls,
        scopes: Sequence[Scope],
        settings: Settings | None = None,
        progress: Progress | None = None,
        series: bool = False,
    ) -> Models:
        """Return open models, seeds of one or the checkpoints of one training, ``NAME@STEP`` in order.

        Raises
        ------
        DiffscopeError
            They are not of one kind, or one is named twice.
        """
        settings = settings or Settings()
        names = [scope.name for scope in scopes]
        if twice := [name for number, name in enumerate(names) if name in names[:number]]:
            raise DiffscopeError(f"{twice[0]} is named twice; give each model once, since several are seeds of one")
        kind = _kind(scopes[0])
        for scope in scopes[1:]:
            if _kind(scope) != kind:
                raise DiffscopeError(f"{scope.name} is not made like {names[0]}; several models are seeds of one")
        source = OpenModels(
            scopes,
            lambda: settings.prompts_for(scopes[0]),
            settings.other_prompts_for,
            settings.untrained,
            settings.seed + settings.first,
            series,
            progress,
        )
        steps = [int(name.rpartition("@")[2]) for name in names] if series else None
        return cls(names=names, steps=steps, weights=settings.weights, source=source)

    @property
    def scopes(self) -> Sequence[Scope]:
        """The open models; none if their evidence was stored."""
        return self.source.scopes if isinstance(self.source, OpenModels) else ()

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        """The numbers of the layers with attention in open models, which are of one kind.

        Empty if the evidence was stored, which does not hold them: its layers are counted.
        """
        return tuple(self.scopes[0].layer_numbers) if self.scopes else ()

    @property
    def prompts(self) -> Sequence[Prompt]:
        """The prompts of open models."""
        return self.source.prompts if self.source else ()

    @property
    def steps(self) -> np.ndarray:
        """The steps of the checkpoints, (step,)."""
        return np.array(self._steps if self._steps is not None else (), dtype=float)

    @property
    def differential(self) -> bool:
        """Whether all of them have a second map."""
        return all(bool(of.attrs["differential"]) for of in self.evidence(LAST_QUERY))

    @property
    def extras(self) -> str:
        """What the attention of one of them has that standard attention has not, besides a second map."""
        return next((of.attrs["extras"] for of in self.evidence(LAST_QUERY) if of.attrs["extras"]), "")

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of their trainings; empty if they are not known."""
        return tuple(int(of.attrs["seed"]) for of in self._counted(self._evidence) if "seed" in of.attrs)

    @property
    def prompt_keys(self) -> list[str]:
        """What tells the prompts of each model from others."""
        return [of.attrs["prompts"] for of in self.evidence(LAST_QUERY)]

    @property
    def prompts_are(self) -> Literal["crossed", "nested"]:
        """Whether all models got the same prompts, or each its own."""
        return "crossed" if len(set(self.prompt_keys)) == 1 else "nested"

    @property
    def layers(self) -> list[xr.Dataset]:
        """λ, λ_init and λ* by layer, of each model."""
        return [of[["lam", "lam_init", "lambda_star"]] for of in self.evidence(LAST_QUERY)]

    def evidence(self, part: str, numbers: Sequence[int] | None = None) -> list[xr.Dataset]:
        """Return the evidence of every model, or of some by number, with a part of it if it is held or can be taken."""
        numbers = range(len(self._evidence)) if numbers is None else numbers
        for number in numbers:
            if self.source and part in self.source.parts and (part, number) not in self._taken:
                self._add(number, self.source.take(part, number))
                self._taken.add((part, number))
        return [self._evidence[number] for number in numbers]

    def tables(self, label: str, apart: Sequence[str] = ()) -> tuple[list[Table], list[Table]]:
        """Return quantities of the trained models and of untrained ones, heads weighted as the settings say.

        Parameters
        ----------
        label : str
            The quantities LABEL.NAME.
        apart : sequence of str
            Quantities that are given of the heads that answer and of the others too, of trained models.

        Raises
        ------
        Missing
            The evidence does not hold them, or not what heads count with.
        """
        part = PART_OF_LABEL.get(label, "")
        self.evidence(LAST_QUERY)
        evidence = self.evidence(part)
        if not all(names_of(of, label) for of in evidence):
            raise Missing(NOT_HELD)
        self._take_untrained(part)
        costs = self._costs_of_each()
        trained = [table_of(of, label, cost, self.weights).apart(apart) for of, cost in zip(self._evidence, costs)]
        untrained = []
        sizes = [of.sizes.get("untrained", 0) for of in self._evidence]
        for index in range(max(sizes)):
            for of, cost, size in zip(self._evidence, costs, sizes):
                if index < size:
                    untrained.append(untrained_table_of(of, index, label, cost, self.weights))
        return trained, untrained

    def outcomes(self, *names: str) -> dict[str, Sample]:
        """Return what edits and questions came to in whole models, (seed, prompt), by name: those that any of them holds.

        A model that does not hold one is NaN. ``layers`` are the means of NAME_LAYER, what the edit came to in one layer, if
        they are held. Of a series those of its last checkpoint.
        """
        samples = {}
        for name in names:
            ends = self._ends(part_of_outcome(name) or "")
            with_name = [end[name].values for end in ends if name in end]
            if not with_name:
                continue
            missing = np.full_like(with_name[0], np.nan)
            values = np.stack([end[name].values if name in end else missing for end in ends])  # (seed, prompt)
            by_layer = [_layers_of(end, name) for end in ends if f"{name}_0" in end]
            layers = np.mean(by_layer, 0) if by_layer else None
            samples[name] = Sample(values, layers=layers, prompts=self.prompts_are, seeds=self.seeds)
        return samples

    @cached_property
    def costs(self) -> list[xr.DataArray] | None:
        """What heads count with in each model, (layer, head) in nats, no less than 0; None by A1's mass on the answer.

        Of a series of its last checkpoint alone, whose heads are followed from the first step on.

        Raises
        ------
        Missing
            It is not held, or no head costs anything.
        """
        if self.weights == ANSWER:
            return None
        label = A2_OUT if self.weights == A2 and self.differential else KNOCK_OUT
        costs = []
        for of in self._ends(PART_OF_LABEL[label]):
            if f"{label}.loss" not in of:
                raise Missing(NO_A2_COST)
            costs.append(mean_over_prompts(of[f"{label}.loss"]).clip(min=0))
        if not all(float(cost.sum()) > 0 for cost in costs):
            which = "A2 of " if label == A2_OUT else ""
            raise Missing(f"a model that loses something without {which}one of its heads, to weight them by it")
        return costs

    @cached_property
    def a2_cost(self) -> Cost | None:
        """What the second map costs the answer in the heads that count, as they count.

        Of whole heads if the evidence does not hold what A2 alone costs. The interval is over seeds; of one model over its
        prompts, and if it holds their mean alone, the errors of heads are taken to go together. None without a second map, if the
        evidence does not hold what heads cost, and if no head that has a second map counts.
        """
        if not self.differential:
            return None
        ends = self._ends(PART_OF_LABEL[A2_OUT])
        of = "A2" if all(f"{A2_OUT}.loss" in end for end in ends) else WHOLE
        name = f"{A2_OUT if of == 'A2' else KNOCK_OUT}.loss"
        ends = self._ends(PART_OF_LABEL[A2_OUT if of == "A2" else KNOCK_OUT])
        if not all(name in end for end in ends):
            return None
        counting = [weights.astype(float) for weights in self.costs or [end["weight"] for end in ends]]
        in_float64 = [end[name].astype(float) for end in ends]
        values = np.array([weighted(costs, weights, HEADS).values for costs, weights in zip(in_float64, counting)])
        if not np.isfinite(values).any():
            return None
        if values.size > 1:
            cost = estimate(Sample(values, prompts=self.prompts_are), leave_out=False)  # (seed, prompt)
            if cost.why:  # of too few prompts
                return None
            return Cost(cost.value, cost.low, cost.high, of)
        held = ends[0].get(f"error.{name}")  # of a single prompt there is no error
        error = np.nan if held is None else float(weighted(held, counting[0], HEADS).item())
        reach = t_half_width(error, ends[0].attrs.get("prompts_of_costs", 1) - 1)
        value = float(values.item())
        return Cost(value, value - reach, value + reach, of)

    def _counted(self, of_models: Sequence) -> Sequence:
        """Return those of the models whose heads are weighed: of a series the last."""
        return of_models[-1:] if self._steps is not None else of_models

    def _ends(self, part: str) -> list[xr.Dataset]:
        """Return the evidence of the models whose heads are weighed, with a part."""
        numbers = self._counted(range(len(self._evidence)))
        self.evidence(LAST_QUERY, numbers)
        return self.evidence(part, numbers)

    def _costs_of_each(self) -> list[xr.DataArray | None]:
        count = len(self._evidence)
        if self.costs is None:
            return [None] * count
        return [self.costs[number % len(self.costs)] for number in range(count)]

    def _take_untrained(self, part: str) -> None:
        """Take a part of the untrained models, and by A1's mass what their heads count with."""
        for needed in {LAST_QUERY: None, part: None} if self.weights == ANSWER else {part: None}:
            for number in range(len(self._evidence)):
                key = f"{UNTRAINED}{needed}", number
                if self.source and needed in self.source.parts and PARTS[needed].untrained and key not in self._taken:
                    self._add(number, self.source.take_untrained(needed, number))
                    self._taken.add(key)

    def _add(self, number: int, taken: xr.Dataset) -> None:
        whole = self._evidence[number]
        self._evidence[number] = whole.assign(taken.data_vars).assign_attrs(taken.attrs)


def _layers_of(of: xr.Dataset, name: str) -> list[float]:
    """Return the means over prompts of an outcome of each layer."""
    return [float(of[f"{name}_{layer}"].mean()) for layer in range(of.sizes["layer"])]


def cost_by_layer(end: xr.Dataset, of: str) -> list[float]:
    """Return what A2 of each layer costs at once, or the sum of what its heads cost, in nats; NaN if that is not held."""
    if of == WHOLE:
        return mean_over_prompts(end[f"{KNOCK_OUT}.loss"]).sum("head").values.tolist()
    if "without_a2_0" not in end:
        return [float("nan")] * end.sizes["layer"]
    return _layers_of(end, "without_a2")


def _kind(scope: Scope) -> tuple:
    """Return what seeds of one model have in common: class, configuration, vocabulary."""
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
        """The seeds of the trainings, if they are known."""
        return self.diff.seeds

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        """The numbers of the layers with attention of the DIFF model, whose heads are left out."""
        return self.diff.layer_numbers

    @property
    def a2_cost(self) -> Cost | None:
        """What the second map costs the answer in the heads of the DIFF model that count."""
        return self.diff.a2_cost

    def check(self) -> None:
        """Raise Missing unless the first is differential, the other plain standard attention, and both have the same prompts."""
        if not self.diff.differential:
            raise Missing("a differential model beside the standard one")
        if self.standard.differential:
            raise Missing("a standard model to compare with: the one given is differential")
        if self.standard.extras:
            raise Missing(f"a standard model to compare with: the one given has {self.standard.extras}")
        if self.diff.prompt_keys != self.standard.prompt_keys:
            raise Missing("two models of one tokenizer, so that their prompts are the same")

    def tables(self, label: str, apart: Sequence[str] = ()) -> tuple[list[Table], list[Table]]:
        """Return quantities of DIFF minus the means of standard, whose heads need not be as many; own heads weighted."""
        self.check()
        diff, standard = (models.tables(label, apart) for models in (self.diff, self.standard))
        trained, untrained = ([_minus(*two) for two in zip(*both, strict=True)] for both in zip(diff, standard))
        return trained, untrained

    def outcomes(self, *names: str) -> dict[str, Sample]:
        """Return outcomes of DIFF minus those of standard, (seed, prompt), by name: those that both hold."""
        diff, standard = (models.outcomes(*names) for models in (self.diff, self.standard))
        both = {name: of.values - standard[name].values for name, of in diff.items() if name in standard}
        return {name: replace(diff[name], values=values, layers=None) for name, values in both.items()}


def _minus(diff: Table, standard: Table) -> Table:
    both = [name for name in diff.values if name in standard.values]
    second = None
    if diff.costs is not None:
        by_answer = {name: standard.by_answer(name) for name in both}
        second = {name: diff.values[name] - (standard.mean(name) if of is None else of) for name, of in by_answer.items()}
    return replace(diff, values={name: diff.values[name] - standard.mean(name) for name in both}, second=second)
