"""A capture keeps memory of its own: whatever happens to the model and its cache afterwards does not move it."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import DynamicCache

import diffscope
from diffscope import UnsupportedModel
from diffscope.attention.components import Norm
from diffscope.attention.stored import to_tensors
from diffscope.families.unilm import UnilmV1
from diffscope.proof.prove import prove_passage
from tests import tiny
from tests.layouts import axolotl, gated, gdla, motif, phi4flash, planted

IDS = tiny.ids(20)


class Learned(UnilmV1):
    """Hands over what the module holds, as it holds it."""

    def readings(self, passage):
        module = passage.module
        for layer in super().readings(passage):
            norm = Norm("rms", module.subln.eps, module.subln.weight)
            parts = dict(lam=module.factors[:1, None, None], gain=module.factors[1:, None, None], lam_init=module.init, norm=norm)
            yield replace(layer, **parts, lam_fp32=parts["lam"], gate=module.gate.expand(1, 4, 20, 16))


class Attention(planted.DifferentialAttention):
    """λ and the factor of A1 are learned, and so is λ_init."""

    def __init__(self, *args):
        super().__init__(*args)
        self.factors = nn.Parameter(torch.tensor([0.5, 1.0]))
        self.init = nn.Parameter(torch.tensor(self.lambda_init))
        self.gate = nn.Parameter(torch.ones(1, 4, 1, 1))

    def lam(self):
        return self.factors[0]


def learned():
    model = planted.tiny()
    for depth, layer in enumerate(model.layers):
        attention = Attention(64, depth, 4, 2, "none")
        attention.load_state_dict(layer.state_dict(), strict=False)
        model.layers[depth] = attention
    return model


def scaled(shape=()):
    """A Llama whose scores are multiplied with a learned scale."""
    model = tiny.standard("llama")
    model.set_attn_implementation("eager")
    for layer in model.model.layers:
        scaling = layer.self_attn.scaling
        del layer.self_attn.scaling
        layer.self_attn.scaling = nn.Parameter(torch.full(shape, scaling))
    return model


def maps_of(layer):
    rows = layer.prompt(0).rows()
    return [x.clone() for x in (rows.a1, rows.a2, rows.d, rows.lam, rows.gain, layer.prompt(0).output()) if x is not None]


def overwrite(tensors):
    with torch.no_grad():
        for tensor in tensors:
            tensor.fill_(3)


@pytest.mark.parametrize("scope", [lambda: diffscope.load(learned(), family=Learned()), lambda: diffscope.load(scaled())])
def test_a_capture_does_not_move_when_what_the_model_learns_does(scope):
    scope = scope()
    capture = scope.capture(IDS)
    before = [maps_of(layer) for layer in capture.layers]
    saved = [to_tensors(layer)[1] for layer in capture.layers]
    overwrite(scope.model.parameters())
    for layer, maps in zip(capture.layers, before, strict=True):
        assert all(map(torch.equal, maps_of(layer), maps))
    assert [to_tensors(layer)[1] for layer in capture.layers] == saved
    assert all(isinstance(record["scale"], float) for record in saved)


@pytest.mark.parametrize("shape", [(4,), (4, 1, 1)])
def test_a_scale_of_each_head_is_refused_in_a_line(shape):
    model = scaled((4, 1, 1))
    for layer in model.model.layers:
        layer.self_attn.scaling.data = layer.self_attn.scaling.data.reshape(shape) if shape != (4,) else torch.ones(20)
    with pytest.raises(UnsupportedModel, match=r"has a scale of shape .*one number a layer") as refusal:
        diffscope.load(model).capture(IDS)
    assert "\n" not in str(refusal.value)


CACHED = {
    "v1": lambda: tiny.own("v1"),
    "v2": lambda: tiny.own("v2", kv_heads=2),
    "signed": lambda: tiny.own("signed"),
    **{arm: lambda arm=arm: tiny.own(arm, kv_heads=2) for arm in ("plus", "d_plus", "shared_a2")},
    "axolotl": axolotl.tiny,
    "motif": motif.tiny,
    "gdla": gdla.tiny,
    "phi4flash": phi4flash.tiny,
    "gated": gated.tiny,
}


@pytest.mark.parametrize("name", CACHED)
def test_nothing_is_shared_with_weights_or_a_cache_that_is_written_on(name):
    model = CACHED[name]()
    scope, cache, layers = diffscope.load(model), DynamicCache(), []
    with torch.no_grad():
        for ids in (IDS[:15], IDS[15:16]):
            with scope.hooked(lambda passage: layers.append(prove_passage(scope.family, passage)[0])):
                model(torch.tensor([ids]), past_key_values=cache, use_cache=True)
    before = [[x.clone() for x in to_tensors(layer)[0].values()] for layer in layers]
    overwrite(model.parameters())
    overwrite(x for x in model.buffers() if x.is_floating_point())
    overwrite(x for layer in cache.layers for x in (layer.keys, layer.values) if x is not None)
    for layer, tensors in zip(layers, before, strict=True):
        assert all(map(torch.equal, to_tensors(layer)[0].values(), tensors))


class OnMeta(UnilmV1):
    """Read one tensor of a layer as a module holds it whose weights are offloaded."""

    def __init__(self, name):
        self.name = name

    def readings(self, passage):
        for layer in super().readings(passage):
            tensors = to_tensors(layer)[0] | {"gate": torch.ones(1, 4, 1, 1)}
            yield replace(layer, **{self.name: tensors[self.name].to("meta")})


@pytest.mark.parametrize("name", ["q", "k", "v", "lam", "gain", "lam_fp32", "gate"])
def test_a_layer_with_a_tensor_on_the_meta_device_is_refused_in_a_line(name):
    with pytest.raises(UnsupportedModel, match="^the model's weights are offloaded, or on the meta device") as refusal:
        diffscope.load(learned(), family=OnMeta(name)).capture(IDS)
    assert "\n" not in str(refusal.value)
