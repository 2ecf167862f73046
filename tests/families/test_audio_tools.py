"""stable-audio-tools: both orders of cross-attention's keys, norms of q and k, grouped keys; planted mistakes are found."""

import pytest
import torch

import diffscope
from diffscope import FidelityError, UnsupportedModel, edits, families
from tests.layouts import audio_tools

MADE = {
    "published": {},
    "keys in the order of self-attention": {"keys": ("k1", "v", "k2")},
    "standard": {"differential": False},
    "l2": {"qk_norm": "l2"},
    "without norms": {"qk_norm": "none"},
    "one key head a head": {"context": 16},
}


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_maps_are_those_of_the_layout(made, dtype, bound):
    model = audio_tools.tiny(**made).to(dtype)
    assert [family.name for family in families.FAMILIES if family.modules(model)] == ["stable-audio-tools"]
    capture = diffscope.load(model).capture(audio_tools.inputs(made.get("context", 8), dtype))
    assert capture.kinds == ["self", "cross"] * 2 and capture.fidelity.decided.all()
    modules = [each for pair in zip(model.own, model.cross) for each in pair]
    for layer, module in zip(capture.layers, modules):
        rows, seen = layer.rows(), [part[0] for part in module.seen]
        assert (rows.a1 - seen[0]).abs().max() < bound and (rows.a2 is None) == (len(seen) == 1)
        if len(seen) > 1:
            assert (rows.a2 - seen[1]).abs().max() < bound and (rows.d - (seen[0] - seen[1])).abs().max() < bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("planted", ["k2 of other heads", "lambda"])
def test_a_planted_mistake_is_found(planted, dtype):
    with pytest.raises(FidelityError, match="'stable-audio-tools'"):
        diffscope.load(audio_tools.tiny(planted=planted).to(dtype)).capture(audio_tools.inputs(dtype=dtype))


def test_an_edit_is_that_of_the_layout():
    model, other = audio_tools.tiny(), audio_tools.tiny(planted="lambda")
    with torch.no_grad(), diffscope.load(model).edit(edits.set_lambda(0.95)):
        assert torch.allclose(model(**audio_tools.inputs())[0], other(**audio_tools.inputs())[0], atol=1e-5)


def test_a_mask_that_is_not_read_is_refused():
    model = audio_tools.tiny()
    padded = lambda module, args, kwargs: (args, kwargs | {"padding_mask": torch.ones(1, 7)})  # noqa: E731
    model.own[0].register_forward_pre_hook(padded, with_kwargs=True)
    with pytest.raises(UnsupportedModel, match="padding_mask, which family stable-audio-tools does not read"):
        diffscope.load(model).capture(audio_tools.inputs())
