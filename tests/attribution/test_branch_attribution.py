"""Parts of a logit: they add up to it, they are what knock-outs take away, and what TransformerLens says of whole heads."""

from contextlib import ExitStack

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GraniteConfig, GraniteForCausalLM

import diffscope
from diffscope import edits, lens
from diffscope.attribution import branch_attribution
from diffscope.errors import DiffscopeError, PromptError, UnsupportedModel
from tests import tiny
from tests.layouts import dex, gated, grouped, phi4flash, ports, vision
from tests.tokenizers_of_kinds import KINDS, tokenizer

IDS = [tiny.ids(20), tiny.ids(20, seed=1), tiny.ids(13, seed=2)]
ANSWERS = [5, 6, 7]
DISTRACTORS = [[8, 9, 10], [11, 12], []]
ADDED = ("mlp", "bias", "embedding", "constant")


def gpt2():
    """With biases everywhere, as trained ones have."""
    return with_random_vectors(tiny.standard("gpt2"))


def with_random_vectors(model):
    """Norms and biases that a mistake would not leave alone."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "lambda" not in name:
                parameter.copy_(0.5 + torch.rand(parameter.shape, generator=generator))
    return model


MODELS = {
    "DiffLlama, grouped": lambda: tiny.diffllama(kv=4),
    "V1, grouped": lambda: tiny.own("v1", kv_heads=2),
    "V1, one number a head": lambda: tiny.own("v1", head_norm="scalar"),
    "A2 added": lambda: tiny.own("plus", kv_heads=2),
    "V2": lambda: tiny.own("v2"),
    "gated": lambda: tiny.own("gated"),
    "signed": lambda: tiny.own("signed", signed_keys=4),
    "Llama": lambda: tiny.standard("llama"),
    "GPT-2": gpt2,
    "YOCO, V3": gated.tiny,
    "one A2 for several A1": grouped.tiny,
}


def exact(model):
    """In float64, with a final norm that is in float64 too: Llama's rounds to float32 whatever the model is."""
    model = with_random_vectors(model).double()
    norm = getattr(model.model, "norm", None) if hasattr(model, "model") else None
    if norm is not None:
        model.model.norm = nn.RMSNorm(len(norm.weight), norm.variance_epsilon, dtype=torch.float64)
        model.model.norm.load_state_dict(norm.state_dict())
    return model


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1]


# --- the account -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prepare, bound", [(with_random_vectors, 1e-5), (exact, 1e-9)], ids=["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_all_parts_add_up_to_the_logit(name, prepare, bound):
    model = prepare(MODELS[name]())
    table = branch_attribution(diffscope.load(model), IDS, ANSWERS, DISTRACTORS)
    for number, (ids, answer, others) in enumerate(zip(IDS, ANSWERS, DISTRACTORS)):
        prompt = table.isel(prompt=number, candidate=slice(1 + len(others)))
        assert prompt["token"].values.tolist() == [answer, *others]
        wanted = logits_of(model, ids)[[answer, *others]]
        total = sum(prompt[part].sum(set(prompt[part].dims) - {"candidate"}) for part in ("contribution", *ADDED))
        np.testing.assert_allclose(total, wanted, rtol=0, atol=bound)
        np.testing.assert_allclose(prompt["unexplained"], prompt["logit"] - total, rtol=0, atol=1e-12)
    assert np.isnan(table["contribution"].isel(prompt=2, candidate=slice(1, None))).all()  # it has no distractors


def test_half_precision_adds_up_to_its_rounding():
    table = branch_attribution(diffscope.load(tiny.own("v1").bfloat16()), IDS, ANSWERS, DISTRACTORS)
    assert 0 < np.nanmax(abs(table["unexplained"])) < 0.03 and np.nanmax(abs(table["logit"])) > 2


def test_what_is_said_of_answer_and_distractors_is_taken_from_the_candidates():
    scope = diffscope.load(tiny.own("v1"))
    table = branch_attribution(scope, IDS, ANSWERS, DISTRACTORS)
    contribution = table["contribution"].values
    first = contribution[0]  # (layer, head, branch, candidate)
    largest = 1 + int(table["logit"].values[0, 1:].argmax())
    assert np.array_equal(table["answer"][0], first[..., 0])
    np.testing.assert_allclose(table["distractors"][0], first[..., 1:].mean(-1))
    np.testing.assert_allclose(table["largest_distractor"][0], first[..., largest])
    np.testing.assert_allclose(table["margin"][1], contribution[1, ..., 0] - contribution[1, ..., 1:3].mean(-1))
    assert np.isnan(table[["distractors", "largest_distractor", "margin"]].isel(prompt=2).to_array()).all()
    alone = branch_attribution(scope, [IDS[1]], [ANSWERS[1]], [DISTRACTORS[1]])
    np.testing.assert_allclose(alone["contribution"][0], contribution[1, ..., :3], atol=1e-6)


def test_without_distractors_nothing_is_said_of_them():
    table = branch_attribution(diffscope.load(tiny.own("v1")), IDS[0], 5, [])
    assert table["answer"].notnull().all() and table.sizes["candidate"] == 1
    for name in ("distractors", "largest_distractor", "margin"):
        assert table[name].dims == table["answer"].dims and table[name].isnull().all()


def test_standard_attention_has_one_branch():
    table = branch_attribution(diffscope.load(tiny.standard("llama")), IDS, ANSWERS, DISTRACTORS)
    assert np.isnan(table["contribution"].sel(branch="A2")).all()
    assert np.isfinite(table["contribution"].sel(branch="A1")[0]).all()


# --- against other ways to the same numbers --------------------------------------------------------------------------


class Frozen:
    """The last block's MLP, its head norm and the final norm do what they did before, whatever they are given now."""

    def __init__(self, model, ids):
        self.ids = ids
        decoder = model.model if hasattr(model, "model") else model.transformer
        self.model, self.final = model, getattr(decoder, "norm", None) or decoder.ln_f
        self.block = (decoder.layers if hasattr(decoder, "layers") else decoder.h)[-1]
        attention = self.block.self_attn if hasattr(self.block, "self_attn") else self.block.attn
        self.attention = attention
        self.projection = attention.o_proj if hasattr(attention, "o_proj") else attention.c_proj
        seen = {}
        norms = [part for part in (getattr(attention, "subln", None), self.final) if part is not None]
        with ExitStack() as stack:
            for part in (*norms, self.block.mlp):
                hook = part.register_forward_hook(lambda module, args, out: seen.update({module: (args[0], out)}))
                stack.callback(hook.remove)
            self.before = logits_of(model, ids)
        self.hooks = [self.block.mlp.register_forward_hook(lambda module, args, out: seen[module][1])]
        for part in norms:
            self.hooks.append(part.register_forward_hook(lambda module, args, out: frozen_norm(module, args[0], *seen[module])))

    def change(self):
        return logits_of(self.model, self.ids) - self.before

    def without_head(self, head, heads):
        def remove(module, args):
            x = args[0].clone()
            x.unflatten(-1, (heads, -1))[..., head, :] = 0
            return (x,)

        hook = self.projection.register_forward_pre_hook(remove)
        try:
            return self.change()
        finally:
            hook.remove()


def frozen_norm(module, x, was_given, gave):
    """The norm of `was_given`, which gave `gave`, as a linear map of x."""
    if not isinstance(module, nn.LayerNorm):
        return x * (gave / was_given)
    spread = (was_given.var(-1, unbiased=False, keepdim=True) + module.eps).sqrt()
    return module.weight * (x - x.mean(-1, keepdim=True)) / spread + module.bias


@pytest.mark.parametrize("name", ["DiffLlama, grouped", "V1, grouped", "V2", "Llama", "GPT-2"])
def test_a_head_of_the_last_layer_takes_its_part_of_the_logits_with_it(name):
    model = exact(MODELS[name]())
    table = branch_attribution(diffscope.load(model), IDS[:1], [5], [[8, 9]])["contribution"][0, -1].sum("branch")
    frozen = Frozen(model, IDS[0])
    assert frozen.change().abs().max() < 1e-10
    for head in range(table.sizes["head"]):
        change = frozen.without_head(head, table.sizes["head"])[[5, 8, 9]]
        np.testing.assert_allclose(change, -table[head], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["V1, grouped", "V2"])
def test_lambda_0_in_the_last_layer_takes_the_second_branch_away(name):
    model = exact(MODELS[name]())
    table = branch_attribution(diffscope.load(model), IDS[:1], [5], [[8, 9]])["contribution"][0, -1].sum("head")
    frozen = Frozen(model, IDS[0])
    lam = frozen.attention.lam
    frozen.attention.lam = lambda *args: 0 * lam(*args)
    np.testing.assert_allclose(frozen.change()[[5, 8, 9]], -table.sel(branch="A2"), rtol=0, atol=1e-9)
    assert abs(table.sel(branch="A2")).min() > 1e-3


@pytest.mark.parametrize("attention", ["standard", "v1", "v2"])
def test_heads_are_what_transformer_lens_makes_of_their_results(attention):
    model = with_random_vectors(tiny.own(attention, kv_heads=2))
    ours = branch_attribution(diffscope.load(model), IDS[:1], [5], [[8, 9]])["contribution"][0].sum("branch")
    weight = model.model.norm.weight.detach() * model.lm_head.weight[[5, 8, 9]].detach()
    bridge = lens.boot(model)
    bridge.set_use_attn_result(True)
    with torch.no_grad():
        _, cache = bridge.run_with_cache(torch.tensor(IDS[:1]))
    stack = cache.stack_head_results(layer=-1, pos_slice=-1, apply_ln=True)[:, 0]  # (layer·head, hidden)
    np.testing.assert_allclose(stack @ weight.T, ours.stack(at=("layer", "head")).T, rtol=0, atol=1e-5)


def naive_branch(model, cap, other, layer, head, keys=slice(None), keys_of_other=slice(None)):
    """What A1, −λ·A2 and −λ·A2 of another prompt add to all logits through some keys, from maps and λ in float32; V1, grouped."""
    attention = model.model.layers[layer].self_attn
    lam = float(cap.lam.sel(layer=layer, head=head).max())
    values = cap.layers[layer].v[0, head // 2].numpy()
    a1, a2 = (cap.map(name, layer, head).values[-1] for name in ("A1", "A2"))
    rows = {"A1": a1, "A2": -lam * a2, "other": -lam * other.map("A2", layer, head).values[-1]}
    d = (a1 - lam * a2) @ values
    factor = (1 - attention.lambda_init) / np.sqrt((d**2).mean() + attention.subln.eps)
    width = len(d)
    into = attention.o_proj.weight.detach().numpy()[:, head * width : (head + 1) * width]
    seen = []
    hook = model.model.norm.register_forward_pre_hook(lambda module, args: seen.append(args[0][0, -1].detach().numpy()))
    logits_of(model, list(cap.prompts[0].ids))
    hook.remove()
    size = np.sqrt((seen[0] ** 2).mean() + model.model.norm.eps)
    out = model.lm_head.weight.detach().numpy() * model.model.norm.weight.detach().numpy() / size
    weight = attention.subln.weight.detach().numpy()
    at = {"A1": keys, "A2": keys, "other": keys_of_other}
    return {name: out @ (into @ (factor * weight * (row[at[name]] @ values[keys]))) for name, row in rows.items()}


PLACES = [[[4, 5], [9], []], [[11, 3], [2], [7]]]


def test_branches_and_their_control_are_those_of_the_maps():
    model = exact(tiny.own("v1", kv_heads=2))
    scope = diffscope.load(model)
    table = branch_attribution(scope, IDS[:2], ANSWERS[:2], [[8, 9], [8, 9]], places=PLACES, control=True)
    caps = [scope.capture(ids) for ids in IDS[:2]]

    def same(ours, wanted):
        np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-7)

    for number, (cap, other) in enumerate([caps, caps[::-1]]):
        ours = table.isel(prompt=number, layer=0, head=3)
        tokens = ours["token"].values
        wanted = naive_branch(model, cap, other, 0, 3)
        for branch in ("A1", "A2"):
            same(ours["contribution"].sel(branch=branch), wanted[branch][tokens])
        same(ours["other_a2"], wanted["other"][tokens])
        for candidate, token in enumerate(tokens[:2]):
            keys, of_other = PLACES[number][candidate], PLACES[1 - number][candidate]
            wanted = naive_branch(model, cap, other, 0, 3, keys, of_other)
            same(ours["through"][:, candidate], [wanted["A1"][token], wanted["A2"][token]])
            same(ours["other_a2_through"][candidate], wanted["other"][token])
    assert abs(table["other_a2"] - table["contribution"].sel(branch="A2")).max() > 1e-2
    assert np.isnan(table["through"][0, ..., 2]).all() and np.isnan(table["other_a2_through"][:, ..., 2]).all()


@pytest.mark.parametrize("make", [gated.tiny, dex.tiny, tiny.diffllama])
@pytest.mark.filterwarnings("ignore::diffscope.DiffscopeWarning")
def test_through_all_keys_comes_all_of_it(make):
    scope = diffscope.load(make())
    everywhere = [[list(range(20))] * 3] * 2
    table = branch_attribution(scope, IDS[:2], ANSWERS[:2], [[8, 9], [8, 9]], places=everywhere, control=True)
    np.testing.assert_allclose(table["through"], table["contribution"], atol=1e-6)
    np.testing.assert_allclose(table["other_a2_through"], table["other_a2"], atol=1e-6)


# --- under edits -----------------------------------------------------------------------------------------------------


def test_edits_are_attributed_as_they_are():
    scope = diffscope.load(tiny.own("v1"))
    with scope.edit(edits.set_lambda(0.0, layers=1), edits.ablate_heads(layers=0, heads=2)):
        table = branch_attribution(scope, IDS, ANSWERS, DISTRACTORS)
    assert abs(table["contribution"].isel(prompt=[0, 1], candidate=slice(3)).sel(layer=1, branch="A2")).max() == 0
    assert abs(table["contribution"].isel(prompt=[0, 1], candidate=slice(3)).sel(layer=0, head=2)).max() == 0
    assert np.nanmax(abs(table["unexplained"])) < 1e-5
    with scope.edit(edits.absolute_d()), pytest.raises(UnsupportedModel, match="edit"):
        branch_attribution(scope, IDS, ANSWERS, DISTRACTORS)


# --- what is refused -------------------------------------------------------------------------------------------------


def granite():
    """A block that scales what is written into the stream."""
    config = GraniteConfig(**tiny.SHAPE, num_attention_heads=4, num_key_value_heads=2, residual_multiplier=0.5)
    return tiny.awake(GraniteForCausalLM(config))


def scaled_logits():
    config = GraniteConfig(**tiny.SHAPE, num_attention_heads=4, num_key_value_heads=2, logits_scaling=2.0)
    return tiny.awake(GraniteForCausalLM(config))


def normed_otherwise():
    model = tiny.standard("llama")
    model.model.norm.register_forward_hook(lambda module, args, out: out.tanh())
    return model


@pytest.mark.parametrize(
    "make, words",
    [
        (tiny.gemma2, "may norm, scale or mix"),
        (granite, "may norm, scale or mix"),
        (scaled_logits, "capped, scaled"),
        (normed_otherwise, "no RMSNorm and no LayerNorm"),
        (ports.kyegomez, "several times"),
        (phi4flash.tiny, "without attention"),
    ],
)
@pytest.mark.filterwarnings("ignore::diffscope.DiffscopeWarning")
def test_a_model_that_is_no_sum_is_refused_in_one_line(make, words):
    model = make()
    hooks = sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())
    with pytest.raises(UnsupportedModel, match=words) as refusal:
        branch_attribution(diffscope.load(model), IDS[:1], [5], [[8]])
    assert "\n" not in str(refusal.value)
    assert sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()) == hooks


def test_a_model_of_images_is_refused():
    with pytest.raises(UnsupportedModel, match="images"):
        branch_attribution(diffscope.load(vision.tiny()), torch.zeros(1, 3, 16, 16), [5], [[8]])


def test_candidates_that_mean_nothing_are_refused():
    scope = diffscope.load(tiny.own("v1"))
    for answers, distractors, words in [
        ([5], [[8]], "each of the 3 prompts"),
        (ANSWERS, [[5], [8], [9]], "same token as a distractor"),
        ([5, 6, tiny.VOCABULARY], DISTRACTORS, "outside the vocabulary"),
        ([5, 6, []], DISTRACTORS, "not \\[\\]"),
        ([5, 6, [[1], [2, 3]]], DISTRACTORS, "a token id, several, or a text"),
        ([5, 6, " 7421"], DISTRACTORS, "no tokenizer"),
        (ANSWERS, [[8], [9], "ten"], "give a list"),
        (5, [[8]] * 3, "each of the 3 prompts"),
    ]:
        with pytest.raises(PromptError, match=words):
            branch_attribution(scope, IDS, answers, distractors)
    for places, words in [
        ([[[1]]], "places of each"),
        ([[[1]], [[2]], [[13]]], "outside of prompt 2"),
        ([[[1]], [2], []], "places"),
    ]:
        with pytest.raises(PromptError, match=words):
            branch_attribution(scope, IDS, ANSWERS, [[]] * 3, places=places)
    for place in (1.5, "a", -1):
        with pytest.raises(DiffscopeError, match=f"places in prompt 1 are whole numbers from 0, and not {place!r}"):
            branch_attribution(scope, IDS, ANSWERS, [[]] * 3, places=[[[1]], [[place]], [[2]]])
    with pytest.raises(PromptError, match="only one of 13"):
        branch_attribution(scope, IDS, ANSWERS, DISTRACTORS, control=True)


def test_texts_and_numbers_of_several_tokens_begin_with_the_token_that_comes_next():
    scope = diffscope.load("mini-diff")
    text = "The magic number: Rome 2174. The magic number: Paris 7421. The magic number: Paris"
    as_text = branch_attribution(scope, text, " 7421", [" 2174"])
    number, other = (scope.tokenizer(each, add_special_tokens=False)["input_ids"] for each in (" 7421", " 2174"))
    assert len(number) > 1
    as_tokens = branch_attribution(scope, [text], [number], [[other]])
    assert as_text.equals(as_tokens) and as_text["token"].values.tolist() == [[number[0], other[0]]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_continues_the_prompt_in_every_tokenizer(kind):
    """It is attributed where the texts with the answer and with the distractor part."""
    model, own = tiny.own("v1"), tokenizer(kind)
    scope = diffscope.load(model, own)
    for prompt, answer, other in (
        ("The number of Paris is", " 7421", " 2174"),
        ("The city is", " Paris", " London"),
        ("He said (", "yes", "no"),
    ):
        whole, of_other = (own(prompt + text)["input_ids"] for text in (answer, other))
        at = next(place for place, (first, second) in enumerate(zip(whole, of_other)) if first != second)
        table = branch_attribution(scope, [prompt] * 2, [answer] * 2, [[other]] * 2)
        assert table["token"].values.tolist() == [[whole[at], of_other[at]]] * 2
        logits = logits_of(model, whole[:at])[[whole[at], of_other[at]]]
        np.testing.assert_allclose(table["logit"].isel(prompt=1), logits, atol=1e-5)


def test_a_text_may_follow_a_prompt_that_fills_the_model(mini_diff):
    """Only its first token is asked for, and that is not run."""
    ids = [*mini_diff.encode("The number of Paris is").ids] * 200
    table = branch_attribution(mini_diff, ids[: mini_diff.max_length], " 7421", [" 2174"])
    assert np.isfinite(table["margin"]).all()


def test_a_text_that_adds_white_space_to_the_prompt_is_refused_beside_token_ids():
    scope = diffscope.load(tiny.own("v1"), tokenizer("llama3"))
    with pytest.raises(PromptError, match="give all as texts, or all as token ids"):
        branch_attribution(scope, "The number of Paris is", " 7421", [5])
