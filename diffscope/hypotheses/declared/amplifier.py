"""The difference taken literally as an amplifier's: what it leaves of the noise, and what of the signal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import xarray as xr

from diffscope.evidence.quantities import AMPLIFIER, LAMBDA_FIT
from diffscope.hypotheses.contrast import contrast, noted, require_differential, require_series
from diffscope.hypotheses.declared.noise_symmetry import ANSWERING, AT_LAST, UNTRAINED
from diffscope.hypotheses.declared.sources import NOTES, REVIEW
from diffscope.hypotheses.declared.steps import AS_TRAINED, growth, log_steps
from diffscope.hypotheses.rules import BELOW, Quantity, declare
from diffscope.hypotheses.statistics import Sample
from diffscope.hypotheses.subjects import Models
from diffscope.hypotheses.weights import BY, KNOCK_OUT, WEIGHTED
from diffscope.stats.formulas import cmrr

QUANTITIES = {
    "floor": Quantity(
        "least that any coefficient leaves of A1 on irrelevant tokens, minus the same with other heads' A2",
        0.05,
        short="floor − its control",
    ),
    "gain": Quantity("noise gain − signal gain", 0.1, short="noise gain − signal gain"),
    "excess": Quantity("what the learned λ leaves over the least that any coefficient leaves (octaves)", 0.32),
    "floor_itself": Quantity("least that any coefficient leaves of A1 on irrelevant tokens, √(1 − cos²)", 0.05),
    "noise_gain": Quantity("noise gain, sum |D| over sum A1 on irrelevant tokens", 0.1),
    "signal_gain": Quantity("signal gain, sum D over sum A1 on the answer", 0.1),
    "lam": Quantity("λ", 0.1),
    "common_gain": Quantity("gain of the common mode over that of the differential mode: 0 where λ = 1 rejects all", 0.1),
    "floor_without_needles": Quantity("the floor above its control without the other sentences", 0.05),
    "excess_without_needles": Quantity("what the learned λ leaves over the least, without the other sentences (octaves)", 0.32),
    "noise_gain_without_needles": Quantity("noise gain without the other sentences", 0.1),
    "floor_itself_without_needles": Quantity("the floor itself without the other sentences", 0.05),
}
DISTANCE = Quantity("distance of λ from the λ* of the mean map over prompts, by layer (octaves)", 0.32)


@declare(
    id="amplifier",
    question="Could any coefficient leave less of A1 on irrelevant tokens than with other heads' A2? Is the noise gain below the "
    "signal gain?",
    asks={"floor": BELOW, "gain": BELOW},
    source=f"{REVIEW}: (1 − λ) must approach 0; {NOTES}: the model spontaneously learns to denoise",
    statistic="of the answering query, on irrelevant tokens: √(1 − cos²), the least that any coefficient leaves of A1, and what "
    "the learned λ leaves over it; sum |D| over sum A1, minus sum D over sum A1 on the answer, as ratios of sums over prompts; "
    f"{WEIGHTED}",
    controls=("pairing: A2 of the layer's other heads", "without the other sentences", UNTRAINED),
    quantities={**QUANTITIES, "distance": DISTANCE},
    predictions={"NC": {"floor": BELOW, "gain": BELOW}},
    of=ANSWERING,
    needs="model",
    limits="A λ far from the best coefficient leaves more than the floor: it is shown beside, as are λ and CMRR by layer.",
)
def amplifier(models: Models) -> dict[str, Sample]:
    require_differential(models)
    observed = contrast(models, AMPLIFIER)
    observed["distance"] = contrast(models, LAMBDA_FIT)["distance"]
    observed["lam"] = replace(observed["lam"], untrained=None, note=lambdas_in_words(models.layers))
    observed["common_gain"] = replace(observed["common_gain"], untrained=None)  # untrained models are given the trained λ
    return noted(observed, {"floor": "the floor above its control", "excess": "what λ leaves over the floor"})


@declare(
    id="amplifier-training",
    question="Does training lower the least of A1 that any coefficient leaves on irrelevant tokens, against other heads' A2? "
    "Does it lower the noise gain against the signal gain?",
    asks={"floor": BELOW, "gain": BELOW},
    source=f"{REVIEW}: (1 − λ) must approach 0; unilm issue 1699 on λ over training",
    statistic="growth of amplifier's quantities from the first checkpoint to the last: slope over log2(1 + step), times the "
    f"range of that; heads {BY[KNOCK_OUT]} at the last checkpoint",
    controls=("pairing: A2 of the layer's other heads", AS_TRAINED),
    quantities={
        name: Quantity(f"growth of {QUANTITIES[name].label}", QUANTITIES[name].margin, short=QUANTITIES[name].short)
        for name in ("floor", "excess", "noise_gain", "signal_gain", "gain", "lam", "common_gain")
    },
    predictions={"NC": {"floor": BELOW, "gain": BELOW}},
    of=AT_LAST,
    needs="checkpoints",
    limits="λ may rise while the circuit forms and fall again: a slope does not say so, the values by layer and step do.",
)
def amplifier_training(series: Models) -> dict[str, Sample]:
    require_series(series)
    observed = contrast(series, AMPLIFIER, over_steps=partial(growth, log_steps(series)))
    observed = {name: observed[name] for name in amplifier_training.quantities}
    words = "; ".join(f"step {step:g} {_numbers(layers['lam'])}" for step, layers in zip(series.steps, series.layers))
    for name in ("lam", "common_gain"):
        observed[name] = replace(observed[name], untrained=None)
    return observed | {"lam": replace(observed["lam"], note=f"λ by layer: {words}")}


def lambdas_in_words(models: Sequence[xr.Dataset]) -> str:
    """λ, λ_init, λ* of the mean map and CMRR by layer, mean over models."""
    mean = xr.concat(models, "model").mean("model")
    with np.errstate(divide="ignore"):
        decibels = cmrr(mean["lam"].values)
    parts = {"λ": mean["lam"], "λ_init": mean["lam_init"], "λ* of the mean map": mean["lambda_star"], "CMRR in dB": decibels}
    return "by layer " + ", ".join(f"{name} {_numbers(values)}" for name, values in parts.items())


def _numbers(values: np.ndarray | xr.DataArray) -> str:
    return " ".join(f"{value:.3g}" for value in np.asarray(values, dtype=float))
