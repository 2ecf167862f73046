"""What the evidence of a cohort's runs holds besides what tests read: by arm, layer and step, described and not tested."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from diffscope.evidence.heads import HEADS, mean_over_prompts, table_of, weighted
from diffscope.evidence.run_file import EVIDENCE, at_step, open_evidence
from diffscope.files import plain
from diffscope.hypotheses.cohort import MASSES, formed
from diffscope.hypotheses.intervals import students_t
from diffscope.hypotheses.stored import head_costs, head_mean_masses
from diffscope.hypotheses.subjects import WHOLE, cost_by_layer
from diffscope.hypotheses.weights import SECOND

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


def described(folder: Path, cohort: xr.Dataset) -> list[dict[str, Any]]:
    """Means over the seeds in which the lookup circuit formed, with 95 % intervals (Student's t), not corrected.

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
    # A run goes on to longer prompts, with a checkpoint, at the second of the two evaluations by which it has formed.
    turned = cohort["formation"] + recipe.get("evaluate_every", 0)
    rows = []
    for arm in map(str, cohort["arm"].values):
        runs = []
        for seed in cohort["seed"].values[formed(cohort).sel(arm=arm).values]:
            path = folder / arm / f"seed-{seed}" / EVIDENCE
            if path.is_file():
                own = float(turned.sel(arm=arm, seed=seed))
                runs.append(of_run(open_evidence(path), recipe.get("checkpoints", []), own))
        rows += [{"arm": arm, **row} for row in _rows(runs)]
    return plain(rows)


def of_run(evidence: xr.Dataset, checkpoints: Sequence[int], turned: float) -> dict[Place, float]:
    """Return the numbers of one run, means over its prompts and numbers of distractors; what it lacks is left out.

    Parameters
    ----------
    evidence : Dataset
    checkpoints : sequence of int
        Steps that all runs have a checkpoint of.
    turned : float
        The step of the checkpoint at which the lookup circuit had formed.
    """
    end = at_step(evidence)
    values = {(words, END, None): float(end[name].mean()) for name, words in OUTCOMES.items() if name in end}
    values |= {(f"{MASSES[name]}, heads alike", END, None): float(mass) for name, mass in head_mean_masses(end).items()}
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
        values |= _lambda_along(evidence, checkpoints, turned)
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


def _lambda_along(evidence: xr.Dataset, checkpoints: Sequence[int], turned: float) -> dict[Place, float]:
    """λ by layer at the steps that all runs have, when the circuit had formed, and at the end."""
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
    """Means over runs, of every place that any run has."""
    rows = []
    for place in dict.fromkeys(place for run in runs for place in run):
        values = np.array([run[place] for run in runs if place in run])
        low, high = students_t(values)[0] if len(values) > 2 else (np.nan, np.nan)
        quantity, step, layer = place
        row = {"quantity": quantity, "step": step, "layer": layer}
        rows.append({**row, "value": float(values.mean()), "low": low, "high": high, "seeds": len(values)})
    return rows
