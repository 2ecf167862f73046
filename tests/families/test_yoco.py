"""YOCO with a gate for either map (V3) or for the second alone (V2): windows, queries and keys clipped, shared keys."""

import math
from dataclasses import replace

import pytest
import torch

import diffscope
from diffscope import FidelityError, UnsupportedModel, families
from tests import tiny
from tests.families import same
from tests.layouts import gated

IDS = tiny.ids(33)  # far beyond the window of 7
VARIANTS = {
    "V3": {},
    "V3, normed": {"qk_rms_clip": False, "qk_norm": True},
    "V3, plain, a key for every head": {"qk_rms_clip": False, "num_key_value_heads": 4},
    "V2": {"diff_v3": False, "qk_rms_gamma": False},
}


def modules(model):
    return [layer.self_attn for layer in model.model.layers]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-11), (torch.bfloat16, 0.1)])
def test_every_layer_is_rebuilt(name, dtype, bound):
    model = gated.tiny(**VARIANTS[name]).to(dtype)
    capture = diffscope.load(model).capture([IDS[:19], IDS])
    assert float(capture.fidelity.error.max()) < bound and capture.fidelity.decided.all()
    assert [layer.mask.window for layer in capture.layers] == [7, 7, None]
    assert [family.name for family in families.FAMILIES if family.modules(model)] == ["yoco"]


def test_a_window_may_have_one_key_more_than_it_is_called():
    """Two public implementations differ; the proof tells them apart once a prompt is longer than the window."""
    model = gated.tiny(keys_beside=1)
    assert [layer.mask.window for layer in diffscope.load(model).capture(IDS).layers] == [8, 8, None]
    assert diffscope.check(model).passed
    with pytest.raises(FidelityError, match="queries see only the last 9 keys, not the last 7 keys"):
        diffscope.load(gated.tiny(keys_beside=2)).capture(IDS)


@pytest.mark.parametrize("name", VARIANTS)
def test_maps_and_gates_are_those_of_the_layout(name):
    model, logits = gated.tiny(**VARIANTS[name]), []
    scope = diffscope.load(model)
    hooks = [part.lambda_proj.register_forward_hook(lambda module, args, out: logits.append(out[0])) for part in modules(model)]
    layers = scope.capture(IDS).layers
    for hook in hooks:
        hook.remove()
    for layer, part, logit in zip(layers, modules(model), logits):
        rows, first, second = layer.rows(), part.maps[0, 0::2], part.maps[0, 1::2]
        gate = logit.sigmoid().T  # (gate, query)
        gain, lam = (gate[0::2], gate[1::2]) if part.diff_v3 else (torch.ones_like(gate), gate)
        assert torch.allclose(rows.a1, first, atol=1e-6) and torch.allclose(rows.a2, second, atol=1e-6)
        assert torch.allclose(rows.d, gain[..., None] * first - lam[..., None] * second, atol=1e-6)
        assert torch.allclose(rows.d.sum(-1), gain - lam, atol=1e-5)
        assert (first - second).abs().max() > 0.1 and lam.std() > 0.1


def test_queries_are_clipped_before_they_are_turned():
    """At the limit of the layout most queries are clipped, and a model with another limit has other maps."""
    clipped, free = (diffscope.load(gated.tiny(qk_rms_limit=limit)).capture(IDS).layers[0] for limit in (0.8, 100.0))
    assert clipped.q.square().mean().sqrt() < 0.7 * free.q.square().mean().sqrt()
    assert (clipped.rows().a1 - free.rows().a1).abs().max() > 0.1


@pytest.mark.parametrize("name", ["V3", "V2"])
def test_cached_steps_see_what_the_whole_prompt_sees(name):
    """Self-attention from its cache, cross-attention from the keys that all its layers share."""
    same.cached_steps_see_the_whole_prompt(gated.tiny(**VARIANTS[name]), IDS)


@pytest.mark.parametrize("name", ["V3", "V2"])
def test_a_set_lambda_is_that_of_the_layout(name):
    """The gate of the first map stays as it is."""
    other = gated.tiny(**VARIANTS[name])
    for part in modules(other):

        def second_gate(module, args, out, step=2 if part.diff_v3 else 1):
            out = out.clone()
            out[..., step - 1 :: step] = math.log(0.3 / 0.7)
            return out

        part.lambda_proj.register_forward_hook(second_gate)
    same.a_set_lambda_is_that_of(other, gated.tiny(**VARIANTS[name]), IDS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda layer: replace(layer, gain=torch.ones_like(layer.gain)),
        lambda layer: replace(layer, gain=layer.lam, lam=layer.gain),
        lambda layer: replace(layer, mask=diffscope.families.Mask("causal")),
    ],
)
def test_a_misreading_is_refused(wrong, dtype, monkeypatch):
    scope = diffscope.load(gated.tiny().to(dtype))
    kind = type(scope.family)
    read = kind.read
    monkeypatch.setattr(kind, "read", lambda family, passage: wrong(read(family, passage)))
    with pytest.raises(FidelityError, match="layer 0: .*'yoco'"):
        scope.capture(IDS)


def test_wrongly_paired_maps_are_named(monkeypatch):
    scope = diffscope.load(gated.tiny())
    kind, head = type(scope.family), torch.arange(4)
    read = kind.read

    def wrong(family, passage):
        layer = read(family, passage)
        return replace(layer, pairing=replace(layer.pairing, a1=head, a2=head + 4))

    monkeypatch.setattr(kind, "read", wrong)
    with pytest.raises(FidelityError, match="head h owns maps 2h and 2h \\+ 1"):
        scope.capture(IDS)


def test_what_a_version_lacks_or_does_besides_is_said():
    model = gated.tiny()
    modules(model)[0].universal_loop = 3
    with pytest.raises(UnsupportedModel, match="runs its layers several times"):
        diffscope.load(model).capture(IDS)
    cross = modules(gated.tiny())[2]
    logits, q = torch.zeros(1, 5, 8), torch.zeros(1, 5, 128)
    arguments = {"hidden_states": torch.zeros(1, 5, 64)}
    with pytest.raises(UnsupportedModel, match="was not given yoco_key and yoco_value"):
        family = families.find(gated.tiny())
        family.read(families.AttentionPass(cross, 2, 2, (5,), arguments, {"q_proj": q, "q_norm": q, "lambda_proj": logits}))


def test_what_is_kept_outlives_the_weights():
    same.what_is_kept_outlives_the_weights(gated.tiny(), IDS)
