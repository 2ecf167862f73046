"""Tests of a DIFF model beside the standard model that it is matched with: the same prompts, key by key."""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.hypotheses.contrast import contrast_pair, model_mean
from diffscope.hypotheses.declared.one_model import SPARSITY_SOURCE
from diffscope.hypotheses.declared.sources import PAPER, REVIEW
from diffscope.hypotheses.evidence.last_query import LastQuery
from diffscope.hypotheses.inference import Observed
from diffscope.hypotheses.rules import ABOVE, BELOW, Quantity, declare
from diffscope.hypotheses.subjects import Pair

ONE_PAIR = "A single pair says what its two models do, not what the architectures do."
SINKS_UNABLE = "any second map that has a sink takes from it, whatever else it does"
CONTROLS = ("untrained pairs of the same architectures, with scores as far apart", "same prompts")


@declare(
    id="sparsity-pair",
    claim="DIFF's maps are sparser than those of standard attention.",
    source=SPARSITY_SOURCE,
    statistic="of the answering query's row, DIFF's D (through |D|) minus the standard model's A: Gini, normalised entropy, "
    "Hoyer, pseudo-norm (log2); mean over heads, then layers",
    controls=CONTROLS,
    quantities={
        "gini": Quantity("Gini of D − Gini of the standard model's A", 0.02),
        "entropy": Quantity("normalised entropy of the standard model's A − that of D", 0.02),
        "hoyer": Quantity("Hoyer of D − that of the standard model's A", 0.02),
        "pseudo_norm": Quantity("pseudo-norm of the standard model's A over that of D (octaves)", 0.1),
        "gini_a1": Quantity("Gini of A1 − Gini of the standard model's A", 0.02),
    },
    predictions={"SP": {"gini": ABOVE, "entropy": ABOVE}},
    needs="pair",
    limits=ONE_PAIR,
    unable="cancelling shared noise leaves a sparser map as well",
)
def sparsity_pair(pair: Pair) -> dict[str, Observed]:
    def sparser(diff: LastQuery, standard: LastQuery) -> dict[str, xr.DataArray]:
        d = diff.heads.sel(map="D")
        a1 = diff.heads.sel(map="A1")
        a = standard.heads.sel(map="D")
        return {
            "gini": minus(d["gini"], a["gini"]),
            "entropy": minus(a["entropy_normalised"], d["entropy_normalised"]),
            "hoyer": minus(d["hoyer"], a["hoyer"]),
            "pseudo_norm": minus(np.log2(a["pseudo_norm"]), np.log2(d["pseudo_norm"])),
            "gini_a1": minus(a1["gini"], a["gini"]),
        }

    return contrast_pair(pair, sparser)


@declare(
    id="key-token-gain-pair",
    claim="DIFF looks more at the answer than standard attention does.",
    source=f"{PAPER}, Figure 1 and Table 3, whose normalisation was never published (unilm 1654)",
    statistic="mass on the answer in DIFF's D minus that in the standard model's A, in four normalisations; mean over heads, "
    "then layers",
    controls=CONTROLS,
    quantities={
        "share": Quantity("answer's share in |D| − in the standard model's A", 0.02),
        "raw": Quantity("the same of the raw sum of D", 0.02),
        "signed": Quantity("the same over 1 − λ", 0.02),
        "positive": Quantity("the same of the positive part of D", 0.02),
        "needles": Quantity("the other needles' share in |D| − in the standard model's A", 0.02),
    },
    predictions={"NC": {"share": ABOVE}, "SP": {"share": ABOVE}},
    needs="pair",
    limits=ONE_PAIR,
    unable="both accounts predict it",
)
def key_token_gain_pair(pair: Pair) -> dict[str, Observed]:
    def gain(diff: LastQuery, standard: LastQuery) -> dict[str, xr.DataArray]:
        d, a = (last_query.heads["span_mass"].sel(map="D") for last_query in (diff, standard))
        answer = a.sel(span="answer", normalisation="share")
        needles = a.sel(span="needles", normalisation="share")
        masses = {
            normalisation: minus(d.sel(span="answer", normalisation=normalisation), answer)
            for normalisation in ("share", "raw", "signed", "positive")
        }
        return {**masses, "needles": minus(d.sel(span="needles", normalisation="share"), needles)}

    return contrast_pair(pair, gain)


@declare(
    id="sinks",
    claim="Differential attention reduces attention sinks.",
    source=f"{REVIEW}: question 5",
    statistic="share of the first token in DIFF's D, A1 and A2 minus that in the standard model's A; mean over heads, then "
    "layers",
    controls=CONTROLS,
    quantities={
        "d": Quantity("sink's share in |D| − in the standard model's A", 0.02),
        "a1": Quantity("sink's mass in A1 − in the standard model's A", 0.02),
        "a2": Quantity("sink's mass in A2 − in the standard model's A", 0.02),
        "first_four": Quantity("share of the first four keys in |D| − in the standard model's A", 0.02),
    },
    predictions={"NC": {"d": BELOW}},
    needs="pair",
    limits=f"Of the answering query alone. {ONE_PAIR}",
    unable=SINKS_UNABLE,
)
def sinks(pair: Pair) -> dict[str, Observed]:
    def shares(diff: LastQuery, standard: LastQuery) -> dict[str, xr.DataArray]:
        maps, a = (last_query.heads["sink_mass"].sel(normalisation="share") for last_query in (diff, standard))
        a = a.sel(map="D")
        first = {name: minus(maps.sel(map=name.upper(), sink_set="S"), a.sel(sink_set="S")) for name in ("d", "a1", "a2")}
        return {**first, "first_four": minus(maps.sel(map="D", sink_set="first_four"), a.sel(sink_set="first_four"))}

    return contrast_pair(pair, shares)


def minus(diff: xr.DataArray, standard: xr.DataArray) -> xr.DataArray:
    """The difference of two models' means, (prompt,): their heads need not be as many."""
    return model_mean(diff) - model_mean(standard)
