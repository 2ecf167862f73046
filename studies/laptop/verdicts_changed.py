"""What became of every verdict of the first study when the rule was changed: a page that is made from the two study files.

    python -m studies.laptop.verdicts_changed      # writes docs/study/verdicts_changed.md

The verdict before is read from the file of the last revision that had it, in the words of then; the words now are those of the
study that is shipped. Estimates are compared as well: the page says which of them are other numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from diffscope.accounts import ACCOUNTS, AGAINST, LEGEND, OPEN, SILENT
from diffscope.errors import DiffscopeError
from diffscope.hypotheses.rules import Test
from diffscope.hypotheses.sentence import number
from diffscope.hypotheses.study import ALL, open_study
from diffscope.hypotheses.verdict import Verdict

ROOT = Path(__file__).parents[2]
STUDY = "diffscope/hypotheses/studies/laptop/study.json"
PAGE = ROOT / "docs" / "study" / "verdicts_changed.md"
LAST = "f4eee4f"  # the last revision that ships the study with the verdicts of before
NUMBERS = ("value", "low", "high", "p", "p_t")
ALIKE = 1e-6  # of a number, which was measured again
BEFORE = {  # what a verdict of one word said of each of the two accounts that there were
    "NC": {"NC": "as predicted", "SP": "not as predicted"},
    "SP": {"NC": "not as predicted", "SP": "as predicted"},
    "both": {"NC": "as predicted", "SP": "as predicted"},
    "neither": {"NC": "not as predicted", "SP": "not as predicted"},
    "inconclusive": {"NC": "not decided", "SP": "not decided"},
}


def page(before: Sequence[Mapping], board: Sequence[Verdict]) -> str:
    """The verdicts of a board before and after as Markdown, cell by cell."""
    then = {record["id"]: record for record in before}
    judged = [verdict for verdict in board if isinstance(verdict.test, Test)]
    lines = [
        "# What became of every verdict",
        "",
        "The first board had one word a test: NC, SP, both, neither or inconclusive. It has a column for each account now,",
        "and a third account. Questions, predictions of NC and SP, and smallest effects that matter are those that were written",
        "down before. What follows from them has changed: *against* is said where an interval excludes a prediction (before,",
        "one wholly on the other side could be *inconclusive*); that there is no effect, and what all accounts predict, is for",
        "none of them; a test of heads whose second map is idle is silent; heads count with what they cost the answer, by A1's",
        "mass on the answer before; and primaries are corrected by the p that is printed, of sign flips. What signed heads",
        "predict was added after the cohort had been read, so on this cohort its words are hindsight.",
        "This page is written by `python -m studies.laptop.verdicts_changed`.",
        "",
        LEGEND,
        "",
        f"| test | before | {' | '.join(ACCOUNTS)} | why | p after Holm, before → now |",
        "|" + "---|" * (4 + len(ACCOUNTS)),
    ]
    for verdict in judged:
        record = then.get(verdict.test.id)
        words = [verdict.verdicts.get(account, "–") for account in ACCOUNTS]
        old = "was not declared" if record is None else record["verdict"]
        lines.append(f"| {verdict.test.id} | {old} | {' | '.join(words)} | {why(record, verdict)} | {holm(record, verdict)} |")
    others = [verdict.test.id for verdict in board if not isinstance(verdict.test, Test) and verdict.test.id not in then]
    moved = changed_numbers(then, board)
    lines += ["", f"New measurements, which have no verdict: {', '.join(others) or 'none'}.", "", numbers_in_words(moved)]
    return "\n".join(lines) + "\n"


def why(record: Mapping | None, verdict: Verdict) -> str:
    """Why each account's word is what it is, where that is not what the one word of before said of it."""
    if verdict.lacks:
        return f"needs {verdict.lacks}"
    if verdict.idle:
        return next(iter(verdict.reasons[account] for account in verdict.test.predictions))
    parts = []
    said = {} if record is None else BEFORE[record["verdict"]]
    for account, word in verdict.verdicts.items():
        predicts = account in verdict.test.predictions
        if not predicts and account == "SH":
            continue
        reason = verdict.reasons[account]
        if said.get(account) == "not as predicted" and not predicts:
            parts.append(f"{account} was counted as failed though it predicts nothing here: {SILENT}")
        elif said.get(account) == "as predicted" and word == SILENT:
            parts.append(f"{account} was named: {reason}")
        elif said.get(account) == "not decided" and word == AGAINST:
            parts.append(f"{account} was not decided, and its prediction is excluded by the interval: {reason}")
        elif predicts:
            parts.append(f"{account} {word}: {reason}" if word != OPEN else f"{account} {OPEN}")
    return ". ".join(parts).replace("|", "\\|")


def holm(record: Mapping | None, verdict: Verdict) -> str:
    """The corrected p of a primary before and now."""
    if record is None or math.isnan(verdict.p):
        return "–"
    old = next(row["p_corrected"] for row in record["estimates"].values() if row["in_rule"])
    return f"{number(old)} → {number(verdict.p)}"


def changed_numbers(then: Mapping[str, Mapping], board: Sequence[Verdict]) -> dict[str, int]:
    """By test how many of its quantities are other numbers on the board now."""
    moved: dict[str, int] = {}
    for verdict in board:
        rows = then.get(verdict.test.id, {"estimates": {}})["estimates"]
        for name, estimate in verdict.estimates.items():
            pairs = [(rows[name][of], getattr(estimate, of)) for of in NUMBERS] if name in rows else []
            if any(not _alike(old, now) for old, now in pairs):
                moved[verdict.test.id] = moved.get(verdict.test.id, 0) + 1
    return moved


def _alike(old: float | None, now: float) -> bool:
    if old is None:
        return not math.isfinite(now)
    return math.isclose(old, now, rel_tol=ALIKE, abs_tol=ALIKE)


def numbers_in_words(moved: Mapping[str, int]) -> str:
    """Which estimates are other numbers than before."""
    if not moved:
        return "All estimates, intervals and uncorrected p are the numbers of before: only what is made of them has changed."
    named = ", ".join(f"{id} ({count})" for id, count in moved.items())
    return f"Other numbers than before, and of how many quantities: {named}. All others are those of before."


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default=LAST, help="a revision that ships the study with the verdicts of before")
    options = parser.parse_args()
    try:
        shown = subprocess.run(["git", "show", f"{options.before}:{STUDY}"], cwd=ROOT, capture_output=True, check=True)
        PAGE.write_text(page(json.loads(shown.stdout)["boards"][ALL], open_study().boards[ALL]), encoding="utf-8")
    except (DiffscopeError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
