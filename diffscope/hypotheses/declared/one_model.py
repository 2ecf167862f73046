"""Tests that one model is enough for; untrained models of its architecture say what random weights show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from diffscope.hypotheses.evidence.last_query import Reading
from diffscope.hypotheses.inference import Observed
from diffscope.hypotheses.rules import ABOVE, NONE, Missing, Quantity, Test
from diffscope.hypotheses.subjects import Subject
from diffscope.stats.averaging import averaged

FARTHEST = 6  # octaves

NOISE_SYMMETRY = Test(
    id="noise-symmetry",
    claim="What the two maps give to irrelevant tokens is shared, what they give to the answer is not: so noise cancels.",
    source="seed 000, experiment 1 for noise cancellation",
    statistic="relative difference ρ of A1 and A2 of the answering query, on irrelevant tokens and on the answer; "
    "mean over heads, then layers",
    controls=(
        "pairing: A2 of the layer's other heads in place of a head's own",
        "size: spans of the answer's length in the context near its depth",
        "untrained models of the same architecture",
    ),
    quantities={
        "sharing": Quantity("sharing on irrelevant tokens above the pairing control (ρ)", 0.02),
        "sharing_without_needles": Quantity("the same without the other needles (ρ)", 0.02),
        "sharing_cosine": Quantity("the same as cosine", 0.02),
        "sharing_js": Quantity("the same as Jensen–Shannon divergence", 0.01),
        "difference": Quantity("difference on the answer above spans of its size (ρ)", 0.02),
        "difference_cosine": Quantity("the same as cosine", 0.02),
        "difference_js": Quantity("the same as Jensen–Shannon divergence", 0.01),
    },
    predictions={"NC": {"sharing": ABOVE, "difference": ABOVE}},
    needs="model",
    limits="Heads of one layer may share noise as well: then the pairing control hides it. Irrelevant is all but the answer, the "
    "question and the first token, the queried city's sentence included. No sharing is not sparsity, which is not judged.",
)

LAMBDA_STAR = Test(
    id="lambda-star",
    claim="λ learns the value that leaves least of the noise.",
    source="seed 001: the model spontaneously learns to denoise",
    statistic="|log2(λ/(g·λ*))|, at most 6 (also where λ is not above 0), on irrelevant tokens, λ* the coefficient with the "
    "least residual there; mean over heads, then layers",
    controls=("without the other needles", "untrained models of the same architecture"),
    quantities={
        "distance": Quantity("distance of λ from λ* on irrelevant tokens (octaves)", 0.32),
        "distance_without_needles": Quantity("the same without the other needles (octaves)", 0.32),
    },
    predictions={"NC": {"distance": NONE}},
    needs="model",
    limits="λ* is fitted to each prompt, which λ is not: with λ* spread by more than the margin, no λ could be near.",
    unable="a flat second map that is only taken from under the first has λ near λ* as well",
)

KEY_TOKEN_GAIN = Test(
    id="key-token-gain",
    claim="The subtraction moves attention to the answer.",
    source="seed 001: weight of key tokens +30–50 %; seed 003, Figure 1",
    statistic="log2 of the answer's share in |D| over its share in A1; mean over heads, then layers",
    controls=("untrained models of the same architecture",),
    quantities={"gain": Quantity("share of the answer in D over that in A1 (octaves)", 0.1)},
    predictions={"NC": {"gain": ABOVE}, "SP": {"gain": ABOVE}},
    needs="model",
    unable="both accounts predict it",
)

SPARSITY = Test(
    id="sparsity",
    claim="D is sparser than A1.",
    source="seed 000, experiment 2 for sparsification; seed 001 and the DEX paper disagree",
    statistic="of the answering query's row, D (through |D|) minus A1: Gini, normalised entropy, Hoyer, pseudo-norm (log2); "
    "mean over heads, then layers",
    controls=("untrained models of the same architecture, whose D has a Gini coefficient of its own",),
    quantities={
        "gini": Quantity("Gini of D − Gini of A1", 0.02),
        "entropy": Quantity("normalised entropy of A1 − that of D", 0.02),
        "hoyer": Quantity("Hoyer of D − Hoyer of A1", 0.02),
        "pseudo_norm": Quantity("pseudo-norm of A1 over that of D (octaves)", 0.1),
    },
    predictions={"SP": {"gini": ABOVE, "entropy": ABOVE}},
    needs="model",
    limits="Sparser than A1 is not sparser than what a standard model learns: that needs the pair.",
    unable="cancelling shared noise leaves a sparser map as well",
)


def noise_symmetry(subject: Subject) -> dict[str, Observed]:
    return _observed(subject, noise_measures)


def noise_measures(reading: Reading) -> dict[str, xr.DataArray]:
    """ρ, cosine and Jensen–Shannon with their controls; ρ and JS are small where maps agree, a cosine is large."""
    own, paired, sized = reading.own, reading.paired, reading.sized
    made = {}
    for name, sign, end in (("rho", 1, ""), ("cosine", -1, "_cosine"), ("js", 1, "_js")):
        shared = sign * (paired[name] - own[name])
        made[f"sharing{end}"] = shared.sel(span="irrelevant")
        if name == "rho":
            made["sharing_without_needles"] = shared.sel(span="context")
        made[f"difference{end}"] = sign * (own[name].sel(span="answer") - sized[name])
    return made


def lambda_star(subject: Subject) -> dict[str, Observed]:
    if has_fixed_lambda(subject):
        raise Missing("a model that learns its λ: this one's is fixed")
    return _observed(subject, lambda_distance)


def has_fixed_lambda(subject: Subject) -> bool:
    return any(getattr(getattr(scope.model, "config", None), "fixed_lambda", None) is not None for scope in subject.scopes)


def lambda_distance(reading: Reading) -> dict[str, xr.DataArray]:
    """How far λ/g is from λ*, in octaves either way, at most ``FARTHEST``."""
    ratio = reading.own["lambda"].sel(lambda_value="used") / reading.own["gain"] / reading.own["lambda_star"]
    octaves = abs(np.log2(ratio.clip(2.0**-FARTHEST, 2.0**FARTHEST)))
    return {"distance": octaves.sel(span="irrelevant"), "distance_without_needles": octaves.sel(span="context")}


def key_token_gain(subject: Subject) -> dict[str, Observed]:
    def gain(reading: Reading) -> dict[str, xr.DataArray]:
        selectivity = reading.own["selectivity"].sel(span="answer")
        return {"gain": np.log2(selectivity.where(selectivity > 0))}

    return _observed(subject, gain)


def sparsity(subject: Subject) -> dict[str, Observed]:
    def sparser(reading: Reading) -> dict[str, xr.DataArray]:
        d, a1 = (reading.own.sel(map=name) for name in ("D", "A1"))
        return {
            "gini": d["gini"] - a1["gini"],
            "entropy": a1["entropy_normalised"] - d["entropy_normalised"],
            "hoyer": d["hoyer"] - a1["hoyer"],
            "pseudo_norm": np.log2(a1["pseudo_norm"] / d["pseudo_norm"]),
        }

    return _observed(subject, sparser)


def _observed(subject: Subject, quantities) -> dict[str, Observed]:
    """The quantities of each model by prompt, and of untrained models."""
    if any(reading.paired is None for reading in subject.readings):
        raise Missing("a differential model: this one is standard attention")
    own, others = ([quantities(reading) for reading in readings] for readings in (subject.readings, subject.untrained))
    return {name: observed([one[name] for one in own], [one[name] for one in others]) for name in own[0]}


def observed(own: Sequence[xr.DataArray], others: Sequence[xr.DataArray]) -> Observed:
    """What tables (prompt, layer, head) of trained and of untrained models come to."""
    values = np.stack([over_model(one).values for one in own])
    layers = xr.concat([one.mean(("prompt", "head")) for one in own], "model").mean("model").values
    return Observed(values, np.array([float(over_model(one).mean()) for one in others]), layers)


def over_model(values: xr.DataArray) -> xr.DataArray:
    """Mean over heads, then layers, (prompt,): what is undefined or infinite is left out."""
    return averaged(values, ["head", "layer"], "mean").values


TESTS = {NOISE_SYMMETRY: noise_symmetry, LAMBDA_STAR: lambda_star, KEY_TOKEN_GAIN: key_token_gain, SPARSITY: sparsity}
