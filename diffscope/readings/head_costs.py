"""What each head is worth to an answer: the change of its log-odds when the head's output, or its second map, is taken away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import xarray as xr

from diffscope.edits import Edit, ablate_heads, set_lambda
from diffscope.errors import DiffscopeError, UnsupportedModel, check_choice
from diffscope.numbers import LEAST, change_in_nats, counted, numbered, print_alike, shortened, two_figures
from diffscope.prompts.selection import Indices, indices_among
from diffscope.readings.edit_costs import LOG_ODDS, against_distractors, check_unedited, of_prompts, questions
from diffscope.readings.reading import CLEARLY, Reading, with_error
from diffscope.scope import Scope
from diffscope.scope.heads import heads_by_layer

WHAT = ("head", "A2")
WORDS = {"head": "the output of a head", "A2": "the second map of a head (λ = 0)"}


def ablations(
    scope: Scope,
    prompts: Any,
    *,
    what: Literal["head", "A2"] = "head",
    layers: Indices = None,
    progress: Callable[[int, int], object] | None = None,
) -> Reading:
    """Measure what each head is worth: the change of the answer's log-odds if it alone is taken away.

    Prompts of equal length run together, once for each head. The change is paired, prompt by prompt. Taking one head away says
    what the rest makes of its absence; heads that stand in for each other cost little one by one.

    Parameters
    ----------
    scope : Scope
        Of a model that predicts tokens.
    prompts : TextPrompt, Prompt, or sequence of these
        Of ``diffscope.tasks``, with answers and distractors.
    what : {"head", "A2"}
        What is taken away: what the head gives to the output projection becomes zero, or its λ does, so that its D is A1 with
        its gain.
    layers : int or sequence of int, optional
        As the model numbers them; by default all.
    progress : callable, optional
        Called with (runs done, runs in all) before the first and after each; what it raises ends the reading.

    Returns
    -------
    Reading
        ``estimates``, in nats: ``change`` (layer, head) of the log-odds of the answer against all distractors, mean over
        prompts, its standard error ``change_se``, and ``change_of_prompt`` (layer, head, prompt); ``layer_change`` (layer,), the
        change where all heads of one layer lose it at once, with its error and prompts; ``everything``, where all heads of these
        layers do, with ``everything_se`` and ``everything_of_prompt``; ``log_odds`` of the
        model as it is, with ``log_odds_se`` and ``log_odds_of_prompt``. The attribute ``everything_of`` says which heads
        these are. NaN where a layer has no such head or no second map, and for errors of one prompt.

    Raises
    ------
    PromptError
        There is no prompt, one has no answer or does not fit the model, or none has distractors.
    UnsupportedModel
        The model predicts no tokens, or with ``what="A2"`` has no second map.
    DiffscopeError
        There is no such layer or choice of `what`; or edits are on already, inside a block of ``scope.edit``.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import readings, tasks
    >>> reading = readings.ablations(diffscope.load("mini-diff"), tasks.examples()[0])
    >>> reading.estimates["change"].dims
    ('layer', 'head')
    """
    check_choice("part to take away", what, WHAT)
    check_unedited(scope)
    asked = questions(scope, prompts)
    against_distractors(asked)
    heads = heads_by_layer(scope, asked[0].ids, with_a2=what == "A2")
    chosen = list(heads) if layers is None else list(dict.fromkeys(indices_among("layer", layers, scope.layer_numbers)))
    if not chosen and layers is not None:
        raise DiffscopeError("there is no layer to take heads away in; choose one at least, or leave layers= out for all")
    places = [(layer, head) for layer in chosen for head in range(heads.get(layer, 0))]
    if not places:
        raise UnsupportedModel(f"{scope.name} has no second map in these layers; standard attention has heads to take away")
    tell = progress or (lambda done, total: None)
    layers_with_heads = [layer for layer in chosen if layer in heads]
    runs = len(places) + len(layers_with_heads) + 2
    tell(0, runs)
    unedited = of_prompts(scope, asked, text=False)["log_odds"]
    tell(1, runs)
    everything = of_prompts(scope, asked, [_without(what, layer) for layer in layers_with_heads], text=False)["log_odds"]
    tell(2, runs)
    shape = (len(chosen), max(heads.values()), len(asked))
    coords = {"layer": chosen, "head": range(shape[1])}
    without = xr.DataArray(np.full(shape, np.nan), coords, ("layer", "head", "prompt"))
    for done, (layer, head) in enumerate(places, 3):
        edited = of_prompts(scope, asked, [_without(what, layer, head)], text=False)["log_odds"]
        without.loc[{"layer": layer, "head": head}] = edited.values
        tell(done, runs)
    of_layers = without.isel(head=0, drop=True).copy(data=np.full((len(chosen), len(asked)), np.nan))
    for done, layer in enumerate(layers_with_heads, 3 + len(places)):
        of_layers.loc[{"layer": layer}] = of_prompts(scope, asked, [_without(what, layer)], text=False)["log_odds"].values
        tell(done, runs)
    estimates = _estimates(without - unedited, of_layers - unedited, everything - unedited, unedited, what)
    estimates = estimates.assign_attrs(
        model=scope.name,
        what=what,
        everything_of=f"all heads{_of_layers(chosen, list(heads))}",
        prompts=len(asked),
        averaged_over=counted(len(asked), "prompt"),
    )
    return Reading(_sentence(estimates), estimates)


def _of_layers(chosen: list[int], all_layers: list[int]) -> str:
    """Say of which layers heads are; nothing if these are all layers that have such heads."""
    if set(chosen) >= set(all_layers):
        return ""
    return f" of {numbered('layer', chosen)}"


def _without(what: str, layer: int, head: int | None = None) -> Edit:
    return ablate_heads(layers=layer, heads=head) if what == "head" else set_lambda(0.0, layers=layer, heads=head)


def _estimates(
    change: xr.DataArray, of_layers: xr.DataArray, everything: xr.DataArray, unedited: xr.DataArray, what: str
) -> xr.Dataset:
    """Compute means over prompts with their errors."""
    formula = f"{LOG_ODDS}, without {WORDS[what]} − as it is, prompt by prompt"
    rows = {
        "change": (change, "change of the answer’s log-odds", formula),
        "layer_change": (
            of_layers,
            "change of the answer’s log-odds without all of a layer",
            formula.replace("a head", "all heads of a layer"),
        ),
        "everything": (everything, "change of the answer’s log-odds without all of them", formula.replace("a head", "all heads")),
        "log_odds": (unedited, "log-odds of the answer", LOG_ODDS),
    }
    variables: dict[str, xr.DataArray] = {}
    for name, (values, words, definition) in rows.items():
        variables |= with_error(name, values, words, definition, "nats")
    return xr.Dataset(variables)


def _sentence(estimates: xr.Dataset) -> str:
    """Say which heads cost most, how many cost anything, and what all together cost."""
    what = {"head": "output", "A2": "second map"}[estimates.attrs["what"]]
    prompts = counted(int(estimates["log_odds_of_prompt"].notnull().sum()), "prompt")  # of those with distractors
    start = f"Of {two_figures(float(estimates['log_odds']))} nats of the answer's log-odds over {prompts}"
    heads = estimates[["change", "change_se"]].stack(which=("layer", "head")).dropna("which", subset=["change"])
    change, error = heads["change"].values, heads["change_se"].values
    worst = [at for at in change.argsort() if print_alike(float(change[at]), float(change.min()))]
    places = [f"L{layer}H{head}" for layer, head in heads["which"].values]
    named = shortened([f"{places[at]} ({change_in_nats(float(change[at]), float(error[at]))})" for at in worst])
    takes = "takes most in" if change.min() <= -LEAST else "takes nothing in any; least is gained in"
    clear = int((abs(change) > np.maximum(CLEARLY * error, LEAST)).sum())
    many = f"{clear} of {counted(change.size, 'head')} change it by more than two"
    within = f"; ± is one standard error over {prompts}, and {many}" if np.isfinite(error).any() else ""
    whole = change_in_nats(float(estimates["everything"]), float(estimates["everything_se"]))
    layers = _by_layer(estimates)
    return f"{start}, the loss of one head's {what} {takes} {named}{within}.{layers} Without any of them the change is {whole}."


def _by_layer(estimates: xr.Dataset) -> str:
    """Say what each layer's heads cost together; nothing if there is one layer, which is all of them."""
    change, error = estimates["layer_change"], estimates["layer_change_se"]
    if change.sizes["layer"] < 2:
        return ""
    each = (
        f"L{layer} {change_in_nats(float(value), float(within))}"
        for layer, value, within in zip(change["layer"].values, change.values, error.values)
        if np.isfinite(value)
    )
    return f" Without all of a layer: {', '.join(each)}."
