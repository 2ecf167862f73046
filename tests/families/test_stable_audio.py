"""Stable Audio 3, of diffusers' own classes: maps of self- and cross-attention, steps of a pipeline, edits, planted mistakes."""

import copy
import functools
import json
import math
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import diffscope
from diffscope import CorruptFile, DiffscopeError, FidelityError, PromptError, UnsupportedModel, edits, families, figures
from diffscope.models.outline import outline

pytest.importorskip("diffusers", reason="needs diffusers, the extra 'audio'")
from diffusers.models.transformers.transformer_stable_audio3 import (
    StableAudio3CrossAttention,
    _apply_rotary_partial,
)

from tests import stable_audio, tiny

CROSS = 1  # a layer


class Masked(nn.Module):
    """Cross-attention alone, of which the text may be masked: the transformer of diffusers never masks it."""

    def __init__(self, differential=True):
        super().__init__()
        torch.manual_seed(0)
        self.cross = tiny.awake(StableAudio3CrossAttention(16, 12, dim_heads=4, use_differential=differential))

    def forward(self, hidden_states, timestep, encoder_hidden_states, encoder_attention_mask=None, return_dict=True):
        out = self.cross(hidden_states.transpose(1, 2), encoder_hidden_states, encoder_attention_mask)
        return (out.transpose(1, 2),)


def maps_of(module, hidden, context=None, mask=None, rope=None):
    """Return A1 and A2 as the module's own projections, norms and RoPE give them, softmax in float64: (head, query, key)."""
    split = lambda x: x.unflatten(-1, (module.heads, module.dim_heads))  # noqa: E731
    if context is None:
        first, *rest = (split(x) for x in module.to_qkv(hidden).chunk(5 if module.use_differential else 3, -1))
        parts = [first, *rest][:-1]
        queries, keys = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    else:
        maps = 2 if module.use_differential else 1
        queries = [split(x) for x in module.to_q(hidden).chunk(maps, -1)]
        keys = [split(x) for x in module.to_kv(context).chunk(maps + 1, -1)][:-1]
    queries, keys = [module.q_norm(x) for x in queries], [module.k_norm(x) for x in keys]
    if rope is not None:
        queries, keys = ([_apply_rotary_partial(x, rope) for x in some] for some in (queries, keys))
    scores = [
        torch.einsum("qhd,khd->hqk", q[0].double(), k[0].double()) / math.sqrt(module.dim_heads) for q, k in zip(queries, keys)
    ]
    hidden_keys = torch.zeros(scores[0].shape[-1], dtype=torch.bool) if mask is None else ~mask[0].bool()
    return [each.masked_fill(hidden_keys, -torch.inf).softmax(-1).numpy() for each in scores]


def arguments_of(model, prompt):
    """Return what each attention module of a transformer was called with, in the order of its layers."""
    called, handles = [], []
    for module in diffscope.load(model).family.modules(model):
        take = lambda module, args, kwargs: called.append((module, args[0], kwargs))  # noqa: E731
        handles.append(module.register_forward_pre_hook(take, with_kwargs=True))
    with torch.no_grad():
        model(**prompt)
    for handle in handles:
        handle.remove()
    return called


def assert_maps(layer, want):
    rows = layer.rows()
    np.testing.assert_allclose(rows.a1, want[0], atol=1e-5)
    np.testing.assert_allclose(rows.d, want[0] - want[1] if len(want) > 1 else want[0], atol=1e-5)
    assert (rows.a2 is None) == (len(want) == 1)
    if len(want) > 1:
        np.testing.assert_allclose(rows.a2, want[1], atol=1e-5)


@pytest.mark.parametrize("differential", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_maps_are_those_of_a_direct_computation(dtype, differential):
    model = stable_audio.transformer(differential).to(dtype)
    prompt = {name: x.to(dtype) if name != "timestep" else x for name, x in stable_audio.inputs().items()}
    called = arguments_of(model, prompt)
    capture = diffscope.load(model).capture(prompt)
    assert capture.kinds == ["self", "cross"] * 2 and capture.fidelity.decided.all() and capture.family == "stable-audio"
    assert capture.differential == differential
    with torch.no_grad():
        for layer, (module, hidden, kwargs) in zip(capture.layers, called):
            assert_maps(layer, maps_of(module, hidden, kwargs.get("context"), rope=kwargs.get("rope")))


@pytest.mark.parametrize("differential", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 1], [0, 0, 1, 0, 0]])
def test_masked_text_is_not_looked_at(mask, dtype, differential):
    model, draw = Masked(differential).to(dtype), torch.Generator().manual_seed(0)
    hidden, context = torch.randn(1, 16, 7, generator=draw).to(dtype), torch.randn(1, 5, 12, generator=draw).to(dtype)
    prompt = {"hidden_states": hidden, "timestep": torch.ones(1), "encoder_hidden_states": context}
    shown = torch.tensor([mask]).bool()
    capture = diffscope.load(model).capture(prompt | {"encoder_attention_mask": shown})
    (layer,) = capture.layers
    with torch.no_grad():
        assert_maps(layer, maps_of(model.cross, hidden.transpose(1, 2), context, shown))
    assert (layer.mask.kind == "full") == all(mask) and capture.layers[0].rows().n.tolist() == [sum(mask)] * 7
    entropy = capture.measure(["entropy"]).entropy.sel(map="A1")
    assert entropy.isnull().all() if sum(mask) == 1 else entropy.notnull().all()


class Planted:
    """What the module computes, with a mistake of ours planted in it."""

    def __init__(self, mistake):
        self.mistake = mistake

    def __call__(self, attn, hidden_states, rope=None, context=None, context_mask=None):
        mistake, split = self.mistake, lambda x: x.unflatten(-1, (attn.heads, attn.dim_heads)).transpose(1, 2)
        if context is None:
            q1, q2, k1, k2, v = map(split, attn.to_qkv(hidden_states).chunk(5, -1))
        else:
            q1, q2, k1, k2, v = map(split, (*attn.to_q(hidden_states).chunk(2, -1), *attn.to_kv(context).chunk(3, -1)))
        if mistake == "q without its norm":
            k1, k2 = attn.k_norm(k1), attn.k_norm(k2)
        else:
            q1, q2, k1, k2 = attn.q_norm(q1), attn.q_norm(q2), attn.k_norm(k1), attn.k_norm(k2)
        if rope is not None and mistake != "no RoPE":
            angles = rope.repeat_interleave(2, -1)[:, : rope.shape[-1]] if mistake == "RoPE of other angles" else rope
            q1, q2, k1, k2 = (_apply_rotary_partial(x.transpose(1, 2), angles).transpose(1, 2) for x in (q1, q2, k1, k2))
        if mistake == "second maps of other heads":
            q2, k2 = q2.roll(1, 1), k2.roll(1, 1)
        if mistake == "keys of both maps exchanged":
            k1, k2 = k2, k1
        scale = attn.dim_heads**-0.5 / (2**0.5 if mistake == "scores over the wrong root" else 1)
        a1, a2 = ((q @ k.mT * scale) for q, k in ((q1, k1), (q2, k2)))
        if mistake == "a causal mask":
            a1, a2 = (x.masked_fill(torch.ones(x.shape[-2:]).triu(1).bool(), -torch.inf) for x in (a1, a2))
        a1, a2 = a1.softmax(-1), a2.softmax(-1)
        if mistake == "maps exchanged":
            a1, a2 = a2, a1
        if mistake == "uniform A2":
            a2 = torch.full_like(a2, 1 / a2.shape[-1])
        d = a1 - {"λ of 0.9": 0.9, "λ of 0.5": 0.5}.get(mistake, 1.0) * a2
        out = d @ v
        if mistake == "outputs normed":
            out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + 1e-6)
        if mistake == "head 1 left out":
            out = out * (torch.arange(attn.heads) != 1)[:, None, None]
        return attn.to_out(out.transpose(1, 2).flatten(2))


def planted(mistake, depth=2):
    model = stable_audio.transformer(depth=depth)
    for block in model.transformer_blocks:
        for attention in (block.self_attn, block.cross_attn):
            attention.processor = Planted(mistake)
    return model


MISTAKES = [
    "λ of 0.9",
    "maps exchanged",
    "second maps of other heads",
    "keys of both maps exchanged",
    "q without its norm",
    "no RoPE",
    "RoPE of other angles",
    "scores over the wrong root",
    "a causal mask",
    "outputs normed",
]


def test_a_check_passes_and_compares_with_the_design():
    report = diffscope.check(stable_audio.transformer())
    assert report.passed and {finding.verdict for finding in report.findings} == {"pass"}
    assert diffscope.check(planted("none")).passed and diffscope.check(stable_audio.transformer(False)).passed


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_refused(mistake):
    with pytest.raises(FidelityError):
        diffscope.load(planted(mistake, depth=1)).capture(stable_audio.inputs())


def test_a_check_finds_a_planted_mistake():
    report = diffscope.check(planted("λ of 0.9", depth=1))
    failed = [finding for finding in report.findings if finding.verdict == "fail"]
    assert not report.passed and any(finding.check == "fidelity" for finding in failed)


@pytest.mark.parametrize(
    "edit, mistake",
    [
        (edits.set_lambda(0.5), "λ of 0.5"),
        (edits.uniform_a2(), "uniform A2"),
        (edits.ablate_heads(heads=1), "head 1 left out"),
    ],
)
def test_edits_are_the_same_change_of_the_module(edit, mistake):
    model, prompt = stable_audio.transformer(), stable_audio.inputs(2)
    scope = diffscope.load(model)
    with torch.no_grad(), scope.edit(edit):
        edited = model(**prompt).sample
        scope.capture(prompt)
    with torch.no_grad():
        want, before = planted(mistake)(**prompt).sample, model(**prompt).sample
    assert float((edited - want).abs().max() / want.abs().max()) < 1e-5
    assert float((edited - before).abs().max() / want.abs().max()) > 0.01


def test_means_of_other_prompts_are_of_square_maps():
    scope = diffscope.load(stable_audio.transformer())
    capture = scope.capture(stable_audio.inputs())
    with pytest.raises(DiffscopeError, match="mean_a2: needs square maps, and layer 1 is cross-attention; leave it out"):
        edits.mean_a2(capture)
    with scope.edit(edits.mean_a2(capture, layers=[0, 2])):
        scope.capture(stable_audio.inputs())


def test_rows_of_d_sum_to_0_so_that_signed_masses_are_undefined():
    measured = diffscope.load(stable_audio.transformer()).measure(
        stable_audio.inputs(), ["row_sum", "span_mass"], key_spans={"word": [1, 2]}
    )
    assert float(abs(measured.row_sum.sel(map="D")).max()) < 1e-6
    mass = measured.span_mass.sel(layer=CROSS, span="word", map="D")
    assert mass.sel(normalisation="signed").isnull().all() and mass.sel(normalisation="share").notnull().all()
    assert float(mass.sel(normalisation="raw").max()) > 0.01 > float(mass.sel(normalisation="raw").min())


def test_queries_and_keys_have_names_and_spans_of_their_own(tmp_path):
    prompt = diffscope.prompts.Arguments(stable_audio.inputs(), [f"{at / 2:g} s" for at in range(10)], list("abcde"))
    capture = diffscope.load(stable_audio.transformer()).capture(prompt, {"start": slice(3, 5)}, key_spans={"word": [1, 2]})
    assert capture.tokens[2:5] == ["memory 2", "0 s", "0.5 s"] and capture.key_tokens == list("abcde")
    word = capture.map("D", CROSS, 0, queries="start", keys="word")
    assert (
        word.shape == (2, 2) and list(word.key_token.values) == ["b", "c"] and list(word.query_token.values) == ["0 s", "0.5 s"]
    )
    capture.save(tmp_path / "sound.dscope")
    np.testing.assert_array_equal(
        diffscope.open(tmp_path / "sound.dscope").map("D", CROSS, 0, queries="start", keys="word"), word
    )
    assert figures.maps(capture, layer=CROSS).data.sizes == {"query": 13, "key": 5}
    assert figures.heads(capture, query="mean", span="word").data.sizes["layer"] == 4
    for wrong, words in (({"tokens": ["a"]}, "1 names for 10 places"), ({"key_tokens": ["a"]}, "1 names for 5 tokens")):
        with pytest.raises(PromptError, match=words):
            diffscope.load(stable_audio.transformer()).capture(diffscope.prompts.Arguments(stable_audio.inputs(), **wrong))


def test_a_pipelines_steps_are_captures_and_a_dimension():
    pipe = stable_audio.pipeline()
    how = dict(duration=1.0, num_inference_steps=3, output_type="latent")
    alone = pipe("a piano", **how, generator=torch.Generator().manual_seed(0)).audios
    recorded = []
    kept = copy.copy(pipe.scheduler.step)
    pipe.scheduler.step = lambda velocity, *args, **kwargs: (recorded.append(velocity), kept(velocity, *args, **kwargs))[1]
    steps = diffscope.denoising_steps(pipe, "a piano", **how, generator=torch.Generator().manual_seed(0))
    scope = diffscope.load(pipe.transformer)
    for step, velocity in zip(steps, recorded, strict=True):
        with torch.no_grad():
            assert torch.equal(pipe.transformer(**step.values).sample, velocity)
    capture = scope.capture(steps[1], key_spans={"word": "piano"})
    assert capture.tokens[3:6] == ["0.00 s", "0.10 s", "0.20 s"] and capture.key_tokens[-1] == "duration"
    assert "".join(capture.key_tokens[at] for at in capture.key_spans["word"]).strip() == "piano"
    measured = diffscope.measure_steps(scope, steps, ["entropy"])
    assert measured.entropy.dims == ("step", "layer", "head", "map", "query") and measured.timestep.dims == ("step",)
    np.testing.assert_array_equal(measured.entropy.isel(step=1), capture.measure(["entropy"]).entropy)
    figure = figures.checkpoints({at: scope.capture(step) for at, step in enumerate(steps)}, layer=CROSS, along="denoising")
    assert figure.data["map"].sizes == {"step": 3, "query": len(capture.tokens), "key": len(capture.key_tokens)}
    assert "at steps of denoising" in figure.caption and figure.data["step"].attrs["long_name"] == "step of denoising"
    drawn = figures.curves(measured.entropy.sel(map="A1", head=0).isel(query=0), x="step", series="layer")
    assert drawn.data.attrs["x"] == "step of denoising"
    with pytest.raises(DiffscopeError, match="there are steps of training and of denoising"):
        figures.checkpoints({0: capture}, along="sleep")
    again = pipe("a piano", **how, generator=torch.Generator().manual_seed(0)).audios
    assert torch.equal(alone, again)


def test_steps_of_a_compiled_transformer_are_recorded_as_well():
    pipe = stable_audio.pipeline()
    pipe.transformer = torch.compile(pipe.transformer, backend="eager")
    with torch.compiler.set_stance("force_eager"):
        (step,) = diffscope.denoising_steps(pipe, "a piano", duration=1.0, num_inference_steps=1, output_type="latent")
    assert diffscope.load(pipe.transformer).capture(step).kinds == ["self", "cross"] * 2


def test_guidance_is_a_batch_with_the_negative_prompt_first():
    steps = diffscope.denoising_steps(
        stable_audio.pipeline(), "a piano", negative_prompt="noise", guidance_scale=2.0, duration=1.0, num_inference_steps=2
    )
    negative, positive = (step.key_tokens for step in steps[0])
    assert "".join(negative.tokens).startswith("<bos>noise") and "".join(positive.tokens).startswith("<bos>a piano")


@pytest.mark.parametrize(
    "prompt, words",
    [("a piano", "denoises latents and takes no text"), ({"timestep": torch.ones(1)}, "has no hidden_states")],
)
def test_what_is_no_latents_is_refused_in_a_line(prompt, words):
    with pytest.raises(PromptError, match=words):
        diffscope.load(stable_audio.transformer()).capture(prompt)


@pytest.mark.parametrize("lacks", [0, 1])
def test_a_mask_that_a_prompt_of_a_batch_lacks_is_not_left_out(lacks):
    prompts = [stable_audio.inputs(), stable_audio.inputs()]
    prompts[1 - lacks]["encoder_attention_mask"] = torch.tensor([[1, 1, 1, 0, 0]])
    with pytest.raises(PromptError, match=f"prompt {lacks} of the batch has no encoder_attention_mask"):
        diffscope.load(stable_audio.transformer()).capture(prompts)


def test_a_decorated_forward_denoises_as_well():
    model = stable_audio.transformer()

    class Decorated(type(model)):
        @functools.wraps(type(model).forward)
        def forward(self, *args, **named):
            return super().forward(*args, **named)

    model.__class__ = Decorated
    assert diffscope.load(model).capture(stable_audio.inputs()).kinds == ["self", "cross"] * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved pipeline, whose weights are in bfloat16."""
    folder = tmp_path_factory.mktemp("pipeline")
    stable_audio.pipeline().to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("part", ["", "transformer"])
def test_a_saved_pipeline_or_its_transformer_opens(part, folder):
    model, prompt = stable_audio.transformer().to(torch.bfloat16), stable_audio.inputs()
    scope = diffscope.load(folder / part)
    assert scope.runner.dtype == torch.bfloat16 and outline(str(folder / part)).kind == "StableAudio3DiTModel"
    np.testing.assert_array_equal(
        scope.capture(prompt).map("D", CROSS, 0), diffscope.load(model).capture(prompt).map("D", CROSS, 0)
    )
    assert diffscope.load(folder / part, dtype="float32").runner.dtype == torch.float32


def test_damaged_folders_of_diffusers_are_refused_in_a_line(folder, tmp_path):
    copied = shutil.copytree(folder / "transformer", tmp_path / "transformer")
    weights = copied / "diffusion_pytorch_model.safetensors"
    tensors = load_file(weights)
    save_file({name: x for name, x in tensors.items() if name != "proj_in.weight"}, weights)
    with pytest.raises(CorruptFile, match="lack 1 tensors, the first 'proj_in.weight'"):
        diffscope.load(copied)
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"_class_name": "DDIMScheduler"}))
    with pytest.raises(UnsupportedModel, match="_class_name = 'DDIMScheduler', no model of diffusers"):
        diffscope.load(copied)
    with pytest.raises(UnsupportedModel, match="is a model of diffusers, which takes no device_map"):
        diffscope.load(copied, device_map="auto")


def test_no_other_family_claims_it():
    model = stable_audio.transformer()
    assert [family.name for family in families.FAMILIES if family.modules(model)] == ["stable-audio"]


def test_no_step_is_refused():
    with pytest.raises(PromptError, match="there is no step to measure"):
        diffscope.measure_steps(diffscope.load(stable_audio.transformer()), [])
