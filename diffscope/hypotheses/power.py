"""How often the tests of a cohort would find what was planted, and what was not: by simulation, before there is any data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from diffscope.hypotheses.board import run
from diffscope.hypotheses.correction import PRIMARIES
from diffscope.hypotheses.declared import TESTS
from diffscope.hypotheses.planted_cohort import ARMS, SPREADS, Sizes, planted_cohort
from diffscope.hypotheses.rules import NONE, Test

COHORTS = tuple(id for id, test in TESTS.items() if test.needs == "cohort" and isinstance(test, Test))
Shares = dict[str, dict[str, float]]


def verdicts(
    truth: str,
    count: int,
    effects: Sizes | None = None,
    spreads: Sizes = SPREADS,
    *,
    seeds: int = 8,
    others: int | None = None,
    failures: float = 0.0,
    failing: Sequence[str] = ARMS,
    tests: Sequence[str] = COHORTS,
    alone: bool = False,
    seed: int = 0,
) -> tuple[Shares, float]:
    """Share of each verdict of each test over planted cohorts.

    Parameters
    ----------
    truth, effects, spreads, seeds, others, failures, failing
        As of :func:`diffscope.hypotheses.planted_cohort.planted_cohort`.
    count : int
        Cohorts.
    tests : sequence of str
        Ids, by default all tests of a cohort; run together unless `alone`: then every primary counts the others as not found,
        which is the least power that Holm's correction leaves it.
    alone : bool
    seed : int
        Of the first cohort.

    Returns
    -------
    dict
        By test, the share of each verdict.
    float
        Share of the cohorts in which some primary was for an account that predicts an effect there, of those that were run.
    """
    counts: dict[str, Counter[str]] = {id: Counter() for id in tests}
    any_primary = 0
    for number in range(count):
        cohort = planted_cohort(truth, seeds, effects, spreads, failures, seed + number, others, failing)
        lots = [[id] for id in tests] if alone else [list(tests)]
        board = [verdict for lot in lots for verdict in run(lot, cohort=cohort)]
        for verdict in board:
            counts[verdict.test.id][verdict.shown.partition(" ")[0]] += 1
        any_primary += any(_finds(verdict.test, verdict.shown) for verdict in board if verdict.test.id in PRIMARIES)
    shares = {id: {word: n / count for word, n in counter.most_common()} for id, counter in counts.items()}
    return shares, any_primary / count


def _finds(test: object, shown: str) -> bool:
    """Whether a verdict says that there is an effect, and not that there is none."""
    if not isinstance(test, Test) or shown not in ("NC", "SP", "both"):
        return False
    accounts = list(test.predictions) if shown == "both" else [shown]
    return any(state != NONE for account in accounts for state in test.predictions[account].values())
