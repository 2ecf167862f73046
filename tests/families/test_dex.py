"""DEX: what corrects the heads' outputs is kept beside the map, and D stays the map of standard attention."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import diffscope
from diffscope import FidelityError, UnsupportedModel, edits, families
from diffscope.families.dex import Dex, correction_of
from tests import tiny
from tests.families import same
from tests.layouts import dex

pytestmark = pytest.mark.filterwarnings("ignore::diffscope.DiffscopeWarning")

IDS = tiny.ids(33)
VARIANTS = {
    "in what wraps the projection": {},
    "before the projection": {"kind": "before"},
    "Qwen3": {"base": "qwen3"},
    "in one layer of two": {"layers": (1,)},
    "a DEX module in one layer of two": {"kind": "before", "layers": (1,)},
    "being annealed": {"anneal_steps": 8},
    "with a plus": {"sign": 1.0},
    "all heads": {"kind": "before", "selected": (0, 1, 2, 3)},
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-11), (torch.bfloat16, 0.1)])
def test_every_layer_is_rebuilt(name, dtype, bound):
    model = dex.tiny(**VARIANTS[name]).to(dtype)
    capture = diffscope.load(model).capture([IDS[:19], IDS])
    assert capture.family == "dex" and not capture.differential
    assert float(capture.fidelity.error.max()) < bound and capture.fidelity.decided.all()
    corrected = tuple(layer.layer for layer in capture.layers if layer.correction is not None)
    assert corrected == VARIANTS[name].get("layers", (0, 1))
    # Standard attention is what it is built on, and what catches all others.
    assert [family.name for family in families.FAMILIES if family.modules(model)] == ["dex", "standard"]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["wrapper", "before"])
def test_the_correction_is_that_of_the_layout(kind):
    """λ·W_D on the selected heads, half way through annealing, for outputs as row vectors."""
    model = dex.tiny(kind=kind, anneal_steps=6)
    for layer, part in zip(diffscope.load(model).capture(IDS).layers, model.model.layers):
        adapter = next(module for module in part.self_attn.o_proj.modules() if hasattr(module, "lambda_learn"))
        lam = 0.5 * 0.5 * adapter.lambda_init + 0.5 * float(adapter.lambda_learn)  # Eq. 4 at t = T/2
        weight = adapter.weight if kind == "before" else adapter.proj.weight.T
        expected = torch.stack([lam * weight if head in (1, 3) else torch.zeros(16, 16) for head in range(4)])
        assert torch.allclose(layer.correction, expected, atol=1e-6) and not layer.correction.requires_grad
        out = layer.head_outputs()
        assert torch.allclose(layer.output(), out - torch.einsum("hqw,hwx->hqx", out, expected), atol=1e-5)
        assert (layer.output() - out)[[1, 3]].abs().max() > 0.1 and torch.equal(layer.output()[[0, 2]], out[[0, 2]])


def test_the_maps_are_those_of_hugging_face_and_d_is_the_map():
    model = dex.tiny()
    model.set_attn_implementation("eager")
    capture = diffscope.load(model).capture(IDS)
    with torch.no_grad():
        theirs = model(torch.tensor([IDS]), output_attentions=True).attentions
    for layer, weights in zip(capture.layers, theirs):
        rows = layer.rows()
        assert torch.allclose(rows.a1, weights[0], atol=1e-5) and torch.equal(rows.d, rows.a1) and rows.a2 is None
    assert "corrects the outputs of 2 of 4 heads" in capture.facts["warnings"]
    plain = diffscope.load(tiny.standard("llama")).capture(IDS)
    assert abs(plain.map("A1", 0, 1) - capture.map("A1", 0, 1)).max() < 1e-5  # it does not touch the maps of its own layer
    assert abs(plain.map("A1", 1, 1) - capture.map("A1", 1, 1)).max() > 0.1


def test_cached_steps_see_what_the_whole_prompt_sees():
    same.cached_steps_see_the_whole_prompt(dex.tiny(base="qwen3"), IDS)


def test_an_ablated_head_is_silent_after_its_correction():
    scope, other = diffscope.load(dex.tiny()), dex.tiny()
    for layer in other.model.layers:
        layer.self_attn.o_proj.base.weight.data[:, 16:32] = 0  # head 1, which is corrected
    ids = torch.tensor([IDS])
    with torch.no_grad():
        plain, expected = scope.model(ids).logits, other(ids).logits
        with scope.edit(edits.ablate_heads(heads=1)):
            edited, text = scope.model(ids).logits, scope.generate(IDS[:15], 8)
    assert (plain - expected).abs().max() > 0.1 and torch.allclose(edited, expected, atol=1e-3)
    assert text == diffscope.load(other).generate(IDS[:15], 8)
    with pytest.raises(UnsupportedModel, match="no second map"), scope.edit(edits.set_lambda(0.3)):
        scope.capture(IDS)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda layer: replace(layer, correction=None),
        lambda layer: replace(layer, correction=layer.correction.mT),
        lambda layer: replace(layer, correction=-layer.correction),
        lambda layer: replace(layer, correction=layer.correction.roll(1, 0)),
    ],
)
def test_a_misreading_is_refused(wrong, monkeypatch):
    scope, read = diffscope.load(dex.tiny()), Dex.read
    monkeypatch.setattr(Dex, "read", lambda family, passage: wrong(read(family, passage)))
    with pytest.raises(FidelityError, match="layer 0: .*'dex'"):
        scope.capture(IDS)


def test_what_is_not_dex_as_published_is_refused():
    def refused(change, words):
        model = dex.tiny()
        change(model.model.layers[0].self_attn.o_proj)
        with pytest.raises(UnsupportedModel, match=words):
            diffscope.load(model).capture(IDS)

    refused(lambda wrapper: wrapper.adapter.proj.register_parameter("bias", nn.Parameter(torch.zeros(16))), "without bias")
    refused(lambda wrapper: setattr(wrapper, "other", nn.Linear(64, 64)), "wraps 2 parts besides DEX")
    adapter = dex.DEX(0, (0,))
    adapter.weight = nn.Parameter(torch.zeros(4, 16, 16))
    with pytest.raises(UnsupportedModel, match="one matrix W_D"):
        correction_of(adapter, 4, torch.float32)
    with pytest.raises(UnsupportedModel, match="selects among 4 heads, but the attention has 6"):
        correction_of(dex.DEX(0, (0,)), 6, torch.float32)


def test_what_is_kept_outlives_the_weights():
    same.what_is_kept_outlives_the_weights(dex.tiny(), IDS)
