"""A mistake in a reading, such as a mask that is not the model's, is named; of standard layers too."""

from dataclasses import replace

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

import diffscope
from diffscope import FidelityError
from diffscope.attention.components import Mask
from diffscope.proof.diagnosis import likely_cause
from tests import tiny


def misread(scope, mask):
    kind = type(scope.family)
    readings = lambda family, passage: (replace(layer, mask=mask) for layer in kind.readings(family, passage))  # noqa: E731
    scope.family = type("Misreading", (kind,), {"readings": readings})()
    return scope


@pytest.mark.parametrize(
    "make, mask, words",
    [
        (lambda: tiny.standard("mistral"), Mask("causal"), "queries see only the last 7 keys, not all keys up to their own"),
        (lambda: tiny.standard("mistral"), Mask("window", 6), "queries see only the last 7 keys, not the last 6 keys"),
        (lambda: tiny.standard("mistral"), Mask("window", 8), "queries see only the last 7 keys, not the last 8 keys"),
        (lambda: tiny.standard("llama"), Mask("window", 7), "queries see all keys up to their own, not the last 7 keys"),
        (lambda: tiny.own("v2"), Mask("full"), "queries see all keys up to their own, not all keys"),
    ],
)
def test_a_mask_that_is_misread_is_named(make, mask, words):
    with pytest.raises(FidelityError, match=f"layer 0: .*likely cause: {words}"):
        misread(diffscope.load(make()), mask).capture([tiny.ids(30), tiny.ids(9)])


def test_the_width_of_a_window_is_found_between_the_rows_that_are_compared():
    shape = {**tiny.SHAPE, "max_position_embeddings": 2600, "num_hidden_layers": 1}
    config = MistralConfig(**shape, num_attention_heads=4, num_key_value_heads=2, sliding_window=1234)
    with pytest.raises(FidelityError, match="only the last 1234 keys"):
        misread(diffscope.load(tiny.awake(MistralForCausalLM(config))), Mask("causal")).capture(tiny.ids(2600))


def position(n):
    return torch.arange(n)[:, None], torch.arange(n)


@pytest.mark.parametrize(
    "seen, words",
    [
        (lambda query, key: key < query, "queries do not see their own key"),
        (lambda query, key: (key <= query) & (key // 8 == query // 8), "queries see only their own chunk of 8 keys"),
        (lambda query, key: (key <= query) & (key > 1), "the mask hides the first 2 keys from all queries"),
        (lambda query, key: (key <= query) & (key % 3 != 1), None),
    ],
)
def test_masks_that_no_rule_says(seen, words):
    layer = diffscope.load(tiny.own("v1")).capture(tiny.ids(30)).layers[0]
    masked = replace(layer, mask=Mask("given", visible=seen(*position(30))[None]))
    cause = likely_cause(layer, masked.output().transpose(0, 1)[None])
    assert cause.startswith(words) if words else not cause
