"""A capture shows the maps the model used, proves it, and answers the same questions from disk."""

import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import xarray as xr

import diffscope
from diffscope import FidelityError, InsufficientMemory, PromptError, UnsupportedModel
from diffscope.attention.blocks import blocks_of
from diffscope.attention.components import Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.attention.stacking import repeat_heads
from diffscope.attention.stored import to_tensors
from diffscope.families.bundled import Bundled
from diffscope.proof.fidelity import deviation, fidelities, other_pairings, rebuild_errors
from diffscope.scope.run import Run
from tests import tiny
from tests.proof.test_fidelity import unit_in_numpy

MODELS = {
    "v1": lambda: tiny.own("v1"),
    "v1-grouped": lambda: tiny.own("v1", kv_heads=2),
    "v2": lambda: tiny.own("v2"),
    "v2-grouped": lambda: tiny.own("v2", kv_heads=2),
    "v1-plus": lambda: tiny.own("plus", kv_heads=2),
    "v1-shared-a2": lambda: tiny.own("shared_a2", kv_heads=2),
    "own-standard": lambda: tiny.own("standard", kv_heads=2),
    "diffllama": lambda: tiny.diffllama(),
    "diffllama-grouped": lambda: tiny.diffllama(kv=4),
    "llama": lambda: tiny.standard("llama"),
    "qwen3": lambda: tiny.standard("qwen3"),
    "gpt2": lambda: tiny.standard("gpt2"),
    "mistral-window": lambda: tiny.standard("mistral"),
}


BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 0.15, torch.float16: 0.02}
WAYS = (("eager", torch.float32), ("sdpa", torch.float64), ("eager", torch.bfloat16), ("sdpa", torch.float16))


@pytest.mark.parametrize(
    "name, implementation, dtype",
    [
        *((name, *way) for name in MODELS for way in WAYS),
        *((name, "eager", torch.float64) for name in ("llama", "mistral-window")),
    ],
)
def test_every_layer_is_rebuilt(name, implementation, dtype):
    bound = BOUNDS[dtype]
    if implementation == "eager" and dtype == torch.float64 and not name.startswith(("v", "own")):
        bound = 5e-6  # Hugging Face's eager attention takes its softmax in float32 whatever the model
    model = MODELS[name]().to(dtype)
    model.set_attn_implementation(implementation)
    # Two prompts of different length, both longer than the window. Padded rows further than a window from the text see no
    # key at all; Hugging Face's eager attention makes NaN of them in float64 and spreads it, so there is no padding there.
    short = 33 if name == "mistral-window" and implementation == "eager" and dtype == torch.float64 else 19
    capture = diffscope.load(model).capture([tiny.ids(short), tiny.ids(33, seed=1)])
    assert float(capture.fidelity.error.max()) < bound
    assert capture.fidelity.rows.values.tolist() == [short + 33] * 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:flex_attention called")
@pytest.mark.parametrize("name", ["v1-grouped", "mistral-window"])
def test_flex_attention_is_read_too(name):
    """Its mask is no tensor: the rule comes from the module and its window, and padding from the prompts' lengths.

    It runs uncompiled here; ``tests/scope/test_leaving.py`` looks at compiled code.
    """
    model, prompts = MODELS[name](), [tiny.ids(19), tiny.ids(33, seed=1)]
    model.set_attn_implementation("flex_attention")
    with torch.compiler.set_stance("force_eager"):
        capture = diffscope.load(model).capture(prompts)
    assert capture.facts["attention"] == "flex_attention" and float(capture.fidelity.error.max()) < 1e-5
    model.set_attn_implementation("sdpa")
    same = diffscope.load(model).capture(prompts)
    assert np.abs(capture[1].map("D", 1, 2) - same[1].map("D", 1, 2)).max() < 1e-5


@pytest.mark.parametrize(
    "name", ["v1", "v1-grouped", "v2-grouped", "diffllama", "diffllama-grouped", "llama", "gpt2", "mistral-window"]
)
def test_maps_are_those_of_hugging_face_eager(name):
    model, ids = MODELS[name](), tiny.ids(24)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        theirs = model(torch.tensor([ids]), output_attentions=True).attentions
    capture = diffscope.load(model).capture(ids)
    heads = capture.n_heads
    for layer, weights in enumerate(theirs):
        weights = weights[0].numpy()
        first, second = (weights[0::2], weights[1::2]) if name.startswith("v2") else (weights[:heads], weights[heads:])
        for head in range(heads):
            assert np.abs(capture.map("A1", layer, head) - first[head]).max() < 1e-5
            if capture.differential:
                assert np.abs(capture.map("A2", layer, head) - second[head]).max() < 1e-5


@pytest.mark.parametrize("name", ["v1", "v2", "diffllama"])
def test_rows_of_the_difference_sum_to_one_minus_lambda(name):
    capture = diffscope.load(MODELS[name]().double()).capture(tiny.ids(20))
    lam = capture.lam.values if name == "v2" else np.repeat(capture.lam.values[..., None], 20, axis=-1)
    for layer in range(2):
        for head in range(4):
            sums = capture.map("D", layer, head).sum("key").values
            assert np.abs(sums - (1 - lam[layer, head])).max() < 1e-7
    assert np.unique(lam.round(6)).size >= (20 if name == "v2" else 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["v1-grouped", "v2", "diffllama", "llama"])
def test_eager_half_precision_rounds_its_scores_and_so_do_the_maps(name, dtype, tmp_path):
    """With large scores the rounding before the softmax moves the maps themselves: the model's are shown, not ideal ones."""
    model = MODELS[name]()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(4)
    model.to(dtype).set_attn_implementation("eager")
    ids = tiny.ids(40)
    with torch.no_grad():
        theirs = model(torch.tensor([ids]), output_attentions=True).attentions[1][0].float().numpy()
    capture = diffscope.load(model).capture(ids)
    first = theirs[0::2] if name == "v2" else theirs[: capture.n_heads]
    unit = torch.finfo(dtype).eps
    assert all(np.abs(capture.map("A1", 1, head) - first[head]).max() < unit for head in range(capture.n_heads))
    capture.save(tmp_path / "kept.dscope")
    assert np.array_equal(diffscope.open(tmp_path / "kept.dscope").map("A1", 1, 0), capture.map("A1", 1, 0))


def test_noise_and_share_follow_from_the_others():
    capture = diffscope.load(tiny.own("v2")).capture(tiny.ids(20))
    a1, a2, d, noise, share = (capture.map(name, 1, 2).values for name in ("A1", "A2", "D", "lambda_A2", "share"))
    lam = capture.lam.values[1, 2][:, None]
    assert np.allclose(noise, lam * a2, atol=1e-7) and np.allclose(d, a1 - noise, atol=1e-7)
    assert np.allclose(share, np.abs(d) / np.abs(d).sum(1, keepdims=True), atol=1e-6)


def test_a_window_is_a_piece_of_the_map():
    capture = diffscope.load(tiny.own("v1")).capture(tiny.ids(30))
    whole = capture.map("D", 1, 3)
    window = capture.map("D", 1, 3, queries=slice(10, 20), keys=[0, 5, 9])
    assert np.array_equal(window["query"], np.arange(10, 20)) and np.array_equal(window["key"], [0, 5, 9])
    assert np.allclose(window, whole.sel(query=window["query"], key=window["key"]), atol=1e-7)


def test_a_pooled_map_keeps_spikes_and_signs():
    capture = diffscope.load(tiny.own("v1")).capture(tiny.ids(50))
    whole, pooled = capture.map("D", 0, 1).values, capture.pooled_map("D", 0, 1, size=8)
    width = pooled.attrs["bin"]
    assert width == 7 and pooled.shape == (8, 8)
    for i in range(8):
        for j in range(8):
            window = whole[i * width : (i + 1) * width, j * width : (j + 1) * width]
            assert np.isclose(pooled.values[i, j], window.flat[np.abs(window).argmax()], atol=1e-7)


def test_a_batch_is_its_prompts_one_by_one():
    scope, spans = diffscope.load(tiny.own("v2", kv_heads=2)), {"answer": slice(3, 5)}
    prompts = [tiny.ids(15), tiny.ids(40, seed=2)]
    together = scope.capture(prompts, spans=spans)
    measured = together.measure(["entropy", "span_mass", "cosine"])
    for index, prompt in enumerate(prompts):
        alone = scope.capture(prompt, spans=spans)
        n = len(prompt)
        assert np.allclose(together[index].map("D", 1, 2), alone.map("D", 1, 2), atol=1e-6)
        assert np.allclose(together.lam.isel(prompt=index).values[..., :n], alone.lam, atol=1e-6)
        assert np.isnan(together.lam.isel(prompt=index).values[..., n:]).all()
        assert [token for token, _ in together.next[index]] == [token for token, _ in alone.next]
        of_model = alone.measure(["entropy", "span_mass", "cosine"])
        for name in of_model:
            batch = measured[name].isel(prompt=index)
            batch = batch.isel(query=slice(0, n)) if "query" in batch.dims else batch
            assert np.allclose(batch.transpose(*of_model[name].dims), of_model[name], atol=1e-4, equal_nan=True), name


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_a_prompt_of_a_batch_is_a_capture_of_its_own(kind, tmp_path):
    """λ of V1 is one a head, of V2 one a token: neither the batch nor its prompts lose or gain a dimension."""
    scope = diffscope.load(tiny.own(kind))
    prompts, spans = [tiny.ids(12), tiny.ids(21, seed=1)], [{"answer": slice(3, 5)}, {"answer": slice(6, 8)}]
    batch = scope.capture(prompts, spans)
    assert len(batch) == 2 and [item.n_tokens for item in batch] == batch.n_tokens == [12, 21]
    per_token = ("query",) if kind == "v2" else ()
    assert batch.lam.dims == ("layer", "prompt", "head", *per_token)
    standard = diffscope.load(tiny.own("standard")).capture(prompts[0])
    assert standard.lam.isnull().all() and batch.lam.sel(layer=0).notnull().any()
    for index, part in enumerate(batch):
        assert isinstance(part, diffscope.Capture) and part.lam.dims == ("layer", "head", *per_token)
        for name in ("tokens", "ids", "offsets", "spans", "text", "next"):
            assert getattr(part, name) == getattr(batch, name)[index], name
        assert np.array_equal(part.map("D", 1, 2), batch[index].map("D", 1, 2))
        of_batch = batch.measure(["entropy", "logit_outliers"]).isel(prompt=index, query=slice(0, part.n_tokens))
        xr.testing.assert_allclose(part.measure(["entropy", "logit_outliers"]), of_batch.drop_vars("prompt", errors="ignore"))
    batch[-1].save(tmp_path / "last.dscope")
    assert np.array_equal(diffscope.open(tmp_path / "last.dscope").map("A1", 0, 0), batch[1].map("A1", 0, 0))
    with pytest.raises(IndexError, match="no prompt 2; the capture has prompts 0 to 1"):
        batch[2]


def test_a_batch_of_one_is_a_batch_and_a_prompt_its_own_first():
    scope = diffscope.load(tiny.own("v1"))
    alone, batch = scope.capture(tiny.ids(9)), scope.capture([tiny.ids(9)])
    assert (alone.n_tokens, batch.n_tokens, len(alone), len(batch)) == (9, [9], 1, 1)
    assert "prompt" in batch.measure("gini").dims and "prompt" not in alone.measure("gini").dims
    assert alone[0].tokens == alone.tokens == batch[0].tokens and alone[0].measure("gini").identical(alone.measure("gini"))


@pytest.mark.parametrize("name", ["v1", "v2-grouped", "diffllama", "mistral-window"])
def test_saved_and_reopened_it_answers_the_same(name, tmp_path):
    scope = diffscope.load(MODELS[name]())
    capture = scope.capture([tiny.ids(12), tiny.ids(21)], spans={"answer": slice(3, 5)})
    capture.save(tmp_path / "capture.dscope")
    again = diffscope.open(tmp_path / "capture.dscope")
    assert np.array_equal(capture[1].map("D", 1, 2), again[1].map("D", 1, 2))
    assert capture.measure(["row", "logit_outliers"]).identical(again.measure(["row", "logit_outliers"]))
    assert again.next == capture.next and again.spans == capture.spans and again.tokens == capture.tokens
    assert capture.fidelity.identical(again.fidelity) and capture.lam.identical(again.lam)
    assert [path.name for path in tmp_path.iterdir()] == ["capture.dscope"]


def test_a_capture_of_a_model_whose_logits_are_nan_is_reopened(tmp_path):
    model = tiny.own("v1")
    with torch.no_grad():
        model.lm_head.weight[5] = torch.nan
    capture = diffscope.load(model).capture(tiny.ids(12))
    capture.save(tmp_path / "capture.dscope")
    again = diffscope.open(tmp_path / "capture.dscope")
    assert np.isnan([probability for _, probability in again.next]).all() and len(again.next) == len(capture.next) > 0
    assert np.array_equal(capture.map("D", 1, 2), again.map("D", 1, 2))


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "capture.dscope"
    diffscope.load(tiny.own("v1")).capture(tiny.ids(12)).save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(diffscope.CorruptFile, match="damaged"):
        diffscope.open(path)


def test_memory_is_linear_in_the_prompt():
    scope = diffscope.load(tiny.own("v1"))

    def held(n):
        layers = scope.capture(tiny.ids(n)).layers
        return sum(t.untyped_storage().nbytes() for layer in layers for t in to_tensors(layer)[0].values())

    assert held(200) < 2.2 * held(100)


class Misreading(Bundled):
    """A family that gets one thing wrong."""

    def __init__(self, change):
        self.change = change

    def read(self, passage):
        return self.change(super().read(passage))


def by_stripes(layer):
    head = torch.arange(layer.n_heads)
    return replace(layer, pairing=replace(layer.pairing, a1=2 * head, a2=2 * head + 1))


MISTAKES = {
    "head h owns maps h and h \\+ H": by_stripes,
    "swapped": lambda layer: replace(layer, pairing=replace(layer.pairing, a1=layer.pairing.a2, a2=layer.pairing.a1)),
    "λ is not the value": lambda layer: replace(layer, lam=layer.lam + 0.3),
}


@pytest.mark.parametrize("cause, dtype", [*((cause, torch.float32) for cause in MISTAKES), ("swapped", torch.bfloat16)])
def test_a_misreading_is_refused_with_layer_and_cause(cause, dtype):
    scope = diffscope.load(tiny.own("v1").to(dtype))
    scope.family = Misreading(MISTAKES[cause])
    with pytest.raises(FidelityError, match=rf"layer 0: .*'diffscope'.*likely cause: .*{cause}"):
        scope.capture(tiny.ids(30))


def test_large_scores_are_rounded_and_no_misreading():
    """A score of hundreds is rounded by many ε: a right reading of such a layer is shown, a wrong λ of it still refused."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 300, 16, generator=generator) for _ in range(3))
    q[..., 0], k[..., 0] = 60.0, 20.0  # what all scores have in common cancels in the softmax, but not in its rounding
    lam = torch.full((1, 1, 1), 0.7)
    layer = LayerAttention(0, "test", q, k, v[:, :1], 0.25, Pairing.stripes(1), (300,), lam=lam)
    seen = torch.ones(300, 300, dtype=torch.bool).tril()
    scores = (q.double() @ k.double().mT * 0.25).masked_fill(~seen, -torch.inf)
    maps = scores.softmax(-1)[0]
    observed = ((maps[0] - 0.7 * maps[1]) @ v[0, 0].double()).float()[None]
    (measured,) = fidelities([layer], [observed])
    assert 2e-5 < measured.error < measured.tolerance < 3e-4
    assert measured.tolerance == pytest.approx(
        float(scores[scores > -torch.inf].abs().max()) * 4 * torch.finfo(torch.float32).eps
    )
    (wrong,) = fidelities([replace(layer, lam=lam * 1.01)], [observed])
    assert wrong.error > 10 * wrong.tolerance


TOGETHER = {
    **{name: lambda name=name: tiny.own(name, num_hidden_layers=3) for name in ("v1", "v2", "standard")},
    "diffllama": lambda: tiny.diffllama(kv=4, num_hidden_layers=3),
    **{name: lambda name=name: tiny.standard(name) for name in ("gpt2", "mistral")},
}


@pytest.mark.parametrize("kind", TOGETHER)
def test_layers_proved_together_are_proved_as_alone(kind, monkeypatch):
    stacks = []
    scope = diffscope.load(TOGETHER[kind]())
    with monkeypatch.context() as patch:
        patch.setattr("diffscope.proof.prove.fidelities", lambda *args: stacks.append(args[0]) or fidelities(*args))
        together = scope.capture(tiny.ids(60)).fidelity
    assert [len(layers) for layers in stacks] == [together.sizes["layer"]]
    monkeypatch.setattr("diffscope.scope.run.WAIT_FOR", 0)
    alone = scope.capture(tiny.ids(60)).fidelity
    assert together.sizes["layer"] == alone.sizes["layer"] > 1 and together.decided.all()
    assert together.drop_vars("error").equals(alone.drop_vars("error"))
    assert np.allclose(together.error, alone.error, atol=2e-7)


def test_a_single_head_has_no_other_pairing():
    fidelity = diffscope.load(tiny.own("standard", heads=1, num_hidden_layers=3)).capture(tiny.ids(20)).fidelity
    assert fidelity.sizes["layer"] == 3 and (fidelity.error < 1e-5).all() and fidelity.decided.all()


def test_a_layer_is_read_before_later_ones_change_what_it_saw():
    """Residual streams are added to in place in some models; by the time that layers are proved together, they are others."""
    model = tiny.own("v2", num_hidden_layers=3)
    expected = [layer.lam_fp32 for layer in diffscope.load(model).capture(tiny.ids(30)).layers]
    handles, seen = [], {}

    def keep(module, args, kwargs):
        seen[module] = kwargs["hidden_states"]

    def overwrite(module, args, output):
        seen[module.self_attn].zero_()

    for layer in model.model.layers:
        handles.append(layer.self_attn.register_forward_pre_hook(keep, with_kwargs=True))
        handles.append(layer.register_forward_hook(overwrite))
    measured = [layer.lam_fp32 for layer in diffscope.load(model).capture(tiny.ids(30)).layers]
    for handle in handles:
        handle.remove()
    assert all((hidden == 0).all() for hidden in seen.values()) and len(seen) == 3
    assert all(torch.equal(item, other) for item, other in zip(measured, expected))


def test_what_a_module_overwrites_after_it_attended_is_kept():
    """Its hidden states by a residual that is added in place, and the memory of its queries, keys and values, used again."""
    model = tiny.own("v2", num_hidden_layers=3)
    expected = diffscope.load(model).capture(tiny.ids(30)).layers
    projected = []

    def overwrite(attention, projection, args, output):
        for tensor in (attention.hidden, *projected):
            tensor.zero_()
        projected.clear()

    def project(*args, plain):
        projected.extend(plain(*args))
        return tuple(projected)

    for layer in model.model.layers:
        attention = layer.self_attn
        attention.project = partial(project, plain=attention.project)
        attention.register_forward_pre_hook(
            lambda module, args, kwargs: setattr(module, "hidden", kwargs["hidden_states"]), with_kwargs=True
        )
        attention.o_proj.register_forward_hook(partial(overwrite, attention))
    measured = diffscope.load(model).capture(tiny.ids(30)).layers
    for layer, other in zip(measured, expected):
        assert torch.equal(layer.lam_fp32, other.lam_fp32) and torch.equal(layer.rows().d, other.rows().d)
        assert torch.equal(layer.output(), other.output())


def test_memory_of_inference_mode_is_not_used_outside_of_it():
    scope = diffscope.load(tiny.own("v1"))
    with torch.inference_mode():
        inside = scope.measure(tiny.ids(30), "entropy")
    outside = scope.measure(tiny.ids(30), "entropy")
    xr.testing.assert_identical(inside, outside)


def test_layers_with_their_own_way_of_pairing_are_told_apart():
    """One layer of four whose maps are swapped, with a λ that makes the swap matter."""
    scope = diffscope.load(tiny.own("v1", num_hidden_layers=4))

    def swapped(layer):
        pairing = layer.pairing
        wrong = replace(pairing, a1=pairing.a2, a2=pairing.a1)
        return replace(layer, pairing=wrong) if layer.layer == 1 else layer

    scope.family = Misreading(swapped)
    with pytest.raises(FidelityError, match="layer 1.*swapped"):
        scope.capture(tiny.ids(30))


def test_one_misread_layer_among_others_is_found():
    scope = diffscope.load(tiny.own("v1", num_hidden_layers=4))
    scope.family = Misreading(lambda layer: replace(layer, lam=layer.lam * 1.01) if layer.layer == 2 else layer)
    with pytest.raises(FidelityError, match="layer 2"):
        scope.capture(tiny.ids(30))


def test_wrong_values_are_refused():
    scope = diffscope.load(tiny.own("v1"))
    scope.family = Misreading(lambda layer: replace(layer, v=layer.v.flip(1)))
    with pytest.raises(FidelityError, match="layer 0"):
        scope.capture(tiny.ids(30))


def test_nothing_is_left_behind():
    from transformers import AttentionInterface, AttentionMaskInterface

    model = tiny.own("v1")
    model.set_attn_implementation("eager")
    scope = diffscope.load(model)
    names = set(AttentionInterface._global_mapping), set(AttentionMaskInterface._global_mapping)
    scope.capture(tiny.ids(9))
    scope.family = Misreading(by_stripes)
    with pytest.raises(FidelityError):
        scope.capture(tiny.ids(9))
    assert (set(AttentionInterface._global_mapping), set(AttentionMaskInterface._global_mapping)) == names
    assert model.config._attn_implementation == "eager"
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_two_threads_take_turns():
    scope, captures = diffscope.load(tiny.own("v1")), {}
    prompts = [tiny.ids(20, seed) for seed in range(4)]

    def run(index):
        captures[index] = scope.capture(prompts[index])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, prompt in enumerate(prompts):
        assert captures[index].ids == prompt
        assert np.array_equal(captures[index].map("D", 1, 1), scope.capture(prompt).map("D", 1, 1))


def test_a_prompt_the_model_cannot_take_is_refused():
    scope = diffscope.load(tiny.own("v1"))
    for prompt, words in [
        ([], "empty"),
        (tiny.ids(257), "257 tokens.*positions for 256"),
        ([5, tiny.VOCABULARY], "vocabulary"),
        ("text", "without a tokenizer"),
    ]:
        with pytest.raises(PromptError, match=words):
            scope.capture(prompt)


def test_a_capture_that_will_not_fit_is_refused(monkeypatch):
    from diffscope.scope import run as module

    monkeypatch.setattr(module, "free_memory", lambda device: 10_000)
    with pytest.raises(InsufficientMemory, match="shorter prompt"):
        diffscope.load(tiny.own("v1")).capture(tiny.ids(60))


def test_the_card_has_lambda_of_tokens_and_not_of_padding():
    capture = diffscope.load(tiny.own("v2")).capture([tiny.ids(20, seed=14), tiny.ids(2, seed=4)])
    least, largest = float(capture.lam.min()), float(capture.lam.max())
    assert min(float(layer.lam.min()) for layer in capture.layers) < least
    assert f"{least:.3g} to {largest:.3g}" in capture._repr_html_()


def fixed_lambda(lam, dtype):
    """A tiny V1 whose every layer has this λ, by its learned vectors."""
    model = tiny.own("v1")
    for attention in (layer.self_attn for layer in model.model.layers):
        attention.lambda_q1.data.zero_()[0] = 1.0
        attention.lambda_k1.data.zero_()[0] = np.log(1 + lam - attention.lambda_init)
        attention.lambda_q2.data.zero_()
    return diffscope.load(model.to(dtype))


@pytest.mark.parametrize("lam", [0.0, 0.9, 0.98, 0.9999, 1.0, 1.01])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cancellation_is_not_taken_for_a_wrong_map(lam, dtype):
    """Near λ = 1 the two terms cancel and the norm enlarges their rounding; the maps are right all the same."""
    proof = fixed_lambda(lam, dtype).capture(tiny.ids(40)).fidelity
    assert float((proof.error / proof.tolerance).max()) < 0.7
    # With λ = 0 nothing tells which second map it is; vectors rounded to half precision may leave it a little off 0.
    if lam != 0.0 or dtype is torch.float32:
        assert bool(proof.decided.all()) == (lam != 0.0)


@pytest.mark.parametrize("lam", [0.8, 1.0])
def test_a_wrong_lambda_is_refused_near_one_too(lam):
    scope = fixed_lambda(lam, torch.float32)
    scope.family = Misreading(lambda layer: replace(layer, lam=layer.lam + 0.01))
    with pytest.raises(FidelityError, match="λ is not the value"):
        scope.capture(tiny.ids(40))


@pytest.mark.parametrize("attention, heads", [("v1", 4), ("v2", 4), ("standard", 8)])
def test_pairings_tried_together_deviate_as_they_do_alone(attention, heads):
    model = tiny.own(attention, heads, kv_heads=heads // 2, max_position_embeddings=512)
    layer = diffscope.load(model).capture(tiny.ids(420)).layers[1]
    seen = torch.randn(layer.n_heads, 420, layer.v.shape[-1], generator=torch.Generator().manual_seed(0))
    checked, others = torch.arange(420), [other for _, other in other_pairings(layer)]
    assert len(list(blocks_of(layer, checked, all_heads=True))) > 1
    few = slice(10, None, 11)
    together = repeat_heads(layer, [other.pairing for other in others])
    of_others = rebuild_errors(together, checked[few], seen[:, few].repeat(len(others), 1, 1))[0].view(len(others), -1).amax(-1)
    expected = []
    for reading in (layer, *others):
        rows = reading.rows(checked)
        terms = [(rows.gain, rows.a1)] if rows.a2 is None else [(rows.gain, rows.a1), (rows.lam, rows.a2)]
        values = layer.v[0][layer.pairing.value_of_head]
        factor = 1.0 if layer.norm is None else layer.norm.factor(reading.head_outputs())
        size = sum(
            number.numpy() * np.stack([unit_in_numpy(maps, of_head) for maps, of_head in zip(every, values)])
            for number, every in terms
        )
        size = torch.from_numpy(size) * factor * layer.post_scale
        off = (reading.output() - seen).abs().amax(-1) / size  # (head, query)
        expected.append(float((off if reading is layer else off[:, few]).max()))
    assert np.allclose([deviation(layer, checked, seen), *of_others.tolist()], expected, rtol=1e-3)


def test_an_undecided_pairing_is_said_to_be():
    """At initialisation all maps are nearly uniform: bfloat16 rounds more than they differ by, and float32 decides."""
    torch.manual_seed(0)
    config = tiny.own("v1").config
    untrained = type(tiny.own("v1"))(config)
    assert diffscope.load(untrained).capture(tiny.ids(40)).fidelity.decided.all()
    half = diffscope.load(untrained.to(torch.bfloat16)).capture(tiny.ids(40))
    assert half.fidelity.decided.all() and float(half.fidelity.error_float32.max()) < 1e-5 and half.undecided == {}
    capture = diffscope.load(tiny.own("v1")).capture([5])  # one token: every map is 1
    assert not capture.fidelity.decided.any() and list(capture.undecided.values()) == [[0, 1]]


def test_a_capture_in_a_training_loop_changes_nothing():
    model = tiny.own("v1").train()
    model.model.layers[0].mlp.eval()
    capture = diffscope.load(model).capture(tiny.ids(20))
    assert model.training and model.model.layers[1].training and not model.model.layers[0].mlp.training
    before = capture.layers[0].output().clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    assert torch.equal(capture.layers[0].output(), before)


def test_models_that_cannot_be_looked_into_are_refused_at_once():
    model = tiny.own("v1")
    for wrong, words in ((model.model, "no language-model head"), (torch.nn.Sequential(model), "not a Hugging Face")):
        with pytest.raises(UnsupportedModel, match=words):
            diffscope.load(wrong)


def test_hooks_are_gone_when_a_projection_is_missing():
    model = tiny.standard("llama")
    scope = diffscope.load(model)
    model.model.layers[1].self_attn.output = model.model.layers[1].self_attn.o_proj
    del model.model.layers[1].self_attn.o_proj
    with pytest.raises(UnsupportedModel, match="no output projection"):
        scope.capture(tiny.ids(9))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_two_scopes_on_one_model_share_a_lock():
    model = tiny.own("v1")
    assert diffscope.load(model).lock is diffscope.load(model).lock is not diffscope.load(tiny.own("v1")).lock


def test_layers_go_by_their_number_in_the_model():
    """Hybrid models have attention in some layers only."""
    capture = diffscope.load(tiny.own("v1")).capture(tiny.ids(12))
    odd = replace(capture, layers=[replace(layer, layer=2 * i + 1) for i, layer in enumerate(capture.layers)])
    assert np.array_equal(odd.map("D", 3, 0), capture.map("D", 1, 0)) and odd.lam["layer"].values.tolist() == [1, 3]
    with pytest.raises(diffscope.DiffscopeError, match="no layer 0; choose from 1, 3"):
        odd.map("D", 0, 0)


def test_what_is_no_attention_model_is_refused():
    with pytest.raises(UnsupportedModel, match="Linear has no attention"):
        diffscope.load(torch.nn.Linear(2, 2))


def test_differential_attention_of_an_unknown_family_is_not_read_as_standard():
    model = tiny.standard("llama")
    for layer in model.model.layers:
        layer.self_attn.lambda_q1 = torch.nn.Parameter(torch.zeros(4))
    with pytest.raises(UnsupportedModel, match="differential attention of a family"):
        diffscope.load(model)


def test_next_tokens_are_the_models():
    model, ids = tiny.own("v1"), tiny.ids(20)
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0, -1].softmax(-1).topk(10)
    measured = diffscope.load(model).capture(ids).next
    assert [int(token) for token, _ in measured] == expected.indices.tolist()
    assert np.allclose([p for _, p in measured], expected.values, atol=1e-5)


def test_there_is_no_second_map_in_standard_attention():
    capture = diffscope.load(tiny.own("standard")).capture(tiny.ids(9))
    with pytest.raises(diffscope.DiffscopeError, match="no second map"):
        capture.map("A2", 0, 0)
    with pytest.raises(diffscope.DiffscopeError, match="lambda_A2"):
        capture.map("noise", 0, 0)
    assert np.array_equal(capture.map("D", 0, 0), capture.map("A1", 0, 0))
    for layer, head in ((2, 0), (0, 4)):
        with pytest.raises(diffscope.DiffscopeError, match="there is no"):
            capture.map("A1", layer, head)


def test_a_model_spread_by_device_map(tiny_diff_folder):
    pytest.importorskip("accelerate")
    whole, spread = diffscope.load(tiny_diff_folder), diffscope.load(tiny_diff_folder, device_map={"": "cpu"})
    assert np.allclose(whole.capture("The answer").map("D", 1, 1), spread.capture("The answer").map("D", 1, 1))


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 2e-5), (torch.bfloat16, 0.15)])
def test_every_layer_is_rebuilt_on_a_gpu(name, dtype, bound):
    capture = diffscope.load(MODELS[name]().to("cuda", dtype)).capture([tiny.ids(19), tiny.ids(33, seed=1)])
    assert float(capture.fidelity.error.max()) < bound


@pytest.mark.parametrize("name", ["v1-grouped", "v2", "mistral-window"])
def test_measuring_as_the_model_runs_gives_what_a_capture_gives(name):
    prompts = [tiny.ids(31), tiny.ids(19, seed=1)]
    spans = [{"answer": slice(3, 6)}, {"answer": slice(2, 4)}]
    scope = diffscope.load(MODELS[name]())
    with scope.edit(diffscope.edits.absolute_d(layers=1)):
        saved = scope.capture(prompts, spans).measure(["entropy", "gini", "span_mass", "logit_outliers"], queries="answer")
        passing = scope.measure(prompts, ["entropy", "gini", "span_mass", "logit_outliers"], spans=spans, queries="answer")
    assert passing.identical(saved) and "|D|" in passing.attrs["edits"]
    assert scope.measure(prompts[0]).identical(scope.capture(prompts[0]).measure())


def test_measuring_as_the_model_runs_keeps_nothing(monkeypatch):
    from weakref import ref

    from diffscope.stats.measure import MeasurementRun

    seen, add = [], MeasurementRun.add

    def watched(measuring, layer, workers):
        assert all(other() is None for other in seen), "an earlier layer is still held"
        seen.append(ref(layer.q))
        return add(measuring, layer, workers)

    monkeypatch.setattr("diffscope.stats.measure.MAX_JOINT_BYTES", 0)
    monkeypatch.setattr("diffscope.scope.run.WAIT_FOR", 0)
    monkeypatch.setattr(MeasurementRun, "add", watched)
    steps = []
    scope = diffscope.load(tiny.own("v1", num_hidden_layers=5))
    scope.measure(tiny.ids(20), "entropy", progress=lambda done, total: steps.append((done, total)))
    assert steps == [(i, 5) for i in range(1, 6)] and len(seen) == 5
    assert all(other() is None for other in seen)


@pytest.mark.parametrize("asked", ["scope", "capture", "batch", "slow"])
def test_an_interrupt_at_any_moment_after_the_first_layer_leaves_what_was_said_to_be_done(asked):
    scope = diffscope.load(tiny.own("v1", num_hidden_layers=4))
    prompt = [tiny.ids(20), tiny.ids(12)] if asked == "batch" else tiny.ids(20)
    names = ["entropy", "span_mass", *(["effective_rank"] if asked == "slow" else [])]
    capture = scope.capture(prompt)
    of_prompts = 2 if asked == "batch" else 1
    whole = capture.measure(names)

    def stop(done, total):
        if done >= 2.5 * of_prompts:
            raise KeyboardInterrupt

    measure = capture.measure if asked == "capture" else partial(scope.measure, prompt)
    with pytest.raises(diffscope.MeasurementInterrupted) as stopped:
        measure(statistics=names, progress=stop)
    measured = stopped.value.measured
    finished = measured.sizes["layer"]
    assert 2 <= finished <= 4 and measured.attrs["stopped"] == f"after {finished} of 4 layers"
    for name in names:
        xr.testing.assert_allclose(measured[name], whole[name].isel(layer=slice(finished)), rtol=1e-5)
    assert scope.measure(prompt, names).equals(whole), "nothing is left behind"


def test_one_map_is_asked_for_by_its_name_alone():
    capture = diffscope.load(tiny.own("v1")).capture(tiny.ids(9))
    assert list(capture.maps(0, names="A1")) == list(capture.pooled_maps(0, names="A1", size=4)) == ["A1"]


def test_a_comparison_that_is_interrupted_keeps_the_first_model(monkeypatch):
    scopes = [diffscope.load(tiny.own("v1", seed=seed)) for seed in (0, 1)]
    comparison = diffscope.compare(*scopes, tiny.ids(9))
    second = comparison.captures[1]
    monkeypatch.setattr(type(second), "measure", stopping_at(second, type(second).measure))
    with pytest.raises(diffscope.MeasurementInterrupted) as stopped:
        comparison.measure("gini")
    measured = stopped.value.measured
    assert measured["model"].values.tolist() == list(comparison.names)
    assert measured["gini"].isel(model=0).notnull().any("query").all() and measured["gini"].isel(model=1, layer=1).isnull().all()
    first = comparison.captures[0].measure("gini")["gini"]
    monkeypatch.setattr(type(second), "measure", stopping_at(second, type(second).measure, finished=0))
    with pytest.raises(diffscope.MeasurementInterrupted) as stopped:
        comparison.measure("gini")
    np.testing.assert_array_equal(stopped.value.measured["gini"].sel(model=comparison.names[0]), first)


def stopping_at(capture, measure, finished=1):
    def stopped(self, *arguments, **how):
        if self is capture and not finished:
            raise KeyboardInterrupt
        measured = measure(self, *arguments, **how)
        if self is capture:
            raise diffscope.MeasurementInterrupted(measured.isel(layer=[0]))
        return measured

    return stopped


def test_an_interrupt_leaves_the_layers_that_were_finished(monkeypatch):
    from diffscope.stats.measure import MeasurementRun

    monkeypatch.setattr("diffscope.stats.measure.MAX_JOINT_BYTES", 0)
    monkeypatch.setattr("diffscope.scope.run.WAIT_FOR", 0)
    scope, add = diffscope.load(tiny.own("v1", num_hidden_layers=4)), MeasurementRun.add
    whole = scope.measure(tiny.ids(20), ["entropy", "logit_outliers"])

    def interrupted(at):
        def stop(measuring, layer, workers):
            if layer.layer == at:
                raise KeyboardInterrupt
            return add(measuring, layer, workers)

        return stop

    monkeypatch.setattr(MeasurementRun, "add", interrupted(2))
    with pytest.raises(diffscope.MeasurementInterrupted) as stopped:
        scope.measure(tiny.ids(20), ["entropy", "logit_outliers"])
    measured = stopped.value.measured
    assert isinstance(stopped.value, KeyboardInterrupt) and measured.attrs["stopped"] == "after 2 of 4 layers"
    assert measured["entropy"].identical(whole["entropy"].isel(layer=[0, 1]))
    assert not scope.model.model.layers[0].self_attn._forward_hooks, "hooks are gone"
    monkeypatch.setattr(MeasurementRun, "add", interrupted(0))
    with pytest.raises(KeyboardInterrupt) as nothing:
        scope.measure(tiny.ids(20), "entropy")
    assert not isinstance(nothing.value, diffscope.MeasurementInterrupted)
    monkeypatch.undo()
    assert scope.measure(tiny.ids(20), ["entropy", "logit_outliers"]).identical(whole)


def test_results_that_would_fill_the_memory_are_refused_before_they_are_made(monkeypatch):
    from diffscope.stats import measure

    scope, taken = diffscope.load(tiny.own("v1")), []
    take = measure.measure_layers
    monkeypatch.setattr(measure, "measure_layers", lambda *args, **how: taken.append(args) or take(*args, **how))
    room = 40 * 2**20  # blocks fit, and so do entropies, but not masses on 240 spans
    monkeypatch.setattr(measure, "free_memory", lambda device: room)
    with pytest.raises(InsufficientMemory, match=r"250 queries.*40 MiB are free.*queries=diffscope.QuerySample\(512\)"):
        scope.measure(tiny.ids(250), "span_mass", spans={str(i): slice(i, i + 1) for i in range(240)})
    assert not taken
    assert scope.measure(tiny.ids(250), "entropy").sizes["query"] == 250


@pytest.mark.parametrize("kind", ["v1", "v2", "standard"])
def test_gradients_flow_through_rows(kind):
    """What is used again in blocks is not where a gradient is to flow."""
    layer = diffscope.load(tiny.own(kind, 2, num_hidden_layers=1)).capture(tiny.ids(5)).layers[0].prompt(0)
    q, k = (getattr(layer, name).double().requires_grad_() for name in ("q", "k"))
    layer = replace(layer, q=q, k=k, v=layer.v.double(), lam=layer.lam.double(), gain=layer.gain.double())

    def weighed(q, k):
        return (replace(layer, q=q, k=k).rows([2, 4, 3]).d ** 2).sum()

    assert torch.autograd.gradcheck(weighed, (q, k))


def test_models_that_share_a_configuration_are_run_one_at_a_time():
    """Being observed is written into the configuration."""
    first = tiny.standard("llama")
    second = type(first)(first.config).eval()
    assert second.config is first.config
    assert diffscope.load(first).lock is diffscope.load(second).lock is not diffscope.load(tiny.own("v1")).lock


def test_a_result_names_the_edits_it_was_run_under_and_no_later_ones(monkeypatch):
    scope, facts = diffscope.load(tiny.own("v1")), Run.facts

    def later(run):
        with scope.edit(diffscope.edits.set_lambda(1.0)):
            return facts(run)

    monkeypatch.setattr(Run, "facts", later)
    assert "edits" not in scope.capture(tiny.ids(9)).facts


def test_a_map_of_changed_rows_is_as_precise_under_autocast():
    scope = diffscope.load(tiny.own("v1"))
    with scope.edit(diffscope.edits.low_rank_a2(2)):
        capture = scope.capture(tiny.ids(20))
    with torch.autocast("cpu", torch.bfloat16):
        inside = capture.map("D", 0, 0)
    assert abs(inside - capture.map("D", 0, 0)).max() == 0


def test_the_last_query_has_one_name_everywhere():
    scope = diffscope.load(tiny.own("v1"))
    prompts = [tiny.ids(9), tiny.ids(14)]
    capture, batch = scope.capture(prompts[0], spans={"answer": slice(2, 4)}), scope.capture(prompts)
    last = capture.measure("span_mass", queries=[-1])
    assert capture.measure("span_mass", queries="last").identical(last)
    assert scope.measure(prompts[0], "span_mass", spans={"answer": slice(2, 4)}, queries="last")["span_mass"].equals(
        last["span_mass"]
    )
    assert batch.measure("gini", queries="last").identical(batch.measure("gini", queries=[-1]))
    assert capture.map("D", 0, 1, queries="last", keys="answer").identical(capture.map("D", 0, 1, queries=[8], keys=[2, 3]))
    assert capture.strongest("D", 0, queries="last").identical(capture.strongest("D", 0, queries=[-1]))
    assert diffscope.readings.of_head(capture, 0, 0, query="last").estimates.identical(
        diffscope.readings.of_head(capture, 0, 0).estimates
    )
    assert str(diffscope.readings.allocation(capture, "last")) == str(diffscope.readings.allocation(capture))
    assert diffscope.figures.row(capture, query="last").data.identical(diffscope.figures.row(capture).data)
    assert diffscope.figures.heads(capture, statistic="gini", query="last").data.identical(
        diffscope.figures.heads(capture, statistic="gini", query=-1).data
    )
    named = scope.capture(prompts[0], spans={"last": slice(1, 3)})
    assert named.measure("gini", queries="last")["query"].values.tolist() == [1, 2], "a span of that name is what is meant"
    with pytest.raises(diffscope.DiffscopeError, match="no span 'lats' to take queries from; spans are .*, or say 'last'"):
        capture.measure("gini", queries="lats")
    with pytest.raises(diffscope.DiffscopeError, match="'answer' has 2 tokens; give one position"):
        diffscope.readings.of_head(capture, 0, 0, query="answer")


def test_a_capture_keeps_spans_that_are_made_of_others(tmp_path):
    scope = diffscope.load(tiny.own("v1"))
    capture = scope.capture(tiny.ids(9), spans={"answer": slice(3, 5), "ahead": diffscope.SpanExpr("before(answer) - sink")})
    capture.save(tmp_path / "a.dscope")
    again = diffscope.open(tmp_path / "a.dscope")
    assert again.spans == capture.spans == {"sink": [0], "answer": [3, 4], "ahead": [1, 2]}
    assert again.key_sets == capture.key_sets and [*again.key_sets] == [*again.spans, "context", "irrelevant"]
    assert again.measure("span_mass")["span"].values.tolist() == ["sink", "answer", "ahead", "context", "irrelevant"]


@pytest.mark.parametrize(
    "look",
    [
        lambda capture: capture.map("D", 1, 0),
        lambda capture: capture.maps(1),
        lambda capture: capture.pooled_maps(1),
        lambda capture: capture.strongest("D", 1, [0], queries=[3]),
        lambda capture: capture.thumbnails("D", 8),
    ],
    ids=["map", "maps", "pooled_maps", "strongest", "thumbnails"],
)
@pytest.mark.parametrize("prompts", [1, 2])
def test_a_batch_refuses_maps_and_names_a_prompt_of_it(look, prompts):
    batch = diffscope.load(MODELS["v1-grouped"]()).capture([tiny.ids(9, seed=seed) for seed in range(prompts)])
    with pytest.raises(diffscope.DiffscopeError, match=r"a batch of \d; take capture\[i\] of it") as refusal:
        look(batch)
    assert "\n" not in str(refusal.value)
    look(batch[0])
