"""Tests that one model is enough for; untrained models of its architecture show what random weights do."""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.hypotheses.contrast import contrast
from diffscope.hypotheses.declared.sources import DEX, NOTES, PAPER, REVIEW
from diffscope.hypotheses.evidence.last_query import LastQuery
from diffscope.hypotheses.inference import Observed
from diffscope.hypotheses.rules import ABOVE, NONE, Missing, Quantity, declare
from diffscope.hypotheses.subjects import Models

FARTHEST = 6  # octaves
FLAT_SECOND_MAP = "a flat second map that is only taken from under the first has λ near λ* as well"
SPARSITY_SOURCE = f"{REVIEW}: experiment 2 for sparsification; {DEX}, with which notes on it disagree"


@declare(
    id="noise-symmetry",
    claim="What the two maps give to irrelevant tokens is shared, what they give to the answer is not: so noise cancels.",
    source=f"{REVIEW}: experiment 1 for noise cancellation",
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
def noise_symmetry(models: Models) -> dict[str, Observed]:
    return contrast(models, shared_noise)


def shared_noise(last_query: LastQuery) -> dict[str, xr.DataArray]:
    """ρ, cosine and Jensen–Shannon with their controls; ρ and JS are small where maps agree, a cosine is large."""
    heads = last_query.heads
    quantities = {}
    for statistic, sign, end in (("rho", 1, ""), ("cosine", -1, "_cosine"), ("js", 1, "_js")):
        shared = sign * (last_query.paired[statistic] - heads[statistic])
        quantities[f"sharing{end}"] = shared.sel(span="irrelevant")
        if statistic == "rho":
            quantities["sharing_without_needles"] = shared.sel(span="context")
        quantities[f"difference{end}"] = sign * (heads[statistic].sel(span="answer") - last_query.sized[statistic])
    return quantities


@declare(
    id="lambda-star",
    claim="λ learns the value that leaves least of the noise.",
    source=f"{NOTES}: the model spontaneously learns to denoise",
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
    unable=FLAT_SECOND_MAP,
)
def lambda_star(models: Models) -> dict[str, Observed]:
    if has_fixed_lambda(models):
        raise Missing("a model that learns its λ: this one's is fixed")
    return contrast(models, lambda_distance)


def has_fixed_lambda(models: Models) -> bool:
    """Whether a model's λ is a constant."""
    configs = (getattr(scope.model, "config", None) for scope in models.scopes)
    return any(getattr(config, "fixed_lambda", None) is not None for config in configs)


def lambda_distance(last_query: LastQuery) -> dict[str, xr.DataArray]:
    """How far λ/g is from λ*, in octaves either way, at most ``FARTHEST``."""
    heads = last_query.heads
    ratio = heads["lambda"].sel(lambda_value="used") / heads["gain"] / heads["lambda_star"]
    octaves = abs(np.log2(ratio.clip(2.0**-FARTHEST, 2.0**FARTHEST)))
    return {"distance": octaves.sel(span="irrelevant"), "distance_without_needles": octaves.sel(span="context")}


@declare(
    id="key-token-gain",
    claim="The subtraction moves attention to the answer.",
    source=f"{NOTES}: weight of key tokens +30–50 %; {PAPER}, Figure 1",
    statistic="log2 of the answer's share in |D| over its share in A1; mean over heads, then layers",
    controls=("untrained models of the same architecture",),
    quantities={"gain": Quantity("share of the answer in D over that in A1 (octaves)", 0.1)},
    predictions={"NC": {"gain": ABOVE}, "SP": {"gain": ABOVE}},
    needs="model",
    unable="both accounts predict it",
)
def key_token_gain(models: Models) -> dict[str, Observed]:
    def gain(last_query: LastQuery) -> dict[str, xr.DataArray]:
        selectivity = last_query.heads["selectivity"].sel(span="answer")
        return {"gain": np.log2(selectivity.where(selectivity > 0))}

    return contrast(models, gain)


@declare(
    id="sparsity",
    claim="D is sparser than A1.",
    source=SPARSITY_SOURCE,
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
def sparsity(models: Models) -> dict[str, Observed]:
    def sparser(last_query: LastQuery) -> dict[str, xr.DataArray]:
        d, a1 = (last_query.heads.sel(map=name) for name in ("D", "A1"))
        return {
            "gini": d["gini"] - a1["gini"],
            "entropy": a1["entropy_normalised"] - d["entropy_normalised"],
            "hoyer": d["hoyer"] - a1["hoyer"],
            "pseudo_norm": np.log2(a1["pseudo_norm"] / d["pseudo_norm"]),
        }

    return contrast(models, sparser)
