"""What models hand to their attention beside q, k and v: soft caps and sink logits are read, what is unknown is refused."""

import importlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import VaultGemmaConfig, VaultGemmaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import diffscope
from diffscope import FidelityError, UnsupportedModel
from diffscope.families.interface import NEUTRAL, NOT_COMPUTED, UNDERSTOOD, record_call
from diffscope.families.standard import Standard
from tests import tiny

IDS = tiny.ids(30)
HEADS = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=7)


def vaultgemma():
    torch.manual_seed(0)
    config = VaultGemmaConfig(**tiny.SHAPE, **HEADS, attn_logit_softcapping=2.0)
    return tiny.awake(VaultGemmaForCausalLM._from_config(config, attn_implementation="eager"))


def later(kind, name, **more):
    """A class that not every supported version of transformers has."""
    try:
        module = importlib.import_module(f"transformers.models.{kind}")
    except ModuleNotFoundError:
        pytest.skip(f"this version of transformers has no {kind}")
    torch.manual_seed(0)
    config = getattr(module, f"{name}Config")(**tiny.SHAPE, **HEADS, **more)
    model = tiny.awake(getattr(module, f"{name}ForCausalLM")._from_config(config, attn_implementation="eager"))
    with torch.no_grad():
        for layer in model.model.layers:
            if layer.self_attn.sinks is not None:
                layer.self_attn.sinks.copy_(torch.linspace(-4, 1, 4))
    return model


EXPERTS = dict(num_local_experts=2, num_experts_per_tok=1, moe_intermediate_size=16)
MODELS = {
    "gemma2": tiny.gemma2,
    "gemma2, cap 50": lambda: tiny.gemma2(50.0),
    "vaultgemma": vaultgemma,
    "gpt-oss": tiny.gpt_oss,
    "mimo": lambda: later("mimo_v2_flash", "MiMoV2Flash", v_head_dim=12, **EXPERTS),
    "flint": lambda: later("flint", "Flint"),
    "granite": lambda: later("granite_swa", "GraniteSWA"),
}


@pytest.mark.parametrize("name", MODELS)
def test_maps_are_those_of_the_model(name):
    model = MODELS[name]()
    capture = diffscope.load(model).capture(IDS)
    assert float(capture.fidelity.error.max()) < 5e-6 and capture.fidelity.decided.all() and "warnings" not in capture.facts
    with torch.no_grad():
        maps = model(torch.tensor([IDS]), output_attentions=True).attentions
    sums = capture.measure("row_sum")["row_sum"].sel(map="A1")
    assert (float(sums.min()) < 0.99) == ("gemma" not in name)
    for layer, expected in enumerate(maps):
        sum_of_row = sums.sel(layer=layer).values
        if name == "granite":  # what it gives are shares: its sink logits are a factor of the output
            expected = expected * torch.from_numpy(sum_of_row)[..., None]
        a1 = np.stack([capture.map("A1", layer, head) for head in range(4)])
        assert np.abs(a1 - expected[0].numpy()).max() < 1e-5
        np.testing.assert_allclose(sum_of_row, expected[0].sum(-1), atol=1e-5)


@pytest.mark.parametrize("make", [tiny.gemma2, tiny.gpt_oss])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_proved(make, dtype):
    model = make().to(dtype)
    capture = diffscope.load(model).capture(IDS)
    assert float((capture.fidelity.error / capture.fidelity.tolerance).max()) < 0.5
    with torch.no_grad():
        maps = model(torch.tensor([IDS]), output_attentions=True).attentions
    for layer, a in enumerate(maps):  # theirs are rounded once more, to the activations' dtype
        torch.testing.assert_close(capture.layers[layer].rows().a1, a[0].float(), rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("make", [tiny.gemma2, tiny.gpt_oss])
def test_a_padded_batch_kept_and_opened_again(make, tmp_path):
    scope = diffscope.load(make())
    prompts = [IDS, tiny.ids(12, seed=1)]
    scope.capture(prompts).save(tmp_path / "batch.dscope")
    again = diffscope.open(tmp_path / "batch.dscope")
    for index, prompt in enumerate(prompts):
        alone = scope.capture(prompt)
        for layer in range(2):
            assert np.abs(again[index].map("A1", layer, 1) - alone.map("A1", layer, 1)).max() < 1e-5
        xr = again[index].measure(["entropy", "row_sum"])
        for name, values in alone.measure(["entropy", "row_sum"]).items():
            np.testing.assert_allclose(xr[name], values, atol=1e-4)


@pytest.mark.parametrize("make", [tiny.gemma2, tiny.gpt_oss])
def test_a_capture_does_not_change_with_the_model(make):
    model = make()
    capture = diffscope.load(model).capture(IDS)
    before = capture.map("A1", 1, 2).copy()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert np.array_equal(capture.map("A1", 1, 2), before)


# What implementations leave out


def _attended(implementation, **keywords):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 5, 16, generator=generator) * 3 for _ in range(3))
    return ALL_ATTENTION_FUNCTIONS[implementation](torch.nn.Module(), q, k, v, None, scaling=0.25, **keywords)[0]


@pytest.mark.parametrize("keyword, value", [("softcap", 1.0), ("s_aux", torch.ones(2))])
def test_sdpa_leaves_out_what_is_said_of_it(keyword, value):
    """Whatever the installed transformers does: it refuses the keyword, or computes without it."""
    assert keyword in NOT_COMPUTED["sdpa"]
    try:
        out = _attended("sdpa", **{keyword: value})
    except ValueError as error:
        assert keyword in str(error)
        return
    assert torch.equal(out, _attended("sdpa"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_the_implementation_leaves_out_is_left_out_of_the_maps_and_said(dtype):
    model = tiny.gpt_oss().to(dtype)
    model.config._attn_implementation = "sdpa"  # its class does not offer it, but nothing keeps one from it
    with pytest.warns(diffscope.DiffscopeWarning, match="sdpa attention leaves out the model's sink logits; load it with"):
        capture = diffscope.load(model).capture(IDS)
    assert capture.layers[0].sink_logit is None and "sink logits" in capture.facts["warnings"]
    assert float(capture.fidelity.error.max()) < 0.05
    report = diffscope.check(model)
    assert any("sink logits" in finding.says for finding in report.findings if finding.verdict == "warn")
    assert model.config._attn_implementation == "sdpa"


def test_a_soft_cap_that_is_left_out_is_left_out_of_the_maps_and_said(monkeypatch):
    """As with versions of transformers that did not refuse it."""
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", lambda *args, softcap, **rest: sdpa(*args, **rest))
    model = tiny.gemma2(50.0).bfloat16()  # both readings are within the tolerance
    model.config._attn_implementation = "sdpa"
    with pytest.warns(diffscope.DiffscopeWarning, match="soft cap of 50"):
        capture = diffscope.load(model).capture(IDS)
    assert capture.layers[0].soft_cap is None


# Keywords


def _handing(**keywords):
    model = tiny.standard("llama")
    for layer in model.model.layers:
        forward = layer.self_attn.forward
        layer.self_attn.forward = lambda *args, forward=forward, **rest: forward(*args, **rest, **keywords)
    return diffscope.load(model)


@pytest.mark.parametrize(
    "keywords, words",
    [
        ({"head_mask": torch.ones(4)}, "LlamaAttention calls its attention with the keyword 'head_mask'"),
        ({"cu_seq_lens_q": torch.tensor([0, 10, 30])}, "'cu_seq_lens_q'"),
        ({"position_bias": torch.rand(1, 4, 30, 30)}, "'position_bias', which is not one number for each distance"),
        ({"s_aux": torch.zeros(1, 4, 1, 1)}, r"sink logits of shape \(1, 4, 1, 1\)"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(keywords, words):
    with pytest.raises(UnsupportedModel, match=words):
        _handing(**keywords).capture(IDS)


def test_what_changes_no_map_is_let_through():
    capture = _handing(output_hidden_states=True, max_length_q=30, head_mask=None, num_items_in_batch=torch.tensor(3)).capture(
        IDS
    )
    assert float(capture.fidelity.error.max()) < 5e-6
    assert not UNDERSTOOD & NEUTRAL


@pytest.mark.parametrize("implementation, unread", [("sdpa", "a dropout of 0.1"), ("eager", None)])
def test_dropout_in_evaluation_is_understood_where_it_drops_nothing(implementation, unread):
    q = torch.zeros(1, 2, 5, 16)
    assert record_call(torch.nn.Module().eval(), implementation, q, q, q, None, {"dropout": 0.1}).unread == unread


# Reading it wrongly


class Misreading(Standard):
    def __init__(self, **fields):
        self.fields = fields

    def read(self, passage):
        return replace(super().read(passage), **self.fields)


@pytest.mark.parametrize(
    "make, fields, words",
    [
        (tiny.gemma2, {"soft_cap": None}, r"caps its scores \(soft cap 2\), and they are read uncapped"),
        (lambda: tiny.gemma2(20.0), {"soft_cap": None}, r"\(soft cap 20\), and they are read uncapped"),
        (tiny.gemma2, {"soft_cap": 5.0}, r"\(soft cap 2\), and they are read with 5"),
        (lambda: tiny.standard("llama"), {"soft_cap": 5.0}, "the scores are not capped in the model"),
        (tiny.gpt_oss, {"sink_logit": None}, r"sink logits in its softmax that were not read \(about -9, -6, -3, "),
        (lambda: tiny.standard("llama"), {"sink_logit": torch.zeros(4)}, "leaves its sink logits out of the softmax"),
    ],
)
def test_a_cap_or_sinks_read_wrongly_are_the_likely_cause(make, fields, words):
    scope = diffscope.load(make())
    scope.family = Misreading(**fields)
    with pytest.raises(FidelityError, match=words):
        scope.capture(IDS)
