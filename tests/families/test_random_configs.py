"""A hundred random models: a capture is right, or it is refused in words; none is silently wrong."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from transformers import (
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import diffscope
from diffscope import DiffscopeError, FidelityError
from diffscope.models import DiffConfig, DiffForCausalLM
from tests import tiny
from tests.layouts import motif, phi4flash, unilm

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
OWN = ("v1", "v2", "standard", "plus", "shared_a2")
REAL = (*OWN, "diffllama", "llama", "qwen3", "mistral")
LAYOUTS = ("motif", "phi4flash", "unilm naive", "unilm flash1")


@st.composite
def cases(draw):
    groups = draw(st.integers(1, 3))
    return {
        "kind": draw(st.sampled_from(REAL + LAYOUTS)),
        "groups": groups,
        "heads": groups * draw(st.integers(1, 3)),
        "head_dim": draw(st.sampled_from([2, 6, 8, 16, 32])),
        "window": draw(st.sampled_from([1, 3, 8, 64])),
        "bias": draw(st.booleans()),
        "dtype": draw(st.sampled_from(list(DTYPES))),
        "implementation": draw(st.sampled_from(["eager", "sdpa"])),
        "lengths": draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)),
        "seed": draw(st.integers(0, 10_000)),
    }


def layout_of(case):
    """A layout's own attention has no implementation to choose; its d is even, for RoPE turns pairs."""
    kind, d = case["kind"], max(4, case["head_dim"])
    width = 2 * case["heads"] * d
    if kind.startswith("unilm"):
        torch.manual_seed(case["seed"])
        attention = unilm.KINDS[kind.partition(" ")[2]]
        parts = [attention(width, depth, case["heads"], case["groups"]) for depth in range(2)]
        return tiny.awake(unilm.Model(parts, width, d // 2), case["seed"])
    shape = dict(hidden_size=width, num_attention_heads=2 * case["heads"], num_key_value_heads=2 * case["groups"])
    if kind == "phi4flash":
        return phi4flash.tiny(case["seed"], num_hidden_layers=4, sliding_window=case["window"], **shape)
    return motif.tiny(case["seed"], use_bias=case["bias"], **shape)


def model_of(case):
    if case["kind"] in LAYOUTS:
        return layout_of(case).to(DTYPES[case["dtype"]])
    kind, maps = case["kind"], 2 if case["kind"] == "diffllama" else 1
    shape = dict(
        num_attention_heads=case["heads"] * maps,
        num_key_value_heads=case["groups"] * maps,
        head_dim=case["head_dim"],
        attention_bias=case["bias"],
        **{**tiny.SHAPE, "vocab_size": 64, "hidden_size": 8 * maps * case["heads"]},
    )
    torch.manual_seed(case["seed"])
    if kind in OWN:
        model = DiffForCausalLM(DiffConfig(attention=kind, **shape))
    elif kind == "mistral":
        shape.pop("attention_bias")
        model = MistralForCausalLM(MistralConfig(sliding_window=case["window"], **shape))
    else:
        config, of = {
            "diffllama": (DiffLlamaConfig, DiffLlamaForCausalLM),
            "llama": (LlamaConfig, LlamaForCausalLM),
            "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        }[kind]
        model = of(config(**shape))
    model = tiny.awake(model, case["seed"]).to(DTYPES[case["dtype"]])
    model.set_attn_implementation(case["implementation"])
    return model


def reference(model, ids):
    """Hugging Face's own maps of a prompt in eager attention, per layer (map, query, key)."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model(torch.tensor([ids]), output_attentions=True).attentions
    model.set_attn_implementation(before)
    return [layer[0].float().numpy() for layer in maps]


@pytest.mark.filterwarnings("ignore::diffscope.DiffscopeWarning")
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_a_capture_is_right_or_refused(case):
    model = model_of(case)
    generator = torch.Generator().manual_seed(case["seed"])
    prompts = [torch.randint(2, 64, (n,), generator=generator).tolist() for n in case["lengths"]]
    scope = diffscope.load(model)
    try:
        capture = scope.capture(prompts)
    except DiffscopeError as error:
        # Padded rows that see no key are NaN in Hugging Face's own attention, and spread: refused, and it says why.
        assert case["kind"] == "mistral" and "not finite" in str(error), (case, error)
        return
    assert (capture.fidelity.error <= capture.fidelity.tolerance).all()
    if case["dtype"] != "float32":
        return
    if case["kind"] in REAL:
        compare_maps(model, capture, prompts, case)
    refuse_a_misreading(scope, capture, prompts)


def compare_maps(model, capture, prompts, case):
    heads, kind = case["heads"], case["kind"]
    for index, ids in enumerate(prompts):
        for number, maps in enumerate(reference(model, ids)):
            a1 = maps[0::2] if kind == "v2" else maps[:heads]
            a2 = maps[1::2] if kind == "v2" else maps[heads:]
            rows = capture.layers[number].prompt(index).rows()
            assert np.abs(rows.a1.numpy() - a1).max() < 1e-5, case
            if capture.differential:
                assert np.abs(rows.a2.numpy() - a2).max() < 1e-5, case
                lam = np.broadcast_to(rows.lam.numpy(), rows.d.shape[:2])
                assert np.abs(rows.d.numpy() - (a1 - lam[..., None] * a2)).max() < 2e-5, case


def refuse_a_misreading(scope, capture, prompts):
    """The same model read with its second maps of other heads: refused, or said to be undecided."""
    family = scope.family

    class Wrong(type(family)):
        def readings(self, passage):
            for layer in super().readings(passage):
                yield replace(layer, pairing=replace(layer.pairing, a2=layer.pairing.a2.roll(1)))

    if not capture.differential or capture.n_heads == 1:
        return
    scope.family = Wrong()
    try:
        wrong = scope.capture(prompts)
    except FidelityError:
        return
    assert not wrong.fidelity.decided.any()
