"""Which tokens the answer draws on, and which way the loss pushes the two maps: tests with gradients and knock-outs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diffscope import edits
from diffscope.hypotheses.declared.one_model import observed, over_model
from diffscope.hypotheses.declared.pair import ONE_PAIR
from diffscope.hypotheses.evidence.answers import answers
from diffscope.hypotheses.evidence.flows import flows
from diffscope.hypotheses.evidence.last_query import sized_spans
from diffscope.hypotheses.inference import Observed
from diffscope.hypotheses.rules import BELOW, Missing, Quantity, Test
from diffscope.hypotheses.subjects import Pair, Subject
from diffscope.scope import Scope
from diffscope.tasks.retrieval import Prompt

STATISTIC = (
    "share of Σ|D·∂L/∂D| of the answering query that comes from the answer, L the loss of its first token; rise of the loss of "
    "the answer when that query, and those of the answer's own tokens, no longer see it, in all layers"
)
SIZE = "size: they no longer see a span of the answer's length near it"

FLOW = Test(
    id="information-flow",
    claim="What decides the answer flows from the answer's tokens.",
    source="seed 001: the differential operation directs attention to task-relevant tokens",
    statistic=STATISTIC,
    controls=("untrained models of the same architecture", "the other needles", SIZE),
    quantities={
        "flow": Quantity("share of the flow that comes from the answer", 0.02),
        "over_mass": Quantity("that minus the answer's share in |D|", 0.02),
        "needles": Quantity("share of the flow that comes from the other needles", 0.02),
        "knock_out": Quantity("rise of the loss without the answer, above a span of its size (nats)", 0.1),
    },
    predictions={},
    needs="model",
    limits="Neither account predicts how much: it is where both should be looked for.",
)

FLOW_PAIR = Test(
    id="information-flow-pair",
    claim="In DIFF more of what decides the answer flows from its tokens than in standard attention.",
    source="seed 001; a comparison with standard attention was absent",
    statistic=f"{STATISTIC}; DIFF minus standard",
    controls=("untrained pairs of the same architectures, with scores as far apart", SIZE, "same prompts"),
    quantities={
        "flow": Quantity("share of the flow from the answer, DIFF − standard", 0.02),
        "needles": Quantity("share of the flow from the other needles, DIFF − standard", 0.02),
        "knock_out": Quantity("rise of the loss without the answer above its control, DIFF − standard (nats)", 0.1),
    },
    predictions={},
    needs="pair",
    limits=ONE_PAIR,
)

GRADIENTS = Test(
    id="gradient-dynamics",
    claim="Training pushes the two maps towards shared noise.",
    source="seed 000, experiment 3 for noise cancellation; arXiv 2510.00517 on opposed gradients; unilm: their ratio is near λ",
    statistic="gradients on the answering query's scores, mean over the checkpoints: cosine of descent with the gradient of ρ on "
    "irrelevant tokens; cosine between the two branches; log2 of their norms' ratio",
    controls=("series of untrained models, each with scores as far apart as those of the checkpoint in its place",),
    quantities={
        "push": Quantity("descent of the loss along ρ on irrelevant tokens (cosine)", 0.02),
        "cosine": Quantity("cosine of the gradients on the scores of A1 and A2", 0.02),
        "ratio": Quantity("norm of the second gradient over the first, over λ (octaves)", 0.32),
    },
    predictions={"NC": {"push": BELOW}},
    needs="checkpoints",
    limits="Of the scores of one query and the loss of one token; the optimiser's own steps are not asked. On the maps "
    "themselves the two gradients are opposed and their ratio is λ, by construction.",
)


def flow(subject: Subject) -> dict[str, Observed]:
    made = shares_of_flow(subject)
    knocked = [_knock_out(scope, subject.few) for scope in subject.scopes]
    return made | {
        "knock_out": Observed(np.stack([total for total, _ in knocked]), layers=np.mean([one for _, one in knocked], 0))
    }


def shares_of_flow(subject: Subject) -> dict[str, Observed]:
    """What gradients say of the flow, beside untrained models."""
    own, others = subject.of_each(flows, "gradients")
    if "push" not in own[0]:
        raise Missing("a differential model: this one is standard attention")
    takes = {
        "flow": lambda one: one["flow_answer"],
        "over_mass": lambda one: one["flow_answer"] - one["mass_answer"],
        "needles": lambda one: one["flow_needles"],
    }
    return {name: observed([take(one) for one in own], [take(one) for one in others]) for name, take in takes.items()}


def flow_pair(pair: Pair) -> dict[str, Observed]:
    pair.check()
    (own, others), (plain, plain_others) = (subject.of_each(flows, "gradients") for subject in (pair.diff, pair.standard))
    made = {}
    for name in ("flow", "needles"):
        of = f"flow_{'answer' if name == 'flow' else name}"
        values = [over_model(a[of]).values - over_model(b[of]).values for a, b in zip(own, plain, strict=True)]
        null = [float((over_model(a[of]) - over_model(b[of])).mean()) for a, b in zip(others, plain_others, strict=True)]
        made[name] = Observed(np.stack(values), np.array(null))
    both = [[_knock_out(scope, subject.few)[0] for scope in subject.scopes] for subject in (pair.diff, pair.standard)]
    return made | {"knock_out": Observed(np.stack(both[0]) - np.stack(both[1]))}


def gradients(series: Subject) -> dict[str, Observed]:
    if len(series.scopes) < 3:
        raise Missing("three checkpoints of a training at least")
    own, others = series.of_each(flows, "gradients")
    if "push" not in own[0]:
        raise Missing("checkpoints of a differential model: this one is standard attention")
    count = len(own)
    rounds = [others[i : i + count] for i in range(0, len(others) - count + 1, count)]
    made = {}
    for name, of in (("push", "push"), ("cosine", "cosine"), ("ratio", "ratio_lambda")):
        values = np.nanmean([over_model(one[of]).values for one in own], 0)
        null = [np.nanmean([float(over_model(one[of]).mean()) for one in some]) for some in rounds]
        made[name] = Observed(values[None], np.array(null))
    return made


def _knock_out(scope: Scope, prompts: Sequence[Prompt]) -> tuple[np.ndarray, np.ndarray]:
    """Rise of the loss without the answer above the control, in all layers (prompt,), and in each alone (layer,), in nats."""
    rises, by_layer = [], []
    for index, prompt in enumerate(prompts):
        queries = range(len(prompt.ids) - 1, len(prompt.ids) - 1 + len(prompt.answer))
        control = sized_spans(prompt, np.random.default_rng([0, index]))["control_0"]

        def loss(keys, layers=None, prompt=prompt, queries=queries):
            return answers(scope, [prompt], edits.knock_out(keys, queries, layers=layers)).loss[0]

        rises.append(loss(prompt.spans["answer"]) - loss(control))
        by_layer.append([loss(prompt.spans["answer"], layer) - loss(control, layer) for layer in scope.layers])
    return np.array(rises), np.mean(by_layer, 0)


TESTS = {FLOW: flow}
PAIRS = {FLOW_PAIR: flow_pair}
CHECKPOINTS = {GRADIENTS: gradients}
