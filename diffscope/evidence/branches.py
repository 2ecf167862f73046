"""What each branch of a head adds to the logits of the answer and of its distractors, and whether A2 takes back what A1 adds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from diffscope.attribution import branch_attribution
from diffscope.edits.base import Edit
from diffscope.errors import PromptError
from diffscope.evidence.key_sets import number_spans
from diffscope.evidence.untrained import Match, matched
from diffscope.scope import Scope
from diffscope.tasks.prompt import Prompt

BRANCHES = ("A1", "A2", "A2 of another prompt")
LEAST = 3  # distractors: a correlation of two is 1 or -1


def attributions(scope: Scope, prompts: Sequence[Prompt]) -> xr.Dataset:
    """Branch attribution of the answering query of retrieval prompts, with its control.

    Raises PromptError if no prompt has a distractor that begins with another token than its answer.

    Parameters
    ----------
    prompts : sequence of Prompt
        None the only one of its length: the control takes A2 of another prompt, with the λ and the values of the prompt itself.
        Distractors that begin with the answer's token are left out.

    Returns
    -------
    Dataset (prompt, layer, head), of the first token of each number
        By branch (A1, A2 with its −λ, A2 of another prompt): ``answer``, what it adds to the answer's logit; ``distractors``,
        to the mean of the distractors'; ``margin``, the first minus the second.
        What :func:`rejection` gives of what the branches add through each distractor's own number; of the control, in which the
        n-th distractor is weighed as the n-th of another prompt, with the ending ``_control``.
    """
    answers = [prompt.answer for prompt in prompts]
    distractors = [
        [(number, at) for number, at in zip(prompt.distractors, number_spans(prompt)) if number[0] != prompt.answer[0]]
        for prompt in prompts
    ]
    if not any(distractors):
        raise PromptError(
            "branches are attributed to an answer and its distractors, and no prompt has a distractor that begins with another "
            "token than the answer; name distractors"
        )
    table = branch_attribution(
        scope,
        [prompt.ids for prompt in prompts],
        answers,
        [[number for number, _ in of_prompt] for of_prompt in distractors],
        places=[[prompt.spans["answer"], *(at for _, at in own)] for prompt, own in zip(prompts, distractors)],
        control=True,
    )
    whole = _with_control(table["contribution"], table["other_a2"])
    answer = whole.isel(candidate=0, drop=True)
    mean = whole.isel(candidate=slice(1, None)).mean("candidate")
    through = _with_control(table["through"], table["other_a2_through"]).isel(candidate=slice(1, None))
    first, second, another = (through.sel(branch=name, drop=True) for name in BRANCHES)
    measured = {"answer": answer, "distractors": mean, "margin": answer - mean}
    for ending, taken in (("", second), ("_control", another)):
        measured |= {f"{name}{ending}": values for name, values in rejection(first, taken).items()}
    return xr.Dataset(measured).drop_attrs()


def attributed(scope: Scope, prompts: Sequence[Prompt], match: Sequence[Match] | None = None) -> xr.Dataset:
    """Return the table of :func:`attributions`, with the layers made like others if there is a match.

    With a match the model runs with its layers made like the others.
    """
    if match is None:
        return attributions(scope, prompts)
    numbers = {layer: number for number, layer in enumerate(scope.layer_numbers)}
    alike = Edit("made like others", lambda layer, heads: matched(layer, match[numbers[layer.layer]]))
    with scope.edit(alike):
        return attributions(scope, prompts)


def _with_control(own: xr.DataArray, control: xr.DataArray) -> xr.DataArray:
    """Both as one, by branch."""
    joined = xr.concat([own, control.expand_dims(branch=BRANCHES[2:])], "branch")
    return joined.transpose("prompt", "layer", "head", "branch", "candidate")


def rejection(first: xr.DataArray, second: xr.DataArray) -> dict[str, xr.DataArray]:
    """Whether the second branch takes from the logits of those distractors to which the first adds.

    Parameters
    ----------
    first, second : DataArray (…, candidate)
        What each branch adds to the logit of each distractor, −λ included; NaN where there is none.

    Returns
    -------
    dict of DataArray (…)
        ``rejection``: minus their correlation over distractors; above 0 where A2 lowers most what A1 raises most, below 0 where
        it lowers what A1 left small. ``rejected``: minus their covariance, and ``raised``, the variance of the first: the ratio
        of their sums over prompts is the share of A1's differences between distractors that A2 takes back, 1 of all of them.
        NaN with fewer than three distractors.
    """
    both = (first + second).notnull()
    enough = both.sum("candidate") >= LEAST
    x, y = (each.where(both) - each.where(both).mean("candidate") for each in (first, -second))
    raised = (x * x).mean("candidate").where(enough)
    rejected = (x * y).mean("candidate").where(enough)
    spread = np.sqrt(raised * (y * y).mean("candidate"))
    return {"rejection": (rejected / spread).where(spread > 0), "rejected": rejected, "raised": raised}
