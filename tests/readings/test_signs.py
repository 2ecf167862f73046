"""What is negative of |D| is said: of a planted answer of both signs in every view that sums sizes, and of a positive one too."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr

import diffscope
from diffscope import figures, readings, tables
from diffscope.cli import main
from diffscope.readings import signs
from diffscope.stats.negative_mass import NEEDED, negative_mass
from tests import tiny
from tests.instruments.planted import capture_of, layer_of

N = 16
SPANS = {"answer": [4, 5], "query": [15]}
HIGH = 20.0


def planted(first, second, second_map=True):
    """A capture of one head: A1 on the keys `first`, A2 on the keys `second`, λ = 0.5."""
    scores = torch.zeros(2 if second_map else 1, N, N, dtype=torch.float64)
    scores[0, :, first] = HIGH
    if second_map:
        scores[1, :, second] = HIGH
    return capture_of(layer_of(scores, **({"lam": 0.5} if second_map else {"second": False})), spans=SPANS)


MIXED = planted([4], [5])  # D is 1 on token 4 and −0.5 on token 5: a third of 1.5 is negative
POSITIVE = planted([4, 5], [9])  # D is 0.5 on either token of the answer
STANDARD = planted([4], [5], second_map=False)

VIEWS = {
    "finders": lambda cap: readings.answer_heads(cap).sentence,
    "allocation": lambda cap: readings.allocation(cap).sentence,
    "training": lambda cap: readings.along_training({0: cap, 10: cap}).sentence,
    "amplifier": lambda cap: readings.amplifier(cap, ranks=False).estimates["signal_gain"].attrs.get("says", ""),
    "figure of bars": lambda cap: figures.allocation(cap).caption,
    "figure of one head's bars": lambda cap: figures.allocation(cap, layer=0, head=0).caption,
    "figure of heads": lambda cap: figures.heads(cap, span="answer").caption,
    "figure by layer": lambda cap: figures.statistic_by_layer(cap, statistic="span_mass", span="answer").caption,
    "figure of a training": lambda cap: figures.training({0: cap, 10: cap}).caption,
    "table": lambda cap: tables.statistics(cap, "span_mass", queries="last", span="answer").caption,
    "what was measured": lambda cap: tables.statistics(cap.measure(NEEDED, queries="last"), span="answer").caption,
}


@pytest.mark.parametrize("view", VIEWS)
def test_an_answer_of_both_signs_is_told_so(view):
    said = VIEWS[view](MIXED)
    assert re.search(
        r"33 % of it negative|1 of 1 head has negative weights on the answer .share of .D. there.: L0H0 33 %", said
    ), said


@pytest.mark.parametrize("view", VIEWS)
def test_a_positive_answer_is_told_as_positive(view):
    said = VIEWS[view](POSITIVE)
    assert re.search(r"of it positive|of \|D\| is positive in every head", said) and "negative weights" not in said, said


@pytest.mark.parametrize("view", VIEWS)
def test_of_standard_attention_no_sign_is_told(view):
    assert not re.search(r"negative|positive", VIEWS[view](STANDARD))


def test_weights_of_both_signs_are_told_token_by_token():
    reading = readings.of_head(MIXED, 0, 0)
    assert "D is +1.00 on `0` (token 4) and −0.50 on `0` (token 5): λ·A2 takes weight from the answer itself." in reading.sentence
    assert "over 99 % of |D| is on it, 33 % of it negative (uniform attention: " in reading.sentence
    positive = readings.of_head(POSITIVE, 0, 0).sentence
    assert "D is +0.50 on `0` (token 4) and +0.50 on `0` (token 5). A2 has over 99 % of its weight on `0` (token 9)" in positive
    standard = readings.of_head(STANDARD, 0, 0)
    assert "A is 1.00 on `0` (token 4)" in standard.sentence and "negative" not in repr(standard.parts)


def test_a_largest_weight_that_takes_away_is_told():
    cap = planted(list(range(N)), [9])
    unmarked = capture_of(cap.layers[0], spans={"query": [15]})
    assert re.search(r"on `0` \(token 9\): −\d\.\d\d \(.*\); no answer is marked", readings.of_head(unmarked, 0, 0).sentence)


@pytest.mark.parametrize("cap, words", [(MIXED, "on the answer 33 % of it negative"), (POSITIVE, "on the answer all of it pos")])
def test_the_command_tells_signs(cap, words, tmp_path, capsys):
    facts = {"model": "planted", "family": "planted", "attention": "eager", "dtype": "float64"}
    replace(cap, facts=facts).save(tmp_path / "planted.dscope")
    assert main(["measure", str(tmp_path / "planted.dscope"), "--statistics", "span_mass", "--query", "-1"]) == 0
    out = capsys.readouterr().out
    assert "counts like a positive one: on the sink" in out and words in out and "\nnegative_share" not in out


@pytest.mark.parametrize("name", ["v1", "v2", "standard"])
def test_the_negative_part_is_that_of_the_rows(name):
    cap = diffscope.load(tiny.own(name)).capture(tiny.ids(N), spans=SPANS)
    values = negative_mass(cap.measure(NEEDED)).isel(query=slice(6, None))
    for layer in cap.layer_numbers:
        for head in range(cap.n_heads):
            for kind in ("A1", "A2", "D") if cap.differential else ("D",):
                row = cap.map("D" if kind == "D" else kind, layer, head).values[6:].astype(float)
                expected = np.clip(-row[:, SPANS["answer"]], 0, None).sum(-1) / np.abs(row).sum(-1)
                got = values.sel(layer=layer, head=head, map=kind, span="answer")
                np.testing.assert_allclose(got, expected, atol=2e-5)


def test_a_row_without_a_positive_weight_is_all_negative():
    labels = {"map": ["D"], "span": ["answer"], "normalisation": ["raw", "share", "signed", "positive"]}
    mass = xr.DataArray([[[-0.2, 0.4, 0.4, np.nan]]], labels, ("map", "span", "normalisation"))
    measured = xr.Dataset({"span_mass": mass, "negative_share": ("map", [1.0])})
    assert float(negative_mass(measured).item()) == pytest.approx(0.4)


def test_words_say_neither_all_nor_none_of_what_is_not():
    assert signs.of_it(1, 0) == "all of it positive" and signs.of_it(1, 0.001) == "over 99 % of it positive"
    assert signs.of_it(0.5, 0.5) == "all of it negative" and signs.of_it(1, 0.999) == "over 99 % of it negative"
    assert signs.of_it(0.5, 0.135) == "27 % of it negative"


def test_retrieval_prompts_tell_signs():
    scope = diffscope.load("mini-diff")
    reading = readings.depths(scope, [64], prompts=1, distractors=1)
    of_d = reading.estimates.sel(map="D", normalisation="share", span="answer")
    part = float(of_d["negative"].mean() / of_d["mass"].mean())
    words = f"{100 * part:.0f} % of it negative" if part >= 0.005 else "of it positive"
    assert words in reading.sentence
    for view in (
        figures.by_depth(reading).caption,
        figures.depth_by_length(reading, quantity="answer").caption,
        tables.depths(reading).caption,
    ):
        assert f"on the answer {words}" in view or "on the answer over 99 % of it positive" in view
