"""Noise that is put in, and what each branch adds to the logits: the premise and the effect of cancellation, asked directly."""

from __future__ import annotations

from dataclasses import replace

from diffscope.evidence.noise import SIGMA
from diffscope.evidence.quantities import REJECTED_NOISE, TAKEN_BACK
from diffscope.hypotheses.contrast import contrast, noted, require_differential
from diffscope.hypotheses.declared.noise_symmetry import ANSWERING, UNTRAINED
from diffscope.hypotheses.declared.sources import PAPER, REVIEW
from diffscope.hypotheses.rules import ABOVE, Quantity, declare
from diffscope.hypotheses.statistics import Sample
from diffscope.hypotheses.subjects import Models
from diffscope.hypotheses.weights import WEIGHTED

NATS = 0.1


@declare(
    id="common-mode-injection",
    question="Does noise that is put into both maps alike cancel, more than with another head's A2?",
    asks={"over_paired": ABOVE},
    source=f"{PAPER}: differential amplifiers; {REVIEW}",
    statistic="of the answering query, 20·log10 of what opposite noise in the scores of the two maps changes of a head's output "
    "over "
    f"what the same noise in both does (σ = {SIGMA:g}), on irrelevant tokens, above the same with A2 of another head; "
    f"{WEIGHTED}; "
    "the answer's log-odds lost to common noise minus that lost to opposite noise, in all layers at once",
    controls=("pairing: A2 of the layer's other heads", UNTRAINED),
    quantities={
        "over_paired": Quantity("common-mode rejection on irrelevant tokens above that with another head's A2 (dB)", 3.0),
        "irrelevant": Quantity("common-mode rejection on irrelevant tokens itself (dB)", 3.0),
        "needles": Quantity("common-mode rejection on the other sentences itself (dB)", 3.0),
        "context": Quantity("common-mode rejection on the text itself (dB)", 3.0),
        "answer": Quantity("common-mode rejection on the answer itself (dB)", 3.0),
        "lost": Quantity("log-odds of the answer lost to common noise − lost to opposite noise (nats)", NATS),
    },
    predictions={"NC": {"over_paired": ABOVE}},
    of=ANSWERING,
    needs="model",
    limits="Of noise that is put in; that training puts shared noise there it does not show.",
)
def common_mode_injection(models: Models) -> dict[str, Sample]:
    require_differential(models)
    observed = contrast(models, REJECTED_NOISE)
    lost = models.outcomes("lost_common", "lost_differential")
    if len(lost) == 2:
        common, differential = lost.values()
        observed["lost"] = replace(common, values=common.values - differential.values)
    return noted(observed, {"over_paired": "rejection above its control"})


@declare(
    id="branch-attribution",
    question="Does the second map take from the distractors what the first gave them, and spare the answer?",
    asks={"rejection": ABOVE, "margin": ABOVE},
    source=f"{REVIEW}: the subtraction has to remove what would distract",
    statistic="of what A1·V and −λA2·V add to the logits of the distractors through each one's own number: minus their "
    "correlation over "
    f"distractors, above the same with A2 of another prompt; {WEIGHTED}; what −λA2·V adds to the answer's logit minus the "
    "distractors' mean, above the same control",
    controls=(
        "A2 of another prompt, with the λ and the values of the prompt itself",
        UNTRAINED,
    ),
    quantities={
        "rejection": Quantity(
            "correlation of what A2 takes from distractors with what A1 gives them, above another prompt's A2",
            0.1,
            short="correlation",
        ),
        "rejection_itself": Quantity("the same itself (correlation)", 0.1),
        "margin": Quantity(
            "what −λA2·V adds to the answer over the distractors, above another prompt's A2 (nats)", NATS, short="margin"
        ),
        "margin_itself": Quantity("what −λA2·V adds to the answer over the distractors (nats)", NATS),
        "answer": Quantity("what −λA2·V adds to the answer's logit (nats)", NATS),
        "distractors": Quantity("what −λA2·V adds to the distractors' logits (nats)", NATS),
    },
    predictions={"NC": {"rejection": ABOVE}},
    of=ANSWERING,
    needs="model",
    limits="Of direct paths to the logits, the final norm as it was; what later layers make of it is left out. It needs three "
    "distractors a prompt.",
)
def branch_attribution(models: Models) -> dict[str, Sample]:
    require_differential(models)
    return noted(contrast(models, TAKEN_BACK), {"rejection": "correlation above its control"})
