"""Planted truths of the signal-to-noise gain are found as large as they are, and told apart."""

import numpy as np
import pytest

from diffscope.instruments.snr import mean_gain
from studies.laptop.calibration.signal import EXPECTED, TRUTHS, PlantedSignal, account_of


@pytest.mark.parametrize("truth", TRUTHS)
def test_the_gain_is_the_one_that_there_is_and_its_kind_is_told(truth):
    measured = [PlantedSignal(truth, seed).measured(6) for seed in range(4)]
    gains = [float(mean_gain(each, least=-np.inf)["snr_gain"].sel(a2="own", stage="before")) for each in measured]
    error = np.std(gains, ddof=1) / np.sqrt(len(gains))
    assert np.mean(gains) == pytest.approx(PlantedSignal(truth).true_gain(), abs=1 + 3 * error)  # heads' decibels, not their sums
    assert [account_of(each) for each in measured].count(EXPECTED[truth]) >= 3


def test_what_stands_beside_the_gain_tells_why():
    """An amplifier takes noise away; a pedestal is what a uniform A2 does too; a signed head has its signal in A2."""
    amplifier, sparsifier, signed = (PlantedSignal(truth, 1).measured(6).sel(stage="before") for truth in TRUTHS[:3])
    own = {"a2": "own"}
    assert (amplifier["noise_change"].sel(own) < -3).all() and (abs(amplifier["signal_change"].sel(own)) < 1).all()
    np.testing.assert_allclose(sparsifier["snr_gain"].sel(own), sparsifier["snr_gain"].sel(a2="uniform"))
    assert (signed["signal_change"].sel(own) > 3).all()
    assert (signed["snr"].sel(output="lambda_A2") > signed["snr"].sel(output="A1")).all()
