"""stable-audio-tools: both orders of cross-attention's keys, norms of q and k, grouped keys; planted mistakes are found."""

import pytest
import torch

import diffscope
from diffscope import FidelityError, PromptError, UnsupportedModel, edits, families
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
    assert_maps_of(capture, model, bound)


def assert_maps_of(capture, model, bound=1e-5):
    """Maps are those that the modules kept."""
    modules = [each for pair in zip(model.own, model.cross) for each in pair]
    for layer, module in zip(capture.layers, modules):
        rows, seen = layer.rows(), [part[0] for part in module.seen]
        assert (rows.a1 - seen[0]).abs().max() < bound and (rows.a2 is None) == (len(seen) == 1)
        if len(seen) > 1:
            assert (rows.a2 - seen[1]).abs().max() < bound and (rows.d - (seen[0] - seen[1])).abs().max() < bound


@pytest.mark.parametrize("across", ["stretched", "own"])
@pytest.mark.parametrize("places, tokens", [(7, 5), (5, 7)])
def test_cross_attention_may_have_rope(across, places, tokens):
    """Of the one side's angles, which are stretched for the shorter side, or of both."""
    model, asked = audio_tools.tiny(across=across), audio_tools.inputs(places=places, tokens=tokens)
    capture = diffscope.load(model).capture(asked)
    assert_maps_of(capture, model)
    without = diffscope.load(audio_tools.tiny()).capture(asked).layers[1].rows().a1
    assert (capture.layers[1].rows().a1 - without).abs().max() > 0.1


def called_with(**arguments):
    """A model whose first self-attention is called with further arguments."""
    model = audio_tools.tiny()
    model.own[0].register_forward_pre_hook(lambda module, args, kwargs: (args, kwargs | arguments), with_kwargs=True)
    return model


@pytest.mark.parametrize("window, kind", [((2, 1), "given"), ((1, -1), "given"), ((3, 0), "window"), ((9, 9), "full")])
def test_a_window_is_read(window, kind):
    model = called_with(flash_attn_sliding_window=window)
    capture = diffscope.load(model).capture(audio_tools.inputs())
    assert_maps_of(capture, model)
    assert [layer.mask.kind for layer in capture.layers] == [kind, "full", "full", "full"]


def test_what_is_causal_is_read_and_refused_across_two_sides():
    model = called_with(causal=True)
    capture = diffscope.load(model).capture(audio_tools.inputs())
    assert_maps_of(capture, model)
    assert capture.layers[0].mask.kind == "causal"
    model.cross[1].causal = True
    with pytest.raises(UnsupportedModel, match="layer 3: Attention is causal or has a window .* in cross-attention"):
        diffscope.load(model).capture(audio_tools.inputs())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("planted", ["k2 of other heads", "lambda"])
def test_a_planted_mistake_is_found(planted, dtype):
    with pytest.raises(FidelityError, match="'stable-audio-tools'"):
        diffscope.load(audio_tools.tiny(planted=planted).to(dtype)).capture(audio_tools.inputs(dtype=dtype))


def test_an_edit_is_that_of_the_layout():
    model, other = audio_tools.tiny(), audio_tools.tiny(planted="lambda")
    with torch.no_grad(), diffscope.load(model).edit(edits.set_lambda(0.95)):
        assert torch.allclose(model(**audio_tools.inputs())[0], other(**audio_tools.inputs())[0], atol=1e-5)


def test_latents_have_no_loss_over_a_text():
    scope = diffscope.load(audio_tools.tiny())
    with pytest.raises(UnsupportedModel, match="predicts no next tokens, so there is no loss"):
        scope.loss(audio_tools.inputs())
    with pytest.raises(PromptError, match="run by capture, measure and compare alone"):
        scope.generate(audio_tools.inputs(), 2)


def test_a_mask_that_is_not_read_is_refused():
    model = called_with(padding_mask=torch.ones(1, 7))
    with pytest.raises(UnsupportedModel, match="padding_mask, which family stable-audio-tools does not read"):
        diffscope.load(model).capture(audio_tools.inputs())
