"""Measure the quantities of a test where they are: in the evidence of models beside untrained ones, or in a cohort's scores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from diffscope.errors import Missing
from diffscope.evidence.heads import ANSWERS, Table
from diffscope.hypotheses.cohort import formed
from diffscope.hypotheses.intervals import students_t
from diffscope.hypotheses.rules import CHECKPOINTS, Cost, Measure, Needs, Place
from diffscope.hypotheses.statistics import Sample
from diffscope.hypotheses.subjects import NOT_HELD, Models, Pair
from diffscope.stats.formulas import cmrr

Tables = tuple[list[Table], list[Table]]  # of trained models and of untrained ones
A2_COST = "a2_cost"  # what a subject calls the cost of its second maps, and a cohort's dataset, (arm, seed), in nats
BY_SEED = ("values", "untrained", "heads", "weights", "answering", "by_answer")  # parts of a sample
OverSteps = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of steps (step,) and values (step, …): (…)


def of_models(
    subject: Models | Pair, *, places: Mapping[str, Place], judged: Collection[str], needs: Needs, over: str = ""
) -> dict[str, Sample]:
    """Measure the quantities of a test on one model, several seeds of one, pairs of models, or the checkpoints of a training.

    Raises Missing if the subject is of another kind, or does not hold what a rule uses, or nothing of what is measured.

    Parameters
    ----------
    places : dict of str to Place
        By quantity.
    judged : collection of str
        The quantities that a rule uses. Of the others, those that the subject does not hold are left out.
    needs : {"model", "pair", "checkpoints"}
    over : {"", "growth", "late mean"}
        What values over checkpoints come to.
    """
    check(subject, needs)
    apart: dict[str, list[str]] = {}  # by label, the names of numbers that are shown of some heads alone
    for place in places.values():
        if place.heads:
            label, _, name = place.evidence.partition(".")
            apart.setdefault(label, []).append(name)
    taken: dict[str, Tables] = {}
    samples = {}
    for quantity, place in places.items():
        if place.outcome:
            try:
                samples[quantity] = of_outcome(subject, place)
            except Missing:
                if quantity in judged:
                    raise
            continue
        label = place.evidence.partition(".")[0]
        if label not in taken:
            taken[label] = subject.tables(label, apart=tuple(dict.fromkeys(apart.get(label, ()))))
        try:
            sample = of_heads(subject, taken[label], place, OVER[over] if over else None)
        except Missing:
            if quantity in judged:
                raise
            continue
        samples[quantity] = sample if place.untrained else replace(sample, untrained=None)
    if not samples:
        raise Missing(NOT_HELD)
    return samples


def check(subject: Models | Pair, needs: Needs) -> None:
    """Raise Missing unless a subject is what a test needs: differential, a pair that compares, three checkpoints or more."""
    if needs == "pair":
        subject.check()
        return
    if needs == "checkpoints" and len(subject.steps) < CHECKPOINTS:
        raise Missing("three checkpoints of a training at least")
    if not subject.differential:
        what = "checkpoints of a differential model" if needs == "checkpoints" else "a differential model"
        raise Missing(f"{what}: this one is standard attention")


def of_heads(subject: Models | Pair, tables: Tables, place: Place, over: OverSteps | None = None) -> Sample:
    """Return one number of trained models beside the same of untrained ones, heads weighted; with `over` what it comes to.

    Checkpoints are compared with series of untrained models, each as long as theirs.
    """
    trained, untrained = tables
    name = place.evidence.partition(".")[2] + (f"_{place.heads}" if place.heads else "")
    if name not in trained[0].values:
        raise Missing(f"evidence that holds {place.evidence}; of these models it holds {', '.join(trained[0].values)}")
    if place.top_head:
        sample = of_top_heads(trained, untrained, name, place.minus.partition(".")[2])
    elif over is None:
        sample = beside_untrained(trained, untrained, name)
    else:
        sample = replace(over_steps(subject, trained, untrained, name, over), layer_numbers=subject.layer_numbers)
        return _noted(subject, place, sample, along=True)
    of_subject = dict(prompts=subject.prompts_are, seeds=subject.seeds, layer_numbers=subject.layer_numbers)
    return _noted(subject, place, replace(sample, **of_subject), along=False)


def beside_untrained(trained: Sequence[Table], untrained: Sequence[Table], name: str) -> Sample:
    """Return one number of trained models, seeds of one, and of those untrained ones that have it."""
    values = np.stack([table.mean(name).values for table in trained])  # (seed, prompt)
    null = [float(table.mean(name).mean()) for table in untrained if name in table.values]
    heads = [table.by_head(name) for table in trained]
    if heads[0] is None:
        return Sample(values, np.array(null) if null else None)
    second = [table.by_answer(name) for table in trained]
    return Sample(
        values,
        np.array(null) if null else None,
        layers=np.mean([table.by_layer(name) for table in trained], 0),
        by_answer=None if second[0] is None else np.stack([of.values for of in second]),
        **_of_each_head(trained, name, np.stack(heads)),
    )


def over_steps(subject: Models, trained: Sequence[Table], untrained: Sequence[Table], name: str, over: OverSteps) -> Sample:
    """Return what one number comes to over the checkpoints of a training, and over those of series of untrained models.

    Heads count at every step as they do at the last.
    """
    steps = len(trained)
    rounds = [untrained[first : first + steps] for first in range(0, len(untrained) - steps + 1, steps)]
    logs = np.log2(1 + subject.steps)
    series = [
        [replace(table, weights=tables[-1].weights, costs=tables[-1].costs) for table in tables]
        for tables in (trained, *rounds)
        if name in tables[0].values
    ]
    values = [over(logs, np.stack([table.mean(name).values for table in tables])) for tables in series]  # (prompt,) each
    heads = [table.by_head(name) for table in series[0]]
    second = [table.by_answer(name) for table in series[0]]
    moved = None if heads[0] is None else over(logs, np.stack(heads).reshape(steps, -1)).reshape(1, *heads[0].shape)
    return Sample(
        values[0][None],
        np.array([value.mean() for value in values[1:]]) if values[1:] else None,
        seeds=subject.seeds if len(subject.seeds) == 1 else (),
        by_answer=None if second[0] is None else over(logs, np.stack([of.values for of in second]))[None],
        **_of_each_head(series[0][-1:], name, moved),
    )


def of_top_heads(trained: Sequence[Table], untrained: Sequence[Table], name: str, minus: str = "") -> Sample:
    """Return a number of the head of the first layer that has most of it, perhaps minus another number of the same head.

    The values by layer are those of each layer's head that has most.
    """

    def of_layers(table: Table) -> np.ndarray:
        values = table.values[name].transpose("prompt", "layer", "head").values
        heads = np.nan_to_num(values.mean(0), nan=-1.0).argmax(-1)  # (layer,)
        if minus:
            values = values - table.values[minus].transpose("prompt", "layer", "head").values
        return values[:, np.arange(values.shape[1]), heads]  # (prompt, layer)

    of_trained = [of_layers(table) for table in trained]
    null = np.array([of_layers(table)[:, 0].mean() for table in untrained if name in table.values])
    layers = np.mean([values.mean(0) for values in of_trained], 0)
    return Sample(np.stack([values[:, 0] for values in of_trained]), null if len(null) else None, layers)


def of_outcome(subject: Models | Pair, place: Place) -> Sample:
    """Return a number of whole models, perhaps minus another.

    Raises Missing if the subject does not hold it.
    """
    names = [name for name in (place.outcome, place.minus) if name]
    outcomes = subject.outcomes(*names)
    if len(outcomes) < len(names):
        raise Missing(NOT_HELD)
    first, *second = (outcomes[name] for name in names)
    if not second:
        return first
    layers = None if first.layers is None else first.layers - second[0].layers
    return replace(first, values=first.values - second[0].values, layers=layers)


def _of_each_head(tables: Sequence[Table], name: str, heads: np.ndarray | None) -> dict[str, Any]:
    """Return what a sample has of heads (seed, layer, head), and what they count with if the number is one mean of them."""
    counting = [table.counting(name) for table in tables]
    one_mean = heads is not None and (counting[0] is not None or tables[0].costs is None)
    return {
        "heads": heads if one_mean else None,
        "weights": _stacked(counting) if one_mean else None,
        "answering": _stacked([table.weights for table in tables]),
        "weighted_by": tables[0].weighted_by if heads is not None else "",
        "lacking": tables[0].lacks(name),
    }


def _stacked(weights: Sequence[xr.DataArray | None]) -> np.ndarray | None:
    arrays = [of.transpose("layer", "head").values for of in weights if of is not None]
    return np.stack(arrays) if arrays else None


def over_trainings(measure: Measure, trainings: Sequence[Models]) -> dict[str, Sample]:
    """Measure several trainings as seeds of one; one that lacks what others have is left out, which is noted.

    Raises Missing if all of them lack it.
    """
    measured = []
    lacking = []
    for series in trainings:
        try:
            measured.append(measure(series))
        except Missing as error:
            lacking.append(error)
    if not measured:
        raise lacking[0]
    note = f"{len(lacking)} of {len(trainings)} trainings are left out, for want of {lacking[0]}" if lacking else ""
    joined = {}
    for name in dict.fromkeys(name for quantities in measured for name in quantities):
        samples = [quantities[name] for quantities in measured if name in quantities]
        arrays = {part: [getattr(sample, part) for sample in samples] for part in BY_SEED}
        whole = {part: None if any(of is None for of in each) else np.concatenate(each) for part, each in arrays.items()}
        seeds = tuple(seed for sample in samples for seed in sample.seeds)
        without = len(measured) - len(samples)
        absent = f"not measured in {without} of {len(trainings)} trainings" if without else ""
        notes = dict.fromkeys(filter(None, (note, absent, *(sample.note for sample in samples))))
        joined[name] = replace(samples[0], **whole, layers=None, seeds=seeds, note="; ".join(notes))
    return joined


def cost_of(subject: Any) -> Cost | None:
    """Return what the second maps of a subject's heads cost the answer; None if that was not measured.

    Parameters
    ----------
    subject : Models, Pair, sequence of Models, or Dataset
        Of several trainings, and of a cohort's formed runs of DIFF, it is the mean over seeds with Student's t.
    """
    if isinstance(subject, xr.Dataset):
        return _of_runs(subject)
    if not isinstance(subject, Sequence):
        return getattr(subject, A2_COST, None)
    costs = [cost_of(training) for training in subject]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs) or len({cost.of for cost in known}) > 1:
        return None
    return known[0] if len(known) == 1 else _mean_cost([cost.value for cost in known], known[0].of)


def _of_runs(cohort: xr.Dataset) -> Cost | None:
    """Return what the second maps of a cohort's formed runs of DIFF cost, by their evidence: the runs that a test is of."""
    if A2_COST not in cohort:
        return None
    values = cohort[A2_COST].where(formed(cohort)).sel(arm="diff").values
    known = values[np.isfinite(values)]
    return _mean_cost(known, cohort[A2_COST].attrs["of"]) if len(known) > 1 else None


def _mean_cost(values: Sequence[float] | np.ndarray, of: str) -> Cost:
    means = np.asarray(values, dtype=float)
    (low, high), _, _ = students_t(means)
    return Cost(float(means.mean()), low, high, of)


def growth(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the least-squares slope of values (step, …) over steps (step,), times the range of the steps: (…)."""
    centred = steps - steps.mean()
    return np.tensordot(centred, values, 1) / (centred @ centred) * np.ptp(steps)


def late_mean(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the mean of values (step, …), weighted by steps (step,), of what is defined: (…)."""
    weights = np.where(np.isfinite(values), steps.reshape(-1, *[1] * (values.ndim - 1)), 0)
    with np.errstate(invalid="ignore"):
        return (np.nan_to_num(values) * weights).sum(0) / weights.sum(0)


#: what values over checkpoints come to, over log2(1 + step): before the first step nothing is learned
OVER: dict[str, OverSteps] = {"growth": growth, "late mean": late_mean}


def _noted(subject: Models | Pair, place: Place, sample: Sample, along: bool) -> Sample:
    """Add the note that a place asks for: what its heads come to each for itself, or λ by layer."""
    if place.by_head:
        return replace(sample, note=heads_in_words(sample, place.by_head))
    if place.lambda_by_layer:
        return replace(sample, note=lambda_along(subject) if along else lambda_by_layer(subject.layers))
    return sample


def lambda_by_layer(models: Sequence[xr.Dataset]) -> str:
    """Say λ, λ_init, λ* of the mean map and CMRR by layer, mean over models."""
    mean = xr.concat(models, "model").mean("model")
    with np.errstate(divide="ignore"):
        decibels = cmrr(mean["lam"].values)
    parts = {"λ": mean["lam"], "λ_init": mean["lam_init"], "λ* of the mean map": mean["lambda_star"], "CMRR in dB": decibels}
    return "by layer " + ", ".join(f"{name} {_numbers(values)}" for name, values in parts.items())


def lambda_along(series: Models) -> str:
    """Say λ by layer at every checkpoint."""
    steps = (f"step {step:g} {_numbers(layers['lam'])}" for step, layers in zip(series.steps, series.layers, strict=True))
    return f"λ by layer: {'; '.join(steps)}"


def _numbers(values: np.ndarray | xr.DataArray) -> str:
    return " ".join(f"{value:.3g}" for value in np.asarray(values, dtype=float))


def heads_in_words(sample: Sample, what: str) -> str:
    """Say what heads come to, of which it is defined: their unweighted mean and spread, and those that answer and the others."""
    if sample.heads is None or sample.answering is None or not np.isfinite(sample.heads).any():
        return ""
    known = np.isfinite(sample.heads)
    values = sample.heads[known]
    answers = sample.answering[known] > ANSWERS
    parts = [f"unweighted mean {_mean(values):.3g}, heads {values.min():.3g} to {values.max():.3g}"]
    for words, chosen in (("that answer", answers), ("of the others", ~answers)):
        parts.append(f"{chosen.sum()} heads {words} {_mean(values[chosen]):.3g}")
    return f"{what} by heads: {'; '.join(parts)}"


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")
