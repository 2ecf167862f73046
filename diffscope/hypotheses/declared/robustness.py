"""How a pair bears coarse numbers and lost heads: outliers, quantised scores, redundancy, importance."""

from __future__ import annotations

from diffscope.evidence.ablations import BITS
from diffscope.evidence.quantities import LIKENESS, TAILS
from diffscope.hypotheses.contrast import contrast
from diffscope.hypotheses.declared.pairs import ONE_PAIR
from diffscope.hypotheses.declared.sources import DEX, PAPER
from diffscope.hypotheses.rules import ABOVE, BELOW, Quantity, declare
from diffscope.hypotheses.statistics import Sample
from diffscope.hypotheses.subjects import Pair

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
    return contrast(pair, TAILS) | pair.outcomes(*(f"bits_{bits}" for bits in BITS))


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
    return contrast(pair, LIKENESS) | pair.outcomes("mean_head", "worst_head")
