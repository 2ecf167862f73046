"""The step at which a curve rises, by criteria whose answers are known."""

import math

import numpy as np
import pytest

from diffscope.lab.training.onsets import CRITERIA, Criterion, onset

STEPS = [25, 50, 75, 100, 125, 150, 175, 200]
CURVE = [0.10, 0.50, 0.85, 0.95, 0.90, 0.94, 0.96, 0.97]


@pytest.mark.parametrize(
    ("criterion", "step"),
    [
        ("50 % once", 50),
        ("80 % once", 75),
        ("90 % once", 100),
        ("95 % once", 100),
        ("90 %, mean of three evaluations", 125),  # (.85 + .95 + .90) / 3 is .9 exactly: reached, and known at its last
        ("95 % twice in a row", 175),  # the first of the two
    ],
)
def test_the_onset_of_a_curve_by_each_criterion(criterion, step):
    assert onset(STEPS, CURVE, CRITERIA[criterion]) == step


def test_steps_without_an_evaluation_break_no_row_of_them():
    every = np.arange(5, 201, 5)
    shares = np.full(every.shape, np.nan)
    shares[np.isin(every, STEPS)] = CURVE
    for criterion in CRITERIA.values():
        assert onset(every, shares, criterion) == onset(STEPS, CURVE, criterion)


def test_a_curve_that_never_gets_there_has_no_onset():
    assert onset(STEPS, CURVE, Criterion(0.97, evaluations=2)) == math.inf
    assert onset(STEPS[:1], [1.0], CRITERIA["95 % twice in a row"]) == math.inf
    assert onset([], [], CRITERIA["50 % once"]) == math.inf


@pytest.mark.parametrize("wrong", [{"share": 0.0}, {"share": 95}, {"share": 0.9, "evaluations": 0}])
def test_a_criterion_that_nothing_or_everything_meets_is_refused(wrong):
    with pytest.raises(ValueError, match="has to be"):
        Criterion(**wrong)
