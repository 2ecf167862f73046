"""A model is after a measurement what it was before: also in the middle of a step, and if the measurement failed."""

import copy

import pytest
import torch
from torch import nn

from diffscope import DiffscopeWarning
from diffscope.monitoring import Monitor
from tests import tiny

IDS = torch.tensor([tiny.ids(24, seed) for seed in (1, 2)])  # (prompt, token)
MODELS = {"diffllama": tiny.diffllama, "own": tiny.own, "llama": lambda: tiny.standard("llama")}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")


@pytest.fixture(params=MODELS)
def model(request):
    """A model in the middle of accumulating gradients, with a module in evaluation mode, a frozen weight and a hook."""
    model = MODELS[request.param]().train()
    list(model.modules())[3].eval()
    next(model.parameters()).requires_grad_(False)
    list(model.modules())[2].register_forward_hook(lambda *_: None)
    model(IDS).logits.sum().backward()
    return model


def state(model):
    """What a training has to do with: the objects and their values."""
    return {
        "modes": [part.training for part in model.modules()],
        "hooks": [list(getattr(part, kind)) for part in model.modules() for kind in HOOKS],
        "attributes": [sorted(vars(part)) for part in model.modules()],
        "buffers": [(id(buffer), buffer.tolist()) for buffer in model.buffers()],
        "weights": [(id(each), each._version, each.requires_grad, each.tolist()) for each in model.parameters()],
        "gradients": [(id(each.grad), each.grad.tolist()) for each in model.parameters() if each.grad is not None],
        "config": copy.deepcopy(vars(model.config)),
        "generator": torch.get_rng_state().tolist(),
        "torch": (torch.is_grad_enabled(), torch.get_num_threads(), torch.get_default_dtype()),
    }


def assert_same(after, before):
    for what, value in before.items():
        assert after[what] == value, what


def test_a_measurement_in_the_middle_of_a_step_leaves_no_trace(model):
    monitor = Monitor(model, IDS, every=1, budget=None, queries=8, strict=True)
    before = state(model)
    assert monitor.step(0)
    assert_same(state(model), before)


def test_a_measurement_that_fails_leaves_no_trace(model):
    monitor = Monitor(model, IDS, every=1, budget=None, queries=8)

    def fail(*_):
        raise RuntimeError("planted")

    [part for part in model.modules() if isinstance(part, nn.Linear)][-2].register_forward_hook(fail)
    before = state(model)
    with pytest.warns(DiffscopeWarning, match="planted"):
        assert monitor.step(0) == {}
    assert_same(state(model), before)
