"""Tests on the checkpoints of one training: what grows, beside models of random weights that are made as sharp step by step."""

from __future__ import annotations

from functools import partial

import numpy as np
import xarray as xr

from diffscope.hypotheses.contrast import beside, contrast_steps, require_series
from diffscope.hypotheses.declared.one_model import FLAT_SECOND_MAP, has_fixed_lambda, lambda_distance, shared_noise
from diffscope.hypotheses.declared.pair import SINKS_UNABLE
from diffscope.hypotheses.declared.sources import NOTES, REVIEW
from diffscope.hypotheses.evidence.answers import answers
from diffscope.hypotheses.evidence.last_query import LastQuery
from diffscope.hypotheses.inference import Observed
from diffscope.hypotheses.rules import ABOVE, BELOW, NONE, Missing, Quantity, declare
from diffscope.hypotheses.subjects import Models
from diffscope.lab.training.cohort import FORMED

AS_SHARP = "series of untrained models, each with scores as far apart as those of the checkpoint in its place"


@declare(
    id="noise-symmetry-training",
    claim="Training makes the two maps share their noise.",
    source=f"{REVIEW}: experiments 1 and 3 for noise cancellation, across training stages; unilm issue 1661",
    statistic="growth of noise-symmetry's quantities from the first checkpoint to the last: slope over log2(1 + step), times the "
    "range of that",
    controls=("those of noise-symmetry", AS_SHARP),
    quantities={
        "sharing": Quantity("growth of sharing on irrelevant tokens above the pairing control (ρ)", 0.02),
        "difference": Quantity("growth of the difference on the answer above spans of its size (ρ)", 0.02),
    },
    predictions={"NC": {"sharing": ABOVE}},
    needs="checkpoints",
    limits="Of one training the interval is over prompts. No growth is not sparsity: sparsification is not judged.",
)
def noise_symmetry_training(series: Models) -> dict[str, Observed]:
    def shared(last_query: LastQuery) -> dict[str, xr.DataArray]:
        quantities = shared_noise(last_query)
        return {name: quantities[name] for name in ("sharing", "difference")}

    return contrast_steps(series, shared, partial(growth, log_steps(series)))


@declare(
    id="sinks-training",
    claim="Over training D keeps less of the sink than A1 does.",
    source=f"{REVIEW}: question 5",
    statistic="growth over the checkpoints, as for noise-symmetry-training, of the first token's share in |D| minus its mass in "
    "A1, of the answering query",
    controls=(AS_SHARP,),
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
def sinks_training(series: Models) -> dict[str, Observed]:
    def shares(last_query: LastQuery) -> dict[str, xr.DataArray]:
        first = last_query.heads["sink_mass"].sel(normalisation="share", sink_set="S")
        d, a1, a2 = (first.sel(map=name) for name in ("D", "A1", "A2"))
        return {"d": d - a1, "a1": a1, "a2": a2}

    return contrast_steps(series, shares, partial(growth, log_steps(series)))


@declare(
    id="lambda-star-formation",
    claim="When the lookup circuit has formed, λ is near the value that leaves least of the noise.",
    source=f"{NOTES}: the model spontaneously learns to denoise",
    statistic=f"lambda-star's distance at the first checkpoint with more than {FORMED:.0%} exact answers",
    controls=("without the other needles", "untrained models with scores as far apart as those of that checkpoint"),
    quantities={
        "distance": Quantity("distance of λ from λ* on irrelevant tokens when the circuit has formed (octaves)", 0.32),
        "distance_without_needles": Quantity("the same without the other needles (octaves)", 0.32),
    },
    predictions={"NC": {"distance": NONE}},
    needs="checkpoints",
    limits="Of the checkpoints that were kept, which may be far apart; of one training the interval is over prompts.",
    unable=FLAT_SECOND_MAP,
)
def lambda_star_formation(series: Models) -> dict[str, Observed]:
    require_series(series)
    if has_fixed_lambda(series):
        raise Missing("checkpoints of a model that learns its λ: this one's is fixed")
    formed = (step for step, scope in enumerate(series.scopes) if answers(scope, series.prompts).right.mean() > FORMED)
    first = next(formed, None)
    if first is None:
        raise Missing(f"a checkpoint with more than {FORMED:.0%} exact answers to these prompts")
    untrained = series.untrained[first :: len(series.scopes)]
    return beside([lambda_distance(series.last_queries[first])], [lambda_distance(last_query) for last_query in untrained])


def log_steps(series: Models) -> np.ndarray:
    """log2(1 + step) of the checkpoints, which are called NAME@STEP: (step,)."""
    return np.log2(1 + np.array([float(scope.name.rpartition("@")[2]) for scope in series.scopes]))


def growth(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Least-squares slope of values (step, prompt) over steps (step,), times the range of the steps: (prompt,)."""
    centred = steps - steps.mean()
    return centred @ values / (centred @ centred) * np.ptp(steps)
