"""DIFF V1 in the manner of Megatron: packing by group, tokens first, RoPE of halves or heads; planted mistakes are found."""

import numpy as np
import pytest
import torch

import diffscope
from diffscope import FidelityError, UnsupportedModel, edits, families
from tests import tiny
from tests.families import same
from tests.layouts import megatron

IDS = tiny.ids(33)
MADE = {
    "RoPE of halves": {},
    "RoPE of heads": {"rope": "whole"},
    "without RoPE": {"rope": None},
    "scores over a head's root": {"over": "whole"},
    "q and k normed": {"norms": True},
    "one key head a head": {"groups": 4},
    "a norm of another name": {"norm": "diff_norm"},
}


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 2e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_maps_are_those_of_the_layout(made, dtype, bound):
    model = megatron.tiny(**made).to(dtype)
    assert [family.name for family in families.FAMILIES if family.modules(model)] == ["megatron"]
    capture = diffscope.load(model).capture(IDS)
    assert capture.fidelity.decided.all()
    for layer, module in zip(capture.layers, model.layers):
        rows, (a1, a2), lam = layer.rows(), (part[0] for part in module.seen[:2]), module.seen[2]
        assert (a1 - a2).abs().max() > 0.1
        for read, made_by_it in ((rows.a1, a1), (rows.a2, a2), (rows.d, a1 - lam * a2)):
            assert (read - made_by_it).abs().max() < bound


@pytest.mark.parametrize("ids", [[IDS[:1]], [IDS[:19], IDS], [IDS[:2], IDS[2:4]], [IDS[:3], IDS[3:4]]], ids=len)
def test_prompts_are_told_from_tokens(ids):
    """Also where there are as many prompts as tokens, and more."""
    model = megatron.tiny()
    capture = diffscope.load(model).capture(ids)
    for number, alone in enumerate(ids):
        once = diffscope.load(model).capture(alone)
        for together, apart in zip(capture.layers, once.layers):
            assert (together.prompt(number).rows().d - apart.rows().d).abs().max() < 1e-6


class Layer(torch.nn.Module):
    """Holds the attention of a layer."""

    def __init__(self, attention):
        super().__init__()
        self.self_attention = attention

    def forward(self, *args, **named):
        return self.self_attention(*args, **named)


@pytest.mark.parametrize("ids", [[IDS[:3], IDS[3:6], IDS[6:9]], [[at, at + 1] for at in range(5)]], ids=len)
def test_outliers_are_those_of_each_prompt(ids):
    """Also where there are as many prompts as tokens, and more."""
    model = megatron.tiny()
    model.layers = torch.nn.ModuleList(map(Layer, model.layers))
    scope = diffscope.load(model)
    together = scope.capture(ids).layer_output_outliers
    for number, alone in enumerate(ids):
        np.testing.assert_allclose(together[:, number], scope.capture(alone).layer_output_outliers[:, 0], rtol=1e-4)
        assert np.isfinite(together[:, number, 0]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "planted, finding",
    [
        ("maps of other heads", "the second maps belong to other heads"),
        ("no exponentials", "λ lacks the exponentials"),
        ("no factor", r"the factor \(1 − λ_init\) after the norm is missing"),
    ],
)
def test_a_planted_mistake_is_named(planted, finding, dtype):
    with pytest.raises(FidelityError, match=f"'megatron'.*{finding}"):
        diffscope.load(megatron.tiny(planted=planted).to(dtype)).capture(IDS)


def test_it_passes_the_check():
    assert diffscope.check(megatron.tiny()).passed


def test_an_edit_is_that_of_the_layout():
    model, other, ids = megatron.tiny(), megatron.tiny(), torch.tensor([IDS, tiny.ids(33, seed=1)])
    for module in other.layers:
        for name in ("q1", "q2"):
            getattr(module, f"lambda_{name}").data.zero_()  # which leaves λ_init
    with torch.no_grad():
        plain, expected = model(ids), other(ids)
        changes = [edits.set_lambda(module.lambda_init, layers=number) for number, module in enumerate(model.layers)]
        with diffscope.load(model).edit(*changes):
            assert torch.allclose(model(ids), expected, atol=1e-3)
    assert (plain - expected).abs().max() > 0.1


@pytest.mark.parametrize(
    "width, finding", [(5, "one key and one value of twice that width"), (1, "not a row of at most 2 angles a token")]
)
def test_widths_that_do_not_fit_are_refused(width, finding):
    model = megatron.tiny()
    for name in ("q1", "k1", "q2", "k2"):
        setattr(
            model.layers[0], f"lambda_{name}", torch.nn.Parameter(torch.zeros(width))
        )  # of another width, which the model takes
    with pytest.raises(UnsupportedModel, match=finding):
        diffscope.load(model).capture(IDS)


def test_what_is_kept_outlives_the_weights():
    same.what_is_kept_outlives_the_weights(megatron.tiny(), IDS)
