"""Tests of hypotheses find what was planted and nothing else, judge by the rules they declared, and say what they need."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr
from scipy import stats

import diffscope
from diffscope import edits
from diffscope.cli import main
from diffscope.errors import DiffscopeError
from diffscope.hypotheses import TESTS, Asked, Pair, Subject, board, gather, report, run, together
from diffscope.hypotheses.declared import checkpoints, cohort, information_flow, one_model
from diffscope.hypotheses.declared import pair as of_pair
from diffscope.hypotheses.evidence import last_query
from diffscope.hypotheses.evidence.answers import answers
from diffscope.hypotheses.evidence.flows import noise_ranks
from diffscope.hypotheses.inference import Estimate, Observed, estimate, holm
from diffscope.hypotheses.planted import Planted, PlantedSubject
from diffscope.hypotheses.planted import planted_cohort as cohort_of
from diffscope.hypotheses.rules import ABOVE, ALIKE, BELOW, FAR, NONE, OPEN, Missing, Quantity, Test, judge, state
from diffscope.hypotheses.subjects import anew
from diffscope.lab.scoring import draw, exact_answers
from diffscope.models.loading import BUNDLED
from diffscope.store import save_statistics
from diffscope.tasks import Retrieval
from tests import tiny

FEW = Asked(prompts=10, length=128, needles=2, untrained=4)


def of(value, low, high, null=(-1.0, 1.0), p=0.01):
    return Estimate(value, low, high, *null, p, 10, 1, 5, "")


# Inference


def test_a_spread_that_is_rounding_is_none():
    values = np.array([[0.1, 0.2], [0.2, 0.1], [0.15, 0.15]])
    assert estimate(Observed(values)).p == 0.25 and estimate(Observed(values, np.full(4, 0.15))).p == 1


def test_a_seed_without_values_is_left_out():
    values = np.array([[1.0, 3.0], [np.nan, np.nan], [2.0, 4.0]])
    assert estimate(Observed(values)).seeds == 2


def test_several_seeds_are_students_t_over_their_means():
    values = np.array([[1.0, 3.0], [2.0, 4.0], [5.0, 7.0]])
    found, wanted = estimate(Observed(values)), stats.ttest_1samp([2.0, 3.0, 6.0], 0)
    interval = wanted.confidence_interval()
    assert (found.value, found.p) == pytest.approx((11 / 3, wanted.pvalue))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high)) and (found.seeds, found.prompts) == (3, 2)


def test_one_seed_is_a_permutation_of_signs():
    found = estimate(Observed(np.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])))
    assert found.p == pytest.approx(2 / 64) and found.low > 0 and found.value == 3.5  # two of 2^6 signs are as far out
    assert estimate(Observed(np.array([[-1.0, 1.0]]))).p == 1


def test_p_against_untrained_models_is_uniform_where_nothing_was_trained():
    rng = np.random.default_rng(0)
    p = [estimate(Observed(np.full((1, 2), rng.normal()), rng.normal(size=5))).p for _ in range(400)]
    assert stats.kstest(p, "uniform").pvalue > 0.01
    seeds = estimate(Observed(np.array([[3.0, 3.0], [4.0, 4.0]]), np.array([0.0, 1.0, 2.0, 1.0])))
    wanted = stats.ttest_ind([3, 4], [0, 1, 2, 1], equal_var=False)
    assert seeds.p == pytest.approx(wanted.pvalue)
    assert 3.5 - seeds.null_high == pytest.approx(wanted.confidence_interval().low)  # one t says both


@pytest.mark.parametrize(
    "observed, why",
    [
        (Observed(np.full((1, 5), np.nan)), "fewer than two prompts"),
        (Observed(np.array([[1.0, np.nan]])), "fewer than two prompts"),
        (Observed(np.ones((1, 5)), np.array([1.0, np.nan, 2.0])), "fewer than three untrained"),
    ],
)
def test_what_cannot_be_estimated_is_nan_and_says_why(observed, why):
    found = estimate(observed)
    assert np.isnan([found.value, found.low, found.p]).all() and why in found.why
    assert state(found, found.p, 0.1) == OPEN


def test_holm_by_hand():
    assert holm([0.01, 0.04, float("nan"), 0.03]) == pytest.approx([0.03, 0.06, np.nan, 0.06], nan_ok=True)


# Rules


@pytest.mark.parametrize(
    "found, p, expected",
    [
        (of(0.5, 0.3, 0.7), 0.01, ABOVE),
        (of(0.5, 0.3, 0.7), 0.06, FAR),
        (of(0.5, 0.3, 0.7, null=(0.8, 1.0)), 0.01, FAR),  # untrained models have more of it
        (of(0.5, -0.1, 1.1), 0.01, OPEN),
        (of(0.5, 0.3, 0.7, null=(0.4, 0.5)), 0.01, FAR),  # and hardly less
        (of(0.05, 0.01, 0.09), 0.01, NONE),  # there, and too small to matter
        (of(0.05, 0.01, 0.09), 0.06, ALIKE),
        (of(0.15, 0.05, 0.25), 0.01, ABOVE),
        (of(-0.5, -0.7, -0.3), 0.01, BELOW),
    ],
)
def test_states(found, p, expected):
    assert state(found, p, 0.1) == expected


@pytest.mark.parametrize(
    "states, expected",
    [
        ((ABOVE, ABOVE), "NC"),
        ((NONE, ABOVE), "neither"),
        ((ALIKE, ABOVE), "neither"),
        ((FAR, ABOVE), "inconclusive"),  # there, but no more than without training
        ((BELOW, ABOVE), "neither"),
        ((OPEN, ABOVE), "inconclusive"),
        ((ABOVE, BELOW), "neither"),
        ((OPEN, OPEN), "inconclusive"),
    ],
)
def test_a_verdict_follows_from_states(states, expected):
    assert judge(one_model.NOISE_SYMMETRY, dict(zip(("sharing", "difference"), states))) == expected


def test_both_and_no_prediction():
    quantities, wanted = {"x": Quantity("x", 1.0)}, {"x": ABOVE}
    said = dict(claim="", source="", statistic="", controls=(), quantities=quantities, needs="model")
    assert judge(Test(id="a", predictions={"NC": wanted, "SP": wanted}, **said), {"x": ABOVE}) == "both"
    assert judge(Test(id="b", predictions={}, **said), {"x": ABOVE}) == "neither"


@pytest.mark.parametrize("test", TESTS.values(), ids=lambda test: test.id)
def test_what_is_declared_is_whole(test):
    assert (
        test.claim
        and test.source
        and test.statistic
        and test.controls
        and test.needs in ("model", "pair", "checkpoints", "cohort")
    )
    assert set(test.predictions) <= {"NC", "SP"} and all(
        set(wanted) <= set(test.quantities) for wanted in test.predictions.values()
    )
    assert all(quantity.margin > 0 for quantity in test.quantities.values()) and test.rule


# One model


@pytest.fixture(scope="module")
def prompts():
    return draw(Retrieval(diffscope.load("mini-diff").tokenizer), 10, 128, 2, 0)


FOUND = {"NC": ["NC"], "SP": ["neither"], "both": ["NC"], **dict.fromkeys(("own", "neither"), ["neither", "inconclusive"])}


@pytest.mark.parametrize("truth, expected", FOUND.items(), ids=FOUND)
def test_noise_symmetry_finds_shared_noise_where_it_was_planted(prompts, truth, expected):
    subject = PlantedSubject(Planted(truth, layers=2), prompts, count=5)
    (verdict,) = run(["noise-symmetry"], subject)
    assert verdict.verdict in expected, verdict.sentence


def test_a_lambda_that_is_fixed_has_learned_nothing():
    """λ = 1 of maps at random is near λ*, and so it was before any training."""
    tokenizer = diffscope.load("mini-diff").tokenizer
    model = tiny.own("v1", vocab_size=len(tokenizer), fixed_lambda=1.0)
    (verdict,) = run(["lambda-star"], Subject([diffscope.load(model, tokenizer)], FEW))
    assert verdict.verdict == "needs a model that learns its λ: this one's is fixed"


def test_models_that_are_no_seeds_of_each_other_are_refused():
    scopes = [diffscope.load(name) for name in ("mini-diff", "mini-diff@1036", "mini-standard")]
    assert len(Subject(scopes[:2], FEW).scopes) == 2
    for some, words in (((0, 0), "named twice"), ((0, 2), "not made like")):
        with pytest.raises(DiffscopeError, match=words):
            Subject([scopes[i] for i in some], FEW)


def test_sparsity_cannot_tell_the_accounts_apart(prompts):
    """Why the board says so: cancelled noise leaves a sparser map too."""
    for truth in ("NC", "SP"):
        (verdict,) = run(["sparsity"], PlantedSubject(Planted(truth, layers=2), prompts, count=5))
        assert verdict.verdict == "SP" and "cannot tell the accounts apart" in verdict.sentence


def test_controls_are_what_they_say(prompts):
    scope = diffscope.load("mini-diff")
    found = last_query.read(scope, prompts)
    cap = scope.capture(prompts[3].ids)
    a1, a2 = (cap.map(name, 1, head, queries=[-1]).values[0] for name, head in (("A1", 0), ("A2", 1)))
    at = prompts[3].spans["answer"]
    by_hand = np.abs(a1[at] - a2[at]).sum() / (a1[at] + a2[at]).sum()
    assert float(found.paired["rho"].sel(span="answer")[3, 1, 0]) == pytest.approx(by_hand, rel=1e-4)
    taken = {p for name in ("answer", "needles", "query", "sink") for p in prompts[3].spans[name]}
    spans = last_query.sized_spans(prompts[3], np.random.default_rng(0))
    assert len(spans) == 8 and all(not taken & set(span) and len(span) == len(at) for span in spans.values())
    before = set(range(at[0] - len(prompts[3].spans["query"]), at[0]))
    assert not any(before & set(span) for span in spans.values())


def test_untrained_models_are_new_each_and_as_sharp_as_the_trained(prompts):
    scope = diffscope.load("mini-diff")
    one, again, other = (anew(scope.model, seed) for seed in (1, 1, 2))
    name = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(one.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(one.state_dict()[name], other.state_dict()[name])
    subject = Subject([scope], Asked(prompts=10, length=128, needles=2, untrained=1))
    trained, (random,) = subject.readings[0].spreads, subject.untrained
    for layer, wanted in zip(random.spreads, trained):
        assert torch.allclose(layer, wanted, rtol=1e-3)


def test_a_random_model_shows_nothing_and_a_standard_one_is_refused():
    tokenizer = diffscope.load("mini-diff").tokenizer
    for attention in ("v1", "diffllama"):
        model = tiny.own("v1", vocab_size=len(tokenizer)) if attention == "v1" else tiny.diffllama(vocab_size=len(tokenizer))
        verdicts = run((), Subject([diffscope.load(model, tokenizer)], FEW))
        for one in verdicts:
            assert one.verdict in ("inconclusive", "neither") or one.verdict.startswith("needs "), one.sentence
    standard = run((), Subject([diffscope.load("mini-standard")], FEW))
    assert all(one.verdict.startswith("needs ") for one in standard)
    assert "a differential model" in standard[0].verdict and "a trained cohort" in standard[-1].verdict
    assert f"{len(TESTS)} not run" in together(standard)


# A pair, checkpoints


def test_a_pair_is_the_difference_of_its_models():
    scopes = [diffscope.load(name) for name in ("mini-diff", "mini-standard")]
    asked = Asked(prompts=10, length=128, needles=2, untrained=3)
    pair = Pair(*(Subject([scope], asked) for scope in scopes))
    prompt, found = pair.diff.prompts[4], of_pair.key_token_gain(pair)["share"]
    shares = []
    for scope in scopes:
        cap = scope.capture(prompt.ids)
        places = [(layer.layer, head) for layer in cap.layers for head in range(layer.n_heads)]
        shares.append(
            np.mean([cap.map("share", *place, queries=[-1]).values[0, prompt.spans["answer"]].sum() for place in places])
        )
    assert found.values[0, 4] == pytest.approx(shares[0] - shares[1], abs=1e-5)
    assert found.values.shape == (1, 10) and found.untrained.shape == (3,)
    (turned,) = run(["sinks"], pair=Pair(pair.standard, pair.diff))
    assert turned.verdict == "needs a differential model beside the standard one"


def test_growth_over_checkpoints_is_what_was_planted(prompts):
    """Maps that share their noise ever more, and such that never do."""

    class Step(Planted):
        def read(self, prompts, seed):
            return PlantedSubject(Planted("NC" if seed > 2 else "neither", layers=2), prompts, seeds=[seed]).readings[0]

    subject = PlantedSubject(Step("neither", layers=2), prompts, seeds=range(5), count=20)
    subject.scopes = [SimpleNamespace(name=f"m@{step}") for step in (0, 10, 50, 200, 800)]
    (grows,) = run(["noise-symmetry-training"], checkpoints=[subject])
    assert grows.verdict == "NC", grows.sentence
    flat = PlantedSubject(Planted("neither", layers=2), prompts, seeds=range(5), count=20)
    flat.scopes = subject.scopes
    (still,) = run(["noise-symmetry-training"], checkpoints=[flat])
    assert still.verdict in ("inconclusive", "neither"), still.sentence
    steps = np.log2(1 + np.array([0.0, 10, 50]))
    assert checkpoints.growth(steps, (2 * steps)[:, None]) == pytest.approx(2 * steps[-1])


class Tables(PlantedSubject):
    """A planted subject with tables that were taken already."""

    def of_each(self, take, what):
        return self.tables


def test_a_pull_towards_shared_noise_is_found_and_so_is_its_opposite(prompts):
    planted = Planted("neither", layers=2)
    null = [planted.flows(prompts, 0.0, 100 + i) for i in range(20)]
    for pull, expected in ((0.4, ["NC"]), (-0.4, ["neither"]), (0.0, ["inconclusive", "neither"])):
        series = Tables(planted, prompts)
        series.scopes, series.tables = [SimpleNamespace(name=f"m@{i}") for i in range(4)], None
        series.tables = [planted.flows(prompts, pull, i) for i in range(4)], null
        (verdict,) = run(["gradient-dynamics"], checkpoints=[series])
        assert verdict.verdict in expected, verdict.sentence


def test_lambda_is_looked_at_where_the_circuit_has_formed(monkeypatch):
    """Not at the first checkpoint, nor at the last: at the first that answers."""
    series = Subject([diffscope.load(name) for name in ("mini-diff@0", "mini-diff@1036", "mini-diff")], FEW)
    series.scopes[2].name = "mini-diff@2000"
    right = {"mini-diff@0": 0.0, "mini-diff@1036": 0.95, "mini-diff@2000": 1.0}
    monkeypatch.setattr(checkpoints, "answers", lambda scope, prompts: SimpleNamespace(right=np.full(10, right[scope.name])))
    found = checkpoints.lambda_formed(series)["distance"]
    wanted = one_model.lambda_distance(series.readings[1])["distance"].mean("head").mean("layer")
    assert found.values[0] == pytest.approx(wanted.values) and len(found.untrained) == 1
    right["mini-diff@1036"] = right["mini-diff@2000"] = 0.9
    (lacking,) = run(["lambda-star-formation"], checkpoints=[series])
    assert lacking.verdict == "needs a checkpoint with more than 90% exact answers to these prompts"


def test_trainings_have_untrained_models_of_their_own_and_each_keeps_one():
    names = [str(BUNDLED / name) for name in ("mini-diff", "mini-diff")]
    one, other = gather(names, needs={"checkpoints"}, prompts=10).checkpoints
    steps = len(one.scopes)
    assert one.series and one.asked.first == 0 and other.asked.first == one.asked.untrained == 3 * steps
    one.readings = other.readings = [SimpleNamespace(spreads=i) for i in range(steps)]
    weights = [
        [scope.model.lm_head.weight[5, 0].item() for _, _, scope, _ in series.at_random(each)]
        for series, each in ((one, 1), (other, 1), (one, steps))
    ]
    assert len({*weights[0], *weights[1]}) == 6 * steps
    assert [len({*weights[2][i : i + steps]}) for i in range(0, 3 * steps, steps)] == [1, 1, 1] and len({*weights[2]}) == 3
    assert [spreads for *_, spreads in one.at_random(steps)] == [*range(steps)] * 3


def test_trainings_that_are_left_out_are_counted(monkeypatch):
    def observe(series):
        if series:
            raise Missing("a checkpoint that answers")
        return {"distance": Observed(np.array([[1.0, 2.0]]), np.arange(3.0))}

    found = board._of_trainings(observe, [0, 1, 0])["distance"]
    assert found.values.shape == (2, 2) and found.untrained.tolist() == [0, 1, 2, 0, 1, 2]
    assert found.note == "1 of 3 trainings are left out, for want of a checkpoint that answers"
    with pytest.raises(Missing):
        board._of_trainings(observe, [1, 1])


# What is changed, lost and drawn on


def test_answers_are_those_of_the_model_and_of_its_edits(prompts):
    scope = diffscope.load("mini-diff")
    found, edited = answers(scope, prompts), answers(scope, prompts, edits.zero_a2())
    assert found.right.tolist() == exact_answers(scope.model, prompts).astype(float).tolist()
    ids = torch.tensor([prompts[2].ids + prompts[2].answer])
    with torch.no_grad():
        logits = scope.model(ids).logits[0, -len(prompts[2].answer) - 1 : -1]
    assert found.loss[2] == pytest.approx(
        float(torch.nn.functional.cross_entropy(logits, ids[0, -len(prompts[2].answer) :])), abs=1e-5
    )
    assert edited.loss.mean() > found.loss.mean() + 1


def test_ranks_of_the_noise_are_those_of_the_map(prompts):
    scope = diffscope.load("mini-diff")
    found = noise_ranks(scope, prompts[:2])
    noise = scope.capture(prompts[1].ids).map("lambda_A2", 2, 1).values
    sigma = np.linalg.svd(noise.astype(np.float64), compute_uv=False)
    p = sigma / sigma.sum()
    assert float(found["erank"][1, 2, 1]) == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-3)
    assert float(found["erank_over"].mean()) < 0  # permuting keys takes away what rows share


def test_a_model_that_makes_nothing_of_its_second_map_has_no_low_rank_noise():
    tokenizer = diffscope.load("mini-diff").tokenizer
    model = tiny.own("v1", vocab_size=len(tokenizer), fixed_lambda=0.0)
    subject = Subject([diffscope.load(model, tokenizer)], FEW)
    (verdict,) = run(["low-rank-noise"], subject)
    assert verdict.verdict == "neither" and verdict.states["zero"] == NONE
    (refused,) = run(["low-rank-noise"], Subject([diffscope.load("mini-standard")], FEW))
    assert refused.verdict == "needs a differential model: this one is standard attention"


def test_what_one_test_cannot_do_stops_no_other():
    scope = diffscope.load("mini-diff")
    frozen = diffscope.load(anew(scope.model, 0).requires_grad_(False), scope.tokenizer)
    flow, sparse = run(["information-flow", "sparsity"], Subject([frozen], FEW))
    assert "takes no gradient" in flow.verdict and flow.verdict.startswith("needs ") and sparse.estimates


def test_the_answer_is_knocked_out_and_not_its_surroundings(prompts):
    scope, prompt = diffscope.load("mini-diff"), prompts[1]
    total, by_layer = information_flow._knock_out(scope, [prompt])
    queries = [len(prompt.ids) - 1, len(prompt.ids)]
    with scope.edit(edits.knock_out(prompt.spans["answer"], queries)):
        assert scope.capture(prompt.ids).map("A1", 1, 0, queries=[-1]).values[0, prompt.spans["answer"]].sum() == 0
    assert len(prompt.answer) == 2 and total[0] > 1 and by_layer.max() > 0.05 and len(by_layer) == 4


def test_what_is_taken_of_each_model_is_taken_once(prompts):
    calls = []

    def take(scope, prompts, spreads):
        calls.append((scope.name, spreads is None, len(prompts)))
        return scope.name

    subject = Subject([diffscope.load("mini-diff")], FEW)
    assert subject.of_each(take, "names") == subject.of_each(take, "names")
    assert calls == [("mini-diff", True, 10)] + [(f"untrained {i}", False, 10) for i in range(4)]


# A cohort


@pytest.fixture
def planted_cohort():
    """Five seeds of arms whose rates of exact answers are known."""
    rng, rates = np.random.default_rng(0), {"standard": 0.6, "diff": 0.9, "half-width": 0.9, "signed": 0.6, "double-width": 0.6}
    lengths, distractors = [128, 256, 512], [0, 4, 8, 16]
    shape = (len(rates), 5, len(lengths), len(distractors), 400)
    shown = rng.random(shape) < np.array(list(rates.values()))[:, None, None, None, None]
    coords = {"arm": list(rates), "seed": range(5), "length": lengths, "distractors": distractors, "step": [25, 200]}
    dataset = xr.Dataset({"exact_match": (("arm", "seed", "length", "distractors", "prompt"), shown.astype(float))}, coords)
    dataset["formation"] = ("arm", "seed"), np.where(np.array(list(rates.values()))[:, None] > 0.8, 25.0 + np.arange(5), np.nan)
    dataset["finished"] = ("arm", "seed"), np.ones((len(rates), 5), dtype=int)
    return dataset


def test_a_gap_that_closes_and_one_that_remains(planted_cohort):
    closes, remains, lacking, formed = run(["half-width", "signed-mask", "gated", "formation"], cohort=planted_cohort)
    assert (closes.verdict, remains.verdict) == ("SP", "NC")
    assert lacking.verdict == "needs a cohort with the arm 'gated'"
    assert formed.estimates["standard"].value == 173 and formed.verdict == "NC"


def test_effects_of_distractors_and_of_length_are_found_apart(planted_cohort):
    rng = np.random.default_rng(1)
    cells = planted_cohort["exact_match"].sel(arm=["standard", "diff"])
    distractors, length = cells["distractors"] / 16, np.log2(cells["length"])
    benefit = 1.5 * (distractors - distractors.mean()) - 0.75 * (length - length.mean())
    logit = xr.where(cells["arm"] == "diff", benefit, 0.0).broadcast_like(cells)
    answers = (rng.random(cells.shape) < 1 / (1 + np.exp(-logit.transpose(*cells.dims).values))).astype(float)
    found = cohort.distractors_length(xr.Dataset({"exact_match": cells.copy(data=answers)}))
    assert float(found["distractors"].values.mean()) == pytest.approx(1.5, abs=0.4)
    assert float(found["length"].values.mean()) == pytest.approx(-0.75, abs=0.2)
    assert abs(float(found["both"].values.mean())) < 0.5
    full = answers.copy()
    full[:, :, :, 0] = 1  # nothing can show where all is right
    with pytest.raises(DiffscopeError, match="neither arm"):
        cohort.distractors_length(xr.Dataset({"exact_match": cells.copy(data=np.ones_like(answers))}))
    again = cohort.distractors_length(xr.Dataset({"exact_match": cells.copy(data=full)}))
    assert float(again["distractors"].values.mean()) == pytest.approx(1.5, abs=0.6)


def test_faithfulness_is_signal_detection():
    said = np.zeros((2, 2, 2, 1, 99))  # arm, seed, question, distractors, prompt
    said[1, :, 1, 0, :80] = 1  # DIFF says "unknown" to 80 of 99 unanswerable questions, and to no others
    coords = {"arm": ["standard", "diff"], "seed": [0, 1], "question": ["answerable", "unanswerable"]}
    dataset = xr.Dataset({"says_unknown": (("arm", "seed", "question", "distractors", "prompt"), said)}, coords)
    found, rare, often = cohort.faithfulness(dataset), stats.norm.ppf(0.5 / 100), stats.norm.ppf(80.5 / 100)
    assert found["d"].values.ravel() == pytest.approx([often - rare] * 2)
    assert found["c"].values.ravel() == pytest.approx([(often + rare) / 2 - rare] * 2)


def test_arms_that_never_form_count_in_the_log_rank():
    never, early, ever = np.full(4, 850.0), np.array([100.0, 125, 150, 175]), np.ones(4, dtype=bool)
    found = cohort.log_rank(never, early, ~ever, ever)
    assert found.value > 2 and found.p == pytest.approx(2 / 70)  # the most extreme of the ways to choose 4 of 8, both sides
    assert cohort.log_rank(early, never, ever, ~ever).value == pytest.approx(-found.value)
    assert cohort.log_rank(never, never, ~ever, ~ever).value == 0


def test_the_best_k_is_chosen_by_the_other_seeds():
    rates = {"standard": [0.5] * 3, "diff": [0.5] * 3, "top-2": [0.9, 0.1, 0.1], "top-8": [0.4, 0.4, 0.4]}
    shown = np.array(list(rates.values()))[:, :, None, None, None] * np.ones((4, 3, 1, 2, 5))
    coords = {"arm": list(rates), "seed": range(3), "length": [128], "distractors": [0, 4]}
    found = cohort.top_k(xr.Dataset({"exact_match": (("arm", "seed", "length", "distractors", "prompt"), shown)}, coords))
    assert found["own"].values[:, 0] == pytest.approx([-0.1, -0.4, -0.4])  # top-2 is best with seed 0, which does not choose


def test_a_seed_with_one_arm_is_left_out_of_distractors_and_length():
    whole = cohort_of("NC", 4, 1.0)
    partly = whole.copy(deep=True)
    partly["exact_match"].loc[{"arm": "standard", "seed": 3}] = np.nan
    found, wanted = cohort.distractors_length(partly), cohort.distractors_length(whole.isel(seed=slice(3)))
    assert found["distractors"].values == pytest.approx(wanted["distractors"].values) and len(found["distractors"].values) == 3


@pytest.mark.parametrize("truth, expected", [("NC", "NC"), ("SP", "SP"), ("neither", None)])
def test_planted_cohorts_are_told_apart(truth, expected):
    ids = ["half-width", "signed-mask", "top-k", "distractors-length"]
    for one in run(ids, cohort=cohort_of(truth, 8, 1.5, spread=0.2)):
        if expected:
            assert one.verdict == expected, one.sentence
        else:
            assert one.verdict in ("inconclusive", "neither"), one.sentence


def test_the_mixed_model_agrees_with_the_seeds_own_slopes():
    found = cohort.distractors_length(cohort_of("NC", 5, 1.0))
    for name in ("distractors", "length"):
        own, mixed = float(found[name].values.mean()), found[f"mixed_{name}"]
        assert abs(own - mixed.value) < 0.4 and mixed.low < mixed.value < mixed.high
    assert found["mixed_distractors"].p < 1e-4


# The command


def test_the_command_shows_keeps_and_refuses(planted_cohort, tmp_path, capsys):
    planted_cohort.attrs["recipe"] = json.dumps({"grid": {"template": " {city} {number}."}})
    save_statistics(planted_cohort, tmp_path / "cohort.nc", dated=False)
    command = ["test", "half-width", "top-k", "--cohort", str(tmp_path)]
    assert main([*command, "--json", "--out", str(tmp_path / "board.md")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["verdict"] for one in said["tests"]] == ["SP", "needs a cohort with an arm of top-k"]
    assert said["tests"][0]["estimates"]["gap"]["state"] == "none" and said["tests"][0]["rule"]
    assert "| half-width | SP |" in (tmp_path / "board.md").read_text()
    assert main([*command, "--out", str(tmp_path / "board.html")]) == 0
    shown = capsys.readouterr().out
    assert "half-width" in shown and "Of 2 tests: 1 as sparsification predicts" in shown
    assert main(["test", "--list"]) == 0 and "noise-symmetry" in capsys.readouterr().out
    for arguments, words in (
        (["test", "nothing", "--model", "mini-diff"], "no test 'nothing'"),
        (["test"], "nothing to test"),
        (["test", "--cohort", str(tmp_path / "nowhere")], "holds no cohort.nc"),
        (["test", "--model", "mini-diff", "--out", "board.pdf"], "as '.pdf'"),
        (["test", "sparsity", "--all", "--model", "mini-diff"], "--all is all tests"),
    ):
        assert main(arguments) == 2
        assert words in capsys.readouterr().err


def test_the_page_escapes_what_it_shows(planted_cohort):
    verdicts = run(["gated", "half-width"], cohort=planted_cohort)
    (first, second) = verdicts
    shown = report.page([replace(first, verdict="needs <b>bold</b>"), replace(second, sentence="a <i>claim</i>")], "<script>")
    assert "<b>bold" not in shown and "&lt;b&gt;bold" in shown and "<i>" not in shown and "<script>" not in shown
