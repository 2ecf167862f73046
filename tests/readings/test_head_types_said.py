"""Which heads are said to be of a type: none of an untrained model, and those of a bundled one."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import diffscope
from diffscope import figures, readings, tables, tasks
from diffscope.errors import DiffscopeError, PromptError
from tests import tiny


@pytest.fixture(scope="module")
def bundled():
    return readings.head_types(diffscope.load("mini-diff"), tasks.examples())


def test_an_untrained_model_is_at_chance():
    torch.manual_seed(0)
    shape = tiny.SHAPE | dict(num_attention_heads=4)
    reading = readings.head_types(diffscope.load(LlamaForCausalLM(LlamaConfig(**shape)).eval()))
    table = reading.estimates.sel(map="A1")
    assert float(abs(table["score"] - table["uniform"]).max()) < 0.05
    assert not (abs(table["is_type"]) > 0).any()
    assert "no previous-token or duplicate-token or induction or sink head" in reading.sentence


def test_the_bundled_model_retrieves_in_its_later_layers(bundled):
    table = bundled.estimates.sel(text="prompts", type="retrieval")
    assert (table["is_type"].sel(map="A1", layer=[1, 2]) == 1).all() and (table["is_type"].sel(layer=0) == 0).all()
    assert not (table["is_type"].sel(map="A2") == 1).any()
    assert "retrieval heads L1H0 (A1 .50 and D .50)" in bundled.sentence
    assert bundled.estimates["score"].sel(text="random tokens", type="retrieval").isnull().all()


def test_copying_is_what_branches_add_and_the_sum_is_that_of_d(bundled):
    copying = bundled.estimates["copying"]
    np.testing.assert_allclose(copying.sel(map="D"), copying.sel(map=["A1", "A2"]).sum("map"))
    refused = readings.head_types(diffscope.load(tiny.gemma2()), sequences=1, tokens=6).estimates["copying"]
    assert refused.isnull().all() and refused.attrs["why"]


def test_the_figure_and_the_table_are_of_the_scores(bundled):
    data = figures.head_types(bundled, text="prompts").data
    score = bundled.estimates["score"].sel(text="prompts", map="D", type="retrieval", layer=1, head=0)
    assert float(data["value"].sel(panel="D", y="retrieval", x="L1H0")) == float(score)
    by_layer = figures.head_types({"one": bundled, "other": bundled}, text="prompts", head_type="retrieval").data
    assert list(by_layer["panel"].values) == [f"{name}, {map}" for name in ("one", "other") for map in ("A1", "A2", "D")]
    table = tables.head_types(bundled, text="prompts")
    assert "| L1H0 | D | .02 (.03) | −.01 (.02) | .02 (.02) | .04 (.03) | .50 (.01) |" in str(table)
    with pytest.raises(DiffscopeError, match="there is no text 'poems'; choose from random tokens, prompts"):
        tables.head_types(bundled, text="poems")
    with pytest.raises(DiffscopeError, match="what diffscope.readings.head_types gives"):
        tables.head_types(bundled.estimates[["score"]])


def test_what_cannot_be_repeated_is_refused():
    scope = diffscope.load(tiny.standard("llama"))
    with pytest.raises(DiffscopeError, match="0 sequences of 32 tokens"):
        readings.head_types(scope, sequences=0)
    with pytest.raises(PromptError, match="has 900 tokens to draw from; take fewer"):
        readings.head_types(scope, tokens=900)
