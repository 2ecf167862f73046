"""Does the second map carry signal with a minus sign: what is measured, and what follows for the third account."""

import numpy as np
import pytest
import xarray as xr

import diffscope
from diffscope import edits
from diffscope.errors import PromptError
from diffscope.evidence.ablations import answers
from diffscope.evidence.heads import Table
from diffscope.evidence.signs import (
    previous_token_share,
    rises_by_signs,
    rises_when_blind,
    scattered_negatives,
    start_of_number,
)
from diffscope.hypotheses import Models, Settings, run
from diffscope.hypotheses.accounts import AGAINST, FOR, OPEN, SILENT
from diffscope.hypotheses.measure import of_top_heads
from diffscope.hypotheses.tests import TESTS
from diffscope.scope import Scope
from diffscope.tasks.prompt import Prompt
from studies.laptop.calibration.synthetic import Planted, planted_models
from tests import encoder_decoders, tiny

IDS = ["signed-weights", "a2-content", "a2-signal"]


@pytest.fixture(scope="module")
def scope():
    return diffscope.load("mini-diff")


def test_negatives_are_made_up_for_at_other_visible_keys(scope, prompts):
    ids = prompts[0].ids[:60]
    plain = scope.capture(ids)
    with scope.edit(scattered_negatives(seed=3)):
        edited = scope.capture(ids)
    for layer, head in ((0, 0), (2, 1)):
        d, moved = (cap.map("D", layer, head).values for cap in (plain, edited))
        if layer:  # later layers see what the first makes
            continue
        gained = moved - d
        lacking = np.clip(-d, 0, None)
        np.testing.assert_allclose(np.sort(gained, -1), np.sort(lacking, -1), atol=1e-6)
        assert (np.triu(gained, 1) == 0).all()  # nothing where a query does not look
        assert np.abs(gained - lacking)[20:].sum() > 0.5 * lacking[20:].sum()  # at other keys than it lacks there
    with scope.edit(scattered_negatives(seed=3)):
        rows = scope.capture(ids).layers[0].prompt(0).rows([30, 59]).d
    np.testing.assert_allclose(rows[0], edited.map("D", 0, 0).values[[30, 59]], atol=1e-6)  # whatever other rows there are


def test_cross_attention_may_have_fewer_keys_than_queries():
    scope, prompt = diffscope.load(encoder_decoders.model("t5")), encoder_decoders.prompt("t5")
    prompt |= {name: prompt[name][:, :3] for name in ("input_ids", "attention_mask")}  # at which five queries look
    plain = scope.capture(prompt)
    with scope.edit(scattered_negatives()):
        edited = scope.capture(prompt)
    for own, moved in zip(plain.layers, edited.layers):  # softmax has no negative weight
        np.testing.assert_array_equal(own.rows().d, moved.rows().d)


def test_rises_are_those_of_the_edits(scope, prompts):
    few = prompts[:2]
    before = answers(scope, few).loss
    rises = rises_by_signs(scope, few)
    np.testing.assert_allclose(
        rises["layers"].sel(change="negative")[0], answers(scope, few, edits.d_plus(layers=0)).loss - before
    )
    np.testing.assert_allclose(rises["together"].sel(change="plus"), answers(scope, few, edits.scale_lambda(-1.0)).loss - before)
    start = min(few[1].spans["answer"])
    blind = rises_when_blind(scope, few)
    hidden = answers(scope, few[1:], edits.knock_out([start - 1], [start], branch=2)).loss[0] - before[1]
    assert float(blind.sel(blind="A2")[1]) == pytest.approx(hidden, abs=1e-6)


def test_the_share_of_the_token_before_is_that_of_the_maps(scope, prompts):
    prompt = prompts[1]
    query = min(prompt.spans["answer"])
    shares = previous_token_share(scope, [prompt])
    cap = scope.capture(prompt.ids)
    for name, of in (("a2", "A2"), ("a1", "A1")):
        expected = cap.map(of, 0, 1).values[query, query - 1]
        assert float(shares[name][0, 0, 1]) == pytest.approx(expected, abs=1e-6)
    assert np.isnan(previous_token_share(diffscope.load("mini-standard"), [prompt])["a2"]).all()
    with pytest.raises(PromptError, match="states no answer"):
        start_of_number(Prompt([1, 2, 3], [4], {"query": [2]}))


def test_the_head_of_the_first_layer_that_has_most_is_told_and_its_own_first_map_taken_off():
    values = {
        "a2": [[[0.1, 0.9, 0.2], [0.7, np.nan, 0.1]], [[0.3, 0.7, 0.2], [0.9, np.nan, 0.1]]],  # (prompt, layer, head)
        "a1": [[[0.8, 0.2, 0.0], [0.3, np.nan, 0.5]], [[0.8, 0.4, 0.0], [0.1, np.nan, 0.5]]],
    }
    trained = Table({name: xr.DataArray(of, dims=("prompt", "layer", "head")) for name, of in values.items()})
    alone = of_top_heads([trained], [], "a2")
    assert alone.values.tolist() == [[0.9, 0.7]] and alone.layers == pytest.approx([0.8, 0.8]) and alone.untrained is None
    minus = of_top_heads([trained, trained], [trained, Table({})], "a2", "a1")
    assert minus.values[1] == pytest.approx([0.7, 0.3]) and minus.layers == pytest.approx([0.5, 0.6])
    assert minus.untrained == pytest.approx([0.5])


def test_the_second_map_of_mini_diff_is_the_previous_token_head_subtracted(scope):
    board = run(IDS, model=Models.open([scope], Settings(prompts=6, length=96, untrained=3)))
    words = {verdict.test.id: verdict.verdicts for verdict in board}
    assert words["signed-weights"] == {"NC": SILENT, "SP": SILENT, "SH": FOR}
    assert words["a2-signal"] == {"NC": SILENT, "SP": SILENT, "SH": FOR}
    assert words["a2-content"] == {"NC": SILENT, "SP": AGAINST, "SH": SILENT}  # noise and signal predict the same of it
    signs, content, signal = (verdict.estimates for verdict in board)
    assert signs["negative"].layers[0] > 3 > 0.5 > max(np.abs(signs["negative"].layers[1:]))
    assert signs["plus"].value > signs["zero"].value > signs["scattered"].value
    assert content["uniform"].value > 3 and content["zero"].value > content["mean"].value
    assert signal["previous_a2"].value > 0.9 and signal["previous"].untrained == 3 and abs(signal["blind_a1"].value) < 0.5


def test_where_the_second_map_does_nothing_no_account_is_borne_out(tokenizer):
    """Random weights answer nothing, whatever their maps do."""
    model = tiny.own("v1", vocab_size=len(tokenizer), heads=2, num_hidden_layers=1)
    models = Models.open([Scope(model, tokenizer, "random")], Settings(prompts=6, length=96, untrained=3, weights="answer"))
    for verdict in run(IDS, model=models):
        assert FOR not in verdict.verdicts.values(), verdict.sentence
        assert verdict.idle or OPEN in verdict.verdicts.values() or AGAINST in verdict.verdicts.values()


def test_what_cannot_be_edited_is_said(prompts):
    for id in IDS:
        planted = run(id, model=planted_models(Planted("NC", layers=1), prompts[:2], count=1))[0]
        assert planted.shown == "needs open models, since evidence that was stored or simulated does not hold it"
        (standard,) = run(id, model=Models.open([diffscope.load("mini-standard")], Settings(prompts=2, length=96)))
        assert "this one is standard attention" in standard.shown


def test_each_test_says_of_what_it_is():
    for id in IDS:
        assert TESTS[id].of and TESTS[id].predictions["SH"] and TESTS[id].tells_apart is (id != "a2-content")
