"""Where an answer needs the second map is what single runs without it say, and its sentence says no more than its numbers."""

import numpy as np
import pytest
import torch
import xarray as xr

import diffscope
from diffscope import edits, readings
from diffscope.errors import DiffscopeError, UnsupportedModel
from diffscope.readings.second_map import layers_sentence, place_sentence, runs


@pytest.fixture(scope="module")
def reading(mini_diff, example):
    return readings.where_a2_works(mini_diff, example)


def probability(scope, example, *changes):
    """Of the answer's tokens one after the other, of one run of the prompt with its answer."""
    prompt, whole = (scope.tokenize(text) for text in (example.text, f"{example.text} {example.answer.strip()}"))
    assert whole[: len(prompt)] == prompt and len(whole) > len(prompt)
    with scope.edit(*changes):
        log_p = scope.logits(torch.tensor([whole]))[0].double().log_softmax(-1)  # (token, vocabulary)
    return float(np.exp(sum(log_p[at - 1, whole[at]].item() for at in range(len(prompt), len(whole)))))


def test_its_numbers_are_those_of_single_runs_under_other_edits(mini_diff, example, reading):
    """The row of one token is taken out by patching in that of a run without A2, and layers and heads by zeros in the map."""

    def without(**places):
        return probability(mini_diff, example, edits.zero_a2(**places))

    estimates, found = reading.estimates, reading.estimates.attrs
    layer, head, query = found["layer"], found["head"], found["query"]
    np.testing.assert_allclose(estimates["unedited"], probability(mini_diff, example), rtol=1e-3)
    np.testing.assert_allclose(estimates["without_any"], without(), rtol=1e-2)
    by_layer = [without(layers=number) for number in estimates["layer"].values]
    np.testing.assert_allclose(estimates["without_layer"], by_layer, rtol=1e-2)
    np.testing.assert_allclose(estimates["without_head"], [without(layers=layer, heads=number) for number in (0, 1)], rtol=1e-2)
    assert layer == int(np.argmin(by_layer)) == 0 and head == int(estimates["without_head"].values.argmin())
    with mini_diff.edit(edits.zero_a2(layers=layer, heads=head)):
        bare = mini_diff.capture(example.text)

    def at_token(token):
        return probability(mini_diff, example, edits.patch("A2", bare, queries=token, layers=layer, heads=head))

    np.testing.assert_allclose(estimates["without_token"], at_token(query), rtol=1e-2)
    before = probability(mini_diff, example)
    assert at_token(query) < before / 2 and all(at_token(other) > before - 0.1 for other in (query - 1, query + 2))


def test_the_token_is_the_answers_first_where_its_city_is_looked_up(mini_diff, example, reading):
    """As the study of the subtraction found: A2 looks at the end of the city's name, which stands before it."""
    cap = mini_diff.capture(example)
    layer, head, query = (reading.estimates.attrs[name] for name in ("layer", "head", "query"))
    assert query == cap.spans["answer"][0]
    (a2, a1) = (cap.map(name, layer, head, queries=[query]).values[0] for name in ("A2", "A1"))
    assert a2.argmax() == query - 1 and a2.max() > 0.9 and a1[query - 1] < 0.1
    said = readings.of_head(cap, layer, head, query)
    before = f"`{cap.tokens[query - 1].strip()}`"
    assert f" A2 has 99 % of its weight on the token before, {before}, and A1 {100 * a1[query - 1]:.0f} %." in said.sentence
    assert float(said.estimates["first_at_second"]) == pytest.approx(a1[query - 1] / a1.sum(), rel=1e-4)


def test_runs_are_told_and_what_is_raised_ends_it(mini_diff, example):
    told = []
    readings.where_a2_works(mini_diff, example, progress=lambda *done: told.append(done))
    heads, tokens = dict.fromkeys(range(3), 2), len(mini_diff.tokenize(example.text))
    assert [done for done, _ in told] == list(range(len(told))) and {total for _, total in told} == {runs(heads, tokens)}
    assert len(told) - 1 in (runs(heads, tokens), runs(heads, tokens) - 2)  # halves of 96 tokens are not all alike

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        readings.where_a2_works(mini_diff, example, progress=stop)
    assert not mini_diff.edits


def test_of_an_untrained_model_no_layer_is_asked_further(example):
    reading = readings.where_a2_works(diffscope.load("mini-diff@0"), example)
    assert set(reading.estimates) == {"unedited", "without_layer", "without_any"} and "layer" not in reading.estimates.attrs
    assert reading.sentence.startswith("The model does not give the answer (under 1 %)")


def test_what_cannot_be_asked_is_refused(mini_diff, mini_standard, example):
    with pytest.raises(UnsupportedModel, match="no second map in any layer"):
        readings.where_a2_works(mini_standard, example)
    with mini_diff.edit(edits.set_lambda(0.0, layers=0)), pytest.raises(DiffscopeError, match="edits are on already"):
        readings.where_a2_works(mini_diff, example)


def estimates(before, layers, *, whole=0.0, heads=None, token=None, **found):
    """Planted probabilities of an answer."""
    values = {"unedited": before, "without_layer": xr.DataArray(layers, {"layer": range(len(layers))}), "without_any": whole}
    if heads is not None:
        values["without_head"] = xr.DataArray(heads, {"head": range(len(heads))})
    if token is not None:
        values["without_token"] = xr.DataArray(token, {"query": found.get("query", 0)})
    return xr.Dataset(values, attrs=found)


SAID = {
    "one layer": (
        (0.99, [0.001, 0.98, 0.99]),
        "Without the A2 of layer 0 the answer's probability is under 1 % instead of 99 %; "
        "without that of layer 1 or 2 it is about the same (98 % to 99 %).",
    ),
    "others cost something": (
        (0.6, [0.2, 0.31, 0.53, 0.6]),
        "Without the A2 of layer 0 the answer's probability is 20 % instead of 60 %; "
        "without that of layer 1 or 2 it is lower (31 % to 53 %); without that of layer 3 it is still 60 %.",
    ),
    "one other raises it": (
        (0.45, [0.2, 0.44, 0.61]),
        "Without the A2 of layer 0 the answer's probability is 20 % instead of 45 %; "
        "without that of layer 2 it is higher (61 %); without that of layer 1 it is about the same (44 %).",
    ),
    "a small probability": (
        (0.12, [0.03, 0.12, 0.04, 0.07]),
        "Without the A2 of layer 0 or 2 the answer's probability is 3 % to 4 % instead of 12 %; "
        "without that of layer 3 it is lower (7 %); without that of layer 1 it is still 12 %.",
    ),
    "alike in other words": (
        (0.994, [0.1, 0.996]),
        "Without the A2 of layer 0 the answer's probability is 10 % instead of 99 %; "
        "without that of layer 1 it is about the same (over 99 %).",
    ),
    "every layer": (
        (0.99, [0.01, 0.48]),
        "Without the A2 of layer 0 or 1 the answer's probability is 1 % to 48 % instead of 99 %; "
        "there is no layer that does without.",
    ),
    "the only layer": (
        (0.99, [0.01]),
        "Without the A2 of layer 0 the answer's probability is 1 % instead of 99 %; no other layer has an A2.",
    ),
    "many layers": (
        (0.9, [0.9, 0.1, 0.9, 0.7, 0.9, 0.9, 0.9]),
        "Without the A2 of layer 1 the answer's probability is 10 % instead of 90 %; "
        "without that of layer 3 it is lower (70 %); without that of any other layer it is still 90 %.",
    ),
    "most of many layers": (
        (0.9, [0.1, 0.1, 0.1, 0.1, 0.1, 0.9]),
        "Without the A2 of any one of layers 0 to 4 the answer's probability is 10 % instead of 90 %; "
        "without that of layer 5 it is still 90 %.",
    ),
    "none alone": (
        (0.97, [0.96, 0.97], 0.02),
        "No layer alone needs its A2 for the answer: its probability is 97 %; "
        "without the A2 of layer 0 or 1 it is about the same (96 % to 97 %); without any A2 it is 2 %.",
    ),
    "not the only one": (
        (0.97, [0.6]),
        "No layer alone needs its A2 for the answer: its probability is 97 %; without the A2 of layer 0 it is lower (60 %).",
    ),
    "no layer of many": (
        (0.97, [0.97] * 6),
        "No layer alone needs its A2 for the answer: its probability is 97 %; "
        "without the A2 of any one of layers 0 to 5 it is still 97 %; without any A2 it is 0 %.",
    ),
    "no answer": (
        (0.09, [0.01, 0.95, 0.09]),
        "The model does not give the answer (9 %), so there is nothing that it could need A2 for; "
        "without the A2 of layer 0 it is lower (1 %); without that of layer 1 it is higher (95 %); "
        "without that of layer 2 it is still 9 %.",
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_the_sentence_says_of_layers_what_their_numbers_are(case):
    (before, layers, *whole), words = SAID[case]
    assert layers_sentence(estimates(before, layers, whole=whole[0] if whole else 0.0)) == words


PLACES = {
    "a token": (
        ({"heads": [0.3, 0.01], "token": 0.02}, {"layer": 2, "head": 1, "query": 7}),
        "Without the A2 of L2H1 alone the answer's probability is 1 %, and without that at token 7 alone 2 %.",
    ),
    "no token": (
        ({"heads": [0.3, 0.01], "token": 0.95}, {"layer": 2, "head": 1}),
        "Without the A2 of L2H1 alone the answer's probability is 1 %; "
        "no single token of the prompt was found that costs as much.",
    ),
    "no head": (
        ({"heads": [0.95, 0.93]}, {"layer": 2}),
        "No head of layer 2 alone needs its A2. Without the A2 of L2H1 alone the answer's probability is 93 %.",
    ),
    "no layer": (({}, {}), ""),
}


@pytest.mark.parametrize("case", PLACES)
def test_the_sentence_names_head_and_token_if_they_alone_cost_it(case):
    (values, found), words = PLACES[case]
    assert place_sentence(estimates(0.99, [0.9, 0.9, 0.001], **values, **found)) == words
