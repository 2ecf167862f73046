"""p-values corrected for how many hypotheses there are: of primaries among themselves, of mechanism tests among themselves.

A primary holds only if all of its comparisons do, so its p is the largest of theirs and needs no correction within; Holm's is
over the primaries that are declared, and one that could not be run counts as a p of 1: to ask for fewer does not help. Mechanism
tests are explored: Benjamini and Hochberg's correction is over every quantity that their rules use on this board.

Of primaries the p of sign flips is corrected, whatever the number of seeds: signs of few seeds can be turned in few ways, so
that with fewer than eight seeds no primary alone can come out at 0.05 after the correction. Of mechanism tests the p of
Student's t is corrected. The other of the two is shown beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from diffscope.hypotheses.declared import TESTS
from diffscope.hypotheses.intervals import benjamini_hochberg, holm
from diffscope.hypotheses.rules import Declared
from diffscope.hypotheses.statistics import Estimate

CORRECTIONS = {"primary": "Holm", "mechanism": "Benjamini–Hochberg"}
PRIMARIES = tuple(id for id, test in TESTS.items() if test.kind == "primary")
Results = Mapping[str, Mapping[str, Estimate]]  # estimates by test and quantity
Corrected = dict[tuple[str, str], float]  # p by test and quantity


def whole(test: Declared) -> bool:
    """Whether a test is corrected as one, so that its p stands at its verdict and not at each of its quantities."""
    return test.kind == "primary"


def by_signs(test: Declared, estimate: Estimate) -> bool:
    """Whether the p that is corrected is that of sign flips, beside which Student's t is known."""
    return test.kind == "primary" and not math.isnan(estimate.p_t)


def uncorrected(test: Declared, estimate: Estimate) -> float:
    """The p that is corrected."""
    return estimate.p if math.isnan(estimate.p_t) or by_signs(test, estimate) else estimate.p_t


def corrected(results: Results) -> Corrected:
    """Corrected p of every quantity that a rule uses, by test and name."""
    return _primaries(results) | _mechanisms(results)


def _primaries(results: Results) -> Corrected:
    largest = {}
    for id in PRIMARIES:
        if id in results:
            test = TESTS[id]
            largest[id] = float(np.max([uncorrected(test, results[id][name]) for name in test.judged]))
    p = [largest.get(id, math.nan) for id in PRIMARIES]
    among = dict(zip(PRIMARIES, holm([1.0 if math.isnan(each) else each for each in p])))
    return {(id, name): math.nan if math.isnan(of) else among[id] for id, of in largest.items() for name in TESTS[id].judged}


def _mechanisms(results: Results) -> Corrected:
    """What two tests ask alike counts once."""
    questions = {}
    for id, estimates in results.items():
        test = TESTS[id]
        for name in test.judged if test.kind == "mechanism" else ():
            questions[id, name] = (test.quantities[name].label, uncorrected(test, estimates[name]))
    distinct = list(dict.fromkeys(questions.values()))
    among = dict(zip(distinct, benjamini_hochberg([p for _, p in distinct])))
    return {key: among[question] for key, question in questions.items()}
