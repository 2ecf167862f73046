"""Do the tests of a cohort tell planted truths apart, and how often do they find what is not there?

The part ``cohorts`` of :mod:`studies.laptop.calibration.calibrate`. The tests are run together and corrected as on a board.
"""

from __future__ import annotations

import numpy as np

from diffscope.hypotheses.statistics import Sample, estimate
from diffscope.stats.intervals import LEVEL
from studies.laptop.calibration.power import verdicts
from studies.laptop.calibration.simulate import TRUTHS, Sizes

EFFECTS = {
    "medium": Sizes(log_odds=1.0, slope=0.5, steps=0.6, rejection=6.0),
    "large": Sizes(log_odds=2.0, slope=1.0, steps=1.0, rejection=9.0),
}
CASES = (("medium", 5, 5, 0.0), ("medium", 8, 6, 0.0), ("large", 8, 6, 0.0), ("large", 8, 6, 1 / 8))  # seeds, of others, failures


def planted_cohorts(count: int) -> dict[str, dict[str, float]]:
    """Share of verdicts by test, truth and size."""
    table = {}
    for (effect, seeds, others, failures), truth in ((case, truth) for case in CASES for truth in TRUTHS):
        shares = verdicts(truth, count, seeds, effects=EFFECTS[effect], others=others, failures=failures)
        failed = ", 1 in 8 failed" if failures else ""
        table |= {f"{id} | {truth} | {effect} effect, {seeds} seeds{failed}": of for id, of in shares.items()}
    return table


def no_difference(count: int, seeds: int, spread: float = 1.0) -> float:
    """Share of p at most 0.05 where two arms differ by their seeds alone."""
    rng = np.random.default_rng([seeds, count])
    values = spread * rng.normal(size=(count, seeds, 1))
    return float(np.mean([estimate(Sample(of, prompts="nested")).p <= LEVEL for of in values]))
