"""Onsets of a cohort's runs, and one arm against another in octaves, of curves whose answers are known."""

import json

import numpy as np
import pytest
import xarray as xr

from diffscope.hypotheses.cohort import octaves_of_steps, onsets
from diffscope.lab.training.onsets import CRITERIA, TWICE

STEPS = [25, 50, 100, 200]
NOTHING = [np.nan] * 4


@pytest.fixture
def cohort():
    """Three seeds: of the first both arms learn, of the second one never does, of the third one was not trained."""
    curves = {
        "diff": [[0.5, 0.95, 0.95, 1.0], [0.2, 0.6, 0.98, 0.97], [1.0, 1.0, 1.0, 1.0]],
        "standard": [[0.1, 0.2, 0.5, 0.96], [0.1, 0.5, 0.98, 0.51], NOTHING],
        "top-8": [[1.0, 1.0, 1.0, 1.0], NOTHING, NOTHING],
    }
    retrieval = xr.DataArray(
        [curves[arm] for arm in curves],
        dims=("arm", "seed", "step"),
        coords={"arm": list(curves), "seed": [0, 1, 2], "step": STEPS},
    )
    finished = retrieval.notnull().any("step").astype(int)
    recipe = {"continued": {"top-8": {"arm": "standard"}}}
    return xr.Dataset(
        {"retrieval": retrieval, "finished": finished, "formation_limit": 400.0}, attrs={"recipe": json.dumps(recipe)}
    )


def test_onsets_by_arm_and_seed(cohort):
    half = onsets(cohort, CRITERIA["50 % once"])
    np.testing.assert_array_equal(half.sel(arm="diff"), [25, 50, 25])
    np.testing.assert_array_equal(half.sel(arm="standard"), [100, 50, np.nan])  # the last was not trained
    np.testing.assert_array_equal(onsets(cohort, TWICE).sel(arm="standard"), [np.inf, np.inf, np.nan])
    assert half.sel(arm="top-8").isnull().all()  # it goes on from a formed model


def test_a_run_that_never_gets_there_counts_with_the_steps_it_was_given(cohort):
    half = onsets(cohort, CRITERIA["50 % once"])
    np.testing.assert_allclose(octaves_of_steps(cohort, half, "diff", "standard"), [-2, 0])
    np.testing.assert_allclose(octaves_of_steps(cohort, onsets(cohort, TWICE), "diff", "standard"), [-3, -2])  # 50 and 100 of 400
