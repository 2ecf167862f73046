"""Does the subtraction move attention to the answer? In four normalisations, with which the claim changes."""

from __future__ import annotations

import xarray as xr

from diffscope.errors import Missing
from diffscope.evidence.quantities import ANSWER_MASS, KEY_GAIN, NORMALISATIONS
from diffscope.hypotheses.arms import formed, minus
from diffscope.hypotheses.contrast import contrast, noted, require_differential
from diffscope.hypotheses.declared.noise_symmetry import UNTRAINED
from diffscope.hypotheses.declared.pairs import CONTROLS, ONE_PAIR
from diffscope.hypotheses.declared.primary import BASELINES, SAME
from diffscope.hypotheses.declared.sources import NOTES, PAPER
from diffscope.hypotheses.rules import ABOVE, BELOW, Quantity, declare
from diffscope.hypotheses.statistics import Sample
from diffscope.hypotheses.subjects import Models, Pair
from diffscope.hypotheses.weights import WEIGHTED

WORDS = {
    "share": "share of |D|",
    "raw": "raw sum of D",
    "signed": "sum of D over 1 − λ",
    "positive": "share of the positive part of D",
}
APART = ("share", "positive")
OF_COHORT = {
    **{name: f"answer's {words}" for name, words in WORDS.items()},
    "needles": "the other sentences' share of |D|",
    "sink": "the first token's share of |D|",
}
SHORT = {"share": "answer", "needles": "other sentences"}


@declare(
    id="key-token-gain",
    question="Does the subtraction move attention to the answer?",
    asks=dict.fromkeys(NORMALISATIONS, ABOVE),
    source=f"{NOTES}: weight of key tokens +30–50 %; {PAPER}, Figure 1",
    statistic="the answer's mass in D over that in A1, minus 1, as ratios of sums over prompts and heads, in four "
    "normalisations; beside "
    "the mean over heads that answer (A1's mass on the answer above 0.1) and over the others, each head alike",
    controls=(UNTRAINED,),
    quantities={
        **{name: Quantity(f"gain of the answer, {WORDS[name]}", 0.1) for name in NORMALISATIONS},
        **{f"{name}_answering": Quantity(f"the same over heads that answer, {WORDS[name]}", 0.1) for name in APART},
        **{f"{name}_others": Quantity(f"the same over heads that do not, {WORDS[name]}", 0.1) for name in APART},
    },
    predictions={"NC": {"share": ABOVE}, "SP": {"share": ABOVE}},
    needs="model",
    limits="The claim changes with the normalisation: a head that subtracts from the answer gains in |D|.",
    unable="all accounts predict it",
)
def key_token_gain(models: Models) -> dict[str, Sample]:
    require_differential(models)
    observed = contrast(models, KEY_GAIN, apart=APART)
    return noted(observed, {"share": "gain in |D|", "positive": "gain in the positive part"})


@declare(
    id="key-token-gain-pair",
    question="Does DIFF look more at the answer than standard attention does?",
    asks=dict.fromkeys(NORMALISATIONS, ABOVE),
    source=f"{PAPER}, Figure 1 and Table 3, whose normalisation was never published (unilm 1654)",
    statistic=f"mass on the answer in DIFF's D minus that in the standard model's A, in four normalisations; {WEIGHTED}",
    controls=CONTROLS,
    quantities={
        **{name: Quantity(f"answer's {WORDS[name]} − its share in the standard model's A", 0.02) for name in NORMALISATIONS},
        "a1": Quantity("answer's mass in A1 − in the standard model's A", 0.02),
        "needles": Quantity("the other sentences' share in |D| − in the standard model's A", 0.02),
        "share_answering": Quantity("answer's share in |D| − in the standard model's A, over heads that answer", 0.02),
        "share_others": Quantity("answer's share in |D| − in the standard model's A, over heads that do not", 0.02),
    },
    predictions={"NC": {"share": ABOVE}, "SP": {"share": ABOVE}},
    needs="pair",
    limits=ONE_PAIR,
    unable="all accounts predict it, and more heads look at other things",
)
def key_token_gain_pair(pair: Pair) -> dict[str, Sample]:
    return contrast(pair, ANSWER_MASS, apart=("share",))


@declare(
    id="allocation",
    question="Does DIFF give more to the answer, and less to the other sentences, than standard attention, each head alike?",
    asks={f"{arm}_{name}": side for name, side in (("share", ABOVE), ("needles", BELOW)) for arm in BASELINES},
    source=f"{PAPER}, Figure 1 and Table 3, which are means over heads and layers (unilm 1654)",
    statistic="of the answering query, mass in DIFF's D minus that in the arm's one map, mean over heads, then layers (of the "
    "sum over 1 − λ the median over heads); of formed models, paired by seed",
    controls=("head count at double width", *SAME),
    quantities={
        f"{arm}_{name}": Quantity(
            f"{words}, DIFF − {BASELINES[arm]}, heads alike", 0.02, short=f"{SHORT.get(name, name)} against {arm}"
        )
        for arm in BASELINES
        for name, words in OF_COHORT.items()
    },
    predictions={account: {f"{arm}_share": ABOVE for arm in BASELINES} for account in ("NC", "SP")},
    needs="cohort",
    limits="Standard attention has twice as many heads as DIFF, and double width as many. Raw, D sums to 1 − λ and is below A1 "
    "wherever A2 is above 0.",
    unable="all accounts predict it, and heads that do not answer count as much as those that do",
)
def allocation(cohort: xr.Dataset) -> dict[str, Sample]:
    if not {f"alike_{name}" for name in OF_COHORT} <= set(cohort.data_vars):
        raise Missing("a cohort with the evidence of its runs")
    masses = {name: cohort[f"alike_{name}"].where(formed(cohort)) for name in OF_COHORT}
    return {f"{arm}_{name}": minus(cohort, mass, "diff", arm) for arm in BASELINES for name, mass in masses.items()}
