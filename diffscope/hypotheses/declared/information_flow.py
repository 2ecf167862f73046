"""Which tokens the answer draws on, by gradients and knock-outs."""

from __future__ import annotations

from diffscope.evidence.quantities import FLOW_SHARES
from diffscope.evidence.take import ANSWER_HIDDEN
from diffscope.hypotheses.contrast import contrast, require_differential
from diffscope.hypotheses.declared.noise_symmetry import UNTRAINED
from diffscope.hypotheses.declared.pairs import CONTROLS, ONE_PAIR
from diffscope.hypotheses.declared.sources import NOTES
from diffscope.hypotheses.rules import ABOVE, Quantity, declare
from diffscope.hypotheses.statistics import Sample
from diffscope.hypotheses.subjects import Models, Pair

STATISTIC = (
    "share of Σ|D·∂L/∂D| of the queries that the answer's first tokens follow that comes from the answer, L the loss of each; "
    "rise of the loss of the answer when these queries no longer see it, in all layers"
)
SIZE = "size: they no longer see a span of the answer's length near it"


@declare(
    id="information-flow",
    question="Does what decides the answer flow from the answer's tokens, beyond the attention that they get?",
    asks={"over_mass": ABOVE},
    source=f"{NOTES}: the differential operation directs attention to task-relevant tokens",
    statistic=STATISTIC,
    controls=(UNTRAINED, "the other needles", SIZE),
    quantities={
        "flow": Quantity("share of the flow that comes from the answer", 0.02),
        "over_mass": Quantity("share of the flow that comes from the answer − the answer's share in |D|", 0.02),
        "needles": Quantity("share of the flow that comes from the other needles", 0.02),
        "knock_out": Quantity("rise of the loss without the answer, above a span of its size (nats)", 0.1),
    },
    needs="model",
    limits="No account predicts how much: it is where all should be looked for.",
)
def information_flow(models: Models) -> dict[str, Sample]:
    require_differential(models)
    observed = contrast(models, FLOW_SHARES)
    if hidden := models.outcomes(ANSWER_HIDDEN):
        observed["knock_out"] = hidden[ANSWER_HIDDEN]
    return observed


@declare(
    id="information-flow-pair",
    question="Does more of what decides the answer flow from its tokens in DIFF than in standard attention?",
    asks={"flow": ABOVE},
    source=f"{NOTES}; a comparison with standard attention was absent",
    statistic=f"{STATISTIC}; DIFF minus standard",
    controls=(*CONTROLS, SIZE),
    quantities={
        "flow": Quantity("share of the flow from the answer, DIFF − standard", 0.02),
        "needles": Quantity("share of the flow from the other needles, DIFF − standard", 0.02),
        "knock_out": Quantity("rise of the loss without the answer above its control, DIFF − standard (nats)", 0.1),
    },
    needs="pair",
    limits=ONE_PAIR,
)
def information_flow_pair(pair: Pair) -> dict[str, Sample]:
    observed = contrast(pair, FLOW_SHARES)
    observed = {name: observed[name] for name in ("flow", "needles")}
    if hidden := pair.outcomes(ANSWER_HIDDEN):
        observed["knock_out"] = hidden[ANSWER_HIDDEN]
    return observed
