"""The page ``second_reading.md``: onsets by several criteria, other head weights, and every contrast of arms.

Means over seeds, 95 % intervals (Student's t over seeds, paired), p of sign flips. Nothing is corrected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from diffscope.evidence.heads import HEADS, weighted
from diffscope.evidence.run_file import EVIDENCE, open_evidence
from diffscope.hypotheses.cohort import continued_arms, formed, octaves_of_steps, onsets, rates, with_distractors
from diffscope.lab.training.onsets import CRITERIA, Criterion, onset
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.runs import SCORES
from diffscope.render import pipe_table
from diffscope.stats.ranks.exact import DEFINITIONS
from diffscope.storage.statistics import open_statistics
from studies.laptop.cells import BASELINES, in_words
from studies.markdown import mean

DIFF = "diff"
FEWEST = 5  # seeds of a contrast of arms
WEIGHTS = ("A1's mass on the answer", "knock-out cost", "none: all heads alike")
#: what the weights of heads could turn, as the evidence names it: at the end of a run, then of what is taken there alone
QUANTITIES = {
    "amplifier.lam": "λ",
    "amplifier.floor_itself": "least that any coefficient leaves of A1 on irrelevant tokens",
    "amplifier.floor": "the same minus that with other heads' A2",
    "rejected_noise.irrelevant": "common-mode rejection (dB)",
    "rejected_noise.over_paired": "the same minus that with another head's A2 (dB)",
    "shared_noise.sharing": "sharing on irrelevant tokens above the pairing control (overlap)",
    "sparser.gini": "Gini of D − of A1",
    "sparser.entropy": "normalised entropy of A1 − of D",
}
#: what a reader of the boards should know besides: a heading, then point by point
NOTES = (
    "A second reading, then a second study, found what the tests do not say:",
    "Where the second map works, in the one DIFF model of eight that was kept: in the first layer only. There "
    "it looks from the number at the token before (0.97 of A2) and is subtracted: signal with a minus sign. Without it the "
    "answer's loss rises by 10.1 nats, without A2 of another layer by less than 0.05.",
    "Which heads count, in all eight: on average 95 % of what heads cost is lost in the first layer, which has 1 % of "
    "A1's mass on the answer.",
    "Whether DIFF learns sooner: it reaches 50, 80 and 90 % before both controls (0.27 to 0.75 octaves); by the rule "
    "fixed before (95 % twice in a row), one run of `double-width` decides. DIFF trained at twice their rate.",
    "The second study kept the weights: in eight of eight models that signal is subtracted. In the lookup, models that "
    "begin by adding end alike. Where strong sinks grow, DIFF turns λ to about 0.",
)
TITLE = (
    "# The study's cohort, read a second time\n\n"
    "A second, independent reading computed the numbers of the first anew and found the same ones; it asked for these besides. "
    "All of it is post hoc: no p is corrected, and no rule was written down before.\n"
)


def by_criterion(cohort: xr.Dataset) -> list[str]:
    """When DIFF and both controls learn the lookup, by every criterion."""
    three = (DIFF, *BASELINES)
    rows = []
    for words, criterion in CRITERIA.items():
        steps = onsets(cohort, criterion)
        octaves = [octaves_of_steps(cohort, steps, DIFF, arm) for arm in BASELINES]
        median = ", ".join(f"{steps.sel(arm=arm).quantile(0.5, method='higher').item():g}" for arm in three)
        never = ", ".join(str(int(np.isinf(steps.sel(arm=arm)).sum())) for arm in three)
        spread = ", ".join(f"{each.std(ddof=1):.2f}" for each in octaves)
        rows.append((words, *map(in_words, octaves), spread, median, never))
    named = ", ".join(("DIFF", *BASELINES))
    header = (
        "onset",
        *(f"DIFF − {arm} (octaves)" for arm in BASELINES),
        "sd over seeds",
        f"median step: {named}",
        f"never: {named}",
    )
    return [
        "\n## Onsets of the lookup\n",
        "The step at which the curve of exact answers first reaches a share, the same criterion for all runs; one that never "
        "gets there counts with the steps that it was given. The last row is the criterion that was fixed before the reading. "
        "100 prompts are asked every 25 steps: near 95 % their share has a standard error of 2 points. "
        f"{_rates(cohort, three)}\n",
        pipe_table(header, rows).rstrip(),
    ]


def _rates(cohort: xr.Dataset, arms: Sequence[str]) -> str:
    words = rates(cohort, arms)
    return f"{words[:1].upper()}{words[1:]}." if words else ""


def other_arms(cohort: xr.Dataset) -> list[str]:
    """List onsets of the other arms that begin from nothing, of which some run formed."""
    is_formed = formed(cohort)
    arms = [
        str(arm)
        for arm in cohort["arm"].values
        if arm not in (DIFF, *BASELINES, *continued_arms(cohort)) and bool(is_formed.sel(arm=arm).any())
    ]
    rows = []
    for words, criterion in CRITERIA.items():
        steps = onsets(cohort, criterion)
        rows.append((words, *(in_words(octaves_of_steps(cohort, steps, DIFF, arm)) for arm in arms)))
    return ["\n### DIFF − other arms (octaves)\n", pipe_table(("onset", *arms), rows).rstrip()]


def at_one_rate(folder: Path, recipe: Recipe) -> list[str]:
    """When the tuning runs of DIFF and both controls learn the lookup, at each rate."""
    assert recipe.tuning is not None
    three = (DIFF, *BASELINES)
    rows = []
    for rate in recipe.tuning.rates:
        of_rate = folder / "tuning" / f"rate-{rate:g}"
        for words, criterion in CRITERIA.items():
            reached = [[_onset_of(of_rate / arm / f"seed-{seed}", criterion) for seed in recipe.tuning.seeds] for arm in three]
            rows.append((f"{rate:g}", words, *(", ".join(cells) for cells in reached)))
    return [
        "\n### The runs that chose the rates\n",
        f"Steps, of the two tuning seeds in turn, of {recipe.tuning.steps}: all that was trained of these arms at one rate.\n",
        pipe_table(("rate", "onset", "DIFF", *BASELINES), rows).rstrip(),
    ]


def _onset_of(run: Path, criterion: Criterion) -> str:
    scores = open_statistics(run / SCORES)
    step = onset(scores["step"].values, scores["retrieval"].values, criterion)
    return "never" if math.isinf(step) else f"{step:g}"


def contrasts(cohort: xr.Dataset) -> list[str]:
    """Log-odds of every arm beside DIFF and beside both controls."""
    odds = with_distractors(cohort)  # (arm, seed)
    arms = [str(arm) for arm in cohort["arm"].values if int(np.isfinite(odds.sel(arm=arm)).sum()) >= FEWEST]
    rows = []
    for arm in arms:
        cells = [_difference(odds, DIFF, arm), *(_difference(odds, arm, other) for other in BASELINES)]
        rows.append((arm, f"{float(cohort['rate'].sel(arm=arm)):g}", *cells))
    header = ("arm", "rate", "DIFF − arm", *(f"arm − {other}" for other in BASELINES))
    return [
        "\n## Every arm beside DIFF and beside both controls\n",
        "Log-odds of the answer in nats, mean over 24 and 48 distractors, of the seeds in which both circuits formed; the least "
        "p that five seeds can have is 0.0625. All pairs are here, so that none is picked.\n",
        pipe_table(header, rows).rstrip(),
    ]


def _difference(odds: xr.DataArray, arm: str, other: str) -> str:
    return "–" if arm == other else in_words((odds.sel(arm=arm) - odds.sel(arm=other)).values)


def ends(folder: Path, cohort: xr.Dataset) -> list[xr.Dataset]:
    """Open the evidence of formed DIFF runs at their end, mean over numbers of distractors, with what is taken there alone."""
    seeds = cohort["seed"].values[formed(cohort).sel(arm=DIFF).values]
    evidence = [open_evidence(folder / DIFF / f"seed-{seed}" / EVIDENCE) for seed in seeds]
    return [each.isel(step=-1).mean("distractors") for each in evidence]


def knock_out_costs(end: xr.Dataset) -> xr.DataArray:
    """By how much the loss of the answer rises without each head, (layer, head), nats."""
    return end["end_value"].sel(end_quantity="knock_out.loss", drop=True).transpose(*HEADS)


def head_weights(end: xr.Dataset) -> list[xr.DataArray | None]:
    """Return what heads count with by each of :data:`WEIGHTS`, (layer, head); a head whose loss costs nothing has 0."""
    return [end["weight"], knock_out_costs(end).clip(min=0), None]


def by_layer(runs: Sequence[xr.Dataset]) -> list[str]:
    """Where the answer's attention is, where the cost of heads is, and λ there."""
    rows = []
    for words, of_heads in zip(WEIGHTS, zip(*map(head_weights, runs))):
        if all(of is not None for of in of_heads):
            shares = np.array([100 * (of.sum("head") / of.sum()).values for of in of_heads])  # (seed, layer)
            rows.append((f"{words}, share (%)", *(mean(each) for each in shares.T)))
    costs = np.array([knock_out_costs(run).values for run in runs])  # (seed, layer, head)
    rows.append(("knock-out cost of a head, least to most (nats)", *(_range(costs[:, layer]) for layer in range(costs.shape[1]))))
    lam = np.array([run["lam"].values for run in runs])  # (seed, layer)
    rows.append(("λ at the end", *(mean(each) for each in lam.T)))
    return [
        "\n## DIFF by layer\n",
        "The knock-out cost of a head is the rise of the answer's loss without it, of five prompts of 256 tokens a seed, mean "
        "over 8 and 24 distractors; shares are of costs above 0. It is of whole heads, A1 and A2 together: of A2 alone it was "
        "not kept.\n",
        pipe_table(("", *(f"layer {layer}" for layer in range(lam.shape[1]))), rows).rstrip(),
    ]


def _range(costs: np.ndarray) -> str:
    return f"{costs.min():.2f} to {costs.max():.2f}".replace("-", "−")


def by_weights(runs: Sequence[xr.Dataset]) -> list[str]:
    """List what the weights of heads do to every quantity of the mechanism."""
    rows = []
    for name, words in QUANTITIES.items():
        values = [run["value"].sel(quantity=name, drop=True) for run in runs]
        rows.append((words, *_weighted(values, runs)))
    for definition in DEFINITIONS:
        itself = f"effective rank of λA2, `{definition}`"
        for ending, words in (("", itself), ("_over_uniform", "the same over a uniform map (octaves)")):
            values = [run["end_value"].sel(end_quantity=f"rank_ratios.{definition}{ending}", drop=True) for run in runs]
            rows.append((words, *_weighted(values, runs)))
    return [
        "\n## What heads are weighted by\n",
        "Of the answering query, at the end of training, DIFF alone; ranks are of whole maps.\n",
        pipe_table(("", *WEIGHTS), rows).rstrip(),
    ]


def _weighted(values: Sequence[xr.DataArray], runs: Sequence[xr.Dataset]) -> list[str]:
    """Return the mean over heads of one quantity by each of :data:`WEIGHTS`, in words."""
    means = [[float(weighted(of, weights, HEADS)) for weights in head_weights(run)] for of, run in zip(values, runs)]
    return [mean(each) for each in np.array(means).T]


def page(folder: Path, cohort: xr.Dataset) -> str:
    """All of it, as Markdown.

    Parameters
    ----------
    folder : Path
        The runs of the cohort.
    cohort : Dataset
        What was measured of it.
    """
    recipe = Recipe.load("laptop")
    runs = ends(folder, cohort)
    parts = [
        by_criterion(cohort),
        other_arms(cohort),
        at_one_rate(folder, recipe),
        contrasts(cohort),
        by_layer(runs),
        by_weights(runs),
    ]
    return "\n".join([TITLE, *(line for part in parts for line in part)])
