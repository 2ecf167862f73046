"""Would the primary tests of a cohort find what is there, and how often what is not? By simulation, before there is any data.

    python -m studies.laptop.calibration.power --cohorts 500      # or as a part of studies.laptop.calibration.calibrate

Cohorts are simulated (:mod:`studies.laptop.calibration.simulate`) with effects of several sizes, seeds as spread as in pilot
trainings (paired differences of log-odds by 0.4 to 0.95 nats, of slopes by 0.19 to 0.63, formation by 50 steps of 350 to 700; of
common-mode rejection there is no pilot), and runs of which one in eight never forms. Power is the share of cohorts in which a
primary comes out as planted, with the other three counted as not found, which is the least that Holm's correction leaves it.
False findings: the share of cohorts in which any primary finds an effect where there is none, where DIFF beats one of the two
standard arms by far and not the other, and where effects are half as large as matters.

All numbers are the result ``power`` of ``results.json``. What boards say of them, one sentence a primary, is ``power.json``.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from diffscope.hypotheses.board import run
from diffscope.hypotheses.rules import NONE, Test, state
from diffscope.hypotheses.statistics import Estimate, Sample, estimate
from diffscope.hypotheses.tests import PRIMARIES, TESTS
from diffscope.hypotheses.verdict import corrected
from diffscope.storage.atomic import write_json
from studies.laptop.calibration.simulate import ARMS, Sizes, planted_cohort
from studies.laptop.results import write_result

COHORTS = tuple(id for id, test in TESTS.items() if test.needs == "cohort" and test.judged)
SENTENCES = Path(__file__).parents[1] / "power.json"
OFTEN = 0.8  # share of planted effects that are found, at least
Shares = dict[str, dict[str, float]]
NO_RUN, EACH = "none", "1 in 8 of each arm"  # which runs never form
SPREADS = {
    "small": Sizes(log_odds=0.4, slope=0.19, steps=0.2, rejection=1.0),
    "middle": Sizes(log_odds=0.67, slope=0.4, steps=0.3, rejection=2.0),
    "large": Sizes(log_odds=0.95, slope=0.63, steps=0.5, rejection=4.0),
}
LEVELS = (
    Sizes(log_odds=0.5, slope=0.25, steps=0.2, rejection=3.0),
    Sizes(log_odds=0.75, slope=0.5, steps=0.4, rejection=4.5),
    Sizes(log_odds=1.0, slope=0.75, steps=0.6, rejection=6.0),
    Sizes(log_odds=1.5, slope=1.0, steps=0.8, rejection=8.0),
    Sizes(log_odds=2.0, slope=1.5, steps=1.0, rejection=12.0),
)
OF = {  # which size a primary is about, and its units
    "formation": ("steps", "octaves"),
    "distractors": ("log_odds", "nats"),
    "distractors-or-length": ("slope", "nats per doubling"),
    "common-noise": ("rejection", "dB"),
}
FAILURES = 1 / 8
BASELINES = "1 in 8 of both standard arms"
FAILING = {EACH: ARMS, BASELINES: ("standard", "double-width"), NO_RUN: ()}
CONDITIONS = (  # spread, seeds, which runs never form
    ("middle", 8, NO_RUN),
    ("middle", 8, BASELINES),
    ("small", 8, EACH),
    ("middle", 8, EACH),
    ("large", 8, EACH),
    ("middle", 12, EACH),
)
HALF = Sizes(log_odds=0.25, slope=0.1, steps=0.075, rejection=1.5)  # of what matters


def verdicts(truth: str, count: int, seeds: int = 8, tests: Sequence[str] = COHORTS, **planted: Any) -> Shares:
    """Return the share of each word of each account, such as "NC for", by test of a board, over planted cohorts.

    Parameters
    ----------
    truth, seeds, **planted
        As of :func:`studies.laptop.calibration.simulate.planted_cohort`.
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
    """Name words of accounts as they are counted: "NC for"."""
    return [f"{account} {word}" for account, word in words.items()]


def primaries(
    truth: str, count: int, effects: Sizes | None = None, spreads: Sizes | None = None, *, seeds: int = 8, **planted: Any
) -> tuple[Shares, float]:
    """Judge the primary tests of many cohorts, whose runs are planted and measured as one.

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
    """Yield the estimates of what the rules use, of every so many seeds."""
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
    """Return a test, and what the quantities that its rule uses show."""
    test = TESTS[id]
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


def power(count: int) -> list[dict]:
    """One row a primary, condition and size of its effect: the share of cohorts in which it is found."""
    rows = []
    for (spread, seeds, failed), effects in product(CONDITIONS, LEVELS):
        options = dict(seeds=seeds, failures=FAILURES, failing=FAILING[failed])
        shares, _ = primaries("NC", count, effects, SPREADS[spread], **options)
        for id, (size, units) in OF.items():
            effect = {"effect": asdict(effects)[size], "units": units, "spread": asdict(SPREADS[spread])[size]}
            condition = {"spreads": spread, "seeds": seeds, "failed": failed}
            rows.append({"test": id, **effect, **condition, "found": shares[id].get("NC holds", 0.0), "verdicts": shares[id]})
    return rows


def false_findings(count: int) -> list[dict]:
    """One row a condition: the share of cohorts in which any of the four primaries finds an effect that is not there."""
    rows = []
    none = {"no arm differs": ("neither", None), "one comparison alone": ("geometry", LEVELS[-1])}
    for (name, (truth, effects)), (spread, seeds, failed) in product(none.items(), CONDITIONS):
        options = dict(seeds=seeds, failures=FAILURES, failing=FAILING[failed])
        _, found = primaries(truth, count, effects, SPREADS[spread], **options)
        rows.append({"truth": name, "spreads": spread, "seeds": seeds, "failed": failed, "found": found})
    _, found = primaries("NC", count, HALF, SPREADS["small"], failures=FAILURES)
    rows.append({"truth": "half of what matters", "spreads": "small", "seeds": 8, "failed": EACH, "found": found})
    return rows


def table(rows: list[dict]) -> str:
    """Power as Markdown: one row a primary and effect, one column a condition."""
    conditions = {_condition(row): None for row in rows}
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        cells.setdefault((row["test"], f"{row['effect']:g} {row['units']}"), {})[_condition(row)] = f"{row['found']:.0%}"
    lines = [f"| primary | effect | {' | '.join(conditions)} |", "|---|---|" + "---|" * len(conditions)]
    for id in OF:
        for (test, effect), found in cells.items():
            if test == id:
                lines.append(f"| {test} | {effect} | {' | '.join(found[name] for name in conditions)} |")
    return "\n".join(lines)


def sentences(result: Mapping[str, Any]) -> dict[str, str]:
    """Return what boards say of the power of each primary test: of eight seeds, as spread as in the middle of the pilots."""
    return {id: _sentence(id, result) for id in OF}


def _sentence(id: str, result: Mapping[str, Any]) -> str:
    """Name the smallest planted effect that a primary finds often enough, and how often it finds that where runs fail."""
    of_test = [row for row in result["power"] if (row["test"], row["spreads"], row["seeds"]) == (id, "middle", 8)]
    rows = {(row["failed"], row["effect"]): row for row in of_test}
    effect = min(effect for (failed, effect), row in rows.items() if failed == NO_RUN and row["found"] >= OFTEN)
    found, where_runs_fail = (rows[failed, effect]["found"] for failed in (NO_RUN, EACH))
    return (
        f"with 8 seeds an effect of {effect:g} {rows[NO_RUN, effect]['units']} is found in {found:.0%} of "
        f"{result['cohorts']} planted cohorts; where one run in eight never forms, in {where_runs_fail:.0%}"
    )


def _condition(row: dict) -> str:
    return f"spread {row['spreads']}, {row['seeds']} seeds, failed: {row['failed']}"


def measure(cohorts: int, keep: bool = True) -> None:
    """Measure and print both, and keep all numbers if they are to be kept."""
    result = {"cohorts": cohorts, "false_findings": false_findings(2 * cohorts)}
    for row in result["false_findings"]:
        print(f"{row['truth']}, {_condition(row)}: {row['found']:.1%} of {2 * cohorts} cohorts with a false finding")
    result["power"] = power(cohorts)
    print(f"\n{table(result['power'])}")
    if keep:
        write_result("power", result)
        write_json(SENTENCES, sentences(result), indent=1)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cohorts", type=int, default=200)
    measure(parser.parse_args().cohorts)


if __name__ == "__main__":
    main()
