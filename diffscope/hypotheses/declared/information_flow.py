"""Which tokens the answer draws on, and which way the loss pushes the two maps: tests with gradients and knock-outs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import xarray as xr

from diffscope import edits
from diffscope.hypotheses.contrast import contrast, contrast_pair, contrast_steps
from diffscope.hypotheses.declared.checkpoints import AS_SHARP
from diffscope.hypotheses.declared.pair import ONE_PAIR, minus
from diffscope.hypotheses.declared.sources import NOTES, REVIEW, SENSITIVITY
from diffscope.hypotheses.evidence.answers import answers
from diffscope.hypotheses.evidence.flows import flows
from diffscope.hypotheses.evidence.last_query import sized_spans
from diffscope.hypotheses.inference import Observed
from diffscope.hypotheses.rules import BELOW, Quantity, declare
from diffscope.hypotheses.subjects import Models, Pair
from diffscope.scope import Scope
from diffscope.tasks.retrieval import Prompt

STATISTIC = (
    "share of Σ|D·∂L/∂D| of the answering query that comes from the answer, L the loss of its first token; rise of the loss of "
    "the answer when that query, and those of the answer's own tokens, no longer see it, in all layers"
)
SIZE = "size: they no longer see a span of the answer's length near it"


@declare(
    id="information-flow",
    claim="What decides the answer flows from the answer's tokens.",
    source=f"{NOTES}: the differential operation directs attention to task-relevant tokens",
    statistic=STATISTIC,
    controls=("untrained models of the same architecture", "the other needles", SIZE),
    quantities={
        "flow": Quantity("share of the flow that comes from the answer", 0.02),
        "over_mass": Quantity("that minus the answer's share in |D|", 0.02),
        "needles": Quantity("share of the flow that comes from the other needles", 0.02),
        "knock_out": Quantity("rise of the loss without the answer, above a span of its size (nats)", 0.1),
    },
    needs="model",
    limits="Neither account predicts how much: it is where both should be looked for.",
)
def information_flow(models: Models) -> dict[str, Observed]:
    observed = shares_of_flow(models)
    rises = [knock_out(scope, models.few) for scope in models.scopes]
    layers = np.mean([by_layer for _, by_layer in rises], 0)
    return observed | {"knock_out": Observed(np.stack([total for total, _ in rises]), layers=layers)}


def shares_of_flow(models: Models) -> dict[str, Observed]:
    """What gradients say of the flow, beside untrained models."""

    def shares(table: xr.Dataset) -> dict[str, xr.DataArray]:
        return {
            "flow": table["flow_answer"],
            "over_mass": table["flow_answer"] - table["mass_answer"],
            "needles": table["flow_needles"],
        }

    return contrast(models, shares, flows)


@declare(
    id="information-flow-pair",
    claim="In DIFF more of what decides the answer flows from its tokens than in standard attention.",
    source=f"{NOTES}; a comparison with standard attention was absent",
    statistic=f"{STATISTIC}; DIFF minus standard",
    controls=("untrained pairs of the same architectures, with scores as far apart", SIZE, "same prompts"),
    quantities={
        "flow": Quantity("share of the flow from the answer, DIFF − standard", 0.02),
        "needles": Quantity("share of the flow from the other needles, DIFF − standard", 0.02),
        "knock_out": Quantity("rise of the loss without the answer above its control, DIFF − standard (nats)", 0.1),
    },
    needs="pair",
    limits=ONE_PAIR,
)
def information_flow_pair(pair: Pair) -> dict[str, Observed]:
    def shares(diff: xr.Dataset, standard: xr.Dataset) -> dict[str, xr.DataArray]:
        names = {"flow": "flow_answer", "needles": "flow_needles"}
        return {name: minus(diff[variable], standard[variable]) for name, variable in names.items()}

    observed = contrast_pair(pair, shares, flows)
    diff, standard = (
        np.stack([knock_out(scope, models.few)[0] for scope in models.scopes]) for models in (pair.diff, pair.standard)
    )
    return observed | {"knock_out": Observed(diff - standard)}


@declare(
    id="gradient-dynamics",
    claim="Training pushes the two maps towards shared noise.",
    source=f"{REVIEW}: experiment 3 for noise cancellation; {SENSITIVITY} on opposed gradients; unilm: their ratio is near λ",
    statistic="gradients on the answering query's scores, mean over the checkpoints: cosine of descent with the gradient of ρ on "
    "irrelevant tokens; cosine between the two branches; log2 of their norms' ratio",
    controls=(AS_SHARP,),
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
def gradient_dynamics(series: Models) -> dict[str, Observed]:
    def gradients(table: xr.Dataset) -> dict[str, xr.DataArray]:
        return {"push": table["push"], "cosine": table["cosine"], "ratio": table["ratio_lambda"]}

    return contrast_steps(series, gradients, partial(np.nanmean, axis=0), flows)


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
