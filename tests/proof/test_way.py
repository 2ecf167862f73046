"""What a proof in float32 holds for is told on every device, and by everything that a module computes with."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import diffscope
from diffscope.proof.way import Way
from tests import tiny

IDS = tiny.ids(12)


class WithoutDoubles(TorchDispatchMode):
    """A device that has no float64, such as Apple's."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        kinds = {each.dtype for each in tree_leaves(out) if isinstance(each, torch.Tensor)}
        assert not kinds & {torch.float64, torch.complex128}
        return out


def state_of(scope):
    """The state of the first module on its way through a prompt."""
    states = []
    with scope.passages((12,), lambda passage: states.append(Way.of(passage).state)), WithoutDoubles():
        scope.model(torch.tensor([IDS]))
    return states[0]


@pytest.mark.parametrize("part", ["real", "imag"])
def test_complex_numbers_of_a_module_are_told_without_doubles(part):
    model = tiny.own("v1").to(torch.bfloat16)
    turns = torch.polar(torch.ones(6), torch.arange(6.0))
    model.model.layers[0].self_attn.register_buffer("turns", turns)
    scope = diffscope.load(model)
    before = state_of(scope)
    assert state_of(scope) == before
    getattr(turns.data, part).mul_(2)
    assert state_of(scope) != before
