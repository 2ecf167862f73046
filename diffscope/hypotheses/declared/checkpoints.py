"""Tests on the checkpoints of one training: what grows, beside models of random weights that are made as sharp step by step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr

from diffscope.hypotheses.declared.one_model import (
    LAMBDA_STAR,
    has_fixed_lambda,
    lambda_distance,
    noise_measures,
    observed,
    over_model,
)
from diffscope.hypotheses.declared.pair import SINKS_UNABLE
from diffscope.hypotheses.evidence.answers import answers
from diffscope.hypotheses.evidence.last_query import Reading
from diffscope.hypotheses.inference import Observed
from diffscope.hypotheses.rules import ABOVE, BELOW, NONE, Missing, Quantity, Test
from diffscope.hypotheses.subjects import Subject
from diffscope.lab.training.cohort import FORMED

OVER_TRAINING = Test(
    id="noise-symmetry-training",
    claim="Training makes the two maps share their noise.",
    source="seed 000, experiments 1 and 3 for noise cancellation: across training stages; unilm issue 1661",
    statistic="growth of noise-symmetry's quantities from the first checkpoint to the last: slope over log2(1 + step), times the "
    "range of that",
    controls=(
        "those of noise-symmetry",
        "series of untrained models, each with scores as far apart as those of the checkpoint in its place",
    ),
    quantities={
        "sharing": Quantity("growth of sharing on irrelevant tokens above the pairing control (ρ)", 0.02),
        "difference": Quantity("growth of the difference on the answer above spans of its size (ρ)", 0.02),
    },
    predictions={"NC": {"sharing": ABOVE}},
    needs="checkpoints",
    limits="Of one training the interval is over prompts. No growth is not sparsity: sparsification is not judged.",
)


SINKS_TRAINING = Test(
    id="sinks-training",
    claim="Over training D keeps less of the sink than A1 does.",
    source="seed 000, question 5",
    statistic="growth over the checkpoints, as for noise-symmetry-training, of the first token's share in |D| minus its mass in "
    "A1, of the answering query",
    controls=("series of untrained models, each with scores as far apart as those of the checkpoint in its place",),
    quantities={
        "d": Quantity("growth of the sink's share in |D| − its mass in A1", 0.02),
        "a1": Quantity("growth of the sink's mass in A1", 0.02),
        "a2": Quantity("growth of the sink's mass in A2", 0.02),
    },
    predictions={"NC": {"d": BELOW}},
    needs="checkpoints",
    limits="Of the answering query alone; of one training the interval is over prompts.",
    unable=SINKS_UNABLE,
)

LAMBDA_FORMED = Test(
    id="lambda-star-formation",
    claim="When the lookup circuit has formed, λ is near the value that leaves least of the noise.",
    source="seed 001: the model spontaneously learns to denoise",
    statistic=f"lambda-star's distance at the first checkpoint with more than {FORMED:.0%} exact answers",
    controls=("without the other needles", "untrained models with scores as far apart as those of that checkpoint"),
    quantities={
        "distance": Quantity("distance of λ from λ* on irrelevant tokens when the circuit has formed (octaves)", 0.32),
        "distance_without_needles": Quantity("the same without the other needles (octaves)", 0.32),
    },
    predictions={"NC": {"distance": NONE}},
    needs="checkpoints",
    limits="Of the checkpoints that were kept, which may be far apart; of one training the interval is over prompts.",
    unable=LAMBDA_STAR.unable,
)


def over_training(series: Subject) -> dict[str, Observed]:
    return _grown(series, OVER_TRAINING, noise_measures)


def sinks_training(series: Subject) -> dict[str, Observed]:
    def first(reading: Reading) -> dict[str, xr.DataArray]:
        own = reading.own["sink_mass"].sel(normalisation="share", sink_set="S")
        d, a1, a2 = (own.sel(map=name) for name in ("D", "A1", "A2"))
        return {"d": d - a1, "a1": a1, "a2": a2}

    return _grown(series, SINKS_TRAINING, first)


def _check(series: Subject) -> None:
    if len(series.scopes) < 3:
        raise Missing("three checkpoints of a training at least")
    if any(reading.paired is None for reading in series.readings):
        raise Missing("checkpoints of a differential model: this one is standard attention")


def _grown(series: Subject, test: Test, measures: Callable[[Reading], dict[str, xr.DataArray]]) -> dict[str, Observed]:
    """Slopes over the checkpoints, each a model of the series, in the order of their steps."""
    _check(series)
    steps = np.log2(1 + np.array([float(scope.name.rpartition("@")[2]) for scope in series.scopes]))
    own = [measures(reading) for reading in series.readings]
    others, count = [measures(reading) for reading in series.untrained], len(series.scopes)
    rounds = [others[i : i + count] for i in range(0, len(others) - count + 1, count)]
    return {
        name: Observed(
            growth(steps, np.stack([over_model(one[name]).values for one in own]))[None],
            np.array([growth(steps, np.array([[float(over_model(one[name]).mean())] for one in some]))[0] for some in rounds]),
        )
        for name in test.quantities
    }


def lambda_formed(series: Subject) -> dict[str, Observed]:
    _check(series)
    if has_fixed_lambda(series):
        raise Missing("checkpoints of a model that learns its λ: this one's is fixed")
    formed = (i for i, scope in enumerate(series.scopes) if answers(scope, series.prompts).right.mean() > FORMED)
    first = next(formed, None)
    if first is None:
        raise Missing(f"a checkpoint with more than {FORMED:.0%} exact answers to these prompts")
    own, others = series.readings[first], series.untrained[first :: len(series.scopes)]
    return {
        name: observed([lambda_distance(own)[name]], [lambda_distance(one)[name] for one in others])
        for name in LAMBDA_FORMED.quantities
    }


def growth(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Least-squares slope of values (step, prompt) over steps (step,), times the range of the steps: (prompt,)."""
    centred = steps - steps.mean()
    return centred @ values / (centred @ centred) * np.ptp(steps)


TESTS = {OVER_TRAINING: over_training, SINKS_TRAINING: sinks_training, LAMBDA_FORMED: lambda_formed}
