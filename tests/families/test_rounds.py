"""A layer is one run of one attention module: of shared weights, and of blocks that attend twice."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import diffscope
from diffscope import DiffscopeError, edits
from tests import tiny
from tests.layouts import planted

IDS = tiny.ids(30)


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attn = attention

    def forward(self, x, rel_pos):
        return self.attn(x, rel_pos)


def looped(rounds=3):
    """Two layers that are run over and over, as a universal transformer does, and the same with layers of their own."""
    model = planted.tiny()
    model.layers = nn.ModuleList(map(Block, model.layers))
    apart = copy.deepcopy(model)
    model.norms, model.layers = (nn.ModuleList([*part] * rounds) for part in (model.norms, model.layers))
    apart.norms, apart.layers = (
        nn.ModuleList(copy.deepcopy(part[i % 2]) for i in range(2 * rounds)) for part in (apart.norms, apart.layers)
    )
    return model, apart


def test_every_round_through_shared_weights_is_a_layer():
    shared, apart = (diffscope.load(model) for model in looped())
    assert shared.layer_numbers == [0, 1]  # how often they are run is known once they were
    capture, other = (scope.capture([IDS, IDS[:9]]) for scope in (shared, apart))
    assert capture.layer_numbers == other.layer_numbers == shared.layer_numbers == [0, 1, 2, 3, 4, 5] and shared.n_layers == 6
    for layer in range(6):
        assert np.abs(capture[0].map("D", layer, 2) - other[0].map("D", layer, 2)).max() < 1e-6
    tails, expected = (each.measure("logit_outliers")["layer_output_outliers"] for each in (capture, other))
    assert np.allclose(tails, expected, rtol=1e-5) and len(np.unique(tails.sel(outlier="top_1"))) > 6


@pytest.mark.parametrize("layers", [None, 0, 3, [1, 5]])
def test_edits_act_in_the_rounds_that_they_name(layers):
    shared, apart = (diffscope.load(model) for model in looped())
    shared.capture(IDS)
    ids, edit = torch.tensor([IDS]), edits.set_lambda(0.1, layers=layers)
    with torch.no_grad(), shared.edit(edit), apart.edit(edit):
        for _ in range(2):  # each run begins to count anew
            edited, expected = shared.model(ids), apart.model(ids)
            assert torch.equal(edited, expected)
        assert shared.generate(IDS, 3) == apart.generate(IDS, 3)
    with torch.no_grad():
        assert not torch.equal(shared.model(ids), expected) and torch.equal(shared.model(ids), apart.model(ids))


def test_a_check_of_shared_weights_goes_by_the_block_they_are_in():
    report = diffscope.check(looped()[0])
    assert report.passed, report.findings
    schedule = next(finding for finding in report.findings if finding.check == "λ_init")
    assert schedule.layers == (0, 1, 2, 3, 4, 5)


class Twice(nn.Module):
    """A block with two attention modules."""

    def __init__(self, first, second):
        super().__init__()
        self.attn1, self.attn2 = first, second

    def forward(self, x, rel_pos):
        return self.attn1(x, rel_pos) + self.attn2(x.tanh(), rel_pos)


def test_two_attention_modules_of_a_block_are_two_layers():
    torch.manual_seed(0)
    model = planted.tiny()
    model.layers = nn.ModuleList(
        Twice(*(planted.DifferentialAttention(64, depth, 4, 2, "none") for _ in range(2))) for depth in range(2)
    )
    scope = diffscope.load(tiny.awake(model))
    assert scope.layer_numbers == [0, 1, 2, 3]
    capture = scope.capture(IDS)
    assert capture.layer_numbers == [0, 1, 2, 3] and float(capture.fidelity.error.max()) < 1e-5
    inits = [layer.lambda_init for block in model.layers for layer in (block.attn1, block.attn2)]
    assert [layer.lam_init for layer in capture.layers] == inits and diffscope.check(model).passed
    ids = torch.tensor([IDS])
    with torch.no_grad(), scope.edit(edits.ablate_heads(layers=3, heads=range(4))):
        edited = model(ids)
    model.layers[1].attn2.forward = lambda x, rel_pos: torch.zeros_like(x)
    with torch.no_grad():
        assert torch.allclose(edited, model(ids), atol=1e-4)


def test_a_model_that_runs_none_of_its_attention_is_refused():
    model = planted.tiny()
    model.norms = nn.ModuleList()  # zip leaves all layers out
    with pytest.raises(DiffscopeError, match="without calling any of its attention modules"):
        diffscope.load(model).capture(IDS)
