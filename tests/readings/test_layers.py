"""Statistics by layer are those of the maps, averaged over heads and prompts by their own rule, beside their controls."""

import functools

import numpy as np
import pytest

import diffscope
from diffscope.errors import DiffscopeError
from diffscope.readings import by_layer
from tests import tiny

SPANS = {"answer": slice(5, 7)}


@functools.cache
def scope(kind="v1"):
    return diffscope.load(tiny.own(kind, 3, num_hidden_layers=2, hidden_size=48))


@functools.cache
def capture(kind="v1"):
    return scope(kind).capture(tiny.ids(16), spans=SPANS)


def answer_shares(cap, query=-1):
    """Σ|D| on the answer over Σ|D|, (layer, head)."""
    rows = np.array([[abs(cap.map("D", layer, head).values[query]) for head in range(3)] for layer in (0, 1)])
    return rows[..., 5:7].sum(-1) / rows.sum(-1)


def test_heads_are_those_of_the_maps_and_what_models_have_alike_is_there_once():
    captures = {"ours": capture(), "theirs": capture("standard")}
    reading = by_layer(captures, "span_mass")
    estimates = reading.estimates
    assert estimates["model"].values.tolist() == ["ours", "theirs", ""]
    assert estimates["control"].values.tolist() == ["", "", "uniform attention"]
    for name, cap in captures.items():
        expected = answer_shares(cap)
        np.testing.assert_allclose(estimates["heads"].sel(series=name), expected, rtol=1e-5)
        np.testing.assert_allclose(estimates["middle"].sel(series=name), expected.mean(1), rtol=1e-5)
    np.testing.assert_allclose(estimates["heads"].sel(series="uniform attention"), 2 / 16)
    assert "(D, answer, share of |D|, query 15 or A, answer, share, query 15): ours 0." in reading.sentence
    assert reading.sentence.endswith("; uniform attention 0.12.")  # 0.125


def test_a_control_of_one_model_has_its_name():
    estimates = by_layer({"ours": capture(), "theirs": capture("standard")}, "lambda").estimates
    assert estimates["series"].values.tolist() == ["ours", "theirs", "ours: at initialisation"]
    np.testing.assert_allclose(estimates["heads"].sel(series="ours"), capture().lam.values.squeeze(), rtol=1e-6)
    assert estimates["heads"].sel(series="theirs").isnull().all()


def test_prompts_are_averaged_by_the_statistics_own_rule():
    batch = scope().capture([tiny.ids(16), tiny.ids(12, seed=1), tiny.ids(9, seed=2)], spans=SPANS)
    shares = [answer_shares(prompt) for prompt in batch]
    mean = by_layer(batch, "span_mass").estimates
    np.testing.assert_allclose(mean["heads"].isel(series=0), np.mean(shares, 0), rtol=1e-5)
    median = by_layer(batch, "noise_gain", query="mean").estimates
    gains = [prompt.measure("noise_gain")["noise_gain"].sel(span="irrelevant") for prompt in batch]
    assert gains[0].attrs["averaged"] == median["middle"].attrs["averaged"] == "median"
    expected = np.median([gain.median("query") for gain in gains], 0)
    np.testing.assert_allclose(median["heads"].isel(series=0), expected, rtol=1e-6)
    np.testing.assert_allclose(median["middle"].isel(series=0), np.median(expected, 1), rtol=1e-6)
    assert median["heads"].attrs["selection"] == "irrelevant, median over 9 to 16 queries, then 3 prompts"


def test_what_is_undefined_everywhere_is_said_so_and_what_has_no_mean_is_refused():
    assert by_layer(capture("standard"), "overlap").sentence.endswith("is undefined everywhere.")
    for statistic, words in {"argmax": "has no mean over heads", "sink_rate": "is of a layer", "x": "no statistic 'x'"}.items():
        with pytest.raises(DiffscopeError, match=words):
            by_layer(capture(), statistic)
    with pytest.raises(DiffscopeError, match="there is no capture; give one"):
        by_layer({})
    with pytest.raises(DiffscopeError, match="there is no query 'answer'; give a position, 'last', or 'mean'"):
        by_layer(capture(), "span_mass", query="answer")
