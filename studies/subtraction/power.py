"""How often would the primaries of the study find what is there, and what is not? By simulation, before any run is read.

    python -m studies.subtraction.power --readings 1000

Each part is read many times off simulated seeds: paired differences of arms are normal, as spread as in the first study and its
pilots, and their means follow from which account is true.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.accounts import ACCOUNTS
from diffscope.hypotheses.rules import ABOVE, NONE, Quantity, Test
from diffscope.hypotheses.statistics import Estimate, Sample, estimate
from diffscope.storage.atomic import check_target, write_json
from studies.subtraction.judging import Judged, judged, shares
from studies.subtraction.primaries import PARTS, previous_token_subtracted, share_of_seeds

NOTHING = "no effect"
TRUTHS = (NOTHING, *ACCOUNTS)
OUT = Path(__file__).with_name("power.json")
CHANCE = 0.5  # per seed, of the one primary that counts seeds, if nothing is there


@dataclass(frozen=True)
class Scale:
    """Of one unit: the standard deviation over seeds of a paired difference, and sizes of an effect from small to large."""

    spread: float
    effects: tuple[float, float, float]


#: By the units of a primary's quantity. Octaves, nats and nats a token: from the cohorts of the first study (.25 to .29; .76;
#: .014 to .03). dB: from the gains of three models.
SCALES = {
    "octaves": Scale(0.27, (0.3, 0.45, 0.6)),
    "nats": Scale(0.76, (0.8, 1.2, 1.6)),
    "nats a token": Scale(0.022, (0.03, 0.045, 0.06)),
    "dB": Scale(1.0, (4.0, 5.0, 6.0)),
}
OF_SEEDS = (0.9, 0.97, 1.0)  # probability per seed, of the primary that counts seeds


def scale_of(test: Test, quantity: Quantity) -> Scale:
    """Return the scale of a primary's quantity."""
    return SCALES["nats a token" if test.id.startswith("loss-of-text") else quantity.units]


def effect_of(test: Test, name: str, truth: str, size: int) -> float:
    """Return the mean of a primary's quantity if an account is true, in its units; 0 if that account does not predict it."""
    wanted = test.predictions.get(truth, {}).get(name, NONE)
    if wanted == NONE:
        return 0.0
    effect = scale_of(test, test.quantities[name]).effects[size]
    return effect if wanted == ABOVE else -effect


def simulated(test: Test, seeds: int, truth: str, size: int, rng: np.random.Generator) -> dict[str, Estimate]:
    """Estimate one primary from simulated seeds."""
    if test is previous_token_subtracted:
        return {"seeds": share_of_seeds(rng.random(seeds) < (OF_SEEDS[size] if truth in test.predictions else CHANCE))}
    estimates = {}
    for name, quantity in test.quantities.items():
        values = rng.normal(effect_of(test, name, truth, size), scale_of(test, quantity).spread, size=(seeds, 1))
        estimates[name] = estimate(Sample(values, prompts="nested"), leave_out=False)
    return estimates


def readings(name: str, truth: str, size: int, count: int) -> list[list[Judged]]:
    """Simulate and judge a part `count` times."""
    part = PARTS[name]
    rng = np.random.default_rng([TRUTHS.index(truth), size, list(PARTS).index(name)])
    rows = []
    for _ in range(count):
        estimates = {test.id: simulated(test, part.seeds, truth, size, rng) for test in part.tests}
        rows.append(judged(part, estimates))
    return rows


def false_words(rows: list[list[Judged]], truth: str) -> dict[str, float]:
    """Share of readings in which any primary is for an account that is not true, and in which any is against the one that is."""
    others = [account for account in ACCOUNTS if account != truth]
    wrong = [any(row.words[account] == "for" for row in rows_of for account in others) for rows_of in rows]
    against = [truth in ACCOUNTS and any(row.words[truth] == "against" for row in rows_of) for rows_of in rows]
    return {"for a wrong account": float(np.mean(wrong)), "against the true account": float(np.mean(against))}


def power(count: int) -> list[dict]:
    """One row a part, truth and size of its effects."""
    rows = []
    for name in PARTS:
        for truth in TRUTHS:
            for size in range(1 if truth == NOTHING else 3):
                read = readings(name, truth, size, count)
                table = shares(read)
                for_it = {id: cells[f"{truth} for"] for id, cells in table.items() if f"{truth} for" in cells}
                row = {"part": name, "truth": truth, "size": "none" if truth == NOTHING else ("small", "middle", "large")[size]}
                detected = {id: cells["detected"] for id, cells in table.items()}
                rows.append(row | false_words(read, truth) | {"detected": detected, "for it": for_it, "words": table})
    return rows


def in_table(rows: list[dict]) -> str:
    """Power as Markdown: one row a part, truth and size."""
    lines = [
        "| part | true is | effects | for a wrong account | against the true one | detected, by primary | for the true account |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        detected, for_it = (_in_words(row[name]) for name in ("detected", "for it"))
        wrong, against = (f"{row[name]:.1%}" for name in ("for a wrong account", "against the true account"))
        lines.append(f"| {row['part']} | {row['truth']} | {row['size']} | {wrong} | {against} | {detected} | {for_it or '–'} |")
    return "\n".join(lines)


def _in_words(by_primary: Mapping[str, float]) -> str:
    return ", ".join(f"{id} {share:.0%}" for id, share in by_primary.items() if share > 0)


def main() -> None:
    """Simulate as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--readings", type=int, default=1000, help="simulated readings of each part, truth and size")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if options.readings < 1:
        sys.exit(f"error: --readings {options.readings} simulates nothing; give 1 or more")
    try:
        check_target(options.out)
    except DiffscopeError as error:
        sys.exit(f"error: {error}")
    rows = power(options.readings)
    write_json(options.out, {"readings": options.readings, "rows": rows}, indent=1)
    print(in_table(rows))


if __name__ == "__main__":
    main()
