"""What edits do to heads and to what is said next: every number is that of a slow computation, and causes are told apart."""

import math
import re

import numpy as np
import pytest
import torch

import diffscope
from diffscope import DiffscopeError, PromptError, edits
from diffscope.numbers import two_figures
from diffscope.readings import answers, effects, encode_question, next_tokens, predict
from diffscope.readings.edit_effects import conclusion
from diffscope.tasks import examples
from tests import tiny

IDS = tiny.ids(24)
LAYERS, HEADS = 3, 4
ZERO = edits.set_lambda(0.0, layers=1)


@pytest.fixture(scope="module")
def scope():
    return diffscope.load(tiny.own("v1", heads=HEADS, num_hidden_layers=LAYERS).double())


def under(scope, *made, ids=IDS):
    with scope.edit(*made):
        return scope.capture(ids)


def of(scope, *made, **options):
    return effects(scope.capture(IDS), under(scope, *made), made, **options)


def norm(x):
    return float(np.sqrt((np.asarray(x, dtype=float) ** 2).sum()))


def d(capture, layer, head):
    return capture.map("D", layer, head).values


def test_a_layer_that_gives_nothing_is_not_named_as_changed():
    model = tiny.own("v1", heads=HEADS, num_hidden_layers=LAYERS).double()
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.weight.zero_()
    assert "1 of 8 heads changed directly (L1H2)" in of(diffscope.load(model), edits.set_lambda(2.0, layers=1, heads=2)).sentence


def test_one_edit_may_be_given_by_itself(scope):
    before, after = scope.capture(IDS), under(scope, ZERO)
    assert effects(before, after, ZERO).estimates.equals(effects(before, after, [ZERO]).estimates)


def test_a_head_is_changed_by_its_edit_or_by_its_input(scope):
    made = edits.set_lambda(2.0, layers=1, heads=2)
    reading = of(scope, made)
    estimates = reading.estimates
    assert np.argwhere(estimates["directly"].values).tolist() == [[1, 2]]
    assert np.argwhere(estimates["downstream"].values).tolist() == [[2, head] for head in range(HEADS)]
    before, after = scope.capture(IDS), under(scope, made)
    change = estimates["change"].sel(quantity="D")
    taken = (2.0 - before.lam.values[1, 2]) * before.map("A2", 1, 2).values
    assert float(change.sel(cause="edit", layer=1, head=2)) == pytest.approx(norm(taken) / norm(d(before, 1, 2)))
    assert float(change.sel(cause="input", layer=1, head=2)) == 0
    for head in range(HEADS):
        expected = norm(d(after, 2, head) - d(before, 2, head)) / norm(d(before, 2, head))
        assert float(change.sel(cause="all", layer=2, head=head)) == pytest.approx(expected)
        assert float(change.sel(cause="edit", layer=2, head=head)) == 0
    whole = change.sel(cause="all")
    most = whole.isel(whole.argmax(...))
    name = f"L{int(most['layer'])}H{int(most['head'])}"
    words = conclusion(estimates)
    assert words.startswith(
        f"D of 5 of 12 heads changes, most in {name}: by {two_figures(float(most))} of its size. Neighbouring"
    )
    assert "1 of 12 heads changed directly (L1H2)" in reading.sentence
    assert "4 of 12 heads changed only because their input did (layer 2)" in reading.sentence


def test_an_edits_own_part_is_what_it_does_alone(scope):
    """Behind another edit it has another input; what it does itself is the same as without that."""
    first, second = edits.uniform_a2(layers=0), edits.absolute_d(layers=2, heads=[1, 3])
    together = of(scope, first, second).estimates["change"].sel(layer=2)
    alone = of(scope, second).estimates["change"].sel(layer=2)
    np.testing.assert_allclose(together.sel(cause="edit").values, alone.sel(cause="all").values)
    assert bool((together.sel(cause="input", quantity="D") > 0).all())


def test_an_ablated_head_gives_nothing_and_looks_as_before(scope):
    reading = of(scope, edits.ablate_heads(layers=1, heads=3))
    change = reading.estimates["change"].sel(layer=1, head=3, cause="edit")
    assert change.sel(quantity="D") == 0 and float(change.sel(quantity="output")) == pytest.approx(1)
    assert "(L1H3): what they give on by 1.0 of its size; D does not change" in reading.sentence
    assert conclusion(reading.estimates, "output").startswith(
        "The output of 5 of 12 heads changes, most in L1H3: by 1.0 of its size."
    )


def test_what_changes_nothing_is_said_to(scope):
    for made in (edits.scale_lambda(1.0), edits.top_k_a1(99)):
        reading = of(scope, made)
        assert reading.sentence == "None of 12 heads changes beyond what rounding explains."
        assert conclusion(reading.estimates) == "D of none of 12 heads changes beyond what rounding explains."
        assert not bool((reading.estimates["directly"] | reading.estimates["downstream"]).any())


def test_the_control_is_the_next_head(scope):
    before = scope.capture(IDS)
    control = of(scope, edits.zero_a2()).estimates["other_head"].sel(quantity="D")
    for head in range(HEADS):
        own, other = d(before, 1, head), d(before, 1, (head + 1) % HEADS)
        assert float(control.sel(layer=1, head=head)) == pytest.approx(norm(other - own) / norm(own))


def test_of_long_prompts_some_queries_are_looked_at(scope):
    made = edits.zero_a2(layers=0)
    reading = of(scope, made, rows=4)
    before, after = scope.capture(IDS), under(scope, made)
    rows = [0, 8, 15, 23]
    expected = norm((d(after, 0, 1) - d(before, 0, 1))[rows]) / norm(d(before, 0, 1)[rows])
    assert float(reading.estimates["change"].sel(quantity="D", cause="all", layer=0, head=1)) == pytest.approx(expected)
    assert reading.estimates.attrs["queries"] == 4


def test_two_prompts_are_not_compared(scope):
    with pytest.raises(DiffscopeError, match="one prompt"):
        effects(scope.capture(IDS), scope.capture(tiny.ids(24, seed=5)), [edits.zero_a2()])


def test_captures_under_other_edits_or_of_several_prompts_are_refused(scope):
    plain, edited, both = scope.capture(IDS), under(scope, ZERO), scope.capture([IDS, IDS])
    for before, after, made, words in (
        (plain, edited, edits.set_lambda(0.5, layers=0), f"captured under {ZERO}, and the edits given are λ = 0.5"),
        (plain, edited, [], f"captured under {ZERO}, and the edits given are none"),
        (plain, plain, ZERO, "`after` was captured without edits"),
        (edited, edited, ZERO, "`before` was captured under edits"),
        (both, edited, ZERO, "the capture holds 2"),
        (plain, both, ZERO, "the capture holds 2"),
    ):
        with pytest.raises(DiffscopeError, match=re.escape(words)):
            effects(before, after, made)


# predictions


@pytest.fixture(scope="module")
def mini():
    return diffscope.load("mini-diff")


@pytest.fixture(scope="module")
def example(mini):
    """An example, its capture, and the answer and the distractors in tokens as they stand in the text."""
    chosen = examples()[1]
    cap = mini.capture(chosen.text, spans=chosen.spans)
    texts = [f" {text}" for text in (chosen.answer, *chosen.distractors)]
    return chosen, cap, [mini.tokenizer.encode(text, add_special_tokens=False) for text in texts]


@torch.no_grad()
def log_p(scope, ids):
    return scope.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)


def test_an_answer_is_asked_for_as_it_continues_the_prompt(mini, example):
    chosen, cap, (answer, *distractors) = example
    question = encode_question(mini, cap, chosen.answer, chosen.distractors)
    assert (question.ids, question.answer, question.distractors) == (cap.ids, answer, distractors)
    without_bos = mini.capture(cap.ids[1:], spans={"answer": [at - 1 for at in cap.spans["answer"]]})  # no text has these tokens
    for asked in (f" {chosen.answer}", chosen.answer):  # the span says which white space is before it
        question = encode_question(mini, without_bos, asked, chosen.distractors)
        assert (question.ids, question.answer, question.distractors) == (cap.ids[1:], answer, distractors)
    ended = mini.capture([*cap.ids, mini.tokenizer.bos_token_id])  # as a chat may end
    assert encode_question(mini, ended, " 3499").answer == mini.tokenizer.encode("3499", add_special_tokens=False)


def test_an_answers_odds_are_those_of_the_logits_under_the_edits_that_are_on(mini, example):
    chosen, cap, (answer, *distractors) = example
    question = encode_question(mini, cap, chosen.answer, chosen.distractors)
    said = []
    for made in ((), (edits.zero_a2(),)):
        with mini.edit(*made):
            said.append(predict(mini, cap, question))
            rows = log_p(mini, [*cap.ids, *answer[:-1]])[-len(answer) :]
            first = log_p(mini, cap.ids)[-1]
        expected = sum(float(row[token]) for row, token in zip(rows, answer))
        firsts = torch.stack([first[tokens[0]] for tokens in distractors])
        assert said[-1].answer == pytest.approx(expected, abs=1e-4)
        assert said[-1].log_odds == pytest.approx(float(first[answer[0]] - firsts.logsumexp(0)), abs=1e-4)
        np.testing.assert_allclose(said[-1].log_p, first.numpy(), atol=1e-4)
    assert said[0].log_odds > said[1].log_odds + 5
    reading = answers(*said)
    assert reading.estimates["probability"].values.tolist() == pytest.approx([math.exp(each.answer) for each in said])
    assert float(reading.estimates["indifferent"]) == pytest.approx(-math.log(3))
    assert "against 3 distractors" in reading.sentence and "−1.1 as each" in reading.sentence


def test_without_distractors_the_odds_are_against_all_else(mini, example):
    chosen, cap, _ = example
    said = predict(mini, cap, encode_question(mini, cap, chosen.answer))
    assert said.log_odds == pytest.approx(said.answer - math.log(1 - math.exp(said.answer)), rel=1e-6)


def test_the_most_probable_of_either_side_stand_beside_each_other(mini, example):
    _, cap, _ = example
    before = predict(mini, cap)
    with mini.edit(edits.zero_a2()):
        after = predict(mini, cap)
    table = next_tokens(before, after, mini.tokenizer, count=3)
    ids = table["token"].values
    assert set(ids.tolist()) == {int(token) for side in (before, after) for token in np.argsort(-side.log_p)[:3]}
    probability = table["probability"]
    assert (np.diff(probability.max("side").values) <= 0).all()
    assert probability.sel(side="before").values.tolist() == pytest.approx(np.exp(before.log_p[ids]).tolist())
    assert table["change"].values.tolist() == pytest.approx((np.exp(after.log_p[ids]) - np.exp(before.log_p[ids])).tolist())
    assert math.isnan(before.answer) and "No answer is given" in answers(before, after).sentence


def test_what_cannot_be_asked_is_refused_in_a_line(mini, example):
    chosen, cap, _ = example
    own = f" {chosen.answer}"
    for answer, distractors, words in (("  ", (), "empty"), (own, ("",), "empty"), (own, (own,), "own number")):
        with pytest.raises(PromptError, match=words):
            predict(mini, cap, encode_question(mini, cap, answer, distractors))
    full = mini.capture(np.resize(cap.ids[1:], mini.max_length).tolist())
    with pytest.raises(PromptError, match="with its answer"):
        encode_question(mini, full, " 7421 and more")
    other = diffscope.load(mini.model)
    with pytest.raises(PromptError, match="tokenizer"):
        encode_question(other, other.capture(cap.ids), own)
