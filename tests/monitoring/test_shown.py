"""What a monitor has kept, in the terminal and as a figure."""

import json

import numpy as np
import pytest
import torch

import diffscope
from diffscope import DiffscopeError, figures
from diffscope.monitoring import Monitor
from diffscope.monitoring.courses import courses
from tests import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three steps of a model of two layers, whose λ rises in the first."""
    path = tmp_path_factory.mktemp("monitored") / "kept"
    model = tiny.own(hidden_size=32, intermediate_size=32).train()
    monitor = Monitor(model, [tiny.ids(20)], ["lambda", "overlap", "gini"], every=1, budget=None, path=path, strict=True)
    monitor.alert("gini", above=0.0, map="D")
    for step in range(3):
        monitor.step(step, loss=4.0 - step)
        with torch.no_grad():
            model.model.layers[0].self_attn.lambda_q1 += 0.1
    return path


def test_the_terminal_shows_each_layer_with_its_change_and_the_alerts(run, folder):
    code, out, err = run("monitor", str(folder))
    assert code == 0, err
    kept = diffscope.open(folder)
    lam = kept["lambda"].sel(lambda_value="used", layer=0).mean("head").values
    assert f"{lam[-1]:.3f} ({lam[-1] - lam[0]:+.3f})" in out
    assert "step 2, loss 2" in out and "3 earlier alerts" in out and "step 0: gini (D) of L1H3" in out
    assert "averages over prompts, then heads" in out


def test_what_the_first_step_lacks_changes_since_the_one_that_has_it(run, tmp_path):
    model = tiny.own(hidden_size=32, intermediate_size=32).train()
    monitor = Monitor(model, [tiny.ids(20)], ["lambda"], every=1, budget=None, path=tmp_path / "kept", gradients=True)
    optimizer, ids = torch.optim.SGD(model.parameters(), lr=0.1), torch.tensor([tiny.ids(12)])
    monitor.step(0)
    for step in (1, 2):
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        monitor.step(step)
    ratio = diffscope.open(tmp_path / "kept")["gradient_ratio"].sel(layer=1).median("head").values
    _, out, _ = run("monitor", str(tmp_path / "kept"))
    assert np.isnan(ratio[0]) and f"{ratio[2]:.3f} ({ratio[2] - ratio[1]:+.3f})" in out and "nan" not in out


def test_a_mass_is_shown_with_the_span_that_it_is_on(tmp_path):
    model = tiny.own(hidden_size=32, intermediate_size=32)
    for name, spans in {"the sink": None, "the answer": {"answer": [3]}}.items():
        folder = tmp_path / name
        Monitor(model, [tiny.ids(20)], ["span_mass"], spans=spans and [spans], path=folder, strict=True).step(0)
        assert courses(diffscope.open(folder))["span_mass"].attrs["long_name"] == f"share of |D| on {name}"


def test_json_has_every_step(run, folder):
    code, out, _ = run("monitor", str(folder), "--json")
    found = json.loads(out)
    assert code == 0 and found["steps"] == [0, 1, 2] and found["values"]["loss"] == [4, 3, 2]
    gini = diffscope.open(folder)["gini"].sel(map="D").mean("head")
    np.testing.assert_allclose(found["values"]["gini"], gini.values, rtol=1e-6)
    assert found["alerts"][0]["rule"] == "gini D above 0"


def test_a_folder_of_something_else_is_an_error_of_one_line(run, tmp_path):
    code, _, err = run("monitor", str(tmp_path))
    assert code == 2 and "holds no measurements of a training" in err and err.count("\n") == 1


def test_the_figure_of_trainings_draws_it_beside_its_control(folder):
    kept = diffscope.open(folder)
    drawn = figures.training(folder, statistic="overlap", layer=1, head=2)
    own, control = (kept[name].sel(span="irrelevant", layer=1, head=2).values for name in ("overlap", "overlap_control"))
    values = drawn.data["value"].squeeze("panel", drop=True)
    np.testing.assert_allclose(values.sel(series="L1H2"), own)
    np.testing.assert_allclose(values.isel(series=-1), control)
    assert figures.training(kept, statistic="lambda").data.equals(figures.training(folder, statistic="lambda").data)
    with pytest.raises(DiffscopeError, match="lambda"):
        figures.training(folder)
