"""axolotl's differential Llama: both ways to get two maps, both generations, from the cache and warmed up by half."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import diffscope
from diffscope import FidelityError, UnsupportedModel, families
from tests import tiny
from tests.families import same
from tests.layouts import axolotl

IDS = tiny.ids(33)
VARIANTS = {
    "doubled": {},
    "doubled, SDPA": {"kind": "sdpa"},
    "split": {"split_heads": True},
    "split, SDPA, bias": {"split_heads": True, "kind": "sdpa", "attention_bias": True},
    "split, more heads": {"split_heads": True, "num_attention_heads": 8, "num_key_value_heads": 2},
    "doubled, older": {"old": True, "num_key_value_heads": 4},
    "split, older": {"split_heads": True, "old": True, "num_key_value_heads": 4},
    "converted": {"sublayer_norm": False, "zero_init": True},
}


def modules(model):
    return [layer.self_attn for layer in model.model.layers]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-11), (torch.bfloat16, 0.1)])
def test_every_layer_is_rebuilt(name, dtype, bound):
    model = axolotl.tiny(**VARIANTS[name]).to(dtype)
    capture = diffscope.load(model).capture([IDS[:19], IDS])
    assert float(capture.fidelity.error.max()) < bound and capture.fidelity.decided.all()
    for layer, module in zip(capture.layers, modules(model)):
        # The factor is what tells the generations apart; a converted model has λ_init = 0, and it is 1 either way.
        assert layer.post_scale == pytest.approx(1 - float(module.lambda_init) if "older" in name else 1.0)
        assert torch.equal(layer.lam.flatten()[0], module.lambda_full) and layer.lam.dtype == module.lambda_full.dtype
    claimed = []
    for family in families.FAMILIES:
        try:
            claimed += [family.name] if family.modules(model) else []
        except UnsupportedModel:
            assert family.name == "standard"
    assert claimed == ["axolotl"]


def test_a_lambda_init_wider_than_the_model_widens_lambda():
    model = axolotl.tiny().to(torch.bfloat16)
    for module in modules(model):
        module.lambda_init.data = module.lambda_init.data.float() + 0.123
    for layer, module in zip(diffscope.load(model).capture(IDS).layers, modules(model)):
        assert layer.lam.dtype == module.lambda_full.dtype == torch.float32
        assert layer.lam.item() == module.lambda_full.item()


@pytest.mark.parametrize("name", [name for name in VARIANTS if "SDPA" not in name])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_maps_are_those_of_the_layout(name, dtype):
    model, bound = axolotl.tiny(**VARIANTS[name]).to(dtype), 2e-6 if dtype == torch.float32 else 0.004
    for layer, module in zip(diffscope.load(model).capture(IDS).layers, modules(model)):
        rows, first, second = layer.rows(), module.attn1[0].float(), module.attn2[0].float()
        assert (rows.a1 - first).abs().max() < bound and (rows.a2 - second).abs().max() < bound
        assert (rows.d - (first - module.lambda_full.float() * second)).abs().max() < 3 * bound
        assert (first - second).abs().max() > 0.1
        assert layer.score_dtype == (None if dtype == torch.float32 else dtype)


@pytest.mark.parametrize("name", ["doubled", "split, SDPA, bias", "split, older"])
def test_cached_steps_see_what_the_whole_prompt_sees(name):
    sizes = (20, 1, 1) if "SDPA" in name else (20, 1, 1, 5, 6)  # its SDPA takes several tokens for a whole prompt
    same.cached_steps_see_the_whole_prompt(axolotl.tiny(**VARIANTS[name]), IDS, sizes)


@pytest.mark.parametrize("name", ["doubled", "split, SDPA, bias"])
def test_a_set_lambda_is_that_of_the_layout(name):
    other = axolotl.tiny(**VARIANTS[name])
    for module in modules(other):
        module.lam = lambda dtype: torch.tensor(0.3, dtype=dtype)
    same.a_set_lambda_is_that_of(other, axolotl.tiny(**VARIANTS[name]), IDS)


def test_a_half_warmed_model_uses_half_of_lambda():
    model = axolotl.tiny()
    full = diffscope.load(model).capture(IDS).lam
    for module in modules(model):
        module.diff_attn_mix = 0.5
    half = diffscope.load(model).capture(IDS)
    assert abs(half.lam - 0.5 * full).max() < 1e-6 and half.fidelity.decided.all()


def test_a_converted_model_starts_as_the_llama_it_was():
    """Without norm and with λ = 0 the second map has no say, and the check says that."""
    model = axolotl.tiny(sublayer_norm=False, zero_init=True)
    with torch.no_grad():
        for module in modules(model):
            for name in ("q1", "k1", "q2", "k2"):
                getattr(module, f"lambda_{name}").zero_()
    capture = diffscope.load(model).capture(IDS)
    assert float(abs(capture.lam).max()) == 0 and not capture.fidelity.decided.any()
    printed = {(finding.verdict, finding.check) for finding in diffscope.check(model).findings}
    assert ("undecided", "second map") in printed and ("fail", "norm") not in printed and ("warn", "λ_init") not in printed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_right_model_passes_its_check(dtype):
    """Also in half precision, where λ_init is a rounded parameter."""
    report = diffscope.check(axolotl.tiny(num_hidden_layers=1).to(dtype), length=25)
    assert {finding.verdict for finding in report.findings} == {"pass"}


def test_a_model_whose_lambda_init_is_a_number_passes_too():
    model = axolotl.tiny(num_hidden_layers=1)
    for module in diffscope.load(model).family.modules(model):
        value = float(module.lambda_init.detach())
        del module.lambda_init
        module.lambda_init = value
    assert {finding.verdict for finding in diffscope.check(model, length=25).findings} == {"pass"}


def test_eager_attention_without_a_mask_sees_everything():
    model = axolotl.tiny()
    model.handed_down = lambda x, mask, ids, cache: {"position_embeddings": model.model.rotary_emb(x, ids)}
    assert diffscope.load(model).capture(IDS).layers[0].mask.kind == "full"


@pytest.mark.parametrize(
    "wrong, cause",
    [
        (lambda layer: replace(layer, pairing=by_stripes(layer)), "head h owns maps h and h \\+ H"),
        (lambda layer: replace(layer, lam=layer.lam + 0.3), "λ is not the value"),
    ],
)
def test_a_misreading_is_refused_with_its_cause(wrong, cause, monkeypatch):
    scope = diffscope.load(axolotl.tiny())
    kind = type(scope.family)
    readings = kind.readings
    monkeypatch.setattr(kind, "readings", lambda family, passage: map(wrong, readings(family, passage)))
    with pytest.raises(FidelityError, match=f"layer 0: .*'axolotl'.*likely cause: .*{cause}"):
        scope.capture(IDS)


def by_stripes(layer):
    head = torch.arange(layer.n_heads)
    return replace(layer.pairing, a1=2 * head, a2=2 * head + 1)


def test_another_norm_is_refused_and_what_is_kept_outlives_the_weights():
    model = axolotl.tiny()
    same.what_is_kept_outlives_the_weights(model, IDS)
    modules(model)[0].subln = nn.LayerNorm(16)
    with pytest.raises(UnsupportedModel, match="LayerNorm"):
        diffscope.load(model).capture(IDS)


def test_a_cache_that_its_modules_do_not_take_is_named():
    """A newer decoder hands it down under another name, which goes where nobody looks."""
    model = axolotl.tiny()
    handed_down = model.handed_down

    def renamed(*given):
        arguments = handed_down(*given)
        return {"past_key_values": arguments.pop("past_key_value"), **arguments}

    model.handed_down = renamed
    failed = [finding for finding in diffscope.check(model).findings if finding.verdict == "fail"]
    assert [finding.check for finding in failed] == ["cached decoding"]
    assert "LlamaDifferentialAttention takes past_key_value and is given past_key_values, so it keeps no keys" in failed[0].says
