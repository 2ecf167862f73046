"""Models whose layers differ: in mechanism, in heads, in how often they attend."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BartConfig, BartForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention

import diffscope
from diffscope import UnsupportedModel, families
from tests import tiny
from tests.layouts import gated, motif, unilm

IDS = tiny.ids(21)


def v2(on):
    return unilm.MultiheadFlashDiffV2(on, 64, 4, None, 8)


def of(*layers):
    return tiny.awake(unilm.Model(layers, 64, 4))


def a_llama_with(attention):
    model = tiny.standard("llama")
    model.model.layers[1].self_attn = attention
    return model


@pytest.mark.parametrize(
    "make, names",
    [
        (lambda: of(unilm.MultiheadFlashDiff1(64, 0, 4), v2(True)), "'unilm' .* and 'unilm-v2'"),
        (lambda: a_llama_with(tiny.diffllama().model.layers[1].self_attn), "'diffllama' .* and 'standard' "),
        (lambda: a_llama_with(motif.tiny().model.layers[1].self_attn), "'motif' .* and 'standard' "),
    ],
)
def test_no_layer_is_left_out_unless_it_is_asked_for(make, names):
    with pytest.raises(UnsupportedModel, match=names):
        diffscope.load(make())


def test_one_family_s_layers_can_be_asked_for():
    assert diffscope.load(
        a_llama_with(tiny.diffllama().model.layers[1].self_attn), family=families.find(tiny.diffllama())
    ).layer_numbers == [1]


def test_a_first_layer_without_a_second_map():
    capture = diffscope.load(of(v2(False), v2(True))).capture(IDS)
    assert capture.differential and capture.lam.sel(layer=0).isnull().all() and float(capture.lam.sel(layer=1).min()) > 0
    for kind in ("maps", "row"):
        assert [name for name in diffscope.figure(kind, capture, layer=0).data if name in ("A", "A1", "D")] == ["A"]
        assert "D" in diffscope.figure(kind, capture, layer=1).data


def test_a_layer_with_more_heads():
    """As the cross layers of YOCO may have."""
    model = gated.tiny()
    config = copy.copy(model.config)
    config.num_attention_heads = 8
    model.model.layers[2].self_attn = tiny.awake(gated.YOCOCrossAttention(config, 2))
    capture = diffscope.load(model).capture([IDS, IDS[:9]])
    lam = capture.lam
    assert capture.n_heads == 8 and lam.sizes == {"layer": 3, "prompt": 2, "head": 8, "query": 21}
    assert lam.isel(layer=0, head=slice(4, 8)).isnull().all() and lam.isel(layer=2, prompt=0).notnull().all()
    assert np.array_equal(lam.values[0, 0, :4], capture.layers[0].lam[0]) and capture.measure("entropy").sizes["head"] == 8


def test_a_decoder_without_its_encoder_has_no_cross_attention():
    shape = dict(vocab_size=900, d_model=64, encoder_layers=1, decoder_layers=2, max_position_embeddings=64)
    heads = dict(encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48)
    config = BartConfig(**shape, **heads, pad_token_id=1, bos_token_id=0, eos_token_id=0)
    capture = diffscope.load(tiny.awake(BartForCausalLM(config))).capture(IDS)  # whose cross-attention stands idle
    assert capture.kinds == ["self", "self"]
    assert capture.measure("logit_outliers").layer_output_outliers.notnull().all()


class Inside(nn.Module):
    """A model with its layers in a part of its own, and no module around each."""

    def __init__(self, model):
        super().__init__()
        self.body, self.head, model.head = model, model.head, nn.Identity()

    def forward(self, ids):
        return self.head(self.body(ids))


def test_outliers_of_all_layers_together_are_not_those_of_one():
    assert np.isnan(diffscope.load(Inside(unilm.tiny())).capture(IDS).layer_output_outliers).all()
    assert not np.isnan(diffscope.load(gated.tiny()).capture(IDS).layer_output_outliers).any()


class OfAnotherFile(LlamaAttention):
    """Attention whose forward, and with it eager attention, is inherited from the file of another model."""


def test_eager_attention_is_that_of_the_file_that_calls_it():
    model = tiny.standard("llama")
    plain = diffscope.load(model)
    model.set_attn_implementation("eager")
    expected = plain.capture(IDS)
    for layer in model.model.layers:
        layer.self_attn.__class__ = OfAnotherFile
    assert np.array_equal(diffscope.load(model).capture(IDS).map("A1", 1, 2), expected.map("A1", 1, 2))


class NotAttention(nn.Module):
    """A mixer of another kind between attention layers."""

    def forward(self, x, rel_pos):
        return x * 0.1


def test_layers_are_numbered_as_in_the_model():
    """Layers 0 and 2 of three are those, not 0 and 1; what λ_init says of them agrees, and edits find them."""
    model = unilm.Model([unilm.MultiheadFlashDiff1(64, 0, 4), NotAttention(), unilm.MultiheadFlashDiff1(64, 2, 4)], 64, 4)
    scope = diffscope.load(tiny.awake(model))
    with pytest.warns(diffscope.DiffscopeWarning, match=r"layer 1 without .* \(NotAttention\); .* about layers 0, 2"):
        capture = scope.capture(tiny.ids(20))
    assert scope.layer_numbers == [0, 2] and [layer.layer for layer in capture.layers] == [0, 2]
    assert "layer 1 without" in capture.facts["warnings"]
    report = diffscope.check(scope)
    assert report.passed and [finding.check for finding in report.findings if finding.verdict == "warn"] == ["layers"]
    plain = scope.loss(tiny.ids(20))
    with scope.edit(diffscope.edits.zero_a2(layers=2)):
        assert scope.loss(tiny.ids(20)) != plain
    with pytest.raises(diffscope.DiffscopeError, match="no layer 1; choose from 0, 2"):
        with scope.edit(diffscope.edits.zero_a2(layers=1)):
            pass


@pytest.mark.parametrize("right", [True, False], ids=["then the right one", "alone"])
def test_a_reading_of_the_wrong_size_is_passed_over(right):
    class Wide(families.unilm.UnilmV1):
        """Five heads where there are four."""

        def readings(self, passage):
            for layer in super().readings(passage):
                a1, a2, values = (
                    torch.cat([x, x[:1]]) for x in (layer.pairing.a1, layer.pairing.a2, layer.pairing.value_of_head)
                )
                yield replace(layer, pairing=replace(layer.pairing, a1=a1, a2=a2, value_of_head=values))
                if right:
                    yield layer

    scope = diffscope.load(unilm.tiny(), family=Wide())
    if right:
        assert scope.capture(IDS).n_heads == 4
        return
    with pytest.raises(diffscope.FidelityError, match="reads 5 heads of width 16, but 64 elements"):
        scope.capture(IDS)
