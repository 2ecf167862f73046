"""The four primary tests, fixed before the data is read: is DIFF better, does its benefit go with distractors, is noise rejected?

The first two ask whether there is a benefit to be explained, which all accounts say, so that they can be for none of them; the
last two tell accounts apart. The first three are of DIFF against standard attention and against the same head count at double
width, and hold if both do. What signed heads predict was added after the first cohort had been read.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.accounts import ACCOUNTS
from diffscope.errors import Missing
from diffscope.hypotheses.arms import (
    MANY,
    common,
    finished,
    formed,
    log_odds,
    measured,
    minus,
    observed,
    of_arm,
    remarks,
    steps_to_form,
    with_distractors,
)
from diffscope.hypotheses.declared.sources import PAPER, REVIEW
from diffscope.hypotheses.rules import ABOVE, BELOW, IDLE, NONE, Quantity, declare
from diffscope.hypotheses.statistics import Estimate, Sample, failures_at_worst, first_to_form

BESIDE = {"standard": "standard attention", "double-width": "double-width"}  # in short
BASELINES = {"standard": "standard attention", "double-width": "DIFF's head count at double width"}
OCTAVES = 0.15  # of steps: formation repeated on another processor moves by a tenth
NATS = IDLE  # of log-odds: odds by two thirds
PER_DOUBLING = 0.2  # nats
SIGMA = 0.5  # standard deviation of the injected noise, in units of the scaled scores
BY_COST = "cmrr_over_paired_by_cost"
BY_HEAD = {"heads": "cmrr_over_paired_by_head", "weights": "answer_mass"}  # (arm, seed, layer, head)
WHOLE = "whole models; all prompts that runs are scored on"
SAME = ("same data, order and parameters within 1 %; the learning rate tuned for each arm on seeds not used again",)
FORMED = "What is said is of models in which the circuit formed; with failures at worst it is shown beside."


@declare(
    id="formation",
    kind="primary",
    question="Does the lookup circuit form earlier in DIFF?",
    asks=dict.fromkeys(BASELINES, BELOW),
    source=f"{PAPER}; microsoft/unilm issues 1637 and 1663: gains not reproduced at small scale",
    statistic="log2 of the steps until retrieval is at 95 % (a run that never is counts with the steps after which it was given "
    "up), DIFF − arm, paired by seed; beside it which of the two forms first (log-rank stratified by seed)",
    controls=("head count at double width", *SAME),
    quantities={
        **{
            arm: Quantity(f"steps to form, DIFF − {words} (octaves)", OCTAVES, short=BESIDE[arm])
            for arm, words in BASELINES.items()
        },
        **{
            f"{arm}_first": Quantity(f"log-rank z, DIFF vs {words} (positive: DIFF forms later)", 1.0)
            for arm, words in BASELINES.items()
        },
    },
    predictions={account: dict.fromkeys(BASELINES, BELOW) for account in ACCOUNTS},
    of=WHOLE,
    needs="cohort",
    limits="A run that is given up might have formed later: of arms that fail, less than the whole difference is seen.",
)
def formation(cohort: xr.Dataset) -> dict[str, Sample | Estimate]:
    steps = steps_to_form(cohort)
    results: dict[str, Sample | Estimate] = {arm: minus(cohort, np.log2(steps), "diff", arm) for arm in BASELINES}
    for arm in BASELINES:
        two = [of_arm(steps, name) for name in ("diff", arm)]
        places = common(cohort, *two)
        if not any(of_arm(formed(cohort), name).values[places].any() for name in ("diff", arm)):
            raise Missing(f"a run of DIFF or of {BASELINES[arm]} in which the circuit formed")
        events = [of_arm(formed(cohort), name).values[places] for name in ("diff", arm)]
        results[f"{arm}_first"] = first_to_form(*(of.values[places] for of in two), *events)
    return results


@declare(
    id="distractors",
    kind="primary",
    question="Does DIFF tell the answer better from many distractors?",
    asks=dict.fromkeys(BASELINES, ABOVE),
    source=f"{PAPER}, multi-needle retrieval; {REVIEW}",
    statistic="log-odds of the answer against all distractors (nats), mean over 24 and 48 distractors and the lengths that hold "
    "them; DIFF − arm, paired by seed; beside it at each number, and the median with runs that failed at worst",
    controls=("head count at double width", "log-odds, which have neither ceiling nor floor", *SAME),
    quantities={
        **{arm: Quantity(f"log-odds, DIFF − {words} (nats)", NATS, short=BESIDE[arm]) for arm, words in BASELINES.items()},
        **{
            f"{arm}_{count}": Quantity(f"log-odds at {count} distractors, DIFF − {words} (nats)", NATS)
            for arm, words in BASELINES.items()
            for count in MANY
        },
        **{
            f"{arm}_worst": Quantity(f"log-odds, DIFF − {words}, median with failed runs at worst (nats)", NATS)
            for arm, words in BASELINES.items()
        },
    },
    predictions={account: dict.fromkeys(BASELINES, ABOVE) for account in ACCOUNTS},
    of=WHOLE,
    needs="cohort",
    limits=FORMED,
)
def distractors(cohort: xr.Dataset) -> dict[str, Sample | Estimate]:
    together = with_distractors(cohort)
    each = {count: with_distractors(cohort, [count]) for count in MANY}
    results: dict[str, Sample | Estimate] = {arm: minus(cohort, together, "diff", arm) for arm in BASELINES}
    results |= {f"{arm}_{count}": minus(cohort, values, "diff", arm) for arm in BASELINES for count, values in each.items()}
    for arm in BASELINES:
        ended = (of_arm(finished(cohort), "diff") & of_arm(finished(cohort), arm)).values
        two = [of_arm(together, name).values[ended] for name in ("diff", arm)]
        results[f"{arm}_worst"] = failures_at_worst(*two)
    return results


@declare(
    id="distractors-or-length",
    kind="primary",
    question="Does DIFF's benefit grow more with distractors than with length?",
    asks=dict.fromkeys(BASELINES, ABOVE),
    source=f"{REVIEW}: the sparsification reading is testable",
    statistic="of each seed, by least squares over the cells that exist: log-odds ~ log2 distractors + log2 length; the slope "
    "per doubling of distractors minus that per doubling of length (nats); DIFF − arm, paired by seed",
    controls=("head count at double width", "a grid in which length and distractors move apart", *SAME),
    quantities={
        **{
            arm: Quantity(
                f"slope on distractors − slope on length, DIFF − {words} (nats per doubling)", PER_DOUBLING, short=BESIDE[arm]
            )
            for arm, words in BASELINES.items()
        },
        **{
            f"{arm}_{name}": Quantity(f"slope on {name}, DIFF − {words} (nats per doubling)", PER_DOUBLING)
            for arm, words in BASELINES.items()
            for name in ("distractors", "length")
        },
    },
    predictions={"NC": dict.fromkeys(BASELINES, ABOVE), "SP": dict.fromkeys(BASELINES, BELOW)},
    of=WHOLE,
    needs="cohort",
    limits="What is said is of models in which the circuit formed, and of the grid's numbers of distractors and lengths.",
)
def distractors_or_length(cohort: xr.Dataset) -> dict[str, Sample]:
    scores = log_odds(cohort)
    results = {}
    for arm in BASELINES:
        slopes = slopes_of(of_arm(scores, "diff") - of_arm(scores, arm))
        places = common(cohort, *slopes.values())
        of_distractors, of_length = (observed(cohort, values.values[places], places, ("diff", arm)) for values in slopes.values())
        difference = (slopes["distractors"] - slopes["length"]).values[places]
        results |= {
            arm: observed(cohort, difference, places, ("diff", arm)),
            f"{arm}_distractors": of_distractors,
            f"{arm}_length": of_length,
        }
    return results


def slopes_of(values: xr.DataArray) -> dict[str, xr.DataArray]:
    """Slopes of values (seed, length, distractors) per doubling of each of the two, the other held, (seed,).

    Of the cells that any seed has; a seed that lacks one of them is NaN.
    """
    cells = values.transpose("seed", "length", "distractors").values.reshape(values.sizes["seed"], -1)
    axes = (np.log2(values[name].values.astype(float)) for name in ("length", "distractors"))
    length, distractors = np.meshgrid(*axes, indexing="ij")
    there = np.isfinite(cells).any(0)
    design = np.stack([np.ones(there.sum()), distractors.ravel()[there], length.ravel()[there]], 1)
    if np.linalg.matrix_rank(design) < 3:
        raise Missing("a grid in which length and the number of distractors move apart")
    _, of_distractors, of_length = np.linalg.pinv(design) @ cells[:, there].T
    return {"distractors": values["seed"].copy(data=of_distractors), "length": values["seed"].copy(data=of_length)}


@declare(
    id="common-noise",
    kind="primary",
    question="Does DIFF reject noise that both of its maps share?",
    asks={"diff": ABOVE},
    source=f"{REVIEW}; {PAPER}: differential amplifiers",
    statistic="common-mode rejection by injection on irrelevant tokens: 20·log10 of what opposite noise in the scores of the two "
    f"maps (σ = {SIGMA:g}) does to a head's output over what the same noise does (dB); heads weighted by A1's mass on the "
    "answer; DIFF's heads minus the same heads with A2 of another head",
    controls=("A2 of another head of the layer",),
    quantities={
        "diff": Quantity("common-mode rejection above that with another head's A2 (dB)", 3.0, within=1.0),
        "by_cost": Quantity("the same, heads weighted by what they cost the answer (dB)", 3.0, within=1.0),
    },
    predictions={"NC": {"diff": ABOVE}, "SP": {"diff": NONE}},
    of="all heads of DIFF, weighted by A1's mass on the answer; the answering query",
    inside=True,
    needs="cohort",
    limits="Of noise that is put in; that training puts shared noise there it does not show.",
)
def common_noise(cohort: xr.Dataset) -> dict[str, Sample]:
    values = of_arm(at_sigma(measured(cohort, "cmrr_over_paired")).where(formed(cohort)), "diff")
    places = common(cohort, values)
    heads = {}
    if set(BY_HEAD.values()) <= set(cohort):
        of_heads = {name: of_arm(at_sigma(cohort[variable]), "diff") for name, variable in BY_HEAD.items()}
        heads = {name: of.transpose("seed", "layer", "head").values[places] for name, of in of_heads.items()}
    seeds = tuple(int(seed) for seed in cohort["seed"].values[places])
    note = remarks(cohort, places, ("diff",))
    observed = {"diff": Sample(values.values[places, None], prompts="nested", seeds=seeds, note=note, **heads)}
    if BY_COST in cohort:  # not what was declared: the first view of every mechanism, beside it
        by_cost = of_arm(cohort[BY_COST], "diff").values[places, None]
        observed["by_cost"] = Sample(by_cost, prompts="nested", seeds=seeds)
    return observed


def at_sigma(values: xr.DataArray) -> xr.DataArray:
    """What was measured with the noise that is asked of, where it was with several."""
    if "sigma" not in values.dims:
        return values
    if not np.isclose(values["sigma"].values, SIGMA).any():
        raise Missing(f"a cohort whose {values.name} was measured with σ = {SIGMA:g}")
    return values.sel(sigma=SIGMA, method="nearest", drop=True)
