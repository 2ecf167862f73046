"""Does the second map carry signal with a minus sign? Its signs, what can stand in for it, and where it looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from diffscope.errors import Missing
from diffscope.evidence.at_end import A2_OF_LAYER, BLIND, PREVIOUS, SIGN, SIGN_OF_LAYER
from diffscope.evidence.signs import BLINDED, SIGNS, previous_token_share, rises_by_signs, rises_when_blind
from diffscope.hypotheses.contrast import require_differential
from diffscope.hypotheses.declared.low_rank import stand_ins
from diffscope.hypotheses.declared.noise_symmetry import UNTRAINED
from diffscope.hypotheses.declared.sources import DEX, REVIEW
from diffscope.hypotheses.kept import NOT_KEPT, KeptModels, at_end_of
from diffscope.hypotheses.rules import ABOVE, NONE, Quantity, declare
from diffscope.hypotheses.statistics import Sample
from diffscope.hypotheses.subjects import Models
from diffscope.scope import Scope

NATS = 0.5  # of the answer's loss: the smallest effect that matters in its log-odds
EDITED = "models that answer, whose maps can be edited"


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
def signed_weights(models: Models | KeptModels) -> dict[str, Sample]:
    require_differential(models)
    together, layers = _signs(models)
    observed = {name: _observed(models, together[name], layers[name]) for name in ("scattered", "plus", "zero")}
    observed["negative_itself"] = _observed(models, together["negative"], layers["negative"])
    above, above_by_layer = (of["negative"] - of["scattered"] for of in (together, layers))
    return {"negative": _observed(models, above, above_by_layer), **observed}


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
def a2_content(models: Models | KeptModels) -> dict[str, Sample]:
    require_differential(models)
    names = list(a2_content.quantities)
    if isinstance(models, KeptModels):
        return models.outcomes(*names)
    rises = _with_scopes(models).take_of_trained(stand_ins)
    return {name: _observed(models, np.stack([rise[name] for rise in rises])) for name in names}


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
def a2_signal(models: Models | KeptModels) -> dict[str, Sample]:
    require_differential(models)
    masses, untrained = _previous(models)
    blind = _blind(models)
    observed = {}
    for name in ("previous", "previous_a2"):
        layers = np.mean([of["layers"][name] for of in masses], 0)
        null = np.array([of[name].mean() for of in untrained]) if untrained else None
        observed[name] = replace(_observed(models, np.stack([of[name] for of in masses]), layers), untrained=null)
    observed["blind"] = _observed(models, blind["A2"] - blind["A2 elsewhere"])
    observed["blind_a1"] = _observed(models, blind["A1"])
    observed["zero"] = _observed(models, _without_a2_of_first_layer(models))
    return observed


def on_previous(shares: xr.Dataset) -> dict[str, Any]:
    """What :func:`previous_token_share` comes to in the first layer, and in each.

    Parameters
    ----------
    shares : Dataset (prompt, layer, head)

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


def _previous(models: Models | KeptModels) -> tuple[list[dict], list[dict]]:
    """What :func:`on_previous` says of each trained model and each untrained one."""
    if isinstance(models, KeptModels):
        return [on_previous(table) for table in _previous_of_kept(models)], []
    trained, untrained = _with_scopes(models).measure_each(previous_token_share)
    return [on_previous(table) for table in trained], [on_previous(table) for table in untrained]


def _previous_of_kept(models: KeptModels) -> list[xr.Dataset]:
    """What :func:`previous_token_share` gave of each run, mean over prompts: (prompt, layer, head) of one."""
    tables = []
    for evidence in models.evidence:
        kept = {name: at_end_of(evidence, PREVIOUS.format(name)) for name in ("a1", "a2")}
        if any(of is None for of in kept.values()):
            raise Missing(NOT_KEPT)
        tables.append(xr.Dataset({name: of.expand_dims("prompt") for name, of in kept.items()}))
    return tables


def _signs(models: Models | KeptModels) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Rises by change: (seed, prompt) in all layers, and (layer,) in one each."""
    if isinstance(models, KeptModels):
        together = _of_kept(models, SIGN, SIGNS)
        layers = range(models.evidence[0].sizes["layer"])
        each = [_of_kept(models, SIGN_OF_LAYER.format("{}", layer), SIGNS) for layer in layers]
        return together, {name: np.array([of[name].mean() for of in each]) for name in SIGNS}
    taken = _with_scopes(models).take_of_trained(_rises_by_signs)
    together = {name: np.stack([of["together"].sel(change=name) for of in taken]) for name in SIGNS}
    return together, {name: np.mean([of["layers"].sel(change=name).mean("prompt") for of in taken], 0) for name in SIGNS}


def _blind(models: Models | KeptModels) -> dict[str, np.ndarray]:
    """Rises when a map does not see a key, (seed, prompt) by which."""
    if isinstance(models, KeptModels):
        return _of_kept(models, BLIND, list(BLINDED))
    taken = _with_scopes(models).take_of_trained(_rises_when_blind)
    return {name: np.stack([of.sel(blind=name) for of in taken]) for name in BLINDED}


def _without_a2_of_first_layer(models: Models | KeptModels) -> np.ndarray:
    """Rises of the loss without A2 of the first layer, (seed, prompt)."""
    if isinstance(models, KeptModels):
        return _of_kept(models, A2_OF_LAYER, ["0"])["0"]
    return np.stack([of["layer_together"].isel(layer=0).values for of in models.without_a2])


def _rises_by_signs(scope: Scope, models: Models) -> xr.Dataset:
    return rises_by_signs(scope, models.few)


def _rises_when_blind(scope: Scope, models: Models) -> xr.DataArray:
    return rises_when_blind(scope, models.few)


def _of_kept(models: KeptModels, label: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Outcomes that were kept of every run, (seed, prompt), by name."""
    kept = models.outcomes(*(label.format(name) for name in names))
    if len(kept) < len(names):
        raise Missing(NOT_KEPT)
    return {name: of.values for name, of in zip(names, kept.values(), strict=True)}


def _with_scopes(models: Models) -> Models:
    """The models.

    Raises
    ------
    Missing
        There are none that could be run.
    """
    if not models.scopes:
        raise Missing(EDITED)
    return models


def _observed(models: Models | KeptModels, values: np.ndarray, layers: np.ndarray | None = None) -> Sample:
    return Sample(values, layers=layers, prompts=models.prompts_are, seeds=models.seeds)
