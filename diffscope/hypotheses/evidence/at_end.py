"""What is taken of a run at its end alone, because it takes long: ranks, anatomy, sweeps of noise, stand-ins, knock-outs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from diffscope.hypotheses.evidence.answers import answers, lost_without_heads, with_answer
from diffscope.hypotheses.evidence.injection import SIGMA, injection, log_odds_lost
from diffscope.hypotheses.evidence.quantities import label_of, noise_sweep, parts_of_maps, rank_ratios
from diffscope.hypotheses.evidence.ranks import second_map_ranks
from diffscope.hypotheses.evidence.stand_ins import rises
from diffscope.instruments.anatomy import anatomy
from diffscope.scope import Scope
from diffscope.tasks.retrieval import Prompt

FEW = 5  # prompts, one at each depth


Ends = tuple[dict[str, xr.DataArray], dict[str, np.ndarray]]


def at_end(scope: Scope, prompts: Sequence[Prompt], several: Sequence[Prompt]) -> Ends:
    """Quantities (prompt, layer, head) by LABEL.NAME, and outcomes (prompt,) by name.

    Parameters
    ----------
    scope : Scope
    prompts : sequence of Prompt
        Ten or more, of which the first and the last are used.
    several : sequence of Prompt
        Prompts with two questions.
    """
    few, others = prompts[:FEW], prompts[FEW : 2 * FEW]
    lost = log_odds_lost(scope, few, (SIGMA,), span="irrelevant")["log_odds_lost"].isel(sigma=0)
    outcomes = {f"lost_{mode}": lost.sel(mode=mode).values for mode in ("common", "differential")}
    answered = answers(scope, several)
    outcomes |= {"two_questions_right": answered.right, "two_questions_loss": answered.loss}
    values = {"knock_out.loss": lost_without_heads(scope, few).transpose("prompt", "layer", "head")}
    captured = scope.capture([prompt.ids for prompt in few])
    if not captured.differential:
        return values, outcomes
    whole = anatomy(captured, scope.capture([prompt.ids for prompt in others])).drop_vars("layer")
    tables = {
        rank_ratios: second_map_ranks(scope, few),
        noise_sweep: injection(scope, few).drop_vars("layer"),
        parts_of_maps: whole,
    }
    values |= {f"{label_of(read)}.{name}": array for read, taken in tables.items() for name, array in read(taken).items()}
    return values, outcomes | rises(scope, few, [with_answer(prompt) for prompt in others])
