"""Is the second map noise of a few patterns? Its rank, and what is lost when a simpler map stands in its place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diffscope import edits
from diffscope.errors import PromptError
from diffscope.hypotheses.declared.one_model import observed
from diffscope.hypotheses.evidence.answers import answers, whole
from diffscope.hypotheses.evidence.flows import noise_ranks
from diffscope.hypotheses.inference import Observed
from diffscope.hypotheses.rules import ABOVE, BELOW, NONE, Missing, Quantity, Test
from diffscope.hypotheses.subjects import Subject

RANK = 5  # the most that seed 001 reports
LOSS = 0.1  # nats

LOW_RANK = Test(
    id="low-rank-noise",
    claim="λA2 is noise of a few patterns, which a fixed map of low rank could stand in for.",
    source="seed 001: effective rank of only 2–5",
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


def low_rank(subject: Subject) -> dict[str, Observed]:
    if any(not _differential(scope) for scope in subject.scopes):
        raise Missing("a differential model: this one is standard attention")
    rises = [_rises(scope, subject) for scope in subject.scopes]
    return ranks_of_noise(subject) | {name: Observed(np.stack([one[name] for one in rises])) for name in rises[0]}


def ranks_of_noise(subject: Subject) -> dict[str, Observed]:
    """Effective ranks, beside those of untrained models."""
    own, others = subject.of_each(noise_ranks, "effective ranks")
    tables = {"rank": "erank_over", "rank_energy": "erank_energy_over", "itself": "erank", "itself_energy": "erank_energy"}
    return {name: observed([one[of] for one in own], [one[of] for one in others]) for name, of in tables.items()}


def _differential(scope) -> bool:
    return scope.capture(list(range(4))).differential


def _rises(scope, subject: Subject) -> dict[str, np.ndarray]:
    """By how much each stand-in for A2 raises the loss of every prompt, (prompt,) in nats."""
    before = answers(scope, subject.prompts).loss
    stands = {"low": edits.low_rank_a2(RANK), "zero": edits.zero_a2(), "uniform": edits.uniform_a2()}
    found = {name: answers(scope, subject.prompts, edit).loss - before for name, edit in stands.items()}
    try:
        found["mean"] = answers(scope, subject.prompts, edits.mean_a2(scope, _others(scope, subject))).loss - before
    except PromptError:  # prompts of several lengths have no mean map
        found["mean"] = np.full(len(before), np.nan)
    return found


def _others(scope, subject: Subject) -> list[list[int]]:
    """Other prompts of the same kind, as long as the longest of those that are asked."""
    drawn = [whole(prompt) for prompt in replace(subject.asked, seed=subject.asked.seed + 1).of(scope)]
    longest = max(len(whole(prompt)) for prompt in subject.prompts)
    return [one for one in drawn if len(one) == longest]


TESTS = {LOW_RANK: low_rank}
