import json
import math

import pytest
import torch
import xarray as xr

import diffscope
from diffscope import DiffscopeError, DiffscopeWarning
from diffscope.monitoring import Monitor
from diffscope.monitoring.alerts import Rule
from tests import tiny


@pytest.fixture
def model():
    return tiny.own(hidden_size=32, intermediate_size=32).train()


@pytest.fixture
def monitor(model, tmp_path):
    return Monitor(model, [tiny.ids(20)], every=1, budget=None, strict=True)


def set_lambda(model, value):
    """Let λ of every head of layer 0 be a value, by the parameters it is learned by."""
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        for name, parameter in attention.named_parameters():
            if "lambda" in name:
                parameter.zero_()
        first = [parameter for name, parameter in attention.named_parameters() if name in ("lambda_q1", "lambda_k1")]
        root = math.sqrt(math.log(value - attention.lambda_init + 1) / first[0].shape[-1])
        for parameter in first:
            parameter.fill_(root)


def test_a_lambda_beyond_its_bounds_is_told_once_until_it_is_back(monitor, model, capsys):
    assert monitor.step(0)["diffscope/alerts"] == 0
    set_lambda(model, 3.0)
    assert monitor.step(1)["diffscope/alerts"] > 0
    assert monitor.step(2)["diffscope/alerts"] == 0
    assert "step 1: lambda (used) of L0H0 is 3, above 2" in capsys.readouterr().err
    set_lambda(model, 1.0)
    monitor.step(3)
    set_lambda(model, 2.5)
    assert monitor.step(4)["diffscope/alerts"] > 0


def test_a_value_that_is_not_defined_is_not_back_within_the_bounds():
    rule = Rule("gini", above=2.0)
    steps = enumerate([3.0, 3.0, math.nan, 3.0, 1.0, 3.0])
    by_step = {step: xr.Dataset({"gini": (("layer", "head"), [[value]])}, {"layer": [0]}) for step, value in steps}
    assert [step for step, by_head in by_step.items() if rule.check(step, by_head)] == [0, 5]


def test_logits_that_grow_tenfold_are_told(monitor, model):
    monitor.step(0)
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight *= 20
    monitor.step(1)
    assert [(alert.step, "L1" in alert.text) for alert in monitor.alerts] == [(1, True)]
    assert "has grown from" in monitor.alerts[0].text


def test_small_logits_may_grow(monitor, model):
    projections = [layer.self_attn.q_proj for layer in model.model.layers]
    with torch.no_grad():
        for step, times in enumerate((0.001, 20.0)):
            for projection in projections:
                projection.weight *= times
            monitor.step(step)
    assert not monitor.alerts


def test_a_head_whose_d_is_zero_is_told(monitor, model):
    attention = model.model.layers[0].self_attn
    set_lambda(model, 1.0)
    with torch.no_grad():
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight.zero_()  # both maps are uniform, and cancel
    monitor.step(0)
    assert any(alert.text.startswith("noise_gain (irrelevant) of L0H0 is") for alert in monitor.alerts)


def test_weights_that_are_not_numbers_are_told_and_end_nothing(monitor, model, capsys):
    monitor.strict = False
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.fill_(math.nan)
    with pytest.warns(DiffscopeWarning, match="could not be measured"):
        monitor.step(0)
    monitor.step(1)
    assert [alert.rule for alert in monitor.alerts] == ["not finite"]


def test_a_rule_of_ones_own(monitor, model):
    monitor.alert("gini", above=-1.0, map="D")
    assert monitor.step(0)["diffscope/alerts"] == 8  # two layers of four heads
    assert monitor.alerts[0].rule == "gini D above -1"
    with pytest.raises(DiffscopeError, match="needs a bound"):
        monitor.alert("gini")
    with pytest.raises(DiffscopeError, match="is not measured here"):
        monitor.alert("cosine", above=1)
    with pytest.raises(DiffscopeError, match="go together"):
        monitor.alert("gini", times=10)
    with pytest.raises(DiffscopeError, match="label"):
        monitor.alert("gini", above=1, maps="D")


def test_a_rule_may_be_of_a_label_that_is_a_number(model):
    monitor = Monitor(model, [tiny.ids(20)], ["top_k_mass"], every=1, budget=None, strict=True)
    monitor.alert("top_k_mass", below=2.0, map="A1", k=1)
    assert monitor.step(0)["diffscope/alerts"] == 8
    assert monitor.alerts[0].rule == "top_k_mass A1 1 below 2" and "top_k_mass (A1, 1) of L0H0 is" in monitor.alerts[0].text


def test_a_model_that_computes_no_numbers_is_told_once_and_kept(model, tmp_path):
    monitor = Monitor(model, [tiny.ids(20)], ["lambda", "entropy"], every=1, budget=None, path=tmp_path / "kept")
    monitor.step(0, loss=3.0)
    with torch.no_grad():
        for name, parameter in model.model.layers[-1].self_attn.named_parameters():
            if "lambda" in name:
                parameter.fill_(1e3)  # whose exponentials are infinite, and their difference no number
    with pytest.warns(DiffscopeWarning, match="step 1 could not be measured"):
        assert monitor.step(1, loss=math.nan) == {"diffscope/alerts": 1.0}
    assert monitor.step(2, loss=math.nan) == {"diffscope/alerts": 0.0}
    kept = diffscope.open(tmp_path / "kept")
    assert kept["step"].values.tolist() == [0, 1, 2]
    assert [step for step, *_ in json.loads(kept.attrs["alerts"])] == [1]
    assert "computes values that are not finite" in kept.attrs["alerts"]
    assert kept["entropy"].sel(step=1).isnull().all() and kept["entropy"].sel(step=0).notnull().any()


def test_outputs_that_overflow_are_told_though_averages_leave_them_out(model, tmp_path):
    prompts = [tiny.ids(20), tiny.ids(12)]  # which run one after the other
    kept = {"every": 1, "budget": None, "path": tmp_path / "kept", "strict": True}
    monitor = Monitor(model, prompts, ["logit_outliers"], **kept)
    assert monitor.step(0)["diffscope/alerts"] == 0
    with torch.no_grad():
        model.model.layers[-1].mlp.down_proj.weight *= 1e38
        model.model.layers[-1].mlp.up_proj.weight *= 1e3
    assert monitor.step(1)["diffscope/alerts"] == 1
    assert monitor.alerts[0].text == "outputs of a layer are infinite"
    assert Monitor(model, prompts, ["logit_outliers"], **kept).step(2)["diffscope/alerts"] == 0  # that is known


def test_a_loss_that_was_infinite_is_no_reason_to_say_nothing_of_the_model(model, tmp_path):
    def go_on(step, loss):
        monitor = Monitor(model, [tiny.ids(20)], ["lambda"], every=1, budget=None, path=tmp_path / "kept")
        return monitor.step(step, loss=loss)["diffscope/alerts"]

    assert go_on(0, math.inf) == 0
    with torch.no_grad():
        model.model.layers[-1].self_attn.lambda_q1.fill_(math.nan)
    with pytest.warns(DiffscopeWarning, match="step 1 could not be measured"):
        assert go_on(1, math.nan) == 1
    with pytest.warns(DiffscopeWarning, match="step 2 could not be measured"):
        assert go_on(2, math.nan) == 0  # of the model it was told


def test_a_training_that_is_resumed_is_not_told_what_was_told(model, tmp_path):
    def go_on(*steps):
        monitor = Monitor(model, [tiny.ids(20)], every=1, budget=None, path=tmp_path / "kept", strict=True)
        for step in steps:
            monitor.step(step)
        return {alert.step for alert in monitor.alerts}

    set_lambda(model, 3.0)
    assert go_on(0, 1) == {0}
    assert go_on(2, 3) == set()
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight *= 20
    assert go_on(4) == {4}  # logits that have grown since a step of an earlier process
    assert go_on(5) == set()
