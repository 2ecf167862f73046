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
from diffscope.hypotheses.planted_cohort import Sizes, planted_cohort
from diffscope.hypotheses.rules import NONE, Test, state
from diffscope.hypotheses.statistics import Estimate, Sample, estimate
from diffscope.hypotheses.tests import PRIMARIES, TESTS
from diffscope.hypotheses.verdict import corrected

COHORTS = tuple(id for id, test in TESTS.items() if test.needs == "cohort" and isinstance(test, Test))
Shares = dict[str, dict[str, float]]
KEPT = Path(__file__).with_name("primary_power.json")  # which studies/laptop/calibration/power.py wrote
ENOUGH = 0.8  # of planted effects that are found
NO_RUN, EACH = "none", "1 in 8 of each arm"  # which runs never form


def verdicts(truth: str, count: int, seeds: int = 8, tests: Sequence[str] = COHORTS, **planted: Any) -> Shares:
    """Share of each word of each account, such as "NC for", by test of a board, over planted cohorts.

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
            counts[verdict.test.id].update(of_accounts(verdict.verdicts) if verdict.verdicts else ["needs"])
    return _shares(counts, count)


def of_accounts(words: Mapping[str, str]) -> list[str]:
    """Words of accounts as they are counted: "NC for"."""
    return [f"{account} {word}" for account, word in words.items()]


def primaries(
    truth: str, count: int, effects: Sizes | None = None, spreads: Sizes | None = None, *, seeds: int = 8, **planted: Any
) -> tuple[Shares, float]:
    """The same of the primary tests, of many cohorts: their runs are planted and observed as one, and judged cohort by cohort.

    Returns
    -------
    dict
        By test, the share of each word of each account, and of cohorts in which what an account predicts came out ("NC holds"),
        with the other three tests counted as not found: the least that Holm's correction leaves.
    float
        Share of cohorts in which an effect that some account predicts came out in any of the four, corrected together.
    """
    spread = {} if spreads is None else {"spreads": spreads}
    cohort = planted_cohort(truth, seeds * count, effects, **spread, **planted)
    observed = {id: TESTS[id].measure(cohort) for id in PRIMARIES}
    counts: dict[str, Counter[str]] = {id: Counter() for id in PRIMARIES}
    found = 0
    for results in _of_cohorts(observed, count, seeds):
        for id, estimates in results.items():
            test, states = _states(id, estimates, corrected({id: estimates}, TESTS))
            counts[id].update(of_accounts(test.judge(estimates, states)))
            counts[id].update(f"{account} holds" for account in test.predictions if test.holds(account, states))
        together = corrected(results, TESTS)
        found += any(_finds(*_states(id, estimates, together)) for id, estimates in results.items())
    return _shares(counts, count), found / count


def _of_cohorts(
    observed: Mapping[str, Mapping[str, Sample | Estimate]], count: int, seeds: int
) -> Iterator[dict[str, dict[str, Estimate]]]:
    """The estimates of what the rules use, of every so many seeds."""
    for number in range(count):
        results: dict[str, dict[str, Estimate]] = {}
        for id, quantities in observed.items():
            results[id] = {}
            for name in TESTS[id].judged:
                whole = quantities[name]
                assert isinstance(whole, Sample)
                members = np.array(whole.seeds) // seeds == number
                results[id][name] = estimate(replace(whole, values=whole.values[members], seeds=()), leave_out=False)
        yield results


def _states(id: str, estimates: Mapping[str, Estimate], p: Mapping[tuple[str, str], float]) -> tuple[Test, dict[str, str]]:
    """A test, and what the quantities that its rule uses show."""
    test = TESTS[id]
    assert isinstance(test, Test)
    states = {}
    for name in test.judged:
        quantity = test.quantities[name]
        states[name] = state(estimates[name], p[id, name], quantity.margin, quantity.no_effect)
    return test, states


def _finds(test: Test, states: Mapping[str, str]) -> bool:
    """Whether an effect that some account predicts came out, and not that there is none."""
    effects = [account for account, predicted in test.predictions.items() if set(predicted.values()) != {NONE}]
    return any(test.holds(account, states) for account in effects)


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
