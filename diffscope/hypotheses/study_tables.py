"""Make the tables of a study: when each arm formed, its results seed by seed, and means of what else the evidence holds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import CensoredData, logrank

from diffscope.errors import Missing
from diffscope.evidence.heads import HEADS, mean_over_prompts, table_of, weighted
from diffscope.evidence.run_file import EVIDENCE, at_step, open_evidence
from diffscope.hypotheses.cohort import MASSES, continued_arms, formed, log_odds, measured, steps_to_form, with_distractors
from diffscope.hypotheses.intervals import students_t
from diffscope.hypotheses.rules import SECOND
from diffscope.hypotheses.stored import head_costs, head_mean_masses
from diffscope.hypotheses.subjects import WHOLE, cost_by_layer
from diffscope.lab.training.onsets import FORMED_BY
from diffscope.lab.training.recipe import Recipe
from diffscope.storage.atomic import plain

FEWEST = 3  # seeds of which there is an interval
FORMATION = "formation"


def survival(cohort: xr.Dataset) -> list[dict]:
    """Return when the lookup circuit of every arm forms; a run in which it never does is censored.

    Returns
    -------
    list of dict
        By arm of which a run is finished: ``runs``, ``formed``, ``median``, the step from which more than half of the runs have
        formed (Kaplan–Meier; None where half or fewer form), ``restricted_mean`` step up to the most that a run was given to form
        in, and ``p`` of the log-rank test against DIFF (asymptotic, not corrected; None for DIFF itself); all three None of an
        arm that continues another's formed model.
    """
    last = float(cohort["formation_limit"] if "formation_limit" in cohort else cohort["step"].max())
    runs = {}
    rows = []
    for arm in map(str, cohort["arm"].values):
        ended = cohort["finished"].sel(arm=arm).values == 1
        has_formed = formed(cohort).sel(arm=arm).values[ended]
        if not ended.any():
            continue
        rows.append({"arm": arm, "runs": int(ended.sum()), "formed": int(has_formed.sum())})
        steps = cohort["formation"].sel(arm=arm).values[ended]
        if np.isfinite(steps[has_formed]).all() and arm not in continued_arms(cohort):
            runs[arm] = np.where(has_formed, steps, last), has_formed
    return plain([{**row, **_when(row["arm"], runs)} for row in rows])


def _when(arm: str, runs: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Return when the circuit of an arm forms, of runs (steps, formed) by arm; NaN of an arm that continues another."""
    if arm not in runs:
        return dict.fromkeys(("median", "restricted_mean", "p"), math.nan)
    steps, formed = runs[arm]
    return {
        "median": _median(steps, formed),
        "restricted_mean": float(steps.mean()),  # nobody is lost before the last step: the area under the curve
        "p": math.nan if arm == "diff" or "diff" not in runs else _log_rank(runs["diff"], (steps, formed)),
    }


def _median(steps: np.ndarray, formed: np.ndarray) -> float:
    """Take the step from which more than half of the runs have formed: an order statistic, since none is lost before the last.

    If exactly half are left for a while, textbooks also take its first step or its middle. NaN if half never form.
    """
    ordered = np.sort(np.where(formed, steps, np.inf))
    middle = float(ordered[len(ordered) // 2])
    return middle if math.isfinite(middle) else math.nan


def _log_rank(*groups: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the log-rank p of two groups of runs, each (steps, formed); NaN where none formed."""
    if not any(formed.any() for _, formed in groups):
        return math.nan
    data = [CensoredData(uncensored=steps[formed], right=steps[~formed]) for steps, formed in groups]
    return float(logrank(*data).pvalue)


def arm_results(cohort: xr.Dataset) -> list[dict[str, Any]]:
    """Return the results of every arm by seed, and their mean with its 95 % interval (Student's t over seeds), not corrected.

    The means of two arms may be over other seeds, where not the same ones formed; primary tests take differences, seed by seed.

    Parameters
    ----------
    cohort : Dataset
        What ``diffscope train`` measured.

    Returns
    -------
    list of dict
        ``arm``; ``quantity``: "formation", steps until the lookup circuit forms, where a run in which it never does counts with
        the steps after which it was given up, averaged as a logarithm (not of arms that continue another's model); "answers",
        log-odds in nats, mean over prompts, then the lengths that hold them, then 24 and 48 distractors; "log_odds" in nats and
        "exact" as a share, of one cell each; ``length``, ``distractors`` (None where it is no cell); ``value``, ``low``, ``high``
        (None of no seeds; no interval of fewer than three, nor of a formation that some seed did not reach; that of shares is
        cut at 0 and 1); ``each``, the value of every seed by its name; ``runs``, how many are finished; ``never``, the seeds of
        these in which the circuit did not form, of which only formation has a value.
    """
    rows = []
    for quantity, values in _quantities(cohort).items():
        for arm in cohort["arm"].values:
            of_arm = values.sel(arm=arm)
            cells = (
                of_arm.stack(cell=("length", "distractors")).transpose("cell", "seed") if "length" in values.dims else [of_arm]
            )
            rows += [_row(cohort, quantity, cell) for cell in cells if _scored(cohort, quantity, values, cell)]
    return plain(rows)


def _quantities(cohort: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return the quantities that were measured, (arm, seed) or (arm, seed, length, distractors)."""
    known = {}
    for name, values in ((FORMATION, steps_to_form), ("answers", with_distractors), ("log_odds", log_odds), ("exact", _exact)):
        try:
            known[name] = values(cohort)
        except Missing:
            continue
    return known


def _exact(cohort: xr.Dataset) -> xr.DataArray:
    """Return the share of exact answers, (arm, seed, length, distractors), of formed models."""
    return measured(cohort, "exact_match").astype(float).mean("prompt", skipna=False)


def _scored(cohort: xr.Dataset, quantity: str, values: xr.DataArray, cell: xr.DataArray) -> bool:
    """Return whether an arm was to have a value: formation where it continues no other, cells where some arm was scored."""
    arm = str(cell["arm"].item())
    if not (cohort["finished"].sel(arm=arm) == 1).any() or (quantity == FORMATION and arm in continued_arms(cohort)):
        return False
    place = {name: cell[name].item() for name in ("length", "distractors") if name in cell.coords}
    return bool(values.sel(place).notnull().any())


def _row(cohort: xr.Dataset, quantity: str, values: xr.DataArray) -> dict[str, Any]:
    """Return the row of one arm, of its values (seed,)."""
    known = values.dropna("seed")
    arm = str(values["arm"].item())
    ended = cohort["finished"].sel(arm=arm).values == 1
    never = cohort["seed"].values[ended & ~formed(cohort).sel(arm=arm).values]
    censored = quantity == FORMATION and len(never) > 0
    value, low, high = _mean(known.values, logarithm=quantity == FORMATION)
    if quantity == "exact":
        low, high = max(low, 0.0), min(high, 1.0)
    place = {name: int(values[name]) if name in values.coords else None for name in ("length", "distractors")}
    return {
        "arm": arm,
        "quantity": quantity,
        **place,
        "value": value,
        "low": np.nan if censored else low,
        "high": np.nan if censored else high,
        "each": {str(seed): number for seed, number in zip(known["seed"].values, known.values)},
        "runs": int(ended.sum()),
        "never": [int(seed) for seed in never],
    }


def _mean(numbers: Sequence[float] | np.ndarray, logarithm: bool) -> tuple[float, float, float]:
    """Return the mean, or the geometric mean, and the ends of its interval; NaN of too few."""
    if not len(numbers):
        return np.nan, np.nan, np.nan
    values = np.log(numbers) if logarithm else np.asarray(numbers)
    ends = students_t(values)[0] if len(values) >= FEWEST else (np.nan, np.nan)
    value, low, high = (float(np.exp(end) if logarithm else end) for end in (values.mean(), *ends))
    return value, low, high


END = "end"
FORMED = "formed"  # the checkpoint at which the lookup circuit had
Place = tuple[str, int | str | None, int | None]  # a quantity, its step, its layer

#: quantities by layer at the end of a run, as the evidence names them; heads weighted by what they cost the answer
BY_LAYER = {
    "shared_noise.sharing": "sharing on irrelevant tokens above the pairing control (overlap)",
    "shared_noise.kind": "sharing on the other sentences' numbers above that on the answer (overlap)",
    "amplifier.floor_itself": "least that any coefficient leaves of A1 on irrelevant tokens",
    "amplifier.noise_gain": "noise gain",
    "amplifier.signal_gain": "signal gain",
    "rejected_noise.irrelevant": "common-mode rejection by injection on irrelevant tokens (dB)",
    "rejected_noise.over_paired": "the same above that with another head's A2 (dB)",
}
OF_ANY_ARM = {"sink_shares.d": "share of the first token in |D|, heads alike", "sink_shares.a1": "the same in A1"}
PARTS = ("uniform", "distance", "key", "other", "rest")
SIGMAS = ("0.1", "0.5", "1", "2")
OUTCOMES = {
    "right": "exact answers, one question",
    "log_odds": "log-odds of the answer (nats)",
    "two_questions_right": "exact answers, two questions",
    "lost_common": "log-odds lost to common noise in all layers (nats)",
    "lost_differential": "log-odds lost to opposite noise in all layers (nats)",
}
WHEN = "answer's share in |D|, answered right − wrong, where a head has both among as many distractors"
BY_ANSWER = f"; {SECOND}"  # the second view
COST = "rise of the answer's loss without {} (nats)"
COSTS: dict[str, str] = {WHOLE: "each head of a layer, one by one, in sum", "A2": "A2 of a layer"}
HEAD = {"mean": "rise of the answer's loss without a head, mean (nats)", "max": "the same, the head that does most (nats)"}


def descriptives(folder: Path, cohort: xr.Dataset) -> list[dict[str, Any]]:
    """Return means over the seeds in which the lookup circuit formed, with 95 % intervals (Student's t), not corrected.

    Parameters
    ----------
    folder : Path
        Of a trained cohort; runs without evidence are left out.
    cohort : Dataset
        What was measured of it.

    Returns
    -------
    list of dict
        ``arm``, ``quantity`` in words, ``step`` (a number, "formed" or "end"), ``layer`` (None of a whole model), ``value``,
        ``low``, ``high`` (None of fewer than three seeds), and ``seeds``.
    """
    recipe = json.loads(cohort.attrs["recipe"])
    # A run goes on to longer prompts, with a checkpoint, at the last evaluation that shows that it has formed: of two that reach
    # the share its formation is the first, of three whose mean reaches it the last.
    averaged = FORMED_BY[recipe.get("formed_by", Recipe.formed_by)].averaged
    turned = cohort["formation"] + (0 if averaged else recipe.get("evaluate_every", 0))
    rows = []
    for arm in map(str, cohort["arm"].values):
        runs = []
        for seed in cohort["seed"].values[formed(cohort).sel(arm=arm).values]:
            path = folder / arm / f"seed-{seed}" / EVIDENCE
            if path.is_file():
                own = float(turned.sel(arm=arm, seed=seed))
                runs.append(numbers_of_run(open_evidence(path), recipe.get("checkpoints", []), own))
        rows += [{"arm": arm, **row} for row in _rows(runs)]
    return plain(rows)


def numbers_of_run(evidence: xr.Dataset, checkpoints: Sequence[int], turned: float) -> dict[Place, float]:
    """Return the numbers of one run, means over its prompts and numbers of distractors; what it lacks is left out.

    Parameters
    ----------
    checkpoints : sequence of int
        Steps that all runs have a checkpoint of.
    turned : float
        The step of the checkpoint at which the lookup circuit had formed.
    """
    end = at_step(evidence)
    values = {(words, END, None): float(end[name].mean()) for name, words in OUTCOMES.items() if name in end}
    values |= {(f"{MASSES[name][1]}, heads alike", END, None): float(mass) for name, mass in head_mean_masses(end).items()}
    values[WHEN, END, None] = _right_minus_wrong(evidence.isel(step=-1))
    without = mean_over_prompts(end["knock_out.loss"])  # (layer, head)
    values |= {(words, END, None): float(getattr(without, how)()) for how, words in HEAD.items()}
    differential = bool(end.attrs["differential"])
    for name, words in ((BY_LAYER if differential else {}) | OF_ANY_ARM).items():
        if name in end:
            values |= {(f"{words}{view}", END, layer): value for view, layer, value in _by_layer(name, end)}
    if differential:
        values |= _costs_by_layer(end)
        values |= _of_second_map(end, head_costs(end))
        values |= _lambda_over_training(evidence, checkpoints, turned)
    return {place: value for place, value in values.items() if np.isfinite(value)}


def _by_layer(name: str, end: xr.Dataset) -> Iterator[tuple[str, int, float]]:
    """Yield a quantity in each layer at the end, heads weighted by what they cost, then by A1's mass on the answer, or alike."""
    label, _, quantity = name.partition(".")
    table = table_of(end, label)
    alike = replace(table, weights=None)
    by_cost = replace(table, costs=head_costs(end))
    views = {"": alike} if name in OF_ANY_ARM else {"": by_cost, BY_ANSWER: table}
    for view, of in views.items():
        yield from ((view, layer, float(value)) for layer, value in enumerate(of.by_layer(quantity)))


def _costs_by_layer(end: xr.Dataset) -> dict[Place, float]:
    """Return the cost of the heads of each layer, and of its A2 if that was stored."""
    costs = {COST.format(words): cost_by_layer(end, of) for of, words in COSTS.items()}
    return {(words, END, layer): float(value) for words, of in costs.items() for layer, value in enumerate(of)}


def _lambda_over_training(evidence: xr.Dataset, checkpoints: Sequence[int], turned: float) -> dict[Place, float]:
    """Return λ by layer at the steps that all runs have, when the circuit had formed, and at the end."""
    lam = evidence["lam"].mean("distractors").transpose("step", "layer")
    values: dict[Place, float] = {}
    for step, by_layer in zip(lam["step"].values, lam.values):
        places = [int(step)] if step in (0, *checkpoints) else []
        places += [FORMED] if step == turned else []
        places += [END] if step == lam["step"].values[-1] else []
        values |= {("λ", place, layer): float(value) for place in places for layer, value in enumerate(by_layer)}
    return values


def _of_second_map(end: xr.Dataset, costs: xr.DataArray) -> dict[Place, float]:
    """Return the parts of A1 and A2 by layer, and rejection by strength of the noise."""
    values: dict[Place, float] = {}
    for name in ("A1", "A2"):
        for part in PARTS:
            shares = mean_over_prompts(end[f"parts_of_maps.{name}_{part}"]).mean("head")
            words = f"share of {name} that {_explains(name, part)}"
            values |= {(words, END, layer): float(value) for layer, value in enumerate(shares.values)}
    for sigma in SIGMAS:
        for over, words in (("", ""), ("_over_paired", ", above that with another head's A2")):
            rejection = mean_over_prompts(end[f"noise_sweep.irrelevant_{sigma}{over}"])
            key = f"common-mode rejection on irrelevant tokens, σ = {sigma}{words} (dB)"
            values[key, END, None] = float(weighted(rejection, costs, HEADS))
            values[f"{key}{BY_ANSWER}", END, None] = float(weighted(rejection, end["weight"], HEADS))
    return values


def _explains(name: str, part: str) -> str:
    other = "A2" if name == "A1" else "A1"
    whole = {"uniform": "a uniform row explains", "other": f"{other} explains", "rest": "nothing of these explains"}
    return whole.get(part, f"the {part} explains")


def _right_minus_wrong(last: xr.Dataset) -> float:
    """Return the answer's share in prompts answered right minus wrong, heads weighted; NaN without both."""
    names = ["share_when.right", "share_when.wrong"]
    if not set(names) <= set(last["quantity"].values):
        return float("nan")
    right, wrong = (last["value"].sel(quantity=name, drop=True) for name in names)  # (distractors, layer, head)
    return float(weighted((right - wrong).mean("distractors"), last["weight"].mean("distractors"), HEADS))


def _rows(runs: Sequence[Mapping[Place, float]]) -> list[dict[str, Any]]:
    """Return means over runs, of every place that any run has."""
    rows = []
    for place in dict.fromkeys(place for run in runs for place in run):
        values = np.array([run[place] for run in runs if place in run])
        low, high = students_t(values)[0] if len(values) > 2 else (np.nan, np.nan)
        quantity, step, layer = place
        row = {"quantity": quantity, "step": step, "layer": layer}
        rows.append({**row, "value": float(values.mean()), "low": low, "high": high, "seeds": len(values)})
    return rows
