"""Trained models of which only their evidence was kept: tests take them as they take models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import xarray as xr
from scipy import special

from diffscope.errors import DiffscopeError, Missing
from diffscope.evidence.at_end import A2_LOST, A2_OF_LAYER, HEAD_LOST
from diffscope.evidence.heads import HEADS, Table, weighted
from diffscope.evidence.quantities import DIFFERENCES, RATIOS, a1_mass, label_of
from diffscope.evidence.take import EVIDENCE, open_evidence
from diffscope.hypotheses.a2_cost import WHOLE, A2Cost
from diffscope.hypotheses.intervals import students_t
from diffscope.hypotheses.statistics import Sample
from diffscope.hypotheses.subjects import Read, Take
from diffscope.hypotheses.weights import A2, ANSWER, KNOCK_OUT, Weights
from diffscope.stats.intervals import LEVEL

REJECTION = "rejected_noise.over_paired"
NOT_KEPT = "the models themselves, since the evidence that was kept of runs does not hold it"
A2_NOT_KEPT = "what A2 of each head costs, which the evidence that was kept of runs does not hold; weight heads by knock-out"
#: masses in D by name, as the evidence calls them; of standard attention in its one map
ALIKE = {
    "share": "answer_mass.share",
    "raw": "answer_mass.raw",
    "signed": "answer_mass.signed",
    "positive": "answer_mass.positive",
    "needles": "answer_mass.needles",
    "sink": "sink_shares.d",
}


@dataclass
class KeptModels:
    """The evidence of runs that differ in their seed alone, or of the checkpoints of one run.

    Every table has one prompt, the mean over all of them. What was not kept cannot be asked: tests leave out those quantities.

    Attributes
    ----------
    evidence : sequence of Dataset
        As :func:`diffscope.evidence.take.evidence_of_run` gives it.
    names : sequence of str
    series : bool
        Whether the steps of one run are asked for, in place of the ends of several.
    weights : {"knock-out", "a2", "answer"}
        What heads count with, as of :class:`diffscope.hypotheses.subjects.Settings`: what they cost at the end of the run.
    """

    evidence: Sequence[xr.Dataset]
    names: Sequence[str]
    series: bool = False
    weights: Weights = KNOCK_OUT

    scopes = ()
    prompts_are = "nested"  # each run has its own

    def __post_init__(self):
        if self.series and len(self.evidence) != 1:
            raise DiffscopeError("a series is the checkpoints of one run; give the evidence of one")

    @property
    def differential(self) -> bool:
        return all(bool(dataset.attrs["differential"]) for dataset in self.evidence)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the trainings, in their order."""
        return tuple(json.loads(settings)["seed"] for settings in self.asked)

    @property
    def besides(self) -> str:
        return next((dataset.attrs["besides"] for dataset in self.evidence if dataset.attrs["besides"]), "")

    @property
    def steps(self) -> np.ndarray:
        return self.evidence[0]["step"].values.astype(float)

    @property
    def asked(self) -> list[str]:
        """What the prompts were drawn with, a text a model."""
        return [dataset.attrs["settings"] for dataset in self.evidence]

    @cached_property
    def layers(self) -> list[xr.Dataset]:
        """λ, λ_init and λ* by layer, of each model or step."""
        names = ["lam", "lam_init", "lambda_star"]
        return [dataset[names].isel(step=step).mean("distractors") for dataset, step in self._places]

    def outcomes(self, *names: str) -> dict[str, Sample]:
        """What whole models came to, mean over prompts, by name: those of these measures that were taken of any of them.

        A model of which one was not taken is NaN.
        """
        ends = [dataset["outcome"].isel(step=-1).mean("distractors") for dataset in self.evidence]
        table = xr.concat([end.reindex(measure=list(names)) for end in ends], "seed").transpose("measure", "seed").values
        taken = {name: values[:, None] for name, values in zip(names, table) if np.isfinite(values).any()}  # (seed, prompt)
        return {name: Sample(values, prompts="nested", seeds=self.seeds) for name, values in taken.items()}

    @property
    def _places(self) -> list[tuple[xr.Dataset, int]]:
        if self.series:
            return [(self.evidence[0], step) for step in range(self.evidence[0].sizes["step"])]
        return [(dataset, -1) for dataset in self.evidence]

    def tables(self, quantities: Read, take: Take | None = None, apart: Sequence[str] = ()) -> tuple[list[Table], list[Table]]:
        """The quantities of a function, as it gave them when the evidence was taken; see :meth:`Models.tables`.

        Raises
        ------
        Missing
            The evidence does not hold them.
        """
        places = self._places
        label = label_of(quantities)
        if label is None:
            raise Missing(NOT_KEPT)
        costs = [self._costs(dataset) for dataset, _ in places]
        trained = [
            replace(table_of(dataset, step, label), costs=cost, weighted_by=self.weights).apart(apart)
            for (dataset, step), cost in zip(places, costs)
        ]
        count = self.evidence[0].sizes["untrained"]
        moved = self.series and take is None  # another untrained model at each step, as of models that are open
        order = [((index + moved * number) % count, number) for index in range(count) for number in range(len(places))]
        untrained = [_null(*places[number], index, label, costs[number]) for index, number in order]
        return trained, untrained

    def _costs(self, dataset: xr.Dataset) -> xr.DataArray | None:
        """What heads count with, (layer, head) in nats; None by A1's mass on the answer.

        Raises
        ------
        Missing
            It was not kept, or no head costs anything.
        """
        if self.weights == ANSWER:
            return None
        a2 = self.weights == A2 and bool(dataset.attrs["differential"])
        costs = at_end_of(dataset, A2_LOST if a2 else HEAD_LOST)
        if costs is None:
            raise Missing(A2_NOT_KEPT)
        if not float(costs.clip(min=0).sum()) > 0:
            raise Missing(f"a run that loses something without {'A2 of ' if a2 else ''}one of its heads, to weight them by it")
        return costs.clip(min=0)

    @cached_property
    def a2_cost(self) -> A2Cost | None:
        """What the second map costs the answer in the heads that count at the end, as they count; None without a second map.

        Of whole heads if what A2 alone costs was not kept. The interval is over seeds; of one run over its prompts, the errors of
        heads taken to go together.
        """
        if not self.differential:
            return None
        known = [at_end_of(dataset, A2_LOST) for dataset in self.evidence]
        of: Literal["A2", "whole heads"] = "A2" if all(cost is not None for cost in known) else WHOLE
        name = A2_LOST if of == "A2" else HEAD_LOST
        heads = [at_end_of(dataset, name) for dataset in self.evidence]
        counting = [_counting(dataset, self._costs(dataset)) for dataset in self.evidence]
        values = np.array([float((cost * share).sum()) for cost, share in zip(heads, counting)])
        if len(values) > 1:
            low, high = students_t(values)[0]
        else:
            prompts = json.loads(self.asked[0])["few"]
            error = float((at_end_of(self.evidence[0], name, "end_error") * counting[0]).sum())
            reach = float(special.stdtrit(prompts - 1, 1 - LEVEL / 2)) * error
            low, high = values[0] - reach, values[0] + reach
        layers = np.mean([cost_by_layer(dataset, of) for dataset in self.evidence], 0)
        return A2Cost(float(values.mean()), float(low), float(high), of, tuple(layers.tolist()))


def at_end_of(dataset: xr.Dataset, name: str, variable: str = "end_value") -> xr.DataArray | None:
    """What was taken of heads at the end of a run, (layer, head), mean over numbers of distractors; None if it was not kept."""
    if name not in dataset["end_quantity"]:
        return None
    return dataset[variable].sel(end_quantity=name, drop=True).mean("distractors").transpose(*HEADS)


def costs_of(dataset: xr.Dataset) -> xr.DataArray:
    """What the loss of each head costs the answer at the end of a run, (layer, head) in nats; 0 of what costs nothing."""
    lost = dataset["end_value"].sel(end_quantity=HEAD_LOST, drop=True)
    return lost.mean("distractors").transpose(*HEADS).clip(min=0)


def _counting(dataset: xr.Dataset, costs: xr.DataArray | None) -> xr.DataArray:
    """The share of each head in what heads count with at the end, (layer, head); without costs A1's mass on the answer."""
    weights = dataset["weight"].isel(step=-1).mean("distractors") if costs is None else costs
    return weights / weights.sum()


def cost_by_layer(dataset: xr.Dataset, of: str) -> np.ndarray:
    """What A2 of each layer costs at once, or the sum of what its heads cost, (layer,) in nats; NaN if it was not kept."""
    if of == WHOLE:
        return dataset["end_value"].sel(end_quantity=HEAD_LOST).mean("distractors").sum("head").values
    if at_end_of(dataset, A2_LOST) is None:
        return np.full(dataset.sizes["layer"], np.nan)
    end = dataset["outcome"].isel(step=-1).mean("distractors")
    return np.array([float(end.sel(measure=A2_OF_LAYER.format(layer))) for layer in range(dataset.sizes["layer"])])


def table_of(dataset: xr.Dataset, step: int, kept_as: str) -> Table:
    """The quantities of one model at one step, mean over numbers of distractors."""
    at = dataset.isel(step=step).mean("distractors")
    places = [("value", "quantity"), ("outcome", "measure")]
    if step in (-1, dataset.sizes["step"] - 1):
        places.append(("end_value", "end_quantity"))
    values = {
        name: at[variable].sel({dim: label}, drop=True).expand_dims("prompt")
        for variable, dim in places
        for label, name in _labels(dataset[dim], kept_as)
    }
    if not values:
        raise Missing(NOT_KEPT)
    over = {name: _mass_of_a1(at, span) for name, span in RATIOS.get(kept_as, {}).items()}
    return Table(values, at["weight"], over=over, differences=DIFFERENCES.get(kept_as, {}))


def _mass_of_a1(at: xr.Dataset, span: str) -> xr.DataArray | None:
    """A1's mass on a key set, (layer, head); None if it was not kept."""
    if span == "answer":
        return at["weight"]
    name = f"{label_of(a1_mass)}.{span}"
    return at["value"].sel(quantity=name, drop=True) if name in at["quantity"] else None


def _null(dataset: xr.Dataset, step: int, index: int, kept_as: str, costs: xr.DataArray | None) -> Table:
    """The same of an untrained model; what was not taken of untrained models is left out.

    Its heads count as those of the trained model in their layer, if its layers were kept, and else there is nothing of it.
    """
    name = "null" if costs is None else "null_by_layer"
    if name not in dataset:
        return Table({})
    at = dataset[name].isel(step=step, untrained=index).mean("distractors")
    if costs is not None:
        layers = weighted(at.expand_dims("head"), costs.sum("head").expand_dims("head"), HEADS)
        at = layers.assign_coords(quantity=at["quantity"])
    arrays = {name: at.sel(quantity=label, drop=True) for label, name in _labels(dataset["quantity"], kept_as)}
    return Table({name: array.expand_dims("prompt") for name, array in arrays.items() if array.notnull()})


def _labels(names: xr.DataArray, kept_as: str) -> list[tuple[str, str]]:
    """The labels LABEL.NAME of one function's quantities, and their names."""
    return [(str(label), str(label).partition(".")[2]) for label in names.values if str(label).startswith(f"{kept_as}.")]


def for_cohort(evidence: xr.Dataset, of: str = WHOLE) -> xr.Dataset:
    """What the tests of a cohort read of one run's evidence, at its end.

    Parameters
    ----------
    evidence : Dataset
    of : {"A2", "whole heads"}
        What ``a2_cost`` is of.

    Returns
    -------
    Dataset
        ``cmrr_over_paired``, in dB: common-mode rejection by injection on irrelevant tokens above that with another head's A2,
        heads weighted by A1's mass on the answer; ``cmrr_over_paired_by_cost``, the same weighted by what heads cost;
        ``cmrr_over_paired_by_head`` and ``answer_mass`` (layer, head); ``a2_cost``, what A2 costs in the heads that answer, in
        nats. All but the mass are NaN of standard attention. And what :func:`alike` gives, as ``alike_NAME``.
    """
    at = evidence.isel(step=-1, drop=True).mean("distractors")
    at = at.assign_coords(layer=range(at.sizes["layer"]), head=range(at.sizes["head"]))  # arms differ in their heads
    nothing = xr.full_like(at["weight"], np.nan)
    of_heads = at["value"].sel(quantity=REJECTION, drop=True) if REJECTION in evidence["quantity"] else nothing
    rejection = weighted(of_heads, at["weight"], HEADS)
    by_cost = weighted(of_heads, costs_of(evidence), HEADS)
    lost = at_end_of(evidence, A2_LOST if of == "A2" else HEAD_LOST) if evidence.attrs["differential"] else nothing
    read = {
        "cmrr_over_paired": rejection,
        "cmrr_over_paired_by_cost": by_cost,
        "cmrr_over_paired_by_head": of_heads,
        "answer_mass": at["weight"],
        "a2_cost": weighted(lost, at["weight"], HEADS).assign_attrs(of=of),
    }
    return xr.Dataset(read | {f"alike_{name}": mass for name, mass in alike(at).items()})


def alike(at: xr.Dataset) -> dict[str, xr.DataArray]:
    """What a model at one step gives to the answer, the distractors and the first token, each head alike: (), by name.

    Means over heads, then layers, as a published table may have them; of the sum over 1 − λ, which has no bound, the median over
    all heads. What a head lacks is left out.
    """
    table = at["value"]
    names = [name for name in ALIKE if ALIKE[name] in table["quantity"]]
    values = {name: table.sel(quantity=ALIKE[name], drop=True) for name in names}
    return {name: of.median(HEADS) if name == "signed" else of.mean("head").mean("layer") for name, of in values.items()}


def kept_of(folder: str | Path, *arms: str) -> list[list[Path]]:
    """For each arm of a cohort's folder the evidence of its runs, of those seeds of which all of the arms have it."""
    paths = [{path.parent.name: path for path in sorted(Path(folder).glob(f"{arm}/seed-*/{EVIDENCE}"))} for arm in arms]
    seeds = sorted(set.intersection(*map(set, paths)), key=lambda name: int(name.removeprefix("seed-")))
    return [[of_arm[seed] for seed in seeds] for of_arm in paths]


def open_kept(paths: Sequence[Path], series: bool = False, weights: Weights = KNOCK_OUT) -> KeptModels:
    """The evidence in some files."""
    return KeptModels([open_evidence(path) for path in paths], [str(path.parent) for path in paths], series, weights)
