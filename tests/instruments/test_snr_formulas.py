"""Variances of a crossed design: closed forms, no bias, and errors that are the spread over repetitions."""

import math

import numpy as np
import torch

from diffscope.instruments.snr_formulas import decibels, jackknife_error, left_out, variances


def test_what_answers_and_fillers_add_is_told_apart_exactly():
    """O[a, f] = a + f + a·f·u, in directions at right angles, of deviations that are orthogonal."""
    answer, filler = torch.tensor([-1.0, 1.0]).double(), torch.tensor([-1.0, 0.0, 1.0]).double()
    both = answer[:, None] * filler
    outputs = torch.stack([3 * answer[:, None].expand(2, 3), 5 * filler.expand(2, 3), 7 * both], -1)
    signal, noise, interaction = variances(outputs)
    of_both = 49 * 4 / (1 * 2)
    assert math.isclose(interaction, of_both)
    assert math.isclose(signal, 9 * 2 + 49 * 4 / 3) and math.isclose(noise, 25 * 1 + 49 * 4 / 4)
    assert decibels(torch.tensor(100.0)) == 20


def test_they_are_unbiased():
    """Components of variance 4 (answer), 9 (filler) and 1 (both), from three answers and four fillers."""
    rng = np.random.default_rng(0)
    shape = (20_000, 3, 4, 2)
    parts = (2.0 * rng.normal(size=(*shape[:2], 1, 2)), 3.0 * rng.normal(size=(shape[0], 1, *shape[2:])), rng.normal(size=shape))
    outputs = torch.from_numpy(sum(parts)) / math.sqrt(2)
    signal, noise, interaction = (float(values.mean()) for values in variances(outputs))
    assert abs(signal - 5) < 0.1 and abs(noise - 10) < 0.15 and abs(interaction - 1) < 0.02


def test_the_jackknife_of_a_mean_is_its_standard_error():
    values = torch.from_numpy(np.random.default_rng(1).normal(size=9))
    error = jackknife_error(left_out(values, 0).mean(-1))
    assert math.isclose(error, values.std() / 3) and left_out(values, 0).shape == (9, 8)
    assert jackknife_error(values[:1]).isnan()
