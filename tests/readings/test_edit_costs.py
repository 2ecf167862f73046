"""What edits and ablated heads cost is what single runs under the same edits say."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

import diffscope
from diffscope import edits, readings
from diffscope.errors import DiffscopeError, PromptError, SpanError, UnsupportedModel
from diffscope.tasks import TextPrompt, encode_prompts, examples


@pytest.fixture(scope="module")
def scope(mini_diff):
    return mini_diff


@pytest.fixture(scope="module")
def prompts():
    """Two of one length, which run together, and a longer one."""
    text = "The magic number: Paris 7421. The magic number: Rome 2174. The magic number:"
    short = [TextPrompt("a", f"{text} Paris", {}, " 7421", (" 2174",)), TextPrompt("b", f"{text} Rome", {}, " 2174", (" 7421",))]
    return [*short, examples()[2]]


def one_by_one(scope, prompts, *active):
    """Log-odds of each prompt and the loss of its text, each in a run of its own."""
    odds, losses = [], []
    for prompt in prompts:
        cap = scope.capture(prompt.text, prompt.spans)
        with scope.edit(*active):
            asked = readings.encode_question(scope, cap, prompt.answer, prompt.distractors)
            odds.append(readings.predict(scope, cap, asked).log_odds)
            losses.append(scope.loss(prompt.text))
    return np.array(odds), np.array(losses)


def test_scores_are_those_of_single_runs_and_changes_are_paired(scope, prompts):
    half = edits.scale_lambda(0.5)
    both = (edits.top_k_a1(4), edits.set_lambda(0.0))
    told = []
    reading = readings.interventions(scope, prompts, {"half": half, "both": both}, progress=lambda *done: told.append(done))
    estimates = reading.estimates
    plain, plain_loss = one_by_one(scope, prompts)
    for label, active in {"half": (half,), "both": both}.items():
        odds, losses = one_by_one(scope, prompts, *active)
        one = estimates.sel(edit=label)
        np.testing.assert_allclose(one["log_odds_of_prompt"], odds, rtol=1e-4)
        np.testing.assert_allclose(one["loss_of_prompt"], losses, rtol=1e-4)
        change = odds - plain
        np.testing.assert_allclose(one["log_odds_change"], change.mean(), rtol=1e-4)
        np.testing.assert_allclose(one["log_odds_change_se"], change.std(ddof=1) / 3**0.5, rtol=1e-3)
        np.testing.assert_allclose(one["loss_change"], (losses - plain_loss).mean(), rtol=1e-3)
    np.testing.assert_allclose(estimates["unedited_log_odds"], plain.mean(), rtol=1e-4)
    assert float(estimates["unedited_exact"]) == 1.0 and float(estimates["exact"].sel(edit="both")) < 1
    assert float(estimates["indifferent"]) == pytest.approx(-np.mean([np.log(len(prompt.distractors)) for prompt in prompts]))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert "most is lost where both (" in reading.sentence and "least where half (" in reading.sentence


def test_numbers_stay_numbers_and_one_prompt_has_no_error(scope, prompts):
    asked = encode_prompts(scope.tokenizer, prompts[:1])[0]
    estimates = readings.interventions(
        scope, asked, {2: edits.scale_lambda(2), 0.5: edits.scale_lambda(0.5)}, along="λ"
    ).estimates
    assert estimates["edit"].values.tolist() == [2.0, 0.5] and estimates["edit"].attrs["long_name"] == "λ"
    assert estimates["log_odds_se"].isnull().all() and estimates["loss_change"].notnull().all()


def test_without_distractors_there_are_losses_and_no_log_odds(scope, prompts):
    alone = replace(prompts[0], distractors=())
    reading = readings.interventions(scope, alone, {"A2 = 0": edits.zero_a2()})
    assert reading.estimates["log_odds_change"].isnull().all() and np.isnan(reading.estimates["indifferent"])
    assert "of loss of the text" in reading.sentence
    with pytest.raises(PromptError, match="no prompt has one; give distractors"):
        readings.ablations(scope, alone)


def test_scores_are_counted_of_the_prompts_that_have_them(scope, prompts):
    mixed = [*prompts[:2], replace(prompts[0], distractors=())]
    reading = readings.interventions(scope, mixed, {"A2 = 0": edits.zero_a2()})
    assert reading.sentence.startswith("Unedited, 2 prompts have")
    ablated = readings.ablations(scope, mixed, layers=[0, 2])
    assert (
        "log-odds over 2 prompts" in ablated.sentence
        and ablated.estimates.attrs["everything_of"] == "all heads of layers 0 and 2"
    )
    assert readings.ablations(scope, prompts[:1], what="A2").estimates.attrs["everything_of"] == "all heads"


def test_what_is_under_edits_already_is_not_called_unedited(scope, prompts):
    with scope.edit(edits.set_lambda(0.0)):
        for read in (
            lambda: readings.interventions(scope, prompts[:1], {"a": ZERO}),
            lambda: readings.ablations(scope, prompts[:1]),
        ):
            with pytest.raises(DiffscopeError, match=r"edits are on already \(λ = 0\).*leave the block of scope.edit first"):
                read()


def test_ablating_a_head_changes_what_its_own_edit_does(scope, prompts):
    some = prompts[:2]
    plain, _ = one_by_one(scope, some)
    head = readings.ablations(scope, some, layers=[1]).estimates
    second = readings.ablations(scope, some, what="A2", layers=[1]).estimates
    assert head["change"].dims == ("layer", "head") and head["layer"].values.tolist() == [1]
    for estimates, edit in (
        (head, lambda heads: edits.ablate_heads(layers=1, heads=heads)),
        (second, lambda heads: edits.zero_a2(layers=1, heads=heads)),
    ):
        for number in (0, 1):
            change = one_by_one(scope, some, edit(number))[0] - plain
            np.testing.assert_allclose(estimates["change_of_prompt"].sel(layer=1, head=number), change, rtol=1e-3, atol=1e-4)
            error = abs(change[0] - change[1]) / 2
            np.testing.assert_allclose(estimates["change_se"].sel(layer=1, head=number), error, rtol=1e-2, atol=1e-4)
        everything = one_by_one(scope, some, edit(None))[0] - plain
        np.testing.assert_allclose(estimates["everything"], everything.mean(), rtol=1e-3)


def test_the_sentence_names_the_head_that_costs_most(scope, prompts):
    reading = readings.ablations(scope, prompts[:2], layers=[0, 1])
    change = reading.estimates["change"]
    worst = change.isel(change.argmin(...))
    assert (
        f"takes most in L{int(worst['layer'])}H{int(worst['head'])} (" in reading.sentence
        and "Without any of them" in reading.sentence
    )


def test_what_all_second_maps_of_a_layer_cost_is_read_by_layer(scope, prompts):
    """In mini-diff A2 works in layer 0 alone."""
    reading = readings.ablations(scope, prompts[:2], what="A2")
    plain, _ = one_by_one(scope, prompts[:2])
    for layer in range(3):
        change = one_by_one(scope, prompts[:2], edits.zero_a2(layers=layer))[0] - plain
        np.testing.assert_allclose(reading.estimates["layer_change_of_prompt"].sel(layer=layer), change, rtol=1e-3, atol=1e-4)
    changes = reading.estimates["layer_change"]
    assert float(changes[0]) < -3 and abs(changes[1:]).max() < 1 and " Without all of a layer: L0 −" in reading.sentence
    alone = readings.ablations(scope, prompts[:2], what="A2", layers=[1, 1])  # of one layer that is all there is
    assert "Without all of a layer" not in alone.sentence


@pytest.fixture
def planted(scope, prompts, monkeypatch):
    """Sentences about three prompts whose log-odds every edit, by its words, changes by what a table says."""

    def read(ask, changes):
        def scores(scope, asked, active=(), text=True):
            change = sum((np.array(changes.get(str(edit), 0.0)) for edit in active), np.zeros(3))
            return xr.Dataset({name: ("prompt", 9 + change) for name in ("log_odds", "loss", "exact")})

        for name in ("edit_costs", "head_costs"):
            monkeypatch.setattr(sys.modules[f"diffscope.readings.{name}"], "of_prompts", scores)
        return ask(scope, prompts).sentence

    return read


HALF, NEXT, NONE = edits.scale_lambda(0.5), edits.scale_lambda(0.25), edits.scale_lambda(1.0)
WORSE, BETTER, ROUNDING = (-4.0, -5.0, -6.0), (1.0, 1.0, 4.0), (3e-6, 1e-6, -2e-6)


@pytest.mark.parametrize(
    "changes, words",
    [
        (
            {HALF: WORSE, NEXT: (-5.0, -5.01, -5.0), NONE: ROUNDING},
            "most is lost where a (−5.0 ± 0.58 nats) and b (−5.0 ± 0.0033 nats), least where c (under 0.0001 nats); "
            "± is one standard error over 3 prompts.",
        ),
        (
            {HALF: WORSE, NEXT: BETTER, NONE: ROUNDING},
            "most is lost where a (−5.0 ± 0.58 nats), most is gained where b (+2.0 ± 1.0 nats); "
            "± is one standard error over 3 prompts.",
        ),
        (
            {HALF: ROUNDING, NEXT: BETTER},
            "most is gained where b (+2.0 ± 1.0 nats), least where a (under 0.0001 nats) and c (0 nats); "
            "± is one standard error over 3 prompts.",
        ),
        (
            {HALF: ROUNDING},
            "changed alike where a (under 0.0001 nats), b (0 nats) and c (0 nats).",
        ),
    ],
)
def test_edits_that_cost_the_same_are_named_together(planted, changes, words):
    tried = {"a": HALF, "b": NEXT, "c": NONE}
    sentence = planted(
        lambda scope, prompts: readings.interventions(scope, prompts, tried), {str(edit): row for edit, row in changes.items()}
    )
    assert sentence == f"Unedited, 3 prompts have 9.0 nats of log-odds of the answer; {words}"


def test_heads_that_cost_the_same_are_named_together_and_what_rounding_changes_is_not_counted(planted):
    def without(layer, head):
        return str(edits.ablate_heads(layers=layer, heads=head))

    def ask(scope, prompts):
        return readings.ablations(scope, prompts, layers=[0, 1])

    changes = {without(0, 1): WORSE, without(1, 0): (-5.0, -5.01, -5.0), without(1, 1): (2e-6, 2e-6, 2e-6)}
    sentence = planted(ask, changes)
    assert "takes most in L1H0 (−5.0 ± 0.0033 nats) and L0H1 (−5.0 ± 0.58 nats); " in sentence
    assert "± is one standard error over 3 prompts, and 2 of 4 heads change it by more than two." in sentence
    gains = planted(ask, {without(layer, head): BETTER for layer in (0, 1) for head in (0, 1)} | {without(0, 1): (0.1, 0.1, 0.1)})
    assert "takes nothing in any; least is gained in L0H1 (+0.10 ± 0 nats)" in gains


ZERO = edits.zero_a2()


@pytest.mark.parametrize(
    "ask, error, words",
    [
        (lambda scope, some: readings.interventions(scope, some, {}), DiffscopeError, "give one at least"),
        (lambda scope, some: readings.interventions(scope, some, {1: ZERO, "a": ZERO}), DiffscopeError, "not by both"),
        (lambda scope, some: readings.interventions(scope, some, {"a": "b"}), DiffscopeError, "is not an edit"),
        (lambda scope, some: readings.interventions(scope, some, {0.5: 0.5}), DiffscopeError, "0.5 is not an edit"),
        (lambda scope, some: readings.interventions(scope, [], {"a": ZERO}), PromptError, "there is no prompt"),
        (lambda scope, some: readings.interventions(scope, ["Oslo"], {"a": ZERO}), PromptError, "prompt 0 is a str"),
        (lambda scope, some: readings.ablations(scope, TextPrompt("", "Oslo is", {}, None)), PromptError, "has no answer"),
        (lambda scope, some: TextPrompt("", "Oslo is", {"answer": "Oslo"}, None), SpanError, "list of Chars"),
        (lambda scope, some: TextPrompt("", "Oslo is", {"answer": [(0, 4)]}, None), SpanError, "list of Chars"),
        (lambda scope, some: readings.branches(scope, some[0]), PromptError, "readings.question gives"),
        (lambda scope, some: diffscope.average(some), DiffscopeError, "not of a list"),
        (lambda scope, some: readings.ablations(scope, some, what="mlp"), DiffscopeError, "choose from head, A2"),
        (lambda scope, some: readings.ablations(scope, some, layers=9), DiffscopeError, "no layer 9"),
        (lambda scope, some: readings.ablations(scope, some, layers=[]), DiffscopeError, "choose one at least"),
    ],
)
def test_what_cannot_be_asked_is_one_line(scope, prompts, ask, error, words):
    with pytest.raises(error, match=words):
        ask(scope, prompts[:1])


def test_standard_attention_has_heads_to_take_away_and_no_second_map(prompts):
    with pytest.raises(UnsupportedModel, match="no second map"):
        readings.ablations(diffscope.load("mini-standard"), prompts[:1], what="A2")
