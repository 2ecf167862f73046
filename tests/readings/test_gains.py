"""The amplifier of planted maps: gains in closed form, and sentences that count what is there."""

import re

import numpy as np
import pytest
import torch

import diffscope
from diffscope import readings
from diffscope.instruments.injection import with_a2_moved
from tests import tiny
from tests.instruments.planted import capture_of, layer_of

N = 16
SPANS = {"answer": [4, 5], "query": [14, 15]}


def drawn(*seeds):
    return torch.stack([torch.randn(N, N, generator=torch.Generator().manual_seed(seed)).double() for seed in seeds])


def test_copies_of_the_first_maps_are_taken_away_by_lambda():
    """A2 = A1 in every head: the best coefficient is 1, the floor 0, and both gains are 1 − λ."""
    reading = readings.amplifier(capture_of(layer_of(torch.cat([drawn(1, 2, 3)] * 2), lam=0.75), spans=SPANS))
    own = reading.estimates.sel(layer=0, control="as it is")
    for name, value in {"lambda_star": 1, "residual_noise": 0.25, "noise_gain": 0.25, "signal_gain": 0.25}.items():
        np.testing.assert_allclose(own[name], value, rtol=1e-6)
    np.testing.assert_allclose(own["residual_floor"], 0, atol=1e-6)
    np.testing.assert_allclose(own["cmrr"], 20 * np.log10((1.75 / 2) / 0.25))
    assert "λ is .75." in reading.sentence and "rejected by 11 dB." in reading.sentence
    assert "is below 1 in 3 of 3 heads; below 1 and every control in 3 of 3 heads (2 controls a head)." in reading.sentence
    assert "The least possible is .00 of A1, below every control in 3 of 3 heads." in reading.sentence


def test_controls_are_those_of_captures_with_moved_second_maps():
    cap = diffscope.load(tiny.own("v1")).capture(tiny.ids(N), spans=SPANS)
    estimates = readings.amplifier(cap, ranks=False).estimates
    moved = [with_a2_moved(cap, by).measure(["noise_gain", "overlap"], queries=[-1]).isel(query=0) for by in (1, 2, 3)]
    for name, middle in {"noise_gain": np.median, "overlap": np.mean}.items():
        values = np.stack([each[name].sel(span=["irrelevant", "answer"]).values for each in moved])
        for control, expected in {"other heads": middle(values, 0), "other heads, least": values.min(0)}.items():
            np.testing.assert_allclose(estimates[name].sel(control=control), expected, rtol=1e-5)
    assert (estimates["controls"] == 3).all()


def test_counts_are_those_of_the_estimates():
    """Half of the heads have a copy for their second map, the others another head's, as controls do."""
    first = drawn(1, 2, 3, 4)
    estimates = readings.amplifier(capture_of(layer_of(torch.cat([first, first[[0, 1, 3, 2]]]), lam=0.9), spans=SPANS))
    noise = estimates.estimates["noise_gain"].sel(span="irrelevant", layer=0)
    own, least = noise.sel(control="as it is"), noise.sel(control="other heads, least")
    below, both = int((own < 1).sum()), int(((own < 1) & (own < least)).sum())
    assert both == 2 and f"below 1 in {below} of 4 heads; below 1 and every control in 2 of 4 heads" in estimates.sentence
    assert estimates.estimates["noise_gain"].attrs["says"] in estimates.sentence


def test_variables_say_how_they_are_read_and_ranks_have_their_controls():
    cap = diffscope.load(tiny.own("v1")).capture(tiny.ids(N), spans=SPANS)
    reading = readings.amplifier(cap)
    for name in ("lambda", "cmrr", "noise_gain", "signal_gain", "residual_floor", "effective_rank"):
        attrs = reading.estimates[name].attrs
        assert attrs["reads"].endswith(".") and attrs["says"] in reading.sentence and attrs["units"] and attrs["definition"]
    assert {"map", "uniform", "permuted"} <= set(reading.estimates["rank_control"].values)
    ranks = cap.measure("effective_rank")["effective_rank"]
    np.testing.assert_array_equal(reading.estimates["effective_rank"], ranks)


@pytest.mark.parametrize("spans", [{}, SPANS, {"answer": [4]}], ids=["unmarked", "marked", "one token"])
def test_what_is_undefined_is_left_out_of_the_sentence(spans):
    for model in (tiny.own("v1", heads=1), tiny.own("v2"), tiny.own("standard"), tiny.gpt_oss()):
        cap = diffscope.load(model).capture(tiny.ids(N), spans=spans)
        for query in (-1, 0, 2):
            sentence = readings.amplifier(cap, query, ranks=False).sentence
            assert not re.search(r"\b(nan|None)\b|of 0 ", sentence), sentence
            assert cap.differential or sentence.startswith("It is standard attention")
            assert spans or "irrelevant" not in sentence
