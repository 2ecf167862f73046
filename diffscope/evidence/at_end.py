"""What is taken of a run at its end alone, because it takes long: ranks, anatomy, sweeps of noise, stand-ins, knock-outs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from diffscope.evidence.ablations import rises
from diffscope.evidence.answers import answers, with_answer
from diffscope.evidence.costs import lost_without_a2, lost_without_heads
from diffscope.evidence.noise import SIGMA, injection, log_odds_lost
from diffscope.evidence.quantities import label_of, noise_sweep, parts_of_maps, rank_ratios
from diffscope.evidence.ranks import second_map_ranks
from diffscope.evidence.signs import BLINDED, SIGNS, previous_token_share, rises_by_signs, rises_when_blind
from diffscope.instruments.anatomy import anatomy
from diffscope.scope import Scope
from diffscope.tasks.prompt import Prompt

FEW = 5  # prompts, one at each depth
HEAD_LOST = "knock_out.loss"  # by how much the answer's loss rises without each head
A2_LOST = "a2_out.loss"  # and without A2 of each head
PREVIOUS = "previous.{}"  # the mass of a map on the token before the answer's number
SIGN = "signs_{}"  # rises of the loss without signs in all layers, an outcome
SIGN_OF_LAYER = "signs_{}_{}"  # and in one layer
BLIND = "blind_{}"  # and when a map does not see a key, an outcome
A2_OF_LAYER = "without_a2_{}"  # and without A2 of a layer, an outcome


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
    values = {f"knock_out.{measure}": lost for measure, lost in _by_measure(lost_without_heads(scope, few)).items()}
    captured = scope.capture([prompt.ids for prompt in few])
    if not captured.differential:
        return values, outcomes
    without_a2 = lost_without_a2(scope, few)
    values |= {f"a2_out.{measure}": lost for measure, lost in _by_measure(without_a2["of_head"]).items()}
    outcomes |= {
        A2_OF_LAYER.format(layer): lost.values for layer, lost in enumerate(without_a2["layer_together"].sel(measure="loss"))
    }
    values |= {PREVIOUS.format(name): of for name, of in previous_token_share(scope, prompts).items()}
    outcomes |= _by_signs(scope, few)
    whole = anatomy(captured, scope.capture([prompt.ids for prompt in others])).drop_vars("layer")
    tables = {
        rank_ratios: second_map_ranks(scope, few),
        noise_sweep: injection(scope, few).drop_vars("layer"),
        parts_of_maps: whole,
    }
    values |= {f"{label_of(read)}.{name}": array for read, taken in tables.items() for name, array in read(taken).items()}
    return values, outcomes | rises(scope, few, [with_answer(prompt) for prompt in others])


def _by_signs(scope: Scope, few: Sequence[Prompt]) -> dict[str, np.ndarray]:
    """Rises of the loss without signs, in all layers and in each, and when a map does not see a key: (prompt,) by name."""
    rises_of, blind = rises_by_signs(scope, few), rises_when_blind(scope, few)
    outcomes = {BLIND.format(name): blind.sel(blind=name).values for name in BLINDED}
    for name in SIGNS:
        of_layers = rises_of["layers"].sel(change=name).values
        outcomes[SIGN.format(name)] = rises_of["together"].sel(change=name).values
        outcomes |= {SIGN_OF_LAYER.format(name, layer): of for layer, of in enumerate(of_layers)}
    return outcomes


def _by_measure(lost: xr.DataArray) -> dict[str, xr.DataArray]:
    """What is lost, (prompt, layer, head), by measure."""
    return {str(name): lost.sel(measure=name, drop=True).transpose("prompt", "layer", "head") for name in lost["measure"].values}
