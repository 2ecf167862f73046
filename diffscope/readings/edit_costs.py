"""What edits cost: log-odds of the answer and the loss of the text under each, paired with the unedited model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from diffscope.edits import Edit
from diffscope.errors import DiffscopeError, PromptError, UnsupportedModel
from diffscope.numbers import LEAST, between, change_in_nats, counted, print_alike, shortened, two_figures
from diffscope.readings.reading import Reading, described, with_error
from diffscope.scope import Scope
from diffscope.scope.answers import score_answers
from diffscope.tasks import Prompt, TextPrompt, encode_prompts
from diffscope.tasks.log_odds import rivals
from diffscope.tasks.scoring import prompt_losses

LOG_ODDS = "log p(answer) − log Σ p(distractor)"
UNITS = {"log_odds": "nats", "loss": "nats", "exact": "1"}
NAMES = {"log_odds": "log-odds of the answer", "loss": "loss of the text", "exact": "exact answers"}
DEFINED = {
    "log_odds": LOG_ODDS,
    "loss": "mean over the tokens of the prompt of −log p(token)",
    "exact": "1: every token of the answer is the first choice",
}

OF_LOG_ODDS = ("most is lost", "most is gained")
OF_LOSS = ("it rises most", "it falls most")

Edits = Mapping[float, Edit | Sequence[Edit]] | Mapping[str, Edit | Sequence[Edit]]


def interventions(
    scope: Scope,
    prompts: Any,
    edits: Edits,
    *,
    along: str = "edit",
    progress: Callable[[int, int], object] | None = None,
) -> Reading:
    """Score prompts under each of several edits, and compare with the unedited model.

    Prompts of equal length run together. The change is paired: of each prompt the value under the edit less that without.

    Parameters
    ----------
    scope : Scope
        Of a model that predicts tokens.
    prompts : TextPrompt, Prompt, or sequence of these
        Of ``diffscope.tasks``, with answers; log-odds are of those that name distractors.
    edits : mapping of float or str to Edit or sequence of Edit
        By value, such as the factor of λ, or by label; each is tried by itself.
    along : str
        What the values are, as the axis is called.
    progress : callable, optional
        Called with (runs done, runs in all) before the first and after each; what it raises ends the reading.

    Returns
    -------
    Reading
        ``estimates`` along ``edit``: ``log_odds`` of the answer against all distractors in nats, ``loss`` of the text in nats a
        token and the share of ``exact`` answers. Of each, mean over prompts: NAME, its standard error NAME_se, NAME_of_prompt
        (edit, prompt); the paired NAME_change, NAME_change_se and NAME_change_of_prompt; and unedited_NAME, unedited_NAME_se and
        unedited_NAME_of_prompt. ``indifferent`` is the mean of −log n, n different distractors: the log-odds where each is as
        likely as the answer. NaN where no prompt names distractors, and for errors of one prompt.

    Raises
    ------
    PromptError
        There is no prompt, or one has no answer or does not fit the model.
    UnsupportedModel
        The model predicts no tokens, or lacks what an edit changes.
    DiffscopeError
        There is no edit, or one is none; or edits are on already, inside a block of ``scope.edit``.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import edits, readings, tasks
    >>> scope = diffscope.load("mini-diff")
    >>> tried = {factor: edits.scale_lambda(factor) for factor in (0, 1)}
    >>> reading = readings.interventions(scope, tasks.examples()[:2], tried, along="factor of λ")
    >>> abs(reading.estimates["log_odds_change"].sel(edit=1).item()) < 1e-3  # λ times 1 changes nothing but the rounding
    True
    """
    tried = _checked(edits)
    check_unedited(scope)
    asked = questions(scope, prompts)
    tell = progress or (lambda done, total: None)
    runs = len(tried) + 1
    tell(0, runs)
    unedited = of_prompts(scope, asked)
    tell(1, runs)
    tables = []
    for done, chosen in enumerate(tried.values(), 2):
        tables.append(of_prompts(scope, asked, chosen))
        tell(done, runs)
    index = xr.DataArray(list(tried), dims="edit", name="edit", attrs={"long_name": along})
    edited = xr.concat(tables, index)
    estimates = _estimates(edited, unedited)
    counts = [len(rivals(prompt)) for prompt in asked if prompt.distractors]
    indifferent = xr.DataArray(-float(np.mean(np.log(counts))) if counts else math.nan)
    estimates["indifferent"] = described(
        indifferent, "log-odds where all are as likely", "mean of −log n, n different distractors", "nats"
    )
    estimates = estimates.assign_coords(edit=index).assign_attrs(
        model=scope.name, prompts=len(asked), averaged_over=counted(len(asked), "prompt")
    )
    return Reading(_sentence(estimates), estimates)


def _checked(edits: Edits) -> dict[Any, tuple[Edit, ...]]:
    """Return the edits of each value as tuples."""
    if not isinstance(edits, Mapping) or not edits:
        raise DiffscopeError("edits are given by value or label, such as {0.5: edits.scale_lambda(0.5)}; give one at least")
    tried = {value: tuple(chosen) if isinstance(chosen, Sequence) else (chosen,) for value, chosen in edits.items()}
    labels = [isinstance(value, str) for value in tried]
    if any(labels) and not all(labels):
        raise DiffscopeError("edits are given by numbers or by labels, not by both; two readings can be drawn together")
    return tried


def _estimates(edited: xr.Dataset, unedited: xr.Dataset) -> xr.Dataset:
    """Compute means over prompts, their errors and the changes of each score."""
    variables: dict[str, xr.DataArray] = {}
    for name, units in UNITS.items():
        change = edited[name] - unedited[name]
        parts = {"": edited[name], "_change": change}
        words = {"": NAMES[name], "_change": f"change of the {NAMES[name]}"}
        definitions = {"": DEFINED[name], "_change": f"{DEFINED[name]}; edited − unedited, prompt by prompt"}
        for end, values in parts.items():
            variables |= with_error(name + end, values, words[end], definitions[end], units)
        variables |= with_error(f"unedited_{name}", unedited[name], f"{NAMES[name]}, unedited", DEFINED[name], units)
    return xr.Dataset(variables)


def _sentence(estimates: xr.Dataset) -> str:
    """Say which edits cost the answer least and most, naming together those that print alike."""
    name = "log_odds" if bool(estimates["log_odds_change"].notnull().any()) else "loss"
    scored = int(estimates[f"unedited_{name}_of_prompt"].notnull().sum())  # log-odds are of those with distractors
    prompts = counted(scored, "prompt")
    change = estimates[f"{name}_change"].dropna("edit")
    whole = f"{two_figures(float(estimates[f'unedited_{name}']))} nats of {NAMES[name]}"
    start = f"Unedited, {prompts} {'has' if scored == 1 else 'have'} {whole}"
    unscored = "" if name == "log_odds" else ". No prompt names distractors, so the answer has no log-odds here"
    if not change.size:
        return f"{start}; under the edits these are undefined."
    extremes = _extremes(
        estimates, change, *((change.values, *OF_LOG_ODDS) if name == "log_odds" else (-change.values, *OF_LOSS))
    )
    counts = estimates[f"{name}_change_of_prompt"].notnull().sum("prompt").values
    over = between(counts, lambda count: f"{count:g}")
    within = f"; ± is one standard error over {over} prompts" if "±" in extremes else ""
    return f"{start}; {extremes}{within}{unscored}."


def _extremes(estimates: xr.Dataset, change: xr.DataArray, worth: np.ndarray, lost: str, gained: str) -> str:
    """Say which edits lose and gain most, with verbs that agree with the signs of the changes."""
    worst, best = (_named(estimates, change, float(change[at])) for at in (worth.argmin(), worth.argmax()))
    if worst == best:
        return f"changed {'alike ' if change.size > 1 else ''}where {worst}"
    if worth.min() > -LEAST:
        return f"{gained} where {best}, least where {worst}"
    if worth.max() < LEAST:
        return f"{lost} where {worst}, least where {best}"
    return f"{lost} where {worst}, {gained} where {best}"


def _named(estimates: xr.Dataset, change: xr.DataArray, size: float) -> str:
    """Name all edits whose change prints like one size, each with its own change."""
    along = estimates["edit"].attrs["long_name"]
    words = []
    for label, value in zip(change["edit"].values, change.values):
        if print_alike(float(value), size):
            edit = str(label) if isinstance(label, str) else f"{along} is {label:g}"
            error = float(estimates[f"{change.name}_se"].sel(edit=label))
            words.append(f"{edit} ({change_in_nats(float(value), error)})")
    return shortened(words)


def questions(scope: Scope, prompts: Any) -> list[Prompt]:
    """Encode prompts of ``diffscope.tasks`` that have an answer in the tokens of a model.

    Raises UnsupportedModel if the model predicts no tokens, and PromptError if there is no prompt, or one is none of
    ``diffscope.tasks`` or has no answer.
    """
    if not scope.runner.predicts:
        raise UnsupportedModel(f"{scope.name} predicts no next tokens, so nothing of it answers")
    all_prompts = [prompts] if isinstance(prompts, (Prompt, TextPrompt)) else list(prompts)
    if not all_prompts:
        raise PromptError("there is no prompt; give one at least, such as diffscope.tasks.examples()")
    encoded = []
    for number, prompt in enumerate(all_prompts):
        if not isinstance(prompt, (Prompt, TextPrompt)):
            kind = type(prompt).__name__
            raise PromptError(
                f"prompt {number} is a {kind}; give one with an answer, such as of "
                "diffscope.tasks.read_prompts([{'prompt': …, 'answer': …}])"
            )
        own = encode_prompts(scope.tokenizer, [prompt])[0] if isinstance(prompt, TextPrompt) else prompt
        if not own.answer:
            raise PromptError(f"prompt {number} has no answer, so that nothing of it can be scored; give it one")
        encoded.append(own)
    return encoded


def against_distractors(prompts: Sequence[Prompt]) -> None:
    """Raise PromptError where no prompt has a distractor, so that no log-odds are defined."""
    if not any(prompt.distractors for prompt in prompts):
        raise PromptError("log-odds are of the answer against distractors, and no prompt has one; give distractors")


def check_unedited(scope: Scope) -> None:
    """Raise DiffscopeError where edits are on already, so that what is read without further ones is not the unedited model."""
    with scope.exclusively():
        active = scope.edits
    if active:
        raise DiffscopeError(
            f"edits are on already ({'; '.join(map(str, active))}), and changes are against the unedited model; "
            "leave the block of scope.edit first"
        )


def of_prompts(scope: Scope, prompts: Sequence[Prompt], edits: Sequence[Edit] = (), *, text: bool = True) -> xr.Dataset:
    """Score each prompt of :func:`questions` under edits, (prompt,).

    ``log_odds`` are in nats, NaN without distractors; ``exact`` is 1 or 0; and ``loss`` of the text, for which the model runs
    once more, is the mean over its tokens, in nats.
    """
    with scope.edit(*edits):
        answered = score_answers(scope, prompts)
        against = [bool(prompt.distractors) for prompt in prompts]
        values = {"log_odds": np.where(against, answered["log_odds"], np.nan), "exact": answered["exact"].values.astype(float)}
        if text:
            values["loss"] = prompt_losses(scope.logits, prompts)
    return xr.Dataset({name: ("prompt", scores) for name, scores in values.items()})
