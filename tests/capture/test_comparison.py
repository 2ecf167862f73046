"""Two models on the same prompts: the same measurements, side by side, or a refusal."""

import numpy as np
import pytest

import diffscope
from diffscope.models import load_model
from tests import tiny

PROMPTS = ["The magic number: Paris 7421. The magic number: Paris", "The code is 12."]
SPANS = [{"answer": "7421"}, {"answer": "12"}]


@pytest.fixture(scope="module")
def scopes():
    return diffscope.load("mini-diff"), diffscope.load("mini-standard")


@pytest.fixture(scope="module")
def comparison(scopes):
    return diffscope.compare(*scopes, PROMPTS, SPANS)


def test_measurements_are_those_of_each_model(comparison, scopes):
    assert isinstance(comparison, diffscope.Comparison)
    measured = comparison.measure(["entropy", "span_mass", "lambda"], queries="answer")
    assert measured["model"].values.tolist() == ["mini-diff", "mini-standard"]
    for scope in scopes:
        alone = scope.capture(PROMPTS, SPANS).measure(["entropy", "span_mass"], queries="answer")
        for name, values in alone.items():
            own = measured[name].sel(model=scope.name, head=values["head"]).transpose(*values.dims)
            np.testing.assert_array_equal(own, values)
    assert measured["lambda"].sel(model="mini-standard").isnull().all()


def test_a_difference_is_of_means_over_heads_and_says_of_what(comparison):
    measured = comparison.measure(["entropy", "argmax"])["entropy"].mean("head")
    difference = comparison.difference(["entropy", "argmax"])
    expected = measured.sel(model="mini-diff", drop=True) - measured.sel(model="mini-standard", drop=True)
    np.testing.assert_allclose(difference["entropy"], expected, rtol=1e-6)
    assert difference.attrs["difference"].startswith("mini-diff − mini-standard") and difference.attrs["left_out"] == "argmax"
    assert "argmax" not in difference and difference["entropy"].attrs["units"] == "nats"


def test_maps_stand_side_by_side(comparison):
    maps = comparison.maps(layer=(2, 1), head=(1, 0), prompt=1)
    first, second = comparison.captures
    np.testing.assert_array_equal(maps["D"].sel(model="mini-diff"), first[1].map("D", 2, 1))
    np.testing.assert_array_equal(maps["D"].sel(model="mini-standard"), second[1].map("A1", 1, 0))
    assert maps["A2"].sel(model="mini-standard").isnull().all()
    assert comparison[1].maps(layer=(2, 1), head=(1, 0)).identical(maps)


@pytest.mark.parametrize(
    "asked, words",
    [
        ({"layer": 9, "head": 0}, "there is no layer 9; choose from 0 to 2"),
        ({"layer": (0, -1), "head": 0}, "there is no layer -1; choose from"),
        ({"layer": 0, "head": 0, "prompt": 2}, "there is no prompt 2; choose from 0, 1"),
        ({"layer": (0, 1, 2), "head": 0}, "layer is one for all, or one for each of 2"),
    ],
)
def test_maps_that_are_not_there_are_refused_in_a_line(comparison, asked, words):
    with pytest.raises(diffscope.DiffscopeError, match=words):
        comparison.maps(**asked)
    assert comparison.maps(np.int64(0), np.int64(0)).equals(comparison.maps(0, 0))


def test_a_model_beside_itself_under_an_edit_is_numbered(scopes):
    assert diffscope.compare(scopes[0], scopes[0], PROMPTS[0]).names == ("mini-diff (1)", "mini-diff (2)")


def test_models_of_other_tokenizers_are_refused(scopes):
    _, tokenizer = load_model("mini-diff")
    small = diffscope.load(tiny.own("v1"), tiny.tokenizer())
    with pytest.raises(diffscope.DiffscopeError, match="different tokenizers"):
        diffscope.compare(scopes[0], small, "The code")
    tokenizer.add_tokens(["unheard"])  # the same ids on this prompt, but another vocabulary
    other = diffscope.load(scopes[1].model, tokenizer)
    with pytest.raises(diffscope.DiffscopeError, match="different tokenizers"):
        diffscope.compare(scopes[0], other, "The code")


def test_edits_of_one_model_are_not_said_of_both(scopes):
    with scopes[0].edit(diffscope.edits.set_lambda(0.0)):
        measured = diffscope.compare(*scopes, PROMPTS[0]).measure("gini")
    assert measured.attrs["edits"] == "λ = 0 (mini-diff)"
    assert "edits" not in diffscope.compare(*scopes, PROMPTS[0]).measure("gini").attrs


def test_two_captures_are_compared_as_the_models_are(scopes, comparison):
    captures = [scope.capture(PROMPTS, SPANS) for scope in scopes]
    compared = diffscope.compare(*captures)
    assert compared.names == comparison.names
    assert compared.measure(["entropy"]).equals(comparison.measure(["entropy"]))


def test_captures_of_other_tokens_and_mixtures_are_refused(scopes):
    one, other = (scopes[0].capture(text) for text in PROMPTS)
    for first, second, prompts, words in (
        (one, other, None, "of different tokens"),
        (one, one, PROMPTS[0], "hold their prompts"),
        (one, scopes[1], PROMPTS[0], "a capture is compared with a capture"),
        (*scopes, None, "compared on prompts; give them"),
        (scopes[0], "mini-diff", PROMPTS[0], "'mini-diff' is neither a scope nor a capture; open"),
        (scopes[0].model, scopes[1], PROMPTS[0], "a DiffForCausalLM is neither a scope nor a capture; open"),
    ):
        with pytest.raises(diffscope.DiffscopeError, match=words):
            diffscope.compare(first, second, prompts)


def test_other_numbers_of_prompts_and_other_samples_of_queries_are_refused(scopes):
    one, long = (scopes[0].capture(text) for text in PROMPTS)
    batch = scopes[0].capture(PROMPTS)
    assert one.n_tokens != long.n_tokens
    for first, second, queries, words in (
        (batch, one, None, "equally many prompts, and not on batch: a batch of 2, one: one prompt by itself; capture"),
        (one, long, diffscope.QuerySample(5), "other samples of queries; give one sample, and prompts of one length"),
    ):
        names = ("batch" if first is batch else "a", "one")
        with pytest.raises(diffscope.DiffscopeError, match=words):
            diffscope.Comparison(names, (first, second)).measure(["entropy"], queries=queries)
        with pytest.raises(diffscope.DiffscopeError, match=words):
            diffscope.tables.statistics(dict(zip(names, (first, second))), ["entropy"], queries=queries)


def test_maps_of_other_tokens_are_not_put_on_the_same_axes(scopes):
    """Names of keys are axes: of as many other tokens, they would be those of the first capture alone."""
    captures = tuple(scopes[0].capture(f"Magic numbers. {city} 2174.") for city in ("Rome", "Oslo"))
    assert captures[0].n_tokens == captures[1].n_tokens
    pair = diffscope.Comparison(("Rome", "Oslo"), captures)
    assert pair.measure(["entropy"]).sizes["model"] == 2
    for draw in (lambda: pair.maps(0, 0), lambda: diffscope.figures.maps(pair, layer=0, head=0)):
        with pytest.raises(diffscope.DiffscopeError, match="captures of Rome and Oslo are of different tokens"):
            draw()
