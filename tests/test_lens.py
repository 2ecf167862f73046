"""TransformerLens' bridge is the model: its logits, what its hook points show, and what an edit there does."""

import math
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from transformer_lens import patching
from transformer_lens.model_bridge import TransformerBridge

from diffscope import lens
from diffscope.errors import ModelNotFound, UnsupportedModel
from diffscope.models import load_model
from tests import tiny

ROOT = Path(__file__).parents[1]
HEADS, KV_HEADS, TOKENS = 4, 2, 11
FAMILIES = {
    "diffllama": lambda kv: tiny.diffllama(maps=2 * HEADS, kv=2 * kv),
    "v1": lambda kv: tiny.own("v1", HEADS, kv),
    "plus": lambda kv: tiny.own("plus", HEADS, kv),
    "v2": lambda kv: tiny.own("v2", HEADS, kv),
    "standard": lambda kv: tiny.own("standard", HEADS, kv),
}
FORMULA = 1e-5  # in units of the logits' spread: λ's exponentials and the models' norms are in float32; a mistake is above 1e-3
MAPS = ("attn_scores_1", "attn_scores_2", "a1", "a2", "pattern")
SECOND = ("attn_scores_2", "a2", "lambda")


def make(family, kv=KV_HEADS, dtype=torch.float64):
    model = FAMILIES[family](kv).to(dtype)
    with torch.no_grad():  # values that a mistake would not leave alone
        for name, parameter in model.named_parameters():
            if "subln" in name or ("lambda_" in name and parameter.dim() == 1):
                parameter.copy_(torch.linspace(0.1, 0.4, len(parameter)) / (1 + ("2" in name)))
    return model


# --- the papers' formula, head by head -------------------------------------------------------------------------------


def blocks_of(family, heads, groups):
    """Which blocks of d rows of the projections belong to each head."""

    def one(n):
        return [(h,) for h in range(n)]

    def neighbours(n):
        return [(2 * h, 2 * h + 1) for h in range(n)]

    def halves(n):
        return [(h, h + n) for h in range(n)]

    of_q, of_kv = {
        "diffllama": (halves, halves),
        "v1": (neighbours, neighbours),
        "plus": (neighbours, neighbours),
        "v2": (neighbours, one),
        "standard": (one, one),
    }[family]
    return {"q": of_q(heads), "k": of_kv(groups), "v": of_kv(groups)}


def naive_lambda(module, x):
    """(batch, 1 or head, 1 or query)"""
    if hasattr(module, "lambda_proj"):
        return torch.sigmoid(x @ module.lambda_proj.weight.T).transpose(1, 2)
    dots = [(getattr(module, f"lambda_q{i}") * getattr(module, f"lambda_k{i}")).sum() for i in (1, 2)]
    return (dots[0].exp() - dots[1].exp() + 0.8 - 0.6 * math.exp(-0.3 * module.layer_idx)).reshape(1, 1, 1)


def naive_norm(module, z):
    """z (batch, query, head, width)"""
    norm = getattr(module, "groupnorm", getattr(module, "subln", None))
    if norm is None or isinstance(norm, torch.nn.Identity):
        return z
    unit = z / (z.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt()
    return unit * (1 if norm.weight is None else norm.weight) * (0.2 + 0.6 * math.exp(-0.3 * module.layer_idx))


def naive_attention(module, family, at, hidden_states, position_embeddings, **kwargs):
    """Attention of one layer; ``at(name, value)`` sees, and may replace, what the hook point of that name should show."""
    x, d = hidden_states, module.head_dim
    cos, sin = position_embeddings

    def projected(name, blocks):
        flat = getattr(module, f"{name}_proj")(x)
        heads = [torch.cat([flat[..., b * d : (b + 1) * d] for b in of_head], -1) for of_head in blocks]
        return at(name, torch.stack(heads, 2))  # (batch, token, head, blocks·d)

    def rotated(y):
        return y * cos[:, :, None] + torch.cat([-y[..., d // 2 :], y[..., : d // 2]], -1) * sin[:, :, None]

    q, k, v = (projected(*item) for item in blocks_of(family, HEADS, KV_HEADS).items())
    q, k = (at(f"rot_{name}", torch.cat([rotated(y) for y in x.split(d, -1)], -1)) for name, x in (("q", q), ("k", k)))
    hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
    scores = []
    for i in range(1 if family == "standard" else 2):
        of_heads = []
        for h in range(HEADS):
            key = k[:, :, h // (HEADS // KV_HEADS)]
            key = key[..., :d] if family in ("v2", "standard") else key[..., i * d : (i + 1) * d]
            of_heads.append(q[:, :, h, i * d : (i + 1) * d] @ key.transpose(1, 2) / d**0.5)
        scores.append(at(f"attn_scores_{i + 1}", torch.stack(of_heads, 1).masked_fill(hidden, torch.finfo(x.dtype).min)))
    maps = [at(f"a{i + 1}", each.softmax(-1)) for i, each in enumerate(scores)]
    pattern = maps[0]
    if len(maps) == 2:
        lam = naive_lambda(module, x) * (-1 if family == "plus" else 1)
        pattern = pattern - at("lambda", lam.expand(*pattern.shape[:3]))[..., None] * maps[1]
    pattern = at("pattern", pattern)
    out = torch.stack([pattern[:, h] @ v[:, :, h // (HEADS // KV_HEADS)] for h in range(HEADS)], 2)
    return module.o_proj(at("z", naive_norm(module, out)).flatten(2)), pattern


def naive_logits(family, ids, edits=()):
    """Logits, and what layer 0 has at each hook point; `edits` maps names to functions."""
    model, seen = make(family), {}
    for layer in model.model.layers:
        module = layer.self_attn

        def at(name, value, first=module.layer_idx == 0):
            if first:
                value = dict(edits).get(name, lambda y: y)(value)
                seen[name] = value
            return value

        module.forward = lambda module=module, at=at, **kwargs: naive_attention(module, family, at, **kwargs)
    return model(ids).logits, seen


# --- fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ids():
    return torch.tensor([tiny.ids(TOKENS), tiny.ids(TOKENS, seed=1)])


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@cache
def _booted(family):
    return lens.boot(make(family))


@pytest.fixture
def bridge(family):
    """Return the bridge of a family, which is made once, in whatever order the tests run: each puts back what it changes."""
    return _booted(family)


@pytest.fixture(scope="module")
def mini():
    return lens.boot("mini-diff")


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def hook(name, layer=0):
    return f"blocks.{layer}.attn.hook_{name}"


def relative(ours, theirs):
    return float((ours - theirs).abs().max() / theirs.std())


# --- the same function as the model ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kv", [HEADS, KV_HEADS], ids=["all", "grouped"])
@pytest.mark.parametrize("dtype, implementation, bound", [(torch.float32, "eager", 1e-5), (torch.float64, "sdpa", 1e-12)])
def test_logits_are_the_models(family, kv, dtype, implementation, bound):
    """In float64 against SDPA, because DiffLlama's eager softmax is in float32 whatever the model is."""
    ids = torch.tensor([tiny.ids(40)])
    model = make(family, kv, dtype)
    model.set_attn_implementation(implementation)
    assert relative(lens.boot(make(family, kv, dtype))(ids), model(ids).logits) < bound


def test_in_float64_each_layers_attention_is_the_models(family, bridge):
    """The layer norms round to float32 even then, so that the logits alone would hide what is below."""
    ids, seen = torch.tensor([tiny.ids(40)]), []
    model = make(family)
    model.set_attn_implementation("sdpa")
    for layer in model.model.layers:
        layer.self_attn.register_forward_hook(lambda module, inputs, output: seen.append(output[0]))
    model(ids)
    _, cache = bridge.run_with_cache(ids)
    assert max(relative(cache[hook("out", layer)], seen[layer]) for layer in (0, 1)) < 1e-12


@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_of_a_padded_batch_are_the_models(family, bridge, ids, side):
    mask = torch.ones_like(ids)
    mask[0, slice(4) if side == "left" else slice(-4, None)] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    inputs = dict(attention_mask=mask, position_ids=positions)
    model = make(family)
    model.set_attn_implementation("sdpa")
    ours, theirs = bridge(ids, **inputs), model(ids, **inputs).logits
    assert relative(ours[mask.bool()], theirs[mask.bool()]) < 1e-12
    if side == "left":  # what is to the right of a token never matters to it
        assert relative(bridge(ids)[mask.bool()], theirs[mask.bool()]) > 1e-3


def test_logits_of_mini_diff_are_the_models(mini):
    """Its rotary embedding turns half of each head only."""
    prompt = "The magic number: Paris 7421. The magic number: Paris"
    for ours, dtype, bound in ((mini, None, 1e-5), (lens.boot("mini-diff", dtype=torch.float64), torch.float64, 1e-12)):
        model, tokenizer = load_model("mini-diff", dtype=dtype)
        theirs = model(torch.tensor([tokenizer(prompt).input_ids])).logits
        assert relative(ours(prompt), theirs) < bound


def test_a_model_in_training_mode_drops_what_its_configuration_says(ids):
    model = tiny.own("v2", HEADS, attention_dropout=0.5)
    bridge = lens.boot(model).train()
    _, cache = bridge.run_with_cache(ids, names_filter=hook("a2"))
    dropped = (cache[hook("a2")].tril() == 0).double().mean() - torch.ones(TOKENS, TOKENS).triu(1).mean()
    assert 0.15 < dropped < 0.4


@pytest.mark.parametrize("cached", [True, False])
def test_generate_is_the_models(family, bridge, cached):
    prompt = torch.tensor([tiny.ids(8)])
    expected = make(family).generate(prompt, max_new_tokens=6, do_sample=False, eos_token_id=None)
    options = dict(do_sample=False, stop_at_eos=False, use_past_kv_cache=cached, return_type="tokens", verbose=False)
    assert torch.equal(bridge.generate(prompt, max_new_tokens=6, **options), expected)


# --- what the hook points show and do --------------------------------------------------------------------------------


def without_head(head):
    def edit(x):  # (batch, token, head, width)
        x = x.clone()
        x[:, :, head] = 0
        return x

    return edit


def set_at(value, *index):
    def edit(x):
        x = x.clone()
        x[index] = value
        return x

    return edit


EDITS = {
    "q": without_head(1),
    "k": without_head(0),
    "v": without_head(1),
    "rot_q": without_head(2),
    "rot_k": without_head(1),
    "z": without_head(2),
    "attn_scores_1": set_at(4.0, slice(None), 1, slice(5, None), 2),
    "attn_scores_2": set_at(4.0, slice(None), 3, slice(5, None), 2),
    "a1": set_at(0.0, slice(None), 0, slice(3, None), slice(1, None)),
    "a2": set_at(0.0, slice(None), 2),
    "lambda": set_at(1.7, slice(None), 1, slice(3, None)),
    "pattern": set_at(0.0, slice(None), 3, slice(None), 0),
}


def has(family, name):
    return family != "standard" or name not in SECOND


def where(names):
    """Families and the hook points that they have, of these."""
    pairs = [(family, name) for family in FAMILIES for name in names if has(family, name)]
    return pytest.mark.parametrize("family, name", pairs, indirect=["family"])


def test_standard_attention_has_no_second_map():
    points = lens.boot(make("standard")).hook_dict
    assert not {hook(name) for name in SECOND} & set(points)
    assert points[hook("a1")] is points[hook("pattern")]


def test_the_cache_is_the_formula(family, bridge, ids):
    logits, seen = naive_logits(family, ids)
    ours, cache = bridge.run_with_cache(ids)
    assert relative(ours, logits) < FORMULA
    assert set(seen) == {name for name in EDITS if has(family, name)}
    for name, expected in seen.items():
        assert cache[hook(name)].shape == expected.shape
        seen_part = expected > torch.finfo(expected.dtype).min / 2
        assert (cache[hook(name)] - expected)[seen_part].abs().max() < FORMULA, name


@where(EDITS)
def test_an_edit_does_what_it_does_in_the_formula(family, bridge, ids, name):
    expected, _ = naive_logits(family, ids, {name: EDITS[name]})
    edited = bridge.run_with_hooks(ids, fwd_hooks=[(hook(name), lambda x, hook: EDITS[name](x))])
    assert relative(edited, expected) < FORMULA
    assert relative(bridge(ids), expected) > 1e-3


def test_a_hook_may_write_to_one_heads_lambda_in_place(ids):
    def write(lam, hook):
        lam[:, 1, 3:] = 1.7

    bridge = lens.boot(make("v1"))
    written = bridge.run_with_hooks(ids, fwd_hooks=[(hook("lambda"), write)])
    assert relative(written, naive_logits("v1", ids, {"lambda": EDITS["lambda"]})[0]) < FORMULA


def test_every_hook_point_of_attention_fires(bridge, ids):
    _, cache = bridge.run_with_cache(ids)
    silent = {name for name in bridge.hook_dict if ".attn.hook" in name} - set(cache)
    # The second, TransformerLens gives to every attention and fires in none.
    assert silent == {hook(name, layer) for layer in (0, 1) for name in ("result", "hidden_states")}


@where(EDITS)
def test_a_filter_and_a_slice_take_just_that(family, bridge, ids, name):
    axis = 2 if name in MAPS or name == "lambda" else 1
    _, full = bridge.run_with_cache(ids, names_filter=hook(name))
    _, part = bridge.run_with_cache(ids, names_filter=[hook(name)], pos_slice=(5, 8))
    assert hook(name) in full and all(bridge.hook_dict[key] is bridge.hook_dict[hook(name)] for key in full)
    assert torch.equal(part[hook(name)], full[hook(name)].narrow(axis, 5, 3))


def test_a_heads_result_is_its_share_of_the_output(bridge, ids):
    _, plain = bridge.run_with_cache(ids)
    without_z = bridge.run_with_hooks(ids, fwd_hooks=[(hook("z"), lambda x, hook: without_head(1)(x))])
    bridge.set_use_attn_result(True)
    try:
        logits, cache = bridge.run_with_cache(ids)
        without, without_z_too = (
            bridge.run_with_hooks(ids, fwd_hooks=[(hook(name), lambda x, hook: without_head(1)(x))]) for name in ("result", "z")
        )
    finally:
        bridge.set_use_attn_result(False)
    assert cache[hook("result")].shape == (2, TOKENS, HEADS, 64)
    assert relative(cache[hook("result")].sum(2), plain[hook("out")]) < 1e-12
    assert relative(without, without_z) < FORMULA and relative(without_z_too, without_z) < FORMULA
    assert relative(without, logits) > 1e-3


@where(["lambda", "a1", "a2"])
def test_gradients_are_the_slopes(family, bridge, ids, name):
    at = (1, 2, 6) if name == "lambda" else (1, 2, 6, 3)
    gradient, step = {}, 4e-3

    def keep(x, hook):
        gradient["at"] = x[at].item()

    with torch.enable_grad():
        with bridge.hooks(bwd_hooks=[(hook(name), keep)]):
            bridge(ids, return_type="loss").backward()
    bridge.zero_grad()

    def loss(change):
        edit = (hook(name), lambda x, hook: set_at(x[at] + change, *at)(x))
        return bridge.run_with_hooks(ids, return_type="loss", fwd_hooks=[edit]).item()

    slope = (loss(step) - loss(-step)) / (2 * step)
    assert abs(slope) > 1e-5
    assert gradient["at"] == pytest.approx(slope, rel=1e-2)


def test_values_are_what_the_weights_make_of_the_input(bridge, ids):
    attention = bridge.blocks[0].attn
    _, cache = bridge.run_with_cache(ids)
    values = torch.einsum("btm,hmw->bthw", cache[hook("in")], attention.W_V)
    assert relative(values, cache[hook("v")]) < 1e-12
    result = torch.einsum("bthw,hwm->btm", cache[hook("z")], attention.W_O)
    assert relative(result, cache[hook("out")]) < 1e-12


def test_biases_are_in_the_layout_of_their_hook_points():
    bridge = lens.boot(tiny.diffllama(2 * HEADS, 2 * KV_HEADS, attention_bias=True).double())
    attention = bridge.blocks[0].attn
    for part in (attention.q, attention.k, attention.v):
        part.bias.normal_()
        part.weight.zero_()
    _, cache = bridge.run_with_cache(torch.tensor([[3, 4]]))
    for name in ("q", "k", "v"):
        assert torch.equal(cache[hook(name)][0, 0], getattr(attention, f"b_{name.upper()}"))


# --- patching --------------------------------------------------------------------------------------------------------

CLEAN = "The magic number: Paris 7421. The magic number: Paris"
CORRUPTED = "The magic number: Paris 3586. The magic number: Paris"


def columns_swapped(module, columns, value, output):
    """Put columns of a clean run into what enters or leaves a linear layer, by a torch hook."""

    def swap(module, inputs, result=None):
        tensor = (result if output else inputs[0]).clone()
        tensor[..., columns] = value[..., columns]
        return tensor if output else (tensor,)

    return module.register_forward_hook(swap) if output else module.register_forward_pre_hook(swap)


def patched_by_hand(name, metric):
    """The metric for each (layer, head) on a model that TransformerLens has not touched."""
    model, tokenizer = load_model("mini-diff")
    clean, corrupted = (torch.tensor([tokenizer(text).input_ids]) for text in (CLEAN, CORRUPTED))
    seen, table = {}, torch.zeros(len(model.model.layers), 2)
    linears = [getattr(layer.self_attn, "o_proj" if name == "z" else f"{name}_proj") for layer in model.model.layers]
    keep = [
        linear.register_forward_hook(lambda m, i, o, n=n: seen.update({n: i[0] if name == "z" else o}))
        for n, linear in enumerate(linears)
    ]
    model(clean)
    for handle in keep:
        handle.remove()
    for layer, linear in enumerate(linears):
        for head in range(2):  # 64 columns: both maps of a head are neighbours in this model
            handle = columns_swapped(linear, slice(64 * head, 64 * head + 64), seen[layer], output=name != "z")
            table[layer, head] = metric(model(corrupted).logits)
            handle.remove()
    return table


@pytest.mark.parametrize(
    "name, sweep",
    [
        ("z", patching.get_act_patch_attn_head_out_all_pos),
        ("q", patching.get_act_patch_attn_head_q_all_pos),
        ("k", patching.get_act_patch_attn_head_k_all_pos),
        ("v", patching.get_act_patch_attn_head_v_all_pos),
    ],
)
def test_patching_a_head_is_patching_its_columns(mini, name, sweep, capsys):
    clean, corrupted = mini.to_tokens(CLEAN), mini.to_tokens(CORRUPTED)
    right, wrong = clean[0, 7], corrupted[0, 7]

    def metric(logits):
        return logits[0, -1, right] - logits[0, -1, wrong]

    assert metric(mini(clean)) > 10 and metric(mini(corrupted)) < -10
    _, cache = mini.run_with_cache(clean)
    table = sweep(mini, corrupted, cache, metric)
    assert table.shape == (mini.cfg.n_layers, mini.cfg.n_heads)
    assert torch.allclose(table, patched_by_hand(name, metric), atol=1e-3)
    assert table.max() - table.min() > 0.1


# --- opening a model -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def diffllama_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny-diffllama"
    tiny.diffllama(2 * HEADS, 2 * KV_HEADS).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def test_in_a_fresh_interpreter_folders_open_and_the_names_are_registered_on_request(tiny_diff_folder, diffllama_folder):
    """The import changes nothing; each folder opens with the one call, and nothing loaded before it."""
    script = (
        "import os\n"
        "from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES as table\n"
        "from transformer_lens.model_bridge import TransformerBridge\n"
        "before = dict(table)\n"
        "import diffscope.lens\n"
        "assert table == before\n"
        "diffscope.lens.register()\n"
        "print(*sorted(table.keys() - before.keys()), flush=True)\n"
        f"for folder in {[str(tiny_diff_folder), str(diffllama_folder)]}:\n"
        "    if os.fork() == 0:\n"
        "        bridge = TransformerBridge.boot_transformers(folder, device='cpu')\n"
        "        adapter = type(bridge.adapter).__name__\n"
        "        print(adapter, bridge.cfg.n_heads, 'blocks.1.attn.hook_lambda' in bridge.hook_dict, flush=True)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=environment)
    opened = "DifferentialAdapter 4 True"
    assert done.stdout.splitlines() == ["DiffForCausalLM DiffLlamaForCausalLM", opened, opened], done.stderr


def test_boot_transformers_and_boot_open_the_same(diffllama_folder, ids, monkeypatch):
    for architecture in lens.ARCHITECTURES:
        monkeypatch.setitem(lens.SUPPORTED_ARCHITECTURES, architecture, lens.DifferentialAdapter)
    stock = TransformerBridge.boot_transformers(str(diffllama_folder), device="cpu")
    held = TransformerBridge.boot_transformers(
        "in hand", hf_model=load_model(str(diffllama_folder))[0], device="cpu", tokenizer=stock.tokenizer
    )
    ours = lens.boot(diffllama_folder)
    assert torch.equal(stock(ids), ours(ids)) and torch.equal(held(ids), ours(ids))
    assert torch.equal(stock.to_tokens("Return it"), ours.to_tokens("Return it"))


@pytest.mark.parametrize(
    "family, expected",
    [
        ("diffllama", dict(attention="v1", d_head=16, d_map=8, lambda_init=None, lambda_std_dev=0.1)),
        ("v1", dict(attention="v1", d_head=16, d_map=8, lambda_init=0.5, lambda_std_dev=0.1)),
        ("v2", dict(attention="v2", d_head=16, d_map=16, lambda_init=None, lambda_std_dev=0.1)),
        ("standard", dict(attention="standard", d_head=16, d_map=16, lambda_init=None, lambda_std_dev=0.1)),
    ],
)
def test_the_configuration_counts_heads_and_keeps_every_field(family, expected):
    model = tiny.own("v1", HEADS, KV_HEADS, lambda_init=0.5) if family == "v1" else make(family)
    cfg = lens.boot(model).cfg
    assert {name: getattr(cfg, name) for name in expected} == expected
    assert (cfg.n_heads, cfg.n_key_value_heads, cfg.n_layers, cfg.d_model) == (HEADS, KV_HEADS, 2, 64)


def test_what_cannot_be_right_is_refused(family, ids):
    bridge = lens.boot(make(family))
    with pytest.raises(RuntimeError, match="does not support compatibility mode"):
        bridge.enable_compatibility_mode()
    with pytest.raises(NotImplementedError, match="use_split_qkv_input"):
        bridge.set_use_split_qkv_input(True)
    with pytest.raises(NotImplementedError, match="use_attn_in"):
        bridge.set_use_attn_in(True)
    with pytest.raises(UnsupportedModel, match="folded"):
        bridge.process_weights()
    model = make(family)
    model.set_attn_implementation("sdpa")
    assert relative(bridge(ids), model(ids).logits) < 1e-12


def test_masks_arrive_in_full(bridge):
    assert bridge.original_model.config._attn_implementation == "eager"


def test_a_differential_head_has_no_single_score_circuit(family, bridge):
    if family == "standard":
        assert bridge.QK.shape == (2, HEADS, 64, 64)
        return
    for circuit in ("W_Q", "W_K", "QK"):
        with pytest.raises(UnsupportedModel, match="two score circuits"):
            getattr(bridge, circuit)
    assert bridge.OV.shape == (2, HEADS, 64, 64)


def test_other_models_are_refused_in_one_line(bridge):
    with pytest.raises(UnsupportedModel, match="LlamaForCausalLM is none of DiffLlamaForCausalLM"):
        lens.boot(tiny.standard("llama"))
    with pytest.raises(UnsupportedModel, match="can be bridged once"):
        lens.boot(bridge.original_model)
    with pytest.raises(ModelNotFound, match="not bundled"):
        lens.boot("no-such-model")
    with pytest.raises(UnsupportedModel, match="^Linear is none of"):
        lens.boot(torch.nn.Linear(2, 2))


def test_what_is_compiled_is_opened_inside_that():
    model = make("v1")
    bridge = lens.boot(torch.compile(model, backend="eager"))
    assert bridge.original_model is model and bridge.cfg.model_name == "external"


# --- TransformerLens' own check, and the documentation ---------------------------------------------------------------


def component_result(bridge, model):
    from transformer_lens.benchmarks.component_benchmark import benchmark_all_components

    torch.manual_seed(0)
    return benchmark_all_components(bridge, model)


def test_transformer_lens_own_component_benchmark_passes(family):
    result = component_result(lens.boot(make(family)), make(family))
    assert result.passed, result
    assert result.details["component_types"]["DifferentialAttentionBridge"]["total"] == 2


def test_that_benchmark_can_fail():
    model = make("v1")
    model.model.layers[1].self_attn.lambda_q1 += 0.3
    result = component_result(lens.boot(make("v1")), model)
    assert not result.passed and set(result.details["failures"]) == {"blocks.1.attn"}


@pytest.fixture(scope="module")
def documentation():
    return (ROOT / "docs" / "other_tools.md").read_text(encoding="utf-8").partition("\n## nnsight\n")[0]


def test_the_documented_code_prints_what_it_says(documentation, capsys):
    code = "\n".join(re.findall(r"```python\n(.*?)```", documentation, flags=re.DOTALL))
    with torch.enable_grad():
        exec(compile(code, "docs/other_tools.md", "exec"), {})
    printed = capsys.readouterr().out
    for output in re.findall(r"```text\n(.*?)```", documentation, flags=re.DOTALL)[:1]:
        assert printed == output


def test_every_hook_point_is_documented(documentation, bridge):
    of_model = {name.rpartition(".")[2] for name in bridge.hook_dict if re.fullmatch(r"blocks\.0\.attn\.hook_\w+", name)}
    assert of_model - {"hook_in", "hook_out", "hook_hidden_states"} <= set(re.findall(r"hook_\w+", documentation))
