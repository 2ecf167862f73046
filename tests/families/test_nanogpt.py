"""DIFF V2 in descendants of nanoGPT: both packings, both signs of RoPE, norms and soft cap; planted mistakes are found."""

import pytest
import torch

import diffscope
from diffscope import FidelityError, UnsupportedModel, edits, families
from diffscope.attribution import path_patches, score_attribution
from diffscope.conformance.behaviour import ORDERED
from tests import tiny
from tests.families import same
from tests.layouts import nanogpt

IDS = tiny.ids(33)
MADE = {
    "BlaGPT": {},
    "one key head a head": {"kv_heads": 4},
    "c_attn": {"fused": True},
    "RoPE by θ": {"sign": 1},
    "without norms": {"norms": False},
    "capped": {"cap": 2.0},
    "without RoPE": {"rope": False},
    "values normed": {"v_norm": True},
    "heads first": {"heads_first": True},
    "all heads normed at once": {"norms": "whole"},
}


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 2e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_maps_are_those_of_the_layout(made, dtype, bound):
    model = nanogpt.tiny(**made).to(dtype)
    assert [family.name for family in families.FAMILIES if family.modules(model)] == ["nanogpt"]
    capture = diffscope.load(model).capture(IDS)
    assert capture.fidelity.decided.all()
    for block in model.layers:
        a1, a2, lam = (part[0] for part in block.attn.seen)
        assert (a1 - a2).abs().max() > 0.1 and lam.std() > 0.1
    assert difference(capture, model) < bound


def difference(capture, model):
    """The largest difference of A1, A2 and D from those that the modules kept."""
    pairs = []
    for layer, block in zip(capture.layers, model.layers):
        rows, (a1, a2, lam) = layer.rows(), (part[0] for part in block.attn.seen)
        pairs += [(rows.a1, a1), (rows.a2, a2), (rows.d, a1 - lam * a2)]
    return max(float((read - made_by_it).abs().max()) for read, made_by_it in pairs)


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("tokens", [2, 4, 8])
def test_heads_are_told_from_tokens_where_there_are_as_many(tokens, heads_first):
    """Two heads of keys, eight maps of queries, which is also how often values are repeated."""
    model = nanogpt.tiny(heads_first=heads_first, v_norm=True)
    assert difference(diffscope.load(model).capture(IDS[:tokens]), model) < 2e-6
    assert tokens != ORDERED or diffscope.check(model).passed  # whose prompt of so many tokens has to show their order


def masked(mask, **made):
    """A model whose modules are given a mask at the first call alone, and keep it."""
    model, given = nanogpt.tiny(**made), []

    def give(module, args):
        first = module not in given
        given.append(module)
        return (*args, None, mask) if first else args

    for block in model.layers:
        block.attn.register_forward_pre_hook(give)
    return model


SOME = torch.rand(33, 33, generator=torch.Generator().manual_seed(0)).gt(0.5).tril() | torch.eye(33, dtype=torch.bool)
BAND = torch.ones(33, 33, dtype=torch.bool).tril().triu(-4)


@pytest.mark.parametrize("mask, kind", [(SOME, "given"), (BAND, "window"), (SOME[None, None].long(), "given")])
def test_a_mask_is_read_and_one_that_the_module_keeps_too(mask, kind):
    model = masked(mask)
    scope = diffscope.load(model)
    for _ in range(2):
        capture = scope.capture(IDS)
        assert {layer.mask.kind for layer in capture.layers} == {kind} and difference(capture, model) < 2e-6


@pytest.mark.parametrize("mask", [SOME.float(), torch.zeros(33, 33).masked_fill(~SOME, -torch.inf)])
def test_where_attention_is_written_by_hand_a_mask_hides_what_is_0_or_is_added(mask):
    model = masked(mask, cap=2.0)
    assert difference(diffscope.load(model).capture(IDS), model) < 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("planted, finding", [("halves", "h and h . H"), ("scale", "scores are 1.68"), ("lambda", "")])
def test_a_planted_mistake_is_found(planted, finding, dtype):
    with pytest.raises(FidelityError, match=f"'nanogpt'.*{finding}"):
        diffscope.load(nanogpt.tiny(planted=planted).to(dtype)).capture(IDS)


def test_a_prompt_of_one_token_and_a_padded_batch():
    scope = diffscope.load(nanogpt.tiny())
    assert scope.capture(IDS[:1]).n_tokens == 1
    assert scope.capture([IDS[:19], IDS]).fidelity.decided.all()


def test_it_passes_the_check():
    assert diffscope.check(nanogpt.tiny()).passed


@pytest.mark.parametrize("name, value", [("use_softpick", True), ("rel_pos_emb", torch.zeros(3, 8)), ("v_res_holder", {})])
def test_what_gives_other_maps_is_refused(name, value):
    model = nanogpt.tiny()
    setattr(model.layers[0].attn, name, value)
    with pytest.raises(UnsupportedModel, match=f"{name}.*family nanogpt does not read"):
        diffscope.load(model).capture(IDS)


def test_an_edit_is_that_of_the_layout():
    model, other, ids = nanogpt.tiny(), nanogpt.tiny(), torch.tensor([IDS])
    for block in other.layers:
        block.attn.lambda_proj.weight.data.zero_()  # whose sigmoid is 0.5
    with torch.no_grad():
        plain, expected = model(ids), other(ids)
        with diffscope.load(model).edit(edits.set_lambda(0.5)):
            assert torch.allclose(model(ids), expected, atol=1e-3)
    assert (plain - expected).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("made", [{"sign": 1}, {"sign": 1, "fused": True}], ids=["q_proj", "c_attn"])
def test_scores_are_attributed_with_the_sign_of_rope_that_was_proved(made, dtype):
    scope = diffscope.load(nanogpt.tiny(**made).to(dtype))
    parts = score_attribution(scope, IDS, 1, 1, -1, 18)
    assert abs(parts["total"]) > 1
    assert float(parts["score"].sum()) == pytest.approx(float(parts["total"]), rel=1e-5 if dtype == torch.float32 else 0.02)


@pytest.mark.parametrize("receiver, rows", [("q1", slice(16, 24)), ("q2", slice(24, 32))])
def test_a_path_is_patched_with_the_sign_of_rope_that_was_proved(receiver, rows):
    """From head 0 to the queries of head 1, whose maps are 2 and 3 of width 8; as hooks on the projection make it."""
    model = nanogpt.tiny(sign=1).double()
    first, second = model.layers
    other, ids = [*IDS[:5], *tiny.ids(6, seed=9), *IDS[11:]], torch.tensor([IDS])
    wrote, streams = [], []
    hooks = [
        first.attn.c_proj.register_forward_pre_hook(lambda module, args: wrote.append(args[0][0, :, :8])),
        second.register_forward_pre_hook(lambda module, args: streams.append(args[0])),
    ]
    with torch.no_grad():
        plain, _ = model(ids), model(torch.tensor([other]))
        for hook in hooks:
            hook.remove()
        changed = streams[0] + (wrote[1] - wrote[0]) @ first.attn.c_proj.weight[:, :8].T
        wanted = second.attn.q_proj(second.norm(changed))[..., rows]

        def put(module, args, output):
            output = output.clone()
            output[..., rows] = wanted
            return output

        hook = second.attn.q_proj.register_forward_hook(put)
        expected = model(ids)
        hook.remove()
        (edit,) = path_patches(diffscope.load(model), IDS, other, (1, 1, receiver), [(0, 0, "output")])
        with diffscope.load(model).edit(edit):
            patched = model(ids)
    assert (expected - plain).abs().max() > 1e-3
    torch.testing.assert_close(patched, expected, rtol=1e-6, atol=1e-6)


def test_what_is_kept_outlives_the_weights():
    same.what_is_kept_outlives_the_weights(nanogpt.tiny(), IDS)
