"""Patches from another prompt: nothing where nothing differs, the other answer where all does, and the cells asked for."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import diffscope
from diffscope import DiffscopeError, PromptError, UnsupportedModel, edits
from diffscope.edits.patching import STAGES, branch_output
from tests import tiny

IDS = tiny.ids(20)
OTHER = [*IDS[:5], *tiny.ids(6, seed=9), *IDS[11:]]  # the same last tokens
MODELS = {
    "v1": lambda: tiny.own("v1", kv_heads=2),
    "v2": lambda: tiny.own("v2"),
    "diffllama": lambda: tiny.diffllama(kv=4),
    "standard": lambda: tiny.standard("mistral"),
}


def having(name, what):
    return name != "standard" or "A2" not in what


def logits(scope, ids=IDS):
    with torch.no_grad():
        return scope.model(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("what", STAGES)
@pytest.mark.parametrize("name", MODELS)
def test_a_patch_from_the_same_prompt_changes_no_bit(name, what):
    scope = diffscope.load(MODELS[name]())
    if not having(name, what):
        with scope.edit(edits.patch(what, scope.capture(OTHER))), pytest.raises(UnsupportedModel, match="no second map"):
            logits(scope)
        return
    before = logits(scope)
    with scope.edit(edits.patch(what, scope.capture(IDS))):
        assert torch.equal(logits(scope), before)
    with scope.edit(edits.patch(what, scope.capture(OTHER))):
        assert (logits(scope) - before).abs().max() > 1e-3
    assert torch.equal(logits(scope), before)


@pytest.mark.parametrize("name", MODELS)
def test_all_outputs_of_another_prompt_give_its_answer(name):
    """What the last token, which both have, is told by attention is then all of the other prompt."""
    scope = diffscope.load(MODELS[name]().double())
    expected = logits(scope, OTHER)[-1]
    with scope.edit(edits.patch("output", scope.capture(OTHER))):
        torch.testing.assert_close(logits(scope)[-1], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("what", ["A1", "A2", "D"])
def test_only_the_chosen_cells_are_those_of_the_other_prompt(what):
    scope = diffscope.load(tiny.own("v1"))
    own, other = scope.capture(IDS), scope.capture(OTHER)
    with scope.edit(edits.patch(what, other, queries=[12, 19], keys=[4, 7], layers=0, heads=[1])):
        patched = scope.capture(IDS)
    expected = own.map(what, layer=0, head=1).values.copy()
    for query in (12, 19):
        expected[query, [4, 7]] = other.map(what, layer=0, head=1).values[query, [4, 7]]
    np.testing.assert_allclose(patched.map(what, layer=0, head=1), expected, atol=1e-6)
    np.testing.assert_allclose(patched.map(what, layer=0, head=0), own.map(what, layer=0, head=0), atol=1e-6)
    assert patched.facts["edits"] == f"{what} of another prompt, queries 12, 19, keys 4, 7 (layer 0; head 1)"


def test_the_outputs_of_branches_are_exchanged_before_the_norm():
    scope = diffscope.load(tiny.own("v1").double())
    own, other = (scope.capture(ids).layers[0].prompt(0) for ids in (IDS, OTHER))
    with scope.edit(edits.patch("A2 output", scope.capture(OTHER), layers=0, heads=2, queries=19)):
        patched = scope.capture(IDS).layers[0].prompt(0).output()
    mixed = branch_output(own, 1) + branch_output(other, 2)
    torch.testing.assert_close(branch_output(own, 1) + branch_output(own, 2), own.head_outputs())
    expected = own.output().clone()
    expected[2, 19] = own.head_postprocess(mixed)[2, 19]
    torch.testing.assert_close(patched, expected)


def test_a_head_of_one_map_whose_d_has_signs_gives_out_d():
    scope = diffscope.load(tiny.own("signed", signed_keys=4))
    layer = scope.capture(IDS).layers[0].prompt(0)
    assert not torch.allclose(layer.rows().d, layer.rows().a1)
    torch.testing.assert_close(branch_output(layer, 1), layer.head_outputs())
    source = scope.capture(OTHER)
    found = []
    for what in ("A1 output", "output"):
        with scope.edit(edits.patch(what, source, layers=0)):
            found.append(logits(scope))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_branches_that_are_no_parts_of_an_output_any_more_are_not_patched():
    scope = diffscope.load(tiny.own("v1"))
    source = scope.capture(OTHER)
    first, second = (edits.patch(f"A{branch} output", source, layers=0, heads=[1, 2]) for branch in (1, 2))
    with (
        scope.edit(first, second),
        pytest.raises(DiffscopeError, match="has replaced the output of such a head in layer 0 already"),
    ):
        logits(scope)
    with scope.edit(edits.absolute_d(), first), pytest.raises(UnsupportedModel, match="layer 0 changes D after the subtraction"):
        logits(scope)
    with scope.edit(first, edits.patch("A2 output", source, layers=0, heads=0)):  # of another head
        logits(scope)
    with scope.edit(edits.ablate_heads(layers=0, heads=1)):
        ablated = scope.capture(OTHER)
    with (
        scope.edit(edits.patch("A1 output", ablated, layers=0, heads=[1, 2])),
        pytest.raises(DiffscopeError, match="in layer 0 of the source already; .* capture the source without that edit"),
    ):
        logits(scope)
    with scope.edit(edits.patch("A1 output", ablated, layers=0, heads=2), edits.patch("output", ablated, layers=0, heads=1)):
        logits(scope)


def test_tokens_beyond_the_source_keep_their_own_rows_and_a_patched_capture_can_be_kept(tmp_path):
    scope = diffscope.load(tiny.own("v1"))
    longer = [*IDS, 5, 6]
    with scope.edit(edits.patch("A2", scope.capture(OTHER), layers=0)):
        patched = scope.capture(longer)
    np.testing.assert_allclose(
        patched.map("A2", layer=0, head=0)[20:], scope.capture(longer).map("A2", layer=0, head=0)[20:], atol=1e-6
    )
    patched.save(tmp_path / "patched.dscope")
    kept = diffscope.open(tmp_path / "patched.dscope")
    np.testing.assert_array_equal(kept.map("D", layer=0, head=0), patched.map("D", layer=0, head=0))


def test_what_does_not_fit_is_refused():
    scope = diffscope.load(tiny.own("v1"))
    source = scope.capture(IDS)
    with pytest.raises(DiffscopeError, match="there is no part to patch 'B'; choose from A1, A2, D"):
        edits.patch("B", source)
    with pytest.raises(DiffscopeError, match="the output of a head has no keys"):
        edits.patch("output", source, keys=3)
    with pytest.raises(PromptError, match="from one prompt, and the capture has 2"):
        edits.patch("A1", scope.capture([IDS, OTHER]))
    with pytest.raises(PromptError, match="queries has token 20, and the source has 20 tokens"):
        edits.patch("A1", source, queries=20)
    with pytest.raises(DiffscopeError, match="token positions from 0 as keys"):
        edits.patch("A1", source, keys=[-1])
    with pytest.raises(DiffscopeError, match="takes a capture, such as scope.capture"):
        edits.patch("A1", "a prompt")
    of_last = replace(source, layers=source.layers[1:], _proofs=source._proofs[1:])
    with scope.edit(edits.patch("A1", of_last, keys=3, layers=0)), pytest.raises(DiffscopeError, match="source has no layer 0"):
        logits(scope)
    longer = "the source has 20 tokens and the prompt 12; give a source with at most as many"
    with scope.edit(edits.patch("A1", source)), pytest.raises(PromptError, match=longer):
        scope.capture(IDS[:12])
    other = diffscope.load(tiny.own("standard"))
    with other.edit(edits.patch("A1", source)), pytest.raises(DiffscopeError, match="the source has no layer 0 of such heads"):
        other.capture(IDS)
    with scope.edit(edits.patch("D", source)), pytest.raises(DiffscopeError, match="use_cache=False"):
        scope.model.generate(torch.tensor([IDS]), max_new_tokens=2, use_cache=True)
