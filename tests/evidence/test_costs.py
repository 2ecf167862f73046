"""What heads and second maps cost the answer, and heads weighted by that."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

import diffscope
from diffscope import edits
from diffscope.errors import DiffscopeError, Missing
from diffscope.evidence import run_file, runs
from diffscope.evidence.ablations import answers
from diffscope.evidence.costs import lost_without_a2, lost_without_heads
from diffscope.evidence.heads import Table
from diffscope.hypotheses import Models, Settings, run
from diffscope.hypotheses.board import Estimates
from diffscope.hypotheses.measure import cost_of
from diffscope.hypotheses.sentence import cost_in_words
from diffscope.hypotheses.statistics import Estimate, Sample, estimate
from diffscope.hypotheses.stored import open_checkpoints, open_runs
from diffscope.hypotheses.subjects import cost_by_layer
from diffscope.hypotheses.tests import TESTS
from diffscope.hypotheses.verdict import Verdict
from diffscope.storage.atomic import to_json

FEW = Settings(prompts=5, length=96, untrained=2)


@pytest.fixture(scope="module")
def scope():
    return diffscope.load("mini-diff")


@pytest.fixture(scope="module")
def models(scope):
    """The bundled model beside untrained ones; each part of the evidence is taken once for all tests."""
    return Models.open([scope], FEW)


def test_costs_are_rises_of_the_loss_and_falls_of_the_log_odds(scope, prompts):
    before = answers(scope, prompts[:2])
    heads = lost_without_heads(scope, prompts[:2])
    without = answers(scope, prompts[:2], edits.ablate_heads(layers=0, heads=1))
    np.testing.assert_allclose(heads.sel(measure="loss")[0, 1], without.loss - before.loss)
    np.testing.assert_allclose(heads.sel(measure="log_odds")[0, 1], before.log_odds - without.log_odds)
    a2 = lost_without_a2(scope, prompts[:2]).sel(measure="loss")
    for where, edit in (("alone", edits.zero_a2(layers=0, heads=0)), ("layer_together", edits.zero_a2(layers=0))):
        cost = a2[where][0, 0] if where == "alone" else a2[where][0]
        np.testing.assert_allclose(cost, answers(scope, prompts[:2], edit).loss - before.loss)
    np.testing.assert_allclose(a2["of_head"].sum("head"), a2["layer_together"], atol=1e-9)  # two heads: Shapley values
    assert float(a2["layer_together"][0].mean()) > 3 > 0.5 > abs(a2["layer_together"][1:].mean("prompt")).max()


def test_a_standard_layer_has_no_second_map_to_lose(prompts):
    a2 = lost_without_a2(diffscope.load("mini-standard"), prompts[:1])
    assert a2["alone"].isnull().all() and a2["layer_together"].isnull().all() and a2["together"].isnull().all()


def test_idle_heads_come_out_idle_and_working_ones_not(scope, models):
    """In mini-diff A2 works in layer 0, and the answer is read in layers 1 and 2."""
    by_cost, by_answer = models.a2_cost, Models.open([scope], replace(FEW, weights="answer")).a2_cost
    assert by_cost.of == "A2" and by_cost.low > 2
    assert abs(by_answer.value) < 0.5 < by_cost.value
    assert Models.open([diffscope.load("mini-standard")], FEW).a2_cost is None


def test_the_kept_cohort_by_what_its_heads_cost(laptop_runs):
    """Of the shipped study's runs; by A1's mass on the answer beside it, as it was published."""
    paths = sorted((laptop_runs / "laptop/diff").glob(f"seed-*/{run_file.EVIDENCE}"))
    models = open_runs(paths)
    board = run(["amplifier", "common-mode-injection", "sparsity"], model=models)
    found = {verdict.test.id: verdict.estimates for verdict in board}
    expected = {
        ("amplifier", "lam"): ((1.076, 0.953, 1.200), (0.483, 0.360, 0.606)),
        ("amplifier", "floor_itself"): ((0.987, 0.980, 0.993), (0.968, 0.954, 0.982)),
        ("common-mode-injection", "over_paired"): ((-0.072, -0.246, 0.102), (-0.030, -0.092, 0.033)),
        ("sparsity", "gini"): ((-0.129, -0.186, -0.072), (-0.046, -0.065, -0.028)),
    }
    for (test, quantity), (first, second) in expected.items():
        of = found[test][quantity]
        assert (of.value, of.low, of.high) == pytest.approx(first, abs=6e-4), quantity
        assert of.by_answer == pytest.approx(second, abs=6e-4) and of.weighted_by == "knock-out" and len(of.layers) == 3
        assert not of.untrained  # their heads were kept by A1's mass alone
    gain = found["amplifier"]["noise_gain"]  # over a mass that was not kept
    assert np.isnan(gain.value) and "was not kept head by head" in gain.why and gain.by_answer[0] == pytest.approx(5.26, abs=0.01)
    cost = models.a2_cost
    by_layer = np.mean([cost_by_layer(end, cost.of) for end in models.evidence("knock_out")], 0)
    assert cost.of == "whole heads" and cost.low > 5 and by_layer[0] > 10 > 1 > by_layer[1]
    assert open_runs(paths, weights="answer").a2_cost.value < 0.5
    alone = open_checkpoints(paths[5]).a2_cost
    assert alone.low < alone.value < alone.high
    with pytest.raises(Missing, match="weight heads by knock-out"):
        open_runs(paths, weights="a2").tables("shared_noise")


def test_ratios_are_of_weighted_sums_and_not_means_of_ratios():
    """A head that hardly looks at what is divided by has a ratio without a bound."""
    heads = ("layer", "head")
    mass = xr.DataArray([[1e-4, 0.8]], dims=heads)
    costs = xr.DataArray([[3.0, 1.0]], dims=heads)
    values = {
        "signal": xr.DataArray([[[50.0, 0.9]]], dims=("prompt", *heads)),
        "noise": xr.DataArray([[[2.0, 1.0]]], dims=("prompt", *heads)),
    }
    table = Table(
        values | {"gain": values["noise"] - values["signal"]},
        mass,
        costs,
        {"signal": mass, "noise": costs * 0 + 1},
        {"gain": ("noise", "signal")},
    )
    signal = (3 * 1e-4 * 50 + 0.8 * 0.9) / (3e-4 + 0.8)
    assert table.mean("signal").item() == pytest.approx(signal)
    assert table.mean("gain").item() == pytest.approx((3 * 2 + 1) / 4 - signal)
    assert table.by_answer("noise").item() == pytest.approx((2e-4 + 0.8) / (1e-4 + 0.8))
    unknown = replace(table, over={"signal": None})
    assert np.isnan(unknown.mean("signal").item()) and unknown.by_answer("signal").item() > 0
    idle = replace(table, costs=costs / 100)  # of a layer that costs nothing what its heads cost is chance
    assert float(idle.by_layer("noise")[0]) == pytest.approx(1.5)


def test_heads_of_untrained_models_count_as_those_of_the_trained(scope, models):
    (trained,), untrained = models.tables("sparser")
    assert all(table.costs is models.costs[0] for table in (trained, *untrained))
    costs = models.costs[0].values
    gini = models.evidence("last_query")[0]["sparser.gini"].transpose("prompt", "layer", "head").values
    np.testing.assert_allclose(trained.mean("gini"), (gini * costs).sum((1, 2)) / costs.sum(), rtol=1e-6)
    (by_a2,), _ = Models.open([scope], replace(FEW, weights="a2")).tables("sparser")
    expected = models.evidence("a2_out")[0]["a2_out.loss"].mean("few").clip(min=0)
    np.testing.assert_allclose(by_a2.costs, expected)
    with pytest.raises(DiffscopeError, match="not weighted by 'mass'"):
        Settings(weights="mass")


def test_a_verdict_says_how_heads_were_weighted_and_is_read_again(laptop_runs):
    paths = sorted((laptop_runs / "laptop/diff").glob(f"seed-*/{run_file.EVIDENCE}"))
    (first,), (second,) = (run("sparsity", model=open_runs(paths, weights)) for weights in ("knock-out", "answer"))
    assert "weighted by what the answer's loss rises by without each" in first.statistic
    assert "weighted by A1's mass on the answer" in second.statistic and second.statistic != first.statistic
    for verdict in (first, second):
        record = verdict.as_dict()
        again = Verdict.from_dict(record, TESTS)
        assert again.statistic == verdict.statistic and again.estimates["gini"].by_answer == verdict.estimates["gini"].by_answer


def test_new_evidence_keeps_what_a2_costs(tmp_path, tokenizer, monkeypatch):
    for name, value in (("PROMPTS", 4), ("FEW", 2), ("DISTRACTORS", (4,)), ("LENGTH", 96), ("TEXTS", 2)):
        monkeypatch.setattr(runs, name, value)
    folder = tmp_path / "diff" / "seed-0"
    shutil.copytree(diffscope.models.folders.locate("mini-diff")[0], folder, ignore=shutil.ignore_patterns("checkpoints"))
    monkeypatch.setattr(runs, "UNTRAINED", 2)
    path = runs.store_run(folder, seed=0, arm="diff")
    models, stored = open_runs([path]), run_file.open_evidence(path)
    assert models.a2_cost.of == "A2" and models.a2_cost.value > 1
    assert cost_by_layer(models.evidence("a2_out")[0], "A2")[0] > 3
    assert np.isfinite(models.tables("amplifier")[0][0].mean("gain")).all()
    _, untrained = models.tables("rejected_noise")
    assert len(untrained) == 2 and "over_paired" in untrained[0].values
    by_layer = stored["null_by_layer"].sel(quantity="rejected_noise.over_paired")[1, -1, 0].values
    costs = stored["end_value"].sel(end_quantity="knock_out.loss")[0].clip(min=0).sum("head").values
    assert untrained[1].mean("over_paired").item() == pytest.approx(np.average(by_layer, weights=costs), rel=1e-4)
    assert np.isfinite(open_runs([folder / run_file.EVIDENCE], weights="a2").tables("sparser")[0][0].mean("gini")).all()


def test_the_second_view_is_of_the_same_seeds():
    values = np.array([[1.0], [2.0], [np.nan]])
    of = estimate(Sample(values, by_answer=np.array([[3.0], [5.0], [np.nan]]), prompts="nested"))
    assert isinstance(of, Estimate) and of.by_answer[0] == 4 and of.value == 1.5


@pytest.mark.parametrize("weights", ["knock-out", "answer"])
def test_heads_of_a_layer_without_a2_do_not_count_in_what_a2_costs(weights):
    places = ("few", "layer", "head")

    def model(first, second):
        variables = {
            "knock_out.loss": (places, [[[1.0, 1.0], [5.0, 5.0]]]),
            "a2_out.loss": (places, [[[first, second], [np.nan, np.nan]]]),
            "weight": (places[1:], [[0.2, 0.2], [0.9, 0.9]]),
        }
        return xr.Dataset(variables, attrs={"differential": 1, "extras": "", "prompts": ""})

    cost = Models([model(4.0, 2.0), model(6.0, 4.0)], ["a", "b"], weights=weights).a2_cost
    assert cost.value == pytest.approx(4.0) and cost.of == "A2"


def _of_one_layer_with_a2(prompts, weight):
    """A model of two layers, of which the first has a second map that costs 2 nats; `weight` of its heads."""
    places = ("few", "layer", "head")
    variables = {
        "a2_out.loss": (places, [[[2.0, 2.0], [np.nan, np.nan]]] * prompts),
        "weight": (places[1:], [[weight, weight], [0.9, 0.9]]),
    }
    return xr.Dataset(variables, attrs={"differential": 1, "extras": "", "prompts": ""})


def test_what_a2_costs_in_heads_that_do_not_count_is_not_known():
    """And not 0, by which A2 would be idle and every account silent."""
    assert Models([_of_one_layer_with_a2(3, 0.0)], ["a"], weights="answer").a2_cost is None


def test_of_a_single_prompt_a2_costs_something_without_an_interval():
    cost = cost_of(Models([_of_one_layer_with_a2(1, 0.2)], ["a"], weights="answer"))
    assert cost.value == 2.0 and np.isnan([cost.low, cost.high]).all() and cost_in_words(cost) == "2 nats"
    nothing = {name: Estimate(*[0.0] * 6, 1, 1, 0, "") for name in TESTS["noise-symmetry"].quantities}
    (verdict,) = run("noise-symmetry", finished={"noise-symmetry": Estimates(nothing, cost)})
    assert Verdict.from_dict(json.loads(to_json(verdict.as_dict())), TESTS).sentence == verdict.sentence


def test_evidence_that_one_of_several_models_lacks_is_missing():
    table = xr.DataArray(np.ones((2, 1, 1)), dims=("prompt", "layer", "head"))
    attrs = {"differential": 1, "extras": "", "prompts": ""}
    whole, lacking = (xr.Dataset({f"{label}.gini": table}, attrs=attrs) for label in ("sparser", "sparsity_of_maps"))
    with pytest.raises(Missing, match="does not hold"):
        Models([whole, lacking], ["a", "b"], weights="answer").tables("sparser")
