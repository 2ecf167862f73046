"""The gradients of the two branches, against those that autograd gives directly."""

import gc
from functools import partial

import numpy as np
import pytest
import torch
from torch.optim import optimizer as of_torch

import diffscope
from diffscope import DiffscopeError, DiffscopeWarning
from diffscope.monitoring import Monitor, monitors
from tests import tiny
from tests.layouts import megatron, ports, unilm

PROMPT = tiny.ids(20)
BATCHES = [tiny.ids(12, seed=1), tiny.ids(12, seed=2)]


def watched(model, path=None, **more):
    return Monitor(model, [PROMPT], ["lambda"], every=1, budget=None, strict=True, gradients=True, path=path, **more)


def a_step(model, optimizer, batches=BATCHES):
    """One step of the optimizer on accumulated gradients, and what they were by name."""
    for ids in batches:
        ids = torch.tensor([ids])
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    optimizer.step()
    optimizer.zero_grad()
    return gradients


def direct(gradients, layer, first, second, width, keys=True):
    """The norm of the rows of some maps over that of others; without `keys` of queries alone."""
    names = [f"model.layers.{layer}.self_attn.{name}_proj.weight" for name in ("qk" if keys else "q")]
    squares = [
        sum(gradients[name].unflatten(0, (-1, width))[maps].square().sum((1, 2)) for name in names) for maps in (first, second)
    ]
    return (squares[0] / squares[1]).sqrt().numpy()


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    "make, maps, keys",
    [
        (tiny.diffllama, ([0, 1, 2, 3], [4, 5, 6, 7]), True),  # the maps of a head stand H apart
        (tiny.own, ([0, 2, 4, 6], [1, 3, 5, 7]), True),  # next to each other
        (lambda: tiny.own("v2"), ([0, 2, 4, 6], [1, 3, 5, 7]), False),  # keys are of both branches
    ],
)
def test_the_ratio_is_that_of_the_gradients_of_each_heads_rows(make, maps, keys, checkpointing, tmp_path):
    model = make().train()
    if checkpointing:
        model.activation_checkpointing_enable()
    monitor = watched(model, tmp_path / "kept")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    assert "diffscope/gradient_ratio/layer_0/mean" not in monitor.step(0)  # nothing was learned yet
    for step in (1, 2):
        gradients = a_step(model, optimizer)
        values = monitor.step(step)
        width = gradients["model.layers.0.self_attn.q_proj.weight"].shape[0] // 8
        expected = np.stack([direct(gradients, layer, *maps, width, keys) for layer in (0, 1)])
        kept = diffscope.open(tmp_path / "kept")["gradient_ratio"]
        np.testing.assert_allclose(kept.sel(step=step).transpose("layer", "head"), expected, rtol=1e-5)
        assert values["diffscope/gradient_ratio/layer_1/mean"] == pytest.approx(np.median(expected[1]), rel=1e-5)
    assert np.isnan(kept.sel(step=0)).all()


@pytest.mark.parametrize("by_name", [False, True])
def test_gradients_that_are_made_in_a_closure_are_those_of_the_same_step(by_name):
    model = tiny.own().train()
    monitor = watched(model, per_head=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gradients = {}

    def closure(ids):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        gradients.update({name: parameter.grad.clone() for name, parameter in model.named_parameters()})

    for step, ids in enumerate(BATCHES):
        of_batch = partial(closure, torch.tensor([ids]))
        optimizer.step(closure=of_batch) if by_name else optimizer.step(of_batch)
        values = monitor.step(step)
        width = gradients["model.layers.0.self_attn.q_proj.weight"].shape[0] // 8
        expected = direct(gradients, 0, [0, 2, 4, 6], [1, 3, 5, 7], width)
        found = [values[f"diffscope/gradient_ratio/layer_0/head_{head}"] for head in range(4)]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("make", [unilm.tiny, ports.nanowell, megatron.tiny, lambda: tiny.diffllama(8, 4)])
def test_the_rows_of_every_head_are_found_in_other_families(make):
    assert not watched(make())._gradients.reasons


def test_it_is_forgotten_with_its_monitor():
    def hooks():
        return [len(of_torch._global_optimizer_pre_hooks), len(of_torch._global_optimizer_post_hooks)]

    before = hooks()
    monitor = watched(tiny.own().train())
    assert hooks() == [number + 1 for number in before]
    del monitor
    gc.collect()
    assert hooks() == before


def test_weights_that_nothing_trains_have_none_and_that_is_said():
    model = tiny.own().train()
    model.requires_grad_(False)
    model.lm_head.weight.requires_grad_(True)
    monitor = watched(model)
    monitor.step(0)
    a_step(model, torch.optim.SGD([model.lm_head.weight], lr=0.1))
    with pytest.warns(DiffscopeWarning, match="of the branches of layers 0 and 1 are not known: no optimizer of torch.optim"):
        assert not [name for name in monitor.step(1) if "gradient" in name]


def test_layers_that_nothing_trains_are_named():
    model = tiny.own().train()
    model.model.layers[0].requires_grad_(False)
    monitor = watched(model)
    monitor.step(0)
    a_step(model, torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1))
    with pytest.warns(DiffscopeWarning, match="of the branches of layer 0 are not known: .* or they are frozen"):
        assert {name.split("/")[2] for name in monitor.step(1) if "gradient" in name} == {"layer_1"}


def test_a_second_branch_without_a_gradient_is_no_frozen_one():
    model = tiny.own().train()
    monitor = watched(model)
    monitor.step(0)
    for name in ("q_proj", "k_proj"):
        getattr(model.model.layers[1].self_attn, name).weight.register_hook(torch.zeros_like)
    a_step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.warns(DiffscopeWarning, match=r"of layer 1 are not known: the gradient of A2 is 0 \(as when λ is 0\)"):
        assert {name.split("/")[2] for name in monitor.step(1) if "gradient" in name} == {"layer_0"}


def test_one_branch_has_nothing_to_compare():
    with pytest.raises(DiffscopeError, match="its attention has one branch"):
        watched(tiny.standard("llama"))


def test_a_rule_may_be_of_it():
    model = tiny.own().train()
    monitor = watched(model)
    monitor.alert("gradient_ratio", above=0.0)
    monitor.step(0)
    a_step(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    assert monitor.step(1)["diffscope/alerts"] == 8
    with pytest.raises(DiffscopeError, match="is not measured here"):
        Monitor(model, [PROMPT], ["lambda"]).alert("gradient_ratio", above=1)


def test_a_process_that_does_not_measure_takes_the_rule_as_the_first_does(monkeypatch):
    monkeypatch.setattr(monitors, "_first_process", lambda: False)
    monitor = watched(tiny.own().train())
    monitor.alert("gradient_ratio", above=0.0)
    assert monitor.step(0) == {}
