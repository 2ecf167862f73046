"""Would the primary tests of a cohort find what is there, and how often what is not? By simulation, before there is any data.

    python -m studies.laptop.calibration.power --cohorts 500 --out benchmarks/results/power.json      # or as a part of studies.laptop.calibration.calibrate

Cohorts are planted (`studies.laptop.calibration.simulate`) with effects of several sizes, seeds as spread as in pilot trainings
(paired differences of log-odds by 0.4 to 0.95 nats, of slopes by 0.19 to 0.63, formation by 50 steps of 350 to 700; of
common-mode rejection there is no pilot), and runs of which one in eight never forms. Power is the share of cohorts in which a
primary comes out as planted, with the other three counted as not found, which is the least that Holm's correction leaves it.
False findings: the share of cohorts in which any primary finds an effect where there is none, where DIFF beats one of the two
standard arms by far and not the other, and where effects are half as large as matters.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from itertools import product
from pathlib import Path

from diffscope.hypotheses.power import EACH, KEPT, NO_RUN, primaries
from studies.laptop.calibration.simulate import ARMS, Sizes

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


def for_boards(result: dict) -> dict:
    """What boards say of power: of eight seeds, as spread as in the middle of the pilots."""
    named = ("test", "effect", "units", "failed", "found")
    kept = [row for row in result["power"] if (row["spreads"], row["seeds"]) == ("middle", 8) and row["failed"] in (NO_RUN, EACH)]
    return {"cohorts": result["cohorts"], "seeds": 8, "rows": [{name: row[name] for name in named} for row in kept]}


def _condition(row: dict) -> str:
    return f"spread {row['spreads']}, {row['seeds']} seeds, failed: {row['failed']}"


def measure(cohorts: int, out: Path | None = None) -> None:
    """Measure and print both; with a file write all numbers there, and what boards say of it into the package."""
    result = {"cohorts": cohorts, "false_findings": false_findings(2 * cohorts)}
    for row in result["false_findings"]:
        print(f"{row['truth']}, {_condition(row)}: {row['found']:.1%} of {2 * cohorts} cohorts with a false finding")
    result["power"] = power(cohorts)
    print(f"\n{table(result['power'])}")
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        KEPT.write_text(json.dumps(for_boards(result), indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cohorts", type=int, default=200)
    parser.add_argument("--out", type=Path, help=f"a JSON file for all numbers; what boards say of it goes into {KEPT.name}")
    options = parser.parse_args()
    measure(options.cohorts, options.out)


if __name__ == "__main__":
    main()
