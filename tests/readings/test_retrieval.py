"""Retrieval by depth and length: closed forms of models that look at everything alike, and of the same model twice."""

import numpy as np
import pytest
import torch

import diffscope
from diffscope import edits
from diffscope.errors import DiffscopeError, PromptError
from diffscope.readings import contrast
from diffscope.readings.retrieval import depths, usual_lengths
from diffscope.tasks import Retrieval
from diffscope.tasks.sampling import DEPTHS
from tests import tiny

LENGTHS = (160, 200)


def scope(attention="v1", tokenizer=True):
    return diffscope.load(tiny.own(attention, 2, max_position_embeddings=512), tiny.tokenizer() if tokenizer else None)


@pytest.fixture(scope="module")
def awake():
    return scope()


@pytest.fixture(scope="module")
def estimates(awake):
    return depths(awake, LENGTHS, prompts=2).estimates


def test_a_model_that_looks_at_all_alike_gives_each_span_its_share_of_the_tokens():
    blind = scope()
    with torch.no_grad():
        for layer in blind.model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    estimates = depths(blind, LENGTHS, prompts=2).estimates
    share = estimates["mass"].sel(normalisation="share")
    uniform = estimates["uniform"].expand_dims(map=share["map"]).transpose(*share.dims)
    np.testing.assert_allclose(share, uniform, atol=1e-6)
    np.testing.assert_allclose(estimates["mass"].sel(map="D", normalisation="signed"), share.sel(map="D"), atol=1e-5)
    tokens = estimates["uniform"] * estimates["length"]
    np.testing.assert_allclose(tokens.std("length").sel(span=["answer", "sink"]), 0, atol=1e-9)  # the same numbers everywhere
    assert (estimates["uniform"].sel(span="sink") == 1 / estimates["length"]).all()
    assert (estimates["mass_se"].sel(span="sink", normalisation="share", map=["A1", "D"]) < 1e-7).all()
    nothing = depths(blind, (160,), prompts=1, edits=[edits.set_lambda(1.0)])  # the maps are equal: D is zero
    assert nothing.estimates["mass"].sel(map="D", normalisation="share").isnull().all()
    assert nothing.estimates["mass"].attrs["undefined_left_out"] > 0 and "D is zero everywhere" in nothing.sentence
    assert "nothing to compare" in contrast(nothing.estimates, nothing.estimates, ("one", "other")).sentence


def test_uniform_attention_is_over_what_layers_see():
    """A model that looks at all alike gives what uniform attention gives, also where a layer sees only its last 20 keys."""
    blind = tiny.gemma2()
    blind.config.sliding_window = 20
    with torch.no_grad():
        for layer in blind.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    estimates = depths(diffscope.load(blind, tiny.tokenizer()), (160,), prompts=1).estimates.isel(length=0)
    share = estimates["mass"].sel(normalisation="share", map="A1")
    np.testing.assert_allclose(estimates["uniform"], share, atol=1e-6)
    assert (estimates["uniform"].sel(span="sink") == 1 / 160).all()  # of the layer that sees it
    assert (estimates["uniform"].sel(span="query") > 0.1).all()


def test_each_value_is_that_of_its_own_prompts(awake, estimates):
    task = Retrieval(awake.tokenizer)
    prompts = [task.controlled(200, 3, [20_000, number], slots=3, depth=0.75) for number in range(2)]
    assert all(abs(prompt.depth - 0.75) < 0.1 for prompt in prompts)
    spans = [{name: prompt.spans[name] for name in ("answer", "needles", "query")} for prompt in prompts]
    masses = [awake.capture(prompt.ids, spans=each).measure("span_mass", queries=[-1]) for prompt, each in zip(prompts, spans)]
    masses = np.stack([mass["span_mass"].isel(query=0).values for mass in masses])  # (prompt, layer, head, map, span, norm)
    cell = estimates.sel(length=200, depth=0.75)
    np.testing.assert_allclose(cell["by_head"], masses.mean(0), rtol=1e-5, atol=1e-7)
    of_prompt = masses.mean((1, 2))
    np.testing.assert_allclose(cell["mass"], of_prompt.mean(0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(cell["mass_se"], abs(of_prompt[0] - of_prompt[1]) / 2, rtol=1e-3, atol=1e-7)
    assert estimates["mass"].dims[:2] == ("length", "depth") and estimates["depth"].values.tolist() == list(DEPTHS)


def test_a_model_that_answers_is_seen_to():
    reading = depths(diffscope.load("mini-diff"), (128,), prompts=2)
    assert reading.estimates["exact_of_prompt"].sum() >= 8 and reading.sentence.startswith("10 of 10 answers are exact")
    assert (reading.estimates["log_odds"] > 0).all()
    low, high = (reading.estimates[f"exact_{end}"].values for end in ("low", "high"))
    assert ((low > 0.3) & (low < 0.4) & (high > 0.999)).all()  # Wilson's interval of 2 of 2 begins at .342


def test_edits_hold_for_the_prompts_and_no_longer(awake, estimates):
    edited = depths(awake, (160,), prompts=1, edits=[edits.zero_a2()]).estimates
    mass = edited["mass"].sel(normalisation="share")
    np.testing.assert_allclose(mass.sel(map="D"), mass.sel(map="A1"), atol=1e-6)
    again = depths(awake, (160,), prompts=2).estimates
    np.testing.assert_array_equal(again["mass"], estimates["mass"].sel(length=[160]))
    assert "A2 = 0" in edited.attrs["edits"] and "edits" not in again.attrs


def test_edits_of_a_reading_join_those_of_the_block_that_it_is_made_in(awake):
    both = depths(awake, (160,), prompts=1, edits=[edits.zero_a2(), edits.top_k_a1(2)]).estimates
    with awake.edit(edits.zero_a2()):
        joined = depths(awake, (160,), prompts=1, edits=[edits.top_k_a1(2)]).estimates
    assert both["mass"].equals(joined["mass"]) and both.attrs["edits"] == joined.attrs["edits"] == "A2 = 0; A1 top-2"


def test_progress_is_told_from_the_first_moment_and_can_stop_it(awake):
    told = []

    def stop(done, total):
        told.append((done, total))
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        depths(awake, (160,), prompts=2, progress=stop)
    assert told == [(done, 10) for done in range(4)]
    assert awake.lock.acquire(timeout=1)
    awake.lock.release()


def test_the_same_twice_differs_by_nothing_and_another_tokenizer_is_not_paired(awake, estimates):
    reading = contrast(estimates, estimates, ("one", "other"))
    assert (reading.estimates["difference"] == 0).all() and (reading.estimates["difference_se"] == 0).all()
    assert reading.estimates.attrs["paired"] == 1 and "the same" in reading.sentence
    standard = depths(scope("standard"), LENGTHS, prompts=2).estimates
    paired = contrast(estimates, standard, ("diff", "standard")).estimates
    one, other = (side["mass_of_prompt"].sel(map="D").mean(("length", "depth")).values for side in (estimates, standard))
    np.testing.assert_allclose(paired["difference"], (one - other).mean(0), atol=1e-6)
    changes = (one - other)[0] - (one - other)[1]
    np.testing.assert_allclose(paired["difference_se"], abs(changes) / 2, atol=1e-6)
    surer = (estimates - standard)["log_odds_of_prompt"].mean(("length", "depth")).values
    np.testing.assert_allclose(paired["log_odds_difference"], surer.mean(), atol=1e-5)
    np.testing.assert_allclose(paired["log_odds_difference_se"], abs(surer[0] - surer[1]) / 2, atol=1e-5)
    other_tokens = contrast(estimates, standard.assign_attrs(digest="another"), ("diff", "standard"))
    assert other_tokens.estimates.attrs["paired"] == 0 and "not of the same tokens" in other_tokens.sentence
    with pytest.raises(DiffscopeError, match="other prompts"):
        contrast(estimates, standard.isel(length=[0]), ("diff", "standard"))


def test_what_cannot_be_read_is_one_line(awake):
    with pytest.raises(PromptError, match="need a tokenizer"):
        depths(scope(tokenizer=False))
    with pytest.raises(PromptError, match="4 needles do not fit 40 tokens"):
        depths(awake, (40,))
    with pytest.raises(PromptError, match="positions for 512 tokens"):
        depths(awake, (160, 1024))
    with pytest.raises(DiffscopeError, match="one length"):
        depths(awake, ())
    assert usual_lengths(awake) == (128, 256)


def test_without_memory_for_a_capture_there_is_no_uniform_attention(awake, monkeypatch):
    from diffscope.errors import InsufficientMemory
    from diffscope.scope import Scope

    def full(*_):
        raise InsufficientMemory("it does not fit")

    monkeypatch.setattr(Scope, "capture", full)
    reading = depths(awake, (160,), prompts=1)
    assert reading.estimates["uniform"].isnull().all() and reading.estimates["mass"].notnull().any()
    assert "uniform" not in reading.sentence and "nan" not in reading.sentence
