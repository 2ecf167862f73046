"""How a pair bears coarse numbers and lost heads: outliers, quantised scores, redundancy, importance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from diffscope import edits
from diffscope.capture import Capture
from diffscope.evidence.answers import answers
from diffscope.evidence.matching import Match, matched
from diffscope.hypotheses.contrast import contrast
from diffscope.hypotheses.declared.pairs import ONE_PAIR
from diffscope.hypotheses.declared.sources import DEX, PAPER
from diffscope.hypotheses.rules import ABOVE, BELOW, Quantity, declare
from diffscope.hypotheses.statistics import Sample
from diffscope.hypotheses.subjects import Pair
from diffscope.scope import Scope
from diffscope.tasks.prompt import Prompt

BITS = (8, 6, 4)
TAILS = {"logits": "logit_outliers", "outputs": "layer_output_outliers"}
EXACT = 0.02  # share of exact answers that matters


@declare(
    id="outliers-quantisation",
    question="Does DIFF have smaller outliers, and bear coarser scores?",
    asks={"logits": BELOW, "outputs": BELOW, f"bits_{BITS[-1]}": BELOW},
    source=f"{PAPER}, tables of outliers and of quantised attention logits",
    statistic="log2 of the largest over the median magnitude, DIFF minus standard: of q·k/√d over all maps, of layer outputs; "
    "loss of exact answers when scores are quantised by their largest magnitude (absmax), DIFF minus standard",
    controls=(
        "same prompts",
        "untrained pairs of the same architectures, for the outliers; their scores as far apart, with λ as DIFF's",
    ),
    quantities={
        "logits": Quantity("largest over median of the scores, DIFF − standard (octaves)", 0.32, short="scores"),
        "outputs": Quantity("largest over median of layer outputs, DIFF − standard (octaves)", 0.32, short="layer outputs"),
        **{
            f"bits_{bits}": Quantity(
                f"exact answers lost with scores of {bits} bits, DIFF − standard", EXACT, short="exact answers lost"
            )
            for bits in BITS
        },
    },
    needs="pair",
    limits=ONE_PAIR,
)
def outliers_quantisation(pair: Pair) -> dict[str, Sample]:
    observed = contrast(pair, _values, tails)

    def lost(scope: Scope) -> dict[str, np.ndarray]:
        before = answers(scope, pair.diff.prompts).right
        return {f"bits_{bits}": before - answers(scope, pair.diff.prompts, edits.quantise_logits(bits)).right for bits in BITS}

    return observed | _of_scopes(pair, lost)


@declare(
    id="redundancy-importance",
    question="Do DIFF's heads repeat each other less, and is less lost without one of them?",
    asks={"distance_d": ABOVE, "cka": BELOW, "mean_head": BELOW, "worst_head": BELOW},
    source=f"{DEX}: larger cosine distance, lower CKA, flatter head importance",
    statistic="mean cosine distance between the heads' maps (A1, D) and mean linear CKA between their outputs, by layer; exact "
    "answers lost without a head: the mean over heads and the worst head; DIFF minus standard",
    controls=("same prompts", "untrained pairs of the same architectures, as sharp and with DIFF's λ, for distance and CKA"),
    quantities={
        "distance_d": Quantity("cosine distance between heads' D − between the standard model's A", 0.02, short="distance"),
        "distance_a1": Quantity("cosine distance between heads' A1 − between the standard model's A", 0.02),
        "cka": Quantity("CKA between heads' outputs, DIFF − standard", 0.02, short="CKA"),
        "mean_head": Quantity("exact answers lost without a head, mean over heads, DIFF − standard", EXACT, short="mean head"),
        "worst_head": Quantity("exact answers lost without the worst head, DIFF − standard", EXACT, short="worst head"),
    },
    needs="pair",
    limits="DIFF has half as many heads, each twice as wide: losing one loses more. The worst head is found on the prompts that "
    f"it is judged on. {ONE_PAIR}",
)
def redundancy_importance(pair: Pair) -> dict[str, Sample]:
    observed = contrast(pair, _values, likeness)

    def lost(scope: Scope) -> dict[str, np.ndarray]:
        without = _without_heads(scope, pair.diff.prompts)  # (head of the model, prompt)
        return {"mean_head": without.mean(0), "worst_head": without[without.mean(1).argmax()]}

    return observed | _of_scopes(pair, lost)


def tails(scope: Scope, prompts: Sequence[Prompt], match: Sequence[Match] | None = None) -> xr.Dataset:
    """Largest over median magnitude of scores and of layer outputs, (prompt,) in octaves, mean over layers."""
    outliers = _matched(scope, prompts, match).measure(["logit_outliers"])
    ratios = {name: outliers[of].sel(outlier="top_1") / outliers[of].sel(outlier="median") for name, of in TAILS.items()}
    octaves = {name: np.log2(ratio.where(np.isfinite(ratio) & (ratio > 0))) for name, ratio in ratios.items()}
    return xr.Dataset({name: values.mean("layer").reset_coords(drop=True) for name, values in octaves.items()})


def likeness(scope: Scope, prompts: Sequence[Prompt], match: Sequence[Match] | None = None) -> xr.Dataset:
    """Distances and CKA between the heads of a layer, (prompt,), mean over layers; NaN where a layer has one head."""
    statistics = _matched(scope, prompts, match).measure(["map_distance", "head_cka"])
    distance = statistics["map_distance"].mean("layer")
    cka = statistics["head_cka"]
    others = cka.where(cka["head"] != cka["other_head"]).mean(("head", "other_head")).mean("layer")
    return xr.Dataset(
        {
            "distance_d": distance.sel(map="D", drop=True),
            "distance_a1": distance.sel(map="A1", drop=True),
            "cka": others,
        }
    )


def _matched(scope: Scope, prompts: Sequence[Prompt], match: Sequence[Match] | None) -> Capture:
    cap = scope.capture([prompt.ids for prompt in prompts])
    return cap if match is None else replace(cap, layers=[matched(*two) for two in zip(cap.layers, match, strict=True)])


def _values(taken: xr.Dataset) -> dict[str, xr.DataArray]:
    return dict(taken.data_vars)


def _of_scopes(pair: Pair, lost: Callable[[Scope], dict[str, np.ndarray]]) -> dict[str, Sample]:
    """What each DIFF model loses, (prompt,) by name, minus what its standard model loses."""
    losses = [(lost(diff), lost(standard)) for diff, standard in zip(pair.diff.scopes, pair.standard.scopes, strict=True)]
    return {name: Sample(np.stack([diff[name] - standard[name] for diff, standard in losses])) for name in losses[0][0]}


def _without_heads(scope: Scope, prompts: Sequence[Prompt]) -> np.ndarray:
    """Exact answers lost without each head, (head of the model, prompt)."""
    layers = scope.capture(prompts[0].ids).layers
    places = [(layer.layer, head) for layer in layers for head in range(layer.n_heads)]
    before = answers(scope, prompts).right
    return np.stack([before - answers(scope, prompts, edits.ablate_heads(*place)).right for place in places])
