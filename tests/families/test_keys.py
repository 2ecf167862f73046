"""The keys and rows of a layer are those of the prompt's tokens: where they are not, no map is given out."""

import copy
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from transformers import DynamicCache

import diffscope
from diffscope import DiffscopeError, UnsupportedModel, edits
from tests import tiny

N, PREFIX = 20, 5
IDS = tiny.ids(N)
MODELS = {"standard": lambda: tiny.standard("llama"), "diffllama": tiny.diffllama, "own": lambda: tiny.own("v2")}
NOTHING = edits.top_k_a1(1000)  # more keys than there are


def random_keys(part, prompts, dtype, seed=0):
    """Keys or values of a learned prefix, (prompt, key head, key, width)."""
    generator = torch.Generator().manual_seed(seed)
    shape = (1, part.config.num_key_value_heads, PREFIX, part.head_dim)
    return torch.randn(shape, generator=generator).expand(prompts, -1, -1, -1).to(dtype)


def with_cartridge(model):
    """Learned keys in front of the prompt, which the model's own forward puts into a cache, as prefix tuning does."""

    class Cartridge(type(model)):
        def forward(self, input_ids, past_key_values=None, attention_mask=None, **options):
            prompts = len(input_ids)
            if past_key_values is None or past_key_values.get_seq_length() == 0:
                past_key_values = DynamicCache()
                for number, layer in enumerate(self.model.layers):
                    k, v = (random_keys(layer.self_attn, prompts, self.dtype, seed) for seed in (number, number + 10))
                    past_key_values.update(k, v, number)
                if attention_mask is not None:
                    ones = attention_mask.new_ones(prompts, PREFIX)
                    attention_mask = torch.cat([ones, attention_mask], 1)
            return super().forward(input_ids, attention_mask=attention_mask, past_key_values=past_key_values, **options)

    model.__class__ = Cartridge
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["standard", "diffllama"])
def test_keys_that_are_not_the_prompts_are_refused_in_a_line(kind, dtype):
    scope = diffscope.load(with_cartridge(MODELS[kind]()), dtype=dtype)
    ids = torch.tensor([IDS])
    line = f"layer 0: .* attends to {N + PREFIX} keys where there are {N} tokens.*open the model without what"
    looks = [lambda: scope.capture(IDS), lambda: scope.capture([IDS, IDS[:7]]), lambda: scope.measure(IDS, ["span_mass"])]
    for look in looks:
        with pytest.raises(UnsupportedModel, match=line):
            look()
    for edit in (edits.drop_sink(), NOTHING):
        with scope.edit(edit), pytest.raises(UnsupportedModel, match=line):
            scope.model(ids)
        with scope.edit(edit), pytest.raises(UnsupportedModel, match="keys where there are"):
            scope.generate(IDS, 2)
        with scope.edit(edit), pytest.raises(UnsupportedModel, match=line):
            scope.loss(IDS)
    with pytest.raises(DiffscopeError, match="keys where there are"):
        diffscope.check(scope.model)


def test_steps_from_a_cache_that_somebody_made_are_edited_as_before():
    for make in (*MODELS.values(), lambda: tiny.standard("mistral")):  # mistral's cache keeps a window of 7
        scope = diffscope.load(make())
        with scope.edit(edits.top_k_a1(2)):
            steps = tiny.stepwise(scope.model, IDS)
            with torch.no_grad():
                whole = scope.model(torch.tensor([IDS])).logits[0]
        assert float((steps - whole).abs().max()) < 1e-4 * float(whole.std())


EAGER = {"gemma2": tiny.gemma2, "gpt_oss": tiny.gpt_oss, "signed": lambda: tiny.own("signed")}
STATIC = [(kind, how) for kind in (*MODELS, "mistral", "qwen3", "gpt2") for how in ("eager", "sdpa")]


@pytest.mark.parametrize("kind, implementation", [*STATIC, *((kind, "eager") for kind in EAGER)])
def test_edits_act_in_a_static_cache_as_without_a_cache(kind, implementation):
    make = {**MODELS, **EAGER}.get(kind, lambda: tiny.standard(kind))
    scope = diffscope.load(make())
    scope.model.set_attn_implementation(implementation)

    def logits(**cache):  # of five tokens more than the prompt's five, which is longer than the windows
        options = dict(min_new_tokens=5, max_new_tokens=5, do_sample=False, output_logits=True, return_dict_in_generate=True)
        return torch.cat(scope.model.generate(torch.tensor([IDS[:5]]), **options, **cache).logits)

    plain = logits(cache_implementation="static")
    for edit in (NOTHING, edits.top_k_a1(2), edits.ablate_heads(layers=0, heads=[1, 2])):
        with scope.edit(edit):
            edited = logits(cache_implementation="static")
            assert torch.allclose(edited, logits(use_cache=False), atol=1e-4 * float(plain.std())), edit
        assert torch.allclose(edited, plain, atol=1e-4 * float(plain.std())) == (edit is NOTHING)


def masks():
    """Masks with rows that see nothing, by name, bool (query, key)."""
    causal = torch.ones(N, N).tril().bool()
    for name, rows in {"first": [0], "middle": [5, 6], "last": [N - 1], "all": range(N)}.items():
        visible = causal.clone()
        visible[list(rows)] = False
        yield name, visible
    visible = causal.clone()
    visible[:, :3] = False  # padding on the left
    yield "left", visible


@contextmanager
def entering(part, seen):
    """Note what enters a module, after the edits that are on."""
    hook = part.register_forward_pre_hook(lambda part, args: seen.append(args[0]))
    yield
    hook.remove()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", [*MODELS, "mistral"])
def test_rows_that_see_no_key_are_left_as_the_model_made_them(kind, implementation):
    scope = diffscope.load((MODELS.get(kind) or (lambda: tiny.standard(kind)))())
    scope.model.set_attn_implementation(implementation)
    ids = torch.tensor([IDS])
    seen = []  # what enters the first output projection
    for name, visible in masks():
        mask = torch.where(visible, 0.0, torch.finfo(torch.float32).min)[None, None]
        with torch.no_grad():
            own = scope.model(ids, attention_mask=mask).logits
            with scope.edit(NOTHING):
                assert torch.allclose(scope.model(ids, attention_mask=mask).logits, own, atol=2e-5 * float(own.std())), name
            for edit in ([], [edits.ablate_heads(layers=0)]):
                with scope.edit(*edit), entering(scope.model.model.layers[0].self_attn.o_proj, seen):
                    scope.model(ids, attention_mask=mask)
        before, edited = seen[-2:]
        assert torch.equal(edited, before * ~visible.any(-1)[:, None]), name


def test_a_mask_of_true_and_false_that_eager_attention_adds_is_named():
    visible = torch.ones(N, N).tril().bool()[None, None]
    ids = torch.tensor([IDS])
    for kind in ("standard", "diffllama"):
        for dtype in ("float32", "bfloat16"):
            scope = diffscope.load(MODELS[kind](), dtype=dtype)
            scope.model.set_attn_implementation("eager")
            with scope.edit(NOTHING), pytest.raises(UnsupportedModel, match="adds 1 and 0 and hides no key"):
                scope.model(ids, attention_mask=visible)
        scope = diffscope.load(MODELS[kind]())
        with torch.no_grad(), scope.edit(edits.top_k_a1(2)):  # SDPA hides what is false
            off = scope.model(ids, attention_mask=visible).logits - scope.model(ids).logits
        assert off.abs().max() < 1e-4


def prompt_by_prompt(forward):
    """A forward that runs what it is given one prompt after the other."""

    def alone(value, index):
        if isinstance(value, tuple):
            return tuple(alone(each, index) for each in value)
        return value[index : index + 1] if isinstance(value, torch.Tensor) and len(value) > 1 else value

    def run(batch, **options):
        given = [{name: alone(value, i) for name, value in options.items()} for i in range(len(batch))]
        outputs = [forward(alone(batch, i), **each) for i, each in enumerate(given)]
        if isinstance(outputs[0], torch.Tensor):
            return torch.cat(outputs)
        outputs[0].logits = torch.cat([output.logits for output in outputs])
        return outputs[0]

    return run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("place", ["model", "layer"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_takes_its_batch_apart_is_read_one_prompt_at_a_time(kind, place, dtype):
    scope, plain = (diffscope.load(MODELS[kind](), dtype=dtype) for _ in range(2))
    for part in [scope.model] if place == "model" else scope.model.model.layers:
        part.forward = prompt_by_prompt(part.forward)
    line = "is given 1 of 2 prompts at a time.*one prompt at a time"
    for look in (scope.capture, scope.measure, scope.loss):
        with scope.edit(edits.top_k_a1(2, layers=0)), pytest.raises(UnsupportedModel, match=line):
            look([IDS, IDS[::-1]])
    with pytest.raises(UnsupportedModel, match=line):
        scope.capture([IDS, IDS[::-1]])
    if place == "layer":  # an edit of a layer would miss all prompts but the first
        with scope.edit(edits.top_k_a1(2, layers=0)), pytest.raises(UnsupportedModel, match=line):
            scope.model(torch.tensor([IDS, IDS[::-1]]), use_cache=False)
    one, other = scope.capture([IDS])[0], plain.capture([IDS])[0]
    assert np.abs(one.map("D", 1, 0) - other.map("D", 1, 0)).max() < 1e-6


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["standard", "diffllama"])
def test_a_layer_with_a_configuration_of_its_own_is_read(kind, implementation):
    model = MODELS[kind]()
    model.set_attn_implementation(implementation)
    model.model.layers.append(copy.deepcopy(model.model.layers[1]))  # depth up-scaling
    model.model.layers[2].self_attn.layer_idx = 2
    model.config.num_hidden_layers = 3
    own = model.model.layers[2].self_attn.config
    assert own is not model.config
    scope = diffscope.load(model)
    capture = scope.capture(IDS)
    assert capture.layer_numbers == [0, 1, 2] and float(capture.fidelity.error.max()) < 1e-5
    with torch.no_grad(), scope.edit(edits.ablate_heads(layers=2)):
        edited = model(torch.tensor([IDS])).logits
    assert own._attn_implementation == model.config._attn_implementation == implementation
    model.model.layers[2].self_attn.o_proj.weight.data.zero_()
    with torch.no_grad():
        assert torch.allclose(model(torch.tensor([IDS])).logits, edited, atol=1e-4)
    own._attn_implementation = "sdpa" if implementation == "eager" else "eager"
    with pytest.raises(UnsupportedModel, match="differ in attention implementation"):
        scope.capture(IDS)
