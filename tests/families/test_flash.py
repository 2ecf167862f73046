"""Captures of models on flash-attn, which knows half precision and CUDA alone: their maps are those of eager attention."""

import copy

import numpy as np
import pytest
import torch

import diffscope
from tests import tiny

pytestmark = pytest.mark.gpu
MODELS = {
    "diffllama": tiny.diffllama,
    "diffllama-grouped": lambda: tiny.diffllama(8, 4),
    "v1": lambda: tiny.own("v1"),
    "v2": lambda: tiny.own("v2", kv_heads=2),
    "llama": lambda: tiny.standard("llama"),
    "mistral-window": lambda: tiny.standard("mistral"),
}
ROUNDING = 0.03  # of a weight in layer 0, whose queries and keys are in bfloat16


@pytest.fixture(params=MODELS)
def models(request):
    """A model in bfloat16 on flash-attn, and its weights in float32 with eager attention."""
    pytest.importorskip("flash_attn")
    fast = MODELS[request.param]().to("cuda", torch.bfloat16)
    eager = copy.deepcopy(fast).float()
    fast.set_attn_implementation("flash_attention_2")
    eager.set_attn_implementation("eager")
    return fast, eager


def test_the_maps_of_a_capture_are_those_of_eager_attention(models):
    prompts = [tiny.ids(37), tiny.ids(19, seed=1)]  # padded, which flash-attn unpads by itself
    fast, eager = (diffscope.load(model) for model in models)
    caps = fast.capture(prompts), eager.capture(prompts)
    assert caps[0].facts["attention"] == "flash_attention_2" and caps[1].facts["attention"] == "eager"
    for number in range(len(prompts)):
        ours, theirs = (cap[number] for cap in caps)
        for head in range(ours.n_heads):
            for name in ("A1", "A2") if ours.differential else ("A1",):
                np.testing.assert_allclose(ours.map(name, 0, head), theirs.map(name, 0, head), atol=ROUNDING)
        np.testing.assert_allclose(ours.lam.isel(layer=0), theirs.lam.isel(layer=0), atol=ROUNDING)


def test_a_layer_is_rebuilt_from_its_capture_and_says_what_float32_cannot_decide(models):
    cap = diffscope.load(models[0]).capture(tiny.ids(37))
    assert float((cap.fidelity.error / cap.fidelity.tolerance).max()) <= 1
    assert all(reason for reason in cap.fidelity.reason.values[~cap.fidelity.decided.values])


def test_a_model_runs_on_flash_attention_as_before_when_it_was_captured_and_edited(models):
    model, ids = models[0], torch.tensor([tiny.ids(37)], device="cuda")
    with torch.no_grad():
        before = model(ids).logits
    scope = diffscope.load(model)
    scope.capture(tiny.ids(37))
    if scope.capture(tiny.ids(5)).differential:
        with scope.edit(diffscope.edits.set_lambda(0.0)), torch.no_grad():
            assert not torch.equal(model(ids).logits, before)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, before)
    assert model.config._attn_implementation == "flash_attention_2"
