"""Do the two maps share their noise, and does training make them? On irrelevant tokens alike, on the answer not."""

from __future__ import annotations

from functools import partial

from diffscope.evidence.quantities import SHARED_NOISE
from diffscope.hypotheses.contrast import contrast, noted, require_differential, require_series
from diffscope.hypotheses.declared.sources import REVIEW
from diffscope.hypotheses.declared.steps import AS_TRAINED, growth, log_steps
from diffscope.hypotheses.rules import ABOVE, Quantity, declare
from diffscope.hypotheses.statistics import Sample
from diffscope.hypotheses.subjects import Models
from diffscope.hypotheses.weights import BY, KNOCK_OUT, WEIGHTED

UNTRAINED = "untrained models of the same architecture, with scores as far apart as the trained ones' and their λ"
ANSWERING = f"all heads, {BY[KNOCK_OUT]}; the answering query"
AT_LAST = f"all heads, {BY[KNOCK_OUT]} at the last checkpoint; the answering query"
KINDS = {"": ("overlap", 0.02), "_cosine": ("cosine", 0.02), "_js": ("Jensen–Shannon divergence", 0.01)}
SHARED = {
    "sharing": "sharing on irrelevant tokens above the pairing control",
    "difference": "sharing on spans of the answer's size above that on the answer",
    "kind": "sharing on the other sentences' numbers above that on the answer",
    "sharing_without_needles": "sharing without the other sentences above the pairing control",
}
SHORT = {
    "sharing": "irrelevant tokens against other pairs",
    "difference": "overlap on same-size spans − on the answer",
    "kind": "other numbers against the answer",
}
QUANTITIES = {
    f"{name}{end}": Quantity(f"{words} ({kind})", margin, short=SHORT.get(name, ""))
    for end, (kind, margin) in KINDS.items()
    for name, words in SHARED.items()
}


@declare(
    id="noise-symmetry",
    question="Do the two maps share more on irrelevant tokens than other pairs of maps, and less on the answer than elsewhere?",
    asks=dict.fromkeys(("sharing", "difference", "kind"), ABOVE),
    source=f"{REVIEW}: experiment 1 for noise cancellation",
    statistic=f"overlap of A1 and A2 of the answering query, on irrelevant tokens and on the answer; {WEIGHTED}",
    controls=(
        "pairing: A2 of the layer's other heads in place of a head's own",
        "size: spans of the answer's length in the context near its depth",
        "kind: the numbers of the other sentences, as the answer is a number",
        UNTRAINED,
    ),
    quantities=QUANTITIES,
    predictions={"NC": {"sharing": ABOVE, "difference": ABOVE, "kind": ABOVE}},
    of=ANSWERING,
    needs="model",
    limits="Heads of one layer may share noise as well: then the pairing control hides it. Irrelevant is all but the answer, the "
    "question and the first token, the queried city's sentence included.",
)
def noise_symmetry(models: Models) -> dict[str, Sample]:
    require_differential(models)
    return noted(contrast(models, SHARED_NOISE), {"sharing": "sharing", "kind": "sharing on other numbers above the answer"})


@declare(
    id="noise-symmetry-training",
    question="Does training make the two maps share more of their noise?",
    asks={"sharing": ABOVE},
    source=f"{REVIEW}: experiments 1 and 3 for noise cancellation, across training stages; unilm issue 1661",
    statistic="growth of noise-symmetry's quantities from the first checkpoint to the last: slope over log2(1 + step), times the "
    f"range of that; heads {BY[KNOCK_OUT]} at the last checkpoint",
    controls=("those of noise-symmetry", AS_TRAINED),
    quantities={name: Quantity(f"growth of {quantity.label}", quantity.margin) for name, quantity in QUANTITIES.items()},
    predictions={"NC": {"sharing": ABOVE}},
    of=AT_LAST,
    needs="checkpoints",
    limits="Of one training the interval is over prompts.",
)
def noise_symmetry_training(series: Models) -> dict[str, Sample]:
    require_series(series)
    return contrast(series, SHARED_NOISE, over_steps=partial(growth, log_steps(series)))
