"""Is D sparser, than A1 and than standard attention?"""

from __future__ import annotations

from diffscope.evidence.quantities import SPARSER, SPARSITY_OF_MAPS
from diffscope.hypotheses.contrast import contrast, noted, require_differential
from diffscope.hypotheses.declared.noise_symmetry import UNTRAINED
from diffscope.hypotheses.declared.pairs import CONTROLS, ONE_PAIR
from diffscope.hypotheses.declared.sources import DEX, REVIEW
from diffscope.hypotheses.rules import ABOVE, Quantity, declare
from diffscope.hypotheses.statistics import Sample
from diffscope.hypotheses.subjects import Models, Pair
from diffscope.hypotheses.weights import WEIGHTED

SOURCE = f"{REVIEW}: experiment 2 for sparsification; {DEX}, with which notes on it disagree"
UNABLE = "cancelling shared noise leaves a sparser map as well"
APART = ("gini", "entropy")


@declare(
    id="sparsity",
    question="Is D sparser than A1?",
    asks={"gini": ABOVE, "entropy": ABOVE},
    source=SOURCE,
    statistic="of the answering query's row, D (through |D|) minus A1: Gini, normalised entropy, Hoyer, pseudo-norm (log2); "
    f"{WEIGHTED}; beside the mean over heads that answer and over the others",
    controls=(UNTRAINED,),
    quantities={
        "gini": Quantity("Gini of D − Gini of A1", 0.02, short="Gini"),
        "entropy": Quantity("normalised entropy of A1 − that of D", 0.02),
        "hoyer": Quantity("Hoyer of D − Hoyer of A1", 0.02),
        "pseudo_norm": Quantity("pseudo-norm of A1 over that of D (octaves)", 0.1),
        "gini_answering": Quantity("Gini of D − Gini of A1, heads that answer", 0.02),
        "gini_others": Quantity("Gini of D − Gini of A1, heads that do not", 0.02),
        "entropy_answering": Quantity("normalised entropy of A1 − that of D, heads that answer", 0.02),
        "entropy_others": Quantity("normalised entropy of A1 − that of D, heads that do not", 0.02),
    },
    predictions={"SP": {"gini": ABOVE, "entropy": ABOVE}},
    needs="model",
    limits="Sparser than A1 is not sparser than what a standard model learns: that needs the pair.",
    unable=UNABLE,
)
def sparsity(models: Models) -> dict[str, Sample]:
    require_differential(models)
    return noted(contrast(models, SPARSER, apart=APART), {"gini": "Gini", "entropy": "entropy"})


@declare(
    id="sparsity-pair",
    question="Are DIFF's maps sparser than those of standard attention?",
    asks={"gini": ABOVE, "entropy": ABOVE},
    source=SOURCE,
    statistic="of the answering query's row, DIFF's D (through |D|) minus the standard model's A: Gini, normalised entropy, "
    f"Hoyer, pseudo-norm (log2); {WEIGHTED}",
    controls=CONTROLS,
    quantities={
        "gini": Quantity("Gini of D − Gini of the standard model's A", 0.02, short="Gini"),
        "entropy": Quantity("normalised entropy of the standard model's A − that of D", 0.02),
        "hoyer": Quantity("Hoyer of D − that of the standard model's A", 0.02),
        "pseudo_norm": Quantity("pseudo-norm of the standard model's A over that of D (octaves)", 0.1),
        "gini_a1": Quantity("Gini of A1 − Gini of the standard model's A", 0.02),
        "gini_answering": Quantity("Gini of D − Gini of the standard model's A, heads that answer", 0.02),
        "gini_others": Quantity("Gini of D − Gini of the standard model's A, heads that do not", 0.02),
    },
    predictions={"SP": {"gini": ABOVE, "entropy": ABOVE}},
    needs="pair",
    limits=ONE_PAIR,
    unable=UNABLE,
)
def sparsity_pair(pair: Pair) -> dict[str, Sample]:
    return contrast(pair, SPARSITY_OF_MAPS, apart=("gini",))
