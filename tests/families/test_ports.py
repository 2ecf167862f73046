"""Ports that people copy: each is opened by its family alone, its maps are those of the layout, edits do what they say."""

from functools import partial

import pytest
import torch

import diffscope
from diffscope import FidelityError, PromptError, UnsupportedModel, edits, families
from tests import tiny
from tests.families import same
from tests.layouts import ports, vision

IDS = tiny.ids(33)
TEXTS = {
    "nanowell": ports.nanowell,
    "nanowell, bidirectional": partial(ports.nanowell, causal=False),
    "kyegomez": ports.kyegomez,
    "diffclip": partial(ports.diffclip, kind=ports.Text),
}


def rows_of(model, scope):
    """For each layer what was read, and A1, A2 and λ of the layout."""
    kind = scope.family.name
    for block, layers in zip(getattr(model, "resblocks", None) or model.layers, attended(scope)):
        if kind == "kyegomez":  # of whose two runs the second is still there
            a1, a2 = (torch.stack([head.seen[i][0] for head in block.attn.diff_attn_heads]) for i in (0, 1))
            yield layers[-1].rows(), a1, a2, block.λ
        elif kind == "nanowell":
            yield layers[0].rows(), *(part[0] for part in block.attn.seen[:2]), block.attn.seen[2]
        else:
            yield layers[0].rows(), *(part[0] for part in block.attn.seen), None


def attended(scope):
    layers = scope.capture(IDS).layers
    each = 2 if scope.family.name == "kyegomez" else 1
    return [layers[first : first + each] for first in range(0, len(layers), each)]


@pytest.mark.parametrize("name", TEXTS)
def test_maps_are_those_of_the_layout(name):
    model = TEXTS[name]()
    assert [family.name for family in families.FAMILIES if family.modules(model)] == [name.partition(",")[0]]
    for rows, a1, a2, lam in rows_of(model, diffscope.load(model)):
        assert (rows.a1 - a1).abs().max() < 2e-6 and (rows.a2 - a2).abs().max() < 2e-6 and (a1 - a2).abs().max() > 0.1
        if lam is not None:
            assert (rows.d - (a1 - lam * a2)).abs().max() < 5e-6


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-11), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("name", TEXTS)
def test_every_layer_is_rebuilt(name, dtype, bound):
    batch = [IDS, tiny.ids(33, seed=1)] if "bidirectional" in name or name == "kyegomez" else [IDS[:19], IDS]
    capture = diffscope.load(TEXTS[name]().to(dtype)).capture(batch)
    assert float(capture.fidelity.error.max()) < bound and capture.fidelity.decided.all()


def test_every_head_has_a_lambda_of_its_own():
    lam = diffscope.load(ports.nanowell()).capture(IDS).lam
    assert lam.sizes["head"] == 4 and len(set(lam.values[1].ravel().tolist())) == 4


def test_a_block_that_attends_twice_is_two_layers():
    capture = diffscope.load(ports.kyegomez()).capture(IDS)
    assert capture.layer_numbers == [0, 2, 1, 3] and float(capture.lam.min()) == pytest.approx(0.3)


@pytest.mark.parametrize("name", TEXTS)
def test_a_set_lambda_is_that_of_the_layout(name):
    model, other, ids = TEXTS[name](), TEXTS[name](), torch.tensor([IDS])
    scope, lams = diffscope.load(model), [0.1, 0.1]
    scope.capture(IDS)
    for index, block in enumerate(getattr(other, "resblocks", None) or other.layers):
        if name == "kyegomez":
            block.λ = 0.1
            continue
        lams[index] = block.attn.lambda_init  # which is λ where its vectors are 0
        for part in ("q1", "k1", "q2", "k2"):
            getattr(block.attn, f"lambda_{part}").data.zero_()
    with torch.no_grad():
        plain, expected = model(ids), other(ids)
        with scope.edit(*(edits.set_lambda(lams[layer % 2], layers=layer) for layer in scope.layer_numbers)):
            assert torch.allclose(model(ids), expected, atol=1e-3)
    assert (plain - expected).abs().max() > 0.1


def test_images_of_diffclip():
    model = ports.diffclip()
    capture = diffscope.load(model).capture([vision.image(0), vision.image(1)])
    assert capture.family == "diffclip" and capture.tokens[0][:2] == ["class", "0,0"] and capture.fidelity.decided.all()
    for layer, block in zip(capture.layers, model.blocks):
        rows = layer.prompt(1).rows()
        assert (rows.a1 - block.attn.seen[0][1]).abs().max() < 2e-6 and (rows.a2 - block.attn.seen[1][1]).abs().max() < 2e-6


def test_a_model_of_two_towers_is_opened_tower_by_tower():
    model = ports.diffclip(kind=ports.DiffCLIP)
    with pytest.raises(UnsupportedModel, match="takes image and text at once.*model.visual") as error:
        diffscope.load(model)
    assert "\n" not in str(error.value)
    assert diffscope.load(model.visual).capture(vision.image()).n_tokens == 17
    assert diffscope.load(model.transformer).capture(IDS).layers[0].mask.kind == "causal"


def test_an_edit_of_a_text_tower_outside_of_a_capture():
    """Its tokens come first: a bare call has no other sign of which is which."""
    scope, ids = diffscope.load(ports.diffclip(kind=ports.Text)), torch.tensor([IDS, tiny.ids(33, seed=1)])
    with torch.no_grad():
        plain = scope.model(ids)
        with scope.edit(edits.scale_lambda(1.0)):
            assert torch.allclose(scope.model(ids), plain, atol=1e-3)
        with scope.edit(edits.set_lambda(0.1)):
            assert not torch.allclose(scope.model(ids), plain, atol=1e-1)


def test_what_is_wrong_is_named():
    model = ports.nanowell()
    model.layers[0].attn.d_head *= 2
    with pytest.raises(FidelityError, match=r"layer 0: .*'nanowell'.*likely cause: .*scaled by 1/√\(2d\)"):
        diffscope.load(model).capture(IDS)
    with pytest.raises(PromptError, match="padding too; give prompts of one length"):
        diffscope.load(ports.nanowell(causal=False)).capture([IDS, IDS[:9]])
    model = ports.kyegomez(λ=torch.tensor([0.1, 0.2, 0.3])[:, None])
    with pytest.raises(UnsupportedModel, match="not given one number for λ"):
        diffscope.load(model).capture(IDS[:3])


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_kept_outlives_the_weights(name):
    same.what_is_kept_outlives_the_weights(TEXTS[name](), IDS)
