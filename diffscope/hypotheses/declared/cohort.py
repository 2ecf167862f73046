"""Mechanism tests and measurements on a trained cohort: arms that differ from DIFF in one thing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr
from scipy.stats import norm

from diffscope.accounts import ACCOUNTS
from diffscope.errors import Missing
from diffscope.hypotheses.arms import (
    measured,
    minus,
    steps_to_form,
    text_loss,
    with_distractors,
)
from diffscope.hypotheses.declared.primary import BASELINES, NATS, OCTAVES, SAME, WHOLE
from diffscope.hypotheses.declared.sources import DEX, NOTES, PAPER, REVIEW
from diffscope.hypotheses.rules import ABOVE, BELOW, NONE, Declared, Quantity, declare
from diffscope.hypotheses.statistics import Sample

TEXT = 0.05  # nats a token
FORMED = "Of models in which the circuit formed."
OTHERS = {
    "standard": "standard attention",
    "double-width": "DIFF's head count at double width",
    "signed": "one softmax with a signed mask",
    "lambda-1": "λ = 1 throughout",
    "lambda-0": "λ = 0 with the norm",
    "no-norm": "no norm of heads",
    "scalar": "one number a head for the norm",
    "standard-norm": "standard attention with the norm of heads",
    "diff-v2": "V2",
    "top-8": "the eight largest weights",
    "low-rank": "a second map of low rank",
    "gated": "two softmax heads, one with a signed gate",
    "plus": "A1 + λA2",
    "d-plus": "A1 − λA2 without what is below 0",
    "shared-a2": "one second map a layer",
}
NORM = {  # what the norm of heads does, step by step
    "scalar": ("scalar", "diff"),
    "no-norm": ("no-norm", "diff"),
    "lambda-0": ("lambda-0", "diff"),
    "standard-norm": ("standard-norm", "standard"),
}


def against(id: str, arm: str, question: str, source: str, signed: Mapping[str, str]) -> Declared:
    """A test of whether an arm does what DIFF does: the gap to DIFF remains, or the arm gains on standard attention itself.

    What signed heads predict is `signed`: an arm that has signs gains, one that has none leaves the gap.
    """
    words = OTHERS[arm]

    @declare(
        id=id,
        question=question,
        asks={"own": ABOVE, "gap": ABOVE},
        source=source,
        statistic="log-odds of the answer (nats), mean over 24 and 48 distractors and the lengths that hold them; DIFF minus the "
        f"best of {arm} and both standard arms; {arm} minus standard; paired by seed",
        controls=(
            "the gap to an arm that was harmed, or that lacks DIFF's head count, is none: it is taken to the best arm",
            *SAME,
        ),
        quantities={
            "gap": Quantity(f"log-odds, DIFF − the best of {arm} ({words}) and both standard arms (nats)", NATS, short="DIFF"),
            "own": Quantity(f"log-odds, {arm} ({words}) − standard (nats)", NATS, short=arm),
            "difference": Quantity(f"log-odds, DIFF − {arm} ({words}) (nats)", NATS),
        },
        predictions={"NC": {"gap": ABOVE}, "SP": {"own": ABOVE}, "SH": signed},
        of=WHOLE,
        needs="cohort",
        limits=f"{FORMED} That two arms are equal, few seeds cannot show.",
    )
    def measure(cohort: xr.Dataset) -> dict[str, Sample]:
        values = with_distractors(cohort)
        gaps = {name: minus(cohort, values, "diff", name) for name in (arm, *BASELINES)}
        best = min(gaps, key=lambda name: gaps[name].values.mean())
        return {"gap": gaps[best], "own": minus(cohort, values, arm, "standard"), "difference": gaps[arm]}

    return measure


signed_mask = against(
    id="signed-mask",
    arm="signed",
    question="Does one softmax with a learned signed mask gain on standard attention, and is DIFF still better?",
    source=f"{REVIEW}: experiment 3 for sparsification",
    signed={"own": ABOVE},
)
top_k = against(
    id="top-k",
    arm="top-8",
    question="Does standard attention gain by keeping its k largest weights, and is DIFF still better?",
    source=f"{REVIEW}: experiment 1 for sparsification",
    signed={"gap": ABOVE},
)
gated = against(
    id="gated",
    arm="gated",
    question="Do two softmax heads with a learned signed gate gain on standard attention, and is DIFF still better?",
    source=f"{REVIEW}: gated attention is a notable absence",
    signed={"own": ABOVE},
)


@declare(
    id="lambda-1",
    question="Is λ fixed at 1 throughout, pure cancellation, better among many distractors?",
    asks={"distractors": ABOVE},
    source=f"{REVIEW}: experiment 2 for noise cancellation",
    statistic="λ fixed at 1 − learned λ: log-odds of the answer (nats), mean over 24 and 48 distractors and the lengths that "
    "hold them; loss on text that nothing gives away (nats, not judged); paired by seed",
    controls=SAME,
    quantities={
        "distractors": Quantity("log-odds, λ = 1 − learned λ (nats)", NATS),
        "text": Quantity("loss on text that nothing gives away, λ = 1 − learned λ (nats)", TEXT),
    },
    predictions={"NC": {"distractors": ABOVE}},
    of=WHOLE,
    needs="cohort",
    limits=FORMED,
)
def lambda_one(cohort: xr.Dataset) -> dict[str, Sample]:
    results = {"distractors": minus(cohort, with_distractors(cohort), "lambda-1", "diff")}
    if "text" in cohort:
        results["text"] = minus(cohort, text_loss(cohort, "other"), "lambda-1", "diff")
    return results


def beside(id: str, arm: str, question: str, predictions: Mapping[str, Mapping[str, str]], source: str, limits: str) -> Declared:
    """A test of whether an arm that differs from DIFF in its subtraction alone answers worse among many distractors."""
    words = OTHERS[arm]

    @declare(
        id=id,
        question=question,
        asks={"distractors": ABOVE},
        source=source,
        statistic=f"DIFF − {arm}: log-odds of the answer (nats), mean over 24 and 48 distractors and the lengths that hold them; "
        "log2 of the steps to form; loss on text that nothing gives away (nats); paired by seed",
        controls=("norm, values, λ and parameters as DIFF's", *SAME),
        quantities={
            "distractors": Quantity(f"log-odds, DIFF − {arm} ({words}) (nats)", NATS),
            "steps": Quantity(f"steps to form, DIFF − {arm} ({words}) (octaves)", OCTAVES),
            "text": Quantity(f"loss on text that nothing gives away, DIFF − {arm} ({words}) (nats)", TEXT),
        },
        predictions=predictions,
        of=WHOLE,
        needs="cohort",
        limits=f"{FORMED} {limits}",
    )
    def measure(cohort: xr.Dataset) -> dict[str, Sample]:
        outcomes = {"distractors": with_distractors(cohort)}
        results = {name: minus(cohort, values, "diff", arm) for name, values in outcomes.items()}
        more = {"steps": np.log2(steps_to_form(cohort))} | ({"text": text_loss(cohort, "other")} if "text" in cohort else {})
        return results | _where_there(cohort, {name: (values, "diff", arm) for name, values in more.items()})

    return measure


plus = beside(
    id="plus",
    arm="plus",
    question="Does DIFF tell the answer better than the same with a plus in place of the minus?",
    predictions={account: {"distractors": ABOVE} for account in ACCOUNTS},
    source=f"{DEX}: negative attention; {REVIEW}",
    limits="Every account needs the minus: it can be against them, and for none.",
)
d_plus = beside(
    id="d-plus",
    arm="d-plus",
    question="Does DIFF tell the answer better than the same without its negative weights?",
    predictions={"NC": {"distractors": NONE}, "SP": {"distractors": NONE}, "SH": {"distractors": ABOVE}},
    source=f"{DEX}: negative attention",
    limits="Without negative weights it still cancels what both maps share, and is sparser than DIFF.",
)


@declare(
    id="low-rank-and-lambda-1",
    question="Does DIFF tell the answer better than with a second map of low rank, and λ = 1 better than standard attention?",
    asks={"low-rank": ABOVE, "lambda-1": ABOVE},
    source=f"{NOTES}: effective rank of only 2–5; {REVIEW}: experiment 2 for noise cancellation",
    statistic="log-odds of the answer (nats), mean over 24 and 48 distractors and the lengths that hold them; paired by seed",
    controls=SAME,
    quantities={
        "low-rank": Quantity("log-odds, DIFF − low-rank (a second map of low rank) (nats)", NATS, short="DIFF"),
        "low-rank-standard": Quantity("log-odds, low-rank (a second map of low rank) − standard (nats)", NATS),
        "lambda-1": Quantity("log-odds, λ = 1 throughout − standard (nats)", NATS, short="λ = 1"),
    },
    needs="cohort",
    limits=f"{FORMED} Stated after the first cohort had been read, so on that one it is described, and decides nothing.",
)
def low_rank_and_lambda_one(cohort: xr.Dataset) -> dict[str, Sample]:
    values = with_distractors(cohort)
    pairs = {
        "low-rank": ("diff", "low-rank"),
        "low-rank-standard": ("low-rank", "standard"),
        "lambda-1": ("lambda-1", "standard"),
    }
    return _where_there(cohort, {name: (values, *two) for name, two in pairs.items()})


@declare(
    id="faithfulness",
    question="Does DIFF tell better which questions have an answer, and is it more conservative?",
    asks={"d": ABOVE, "c": ABOVE},
    source=f"{REVIEW}: question 4",
    statistic='saying "unknown" to questions without and with an answer, as signal detection: d′ and criterion c of each seed, '
    "DIFF − the standard arm that has the higher d′ (log-linear correction, Hautus 1995); paired by seed",
    controls=("head count at double width", *SAME),
    quantities={
        "d": Quantity("d′ of DIFF − d′ of the better standard arm", 0.2, short="d′"),
        "c": Quantity("criterion c of DIFF − that of the same arm (above: more conservative)", 0.2, short="criterion"),
    },
    predictions={"NC": {"d": ABOVE, "c": NONE}, "SP": {"c": ABOVE}},
    of="whole models; questions with and without an answer",
    needs="cohort",
    limits=FORMED,
)
def faithfulness(cohort: xr.Dataset) -> dict[str, Sample]:
    unknown = measured(cohort, "says_unknown")
    questions = unknown.notnull().sum(("distractors", "prompt"))
    rate = ((unknown.sum(("distractors", "prompt")) + 0.5) / (questions + 1)).where(questions > 0)
    z = xr.apply_ufunc(norm.ppf, rate)
    hit = z.sel(question="unanswerable", drop=True)
    alarm = z.sel(question="answerable", drop=True)
    gaps = {arm: minus(cohort, hit - alarm, "diff", arm) for arm in BASELINES}
    better = min(gaps, key=lambda arm: gaps[arm].values.mean())
    criterion = (hit + alarm) / 2  # saying "unknown" more often is more conservative
    return {"d": gaps[better], "c": minus(cohort, criterion, "diff", better)}


@declare(
    id="formation-arms",
    question="Do other arms form the lookup circuit later than DIFF?",
    asks=dict.fromkeys(OTHERS, ABOVE),
    source="microsoft/unilm issues 1637 and 1663",
    statistic="log2 of the steps until retrieval is at 95 % (a run that never is counts with the steps after which it was given "
    "up), arm − DIFF, paired by seed",
    controls=SAME,
    quantities={arm: Quantity(f"steps to form, {arm} ({words}) − DIFF (octaves)", OCTAVES) for arm, words in OTHERS.items()},
    needs="cohort",
    limits="An arm that is continued from another's formed model has no formation of its own.",
)
def formation_arms(cohort: xr.Dataset) -> dict[str, Sample]:
    steps = np.log2(steps_to_form(cohort))
    return _where_there(cohort, {arm: (steps, arm, "diff") for arm in OTHERS})


@declare(
    id="text-loss",
    question="Do other arms lose more than DIFF on text that nothing gives away?",
    asks={f"{arm}_other": ABOVE for arm in OTHERS},
    source=f"{PAPER}: perplexity",
    statistic="loss on held-out text (nats a token), of tokens that repeat what followed the same two tokens before (hit), and "
    "of others; arm − DIFF, paired by seed",
    controls=SAME,
    quantities={
        f"{arm}_{token}": Quantity(f"loss on text, {token}, {arm} ({words}) − DIFF (nats)", TEXT, short=arm)
        for arm, words in OTHERS.items()
        for token in ("hit", "other")
    },
    needs="cohort",
    limits="Of a cohort that learns to retrieve: of models in which the circuit formed, on the text of the recipe.",
)
def text_losses(cohort: xr.Dataset) -> dict[str, Sample]:
    measured(cohort, "text")
    losses = {token: text_loss(cohort, token) for token in ("hit", "other")}
    return _where_there(cohort, {f"{arm}_{token}": (losses[token], arm, "diff") for arm in OTHERS for token in losses})


@declare(
    id="norm",
    question="Does DIFF tell the answer worse without the norm of its heads, and standard attention better with it?",
    asks={f"{name}_distractors": ABOVE if arm == "standard-norm" else BELOW for name, (arm, _) in NORM.items()},
    source=f"{REVIEW}: question 2",
    statistic="log-odds of the answer (nats), mean over 24 and 48 distractors, and loss on text that nothing gives away (nats): "
    "the norm made a number a head, then taken out, λ set to 0 with it, against DIFF; and put into standard attention; paired by "
    "seed",
    controls=SAME,
    quantities={
        f"{name}_{of}": Quantity(f"{words}, {arm} − {'DIFF' if other == 'diff' else other} (nats)", margin, short=name)
        for name, (arm, other) in NORM.items()
        for of, words, margin in (("distractors", "log-odds", NATS), ("text", "loss on text", TEXT))
    },
    needs="cohort",
    limits=f"{FORMED} DIFF's gain would survive without the norm under any account.",
)
def norm_of_heads(cohort: xr.Dataset) -> dict[str, Sample]:
    outcomes = {"distractors": with_distractors(cohort)}
    if "text" in cohort:
        outcomes["text"] = text_loss(cohort, "other")
    pairs = {f"{name}_{of}": (values, *two) for name, two in NORM.items() for of, values in outcomes.items()}
    return _where_there(cohort, pairs)


@declare(
    id="head-geometry",
    question="Do twice the heads of half the width, without subtraction, answer better, form earlier, lose less on text?",
    asks={"distractors": ABOVE, "steps": BELOW, "text": BELOW},
    source=f"{REVIEW}: question 3; microsoft/unilm issue 1716",
    statistic="standard attention with maps as wide as DIFF's − half as many heads of double width: log-odds of the answer "
    "(nats), mean over 24 and 48 distractors; log2 of the steps to form; loss on text that nothing gives away; paired by seed",
    controls=SAME,
    quantities={
        "distractors": Quantity("log-odds, twice the heads − double width (nats)", NATS, short="log-odds"),
        "steps": Quantity("steps to form, twice the heads − double width (octaves)", OCTAVES, short="steps"),
        "text": Quantity("loss on text that nothing gives away, twice the heads − double width (nats)", TEXT),
    },
    needs="cohort",
    limits="Both accounts leave it open; DIFF beside either arm is a primary test.",
)
def head_geometry(cohort: xr.Dataset) -> dict[str, Sample]:
    outcomes = {"distractors": with_distractors(cohort), "steps": np.log2(steps_to_form(cohort))}
    if "text" in cohort:
        outcomes["text"] = text_loss(cohort, "other")
    return _where_there(cohort, {name: (values, "standard", "double-width") for name, values in outcomes.items()})


@declare(
    id="near-duplicates",
    question="Does DIFF tell the answer better from numbers of nearly the same city?",
    asks=dict.fromkeys(("standard", "double-width"), ABOVE),
    source=f"{REVIEW}: structured noise",
    statistic="log-odds of the answer against all distractors (nats) among 2, 4 and 6 near-duplicates, mean over these; "
    "DIFF − arm, paired by seed",
    controls=SAME,
    quantities={
        arm: Quantity(f"log-odds among near-duplicates, DIFF − {OTHERS[arm]} (nats)", NATS)
        for arm in ("standard", "double-width")
    },
    needs="cohort",
    limits=FORMED,
)
def near_duplicates(cohort: xr.Dataset) -> dict[str, Sample]:
    values = measured(cohort, "log_odds_near").astype(float).mean("prompt").mean("near")
    return _where_there(cohort, {arm: (values, "diff", arm) for arm in ("standard", "double-width")})


def _where_there(cohort: xr.Dataset, pairs: Mapping[str, tuple[xr.DataArray, str, str]]) -> dict[str, Sample]:
    """Arm minus arm of values, by name, of those that the cohort has two seeds of."""
    results = {}
    lacking = []
    for name, (values, arm, other) in pairs.items():
        try:
            results[name] = minus(cohort, values, arm, other)
        except Missing as error:
            lacking.append(error)
    if not results:
        raise lacking[0]
    return results
