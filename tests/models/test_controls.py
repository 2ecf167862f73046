"""The controls of the matched family are what they say, and are captured, edited and kept like any other model."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import diffscope
from diffscope import UnsupportedModel, edits
from diffscope.models import DiffConfig, DiffForCausalLM
from diffscope.stats import STATISTICS
from tests import tiny

CONTROLS = {
    "standard, rms": dict(attention="standard", head_norm="rms"),
    "standard, scalar": dict(attention="standard", head_norm="scalar"),
    "v1, λ = 1": dict(attention="v1", fixed_lambda=1.0),
    "v1, λ = λ_init": dict(attention="v1", fixed_lambda="init"),
    "v1, λ = 0": dict(attention="v1", fixed_lambda=0.0),
    "v1, scalar": dict(attention="v1", head_norm="scalar"),
    "v1, no norm": dict(attention="v1", head_norm="none"),
    "v1, low rank": dict(attention="v1", second_dim=2),
    "top-k": dict(attention="top_k", top_keys=3),
    "signed": dict(attention="signed", mask_dim=4),
    "gated": dict(attention="gated"),
    "plus": dict(attention="plus"),
    "plus, low rank": dict(attention="plus", second_dim=2),
    "d-plus": dict(attention="d_plus"),
    "d-plus, λ = 1": dict(attention="d_plus", fixed_lambda=1.0),
    "shared A2": dict(attention="shared_a2"),
    "shared A2, no norm": dict(attention="shared_a2", head_norm="none"),
}
DIFFERENTIAL = [name for name in CONTROLS if name.startswith(("v1", "plus", "d-plus", "shared"))]


def made(name, **more):
    """A tiny model whose own parameters are not at their initial values."""
    model = tiny.own(**{"heads": 4, "kv_heads": 2, **CONTROLS[name], **more})
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter, values in model.named_parameters():
            if any(part in parameter for part in ("subln", "mask_", "gate_proj", "lambda_q1")):
                values.add_(torch.randn(values.shape, generator=generator) * 0.5)
    return model


def logits(model, ids, **how):
    with torch.no_grad():
        return model(torch.tensor([ids]), **how).logits[0]


@pytest.mark.parametrize("name", CONTROLS)
def test_captures_are_proved_and_say_what_was_computed(name):
    scope = diffscope.load(made(name))
    cap = scope.capture(tiny.ids(40))
    assert cap.fidelity.error.max() < 1e-5
    assert cap.differential == (name in DIFFERENTIAL)
    batch = scope.capture([tiny.ids(30), tiny.ids(22)])
    assert batch.fidelity.error.max() < 1e-5


@pytest.mark.parametrize("name", CONTROLS)
def test_edits_act_on_what_is_read(name):
    scope = diffscope.load(made(name))
    ids = tiny.ids(20)
    plain = logits(scope.model, ids)
    with scope.edit(edits.ablate_heads(heads=[0])):
        assert (logits(scope.model, ids) - plain).abs().max() > 1e-3 * plain.std()
        assert scope.capture(ids).fidelity.error.max() < 1e-5
    assert torch.equal(logits(scope.model, ids), plain)


@pytest.mark.parametrize("name", CONTROLS)
def test_cached_steps_are_the_full_forward(name):
    model = made(name).double()
    ids = tiny.ids(24)
    full = logits(model, ids)
    assert (tiny.stepwise(model, ids) - full).abs().max() < 1e-12 * full.abs().max()


def test_controls_begin_as_they_say():
    """A model initialises its parts after they are made, and once overwrote what they begin with."""

    def attention(**fields):
        shape = {**tiny.SHAPE, "num_attention_heads": 4, "num_key_value_heads": 2}
        return DiffForCausalLM(DiffConfig(**shape, **fields)).model.layers[1].self_attn

    gates = attention(attention="gated").gates(torch.randn(1, 5, 64))
    assert torch.allclose(gates[..., 1::2], torch.tensor(1.0).tanh()) and (gates[..., 0::2] == 1).all()
    assert (attention(attention="signed").mask_bias == 1).all()
    assert (attention(attention="standard", head_norm="scalar").subln.weight == 1).all()
    assert (attention(attention="v1", head_norm="rms").subln.weight == 1).all()


@pytest.mark.parametrize("name", CONTROLS)
def test_saved_and_opened_again(name, tmp_path):
    model = made(name)
    ids = tiny.ids(12)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(again, ids), logits(model, ids))
    diffscope.load(model).capture(ids).save(tmp_path / "kept.dscope")
    capture = diffscope.open(tmp_path / "kept.dscope")
    assert np.array_equal(capture.map("D", layer=0, head=1), diffscope.load(model).capture(ids).map("D", layer=0, head=1))


ARMS = {"plus": edits.plus, "d_plus": edits.d_plus}
BOUND = {torch.float32: 1e-5, torch.float64: 1e-12}


def spread(difference, of):
    return float(difference.abs().max() / of.std())


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("attention", ARMS)
def test_an_arm_is_the_edit_of_v1_with_the_same_weights(attention, dtype):
    model = made("v1, λ = 0", fixed_lambda=None).to(dtype)
    arm = tiny.own(attention, heads=4, kv_heads=2).to(dtype)
    arm.load_state_dict(model.state_dict())
    ids = tiny.ids(40)
    with diffscope.load(model).edit(ARMS[attention]()):
        edited = logits(model, ids)
    own = logits(arm, ids)
    assert spread(edited - own, own) < BOUND[dtype] < 1e-2 < spread(logits(model, ids) - own, own)
    with diffscope.load(arm).edit(ARMS[attention]()):  # again: added becomes subtracted, and what is positive stays
        again = logits(arm, ids)
    assert spread(again - (logits(model, ids) if attention == "plus" else own), own) < BOUND[dtype]


def v1_of_shared(shared, of_head=None):
    """V1 with the first maps and values of a model of one second map, and that map as the second one of all heads, or of one."""
    model = made("v1, λ = 0", fixed_lambda=None, kv_heads=shared.config.num_key_value_heads).to(shared.dtype)
    state = dict(shared.state_dict())
    for name in [name for name in state if "q_proj" in name or "k_proj" in name]:
        rows = state[name].unflatten(0, (-1, shared.config.head_dim))  # (head + 1, dim, hidden)
        second = model.state_dict()[name].unflatten(0, (-1, 2, shared.config.head_dim))[:, 1].clone()  # (head, dim, hidden)
        second[slice(None) if of_head is None or "k_proj" in name else of_head] = rows[-1]
        state[name] = torch.stack([rows[:-1], second], dim=1).flatten(0, 2)
    model.load_state_dict(state)
    return model


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_shared_second_map_is_that_of_v1_in_every_head(kv_heads, dtype):
    shared = made("shared A2", kv_heads=kv_heads).to(dtype)
    ids = tiny.ids(40)
    own = logits(shared, ids)
    alike = v1_of_shared(shared)
    assert spread(logits(alike, ids) - own, own) < BOUND[dtype]
    for edit in (edits.share_a2(), edits.a2_of_head(1)):
        with diffscope.load(alike).edit(edit):
            assert spread(logits(alike, ids) - own, own) < BOUND[dtype]
    others = v1_of_shared(shared, of_head=2)
    assert spread(logits(others, ids) - own, own) > 1e-2
    with diffscope.load(others).edit(edits.a2_of_head(2)):
        assert spread(logits(others, ids) - own, own) < BOUND[dtype]


def test_a_map_that_is_a_mean_over_heads_is_one_whichever_heads_are_looked_at():
    scope = diffscope.load(made("v1, λ = 1"))
    whole = scope.capture(tiny.ids(30)).layers[1].rows().a2.mean(0)
    with scope.edit(edits.share_a2(layers=1, heads=[0, 3])):
        layer = scope.capture(tiny.ids(30)).layers[1]
    for head in (0, 3):
        assert torch.allclose(layer.rows(heads=[head]).a2[0], whole, atol=1e-6)
    assert torch.equal(layer.rows(heads=[3, 1]).a2, layer.rows().a2[[3, 1]])
    assert not torch.allclose(layer.rows(heads=[1]).a2[0], whole, atol=1e-2)


def test_captures_of_the_arms_show_what_heads_multiply_their_values_with():
    ids = tiny.ids(30)
    for name in ("plus", "d-plus", "shared A2"):
        model = made(name)
        model.set_attn_implementation("eager")
        with torch.no_grad():
            weights = [maps[0] for maps in model(torch.tensor([ids]), output_attentions=True).attentions]  # (map, query, key)
        cap = diffscope.load(model).capture(ids)
        for layer, maps, block in zip(cap.layers, weights, model.model.layers):
            lam = block.self_attn.lam().item()
            rows = layer.rows()
            first, second = rows.a1, rows.a2
            if name == "d-plus":
                exact = (first - lam * second).clamp_min(0)
                assert torch.allclose(maps, exact, atol=1e-6) and (maps == 0).any(-1)[:, 2:].any()
            else:
                assert torch.allclose(maps, torch.cat([first, second]), atol=1e-6)
                exact = first + lam * second if name == "plus" else first - lam * second
            assert torch.allclose(rows.d, exact, atol=1e-6)
            assert (second[1:] == second[:1]).all() == (name == "shared A2")
            sign = -1 if name == "plus" else 1
            assert float(layer.lam) == pytest.approx(sign * lam)
            assert layer.lam_init == pytest.approx(sign * block.self_attn.lambda_init)


def test_statistics_of_a_difference_without_its_negative_part_are_its_own():
    """What takes D for A1 − λ·A2, whose rows sum to 1 − λ, is wrong here."""
    cap = diffscope.load(made("d-plus")).capture(tiny.ids(40), spans={"answer": slice(5, 9)})
    rows = [layer.rows() for layer in cap.layers]
    d = torch.stack([each.d for each in rows]).double()  # (layer, head, query, key)
    measured = cap.measure(["row_sum", "negative_share", "span_mass", "cmrr", "effective_rank", "noise_gain"])
    of_d = measured.sel(map="D", span="answer")
    assert np.allclose(of_d["row_sum"], d.sum(-1), atol=1e-6)
    assert (of_d["negative_share"].fillna(0) == 0).all()
    mass = of_d["span_mass"].isel(query=slice(12, None))
    share = (d[..., 12:, 5:9].sum(-1) / d[..., 12:, :].sum(-1)).numpy()
    for normalisation in ("share", "signed", "positive"):
        assert np.allclose(mass.sel(normalisation=normalisation), share, atol=1e-5)
    assert measured["cmrr"].isnull().all() and "after the subtraction" in measured["cmrr"].attrs["why"]
    singular = torch.linalg.svdvals(d[1, 2])
    entropy = torch.special.entr(singular / singular.sum()).sum()
    erank = measured["effective_rank"].sel(layer=1, head=2, ranked_map="D", definition="erank", control="map")
    assert float(erank) == pytest.approx(float(entropy.exp()), rel=1e-3)
    assert float(cap.pooled_maps(1, [2], size=8, names=["D"])["D"].min()) >= 0
    with pytest.raises(UnsupportedModel, match="no sum of two branches"):
        diffscope.attribution.branch_attribution(diffscope.load(made("d-plus")), [tiny.ids(40)], [5], [[8, 9]])


def test_top_k_is_the_softmax_of_the_largest_scores():
    scope = diffscope.load(made("top-k"))
    layer = scope.capture(tiny.ids(30)).layers[0]
    shown = layer.rows().d.double()
    scores = layer.logits(maps=layer.pairing.a1).double()
    least = scores.topk(3, dim=-1).values[..., -1:]
    expected = scores.masked_fill(scores < least, -torch.inf).softmax(-1)
    assert torch.allclose(shown, expected, atol=1e-6)
    assert set((shown > 0).sum(-1)[:, 2:].flatten().tolist()) == {3}


def test_the_signed_mask_is_made_of_both_tokens():
    model = made("signed")
    cap = diffscope.load(model).capture(tiny.ids(30))
    hidden = {}
    module = model.model.layers[1].self_attn
    handle = module.register_forward_pre_hook(lambda m, args, kw: hidden.update(x=kw["hidden_states"]), with_kwargs=True)
    logits(model, tiny.ids(30))
    handle.remove()
    x = hidden["x"][0]
    for head in range(4):
        u = x @ module.mask_q_proj.weight[4 * head : 4 * head + 4].T
        w = x @ module.mask_k_proj.weight[4 * (head // 2) : 4 * (head // 2) + 4].T
        mask = torch.tanh(u @ w.T / 2 + module.mask_bias[head])
        rows = cap.layers[1].rows(heads=[head])
        assert torch.allclose(rows.d[0], rows.a1[0] * mask, atol=1e-6)
    assert (cap.layers[1].rows().d < -1e-3).any()


def test_gates_are_of_second_heads_and_have_either_sign():
    model = made("gated")
    layer = diffscope.load(model).capture(tiny.ids(30)).layers[0]
    gate = layer.gate[0, :, :, 0]
    assert (gate[0::2] == 1).all() and (gate[1::2].abs() <= 1).all()
    assert (gate[1::2] < 0).any() and (gate[1::2] > 0).any()


@pytest.mark.parametrize("fixed, expected", [(1.0, 1.0), (0.0, 0.0), ("init", None)])
def test_a_fixed_lambda_is_not_learned(fixed, expected):
    model = tiny.own("v1", fixed_lambda=fixed, num_hidden_layers=3)
    assert not any("lambda" in name for name, _ in model.named_parameters())
    lam = diffscope.load(model).capture(tiny.ids(10)).lam
    of_layers = [model.config.lambda_init_of(i) if expected is None else expected for i in range(3)]
    assert np.allclose(np.asarray(lam).reshape(3, -1), np.array(of_layers)[:, None])


@pytest.mark.parametrize("rotated", [1.0, 0.5])
def test_a_narrow_second_map_has_scores_of_its_own_rank(rotated):
    rope = {"rope_type": "proportional", "rope_theta": 100.0, "partial_rotary_factor": rotated}
    model = made("v1, low rank", head_dim=16, second_dim=6, rope_parameters=rope)
    layer = diffscope.load(model).capture(tiny.ids(40)).layers[0]
    q = layer.q[0].double()
    k = layer.k[0].double()[layer.pairing.key_of_map]
    ranks = torch.linalg.matrix_rank(q @ k.mT, rtol=1e-5)
    assert ranks[layer.pairing.a2].tolist() == [6] * 4 and ranks[layer.pairing.a1].min() > 6
    # Scores depend on the order of two tokens too, as those of a whole map do, which a lone element of a rotated pair cannot.
    same = diffscope.load(model).capture([5] * 30).layers[0]
    q = same.q[0, same.pairing.a2[0]]
    k = same.k[0, same.pairing.key_of_map[same.pairing.a2[0]]]
    assert abs(q[10] @ k[15] - q[15] @ k[10]) > 1e-3 * (q[10] @ k[10]).abs()


def test_statistics_of_a_signed_map_are_not_those_of_its_softmax():
    """What takes a shortcut where there is no second map has to look whether the rows are changed."""
    cap = diffscope.load(made("signed")).capture(tiny.ids(40), spans={"answer": slice(5, 9)})
    of_maps = [name for name, statistic in STATISTICS.items() if {"map", "ranked_map"} & set(statistic.dims)]
    names = [name for name in of_maps if "error" not in name]
    measured = cap.measure(names)
    for name in names:
        dim = "map" if "map" in measured[name].dims else "ranked_map"
        a1, d = (measured[name].sel({dim: which}).values for which in ("A1", "D"))
        assert not np.array_equal(a1, d, equal_nan=True) or np.isnan(d).all(), name
    assert "as the layer changes it" in measured["span_mass"].attrs["why"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["top-k", "signed", "d-plus"])
def test_weights_are_chosen_in_single_precision(name, dtype):
    """Rounded to half precision many weights of a flat row are equal, and which of them are largest is chance."""
    fields = dict(top_keys=8) if name == "top-k" else {}
    model = tiny.own(heads=4, kv_heads=2, **CONTROLS[name] | fields)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.mul_(0.2)
    for seed in range(4):
        diffscope.load(model.to(dtype)).capture(tiny.ids(60, seed))


def test_a_fixed_lambda_has_no_initial_value_to_move_from():
    layers = {lam: diffscope.load(tiny.own("v1", fixed_lambda=lam)).capture(tiny.ids(10)).layers[0] for lam in (1.0, "init")}
    assert layers[1.0].lam_init is None and layers["init"].lam_init == pytest.approx(0.2)
    assert layers[1.0].post_scale == pytest.approx(0.8)


def test_without_a_norm_the_output_is_the_difference_itself():
    layer = diffscope.load(made("v1, no norm")).capture(tiny.ids(20)).layers[0]
    assert layer.norm is None and layer.post_scale == pytest.approx(1 - layer.lam_init)
    assert torch.equal(layer.output(), layer.head_outputs() * layer.post_scale)


@pytest.mark.parametrize(
    "fields, why",
    [
        (dict(attention="standard", fixed_lambda=1.0), "fixed_lambda"),
        (dict(attention="v1", fixed_lambda="first"), "init"),
        (dict(attention="v1", fixed_lambda=float("nan")), "fixed_lambda"),
        (dict(attention="v1", fixed_lambda=True), "fixed_lambda"),
        (dict(attention="v1", second_dim=64, head_dim=64), "second_dim"),
        (dict(attention="v1", second_dim=3, head_dim=64), "even"),
        (dict(attention="top_k", top_keys=2.5), "top_keys"),
        (dict(attention="signed", mask_dim=0), "mask_dim"),
        (dict(attention="top_k"), "top_keys"),
        (dict(attention="standard", top_keys=4), "top_keys"),
        (dict(attention="v2", head_norm="rms"), "head_norm"),
        (dict(attention="v1", head_norm="layer"), "head_norm"),
        (dict(attention="v2", lambda_init=0.5), "lambda_init"),
        (dict(attention="v1", lambda_init=float("inf")), "lambda_init"),
        (dict(attention="v1", lambda_init="x"), "lambda_init"),
        (dict(attention="standard", lambda_std_dev=1.0), "lambda_std_dev"),
        (dict(attention="v1", fixed_lambda="init", lambda_std_dev=1.0), "lambda_std_dev"),
        (dict(attention="v1", mask_dim=3), "mask_dim"),
        (dict(num_attention_heads=4, num_key_value_heads=3), "num_key_value_heads=3 must divide"),
        (dict(num_attention_heads=4, num_key_value_heads=0), "num_key_value_heads=0 must divide"),
        (dict(head_dim=5), "head_dim=5 must be even"),
        (dict(hidden_size=16, num_attention_heads=16), "head_dim=0 must be"),
        (dict(attention="v1", lambda_std_dev=float("nan")), "lambda_std_dev"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields, why):
    with pytest.raises(ValueError, match=why):
        DiffConfig(**fields)


@pytest.mark.parametrize("name", ["top-k", "signed", "d-plus"])
def test_weights_that_are_not_handed_out_are_asked_for(name):
    model = made(name)
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="eager"):
        logits(model, tiny.ids(10))


@pytest.mark.parametrize("name", ["top-k", "signed", "gated", "v1, low rank", "plus, low rank", "d-plus", "shared A2"])
def test_the_lens_says_what_it_has_no_hook_points_for(name):
    pytest.importorskip("transformer_lens")
    from diffscope import lens

    with pytest.raises(UnsupportedModel, match="no hook points"):
        lens.boot(made(name))
