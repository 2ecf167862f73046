"""What each branch of a head adds to the logits of the answer and of its distractors, and whether A2 takes back what A1 adds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from diffscope.attribution import branch_attribution
from diffscope.scope import Scope
from diffscope.tasks.retrieval import Prompt

BRANCHES = ("A1", "A2", "A2 of another prompt")
LEAST = 3  # distractors: a correlation of two is 1 or -1


def attributions(scope: Scope, prompts: Sequence[Prompt]) -> xr.Dataset:
    """Branch attribution of the answering query of retrieval prompts, with its control.

    Parameters
    ----------
    scope : Scope
    prompts : sequence of Prompt
        No length with a single prompt: the control takes A2 of another prompt, with the λ and the values of the prompt itself.
        Distractors that begin with the answer's token are left out.

    Returns
    -------
    Dataset (prompt, layer, head), of the first token of each number
        By branch (A1, A2 with its −λ, A2 of another prompt): ``answer``, what it adds to the answer's logit; ``distractors``,
        to the mean of the distractors'; ``margin``, the first minus the second.
        What :func:`rejection` gives of the second branch, and of its control with the ending ``_control``.
    """
    answers = [prompt.answer for prompt in prompts]
    distractors = [[number for number in prompt.distractors if number[0] != prompt.answer[0]] for prompt in prompts]
    table = branch_attribution(scope, [prompt.ids for prompt in prompts], answers, distractors, control=True)
    control = table["other_a2"].expand_dims(branch=BRANCHES[2:])
    by_branch = xr.concat([table["contribution"], control], "branch").transpose("prompt", "layer", "head", "branch", "candidate")
    answer = by_branch.isel(candidate=0, drop=True)
    others = by_branch.isel(candidate=slice(1, None))
    mean = others.mean("candidate")
    first, second, another = (others.sel(branch=name, drop=True) for name in BRANCHES)
    measured = {"answer": answer, "distractors": mean, "margin": answer - mean}
    for ending, taken in (("", second), ("_control", another)):
        measured |= {f"{name}{ending}": values for name, values in rejection(first, taken).items()}
    return xr.Dataset(measured).drop_attrs()


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
    count = (first + second).notnull().sum("candidate")
    x, y = (each - each.mean("candidate") for each in (first, -second))
    mean = {"dim": "candidate", "skipna": True}
    raised = (x * x).mean(**mean).where(count >= LEAST)
    rejected = (x * y).mean(**mean).where(count >= LEAST)
    spread = np.sqrt(raised * (y * y).mean(**mean))
    return {"rejection": (rejected / spread).where(spread > 0), "rejected": rejected, "raised": raised}
