"""Is the second map noise of a few patterns? Its rank, and what is lost when a simpler map stands in its place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xarray as xr

from diffscope import edits
from diffscope.errors import PromptError
from diffscope.hypotheses.contrast import contrast, require_differential
from diffscope.hypotheses.declared.sources import NOTES
from diffscope.hypotheses.evidence.answers import answers, with_answer
from diffscope.hypotheses.evidence.flows import second_map_ranks
from diffscope.hypotheses.inference import Observed
from diffscope.hypotheses.rules import ABOVE, BELOW, NONE, Quantity, declare
from diffscope.hypotheses.subjects import Models
from diffscope.scope import Scope

RANK = 5  # the most that was reported: "effective rank of only 2–5"
LOSS = 0.1  # nats


@declare(
    id="low-rank-noise",
    claim="λA2 is noise of a few patterns, which a fixed map of low rank could stand in for.",
    source=f"{NOTES}: effective rank of only 2–5",
    statistic="effective rank exp H(σ) of λA2 over that of the same map with each row's visible keys permuted (octaves); "
    f"rise of the loss of answers when A2 is replaced by its rank-{RANK} part, by its mean over other prompts, by the uniform "
    "map, by nothing",
    controls=(
        "each row's keys permuted",
        "untrained models of the same architecture, for the rank",
        "A2 = 0: whether there was anything to lose",
    ),
    quantities={
        "rank": Quantity("effective rank of λA2 over its permuted control (octaves)", 0.32),
        "low": Quantity(f"rise of the loss with A2 of rank {RANK} (nats)", LOSS),
        "zero": Quantity("rise of the loss without A2 (nats)", LOSS),
        "mean": Quantity("rise of the loss with A2 = its mean over other prompts (nats)", LOSS),
        "uniform": Quantity("rise of the loss with A2 uniform (nats)", LOSS),
        "rank_energy": Quantity("effective rank exp H(σ²) of λA2 over its permuted control (octaves)", 0.32),
        "itself": Quantity("effective rank exp H(σ) of λA2 itself", 1.0),
        "itself_energy": Quantity("effective rank exp H(σ²) of λA2 itself", 1.0),
    },
    predictions={"NC": {"rank": BELOW, "low": NONE, "zero": ABOVE}},
    needs="model",
    limits="A rank says of how many patterns a map is made, not that they are noise. Losses are of the trained model alone: a "
    "model that makes nothing of A2 loses nothing. The low-rank part is made from all rows, those that hold the answer's first "
    "token included.",
    unable="any fixed second map, such as a flat one with a sink, is of few patterns too",
)
def low_rank(models: Models) -> dict[str, Observed]:
    require_differential(models, "a differential model")
    rises = [_rises(scope, models) for scope in models.scopes]
    return effective_ranks(models) | {name: Observed(np.stack([rise[name] for rise in rises])) for name in rises[0]}


def effective_ranks(models: Models) -> dict[str, Observed]:
    """Effective ranks of λA2, beside those of untrained models."""
    names = {"rank": "erank_over", "rank_energy": "erank_energy_over", "itself": "erank", "itself_energy": "erank_energy"}

    def ranks(table: xr.Dataset) -> dict[str, xr.DataArray]:
        return {name: table[variable] for name, variable in names.items()}

    return contrast(models, ranks, second_map_ranks)


def _rises(scope: Scope, models: Models) -> dict[str, np.ndarray]:
    """By how much each stand-in for A2 raises the loss of every prompt, (prompt,) in nats."""
    before = answers(scope, models.prompts).loss
    stand_ins = {"low": edits.low_rank_a2(RANK), "zero": edits.zero_a2(), "uniform": edits.uniform_a2()}
    rises = {name: answers(scope, models.prompts, edit).loss - before for name, edit in stand_ins.items()}
    try:
        rises["mean"] = answers(scope, models.prompts, edits.mean_a2(scope, _others(scope, models))).loss - before
    except PromptError:  # prompts of several lengths have no mean map
        rises["mean"] = np.full(len(before), np.nan)
    return rises


def _others(scope: Scope, models: Models) -> list[list[int]]:
    """Other prompts of the same kind, as long as the longest of the board's own."""
    drawn = replace(models.settings, seed=models.settings.seed + 1).prompts_for(scope)
    longest = max(len(with_answer(prompt)) for prompt in models.prompts)
    return [ids for ids in map(with_answer, drawn) if len(ids) == longest]
