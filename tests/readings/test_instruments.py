"""What is said of noise, ranks, the anatomy of maps and the logits: planted truths, and sentences that count what is there."""

import math

import numpy as np
import pytest
import torch

import diffscope
from diffscope import PromptError, readings
from diffscope.instruments.injection import with_a2_moved
from diffscope.numbers import decibels
from diffscope.readings import other_prompts, question, ranks, ranks_sentence, synthetic_prompts
from diffscope.readings.logits import FIRST, OTHER, SECOND, branches
from diffscope.readings.map_structure import NEXT, composition
from diffscope.readings.noise import noise_cost, rejection, rejection_sentence
from diffscope.readings.snr import snr_sentence
from diffscope.tasks import examples
from studies.laptop.calibration.signal import PlantedSignal
from tests.instruments.planted import capture_of, layer_of

N = 16
SPANS = {"answer": [4, 5], "query": [14, 15]}
EXAMPLE = examples()[2]
ANSWER = EXAMPLE.answer


def drawn(*seeds):
    return torch.stack([torch.randn(N, N, generator=torch.Generator().manual_seed(seed)).double() for seed in seeds])


@pytest.fixture(scope="module")
def scope(mini_diff):
    return mini_diff


@pytest.fixture(scope="module")
def example():
    return EXAMPLE


@pytest.fixture(scope="module")
def cap(scope, example):
    return scope.capture(example.text, example.spans)


def test_copies_reject_all_of_common_noise_and_other_heads_do_not():
    planted = capture_of(layer_of(torch.cat([drawn(1, 2, 3)] * 2), lam=1.0), spans=SPANS)
    reading = rejection(planted, sigmas=(0.5,), draws=4)
    own = reading.estimates["cmrr_injected"].sel(sigma=0.5, layer=0)
    assert np.isposinf(own.sel(control="as it is")).all() and np.isfinite(own.sel(control="other heads")).all()
    assert (
        "the rejection by head is infinite dB" in reading.sentence and "3 of 3 heads are above every control" in reading.sentence
    )


def test_the_controls_of_rejection_are_ratios_of_mean_squares_over_other_heads():
    planted = capture_of(layer_of(drawn(*range(8)), lam=0.8), spans=SPANS)
    options = {"sigmas": (0.5, 2.0), "draws": 4, "seed": 3}
    estimates = rejection(planted, span="answer", **options).estimates.isel(layer=0)
    moved = [diffscope.instruments.cmrr_by_injection(with_a2_moved(planted, by), spans=["answer"], **options) for by in (1, 2, 3)]
    squares = [[np.square(each[f"change_{mode}"].values[0, ..., 0]) for each in moved] for mode in ("differential", "common")]
    expected = 10 * np.log10(np.mean(squares[0], 0) / np.mean(squares[1], 0))  # (head, sigma)
    np.testing.assert_allclose(estimates["cmrr_injected"].sel(control="other heads"), expected, rtol=1e-9)
    own = diffscope.instruments.cmrr_by_injection(planted, spans=["answer"], **options)["cmrr_injected"].values[0, ..., 0]
    np.testing.assert_array_equal(estimates["cmrr_injected"].sel(control="as it is"), own)
    np.testing.assert_allclose(estimates["equal_maps"], 20 * math.log10(1.8 / 0.2), rtol=1e-6)
    assert "σ = 2 on answer tokens" in rejection_sentence(estimates.expand_dims("layer"), 2.0)


def test_rejection_is_told_with_its_ceiling():
    planted = capture_of(layer_of(torch.cat([drawn(1, 2, 3)] * 2), lam=0.5), spans=SPANS)
    reading = rejection(planted, sigmas=(0.5,), draws=4)
    assert "dB if A2 had A1's shape there" in reading.sentence
    own = reading.estimates["cmrr_injected"].sel(control="as it is")
    np.testing.assert_allclose(reading.estimates["cmrr_ceiling"], own)
    without = reading.estimates.drop_vars("cmrr_ceiling")
    assert ", ceiling not measured;" in rejection_sentence(without, 0.5)


def test_a_gain_is_told_of_the_heads_that_tell_the_answer_beside_other_second_maps():
    amplifier = PlantedSignal("amplifier", seed=1).measured(6)
    told = snr_sentence(amplifier)
    assert told.startswith("In 1 of 2 heads") or told.startswith("In 2 of 2 heads")
    own, uniform = (amplifier["snr_gain"].sel(a2=name, stage="before") for name in ("own", "uniform"))
    heard = amplifier["snr"].sel(output=["A1", "D"], stage="before").max("output") > 0
    values = own.values[heard.values]
    assert f"by {decibels(values.min())}" in told and "upwards" in told
    assert f"with a uniform A2 it would by {decibels(uniform.values[heard.values].min())}" in told
    quiet = amplifier.assign(snr=amplifier["snr"] - 99)
    assert "In none of 2 heads" in snr_sentence(quiet)
    assert "In none of 1 head " in snr_sentence(quiet.where(quiet["head"] == 0))  # the other is not in this layer
    text = "The magic number: Oslo 7421. It is late. The magic number: Oslo"
    standard = readings.signal_to_noise(diffscope.load("mini-standard"), text, spans={"answer": "7421"}, draws=2)
    assert standard.sentence.startswith("Nothing is subtracted here")


def test_noise_that_cannot_reach_the_query_is_said_to_change_nothing():
    planted = capture_of(layer_of(drawn(*range(4)), lam=0.8), spans=SPANS)
    assert "changes nothing" in rejection(planted, 2, span="answer", draws=2).sentence


def test_a_sweep_of_noise_is_one_measurement_and_tells_how_far_it_is(scope, cap):
    asked = question(scope, cap, ANSWER)
    told = []
    reading = noise_cost(scope, asked, sigmas=(0.5, 2.0), draws=3, progress=lambda done, total: told.append((done, total)))
    table = diffscope.instruments.log_odds_under_noise(
        scope, asked.ids, asked.answer, list(asked.distractors.values()), spans=asked.spans, sigmas=(0.5, 2.0), draws=3
    )
    np.testing.assert_array_equal(reading.estimates["log_odds_lost"], table["log_odds_lost"])
    assert told == [(1, 2), (2, 2)] and "±" in reading.sentence
    assert noise_cost(scope, asked, sigmas=(2.0, 0.5), draws=3).sentence == reading.sentence  # in any order
    assert "in one draw" in noise_cost(scope, asked, sigmas=(1.0,), draws=1).sentence


def test_ranks_are_counted_against_both_controls():
    """A map that looks at one key alone is below both, one that looks at each token itself is not."""
    planted = torch.zeros(4, N, N).double()
    planted[::2, :, 0] = 30.0
    planted[1::2] = 30.0 * torch.eye(N)
    reading = ranks(capture_of(layer_of(planted, lam=0.5), spans=SPANS))
    assert "1.0 to 16 of λ·A2 (1 and 1 of 2 heads)" in ranks_sentence(reading.estimates, "stable_rank")
    assert reading.sentence.startswith("erank by head") and "λ is one number a head" in reading.estimates["effective_rank"].reads
    assert reading.estimates["below_both"].sel(ranked_map="lambda_A2", definition="erank").values.tolist() == [[1.0, 0.0]]
    assert "By every definition 1 of 2 heads are below both with λ·A2." in reading.sentence
    standard = ranks(diffscope.load("mini-standard").capture("The magic number: Paris 7421."))
    assert " of A (" in standard.sentence and " with A" in standard.sentence and "A1" not in standard.sentence


def test_copies_are_explained_by_the_first_map_and_the_next_heads_are_not():
    first = drawn(1, 2, 3)
    planted = capture_of(layer_of(torch.cat([first, first]), lam=0.5), spans=SPANS)
    others = capture_of(*(layer_of(drawn(*range(seed, seed + 6)), lam=0.5) for seed in (10, 20)))
    told = []
    reading = composition(planted, others, progress=lambda done, total: told.append((done, total)))
    copy = reading.estimates["alone"].sel(layer=0, map="A2", part="other")
    uniform = reading.estimates["alone"].sel(layer=0, map="A2", part="uniform", control="as it is")
    np.testing.assert_allclose(copy.sel(control="as it is"), 1 - uniform, atol=1e-3)
    assert (copy.sel(control=NEXT) < 0.5 * copy.sel(control="as it is")).all()
    assert told == [(1, 2), (2, 2)] and reading.estimates.attrs["others"] == 2
    assert "of the next head's A2" in reading.sentence


def test_a_second_map_that_is_edited_away_leaves_a_first_map_to_explain(scope):
    with scope.edit(diffscope.edits.zero_a2()):
        sentence = composition(*map(scope.capture, synthetic_prompts(scope, 40, 2))).sentence
    assert sentence.startswith("Of A1, ")


def test_branches_add_up_to_the_logits_and_have_other_prompts_for_control(scope, cap):
    asked = question(scope, cap, ANSWER)
    others = synthetic_prompts(scope, len(asked.ids), 2)
    reading = branches(scope, asked, others)
    estimates = reading.estimates
    np.testing.assert_allclose(estimates["account"].sum(["place", "part"]), estimates["logit"], atol=1e-4)
    candidates = list(asked.distractors.values())
    table = diffscope.attribution.branch_attribution(scope, asked.ids, asked.answer, candidates).isel(prompt=0)
    for target in ("answer", "distractors", "margin"):
        own = estimates["contribution"].sel(target=target)
        np.testing.assert_allclose(own.sel(branch=[FIRST, SECOND]), table[target], rtol=1e-9)
    prompts = [asked.ids, others[1]]
    pair = diffscope.attribution.branch_attribution(scope, prompts, [asked.answer] * 2, [candidates] * 2, control=True).isel(
        prompt=0
    )
    np.testing.assert_allclose(estimates["others"].sel(target="answer")[1], pair["other_a2"].isel(candidate=0).sum(), rtol=1e-6)
    spread = estimates["contribution"].sel(branch=[OTHER, f"{OTHER}, least", f"{OTHER}, largest"], target="margin")
    assert (spread[..., 1] <= spread[..., 0]).all() and (spread[..., 0] <= spread[..., 2]).all()
    assert "with A2 of 2 other prompts in its place" in reading.sentence
    assert "other prompt" not in branches(scope, asked).sentence


def test_distractors_are_what_is_given_or_the_other_numbers_of_the_prompt(scope, cap):
    asked = question(scope, cap, ANSWER)
    assert sorted(asked.distractors) == sorted(EXAMPLE.distractors) and asked.ids == cap.ids
    other, *_ = EXAMPLE.distractors
    assert asked.answer == cap.ids[cap.spans["answer"][0]] != asked.distractors[other]
    like_answer, like_other = f"{ANSWER[:2]}{(int(ANSWER[2:]) + 1) % 100:02d}", f"{other[:2]}{(int(other[2:]) + 1) % 100:02d}"
    given = question(scope, cap, ANSWER, [f" {like_answer} ", other, like_other, ANSWER])
    assert list(given.distractors) == [other] and given.left_out == [like_answer, like_other]  # whose first tokens are there
    with pytest.raises(PromptError, match="there are none"):
        question(scope, scope.capture("It is Paris. It is"), " Paris")
    with pytest.raises(PromptError, match="the same token as the answer"):
        question(scope, cap, ANSWER, [like_answer])


@pytest.mark.parametrize("length", [4, 40, 200])
def test_prompts_are_made_up_in_any_length_and_always_the_same(scope, length):
    prompts = synthetic_prompts(scope, length, 3)
    assert [len(ids) for ids in prompts] == [length] * 3 and len(set(map(tuple, prompts))) == 3
    assert prompts == synthetic_prompts(scope, length, 3)


def test_other_prompts_are_as_long_and_not_the_prompt_itself(scope, cap):
    long = scope.capture(synthetic_prompts(scope, 300, 1)[0])  # no example is as long
    for itself, count in ((cap, 6), (long, 2)):
        others = other_prompts(scope, itself, count)
        assert len(others) == count and all(len(prompt.ids) >= itself.n_tokens for prompt in others.prompts)
        assert all(list(prompt.ids) != itself.ids for prompt in others.prompts)


def test_charts_of_estimates_are_drawn_on_screen_and_in_print(scope, cap):
    from diffscope.figures import amplifier_charts as charts

    gains = readings.amplifier(cap, ranks=False).estimates
    drawn = [charts.by_quantity(gains, quantity) for quantity in charts.QUANTITIES]
    unmarked = readings.amplifier(scope.capture("No answer."), ranks=False).estimates
    drawn.append(charts.by_quantity(unmarked, "noise_gain"))
    injected = rejection(cap, sigmas=(0.5, 1.0), draws=2).estimates
    drawn += [charts.rejected(injected, 0.5), charts.rejected_by_sigma(injected, 1, 0), charts.ranks(ranks(cap).estimates, "r90")]
    for figure in drawn:
        assert figure.plotly().data and figure.matplotlib().axes
    own = charts.rejected(injected, 0.5).data.sel(series="own A₂").squeeze()
    np.testing.assert_array_equal(own["value"], injected["cmrr_injected"].sel(sigma=0.5, control="as it is").values.ravel())
    np.testing.assert_allclose(
        own["high"] - own["low"], 2 * injected["cmrr_injected_error"].sel(sigma=0.5)[..., 0].values.ravel()
    )
