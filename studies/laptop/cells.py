"""The page ``cells.md``: DIFF minus each standard arm by length and number of distractors.

It has what was looked at after the study was read, so nothing here has a corrected p. Means over seeds, 95 % intervals
(Student's t over seeds, paired), p of sign flips; of formed models.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from diffscope.hypotheses.cohort import continued_arms, slopes_of
from diffscope.hypotheses.intervals import sign_flip_test, students_t

BASELINES = ("standard", "double-width")
FEWEST = 5  # seeds of a p by sign flips
NEAR = [2, 4, 6]
RETRIEVAL_FROM = 0.9  # share of prompts along the training
TITLE = "# The study's cohort, cell by cell\n\nLooked at after the study was read; nothing here is corrected.\n"


def in_words(values: np.ndarray) -> str:
    """Mean, interval and p of one number a seed."""
    finite = values[np.isfinite(values)]
    (low, high), _, _ = students_t(finite)
    p = f", p {sign_flip_test(finite):.2g}" if len(finite) >= FEWEST else ""
    return f"{finite.mean():.2f} ({low:.2f} to {high:.2f}{p}; {len(finite)} seeds)".replace("-", "−")


def leads(scores: xr.DataArray, arm: str) -> xr.DataArray:
    """DIFF minus an arm, by seed, length and distractors."""
    return scores.sel(arm="diff", drop=True) - scores.sel(arm=arm, drop=True)


def by_cell(scores: xr.DataArray) -> list[str]:
    """List the lead of DIFF in every cell, and from one length to the next."""
    lines = ["## Log-odds, DIFF − arm (nats)\n", "| arm | tokens | distractors | lead |", "|---|---|---|---|"]
    for arm in BASELINES:
        lead = leads(scores, arm)  # (seed, length, distractors)
        cells = [
            (int(length), int(distractors), lead.sel(length=length, distractors=distractors).values)
            for length in lead["length"].values
            for distractors in lead["distractors"].values
        ]
        lines += [f"| {arm} | {at} | {among} | {in_words(each)} |" for at, among, each in cells if np.isfinite(each).any()]
        growth = (lead.sel(length=512) - lead.sel(length=256)).mean("distractors").values
        lines.append(f"| {arm} | 512 − 256 | all | {in_words(growth)} |")
        longer = lead.sel(length=[256, 512]).mean("length")
        lines.append(f"| {arm} | 256, 512 | 24, 48 | {in_words(longer.sel(distractors=[24, 48]).mean('distractors').values)} |")
        lines.append(
            f"| {arm} | 256, 512 | 48 − 24 | {in_words((longer.sel(distractors=48) - longer.sel(distractors=24)).values)} |"
        )
    return lines


def slopes(scores: xr.DataArray) -> list[str]:
    """List the third primary with and without the lengths that models were trained on."""
    lines = ["\n## Slope on distractors − slope on length (nats per doubling)\n", "| arm | lengths | slope |", "|---|---|---|"]
    for arm in BASELINES:
        for lengths in ([128, 256, 512], [256, 512]):
            slope = slopes_of(leads(scores, arm).sel(length=lengths))
            words = in_words((slope["distractors"] - slope["length"]).values)
            lines.append(f"| {arm} | {', '.join(map(str, lengths))} | {words} |")
    return lines


def steps_to_form(cohort: xr.Dataset) -> list[str]:
    """DIFF against double width in octaves of steps, by what a run that never formed counts as.

    Other criteria, the same for all runs, are in :mod:`studies.laptop.second_reading`.
    """
    formed = cohort["formation"].sel(arm="double-width")
    of_diff = cohort["formation"].sel(arm="diff")
    counted = {
        "with the steps after which it was given up": formed.fillna(float(cohort["formation_limit"])),
        "left out": formed,
    }
    lines = [
        "\n## Steps to form, DIFF − double-width (octaves)\n",
        "| a run that never formed counts | DIFF − arm |",
        "|---|---|",
    ]
    return lines + [f"| {words} | {in_words(np.log2(of_diff / steps).values)} |" for words, steps in counted.items()]


def near_duplicates(cohort: xr.Dataset) -> list[str]:
    """How many models tell cities of nearly the same name apart; how often each answers exactly, or "unknown" where it is not."""
    odds = cohort["log_odds_near"].mean("prompt").sel(near=NEAR).mean("near")  # (arm, seed)
    exact = cohort["exact_match_near"].mean("prompt").sel(near=NEAR).mean("near")
    unknown = cohort["says_unknown"].sel(question="answerable").mean(["distractors", "prompt"])
    lines = [
        "\n## Among two to six near-duplicates\n",
        "| arm | rate | right one favoured | exact answers by seed | \u201cunknown\u201d, questions with an answer, by seed |",
        "|---|---|---|---|---|",
    ]
    for arm in cohort["arm"].values:
        formed = np.isfinite(odds.sel(arm=arm).values)
        if formed.any():
            favoured = int((odds.sel(arm=arm).values[formed] > 0).sum())
            shares = (", ".join(f"{share:.2f}" for share in values.sel(arm=arm).values[formed]) for values in (exact, unknown))
            rate = float(cohort["rate"].sel(arm=arm))
            lines.append(f"| {arm} | {rate:g} | {favoured} of {formed.sum()} | {' | '.join(shares)} |")
    return lines


def unstable(cohort: xr.Dataset) -> list[str]:
    """List runs that count as not formed, and how well they answered along the way."""
    lines = ["\n## Runs that never formed\n", "| run | most | first at 90 % | last |", "|---|---|---|---|"]
    of_their_own = [arm for arm in cohort["arm"].values if arm not in continued_arms(cohort)]
    for arm in of_their_own:
        for seed in cohort["seed"].values:
            run = cohort.sel(arm=arm, seed=seed)
            along = run["retrieval"].dropna("step")
            if along.size and int(run["finished"]) == 1 and not np.isfinite(run["formation"]):
                reached = along["step"].values[along.values >= RETRIEVAL_FROM]
                first = f"step {reached[0]}" if reached.size else "never"
                lines.append(f"| {arm}, seed {seed} | {float(along.max()):.2f} | {first} | {float(along[-1]):.2f} |")
    return lines


def page(cohort: xr.Dataset) -> str:
    """All of it, as Markdown."""
    scores = cohort["log_odds"].mean("prompt")  # (arm, seed, length, distractors)
    parts = [by_cell(scores), slopes(scores), steps_to_form(cohort), near_duplicates(cohort), unstable(cohort)]
    return "\n".join([TITLE, *(line for part in parts for line in part)])
