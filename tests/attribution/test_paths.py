"""One path patched: what a computation by hand gives, nothing from the same prompt, and a planted circuit carries the answer."""

import numpy as np
import pytest
import torch

import diffscope
from diffscope import readings
from diffscope.attribution import path_patches
from diffscope.errors import DiffscopeError, PromptError, UnsupportedModel
from diffscope.tasks import TextPrompt
from tests import tiny
from tests.attribution.test_branch_attribution import with_random_vectors
from tests.layouts import gated
from tests.tokenizers_of_kinds import tokenizer

IDS = tiny.ids(20)
OTHER = [*IDS[:5], *tiny.ids(6, seed=9), *IDS[11:]]
MODELS = {
    "diffllama": lambda: tiny.diffllama(kv=4),
    "v1": lambda: tiny.own("v1", kv_heads=2),
    "v2": lambda: tiny.own("v2"),
    "qwen3": lambda: tiny.standard("qwen3"),
    "gpt2": lambda: tiny.standard("gpt2"),
}


def logits(scope):
    with torch.no_grad():
        return scope.model(torch.tensor([IDS])).logits[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_path_from_the_same_prompt_changes_no_bit_and_one_from_another_does(name):
    scope = diffscope.load(with_random_vectors(MODELS[name]()))
    before = logits(scope)
    capture = scope.capture(IDS)
    own, receivers = capture.layers[1].prompt(0), ("q1", "k1", "q2", "k2") if capture.differential else ("q1", "k1")
    for receiver in receivers:
        for source, changes in ((IDS, False), (OTHER, True)):
            (edit,) = path_patches(scope, IDS, source, (1, 1, receiver), [(0, 0, "A1 output")])
            with scope.edit(edit):
                assert torch.equal(logits(scope), before) != changes
                patched = scope.capture(IDS).layers[1].prompt(0)
            torch.testing.assert_close(patched.rows(heads=[0]).d, own.rows(heads=[0]).d)  # of that head alone
            which = "a1" if receiver.endswith("1") else "a2"
            assert torch.equal(getattr(patched.rows(heads=[1]), which), getattr(own.rows(heads=[1]), which)) != changes
    assert torch.equal(logits(scope), before)


@pytest.mark.parametrize("receiver", ["q1", "k1", "q2", "k2"])
def test_a_path_is_what_hooks_on_the_projections_make_of_it(receiver):
    """DiffLlama, with all keys of their own: the output of a head, through W_O into the stream, the norm and W_q or W_k."""
    model = with_random_vectors(tiny.diffllama()).double()
    scope = diffscope.load(model)
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    width, head, to = 2 * first.head_dim, 2, 1
    seen = []
    hooks = [
        first.o_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0][0])),
        model.model.layers[1].register_forward_pre_hook(lambda module, args: seen.append(args[0][0])),
    ]
    with torch.no_grad():
        for ids in (IDS, OTHER):
            model(torch.tensor([ids]))
        own, stream, other, _ = seen
        for hook in hooks:
            hook.remove()
        at = slice(head * width, (head + 1) * width)
        changed = stream + (other - own)[:, at] @ first.o_proj.weight[:, at].T
        projection = second.q_proj if receiver[0] == "q" else second.k_proj
        layer = scope.capture(IDS).layers[1]
        index = int(layer.pairing.of_branch(int(receiver[1]))[to])
        index = index if receiver[0] == "q" else int(layer.pairing.key_of_map[index])
        rows = slice(index * second.head_dim, (index + 1) * second.head_dim)
        wanted = projection(model.model.layers[1].input_layernorm(changed))[:, rows]

        def put(module, args, output):
            output[0, :, rows] = wanted
            return output

        hook = projection.register_forward_hook(put)
        expected = logits(scope)
        hook.remove()
    (edit,) = path_patches(scope, IDS, OTHER, (1, to, receiver), [(0, head, "output")])
    before = logits(scope)
    with scope.edit(edit):
        patched = logits(scope)
    assert (patched - before).abs().max() > 1e-4
    torch.testing.assert_close(patched, expected, rtol=1e-6, atol=1e-6)


def test_the_bundled_model_carries_the_city_by_the_second_map_of_its_first_head_to_the_keys_of_layer_1():
    """What docs/evidence/instruments.md says of scores, as a cause: patching that path moves the answer, other paths hardly."""
    scope = diffscope.load("mini-diff")
    text = "Magic numbers. Rome 2174. {} 3308. {} 7421. Paris"
    prompt, source = text.format("Oslo", "Paris"), text.format("Paris", "Oslo")
    heads = readings.patched_heads(scope, prompt, source, what=["A1", "A2 output", "output"])
    share = heads.estimates["share"]
    assert float(share.sel(what="A2 output", layer=0, head=0)) == pytest.approx(1, abs=0.02)
    assert float(heads.estimates["all"].sel(what="output")) == pytest.approx(
        float(heads.estimates["lead_of_source"] - heads.estimates["lead"]), abs=1e-3
    )
    assert "output of L0H0 (−24)" in heads.sentence and "−12" in heads.sentence
    paths = readings.patched_paths(scope, prompt, source, 1, 0)
    change = abs(paths.estimates["change"])
    assert float(change.sel(what="A2 → k1", layer=0, head=0)) > 5 * float(change.drop_sel(what="A2 → k1").max())
    assert paths.sentence.endswith("(+0.30).") and "A2 of L0H0 → k1 (−8.6)" in paths.sentence


def test_a_standard_model_has_paths_of_one_map():
    paths = readings.patched_paths(diffscope.load(tiny.standard("llama")), IDS, OTHER, 1, 0, 5, 6)
    assert list(paths.estimates["what"].values) == ["A1 → q1", "A1 → k1"]
    heads = readings.patched_heads(diffscope.load(tiny.standard("llama")), IDS, OTHER, 5, 6, what=["A1", "A2"]).estimates
    assert heads["change"].sel(what="A2").isnull().all() and np.isfinite(heads["change"].sel(what="A1")).all()


def test_answers_as_texts_continue_both_prompts():
    model, own = tiny.own("v1"), tokenizer("llama3")  # whose numbers begin with a token of white space
    texts = [f"The number of {city} is" for city in ("Rome", "Kyiv")]
    patched = readings.patched_heads(diffscope.load(model, own), *texts, " 7421", " 2174", what=["A1"]).estimates
    for name, text in zip(("lead", "lead_of_source"), texts):
        *ids, first = own(f"{text} 7")["input_ids"]
        with torch.no_grad():
            last = model(torch.tensor([ids])).logits[0, -1]
        lead = last[first] - last[own(f"{text} 2")["input_ids"][-1]]
        assert float(patched[name]) == pytest.approx(float(lead), abs=1e-5)


def test_a_prompt_with_its_text_is_asked_as_the_text_is(mini_diff):
    texts = ["Rome 9053. Paris 7421. Paris ", "Rome 9053. Paris 7421. Rome "]
    leads = []
    for pair in (texts, [TextPrompt("", text, {}, None) for text in texts]):
        patched = readings.patched_heads(mini_diff, *pair, "7421", "9053", what=["A1"]).estimates
        leads.append([float(patched["lead"]), float(patched["lead_of_source"])])
    assert leads[0] == leads[1]


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((IDS, OTHER[:12], (1, 0, "k1"), []), "20 tokens and the source 12; give prompts of one length"),
        ((IDS, OTHER, (1, 9, "k1"), []), "there is no head L1H9; choose layers from 0, 1"),
        ((IDS, OTHER, (1, 0), []), "the receiver is given as \\(layer, head, part\\), such as .*, and not as \\(1, 0\\)"),
        ((IDS, OTHER, (1, 0.0, "k1"), []), "the receiver is given as"),
        ((IDS, OTHER, (1, 0, "k1"), [(0, 0)]), "a sender is given as .* and not as \\(0, 0\\)"),
        ((IDS, OTHER, (1, 0, "k1"), (0, 0, "output")), "a sender is given as .* and not as 0"),
        ((IDS, OTHER, (1, 0, "v"), []), "there is no 'v' of L1H0; choose from q1, k1, q2, k2"),
        ((IDS, OTHER, (1, 0, "k1"), [(0, 0, "A2")]), "L0H0 has no 'A2'; choose from A1 output"),
        ((IDS, OTHER, (1, 0, "k1"), [(1, 1, "output")]), "L1H1 is not before layer 1"),
    ],
)
def test_what_is_not_there_is_said(arguments, words):
    with pytest.raises(PromptError, match=words):
        path_patches(diffscope.load(tiny.diffllama()), *arguments)


def test_what_has_no_such_path_is_refused():
    with pytest.raises(UnsupportedModel, match="no block around"):
        path_patches(diffscope.load(tiny.gemma2()), IDS, OTHER, (1, 0, "k1"), [(0, 0, "output")])
    with pytest.raises(UnsupportedModel, match="layer 2 does not make its queries and keys of what it reads"):
        path_patches(diffscope.load(gated.tiny()), IDS, OTHER, (2, 0, "k1"), [(0, 0, "output")])
    scope = diffscope.load(tiny.diffllama())
    with scope.edit(diffscope.edits.set_lambda(1.0)), pytest.raises(DiffscopeError, match="leave the edits that are on"):
        path_patches(scope, IDS, OTHER, (1, 0, "k1"), [(0, 0, "output")])
    (edit,) = path_patches(scope, IDS, OTHER, (1, 0, "k1"), [(0, 0, "output")])
    with scope.edit(edit), pytest.raises(PromptError, match="made for one prompt of 20 tokens"):
        scope.capture(IDS[:10])
    with pytest.raises(PromptError, match="both prompts have the same answer"):
        readings.patched_heads(scope, IDS, OTHER, 5, 5)
