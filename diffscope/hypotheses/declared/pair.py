"""Tests of a DIFF model beside the standard model that it is matched with: the same prompts, key by key."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr

from diffscope.hypotheses.declared.one_model import over_model
from diffscope.hypotheses.evidence.last_query import Reading
from diffscope.hypotheses.inference import Observed
from diffscope.hypotheses.rules import ABOVE, BELOW, Quantity, Test
from diffscope.hypotheses.subjects import Pair

ONE_PAIR = "A single pair says what its two models do, not what the architectures do."
SINKS_UNABLE = "any second map that has a sink takes from it, whatever else it does"
CONTROLS = ("untrained pairs of the same architectures, with scores as far apart", "same prompts")

PAIR_SPARSITY = Test(
    id="sparsity-pair",
    claim="DIFF's maps are sparser than those of standard attention.",
    source="seed 000, experiment 2 for sparsification; seed 001 and the DEX paper disagree",
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

PAIR_GAIN = Test(
    id="key-token-gain-pair",
    claim="DIFF looks more at the answer than standard attention does.",
    source="seed 003, Figure 1, and Table 3 of the paper, whose normalisation was never published (unilm 1654)",
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

SINKS = Test(
    id="sinks",
    claim="Differential attention reduces attention sinks.",
    source="seed 000, question 5",
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


def sparsity(pair: Pair) -> dict[str, Observed]:
    def sparser(diff: Reading, standard: Reading) -> dict[str, xr.DataArray]:
        d, a1, a = diff.own.sel(map="D"), diff.own.sel(map="A1"), standard.own.sel(map="D")
        return {
            "gini": _apart(d["gini"], a["gini"]),
            "entropy": _apart(a["entropy_normalised"], d["entropy_normalised"]),
            "hoyer": _apart(d["hoyer"], a["hoyer"]),
            "pseudo_norm": _apart(np.log2(a["pseudo_norm"]), np.log2(d["pseudo_norm"])),
            "gini_a1": _apart(a1["gini"], a["gini"]),
        }

    return _observed(pair, sparser)


def key_token_gain(pair: Pair) -> dict[str, Observed]:
    def gain(diff: Reading, standard: Reading) -> dict[str, xr.DataArray]:
        d, a = (reading.own["span_mass"].sel(map="D") for reading in (diff, standard))
        on = {
            name: _apart(d.sel(span="answer", normalisation=name), a.sel(span="answer", normalisation="share"))
            for name in ("share", "raw", "signed", "positive")
        }
        return {**on, "needles": _apart(*(one.sel(span="needles", normalisation="share") for one in (d, a)))}

    return _observed(pair, gain)


def sinks(pair: Pair) -> dict[str, Observed]:
    def apart(diff: Reading, standard: Reading) -> dict[str, xr.DataArray]:
        own, a = (reading.own["sink_mass"].sel(normalisation="share") for reading in (diff, standard))
        first = {
            name: _apart(own.sel(map=name.upper(), sink_set="S"), a.sel(map="D", sink_set="S")) for name in ("d", "a1", "a2")
        }
        return {**first, "first_four": _apart(*(one.sel(map="D", sink_set="first_four") for one in (own, a)))}

    return _observed(pair, apart)


def _apart(one: xr.DataArray, other: xr.DataArray) -> xr.DataArray:
    """The difference of two models' means, (prompt,): their heads need not be as many."""
    return over_model(one) - over_model(other)


def _observed(pair: Pair, quantities: Callable[[Reading, Reading], dict[str, xr.DataArray]]) -> dict[str, Observed]:
    """The quantities of each pair of seeds by prompt, and of untrained pairs."""
    pair.check()
    own = [quantities(*two) for two in zip(pair.diff.readings, pair.standard.readings, strict=True)]
    others = [quantities(*two) for two in zip(pair.diff.untrained, pair.standard.untrained, strict=True)]
    return {
        name: Observed(np.stack([one[name].values for one in own]), np.array([float(one[name].mean()) for one in others]))
        for name in own[0]
    }


TESTS = {PAIR_SPARSITY: sparsity, PAIR_GAIN: key_token_gain, SINKS: sinks}
