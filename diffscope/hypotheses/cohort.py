"""Compare the arms of a trained cohort, seed by seed: scores of runs, and the tests that are measured on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
import xarray as xr
from scipy.stats import norm

from diffscope.errors import Missing
from diffscope.hypotheses.rules import Measure, Place
from diffscope.hypotheses.statistics import Estimate, Sample, failures_at_worst, first_to_form
from diffscope.lab.training.onsets import Criterion, onsets_of

MANY = (24, 48)  # distractors
BASELINES = {"standard": "standard attention", "double-width": "DIFF's head count at double width"}
SIGMA = 0.5  # standard deviation of the injected noise, in units of the scaled scores
BY_COST = "cmrr_over_paired_by_cost"
BY_HEAD = {"heads": "cmrr_over_paired_by_head", "weights": "answer_mass"}  # (arm, seed, layer, head)
#: attention masses of runs, all heads alike, as the evidence calls them, and what they are of; of one map as of D
MASSES = {
    "share": ("answer_mass.share", "answer's share of |D|"),
    "raw": ("answer_mass.raw", "answer's raw sum of D"),
    "signed": ("answer_mass.signed", "answer's sum of D over 1 − λ"),
    "positive": ("answer_mass.positive", "answer's share of the positive part of D"),
    "needles": ("answer_mass.needles", "the other sentences' share of |D|"),
    "sink": ("sink_shares.d", "the first token's share of |D|"),
}


def measured(cohort: xr.Dataset, name: str) -> xr.DataArray:
    """Return a variable of the cohort, or raise Missing."""
    if name not in cohort:
        raise Missing(f"a cohort whose {name} was measured")
    return cohort[name]


def of_arm(values: xr.DataArray, arm: str) -> xr.DataArray:
    """Return the values of one arm, or raise Missing."""
    if arm not in values["arm"].values:
        raise Missing(f"a cohort with the arm {arm!r}")
    return values.sel(arm=arm, drop=True)


def finished(cohort: xr.Dataset) -> xr.DataArray:
    """Return whether each run ended, (arm, seed)."""
    return measured(cohort, "finished") == 1


def formed(cohort: xr.Dataset) -> xr.DataArray:
    """Return whether each run formed the lookup circuit, (arm, seed).

    A run that continues another counts as formed if it was scored, and so does any run of a cohort that was not evaluated during
    its training: nothing else is known of it.
    """
    formed = np.isfinite(measured(cohort, "formation").transpose("arm", "seed").values)
    if "log_odds" in cohort:
        scored = np.isfinite(cohort["log_odds"].transpose("arm", "seed", ...).values)
        unknown = cohort["arm"].isin(continued_arms(cohort)).values | (not _evaluated(cohort))  # (arm,)
        formed = formed | (unknown[:, None] & scored.any(tuple(range(2, scored.ndim))))
    ended = finished(cohort).transpose("arm", "seed")
    return ended.copy(data=formed & ended.values)


def _evaluated(cohort: xr.Dataset) -> bool:
    """Whether runs were asked during their training, so that it is known which of them formed."""
    return "retrieval" in cohort and bool(cohort["retrieval"].notnull().any())


def steps_to_form(cohort: xr.Dataset) -> xr.DataArray:
    """Return steps until the circuit formed, (arm, seed); of a run that never formed, those after which it was given up.

    NaN of missing runs and of arms that continue another.

    Raises Missing if no run formed, which says nothing of when.
    """
    steps = measured(cohort, "formation")
    if not np.isfinite(steps.values).any():
        raise Missing("a cohort in which the circuit formed in some run")
    limit = float(measured(cohort, "formation_limit"))
    own = ~cohort["arm"].isin(continued_arms(cohort))
    return xr.where(formed(cohort), steps, limit).where(finished(cohort) & own)


def onsets(cohort: xr.Dataset, criterion: Criterion) -> xr.DataArray:
    """Return steps until the curve of exact answers meets a criterion, (arm, seed); inf of a run that never does.

    NaN where a run is missing, and of arms that continue another's formed model.
    """
    steps = onsets_of(measured(cohort, "retrieval"), criterion).transpose("arm", "seed")
    return steps.where(finished(cohort) & ~cohort["arm"].isin(continued_arms(cohort)))


def octaves_of_steps(cohort: xr.Dataset, steps: xr.DataArray, arm: str, other: str) -> np.ndarray:
    """Return log2 of one arm's steps over another's, (seed,), of seeds that both have.

    A run that never gets there counts with the steps after which it was given up.
    """
    given = steps.clip(max=float(measured(cohort, "formation_limit")))
    differences = np.log2((of_arm(given, arm) / of_arm(given, other)).values)
    return differences[np.isfinite(differences)]


def continued_arms(cohort: xr.Dataset) -> list[str]:
    """Name the arms that continue another's formed model, so that they have no formation of their own."""
    return list(json.loads(cohort.attrs.get("recipe", "{}")).get("continued", {}))


def log_odds(cohort: xr.Dataset) -> xr.DataArray:
    """Return log-odds of the answer of formed models, mean over prompts, (arm, seed, length, distractors), in nats."""
    return of_formed(cohort, measured(cohort, "log_odds").astype(float).mean("prompt"))


def of_formed(cohort: xr.Dataset, values: xr.DataArray) -> xr.DataArray:
    """Return values of formed models, (arm, seed, ...), NaN of others; of a cohort that was not evaluated, of all."""
    return values.where(formed(cohort)) if _evaluated(cohort) else values


def with_distractors(cohort: xr.Dataset, counts: Sequence[int] = MANY) -> xr.DataArray:
    """Return the same at some numbers of distractors, mean over them and over the lengths that hold them, (arm, seed)."""
    values = log_odds(cohort)
    if lacking := set(counts) - {int(count) for count in values["distractors"].values}:
        raise Missing(f"a cohort scored with {min(lacking)} distractors")
    return values.sel(distractors=list(counts)).mean("length").mean("distractors")


def text_loss(cohort: xr.Dataset, token: str) -> xr.DataArray:
    """Return the loss of formed models on text, (arm, seed), of tokens that are given away (hit) or not (other)."""
    return of_formed(cohort, measured(cohort, "text").astype(float).sel(token=token, drop=True))


def seeds_with_values(*values: xr.DataArray) -> np.ndarray:
    """Return the places of the seeds of which all arms have a value; Missing if they are fewer than two."""
    seeds = np.logical_and.reduce([np.isfinite(of.values) for of in values])
    if seeds.sum() < 2:
        raise Missing("two seeds at least in which all arms that it compares have a value")
    return np.flatnonzero(seeds)


def minus(cohort: xr.Dataset, values: xr.DataArray, arm: str, other: str) -> Sample:
    """Return values (arm, seed) of one arm minus those of another, seed by seed."""
    left, right = of_arm(values, arm), of_arm(values, other)
    places = seeds_with_values(left, right)
    return sample_of(cohort, (left - right).values[places], places, (arm, other))


def sample_of(cohort: xr.Dataset, values: np.ndarray, places: np.ndarray, arms: Sequence[str]) -> Sample:
    """Return the sample of values (seed,), each of prompts of its own, with :func:`note_on_arms` on the arms as its note."""
    seeds = tuple(int(seed) for seed in cohort["seed"].values[places])
    return Sample(values[:, None], prompts="nested", seeds=seeds, note=note_on_arms(cohort, places, arms))


def note_on_arms(cohort: xr.Dataset, places: np.ndarray, arms: Sequence[str]) -> str:
    """Say which seeds of some arms are left out and why, and at which learning rates the arms were trained."""
    return ". ".join(filter(None, (_left_out(cohort, places, arms), rates(cohort, arms))))


def _left_out(cohort: xr.Dataset, places: np.ndarray, arms: Sequence[str]) -> str:
    names = [_name(arm) for arm in arms]
    rows = [cohort["arm"].values.tolist().index(arm) for arm in arms]
    started = finished(cohort).transpose("arm", "seed").values[rows]
    missing = np.setdiff1d(np.flatnonzero(started.any(0)), places)
    if not missing.size:
        return ""
    failed = started & ~formed(cohort).transpose("arm", "seed").values[rows]
    words = []
    for place in missing:
        reasons = [f"{name} never formed" for name, of in zip(names, failed[:, place]) if of]
        reasons += [f"{name} was not trained" for name, of in zip(names, started[:, place]) if not of]
        words.append(f"seed {int(cohort['seed'].values[place])} ({', '.join(reasons) or 'without a value'})")
    return f"left out of {' − '.join(names)}: {', '.join(words)}"


def rates(cohort: xr.Dataset, arms: Sequence[str]) -> str:
    """Say at which tuned learning rates arms were trained."""
    if "rate" not in cohort:
        return ""
    every = dict(zip(cohort["arm"].values.tolist(), cohort["rate"].values.tolist()))
    of = {_name(arm): every[arm] for arm in arms if np.isfinite(every[arm])}
    if not of:
        return ""
    words = f"learning rates: {', '.join(f'{name} {rate:g}' for name, rate in of.items())}"
    return words if len(set(of.values())) == 1 else f"{words}, each arm's best, so what differs is in part the rate"


def _name(arm: str) -> str:
    return "DIFF" if arm == "diff" else arm


def of_cohort(cohort: xr.Dataset, *, places: Mapping[str, Place], judged: Collection[str]) -> dict[str, Sample]:
    """Measure the quantities of a test on a trained cohort: a score of an arm minus that of another, seed by seed.

    Raises Missing if the cohort does not hold what a rule uses, or nothing at all.

    Parameters
    ----------
    places : dict of str to Place
        By quantity.
    judged : collection of str
        The quantities that a rule uses. Of the others those that the cohort does not have two seeds of are left out.
    """
    scores_of = cache(lambda name: SCORES[name](cohort))
    samples: dict[str, Sample] = {}
    lacking = []
    for quantity, place in places.items():
        try:
            scores = scores_of(place.score)
            others = [place.other] if isinstance(place.other, str) else place.other
            samples[quantity] = smallest([minus(cohort, scores, place.arm, other) for other in others])
        except Missing as error:
            if quantity in judged:
                raise
            lacking.append(error)
    if not samples:
        raise lacking[0]
    return samples


def smallest(differences: Sequence[Sample]) -> Sample:
    """Return the difference with the smallest mean: of an arm minus several others that to the best of these."""
    return min(differences, key=lambda sample: sample.values.mean())


def octaves_to_form(cohort: xr.Dataset) -> xr.DataArray:
    """Return log2 of the steps until the circuit formed, (arm, seed)."""
    return np.log2(steps_to_form(cohort))


def among_near_duplicates(cohort: xr.Dataset) -> xr.DataArray:
    """Return log-odds of formed models among near-duplicates of the city, mean over their counts and prompts, (arm, seed)."""
    return of_formed(cohort, measured(cohort, "log_odds_near").astype(float).mean("prompt").mean("near"))


def mass(cohort: xr.Dataset, name: str) -> xr.DataArray:
    """Return the attention mass on some tokens, all heads alike, (arm, seed), of formed models."""
    if f"alike_{name}" not in cohort:
        raise Missing("a cohort with the evidence of its runs")
    return cohort[f"alike_{name}"].where(formed(cohort))


#: scores of runs, (arm, seed), that tests compare arms by
SCORES: dict[str, Callable[[xr.Dataset], xr.DataArray]] = {
    "log_odds": with_distractors,
    "log_odds_near": among_near_duplicates,
    "steps": octaves_to_form,
    "text_hit": partial(text_loss, token="hit"),
    "text_other": partial(text_loss, token="other"),
    **{f"alike_{name}": partial(mass, name=name) for name in MASSES},
}


def formation(cohort: xr.Dataset) -> dict[str, Sample | Estimate]:
    """Measure which arm forms earlier: octaves between the steps of DIFF and of the baselines, and log-rank z beside."""
    steps = steps_to_form(cohort)
    samples: dict[str, Sample | Estimate] = {arm: minus(cohort, np.log2(steps), "diff", arm) for arm in BASELINES}
    for arm, words in BASELINES.items():
        two = [of_arm(steps, name) for name in ("diff", arm)]
        places = seeds_with_values(*two)
        events = [of_arm(formed(cohort), name).values[places] for name in ("diff", arm)]
        if not np.any(events):
            raise Missing(f"a run of DIFF or of {words} in which the circuit formed")
        samples[f"{arm}_first"] = first_to_form(*(of.values[places] for of in two), *events)
    return samples


def distractors(cohort: xr.Dataset) -> dict[str, Sample | Estimate]:
    """Measure log-odds of DIFF minus the baselines', at each number of distractors too, and with failed runs at worst."""
    together = with_distractors(cohort)
    each = {count: with_distractors(cohort, [count]) for count in MANY}
    samples: dict[str, Sample | Estimate] = {arm: minus(cohort, together, "diff", arm) for arm in BASELINES}
    samples |= {f"{arm}_{count}": minus(cohort, values, "diff", arm) for arm in BASELINES for count, values in each.items()}
    for arm in BASELINES:
        ended = (of_arm(finished(cohort), "diff") & of_arm(finished(cohort), arm)).values
        two = [of_arm(together, name).values[ended] for name in ("diff", arm)]
        samples[f"{arm}_worst"] = failures_at_worst(*two)
    return samples


def distractors_or_length(cohort: xr.Dataset) -> dict[str, Sample]:
    """Measure the slopes of DIFF's log-odds minus the baselines' on distractors and on length, and their difference."""
    scores = log_odds(cohort)
    samples = {}
    for arm in BASELINES:
        slopes = slopes_of(of_arm(scores, "diff") - of_arm(scores, arm))
        places = seeds_with_values(*slopes.values())
        of_both = {"": slopes["distractors"] - slopes["length"]} | {f"_{name}": slope for name, slope in slopes.items()}
        for end, values in of_both.items():
            samples[f"{arm}{end}"] = sample_of(cohort, values.values[places], places, ("diff", arm))
    return samples


def slopes_of(values: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return slopes of values (seed, length, distractors) per doubling of each of the two, the other held, (seed,).

    Of the cells that any seed has; a seed that lacks one of them is NaN.
    """
    cells = values.transpose("seed", "length", "distractors").values.reshape(values.sizes["seed"], -1)
    axes = (np.log2(values[name].values.astype(float)) for name in ("length", "distractors"))
    length, distractors = np.meshgrid(*axes, indexing="ij")
    known = np.isfinite(cells).any(0)
    design = np.stack([np.ones(known.sum()), distractors.ravel()[known], length.ravel()[known]], 1)  # (cell, coefficient)
    if np.linalg.matrix_rank(design) < 3:
        raise Missing("a grid in which length and the number of distractors move apart")
    _, of_distractors, of_length = np.linalg.pinv(design) @ cells[:, known].T
    return {"distractors": values["seed"].copy(data=of_distractors), "length": values["seed"].copy(data=of_length)}


def common_noise(cohort: xr.Dataset) -> dict[str, Sample]:
    """Measure common-mode rejection of DIFF's formed runs above its control, by both weights of heads, in dB."""
    values = of_arm(at_sigma(measured(cohort, "cmrr_over_paired")).where(formed(cohort)), "diff")
    places = seeds_with_values(values)
    heads = {}
    if set(BY_HEAD.values()) <= set(cohort):
        of_heads = {name: of_arm(at_sigma(cohort[variable]), "diff") for name, variable in BY_HEAD.items()}
        heads = {name: of.transpose("seed", "layer", "head").values[places] for name, of in of_heads.items()}
    samples = {"diff": replace(sample_of(cohort, values.values[places], places, ("diff",)), **heads)}
    if BY_COST in cohort:  # not what was declared: the first view of every mechanism, beside it
        by_cost = of_arm(cohort[BY_COST], "diff").values[places]
        samples["by_cost"] = replace(sample_of(cohort, by_cost, places, ("diff",)), note="")
    return samples


def at_sigma(values: xr.DataArray) -> xr.DataArray:
    """Select the strength of noise that the test declares, if there are several."""
    if "sigma" not in values.dims:
        return values
    if not np.isclose(values["sigma"].values, SIGMA).any():
        raise Missing(f"a cohort whose {values.name} was measured with σ = {SIGMA:g}")
    return values.sel(sigma=SIGMA, method="nearest", drop=True)


def faithfulness(cohort: xr.Dataset) -> dict[str, Sample]:
    """Measure d′ and criterion of saying "unknown", of DIFF minus the baseline with the higher d′, log-linear (Hautus 1995)."""
    unknown = of_formed(cohort, measured(cohort, "says_unknown"))
    questions = unknown.notnull().sum(("distractors", "prompt"))
    rate = ((unknown.sum(("distractors", "prompt")) + 0.5) / (questions + 1)).where(questions > 0)
    z = xr.apply_ufunc(norm.ppf, rate)
    hit = z.sel(question="unanswerable", drop=True)
    alarm = z.sel(question="answerable", drop=True)
    gaps = {arm: minus(cohort, hit - alarm, "diff", arm) for arm in BASELINES}
    better = min(gaps, key=lambda arm: gaps[arm].values.mean())
    criterion = (hit + alarm) / 2  # saying "unknown" more often is more conservative
    return {"d": gaps[better], "c": minus(cohort, criterion, "diff", better)}


#: what measures the tests whose quantities are more than a score of an arm minus that of another, by the id of the test
MEASURES: dict[str, Measure] = {
    "formation": formation,
    "distractors": distractors,
    "distractors-or-length": distractors_or_length,
    "common-noise": common_noise,
    "faithfulness": faithfulness,
}
