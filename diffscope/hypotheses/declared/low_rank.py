"""Is the second map noise of a few patterns? Its rank, and what is lost when a simpler map stands in its place."""

from __future__ import annotations

from diffscope.evidence.ablations import LOW_RANKS
from diffscope.evidence.quantities import RANK_RATIOS
from diffscope.hypotheses.contrast import contrast, require_differential
from diffscope.hypotheses.declared.noise_symmetry import UNTRAINED
from diffscope.hypotheses.declared.sources import NOTES
from diffscope.hypotheses.rules import ABOVE, BELOW, NONE, Quantity, declare
from diffscope.hypotheses.statistics import Sample
from diffscope.hypotheses.subjects import Models
from diffscope.hypotheses.weights import WEIGHTED
from diffscope.stats.formulas.rank import DEFINITIONS

LOSS = 0.1  # nats


@declare(
    id="low-rank-noise",
    question="Has λA2 a lower rank than the uniform map? Does the loss rise if a simpler map replaces A2?",
    asks={"erank_over_uniform": BELOW, f"low_{LOW_RANKS[-1]}": ABOVE, "mean": ABOVE},
    source=f"{NOTES}: effective rank of only 2–5",
    statistic="five effective ranks of λA2, over those of the uniform causal map and over those of the same map with each row's "
    f"visible keys permuted, a mean of several draws (octaves), {WEIGHTED}; rise of the loss of answers when A2 is replaced by "
    "the part of low rank of its row-normalised map, by its mean over other prompts, by the uniform map, by nothing",
    controls=("the uniform causal map", "each row's keys permuted", UNTRAINED, "A2 = 0: whether there was anything to lose"),
    quantities={
        **{
            f"{name}_over_{control}": Quantity(f"{name} of λA2 over its {control} control (octaves)", 0.32, short="rank")
            for control in ("uniform", "permuted")
            for name in DEFINITIONS
        },
        **{name: Quantity(f"{name} of λA2 itself", 1.0) for name in DEFINITIONS},
        **{
            f"low_{rank}": Quantity(
                f"rise of the loss with A2 of rank {rank}, rows normalised (nats)", LOSS, short=f"rank-{rank} A2"
            )
            for rank in LOW_RANKS
        },
        "mean": Quantity("rise of the loss with A2 = its mean over other prompts (nats)", LOSS, short="mean A2"),
        "uniform": Quantity("rise of the loss with A2 uniform (nats)", LOSS),
        "zero": Quantity("rise of the loss without A2 (nats)", LOSS),
    },
    predictions={"NC": {"erank_over_uniform": BELOW, f"low_{LOW_RANKS[-1]}": NONE}},
    needs="model",
    limits="A rank says of how many patterns a map is made, not that they are noise: five definitions differ by orders of "
    "magnitude, and "
    "a map that attends to nothing has the rank of the uniform one. Losses are of the trained model alone. The low-rank part is "
    "made from all rows, those that hold the answer's first token included.",
    unable="any fixed second map, such as a flat one with a sink, is of few patterns too",
)
def low_rank(models: Models) -> dict[str, Sample]:
    require_differential(models)
    losses = models.outcomes(*(f"low_{rank}" for rank in LOW_RANKS), "mean", "uniform", "zero")
    return contrast(models, RANK_RATIOS) | losses
