"""Does the second map carry signal with a minus sign? Its signs, what can stand in for it, and where it looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from diffscope.errors import Missing
from diffscope.evidence.quantities import PREVIOUS
from diffscope.evidence.signs import BLINDED, SIGNS
from diffscope.hypotheses.contrast import require_differential
from diffscope.hypotheses.declared.noise_symmetry import UNTRAINED
from diffscope.hypotheses.declared.sources import DEX, REVIEW
from diffscope.hypotheses.rules import ABOVE, NONE, Quantity, declare
from diffscope.hypotheses.statistics import Sample
from diffscope.hypotheses.subjects import NOT_HELD, Models

NATS = 0.5  # of the answer's loss: the smallest effect that matters in its log-odds


@declare(
    id="signed-weights",
    question="Does the answer need D's negative weights?",
    asks={"negative": ABOVE},
    source=f"{DEX}: negative attention; {REVIEW}: experiment 3 for sparsification",
    statistic="rise of the loss of the answer when D's negative weights are set to 0 at every query, in all heads, minus the "
    "rise when as much is added to each row at keys drawn at random; beside it with A2 added in place of subtracted, and "
    "without A2",
    controls=("as much added to each row, at random keys: how much any such change costs",),
    quantities={
        "negative": Quantity("rise of the loss with D's negative weights 0, above random keys (nats)", NATS),
        "negative_itself": Quantity("rise of the loss with D's negative weights 0 (nats)", NATS),
        "scattered": Quantity("rise of the loss with as much added at random keys (nats)", NATS),
        "plus": Quantity("rise of the loss with A1 + λA2 (nats)", NATS),
        "zero": Quantity("rise of the loss without A2 (nats)", NATS),
    },
    predictions={"SH": {"negative": ABOVE}},
    needs="model",
    of="all heads at once; every query",
    without_a2="zero",
    limits="Of all heads and queries at once, by layer beside it. The model was not trained to do without: what that would cost "
    "is another question. Cancelled noise or a flat pedestal may leave negative weights that matter, or none: neither account "
    "predicts it. The arm that is trained with D⁺ asks the same without an edit.",
)
def signed_weights(models: Models) -> dict[str, Sample]:
    require_differential(models)
    signs = _held(models, {name: f"signs_{name}" for name in SIGNS})
    negative, scattered = signs["negative"], signs["scattered"]
    layers = None if negative.layers is None or scattered.layers is None else negative.layers - scattered.layers
    above = replace(negative, values=negative.values - scattered.values, layers=layers)
    beside = {name: signs[name] for name in ("scattered", "plus", "zero")}
    return {"negative": above, "negative_itself": negative, **beside}


@declare(
    id="a2-content",
    question="Does the answer need what the second map of each prompt says, and not a flat one?",
    asks={"uniform": ABOVE},
    source=f"{REVIEW}: subtraction of a background, or of content; {DEX}: negative attention",
    statistic="rise of the loss of the answer without A2, and when A2 is replaced in all heads by the uniform row, by its mean "
    "over other prompts, or by its mean over other prompts and queries at each distance",
    controls=("A2 = 0: whether there was anything to lose",),
    quantities={
        "zero": Quantity("rise of the loss without A2 (nats)", NATS, short="no A2"),
        "uniform": Quantity("rise of the loss with A2 uniform (nats)", NATS, short="uniform A2"),
        "mean": Quantity("rise of the loss with A2 = its mean over other prompts (nats)", NATS),
        "distance": Quantity("rise of the loss with A2 = its mean at each distance (nats)", NATS),
    },
    predictions={
        "NC": {"zero": ABOVE, "uniform": ABOVE},
        "SP": {"zero": ABOVE, "uniform": NONE},
        "SH": {"zero": ABOVE, "uniform": ABOVE},
    },
    needs="model",
    of="all heads at once; every query",
    without_a2="zero",
    limits="Noise that A1 shares and signal are both content of the prompt, and neither can be replaced by a flat map: of these "
    "two it favours none. A signal that lies at a fixed distance, as the token before, is largely in the mean over prompts too. "
    "Of prompts of one length.",
)
def a2_content(models: Models) -> dict[str, Sample]:
    require_differential(models)
    observed = models.outcomes(*a2_content.quantities)
    if not set(a2_content.judged) <= set(observed):
        raise Missing(NOT_HELD)
    return observed


@declare(
    id="a2-signal",
    question="Does a second map of the first layer look at the token before the number, more than the first map does, and does "
    "the answer need that?",
    asks={"previous": ABOVE, "blind": ABOVE},
    source=f"{DEX}: negative attention; induction heads: a lookup begins with a head that looks at the token before",
    statistic="in the first layer, at the first token of the answer's number in the text: mass on the token before it in A2 "
    "minus that in A1, of the head whose A2 has most there; rise of the loss of the answer when no A2 sees that token "
    "there, minus the rise when no A2 sees the one before",
    controls=(
        "A1 of the same head",
        "the key before that one: whether to hide any key costs as much",
        f"{UNTRAINED}, of the first alone",
    ),
    quantities={
        "previous": Quantity("mass of A2 on the token before the number − that of A1", 0.3, short="A2 − A1 on the token before"),
        "previous_a2": Quantity("mass of A2 on the token before the number", 0.3),
        "blind": Quantity(
            "rise of the loss when A2 does not see the token before the number, above another (nats)",
            NATS,
            short="A2 blind to it",
        ),
        "blind_a1": Quantity("rise of the loss when A1 does not see the token before the number (nats)", NATS),
        "zero": Quantity("rise of the loss without A2 of the first layer (nats)", NATS),
    },
    predictions={"SH": {"previous": ABOVE, "blind": ABOVE}},
    needs="model",
    of="the head of the first layer whose A2 looks most at the token before; the first token of the answer's number",
    without_a2="zero",
    limits="Of one signal of one task, that numbers follow their city; no such head is nothing against a second map that carries "
    "another signal, nor for noise. What a map loses at a key its other keys get.",
)
def a2_signal(models: Models) -> dict[str, Sample]:
    require_differential(models)
    trained, untrained = ([on_previous(table.values) for table in tables if table.values] for tables in models.tables(PREVIOUS))
    blind = _held(models, {name: f"blind_{name}" for name in BLINDED})
    (zero,) = _held(models, {"zero": "without_a2_0"}).values()
    observed = {}
    for name in ("previous", "previous_a2"):
        layers = np.mean([of["layers"][name] for of in trained], 0)
        null = np.array([of[name].mean() for of in untrained]) if untrained else None
        values = np.stack([of[name] for of in trained])
        observed[name] = Sample(values, null, layers, prompts=models.prompts_are, seeds=models.seeds)
    observed["blind"] = replace(blind["A2"], values=blind["A2"].values - blind["A2 elsewhere"].values)
    return observed | {"blind_a1": blind["A1"], "zero": zero}


def on_previous(shares: Mapping[str, xr.DataArray]) -> dict[str, Any]:
    """What :func:`previous_token_share` comes to in the first layer, and in each.

    Parameters
    ----------
    shares : mapping of str to DataArray (prompt, layer, head)

    Returns
    -------
    dict
        ``previous_a2`` (prompt,): A2's mass on the token before, of the head of the first layer whose A2 has most there;
        ``previous`` (prompt,): the same minus that of the head's A1; ``layers``: of each layer the mean over prompts, by name.
    """
    a2, a1 = (shares[name].transpose("prompt", "layer", "head").values for name in ("a2", "a1"))
    heads = np.nan_to_num(a2.mean(0), nan=-1.0).argmax(-1)  # (layer,)
    chosen = (slice(None), np.arange(a2.shape[1]), heads)
    by_layer = {"previous_a2": a2[chosen], "previous": a2[chosen] - a1[chosen]}  # (prompt, layer)
    return {name: of[:, 0] for name, of in by_layer.items()} | {"layers": {name: of.mean(0) for name, of in by_layer.items()}}


def _held(models: Models, names: Mapping[str, str]) -> dict[str, Sample]:
    """Return outcomes of models by name, as `names` calls them; raise Missing if one is not held."""
    outcomes = models.outcomes(*names.values())
    if len(outcomes) < len(names):
        raise Missing(NOT_HELD)
    return {name: outcomes[of] for name, of in names.items()}
