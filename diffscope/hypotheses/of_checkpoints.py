"""Tests on the checkpoints of one training: what grows, beside models of random weights that are made as sharp step by step."""

from __future__ import annotations

import numpy as np

from diffscope.hypotheses.inference import Observed
from diffscope.hypotheses.of_model import noise_measures, over_model
from diffscope.hypotheses.rules import ABOVE, Missing, Quantity, Test
from diffscope.hypotheses.subjects import Subject

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
    limits="One training of one seed: the interval is over prompts. No growth is not sparsity: sparsification is not judged.",
)


def over_training(series: Subject) -> dict[str, Observed]:
    """Slopes over the checkpoints, each a model of the series, in the order of their steps."""
    if len(series.scopes) < 3:
        raise Missing("three checkpoints of a training at least")
    if any(reading.paired is None for reading in series.readings):
        raise Missing("checkpoints of a differential model: this one is standard attention")
    steps = np.log2(1 + np.array([float(scope.name.rpartition("@")[2]) for scope in series.scopes]))
    own = [noise_measures(reading) for reading in series.readings]
    others, count = [noise_measures(reading) for reading in series.untrained], len(series.scopes)
    rounds = [others[i : i + count] for i in range(0, len(others) - count + 1, count)]
    return {
        name: Observed(
            growth(steps, np.stack([over_model(one[name]).values for one in own]))[None],
            np.array([growth(steps, np.array([[float(over_model(one[name]).mean())] for one in some]))[0] for some in rounds]),
        )
        for name in OVER_TRAINING.quantities
    }


def growth(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Least-squares slope of values (step, prompt) over steps (step,), times the range of the steps: (prompt,)."""
    centred = steps - steps.mean()
    return centred @ values / (centred @ centred) * np.ptp(steps)


TESTS = {OVER_TRAINING: over_training}
