"""What A1 and −λ·A2 of every head do to the logits of an answer and of what competes with it, beside A2 of other prompts."""

from __future__ import annotations

from collections.abc import Sequence

import xarray as xr

from diffscope.attribution import branch_attribution
from diffscope.attribution.stream import check_decoder
from diffscope.errors import PromptError
from diffscope.numbers import between, counted, two_figures
from diffscope.readings.predictions import Question
from diffscope.readings.reading import Reading, described
from diffscope.scope import Scope
from diffscope.stats.averaging import mean_over_prompts

FIRST, SECOND = "A₁", "−λ·A₂"
CONTROLS = OTHER, LEAST, LARGEST = ("A₂ of other prompts", "A₂ of other prompts, least", "A₂ of other prompts, largest")
TARGETS = ("answer", "distractors", "margin")
READS = (
    "Bars up raise a logit, bars down lower it, directly: what later layers make of a head is left out. A subtraction that "
    "cancels noise lowers the distractors and spares the answer, more than A₂ of another prompt would."
)


def branches(scope: Scope, question: Question, others: Sequence[Sequence[int]] = ()) -> Reading:
    """Attribute the logits of one prompt's answer to the branches of heads, with A2 of other prompts as control.

    Parameters
    ----------
    scope : Scope
    question : Question
        Of :func:`diffscope.readings.question`.
    others : sequence of token ids
        Other prompts of as many tokens, each for a control.

    Returns
    -------
    Reading
        ``estimates``: ``contribution`` (layer, head, branch, target) to the logit of the ``answer``, to the mean of the
        ``distractors``' and to the ``margin``, the answer's minus that mean; branches are A1, −λ·A2, and the mean, least and
        largest of −λ·A2 with A2 of the other prompts; ``others`` (other, target) is what that comes to over all heads with each
        of them. ``account`` (place, part, target): all parts of the model, which sum to ``logit`` (target,) but for
        ``unexplained`` (target,).

    Raises
    ------
    UnsupportedModel, PromptError
        As of :func:`diffscope.attribution.branch_attribution`.
    """
    check_decoder(scope)
    if not isinstance(question, Question):
        raise PromptError(f"this takes what readings.question gives, not a {type(question).__name__}")
    candidates = list(question.distractors.values())
    table = branch_attribution(scope, question.ids, question.answer, candidates).isel(prompt=0)
    table = table.assign_coords(head=range(table.sizes["head"]))
    controls = [_with_a2_of(scope, question, candidates, ids) for ids in others]
    own = targets(table["contribution"]).assign_coords(branch=[FIRST, SECOND])
    every = [own, *_of_controls(controls, own)]
    contribution = xr.concat(every, "branch").transpose("layer", "head", "branch", "target")
    variables = {
        "contribution": described(contribution, "added to the logit", "as of branch_attribution", "nats"),
        "account": described(_account(table), "added to the logit", "all parts of the model", "nats"),
        "logit": targets(table["logit"]),
        "unexplained": targets(table["unexplained"]),
    }
    if controls:
        variables["others"] = xr.concat(controls, "other").sum(["layer", "head"], min_count=1)
    estimates = xr.Dataset(variables, attrs=table.attrs)
    estimates["contribution"].attrs["reads"] = READS
    return Reading(_sentence(estimates, len(candidates)), estimates)


def targets(values: xr.DataArray) -> xr.DataArray:
    """Return the answer's value, the mean of the distractors' and the difference, along ``target``, from (..., candidate)."""
    answer = values.isel(candidate=0, drop=True)
    distractors = values.isel(candidate=slice(1, None)).mean("candidate")
    return xr.concat([answer, distractors, answer - distractors], xr.DataArray(list(TARGETS), dims="target", name="target"))


def _with_a2_of(scope: Scope, question: Question, candidates: Sequence[int], ids: Sequence[int]) -> xr.DataArray:
    """Compute what −λ·A2 would add with the row of A2 of another prompt, (layer, head, target)."""
    prompts = [question.ids, list(ids)]
    pair = branch_attribution(scope, prompts, [question.answer] * 2, [list(candidates)] * 2, control=True).isel(prompt=0)
    return targets(pair["other_a2"].assign_coords(head=range(pair.sizes["head"])))


def _of_controls(controls: Sequence[xr.DataArray], own: xr.DataArray) -> list[xr.DataArray]:
    """Return mean, least and largest of the controls as three branches; NaN without any."""
    if not controls:
        return [own.isel(branch=[0]).where(False).assign_coords(branch=[name]) for name in CONTROLS]
    together = xr.concat(controls, "prompt")
    parts = (mean_over_prompts(together), together.min("prompt"), together.max("prompt"))
    return [part.expand_dims(branch=[name]) for name, part in zip(CONTROLS, parts)]


def _account(table: xr.Dataset) -> xr.DataArray:
    """Return what all parts of a model add, (place, part, target): embedding, the parts of each layer, the constant."""
    layers = [f"layer {number}" for number in table["layer"].values]
    heads = table["contribution"].sum("head")  # of what is defined
    parts = {
        FIRST: heads.sel(branch="A1", drop=True),
        SECOND: heads.sel(branch="A2", drop=True),
        "MLP": table["mlp"],
        "bias": table["bias"],
    }
    by_layer = xr.concat(list(parts.values()), xr.DataArray(list(parts), dims="part", name="part"))
    by_layer = by_layer.rename(layer="place").assign_coords(place=layers)
    ends = [table[name].expand_dims(part=["rest"], place=[name]) for name in ("embedding", "constant")]
    places = {"place": ["embedding", *layers, "constant"], "part": [*parts, "rest"]}
    spread = [part.reindex(places, fill_value=0.0) for part in (by_layer, *ends)]
    return targets(sum(spread[1:], spread[0]))


def _sentence(estimates: xr.Dataset, count: int) -> str:
    """Say what the branches of all heads add together; contributions to a logit are summed, not averaged."""
    totals = estimates["contribution"].sum(["layer", "head"])

    def total(branch: str, target: str) -> str:
        return two_figures(float(totals.sel(branch=branch, target=target)))

    logit = two_figures(float(estimates["logit"].sel(target="answer")))
    end = f"All parts of the model sum to its logit of {logit} but for {float(abs(estimates['unexplained']).max()):.0e}."
    start = (
        f"Directly, A1 of all heads adds {total(FIRST, 'answer')} to the answer's logit and {total(FIRST, 'distractors')} to "
        f"{'the distractor’s' if count == 1 else f'the mean of {count} distractors’'}"
    )
    if not estimates["contribution"].sel(branch=SECOND).notnull().any():
        return f"{start}; there is no second map. {end}"
    second = (
        f"−λ·A2 adds {total(SECOND, 'answer')} and {total(SECOND, 'distractors')}, and so moves the answer's lead by "
        f"{total(SECOND, 'margin')} nats"
    )
    control = ""
    if "others" in estimates:
        leads = estimates["others"].sel(target="margin").values
        control = f"; with A2 of {counted(len(leads), 'other prompt')} in its place by {between(leads, two_figures)}"
    return f"{start}; {second}{control}. {end}"
