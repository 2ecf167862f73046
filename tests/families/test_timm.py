"""timm's own classes: every map is the implementation's."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import diffscope
from diffscope import FidelityError, UnsupportedModel, edits, families
from diffscope.attention.components import Mask
from diffscope.families.hooks import attention_passes
from diffscope.families.timm import Timm
from diffscope.proof.prove import prove_passage
from tests.layouts import vision

pytestmark = pytest.mark.usefixtures("timm")

KINDS = {
    "attention": {},
    "attention-own-softmax": dict(fused=False),
    "attention-everything": dict(qk_norm=True, scale_attn_norm=True, qkv_bias=False, proj_bias=False, num_heads=2),
    "parallel": dict(parallel=True),
    "parallel-own-softmax": dict(parallel=True, fused=False, qk_norm=True, qkv_bias=False),
}


def diff_modules(model):
    return Timm().modules(model)


def with_two_numbers(timm, kind):
    """λ from two numbers, as no model of timm's registry has it."""
    model = vision.tiny(parallel=kind == "parallel")
    for depth, module in enumerate(diff_modules(model)):
        options = dict(num_heads=4, qkv_bias=True, depth=depth, dual_lambda=True)
        if kind == "parallel":
            model.blocks[depth] = timm.models.vision_transformer.DiffParallelScalingBlock(64, mlp_ratio=2, **options)
        else:
            model.blocks[depth].attn = type(module)(64, **options)
    return vision.disturb(model).eval()


def maps_of(model, images):
    """A1 and A2 of each layer as timm's own softmax gives them, each (batch, head, query, key); the model is not fused."""
    measured, handles = [], []
    for module in diff_modules(model):
        handles.append(
            module.attn_drop.register_forward_hook(lambda module, args, out: measured.append(out.unflatten(1, (-1, 2))))
        )
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    return [(weights[:, :, 0], weights[:, :, 1]) for weights in measured]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-11), (torch.bfloat16, 0.1), (torch.float16, 0.015)])
def test_every_layer_is_rebuilt(kind, dtype, bound):
    model = vision.tiny(**KINDS[kind]).to(dtype)
    capture = diffscope.load(model).capture([vision.image(0), vision.image(1)])
    assert float(capture.fidelity.error.max()) < bound
    assert capture.fidelity.rows.values.tolist() == [34, 34] and capture.fidelity.decided.all()


@pytest.mark.parametrize("kind", ["attention", "parallel"])
def test_lambda_of_two_numbers(timm, kind):
    model = with_two_numbers(timm, kind)
    scope = diffscope.load(model)
    capture = scope.capture(vision.image())
    assert float(capture.fidelity.error.max()) < 1e-5 and capture.fidelity.decided.all()
    expected = [module._compute_lambda().item() for module in diff_modules(model)]
    assert capture.lam.values[:, 0].tolist() == expected
    assert scope.family.convention_of(diff_modules(model)[0]).lam == "exp(a) − exp(b) + λ_init"


@pytest.mark.parametrize("kind", ["attention-own-softmax", "parallel-own-softmax"])
@pytest.mark.parametrize("dtype, unit", [(torch.float32, 1e-5), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
def test_maps_are_those_of_the_implementation(kind, dtype, unit):
    """With large scores the rounding before the softmax moves the maps themselves; they are shown as the model has them."""
    model = vision.tiny(**KINDS[kind])
    with torch.no_grad():
        for module in diff_modules(model):
            (module.qkv if hasattr(module, "qkv") else module.in_proj).weight.mul_(1.5)
    images = torch.stack([vision.image(0), vision.image(1)]).to(dtype)
    model = model.to(dtype)
    capture = diffscope.load(model).capture(images)
    for layer, (module, (first, second)) in enumerate(zip(diff_modules(model), maps_of(model, images))):
        lam = float(module._compute_lambda().detach().to(dtype))
        for head in range(4):
            a1, a2 = first[1, head].float().numpy(), second[1, head].float().numpy()
            assert np.abs(capture[1].map("A1", layer, head) - a1).max() < unit
            assert np.abs(capture[1].map("A2", layer, head) - a2).max() < unit
            assert np.abs(capture[1].map("D", layer, head) - (a1 - lam * a2)).max() < (1 + abs(lam)) * unit
        assert np.allclose(capture[1].map("D", layer, 0).sum("key"), 1 - lam, atol=1e-5)


def test_no_other_family_claims_it():
    for parallel in (False, True):
        model = vision.tiny(parallel=parallel)
        assert isinstance(families.find(model), Timm)
        assert not any(family.modules(model) for family in families.FAMILIES if family.name != "timm")
    with pytest.raises(UnsupportedModel, match="VisionTransformer has no attention that diffscope reads"):
        diffscope.load(vision.tiny(attn_layer="attn"))


@pytest.mark.parametrize("parallel", [False, True])
def test_a_wrong_reading_is_refused_by_name(parallel):
    scope = diffscope.load(vision.tiny(parallel=parallel))
    head = torch.arange(4)

    def misread(change):
        scope.family = type("Misreading", (Timm,), {"read": lambda self, passage: change(Timm.read(self, passage))})()

    misread(lambda layer: replace(layer, pairing=replace(layer.pairing, a1=head, a2=head + 4)))
    with pytest.raises(FidelityError, match="head h owns maps 2h and 2h"):
        scope.capture(vision.image())
    misread(lambda layer: replace(layer, mask=Mask("causal")))
    with pytest.raises(FidelityError, match="queries see later keys"):
        scope.capture(vision.image())


@pytest.mark.parametrize("kind", ["attention", "attention-own-softmax", "parallel"])
def test_an_edit_is_the_model_with_another_lambda(kind):
    model, image = vision.tiny(**KINDS[kind]), vision.image()[None]
    scope = diffscope.load(model)
    with torch.no_grad(), scope.edit(edits.set_lambda(0.3)):
        edited = model(image)
        assert np.allclose(scope.capture(image[0]).lam, 0.3)
    with torch.no_grad():
        before = model(image)
        for module in diff_modules(model):
            module._compute_lambda = lambda: torch.tensor(0.3)
        really = model(image)
    assert torch.allclose(edited, really, atol=1e-4) and (before - really).abs().max() > 0.01


def masks():
    seen = torch.rand(17, 17, generator=torch.Generator().manual_seed(0)) < 0.6
    seen |= torch.eye(17, dtype=torch.bool)
    added = torch.zeros(1, 1, 17, 17).masked_fill(~seen, -torch.inf)
    last = torch.arange(17) < 14
    return {
        "bool": (dict(attn_mask=seen), seen),
        "added": (dict(attn_mask=added), seen),
        "keys": (dict(attn_mask=last[None, None, None]), last.expand(17, 17)),
        "causal": (dict(is_causal=True), torch.ones(17, 17).tril().bool()),
    }


@pytest.mark.parametrize("kind", ["attention", "attention-own-softmax", "parallel"])
@pytest.mark.parametrize("mask", masks())
def test_a_mask_given_to_the_model_is_read(kind, mask):
    model, layers = vision.tiny(**KINDS[kind]), []
    argument, seen = masks()[mask]
    with torch.no_grad(), attention_passes(model, Timm(), None, lambda passage: layers.append(prove_passage(Timm(), passage))):
        model(vision.image()[None], **argument)
    for layer, proof in layers:
        assert proof.error < 1e-5 and torch.equal(layer.visible(), seen)
    if mask == "bool":
        with (
            pytest.raises(UnsupportedModel, match="head to head"),
            attention_passes(model, Timm(), None, Timm().read),
            torch.no_grad(),
        ):
            model(vision.image()[None], attn_mask=seen.expand(1, 4 if kind != "attention-own-softmax" else 8, 17, 17))


def test_depth_is_what_the_module_says(timm):
    model = vision.tiny()
    for module, depth in zip(diff_modules(model), (1, 2)):
        module.set_lambda_init(depth)
    scope = diffscope.load(model)
    capture = scope.capture(vision.image())
    assert np.allclose(capture.lam_init, [0.8 - 0.6 * np.exp(-0.3), 0.8 - 0.6 * np.exp(-0.6)]) and capture.fidelity.decided.all()
    report = diffscope.check(scope)
    (finding,) = (finding for finding in report.findings if finding.check == "λ_init")
    assert finding.verdict == "fail" and finding.layers == (0, 1)


@pytest.mark.parametrize("parallel", [False, True])
def test_it_conforms(parallel):
    report = diffscope.check(vision.tiny(parallel=parallel))
    assert {finding.verdict for finding in report.findings} == {"pass"}
    assert {finding.check for finding in report.findings} == {"fidelity", "pairing", "λ_init", "second map"}


def test_training_goes_on_without_the_capture():
    model = vision.tiny(parallel=True)
    capture = diffscope.load(model).capture(vision.image())
    before = capture.layers[1].output().clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    assert torch.equal(capture.layers[1].output(), before)
    held = sum(x.untyped_storage().nbytes() for x in (capture.layers[0].q, capture.layers[0].k, capture.layers[0].v))
    assert held == 3 * 17 * 64 * 4  # not the MLP's part of the same projection


def test_other_models_with_the_same_attention(timm):
    """NaFlexViT under a plain image, and two attentions a block."""
    config = timm.models.naflexvit.NaFlexVitCfg(
        embed_dim=64, depth=2, num_heads=4, patch_size=8, attn_layer="diff", reg_tokens=1, pos_embed_grid_size=(4, 4)
    )
    torch.manual_seed(0)
    model = vision.disturb(timm.models.naflexvit.NaFlexVit(config)).eval()
    capture = diffscope.load(model).capture([vision.image(0, 16, 48), vision.image(1, 16, 48)])
    assert capture.tokens[0][:2] == ["register 0", "0,0"] and capture.n_tokens == [13, 13] and capture.fidelity.decided.all()
    twice = vision.tiny(block_fn=timm.models.vision_transformer.ParallelThingsBlock)
    capture = diffscope.load(twice).capture(vision.image())
    assert capture.n_layers == 4 and float(capture.fidelity.error.max()) < 1e-5
    assert (capture.layer_output_outliers[0] == capture.layer_output_outliers[1]).all() and (
        capture.layer_output_outliers[1:3, 0, 0] > 0
    ).all()
