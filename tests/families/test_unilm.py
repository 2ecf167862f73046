"""The authors' own modules, V1 and V2: read as they compute, and V1 in the flash files is exactly Hugging Face's DiffLlama."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

import diffscope
from diffscope import FidelityError, UnsupportedModel, edits, families
from tests import tiny
from tests.families import same
from tests.layouts import unilm

pytestmark = pytest.mark.filterwarnings("ignore::diffscope.DiffscopeWarning")

IDS = tiny.ids(33)
V1 = ("naive", "flash1", "flash2")
GROUPS = (None, 2, 1)


@pytest.mark.parametrize("kv_heads", [None, 2])
@pytest.mark.parametrize("kind", [*V1, "v2", "v2-off"])
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-11), (torch.bfloat16, 0.1)])
def test_every_layer_is_rebuilt(kind, kv_heads, dtype, bound):
    bound = 5e-6 if kind == "naive" and dtype == torch.float64 else bound  # its softmax is in float32 whatever the model
    model = unilm.tiny(kind=kind, kv_heads=kv_heads).to(dtype)
    capture = diffscope.load(model).capture([IDS[:19], IDS])
    assert float(capture.fidelity.error.max()) < bound and capture.fidelity.decided.all()
    assert capture.differential == (kind != "v2-off")
    name = "unilm" if kind in V1 else "unilm-v2"
    assert [family.name for family in families.FAMILIES if family.modules(model)] == [name] == [capture.family]


def as_naive(model):
    """The same function in naive modules: every key and value head written out once for each head that uses it."""
    other = unilm.tiny(kind="naive")
    state = model.state_dict()
    for name, value in state.items():
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            state[name] = value.unflatten(0, (-1, 16)).repeat_interleave(64 // len(value), 0).flatten(0, 1)
    other.load_state_dict(state)
    return other


@pytest.mark.parametrize("kv_heads", GROUPS)
@pytest.mark.parametrize("kind", V1)
def test_maps_are_those_of_the_layout(kind, kv_heads):
    model = unilm.tiny(kind=kind, kv_heads=kv_heads)
    layout = model if kind == "naive" else as_naive(model)
    with torch.no_grad():
        assert torch.allclose(layout(torch.tensor([IDS])), model(torch.tensor([IDS])), atol=1e-3)
    for layer, part in zip(diffscope.load(model).capture(IDS).layers, layout.layers):
        rows = layer.rows()
        for seen, saved in zip((rows.a1, rows.a2, rows.d), part.maps):
            assert torch.allclose(seen, saved[0], atol=2e-6)
        assert rows.a1.sub(rows.a2).abs().max() > 0.1 and torch.equal(layer.lam.flatten(), part.lam(torch.float32)[None])


class ScalesInPlace(unilm.MultiheadDiffAttn):
    """As copies of the naive file have it that leave RoPE out: what the projection gave is what is scaled."""

    def project(self, x, rel_pos):
        q, k = (proj(x).unflatten(-1, (-1, self.head_dim)) for proj in (self.q_proj, self.k_proj))
        return q, k, self.v_proj(x).unflatten(-1, (-1, 2 * self.head_dim))


def test_a_projection_that_is_scaled_in_place_is_kept_as_it_was():
    torch.manual_seed(0)
    model = tiny.awake(unilm.Model([ScalesInPlace(64, depth, 4) for depth in range(2)], 64, 0))  # RoPE turns no element
    capture = diffscope.load(model).capture(IDS)
    for layer, part in zip(capture.layers, model.layers):
        assert torch.allclose(layer.rows().a1, part.maps[0][0], atol=2e-6)
    with diffscope.load(model).edit(edits.scale_lambda(1.0)), torch.no_grad():
        edited = model(torch.tensor([IDS]))
    assert torch.allclose(edited, model(torch.tensor([IDS])), atol=1e-3)


@pytest.mark.parametrize("kv_heads", GROUPS)
def test_maps_and_lambda_of_v2_are_those_of_the_layout(kv_heads):
    model = unilm.tiny(kind="v2", kv_heads=kv_heads).to(torch.bfloat16)
    capture, seen = diffscope.load(model).capture(IDS), []
    model.layers[1].lambda_proj.register_forward_hook(lambda module, args, out: seen.append(out.sigmoid()[0].T))
    with torch.no_grad():
        model(torch.tensor([IDS]))
    layer, rows = capture.layers[1], capture.layers[1].rows()
    assert torch.equal(layer.lam[0], seen[0]) and layer.lam.dtype == torch.bfloat16
    assert 0 < (layer.lam_fp32 - layer.lam).abs().max() < 0.01
    maps = model.layers[1].maps[0].float()  # from rounded scores, which flash-attn's are not
    assert (rows.a1 - maps[0::2]).abs().max() < 0.05 and (rows.a2 - maps[1::2]).abs().max() < 0.05
    assert (rows.a1 - maps[1::2]).abs().max() > 0.5


def test_the_naive_file_rounds_in_half_precision_and_so_do_its_maps():
    model = unilm.tiny(kind="naive", heads=8).to(torch.bfloat16)  # d = 4
    other = unilm.tiny(kind="naive", heads=4).to(torch.bfloat16)  # d = 8: the scale is no power of two, so it rounds as well
    for item in (model, other):
        for layer, part in zip(diffscope.load(item).capture(IDS).layers, item.layers):
            assert (layer.rows().a1 - part.maps[0][0].float()).abs().max() < torch.finfo(torch.bfloat16).eps / 2


# Hugging Face's DiffLlama


def by_halves(weight, d):
    """Rows of interleaved RoPE as rows of half RoPE, inside each head."""
    return weight.unflatten(0, (-1, d // 2, 2)).transpose(1, 2).flatten(0, 2)


def heads_apart(weight, d):
    """Heads 2h + c → h + c·H, of d rows each."""
    return weight.unflatten(0, (-1, 2, d)).transpose(0, 1).flatten(0, 2)


def as_diffllama(model, heads, kv_heads):
    """A real DiffLlama with the same function: weights permuted, the norm's weight in the output projection, MLPs silent."""
    config = DiffLlamaConfig(
        **{**tiny.SHAPE, "rms_norm_eps": 1e-5}, num_attention_heads=2 * heads, num_key_value_heads=2 * kv_heads
    )
    other, d = DiffLlamaForCausalLM(config).double().eval(), 32 // heads
    state = {
        "model.embed_tokens.weight": model.embed.weight,
        "model.norm.weight": model.norm.weight,
        "lm_head.weight": model.head.weight,
    }
    for index, (norm, layer) in enumerate(zip(model.norms, model.layers)):
        at = f"model.layers.{index}."
        state |= {
            f"{at}input_layernorm.weight": norm.weight,
            f"{at}mlp.down_proj.weight": torch.zeros(64, config.intermediate_size),
            f"{at}self_attn.q_proj.weight": by_halves(heads_apart(layer.q_proj.weight, d), d),
            f"{at}self_attn.k_proj.weight": by_halves(heads_apart(layer.k_proj.weight, d), d),
            f"{at}self_attn.v_proj.weight": heads_apart(layer.v_proj.weight, d),
            f"{at}self_attn.o_proj.weight": layer.out_proj.weight * layer.subln.weight.repeat(heads),
        }
        state |= {f"{at}self_attn.lambda_{name}": getattr(layer, f"lambda_{name}") for name in ("q1", "k1", "q2", "k2")}
    assert not other.load_state_dict(state, strict=False).unexpected_keys
    return other


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("kind", ["flash1", "flash2"])
def test_a_flash_file_is_a_diffllama_with_its_weights_in_another_order(kind, kv_heads):
    """Logits, λ and every map, of modules of ours and of the real class, which takes norms, angles and λ in float32."""
    model = unilm.tiny(kind=kind, kv_heads=kv_heads).double()
    for norm in (*model.norms, model.norm):
        nn.init.uniform_(norm.weight, 0.5, 2.0)
    other = as_diffllama(model, 4, kv_heads)
    ids = torch.tensor([IDS])
    with torch.no_grad():
        assert (model(ids) - other(ids).logits).abs().max() < 1e-4
    ours, theirs = (diffscope.load(item).capture(IDS) for item in (model, other))
    assert (ours.family, theirs.family) == ("unilm", "diffllama")
    for layer in range(2):
        for head in range(4):
            for name in ("A1", "A2", "D"):
                assert np.abs(ours.map(name, layer, head) - theirs.map(name, layer, head)).max() < 1e-5
    assert np.abs(ours.lam - theirs.lam).max() < 1e-6


def theirs_lambda(layer):
    """λ as the real class rounds it: products are summed in float32."""
    pairs = (layer.lambda_q1 * layer.lambda_k1, layer.lambda_q2 * layer.lambda_k2)
    first, second = (torch.sum(products, dtype=torch.float32).exp() for products in pairs)
    return lambda dtype: first.to(dtype) - second.to(dtype) + layer.lambda_init


@torch.no_grad()
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_alone_agrees_to_the_last_digits(kv_heads):
    model = unilm.tiny(kind="flash1", kv_heads=kv_heads).double()
    other = as_diffllama(model, 4, kv_heads)
    x, generator = torch.empty(2, 33, 64, dtype=torch.float64), torch.Generator().manual_seed(1)
    x.normal_(generator=generator)
    angle = torch.arange(33, dtype=torch.float64)[:, None] * 10_000.0 ** -(torch.arange(4, dtype=torch.float64) / 4)
    twice = tuple(torch.cat([part, part], -1)[None].expand(2, -1, -1) for part in (angle.cos(), angle.sin()))
    mask = torch.ones(33, 33, dtype=torch.bool).tril()[None, None]
    for ours, theirs in zip(model.layers, other.model.layers):
        ours.lam = theirs_lambda(ours)
        out = theirs.self_attn(x, twice, mask)[0]
        assert (ours(x, (angle.cos(), angle.sin())) - out).abs().max() < 1e-12 * out.abs().max()


# grouped keys, masks and what re-implementations leave out


def test_keys_repeated_before_pairing_are_said():
    def said(**more):
        return diffscope.load(unilm.tiny(**more)).capture(IDS).facts.get("warnings", "")

    assert "repeated before the maps are paired" in said(kind="naive", kv_heads=2)
    assert not said(kind="naive") and not said(kind="flash1", kv_heads=2)
    odd = diffscope.load(unilm.tiny(kind="naive", heads=4, kv_heads=1)).capture(IDS)
    assert odd.layers[0].pairing.key_of_map.tolist() == [0] * 4 + [1] * 4
    with pytest.warns(diffscope.DiffscopeWarning, match="unlike"):
        diffscope.load(unilm.tiny(kind="naive", kv_heads=2)).capture(IDS)
    other = unilm.tiny(kind="naive", kv_heads=2)
    for layer in other.layers:
        layer.__class__ = type("Attention", (unilm.MultiheadDiffAttn,), {})  # by any other name
    assert "repeated before the maps are paired" in diffscope.load(other).capture(IDS).facts["warnings"]


def test_an_untrained_naive_file_is_not_taken_for_a_flash_file():
    """Its maps are nearly uniform: in half precision either reading rebuilds it."""
    model = unilm.tiny(kind="naive", kv_heads=2)
    for layer in model.layers:
        for name in ("q", "k"):
            nn.init.normal_(getattr(layer, f"{name}_proj").weight, std=0.02)
    assert "repeated before" in diffscope.load(model.to(torch.bfloat16)).capture(IDS).facts["warnings"]


def test_the_naive_file_takes_a_mask_and_the_flash_files_ignore_it():
    near = torch.ones(33, 33).tril().triu(-6) > 0
    for kind, expected in (("naive", ("window", 7)), ("flash1", ("causal", None))):
        for shape in ((33, 33), (1, 1, 33, 33)):
            model = unilm.tiny(kind=kind)
            model.attn_mask = torch.zeros(33, 33).masked_fill(~near, -torch.inf).reshape(shape)
            mask = diffscope.load(model).capture(IDS).layers[0].mask
            assert (mask.kind, mask.window) == expected


def test_norms_of_other_revisions():
    old = diffscope.load(unilm.tiny(affine=False)).capture(IDS).layers[0]
    assert old.norm.weight is None and old.norm.eps == 1e-5
    model = unilm.tiny()
    for layer in model.layers:
        layer.subln = nn.RMSNorm(16)  # eps is what torch chooses
    assert diffscope.load(model).capture(IDS).layers[0].norm.eps == torch.finfo(torch.float32).eps
    for layer in model.layers:
        layer.subln = nn.Identity()
    assert diffscope.load(model).capture(IDS).layers[0].norm is None
    for layer in model.layers:
        layer.subln = nn.LayerNorm(16)
    with pytest.raises(UnsupportedModel, match="LayerNorm, the norm of the heads' outputs"):
        diffscope.load(model).capture(IDS)


def test_what_the_published_modules_do_not_have_is_refused_in_words():
    sizes = {"q": 64, "k": 64, "v": 64}
    for shape, words in (((4, 8), r"λ vectors of shape \(4, 8\)"), ((7,), "queries of 64, keys of 64")):
        model = unilm.tiny()
        model.layers[0].lambda_q1 = nn.Parameter(torch.zeros(shape))
        refused(model, words, **sizes)
    refused(unilm.tiny(), "called with 'cache'", cache=object(), **sizes)
    refused(unilm.tiny(), "a rel_pos that is not", rel_pos=(torch.zeros(5, 8), torch.zeros(5, 8)), **sizes)
    refused(unilm.tiny(), r"attn_mask of shape \(1, 5\)", attn_mask=torch.zeros(1, 5), **sizes)
    for added in (torch.ones(5, 5), torch.ones(5, 5, dtype=torch.int64)):
        refused(unilm.tiny(), "adds a position bias to the scores", attn_mask=added, **sizes)
    odd = unilm.tiny(kind="v2", heads=3, kv_heads=2)
    refused(odd, "look at different values", q=96, k=32, v=32, **{"lambda": 3})


def refused(model, words, cache=None, rel_pos=None, attn_mask=None, **widths):
    """A first layer that is called with these arguments on five tokens, and projects to these widths."""
    arguments = {"x": torch.zeros(1, 5, 64), "rel_pos": rel_pos, "attn_mask": attn_mask, "cache": cache}
    parts = {name: torch.zeros(1, 5, width) for name, width in widths.items()}
    with pytest.raises(UnsupportedModel, match=words):
        families.find(model).read(families.AttentionPass(model.layers[0], 0, 0, (5,), arguments, parts))


# edits and mistakes


@pytest.mark.parametrize("kind", [*V1, "v2"])
def test_a_set_lambda_is_that_of_the_layout(kind):
    scope, other = diffscope.load(unilm.tiny(kind=kind, kv_heads=2)), unilm.tiny(kind=kind, kv_heads=2)
    for part in other.layers:
        if kind == "v2":
            part.lambda_proj.register_forward_hook(lambda module, args, out: torch.full_like(out, math.log(0.3 / 0.7)))
        else:
            part.lam = lambda dtype: torch.tensor(0.3, dtype=dtype)
    ids = torch.tensor([IDS])
    with torch.no_grad(), scope.edit(edits.set_lambda(0.3)):
        edited, expected = scope.model(ids), other(ids)
        assert scope.generate(IDS[:12], 5) == diffscope.load(other).generate(IDS[:12], 5)
    with torch.no_grad():
        assert (scope.model(ids) - expected).abs().max() > 0.1 and torch.allclose(edited, expected, atol=1e-3)


MISREADINGS = {
    "head h owns maps 2h and 2h \\+ 1": lambda layer: replace(
        layer, pairing=replace(layer.pairing, a1=torch.arange(4), a2=torch.arange(4, 8))
    ),
    "λ is not the value": lambda layer: replace(layer, lam=layer.lam + 0.3),
    "K is paired before it is repeated": lambda layer: replace(
        layer, pairing=replace(layer.pairing, key_of_map=torch.arange(8) // 2)
    ),
}


@pytest.mark.parametrize("cause", MISREADINGS)
def test_a_misreading_is_refused_with_its_cause(cause, monkeypatch):
    scope = diffscope.load(unilm.tiny(kind="flash1", kv_heads=2))
    kind = type(scope.family)
    readings = kind.readings
    monkeypatch.setattr(kind, "readings", lambda family, passage: [MISREADINGS[cause](next(readings(family, passage)))])
    with pytest.raises(FidelityError, match=f"layer 0: .*'unilm'.*likely cause: .*{cause}"):
        scope.capture(IDS)


@pytest.mark.parametrize("kind", ["flash1", "v2"])
def test_what_is_kept_outlives_the_weights(kind):
    same.what_is_kept_outlives_the_weights(unilm.tiny(kind=kind), IDS)
