"""Does differential attention take from the attention sink?"""

from __future__ import annotations

from functools import partial

from diffscope.evidence.quantities import SINK_SHARES
from diffscope.hypotheses.contrast import contrast, require_series
from diffscope.hypotheses.declared.pairs import CONTROLS, ONE_PAIR
from diffscope.hypotheses.declared.sources import REVIEW
from diffscope.hypotheses.declared.steps import AS_TRAINED, growth, log_steps
from diffscope.hypotheses.rules import BELOW, Quantity, declare
from diffscope.hypotheses.statistics import Sample
from diffscope.hypotheses.subjects import Models, Pair
from diffscope.hypotheses.weights import WEIGHTED

UNABLE = "any second map that has a sink takes from it, whatever else it does"
NEEDS_ONE = "Of models without a sink (a share of the first token near 0) it says nothing."


@declare(
    id="sinks",
    question="Does differential attention reduce attention sinks?",
    asks={"d": BELOW},
    source=f"{REVIEW}: question 5",
    statistic=f"share of the first token in DIFF's D, A1 and A2 minus that in the standard model's A; {WEIGHTED}",
    controls=CONTROLS,
    quantities={
        "d": Quantity("sink's share in |D| − in the standard model's A", 0.02),
        "a1": Quantity("sink's mass in A1 − in the standard model's A", 0.02),
        "a2": Quantity("sink's mass in A2 − in the standard model's A", 0.02),
        "first_four": Quantity("share of the first four keys in |D| − in the standard model's A", 0.02),
    },
    predictions={"NC": {"d": BELOW}},
    needs="pair",
    limits=f"Of the answering query alone. {NEEDS_ONE} {ONE_PAIR}",
    unable=UNABLE,
)
def sinks(pair: Pair) -> dict[str, Sample]:
    observed = contrast(pair, SINK_SHARES)
    return {name: observed[name] for name in sinks.quantities}


@declare(
    id="sinks-training",
    question="Does D come to keep less of the sink than A1 over training?",
    asks={"kept": BELOW},
    source=f"{REVIEW}: question 5",
    statistic="growth over the checkpoints, as for noise-symmetry-training, of the first token's share in |D| minus its mass in "
    "A1, of the answering query",
    controls=(AS_TRAINED,),
    quantities={
        "kept": Quantity("growth of the sink's share in |D| − its mass in A1", 0.02),
        "a1": Quantity("growth of the sink's mass in A1", 0.02),
        "a2": Quantity("growth of the sink's mass in A2", 0.02),
    },
    predictions={"NC": {"kept": BELOW}},
    needs="checkpoints",
    limits=f"Of the answering query alone; of one training the interval is over prompts. {NEEDS_ONE}",
    unable=UNABLE,
)
def sinks_training(series: Models) -> dict[str, Sample]:
    require_series(series)
    observed = contrast(series, SINK_SHARES, over_steps=partial(growth, log_steps(series)))
    return {name: observed[name] for name in sinks_training.quantities}
