"""One model: planted truths are found and nothing else, and controls are what they are called."""

import numpy as np
import pytest
import torch

import diffscope
from diffscope.errors import DiffscopeError
from diffscope.hypotheses import TESTS, Models, Settings, run, summary
from diffscope.hypotheses.evidence import last_query
from diffscope.hypotheses.planted import Planted, PlantedModels
from diffscope.hypotheses.subjects import untrained_like
from tests import tiny

FEW = Settings(prompts=10, length=128, needles=2, untrained=4)
EXPECTED = {
    "NC": ["NC"],
    "SP": ["neither"],
    "both": ["NC"],
    "own": ["neither", "inconclusive"],
    "neither": ["neither", "inconclusive"],
}


@pytest.mark.parametrize("truth, expected", EXPECTED.items(), ids=EXPECTED)
def test_noise_symmetry_finds_shared_noise_where_it_was_planted(prompts, truth, expected):
    (verdict,) = run("noise-symmetry", model=PlantedModels(Planted(truth, layers=2), prompts, count=5))
    assert verdict.verdict in expected, verdict.sentence


def test_a_lambda_that_is_fixed_has_learned_nothing(tokenizer):
    """λ = 1 of maps at random is near λ*, and so it was before any training."""
    model = tiny.own("v1", vocab_size=len(tokenizer), fixed_lambda=1.0)
    (verdict,) = run("lambda-star", model=Models([diffscope.load(model, tokenizer)], FEW))
    assert verdict.verdict == "needs a model that learns its λ: this one's is fixed"


def test_models_that_are_no_seeds_of_each_other_are_refused():
    scopes = [diffscope.load(name) for name in ("mini-diff", "mini-diff@1036", "mini-standard")]
    assert len(Models(scopes[:2], FEW).scopes) == 2
    for chosen, words in (((0, 0), "named twice"), ((0, 2), "not made like")):
        with pytest.raises(DiffscopeError, match=words):
            Models([scopes[index] for index in chosen], FEW)


def test_sparsity_is_a_measurement(prompts):
    """Cancelled noise leaves a sparser map too."""
    for truth in ("NC", "SP"):
        (verdict,) = run("sparsity", model=PlantedModels(Planted(truth, layers=2), prompts, count=5))
        assert verdict.estimates["gini"].low > 0 and "cannot tell the accounts apart" in verdict.sentence


def test_controls_are_what_they_are_called(prompts):
    scope = diffscope.load("mini-diff")
    statistics = last_query.read(scope, prompts)
    prompt = prompts[3]
    cap = scope.capture(prompt.ids)
    a1, a2 = (cap.map(name, 1, head, queries=[-1]).values[0] for name, head in (("A1", 0), ("A2", 1)))
    answer = prompt.spans["answer"]
    by_hand = np.abs(a1[answer] - a2[answer]).sum() / (a1[answer] + a2[answer]).sum()
    assert float(statistics.paired["rho"].sel(span="answer")[3, 1, 0]) == pytest.approx(by_hand, rel=1e-4)
    taken = {position for name in ("answer", "needles", "query", "sink") for position in prompt.spans[name]}
    spans = last_query.sized_spans(prompt, np.random.default_rng(0))
    assert len(spans) == 8 and all(not taken & set(span) and len(span) == len(answer) for span in spans.values())
    before = set(range(answer[0] - len(prompt.spans["query"]), answer[0]))
    assert not any(before & set(span) for span in spans.values())


def test_untrained_models_are_new_each_and_as_sharp_as_the_trained():
    scope = diffscope.load("mini-diff")
    first, again, other = (untrained_like(scope.model, seed) for seed in (1, 1, 2))
    name = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(first.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])
    models = Models([scope], Settings(prompts=10, length=128, needles=2, untrained=1))
    for layer, wanted in zip(models.untrained[0].spreads, models.last_queries[0].spreads, strict=True):
        assert torch.allclose(layer, wanted, rtol=1e-3)


def test_a_random_model_shows_nothing_and_a_standard_one_is_refused(tokenizer):
    for model in (tiny.own("v1", vocab_size=len(tokenizer)), tiny.diffllama(vocab_size=len(tokenizer))):
        for verdict in run(model=Models([diffscope.load(model, tokenizer)], FEW)):
            assert verdict.shown.partition(" ")[0] in ("inconclusive", "neither", "measured", "needs"), verdict.sentence
    standard = run(model=Models([diffscope.load("mini-standard")], FEW))
    assert all(verdict.verdict.startswith("needs ") for verdict in standard)
    assert "a differential model" in standard[0].verdict and "a trained cohort" in standard[-1].verdict
    assert f"{len(TESTS)} not run" in summary(standard)


def test_a_model_that_makes_nothing_of_its_second_map_has_no_low_rank_noise(tokenizer):
    model = tiny.own("v1", vocab_size=len(tokenizer), fixed_lambda=0.0)
    (verdict,) = run("low-rank-noise", model=Models([diffscope.load(model, tokenizer)], FEW))
    assert abs(verdict.estimates["zero"].value) < 1e-5


def test_what_one_test_cannot_do_stops_no_other():
    scope = diffscope.load("mini-diff")
    frozen = diffscope.load(untrained_like(scope.model, 0).requires_grad_(False), scope.tokenizer)
    flow, sparse = run(["information-flow", "sparsity"], model=Models([frozen], FEW))
    assert "takes no gradient" in flow.verdict and flow.verdict.startswith("needs ") and sparse.estimates


def test_what_is_measured_of_each_model_is_measured_once():
    calls = []

    def take(scope, prompts, spreads):
        calls.append((scope.name, spreads is None, len(prompts)))
        return scope.name

    models = Models([diffscope.load("mini-diff")], FEW)
    assert models.measure_each(take) == models.measure_each(take)
    assert calls == [("mini-diff", True, 10)] + [(f"untrained {index}", False, 10) for index in range(4)]
