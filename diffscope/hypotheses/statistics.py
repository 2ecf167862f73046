"""From what was observed to what may be said: intervals, nulls and p-values, for prompts, seeds and untrained models.

What varies decides what is compared. One trained model is set beside models of its architecture that nobody trained: heads of
random weights differ from each other too, so prompts alone would find an "effect" in noise. Several seeds are the unit where they
are there, and prompts are crossed with them or nested in them, as they were drawn. One pair of models is all there is of a pair:
prompts vary, and nothing is said of other seeds.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Literal

import numpy as np

from diffscope.hypotheses.intervals import (
    FEWEST_FLIPPED,
    against_untrained,
    bootstrap,
    crossed,
    crossed_medians,
    sign_flip_test,
    students_t,
)

OVER_SEEDS = "Student's t over seeds, prompts nested in them"
CROSSED = "seeds and prompts, crossed"
OVER_PROMPTS = "over prompts: of these models alone"


@dataclass(frozen=True)
class Sample:
    """What one quantity of a test came to.

    Attributes
    ----------
    values : ndarray (seed, prompt)
        Of each trained model and prompt, controls already taken off, so that 0 is "no effect". NaN where it is undefined.
    untrained : ndarray (model,), optional
        The same, mean over prompts, of models of the same architecture with random weights.
    layers : ndarray (layer,), optional
        The mean by layer, to be shown.
    note : str
        What else has to be said of it.
    prompts : {"crossed", "nested"}
        Whether all seeds had the same prompts, or each its own.
    average : {"mean", "median", "geometric"}
        How prompts are averaged. A ratio without a bound has no arithmetic mean: it is averaged as a median, or geometrically;
        then `values` and `untrained` are ratios, and what is estimated is their log2, in octaves.
    heads : ndarray (seed, layer, head), optional
        What every head alone came to, mean over prompts, to see what one head decides; a head that takes no part is NaN.
    weights : ndarray (seed, layer, head), optional
        What heads count with; by default alike within a layer, and layers alike.
    seeds : tuple of int
        What the seeds are called; by default 0, 1, 2.
    answering : ndarray (seed, layer, head), optional
        A1's mass on the answer in each head, which tells the heads that answer from the others.
    by_answer : ndarray (seed, prompt), optional
        The values with heads weighted by that, where they count with something else: the second view.
    weighted_by : str
        What heads count with, as :data:`diffscope.hypotheses.weights.BY` names it; empty of what has no heads.
    lacking : str
        Why nothing of it is defined, if that is known.
    """

    values: np.ndarray
    untrained: np.ndarray | None = None
    layers: np.ndarray | None = None
    note: str = ""
    prompts: Literal["crossed", "nested"] = "crossed"
    average: Literal["mean", "median", "geometric"] = "mean"
    heads: np.ndarray | None = None
    weights: np.ndarray | None = None
    seeds: tuple[int, ...] = ()
    answering: np.ndarray | None = None
    by_answer: np.ndarray | None = None
    weighted_by: str = ""
    lacking: str = ""


@dataclass(frozen=True)
class LeaveOneOut:
    """The estimate without one seed, or without one head.

    Attributes
    ----------
    unit : {"seed", "head"}
    what : str
        Which was left out.
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
    """The mean of a quantity, with what it may be compared with.

    Attributes
    ----------
    value, low, high : float
        Mean over prompts, then seeds, and its 95 % interval.
    null_low, null_high : float
        Where 95 % of the values would be if there were no effect.
    p : float
        Two-sided: of five seeds and more by turning their signs, else as `method` says.
    prompts, seeds, untrained : int
        How many there were.
    method : str
        What was compared with what.
    why : str
        Where the numbers are NaN, the reason.
    layers : tuple of float
        The mean by layer, where there is one; not judged.
    note : str
        What else has to be said of it.
    p_t : float
        Where `p` is of sign flips, Student's t beside it.
    interval : str
        What the interval is over.
    undefined : float
        Share of the values that were undefined and are left out.
    leave_one_out : tuple of LeaveOneOut
        The estimate without each seed, and without heads.
    weighted_by : str
        What heads count with, as :data:`diffscope.hypotheses.weights.BY` names it; empty of what has no heads.
    by_answer : tuple of float
        The value and the ends of its interval with heads weighted by A1's mass on the answer, where they count with something
        else: the second view, not judged.
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
        """The least that `p` could have come to with as many seeds."""
        return 2.0 ** (1 - self.seeds) if math.isfinite(self.p_t) else 0.0

    @classmethod
    def from_json(cls, row: Mapping) -> Estimate:
        """From a JSON object with its fields, and perhaps others; null is NaN."""
        values = _of_fields(cls, row)
        leave_one_out = tuple(LeaveOneOut(**_of_fields(LeaveOneOut, left)) for left in row["leave_one_out"])
        lists = {name: tuple(math.nan if x is None else x for x in row.get(name, ())) for name in ("layers", "by_answer")}
        return cls(**{**values, **lists, "leave_one_out": leave_one_out})


def _of_fields(cls: type, row: Mapping) -> dict:
    """The fields that a row has: what was written before there were others lacks them."""
    names = [field.name for field in fields(cls) if field.name in row or field.default is MISSING]
    return {name: math.nan if row[name] is None else row[name] for name in names}


def estimate(observed: Sample, seed: int = 0, *, leave_out: bool = True) -> Estimate:
    """Mean, interval, null and p of one quantity, and, with `leave_out`, what it is without each seed and head.

    - Several seeds: the interval is Student's t over the means of the seeds where each had prompts of its own, whose spread is
      then in that of the means; where all had the same, it is of seeds and prompts crossed.
    - One seed: the interval is the percentile bootstrap over prompts.
    - With untrained models: p is Welch's t of the trained seeds against them; of one trained model, the t of one more draw.
    - Without: of five seeds and more p is of every way to turn their signs, with Student's t beside it (of crossed prompts, and
      of fewer seeds, it is the interval's t); of one seed it is of the signs of prompts.
    """
    observed = _in_octaves(observed) if observed.average == "geometric" else observed
    by_answer = _by_answer(observed, seed)
    observed = _defined(observed)
    whole = replace(_estimate(observed, seed), by_answer=by_answer)
    return replace(whole, leave_one_out=_leave_one_out(observed, whole)) if leave_out and not whole.why else whole


def _by_answer(observed: Sample, seed: int) -> tuple[float, ...]:
    """The second view's value and interval, of the same seeds and prompts; none without one."""
    if observed.by_answer is None:
        return ()
    second = _estimate(_defined(replace(observed, values=observed.by_answer, by_answer=None, untrained=None, layers=None)), seed)
    return float(second.value), float(second.low), float(second.high)


def as_estimate(observed: Sample | Estimate, seed: int = 0) -> Estimate:
    """The estimate of what was observed; what a test estimated with a model of its own stays as it is."""
    return observed if isinstance(observed, Estimate) else estimate(observed, seed)


def _in_octaves(observed: Sample) -> Sample:
    """Ratios as octaves; one that is not above 0 is undefined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.log2(np.asarray(observed.values, dtype=float))
        untrained = None if observed.untrained is None else np.log2(np.asarray(observed.untrained, dtype=float))
        heads = None if observed.heads is None else np.log2(np.asarray(observed.heads, dtype=float))
    return replace(observed, values=values, untrained=untrained, heads=heads)


def _defined(observed: Sample) -> Sample:
    """Without seeds, prompts and untrained models that have no value, what is infinite as NaN."""
    values = np.asarray(observed.values, dtype=float)
    values = np.where(np.isfinite(values), values, np.nan)
    kept = np.isfinite(values).any(1)
    names = np.array(observed.seeds or range(len(values)))[kept]
    parts = {
        name: None if (of := getattr(observed, name)) is None else np.asarray(of, dtype=float)[kept]
        for name in ("heads", "weights", "answering")
    }
    untrained = observed.untrained
    if untrained is not None:
        untrained = np.asarray(untrained, dtype=float)
        untrained = untrained[np.isfinite(untrained)]
    note = _with_lost_seeds(observed, kept)
    return replace(observed, values=values[kept], untrained=untrained, seeds=tuple(names.tolist()), note=note, **parts)


def _with_lost_seeds(observed: Sample, kept: np.ndarray) -> str:
    """What has to be said of a quantity, and first which seeds have no value of it."""
    lost = np.array(observed.seeds or range(len(kept)))[~kept].tolist()
    if not lost or not kept.any():
        return observed.note
    words = f"left out, as undefined: seed {', '.join(map(str, lost))}"
    return "; ".join(filter(None, (words, observed.note)))


def _estimate(observed: Sample, seed: int) -> Estimate:
    """The estimate of values of which every seed has some."""
    undefined = float(np.isnan(observed.values).mean()) if observed.values.size else 1.0
    values = observed.values[:, np.isfinite(observed.values).any(0)]
    untrained = observed.untrained
    seeds, prompts = values.shape
    counts = {"prompts": prompts, "seeds": seeds, "untrained": 0 if untrained is None else len(untrained)}
    if (seeds == 1 and prompts < 2) or prompts == 0:
        return _undefined(observed.lacking or "fewer than two prompts or seeds have a value", **counts)
    if untrained is not None and len(untrained) < 3:
        return _undefined("fewer than three untrained models have a value", **counts)
    middle = np.median if observed.average == "median" else np.mean
    means = np.array([middle(row[np.isfinite(row)]) for row in values])
    together = observed.prompts == "crossed" and prompts > 1
    p_t = math.nan
    if seeds == 1:
        interval, null, p = bootstrap(values[0][np.isfinite(values[0])], middle, seed)
        method = over = OVER_PROMPTS
    else:
        if together:
            interval, null, p = (crossed_medians if observed.average == "median" else crossed)(values)
        else:
            interval, null, p = students_t(means)
        method, over = "Student's t", CROSSED if together else OVER_SEEDS
        if seeds >= FEWEST_FLIPPED and not together:
            p, p_t = sign_flip_test(means), p
            method = f"signs of seeds turned, which with {seeds} cannot give a p below {2.0 ** (1 - seeds):.2g}"
    if untrained is not None:
        null, p = against_untrained(means, untrained)
        p_t = math.nan
        method = "against untrained models of the same architecture"
    layers = () if observed.layers is None else tuple(np.asarray(observed.layers, dtype=float).tolist())
    return Estimate(
        float(means.mean()),
        *interval,
        *null,
        p,
        **counts,
        method=method,
        layers=layers,
        note=observed.note,
        p_t=p_t,
        interval=over,
        undefined=undefined,
        weighted_by=observed.weighted_by,
    )


def _undefined(why: str, **counts: int) -> Estimate:
    return Estimate(*[math.nan] * 6, **counts, method="", why=why)


def _leave_one_out(observed: Sample, whole: Estimate) -> tuple[LeaveOneOut, ...]:
    """The estimate without each of three seeds or more, and without heads."""
    leave_one_out = []
    if whole.seeds > 2:
        for index, name in enumerate(observed.seeds):
            fewer = replace(observed, values=np.delete(observed.values, index, 0))
            leave_one_out.append(_left_out("seed", f"seed {name}", _estimate(fewer, 0)))
    if observed.heads is None:
        return tuple(leave_one_out)
    changes = head_changes(observed.heads, observed.weights)
    if whole.seeds == 1:
        for (layer, head), change in np.ndenumerate(changes[0]):
            if np.isfinite(change):
                moved = (float(x + change) for x in (whole.value, whole.low, whole.high))
                leave_one_out.append(LeaveOneOut("head", f"head {head} of layer {layer}", *moved, math.nan))
        return tuple(leave_one_out)
    flat = changes.reshape(len(changes), -1)  # a head of one seed is not that of another: the one that does most, in each
    for words, most in (("raises", np.nanmin), ("lowers", np.nanmax)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a seed in which no head takes part
            change = np.nan_to_num(most(flat, axis=1))
        moved_values = replace(observed, values=observed.values + change[:, None])
        leave_one_out.append(_left_out("head", f"the head of each seed that {words} it most", _estimate(moved_values, 0)))
    return tuple(leave_one_out)


def _left_out(unit: str, what: str, rest: Estimate) -> LeaveOneOut:
    return LeaveOneOut(unit, what, rest.value, rest.low, rest.high, rest.p)


def head_changes(heads: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """By how much the mean over heads changes without each of them, (seed, layer, head); NaN where a head takes no part.

    Parameters
    ----------
    heads : ndarray (seed, layer, head)
    weights : ndarray (seed, layer, head), optional
        By default heads count alike within a layer, and layers alike.
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
            last = (total - within) / (layers - 1) - total / layers  # a layer that has no other head goes with it
        return np.where(present, np.where(of_layer == 1, last, change), np.nan)
    weights = np.where(present, weights, 0.0)
    total = weights.sum((1, 2), keepdims=True)
    product = np.where(present, heads, 0.0) * weights
    with np.errstate(invalid="ignore", divide="ignore"):
        rest = (product.sum((1, 2), keepdims=True) - product) / (total - weights)
        change = rest - product.sum((1, 2), keepdims=True) / total
    return np.where(present & (weights > 0) & np.isfinite(change), change, np.nan)
