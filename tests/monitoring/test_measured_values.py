"""What a monitor returns and keeps are the numbers of a capture of the saved model."""

import json

import numpy as np
import pytest
import xarray as xr

import diffscope
from diffscope import DiffscopeError, DiffscopeWarning, QuerySample
from diffscope.monitoring import Monitor
from tests import tiny

STATISTICS = ["lambda", "overlap", "entropy", "sink_mass", "logit_outliers"]
MODELS = {"diffllama": tiny.diffllama, "own": tiny.own, "llama": lambda: tiny.standard("llama")}


@pytest.fixture
def model():
    return tiny.own(hidden_size=32, intermediate_size=32).train()


@pytest.mark.parametrize("kind", MODELS)
def test_logged_and_kept_values_are_those_of_a_capture_of_the_saved_checkpoint(kind, tmp_path):
    model = MODELS[kind]().train()
    prompts = [tiny.ids(30, 1), tiny.ids(30, 2), tiny.ids(18, 3)]
    monitor = Monitor(model, prompts, statistics=STATISTICS, queries=10, path=tmp_path / "kept", per_head=True, strict=True)
    logged = monitor.step(0)
    model.save_pretrained(tmp_path / "checkpoint")
    scope = diffscope.load(tmp_path / "checkpoint", family=diffscope.load(model).family)
    captures = [scope.capture([prompt]) for prompt in prompts]  # a sample is of prompts of one length
    tables = [diffscope.average(cap.measure(STATISTICS, queries=QuerySample(10)), "query") for cap in captures]
    expected = diffscope.average(xr.concat(tables, "prompt", combine_attrs="drop_conflicts"), "prompt")
    kept = diffscope.open(tmp_path / "kept").isel(step=0)
    for name in STATISTICS:
        np.testing.assert_allclose(kept[name], expected[name].transpose(*kept[name].dims), rtol=1e-6, atol=1e-7)
    entropy = expected["entropy"].sel(map="A1", layer=1)
    assert logged["diffscope/entropy_A1/layer_1/head_2"] == pytest.approx(float(entropy.sel(head=2)), rel=1e-6)
    assert logged["diffscope/entropy_A1/layer_1/mean"] == pytest.approx(float(entropy.mean()), rel=1e-6)
    largest = expected["logit_outliers"].sel(outlier="top_1", layer=0)
    assert logged["diffscope/logit_outliers/layer_0"] == pytest.approx(float(largest), rel=1e-6)
    assert ("diffscope/lambda/layer_0/mean" in logged) == (kind != "llama")  # what is undefined is left out


def test_a_layer_is_logged_with_its_least_and_largest_head(model):
    monitor = Monitor(model, [tiny.ids(20)], statistics=["overlap"], queries=None)
    logged = monitor.step(0)
    cap = diffscope.load(model).capture(tiny.ids(20))
    heads = cap.measure(["overlap"])["overlap"].sel(span="irrelevant", layer=1).mean("query")
    for end, value in (("mean", heads.mean()), ("min", heads.min()), ("max", heads.max())):
        assert logged[f"diffscope/overlap/layer_1/{end}"] == pytest.approx(float(value), rel=1e-6)


@pytest.mark.parametrize("per_head", [False, True])
def test_no_name_is_the_folder_of_another(model, per_head):
    names = Monitor(model, [tiny.ids(20)], per_head=per_head).step(0)
    assert not [name for name in names if any(other.startswith(f"{name}/") for other in names)]


def test_the_control_of_overlap_has_the_second_map_of_another_head(model):
    monitor = Monitor(model, [tiny.ids(20)], statistics=["overlap"], queries=None, per_head=True)
    logged = monitor.step(0)
    cap = diffscope.load(model).capture(tiny.ids(20))
    a1, a2 = cap.map("A1", layer=0, head=2).values, cap.map("A2", layer=0, head=3).values  # (query, key)
    keys = cap.key_sets["irrelevant"]
    one, other = a1[:, keys], a2[:, keys]
    total = (one + other).sum(-1)
    shares = 2 * np.minimum(one, other).sum(-1)[total > 0] / total[total > 0]
    assert logged["diffscope/overlap_control/layer_0/head_2"] == pytest.approx(shares.mean(), rel=1e-5)


def test_heads_without_another_second_map_have_no_control():
    model = tiny.own(heads=1)
    assert "diffscope/overlap_control/layer_0/mean" not in Monitor(model, [tiny.ids(20)], statistics=["overlap"]).step(0)


def test_it_measures_early_and_every_so_many_steps(model):
    monitor = Monitor(model, [tiny.ids(9)], statistics=["lambda"], every=4, steps=(1, 2), budget=None)
    assert [step for step in range(10) if monitor.step(step)] == [0, 1, 2, 4, 8]
    assert not monitor.step(8)  # again, as a loop that accumulates gradients says it


def test_what_fails_is_told_once_and_the_training_goes_on(model, capsys):
    monitor = Monitor(model, [tiny.ids(9)], every=1)
    model.model.layers[0].self_attn.subln.forward = lambda x: x
    with pytest.warns(DiffscopeWarning, match="step 0 could not be measured") as told:
        assert [monitor.step(step) for step in range(3)] == [{}, {}, {}]
    assert len(told) == 1
    monitor.strict = True
    with pytest.raises(DiffscopeError):
        monitor.step(3)


@pytest.mark.parametrize(
    "wrong, words",
    [
        (dict(statistics=["cmrr"]), "has no average"),
        (dict(statistics=["lamda"]), "did you mean"),
        (dict(statistics=[]), "at least one"),
        (dict(every=0), "whole numbers from 1"),
        (dict(steps=[-1]), "whole numbers from 0"),
        (dict(budget=0), "above 0"),
        (dict(queries="last"), "queries= takes whole numbers from 2, and not 'last'"),
    ],
)
def test_what_cannot_be_monitored_is_refused_at_once(model, wrong, words):
    with pytest.raises(DiffscopeError, match=words):
        Monitor(model, [tiny.ids(9)], **wrong)


def test_a_scope_is_not_the_model_that_is_trained(model):
    with pytest.raises(DiffscopeError, match="not a Scope; of a scope give scope.model"):
        Monitor(diffscope.load(model), [tiny.ids(9)])


def test_numbers_of_the_training_are_kept_beside_them(model, tmp_path):
    monitor = Monitor(model, [tiny.ids(9)], statistics=["lambda"], every=2, path=tmp_path / "kept", budget=None, steps=())
    for step in range(5):
        monitor.step(step, loss=5 - step)
    kept = diffscope.open(tmp_path / "kept")
    assert kept["loss"].values.tolist() == [5, 3, 1] and kept["step"].values.tolist() == [0, 2, 4]
    assert (kept["seconds"] > 0).all() and json.loads(kept.attrs["alerts"]) == []
