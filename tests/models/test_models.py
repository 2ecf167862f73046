"""The DIFF Transformer is what it says: parity with DiffLlama, between implementations, and with its own cache."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from diffscope.models import DiffConfig, lambda_init_schedule
from tests import tiny

ATTENTIONS = ("v1", "v2", "standard", "gated", "plus", "shared_a2")  # that run with every implementation
DTYPES = [(torch.float32, 1e-5), (torch.float64, 1e-12)]


def logits(model, ids, implementation="sdpa"):
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def as_diffllama(model):
    """The same function as a DiffLlama: maps h and h + H where ours has 2h and 2h + 1, value halves likewise."""
    config = model.config
    heads = config.num_attention_heads
    groups = config.num_key_value_heads
    dim = config.head_dim
    other = tiny.diffllama(maps=2 * heads, kv=2 * groups, head_dim=dim, rms_norm_eps=config.rms_norm_eps).to(model.dtype)

    def stripes_to_halves(weight, count):  # rows (head, map, dim) → (map, head, dim)
        return weight.unflatten(0, (count, 2, dim)).transpose(0, 1).flatten(0, 2)

    state = dict(model.state_dict())
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}.self_attn."
        state[at + "q_proj.weight"] = stripes_to_halves(state[at + "q_proj.weight"], heads)
        for name in ("k_proj", "v_proj"):
            state[at + name + ".weight"] = stripes_to_halves(state[at + name + ".weight"], groups)
        # DiffLlama's norm has no weight: ours goes into the columns of the output projection.
        gain = state.pop(at + "subln.weight").repeat(heads)
        state[at + "o_proj.weight"] = state[at + "o_proj.weight"] * gain
    other.load_state_dict(state)
    return other.eval()


@pytest.mark.parametrize("kv_heads", [4, 2], ids=["all", "grouped"])
@pytest.mark.parametrize("dtype, bound", DTYPES)
def test_v1_is_diffllama_up_to_a_permutation(kv_heads, dtype, bound):
    model = tiny.own("v1", kv_heads=kv_heads).to(dtype)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.subln.weight.uniform_(0.5, 2.0)
    ids = tiny.ids(40)
    ours = logits(model, ids)
    theirs = logits(as_diffllama(model), ids)
    assert (ours - theirs).abs().max() / theirs.std() < bound


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("kv_heads", [4, 2], ids=["all", "grouped"])
@pytest.mark.parametrize("dtype, bound", DTYPES)
def test_eager_is_sdpa(attention, kv_heads, dtype, bound):
    model = tiny.own(attention, kv_heads=kv_heads).to(dtype)
    ids = tiny.ids(40)
    eager = logits(model, ids, "eager")
    sdpa = logits(model, ids, "sdpa")
    assert (eager - sdpa).abs().max() / sdpa.std() < bound


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_cached_steps_are_the_full_forward(attention, implementation):
    model = tiny.own(attention, kv_heads=2).double()
    ids = tiny.ids(24)
    full = logits(model, ids, implementation)
    assert (tiny.stepwise(model, ids) - full).abs().max() < 1e-12 * full.abs().max()


def test_generate_continues_with_the_likeliest_token():
    model = tiny.own("v1")
    ids = tiny.ids(12)
    model.set_attn_implementation("sdpa")
    out = model.generate(torch.tensor([ids]), max_new_tokens=5, do_sample=False, eos_token_id=None)[0]
    assert torch.equal(logits(model, out.tolist())[11:-1].argmax(-1), out[12:])


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_saved_and_opened_again(attention, tmp_path):
    model = tiny.own(attention, kv_heads=2)
    ids = tiny.ids(12)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config.attention == attention
    assert torch.equal(logits(again.eval(), ids), logits(model, ids))


def test_parameters_of_the_pair_match_within_one_per_cent():
    counts = [tiny.own(a, heads=2, tie_word_embeddings=True).num_parameters() for a in ("v1", "standard")]
    assert abs(counts[0] / counts[1] - 1) < 0.01


def test_lambda_at_initialisation_follows_the_schedule():
    assert np.allclose([lambda_init_schedule(i) for i in (0, 1, 10)], [0.2, 0.8 - 0.6 * np.exp(-0.3), 0.8 - 0.6 * np.exp(-3)])
    model = tiny.own("v1", num_hidden_layers=3)
    attentions = [layer.self_attn for layer in model.model.layers]
    spread = [abs(a.lam().item() - lambda_init_schedule(i)) for i, a in enumerate(attentions)]
    assert 0 < max(spread) < 0.5
    assert len({a.lambda_q1[0].item() for a in attentions}) == 3


def test_unknown_attention_is_refused():
    with pytest.raises(ValueError, match="choose one of v1, v2, standard"):
        DiffConfig(attention="v9")


def test_dropout_is_refused_where_the_paper_does_not_define_it():
    with pytest.raises(ValueError, match="dropout"):
        tiny.own("v1", attention_dropout=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_flash_attention_agrees_on_a_gpu(attention):
    pytest.importorskip("flash_attn")
    model = tiny.own(attention).to("cuda", torch.bfloat16)
    ids = torch.tensor([tiny.ids(40)], device="cuda")
    outputs = []
    for implementation in ("sdpa", "flash_attention_2"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            outputs.append(model(ids).logits.float())
    assert (outputs[0] - outputs[1]).abs().max() / outputs[0].std() < 0.1
