"""How a pair bears coarse numbers and lost heads: outliers, quantised scores, redundancy, importance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from diffscope import edits
from diffscope.capture import Capture
from diffscope.hypotheses.declared.pair import ONE_PAIR
from diffscope.hypotheses.evidence.answers import answers
from diffscope.hypotheses.evidence.last_query import as_sharp
from diffscope.hypotheses.inference import Observed
from diffscope.hypotheses.rules import Quantity, Test
from diffscope.hypotheses.subjects import Pair
from diffscope.scope import Scope
from diffscope.tasks.retrieval import Prompt

BITS = (8, 6, 4)
TAILS = {"logits": "logit_outliers", "outputs": "layer_output_outliers"}
EXACT = 0.02  # share of exact answers that matters

OUTLIERS = Test(
    id="outliers-quantisation",
    claim="DIFF has smaller outliers, and bears coarser scores.",
    source="Differential Transformer, tables of outliers and of quantised attention logits",
    statistic="log2 of the largest over the median magnitude, DIFF minus standard: of q·k/√d over all maps, of layer outputs; "
    "loss of exact answers when scores are quantised by their largest magnitude (absmax), DIFF minus standard",
    controls=("same prompts", "untrained pairs of the same architectures, for the outliers; their scores as far apart"),
    quantities={
        "logits": Quantity("largest over median of the scores, DIFF − standard (octaves)", 0.32),
        "outputs": Quantity("largest over median of layer outputs, DIFF − standard (octaves)", 0.32),
        **{f"bits_{b}": Quantity(f"exact answers lost with scores of {b} bits, DIFF − standard", EXACT) for b in BITS},
    },
    predictions={},
    needs="pair",
    limits=ONE_PAIR,
)

REDUNDANCY = Test(
    id="redundancy-importance",
    claim="DIFF's heads repeat each other less, and no head is indispensable.",
    source="the DEX paper: larger cosine distance, lower CKA, flatter head importance",
    statistic="mean cosine distance between the heads' maps (A1, D) and mean linear CKA between their outputs, by layer; exact "
    "answers lost without a head: the mean over heads and the worst head; DIFF minus standard",
    controls=("same prompts", "untrained pairs of the same architectures, as sharp, for distance and CKA"),
    quantities={
        "distance_d": Quantity("cosine distance between heads' D − between the standard model's A", 0.02),
        "distance_a1": Quantity("cosine distance between heads' A1 − between the standard model's A", 0.02),
        "cka": Quantity("CKA between heads' outputs, DIFF − standard", 0.02),
        "mean_head": Quantity("exact answers lost without a head, mean over heads, DIFF − standard", EXACT),
        "worst_head": Quantity("exact answers lost without the worst head, DIFF − standard", EXACT),
    },
    predictions={},
    needs="pair",
    limits="DIFF has half as many heads, each twice as wide: losing one loses more. The worst head is found on the prompts that "
    f"it is judged on. {ONE_PAIR}",
)


def tails(scope: Scope, prompts: Sequence[Prompt], spreads=None) -> dict[str, np.ndarray]:
    """Largest over median magnitude of scores and of layer outputs, (prompt,) in octaves, mean over layers."""
    found = _sharpened(scope, prompts, spreads).measure(["logit_outliers"])
    over = {name: found[of].sel(outlier="top_1") / found[of].sel(outlier="median") for name, of in TAILS.items()}
    return {name: np.log2(one).mean("layer").values for name, one in over.items()}


def likeness(scope: Scope, prompts: Sequence[Prompt], spreads=None) -> dict[str, np.ndarray]:
    """Distances and CKA between the heads of a layer, (prompt,), mean over layers; NaN where a layer has one head."""
    found = _sharpened(scope, prompts, spreads).measure(["map_distance", "head_cka"])
    distance, cka = found["map_distance"].mean("layer"), found["head_cka"]
    others = cka.where(cka["head"] != cka["other_head"]).mean(("head", "other_head")).mean("layer")
    return {"distance_d": distance.sel(map="D").values, "distance_a1": distance.sel(map="A1").values, "cka": others.values}


def _sharpened(scope: Scope, prompts: Sequence[Prompt], spreads) -> Capture:
    cap = scope.capture([prompt.ids for prompt in prompts])
    return cap if spreads is None else replace(cap, layers=[as_sharp(*two) for two in zip(cap.layers, spreads, strict=True)])


def outliers(pair: Pair) -> dict[str, Observed]:
    made = _compared(pair, tails, "outliers")
    lost = {f"bits_{bits}": [] for bits in BITS}
    for diff, standard in zip(pair.diff.scopes, pair.standard.scopes, strict=True):
        for bits in BITS:
            quantise = edits.quantise_logits(bits)
            of = [_lost(scope, pair.diff.prompts, quantise) for scope in (diff, standard)]
            lost[f"bits_{bits}"].append(of[0] - of[1])
    return made | {name: Observed(np.stack(rows)) for name, rows in lost.items()}


def redundancy(pair: Pair) -> dict[str, Observed]:
    made = _compared(pair, likeness, "likeness of heads")
    lost = {"mean_head": [], "worst_head": []}
    for diff, standard in zip(pair.diff.scopes, pair.standard.scopes, strict=True):
        of = [_without_heads(scope, pair.diff.prompts) for scope in (diff, standard)]  # each (head of the model, prompt)
        lost["mean_head"].append(of[0].mean(0) - of[1].mean(0))
        worst = [one[one.mean(1).argmax()] for one in of]
        lost["worst_head"].append(worst[0] - worst[1])
    return made | {name: Observed(np.stack(rows)) for name, rows in lost.items()}


def _compared(pair: Pair, take, what: str) -> dict[str, Observed]:
    """DIFF minus standard of what `take` gives, beside untrained pairs."""
    pair.check()
    (own, others), (plain, plain_others) = (subject.of_each(take, what) for subject in (pair.diff, pair.standard))
    return {
        name: Observed(
            np.stack([a[name] - b[name] for a, b in zip(own, plain, strict=True)]),
            np.array([np.mean(a[name] - b[name]) for a, b in zip(others, plain_others, strict=True)]),
        )
        for name in own[0]
    }


def _lost(scope: Scope, prompts: Sequence[Prompt], edit: edits.Edit) -> np.ndarray:
    """Exact answers before minus after an edit, (prompt,)."""
    return answers(scope, prompts).right - answers(scope, prompts, edit).right


def _without_heads(scope: Scope, prompts: Sequence[Prompt]) -> np.ndarray:
    heads = [layer.n_heads for layer in scope.capture(prompts[0].ids).layers]
    places = [(layer, head) for layer, count in zip(scope.layers, heads) for head in range(count)]
    before = answers(scope, prompts).right
    return np.stack([before - answers(scope, prompts, edits.ablate_heads(*place)).right for place in places])


PAIRS = {OUTLIERS: outliers, REDUNDANCY: redundancy}
