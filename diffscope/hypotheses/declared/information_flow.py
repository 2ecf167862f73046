"""Which tokens the answer draws on, by gradients and knock-outs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diffscope import edits
from diffscope.evidence.answers import answers
from diffscope.evidence.flows import flows
from diffscope.evidence.key_sets import sized_spans
from diffscope.evidence.quantities import flow_shares
from diffscope.hypotheses.contrast import contrast, require_differential
from diffscope.hypotheses.declared.noise_symmetry import UNTRAINED
from diffscope.hypotheses.declared.pairs import CONTROLS, ONE_PAIR
from diffscope.hypotheses.declared.sources import NOTES
from diffscope.hypotheses.rules import ABOVE, Quantity, declare
from diffscope.hypotheses.statistics import Sample
from diffscope.hypotheses.subjects import Models, Pair
from diffscope.scope import Scope
from diffscope.tasks.prompt import Prompt

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
    observed = contrast(models, flow_shares, flows)
    if not models.scopes:  # of kept evidence there is no model to be edited
        return observed
    rises = [knock_out(scope, models.few) for scope in models.scopes]
    layers = np.mean([by_layer for _, by_layer in rises], 0)
    return observed | {"knock_out": Sample(np.stack([total for total, _ in rises]), layers=layers)}


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
    observed = contrast(pair, flow_shares, flows)
    observed = {name: observed[name] for name in ("flow", "needles")}
    if not pair.diff.scopes:
        return observed
    diff, standard = (
        np.stack([knock_out(scope, models.few)[0] for scope in models.scopes]) for models in (pair.diff, pair.standard)
    )
    return observed | {"knock_out": Sample(diff - standard)}


def knock_out(scope: Scope, prompts: Sequence[Prompt]) -> tuple[np.ndarray, np.ndarray]:
    """Rise of the loss when the answer is hidden from the queries that answer, above that of a span of its size.

    Returns
    -------
    ndarray (prompt,)
        Hidden in all layers, in nats.
    ndarray (layer,)
        Hidden in one layer alone, mean over prompts.
    """
    rises = []
    by_layer = []
    for index, prompt in enumerate(prompts):
        control = sized_spans(prompt, np.random.default_rng([0, index]))["control_0"]
        rises.append(_rise(scope, prompt, control))
        by_layer.append([_rise(scope, prompt, control, layer) for layer in scope.layers])
    return np.array(rises), np.mean(by_layer, 0)


def _rise(scope: Scope, prompt: Prompt, control: list[int], layers: int | None = None) -> float:
    """Loss with the answer hidden minus loss with the control span hidden, of one prompt, in nats."""
    queries = range(len(prompt.ids) - 1, len(prompt.ids) - 1 + len(prompt.answer))
    answer, size = (
        answers(scope, [prompt], edits.knock_out(keys, queries, layers=layers)).loss[0]
        for keys in (prompt.spans["answer"], control)
    )
    return answer - size
