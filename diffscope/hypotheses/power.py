"""How often the tests of a cohort would find what was planted, and what was not: by simulation, before there is any data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from diffscope.hypotheses.board import run
from diffscope.hypotheses.correction import PRIMARIES, corrected
from diffscope.hypotheses.declared import TESTS
from diffscope.hypotheses.inference import Estimate, Observed, estimate
from diffscope.hypotheses.planted_cohort import Sizes, planted_cohort
from diffscope.hypotheses.rules import NONE, Test, state

COHORTS = tuple(id for id, test in TESTS.items() if test.needs == "cohort" and isinstance(test, Test))
Shares = dict[str, dict[str, float]]
KEPT = Path(__file__).with_name("primary_power.json")  # which benchmarks/power.py wrote
ENOUGH = 0.8  # of planted effects that are found
NO_RUN, EACH = "none", "1 in 8 of each arm"  # which runs never form


def verdicts(truth: str, count: int, seeds: int = 8, tests: Sequence[str] = COHORTS, **planted: Any) -> Shares:
    """Share of each verdict of each test of a board, over planted cohorts.

    Parameters
    ----------
    truth, seeds, **planted
        As of :func:`diffscope.hypotheses.planted_cohort.planted_cohort`.
    count : int
        Cohorts.
    tests : sequence of str
        Ids, by default all tests of a cohort; they are run and corrected together.
    """
    counts: dict[str, Counter[str]] = {id: Counter() for id in tests}
    for number in range(count):
        for verdict in run(list(tests), cohort=planted_cohort(truth, seeds, seed=number, **planted)):
            counts[verdict.test.id][verdict.shown.partition(" ")[0]] += 1
    return _shares(counts, count)


def primaries(
    truth: str, count: int, effects: Sizes | None = None, spreads: Sizes | None = None, *, seeds: int = 8, **planted: Any
) -> tuple[Shares, float]:
    """The same of the primary tests, of many cohorts: their runs are planted and observed as one, and judged cohort by cohort.

    Returns
    -------
    dict
        By test, the share of each verdict with the other three counted as not found: the least that Holm's correction leaves.
    float
        Share of cohorts in which any of the four, corrected together, was for an account that predicts an effect there.
    """
    spread = {} if spreads is None else {"spreads": spreads}
    cohort = planted_cohort(truth, seeds * count, effects, **spread, **planted)
    observed = {id: TESTS[id].observe(cohort) for id in PRIMARIES}
    counts: dict[str, Counter[str]] = {id: Counter() for id in PRIMARIES}
    found = 0
    for results in _of_cohorts(observed, count, seeds):
        for id, estimates in results.items():
            counts[id][_judged(id, estimates, corrected({id: estimates}))] += 1
        together = corrected(results)
        found += any(_finds(id, _judged(id, estimates, together)) for id, estimates in results.items())
    return _shares(counts, count), found / count


def _of_cohorts(
    observed: Mapping[str, Mapping[str, Observed | Estimate]], count: int, seeds: int
) -> Iterator[dict[str, dict[str, Estimate]]]:
    """The estimates of what the rules use, of every so many seeds."""
    for number in range(count):
        results: dict[str, dict[str, Estimate]] = {}
        for id, quantities in observed.items():
            results[id] = {}
            for name in TESTS[id].judged:
                whole = quantities[name]
                assert isinstance(whole, Observed)
                members = np.array(whole.seeds) // seeds == number
                results[id][name] = estimate(replace(whole, values=whole.values[members], seeds=()), leave_out=False)
        yield results


def _judged(id: str, estimates: Mapping[str, Estimate], p: Mapping[tuple[str, str], float]) -> str:
    test = TESTS[id]
    assert isinstance(test, Test)
    states = {}
    for name, quantity in test.quantities.items():
        if name in estimates:
            states[name] = state(estimates[name], p[id, name], quantity.margin, quantity.no_effect)
    return test.judge(states)


def _finds(id: str, verdict: str) -> bool:
    """Whether a verdict says that there is an effect, and not that there is none."""
    test = TESTS[id]
    assert isinstance(test, Test)
    accounts = {"both": list(test.predictions), "NC": ["NC"], "SP": ["SP"]}.get(verdict, [])
    return any(wanted != NONE for account in accounts for wanted in test.predictions[account].values())


def _shares(counts: Mapping[str, Counter[str]], count: int) -> Shares:
    return {id: {word: n / count for word, n in counter.most_common()} for id, counter in counts.items()}


@cache
def kept() -> dict[str, Any]:
    """Power as it was kept: of how many ``cohorts`` and ``seeds``, and ``rows``, one a primary test, effect and failures."""
    return json.loads(KEPT.read_text(encoding="utf-8"))


def in_words(id: str) -> str:
    """The smallest planted effect that a primary finds often enough, and how often it finds that where runs fail."""
    table = kept()
    rows = {(row["failed"], row["effect"]): row for row in table["rows"] if row["test"] == id}
    effect = min(effect for (failed, effect), row in rows.items() if failed == NO_RUN and row["found"] >= ENOUGH)
    found, where_runs_fail = (rows[failed, effect]["found"] for failed in (NO_RUN, EACH))
    return (
        f"with {table['seeds']} seeds an effect of {effect:g} {rows[NO_RUN, effect]['units']} is found in {found:.0%} of "
        f"{table['cohorts']} planted cohorts; where one run in eight never forms, in {where_runs_fail:.0%}"
    )
