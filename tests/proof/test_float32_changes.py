"""A proof is of the run that it is shown with: nothing that a module computes with can change unseen between two of them."""

import gc
from types import SimpleNamespace
from weakref import ref

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import diffscope
from diffscope import FidelityError, edits
from tests import tiny
from tests.layouts import planted
from tests.layouts.planted import DifferentialAttention

pytestmark = pytest.mark.usefixtures("no_causes")

IDS = tiny.ids(40)
REFUSED = "in a float32 run of the layer"
OUTSIDE = {}
LATER = 0.95  # of λ, which is less of a change than bfloat16 rounds
FACTOR = 1.0


class InDictionary(DifferentialAttention):
    def lam(self):
        return super().lam() * OUTSIDE["factor"]


class InGlobal(DifferentialAttention):
    def lam(self):
        return super().lam() * FACTOR


class InBuffer(DifferentialAttention):
    def lam(self):
        return super().lam() * self.factors[0]


class InAttribute(DifferentialAttention):
    def lam(self):
        return super().lam() * self.settings["factors"][0]


class InConfiguration(DifferentialAttention):
    def lam(self):
        return super().lam() * self.config.schedule.factor


def by_dictionary(layer, monkeypatch):
    monkeypatch.setitem(OUTSIDE, "factor", 1.0)
    layer.__class__ = InDictionary
    return lambda: OUTSIDE.update(factor=LATER)


def by_global(layer, monkeypatch):
    layer.__class__ = InGlobal
    return lambda: monkeypatch.setitem(globals(), "FACTOR", LATER)


def by_closure(layer, monkeypatch):
    factor = 1.0

    class InClosure(DifferentialAttention):
        def lam(self):
            return super().lam() * factor

    def later():
        nonlocal factor
        factor = LATER

    layer.__class__ = InClosure
    return later


def by_buffer(layer, monkeypatch):
    layer.register_buffer("factors", torch.ones(5000))
    layer.__class__ = InBuffer
    return lambda: layer.factors.data.fill_(LATER)


def by_attribute(layer, monkeypatch):
    layer.settings = {"factors": [1.0]}
    layer.__class__ = InAttribute
    return lambda: layer.settings["factors"].__setitem__(0, LATER)


def by_configuration(layer, monkeypatch):
    layer.config = SimpleNamespace(_attn_implementation="its own", schedule=SimpleNamespace(factor=1.0))
    layer.__class__ = InConfiguration
    return lambda: setattr(layer.config.schedule, "factor", LATER)


def by_code(layer, monkeypatch):
    lam = DifferentialAttention.lam
    return lambda: monkeypatch.setattr(DifferentialAttention, "lam", lambda self: lam(self) * LATER)


PLACES = [by_dictionary, by_global, by_closure, by_buffer, by_attribute, by_configuration, by_code]


def half():
    model = planted.tiny().to(torch.bfloat16)
    for layer in model.layers:  # as small as they are when a model is new
        for name in ("q1", "k1", "q2", "k2"):
            getattr(layer, f"lambda_{name}").data.mul_(0.3)
    return model


@pytest.mark.parametrize("place", PLACES)
def test_a_capture_is_proved_by_what_its_own_run_computed_with(place, monkeypatch):
    model = half()
    turn = place(model.layers[1], monkeypatch)
    scope = diffscope.load(model)
    assert scope.capture(IDS).fidelity.decided.all()
    turn()
    with pytest.raises(FidelityError, match=REFUSED):
        scope.capture(IDS)
    with pytest.raises(FidelityError, match=REFUSED), scope.edit(edits.uniform_a2()):
        scope.loss(IDS)


def test_weights_that_change_are_read_anew():
    model = half()
    scope = diffscope.load(model)
    before = scope.capture(IDS)
    for layer in model.layers:
        layer.lambda_q1.data.zero_()
        layer.lambda_q2.data.zero_()
        layer.lambda_init = 0.0
    capture = scope.capture(IDS)
    assert before.fidelity.decided.all() and not capture.fidelity.decided.any() and not capture.layers[0].lam.any()


def sharper(module, query, *args, **kwargs):
    return sdpa_attention_forward(module, query * 1.02, *args, **kwargs)


@pytest.mark.parametrize(
    "make, prompt",
    [
        (tiny.diffllama, IDS),
        (lambda: tiny.own("v2"), [tiny.ids(200), IDS]),
        (lambda: tiny.standard("llama"), [tiny.ids(200), IDS]),
    ],
    ids=["diffllama", "v2, a long batch", "standard, a long batch"],
)
def test_an_attention_function_that_is_registered_anew_is_proved_anew(make, prompt, monkeypatch):
    scope = diffscope.load(make().to(torch.bfloat16))
    capture = scope.capture(prompt)
    assert capture.fidelity.decided.all() and float(capture.fidelity.error_float32.max()) < 1e-5
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", sharper)
    with pytest.raises(FidelityError, match=REFUSED):
        scope.capture(prompt)


def test_a_capture_under_edits_is_proved_by_its_own_run(monkeypatch):
    model = half()
    turn = by_dictionary(model.layers[1], monkeypatch)
    scope = diffscope.load(model)
    with scope.edit(edits.uniform_a2(layers=0)):
        assert scope.capture(IDS).fidelity.decided.all()
        turn()
        with pytest.raises(FidelityError, match=f"layer 1: .*{REFUSED}"):
            scope.capture(IDS)


def test_nothing_of_a_generation_is_kept_when_it_is_over():
    scope = diffscope.load(tiny.own("v1").to(torch.bfloat16))
    caches = []
    module = scope.model.model.layers[0].self_attn
    module.register_forward_pre_hook(lambda module, args, kwargs: caches.append(ref(kwargs["past_key_values"])), with_kwargs=True)
    with scope.edit(edits.uniform_a2()):
        scope.generate(IDS, 4)
    gc.collect()
    assert len(caches) > 3 and not [cache for cache in caches if cache() is not None]
