"""Which way the loss pushes the two maps along a training."""

from __future__ import annotations

from functools import partial

from diffscope.evidence.quantities import PULLS
from diffscope.hypotheses.contrast import contrast, require_series
from diffscope.hypotheses.declared.sources import REVIEW, SENSITIVITY
from diffscope.hypotheses.declared.steps import AS_TRAINED, late_mean, log_steps
from diffscope.hypotheses.rules import BELOW, Quantity, declare
from diffscope.hypotheses.statistics import Sample
from diffscope.hypotheses.subjects import Models
from diffscope.hypotheses.weights import BY, KNOCK_OUT


@declare(
    id="gradient-dynamics",
    question="Does training push the two maps towards shared noise?",
    asks={"push": BELOW},
    source=f"{REVIEW}: experiment 3 for noise cancellation; {SENSITIVITY} on opposed gradients; unilm: their ratio is near λ",
    statistic="gradients on the scores of the queries that the answer's first tokens follow, mean over checkpoints weighted by "
    "log2(1 + step): cosine of descent with the gradient of 1 − overlap on irrelevant tokens; cosine between the two branches; "
    f"log2 of their norms' ratio; heads {BY[KNOCK_OUT]} at the last checkpoint",
    controls=(AS_TRAINED,),
    quantities={
        "push": Quantity("descent of the loss towards less overlap on irrelevant tokens (cosine)", 0.02),
        "cosine": Quantity("cosine of the gradients on the scores of A1 and A2", 0.02),
        "ratio": Quantity("norm of the second gradient over the first, over λ (octaves)", 0.32),
    },
    predictions={"NC": {"push": BELOW}},
    of=f"all heads, {BY[KNOCK_OUT]} at the last checkpoint; the queries that the answer's first tokens follow",
    needs="checkpoints",
    limits="Of the scores of two queries and the loss of two tokens; the optimiser's own steps are not asked. On the maps "
    "themselves the two gradients are opposed and their ratio is λ, by construction.",
)
def gradient_dynamics(series: Models) -> dict[str, Sample]:
    require_series(series)
    return contrast(series, PULLS, partial(late_mean, log_steps(series)))
