"""How a model answers prompts under edits: log-odds of the answer, the loss of the text, exact answers, prompt by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import xarray as xr

from diffscope.edits import Edit
from diffscope.errors import DiffscopeError, PromptError, UnsupportedModel
from diffscope.scope import Scope
from diffscope.tasks import Prompt, TextPrompt, encode_prompts
from diffscope.tasks.scoring import answers, prompt_losses

LOG_ODDS = "log p(answer) − log Σ p(distractor)"


def questions(scope: Scope, prompts: Any) -> list[Prompt]:
    """Prompts that have an answer, in the tokens of a model.

    Parameters
    ----------
    scope : Scope
        Of a model that predicts tokens.
    prompts : TextPrompt, Prompt, or sequence of these
        Of ``diffscope.tasks``: with spans, an answer and distractors.

    Raises
    ------
    UnsupportedModel
        The model predicts no tokens.
    PromptError
        There is no prompt, one is none of ``diffscope.tasks``, or one has no answer.
    """
    if not scope.runner.predicts:
        raise UnsupportedModel(f"{scope.name} predicts no next tokens, so nothing of it answers")
    given = [prompts] if isinstance(prompts, (Prompt, TextPrompt)) else list(prompts)
    if not given:
        raise PromptError("there is no prompt; give one at least, such as diffscope.tasks.examples()")
    asked = []
    for number, prompt in enumerate(given):
        if not isinstance(prompt, (Prompt, TextPrompt)):
            kind = type(prompt).__name__
            raise PromptError(f"prompt {number} is a {kind}; give prompts of diffscope.tasks, which have an answer to be scored")
        own = encode_prompts(scope.tokenizer, [prompt])[0] if isinstance(prompt, TextPrompt) else prompt
        if not own.answer:
            raise PromptError(f"prompt {number} has no answer, so that nothing of it can be scored; give it one")
        asked.append(own)
    return asked


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
    """Score each prompt under edits.

    Parameters
    ----------
    scope : Scope
    prompts : sequence of Prompt
        Of :func:`questions`.
    edits : sequence of Edit
    text : bool
        Whether to score the text too, for which the model runs once more.

    Returns
    -------
    xarray.Dataset (prompt,)
        ``log_odds`` in nats, NaN without distractors; ``exact``, 1 or 0; and ``loss`` of the text, mean over its tokens, in nats.
    """
    with scope.edit(*edits):
        answered = answers(scope.logits, prompts)
        values = {"log_odds": answered.log_odds, "exact": answered.right.astype(float)}
        if text:
            values["loss"] = prompt_losses(scope.logits, prompts)
    return xr.Dataset({name: ("prompt", scores) for name, scores in values.items()})
