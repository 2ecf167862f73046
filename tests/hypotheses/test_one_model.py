"""One model: planted truths are found and nothing else, and controls are what they are called."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr

import diffscope
from diffscope.errors import DiffscopeError
from diffscope.evidence import key_sets as spans_of
from diffscope.evidence import last_query, quantities, take
from diffscope.evidence.heads import Table
from diffscope.evidence.last_query import lambda_distance
from diffscope.evidence.untrained import untrained_like
from diffscope.hypotheses import TESTS, Models, Settings, run, summary
from diffscope.models.folders import locate
from diffscope.tasks import Retrieval
from diffscope.tasks.sampling import draw
from studies.laptop.calibration.synthetic import Planted, planted_models
from tests import tiny

FEW = Settings(prompts=6, length=96, needles=2, untrained=3)
NOTHING = ["against", "open"]
EXPECTED = {"NC": ["for"], "SP": NOTHING, "both": ["for"], "own": NOTHING, "number": NOTHING, "neither": NOTHING}
FIRST = ("noise-symmetry", "amplifier")
OTHERS = ("common-mode-injection", "branch-attribution")  # which take longer
CASES = [(truth, FIRST, expected) for truth, expected in EXPECTED.items()] + [
    (truth, OTHERS, EXPECTED[truth]) for truth in ("NC", "own")
]


@pytest.mark.parametrize("truth, tests, expected", CASES, ids=[f"{truth}, {tests[0]}" for truth, tests, _ in CASES])
def test_shared_noise_is_found_where_it_was_planted(tokenizer, truth, tests, expected):
    """λ was trained far away from where it began; the answer is a number, and that is not enough."""
    prompts = draw(Retrieval(tokenizer), 6 if tests == FIRST else 10, 96, 4, 0)
    models = planted_models(Planted(truth, layers=1, lam=0.9), prompts, count=5)
    for verdict in run(tests, model=models):
        assert verdict.verdicts["NC"] in expected and verdict.verdicts["SP"] == "silent", verdict.sentence


def test_models_that_are_no_seeds_of_each_other_are_refused():
    scopes = [diffscope.load(name) for name in ("mini-diff", "mini-diff@0", "mini-standard")]
    assert len(Models.open(scopes[:2], FEW).scopes) == 2
    for chosen, words in (((0, 1, 1), "mini-diff@0 is named twice"), ((0, 2), "not made like")):
        with pytest.raises(DiffscopeError, match=words):
            Models.open([scopes[index] for index in chosen], FEW)


@pytest.mark.parametrize(
    "asked, words",
    [
        ({"prompts": 0}, "prompts are"),
        ({"untrained": -1}, "untrained models are"),
        ({"length": 100.5}, "the length of prompts is"),
        ({"needles": 2.5}, "needles are"),
        ({"seed": -1}, "the seed is"),
        ({"template": 5}, "the template is a sentence"),
        ({"weights": ["a"]}, "not weighted by"),
    ],
)
def test_settings_that_mean_nothing_are_refused(asked, words):
    with pytest.raises(DiffscopeError, match=words):
        Settings(**asked)


@pytest.mark.parametrize("several", [False, True])
def test_models_are_named_by_paths_too(several):
    folder, _ = locate("mini-diff")
    (verdict,) = diffscope.hypotheses.test([folder] if several else folder, tests="sparsity-pair")
    assert "--baseline" in verdict.lacks


def test_sparsity_is_a_measurement(prompts):
    """Cancelled noise leaves a sparser map too."""
    for truth in ("NC", "SP"):
        (verdict,) = run("sparsity", model=planted_models(Planted(truth, layers=1), prompts[:5], count=3))
        assert verdict.estimates["gini"].low > 0 and "cannot tell the accounts apart" in verdict.sentence


def test_controls_are_what_they_are_called(prompts):
    scope = diffscope.load("mini-diff")
    statistics = last_query.read(scope, prompts)
    prompt = prompts[3]
    cap = scope.capture(prompt.ids)
    a1, a2 = (cap.map(name, 1, head, queries=[-1]).values[0] for name, head in (("A1", 0), ("A2", 1)))
    answer = prompt.spans["answer"]
    by_hand = np.abs(a1[answer] - a2[answer]).sum() / (a1[answer] + a2[answer]).sum()
    assert float(statistics.heads["paired_rho"].sel(span="answer")[3, 1, 0]) == pytest.approx(by_hand, rel=1e-4)
    taken = {position for name in ("answer", "needles", "query", "sink") for position in prompt.spans[name]}
    sized = spans_of.sized_spans(prompt, np.random.default_rng(0))
    assert len(sized) == 8 and all(not taken & set(span) and len(span) == len(answer) for span in sized.values())
    before = set(range(answer[0] - len(prompt.spans["query"]), answer[0]))
    assert not any(before & set(span) for span in sized.values())
    (number,) = spans_of.number_spans(prompt)
    assert [prompt.ids[at] for at in number] == prompt.distractors[0] and set(number) < set(prompt.spans["needles"])
    own = cap.map("A2", 1, 0, queries=[-1]).values[0]
    by_hand = np.abs(a1[number] - own[number]).sum() / (a1[number] + own[number]).sum()
    assert float(statistics.heads["number_rho"][3, 1, 0]) == pytest.approx(by_hand, rel=1e-4)
    assert float(statistics.answering[1, 0]) == pytest.approx(
        np.mean([scope.capture(p.ids).map("A1", 1, 0, queries=[-1]).values[0, p.spans["answer"]].sum() for p in prompts]),
        rel=1e-4,
    )


def test_statistics_are_those_that_a_capture_measures(prompts):
    scope = diffscope.load("mini-diff")
    ours = last_query.read(scope, prompts[:2]).heads
    spans = [{name: at for name, at in prompt.spans.items() if name != "sink"} for prompt in prompts[:2]]
    cap = scope.capture([prompt.ids for prompt in prompts[:2]], spans)
    names = [
        "overlap",
        "cosine",
        "js",
        "residual_floor",
        "residual_noise",
        "noise_gain",
        "span_mass",
        "gini",
        "entropy_normalised",
    ]
    theirs = cap.measure(names, queries=[-1]).isel(query=0)
    for name, own in (
        ("residual_floor", "floor"),
        ("residual_noise", "residual"),
        ("js", "js"),
        ("gini", "gini"),
    ):
        common = {"span": ["answer", "needles", "context", "irrelevant"]} if "span" in theirs[name].dims else {}
        np.testing.assert_allclose(ours[own].sel(common).values, theirs[name].sel(common).values, rtol=2e-3, atol=1e-5)
    spans = ["answer", "needles", "context", "irrelevant"]
    np.testing.assert_allclose(
        1 - ours["rho"].sel(span=spans).values, theirs["overlap"].sel(span=spans).values, rtol=2e-3, atol=1e-5
    )
    on = {"span": "irrelevant"}
    a1 = ours["mass"].sel(map="A1", normalisation="raw", **on)
    np.testing.assert_allclose((ours["absolute"].sel(on) / a1).values, theirs["noise_gain"].sel(on).values, rtol=1e-3)
    mass = ours["mass"].sel(span="answer").transpose("prompt", "layer", "head", "map", "normalisation")
    np.testing.assert_allclose(
        mass.values, theirs["span_mass"].sel(span="answer").transpose(*mass.dims).values, rtol=2e-3, atol=1e-6
    )


def test_heads_count_as_they_answer(prompts):
    """Of two heads, one that answers and one that subtracts from the answer, the first decides."""
    values = xr.DataArray(np.array([[[0.5, -3.0]], [[0.7, np.inf]]]), dims=("prompt", "layer", "head"))
    table = Table({"gain": values}, xr.DataArray([[0.9, 0.1]], dims=("layer", "head")))
    assert table.mean("gain").values.tolist() == pytest.approx([0.9 * 0.5 - 0.1 * 3, 0.7])  # what is infinite is left out
    assert table.by_layer("gain").tolist() == pytest.approx([(0.15 + 0.7) / 2])
    apart = table.apart(["gain"])
    assert apart.mean("gain_answering").values.tolist() == pytest.approx([0.5, 0.7])
    assert float(apart.mean("gain_others")[0]) == pytest.approx(-3)


def test_ratios_are_of_sums(prompts):
    """One prompt with next to nothing in A1 decides nothing."""
    statistics = last_query.read(diffscope.load("mini-diff"), prompts)
    gains = quantities.key_gain(statistics)["raw"].mean("prompt")
    d, a1 = (statistics.heads["mass"].sel(map=name, span="answer", normalisation="raw").sum("prompt") for name in ("D", "A1"))
    np.testing.assert_allclose(gains.values, (d / a1 - 1).values, rtol=1e-6)


def test_lambda_that_fits_the_mean_map_is_found():
    """Each prompt's own λ* is far from 0.6; that of the mean over prompts is 0.6, and so is λ."""
    noise = torch.rand(6, 1, 20, generator=torch.Generator().manual_seed(0))
    scale = torch.tensor([0.3, 0.9, 0.4, 0.8, 0.5, 0.7])[:, None, None]
    a2 = torch.full((6, 1, 20), 1 / 20)
    a1 = scale * a2 + (noise - noise.mean(0)) / 50
    everywhere = [torch.ones(20, dtype=torch.bool)] * 6
    stars, distances = lambda_distance([(a1, a2)], [torch.full((6, 1), 0.6)], everywhere)
    assert stars[0] == pytest.approx(0.6, abs=1e-3) and distances.mean() == pytest.approx(0, abs=0.01)
    far = lambda_distance([(a1, a2)], [torch.full((6, 1), 1.2)], everywhere)[1]
    assert far.mean() == pytest.approx(1, abs=0.01)
    standard = torch.full_like(a2, torch.nan)  # a layer without a second map takes no part
    stars, distances = lambda_distance([(a1, a2), (a1, standard)], [torch.full((6, 1), 1.2)] * 2, everywhere)
    assert np.isnan(stars[1]) and distances.tolist() == far.tolist()
    nowhere = [torch.zeros(20, dtype=torch.bool)] * 6
    assert np.isnan(lambda_distance([(a1, a2)], [torch.full((6, 1), 1.2)], nowhere)[1]).all()


def test_untrained_models_are_new_each_as_sharp_as_the_trained_and_have_their_lambda():
    scope = diffscope.load("mini-diff")
    first, again, other = (untrained_like(scope.model, seed) for seed in (1, 1, 2))
    name = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(first.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])
    models = Models.open([scope], replace(FEW, untrained=1))
    lam = models.tables("amplifier")[1][0].values["lam"].mean("prompt").values
    trained = models.evidence("last_query")[0]["amplifier.lam"].mean("prompt").values
    assert lam == pytest.approx(trained, abs=1e-6)
    assert not np.allclose(lam[0], 0.2, atol=0.1)  # where it began
    prompts = models.prompts
    matches = last_query.read(scope, prompts).matches
    read = last_query.read(diffscope.load(untrained_like(scope.model, 5), scope.tokenizer), prompts, matches)
    for layer, wanted in zip(read.matches, matches, strict=True):
        assert torch.allclose(layer.spread, wanted.spread, rtol=1e-3) and torch.equal(layer.lam, wanted.lam)


def test_a_random_model_shows_nothing_and_a_standard_one_is_refused(tokenizer):
    model = tiny.diffllama(maps=4, kv=4, vocab_size=len(tokenizer), num_hidden_layers=1)
    for verdict in run(model=Models.open([diffscope.load(model, tokenizer)], replace(FEW, prompts=5))):
        assert "for" not in verdict.verdicts.values(), verdict.sentence
    standard = run(model=Models.open([diffscope.load("mini-standard")], FEW))
    assert all(verdict.lacks and not verdict.verdicts for verdict in standard)
    by_id = {verdict.test.id: verdict.shown for verdict in standard}
    assert "a differential model" in by_id["noise-symmetry"] and "a trained cohort" in by_id["formation"]
    assert len(standard) == len(TESTS) and "4 not run for want of what they need" in summary(standard)


def test_a_model_that_makes_nothing_of_its_second_map_has_no_low_rank_noise(tokenizer):
    model = tiny.own("v1", heads=2, vocab_size=len(tokenizer), num_hidden_layers=1, fixed_lambda=0.0)
    (verdict,) = run("low-rank-noise", model=Models.open([diffscope.load(model, tokenizer)], FEW))
    assert abs(verdict.estimates["zero"].value) < 1e-5


def test_what_one_test_cannot_do_stops_no_other():
    scope = diffscope.load("mini-diff")
    frozen = diffscope.load(untrained_like(scope.model, 0).requires_grad_(False), scope.tokenizer)
    flow, sparse = run(["information-flow", "sparsity"], model=Models.open([frozen], FEW))
    assert "takes no gradient" in flow.lacks and flow.shown.startswith("needs ") and sparse.estimates


def test_a_part_of_the_evidence_is_taken_once_and_of_few_prompts_if_it_takes_long(monkeypatch):
    calls = []

    def count(scope, prompts, match=None):
        calls.append((scope.name, match is None, len(prompts)))
        return {"previous.a1": xr.DataArray(np.zeros((len(prompts), 3, 2)), dims=("prompt", "layer", "head"))}

    monkeypatch.setitem(take.PARTS, "previous", replace(take.PARTS["previous"], measure=count))
    models = Models.open([diffscope.load("mini-diff")], replace(FEW, weights="answer"))
    for _ in range(2):
        models.tables("previous")
    assert calls == [("mini-diff", True, 6)] + [(f"untrained {index}", False, 5) for index in range(3)]
