"""Estimate a quantity from its sample: mean, interval, null, p, and the same without each seed and head.

What varies decides the comparison. Prompts alone would find an "effect" in random weights, so one trained model is compared with
untrained models of its architecture. Of several seeds, seeds are the unit, and prompts are crossed with them or nested in
them, as they were drawn. Of one pair of models only prompts vary, and nothing is said of other seeds.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
import scipy  # whose parts are imported when they are first used

from diffscope.hypotheses.intervals import (
    FEWEST_SEEDS,
    against_untrained,
    bootstrap,
    crossed,
    sign_flip_test,
    students_t,
)
from diffscope.numbers import head_name
from diffscope.stats.intervals import LEVEL

OVER_SEEDS = "Student's t over seeds, prompts nested in them"
CROSSED = "seeds and prompts, crossed"
OVER_PROMPTS = "over prompts: of these models alone"
STUDENTS_T = "Student's t"


@dataclass(frozen=True)
class Sample:
    """The measured values of one quantity of a test.

    Attributes
    ----------
    values : ndarray (seed, prompt)
        Of each trained model and prompt, with controls taken off, so that 0 is "no effect". NaN where it is undefined.
    untrained : ndarray (model,), optional
        The same, mean over prompts, of models of the same architecture with random weights.
    layers : ndarray (layer,), optional
        Means by layer, shown and not judged.
    note : str
        What else is shown beside it.
    prompts : {"crossed", "nested"}
        Whether all seeds had the same prompts, or each its own.
    heads : ndarray (seed, layer, head), optional
        Mean over prompts of each head, to leave heads out one by one; NaN for a head that takes no part.
    weights : ndarray (seed, layer, head), optional
        Weights of heads; by default equal within a layer, and layers equal.
    seeds : tuple of int
        Names of the seeds; by default 0, 1, 2, …
    answering : ndarray (seed, layer, head), optional
        A1's mass on the answer in each head, which separates heads that answer from others.
    by_answer : ndarray (seed, prompt), optional
        The values with heads weighted by that mass, where `values` are weighted otherwise: the second view.
    weighted_by : str
        What heads are weighted by, a key of :data:`diffscope.hypotheses.rules.BY`; empty of what has no heads.
    lacking : str
        Why nothing of it is defined, if that is known.
    layer_numbers : tuple of int
        What the model calls the layers of `heads`, where not all of its layers have attention; by default 0, 1, 2, …
    """

    values: np.ndarray
    untrained: np.ndarray | None = None
    layers: np.ndarray | None = None
    note: str = ""
    prompts: Literal["crossed", "nested"] = "crossed"
    heads: np.ndarray | None = None
    weights: np.ndarray | None = None
    seeds: tuple[int, ...] = ()
    answering: np.ndarray | None = None
    by_answer: np.ndarray | None = None
    weighted_by: str = ""
    lacking: str = ""
    layer_numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class LeaveOneOut:
    """The estimate without one seed, or without one head.

    Attributes
    ----------
    unit : {"seed", "head"}
    what : str
        Which one was left out, such as "seed 3" or "L0H1".
    value, low, high, p : float
        As of :class:`Estimate`.
    """

    unit: str
    what: str
    value: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Estimate:
    """The mean of a quantity, its interval, null and p.

    Attributes
    ----------
    value, low, high : float
        Mean over prompts, then seeds, and its 95 % interval.
    null_low, null_high : float
        The range of 95 % of the values without an effect.
    p : float
        Two-sided: of five seeds and more the sign-flip test of seeds, else as `method` says.
    prompts, seeds, untrained : int
        How many there are.
    method : str
        What `p` compares with what.
    why : str
        Where the numbers are NaN, the reason.
    layers : tuple of float
        Means by layer, where there are any; not judged.
    note : str
        What else is shown beside it.
    p_t : float
        Student's t, where `p` is of the sign-flip test.
    interval : str
        What the interval is over.
    undefined : float
        Share of the values that are undefined and left out.
    leave_one_out : tuple of LeaveOneOut
        The estimate without each seed, and without heads.
    weighted_by : str
        What heads are weighted by, a key of :data:`diffscope.hypotheses.rules.BY`; empty of what has no heads.
    by_answer : tuple of float
        The second view, not judged: value and interval with heads weighted by A1's mass on the answer, where they are weighted
        otherwise.
    """

    value: float
    low: float
    high: float
    null_low: float
    null_high: float
    p: float
    prompts: int
    seeds: int
    untrained: int
    method: str
    why: str = ""
    layers: tuple[float, ...] = ()
    note: str = ""
    p_t: float = math.nan
    interval: str = ""
    undefined: float = 0.0
    leave_one_out: tuple[LeaveOneOut, ...] = ()
    weighted_by: str = ""
    by_answer: tuple[float, ...] = ()

    @property
    def least_p(self) -> float:
        """The least p that sign flips of as many seeds can give; 0 if the seeds are not what is sampled, or not alone."""
        return 2.0 ** (1 - self.seeds) if self.interval == OVER_SEEDS and not self.untrained else 0.0

    @classmethod
    def from_json(cls, row: Mapping) -> Estimate:
        """Read a JSON object with its fields, and perhaps others; null is NaN."""
        values = of_fields(cls, row)
        rest = tuple(LeaveOneOut(**of_fields(LeaveOneOut, one)) for one in row["leave_one_out"])
        lists = {name: tuple(math.nan if x is None else x for x in row[name]) for name in ("layers", "by_answer")}
        return cls(**{**values, **lists, "leave_one_out": rest})


def of_fields(cls: type, row: Mapping) -> dict:
    """Take the fields of a class from a row, null as NaN."""
    return {field.name: math.nan if row[field.name] is None else row[field.name] for field in fields(cls)}


def estimate(sample: Sample, *, leave_out: bool = True) -> Estimate:
    """Estimate one quantity: mean, interval, null and p, and, with `leave_out`, the same without each seed and head.

    - Several seeds: the interval is Student's t over the means of seeds where each had prompts of its own (their spread is then
      in that of the means); where all had the same, it is of seeds and prompts crossed.
    - One seed: the interval is the percentile bootstrap over prompts.
    - With untrained models: p is Welch's t of the trained seeds against them; of one seed, Student's two-sample t.
    - Without: of five seeds and more p is the sign-flip test of seeds, with Student's t beside it (of crossed prompts, and of
      fewer seeds, it is the interval's t); of one seed it is the sign-flip test of prompts.
    """
    by_answer = _by_answer(sample)
    sample = _defined(sample)
    whole = replace(_estimate(sample), by_answer=by_answer)
    return replace(whole, leave_one_out=_leave_one_out(sample, whole)) if leave_out and not whole.why else whole


def as_estimate(of: Sample | Estimate) -> Estimate:
    """Estimate a sample; an estimate that a test made by a model of its own stays as it is."""
    return of if isinstance(of, Estimate) else estimate(of)


def _by_answer(sample: Sample) -> tuple[float, ...]:
    """Estimate the second view, of the seeds and prompts in which it is defined: value and interval; empty without one."""
    if sample.by_answer is None:
        return ()
    second = _estimate(_defined(replace(sample, values=sample.by_answer, by_answer=None, untrained=None, layers=None)))
    return float(second.value), float(second.low), float(second.high)


def _defined(sample: Sample) -> Sample:
    """Drop seeds and untrained models without a value; infinite values become NaN."""
    values = np.asarray(sample.values, dtype=float)
    values = np.where(np.isfinite(values), values, np.nan)
    kept = np.isfinite(values).any(1)  # (seed,)
    names = np.array(sample.seeds or range(len(values)))
    parts = {
        name: None if (of := getattr(sample, name)) is None else np.asarray(of, dtype=float)[kept]
        for name in ("heads", "weights", "answering")
    }
    untrained = sample.untrained
    if untrained is not None:
        untrained = np.asarray(untrained, dtype=float)
        untrained = untrained[np.isfinite(untrained)]
    note = sample.note
    if kept.any() and not kept.all():
        lost = f"left out, as undefined: seed {', '.join(map(str, names[~kept].tolist()))}"
        note = "; ".join(filter(None, (lost, note)))
    return replace(sample, values=values[kept], untrained=untrained, seeds=tuple(names[kept].tolist()), note=note, **parts)


def _estimate(sample: Sample) -> Estimate:
    """Estimate a sample of which every seed has a value."""
    undefined = float(np.isnan(sample.values).mean()) if sample.values.size else 1.0
    values = sample.values[:, np.isfinite(sample.values).any(0)]  # (seed, prompt)
    untrained = sample.untrained
    seeds, prompts = values.shape
    counts = {"prompts": prompts, "seeds": seeds, "untrained": 0 if untrained is None else len(untrained)}
    why = ""
    if (seeds == 1 and prompts < 2) or prompts == 0:
        why = sample.lacking or "fewer than two prompts or seeds have a value"
    elif untrained is not None and len(untrained) < 3:
        why = "fewer than three untrained models have a value"
    same_prompts = sample.prompts == "crossed" and prompts > 1
    if not why and seeds > 1 and same_prompts and np.isfinite(values).all(0).sum() < 2:
        why = sample.lacking or "fewer than two prompts have a value in every seed"
    if why:
        return Estimate(*[math.nan] * 6, **counts, method="", why=why)
    means = np.array([row[np.isfinite(row)].mean() for row in values])  # (seed,)
    p_t = math.nan
    if seeds == 1:
        interval, null, p = bootstrap(values[0][np.isfinite(values[0])])
        method = over = OVER_PROMPTS
    else:
        interval, null, p = crossed(values) if same_prompts else students_t(means)
        method, over = STUDENTS_T, CROSSED if same_prompts else OVER_SEEDS
        if seeds >= FEWEST_SEEDS and not same_prompts:
            p, p_t = sign_flip_test(means), p
            method = f"sign-flip permutation test, which with {seeds} seeds cannot give a p below {2.0 ** (1 - seeds):.2g}"
    if untrained is not None:
        null, p = against_untrained(means, untrained)
        p_t = math.nan
        method = "against untrained models of the same architecture"
    return Estimate(
        float(means.mean()),
        *interval,
        *null,
        p,
        **counts,
        method=method,
        layers=() if sample.layers is None else tuple(np.asarray(sample.layers, dtype=float).tolist()),
        note=sample.note,
        p_t=p_t,
        interval=over,
        undefined=undefined,
        weighted_by=sample.weighted_by,
    )


def _leave_one_out(sample: Sample, whole: Estimate) -> tuple[LeaveOneOut, ...]:
    """Estimate without each seed, of three or more, and without heads."""
    rest = []

    def add(unit: str, what: str, values: np.ndarray) -> None:
        of = _estimate(replace(sample, values=values))
        rest.append(LeaveOneOut(unit, what, of.value, of.low, of.high, of.p))

    if whole.seeds > 2:
        for index, name in enumerate(sample.seeds):
            add("seed", f"seed {name}", np.delete(sample.values, index, 0))
    if sample.heads is None:
        return tuple(rest)
    changes = head_changes(sample.heads, sample.weights)
    if whole.seeds == 1:
        numbers = sample.layer_numbers or range(len(changes[0]))
        for (place, head), change in np.ndenumerate(changes[0]):
            if np.isfinite(change):
                moved = (float(x + change) for x in (whole.value, whole.low, whole.high))
                rest.append(LeaveOneOut("head", head_name(numbers[place], head), *moved, math.nan))
        return tuple(rest)
    flat = changes.reshape(len(changes), -1)  # heads of different seeds do not correspond: in each seed the one that changes most
    for words, most in (("raises", np.nanmin), ("lowers", np.nanmax)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a seed in which no head takes part
            change = np.nan_to_num(most(flat, axis=1))
        add("head", f"the head of each seed that {words} it most", sample.values + change[:, None])
    return tuple(rest)


def head_changes(heads: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the change of the mean over heads without each head, (seed, layer, head); NaN where a head takes no part.

    Parameters
    ----------
    heads : ndarray (seed, layer, head)
    weights : ndarray (seed, layer, head), optional
        By default equal within a layer, and layers equal.
    """
    present = np.isfinite(heads)
    if weights is None:
        of_layer = present.sum(2, keepdims=True)
        layers = (of_layer > 0).sum(1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            within = np.nansum(heads, 2, keepdims=True) / of_layer
            alone = np.where(of_layer == 1, np.nan, (np.nansum(heads, 2, keepdims=True) - heads) / (of_layer - 1))
            change = (alone - within) / layers
            total = np.nansum(within, 1, keepdims=True)
            last = (total - within) / (layers - 1) - total / layers  # a layer of one head goes with it
        return np.where(present, np.where(of_layer == 1, last, change), np.nan)
    weights = np.where(present, weights, 0.0)
    total = weights.sum((1, 2), keepdims=True)
    product = np.where(present, heads, 0.0) * weights
    with np.errstate(invalid="ignore", divide="ignore"):
        rest = (product.sum((1, 2), keepdims=True) - product) / (total - weights)
        change = rest - product.sum((1, 2), keepdims=True) / total
    return np.where(present & (weights > 0) & np.isfinite(change), change, np.nan)


def first_to_form(steps: np.ndarray, other: np.ndarray, formed: np.ndarray, other_formed: np.ndarray) -> Estimate:
    """Test whether one arm forms later than another, seed by seed: the log-rank statistic stratified by seed, with exact p.

    A stratum of two runs tells which forms first, and nothing if they form at the same step or neither does, so the statistic is
    that of the sign test, z = (later − earlier) / √(later + earlier), counted in seeds, and so is its p.

    Parameters
    ----------
    steps, other : ndarray (seed,)
        Steps until the circuit formed, or at which a run was stopped in which it did not.
    formed, other_formed : ndarray (seed,), bool
    """
    later = int(np.sum(other_formed & (~formed | (steps > other))))
    earlier = int(np.sum(formed & (~other_formed | (steps < other))))
    untied = later + earlier
    value = (later - earlier) / math.sqrt(untied) if untied else 0.0
    p = float(scipy.stats.binomtest(later, untied).pvalue) if untied else 1.0
    reach = float(scipy.stats.norm.ppf(1 - LEVEL / 2))
    counts = {"prompts": 1, "seeds": len(steps), "untrained": 0}
    method = "which of the two runs of a seed forms first"
    return Estimate(value, math.nan, math.nan, -reach, reach, p, **counts, method=method)


def failures_at_worst(values: np.ndarray, other: np.ndarray) -> Estimate:
    """Estimate the median over seeds of the difference of two arms, a failed run ranked below all others.

    The interval is of order statistics (coverage at least 95 %). NaN stands for an end without a bound, or a median that a failed
    run decides. p is of Wilcoxon's signed-rank test, exact. Two failed runs of a seed differ by 0.

    Parameters
    ----------
    values, other : ndarray (seed,)
        NaN where a run failed.
    """
    failed, other_failed = np.isnan(values), np.isnan(other)
    differences = np.where(failed & other_failed, 0.0, np.where(failed, -np.inf, np.where(other_failed, np.inf, values - other)))
    count = len(differences)
    ordered = np.sort(differences)
    outer = int(scipy.stats.binom.ppf(LEVEL / 2, count, 0.5))  # order statistics outside of the interval, on each side
    low, high = (ordered[outer - 1], ordered[count - outer]) if outer else (-np.inf, np.inf)
    middle = ordered[[(count - 1) // 2, count // 2]]
    value = middle.mean() if np.isfinite(middle).all() else math.nan
    value, low, high = (float(x) if np.isfinite(x) else math.nan for x in (value, low, high))
    ranks = np.sign(differences) * scipy.stats.rankdata(np.abs(differences))
    return Estimate(
        *(value, low, high, math.nan, math.nan, sign_flip_test(ranks)),
        **{"prompts": 1, "seeds": count, "untrained": 0},
        method="Wilcoxon's signed-rank test, exact; failed runs ranked last",
        interval="order statistics",
    )
