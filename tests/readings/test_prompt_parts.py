"""Five bars: disjoint, complete, those of each map, and missing where there is nothing to see."""

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import diffscope
from diffscope import DiffscopeError, SpanError, readings
from diffscope.readings.prompt_parts import PARTS, parts
from tests import tiny
from tests.instruments.planted import capture_of, layer_of

N = 16
SPANS = {"answer": [4, 5], "query": [13, 14, 15]}
positions = st.sets(st.integers(0, N - 1), min_size=1, max_size=6).map(sorted)


@given(positions, st.none() | positions, positions)
def test_parts_hold_every_token_once(answer, question, sink):
    spans = {"answer": answer, "sink": sink} | ({"query": question} if question else {})
    held = parts(spans, N)
    assert sorted(at for part in held.values() for at in part) == list(range(N)) and tuple(held) == PARTS
    assert held["answer"] == answer and set(held["question"]) <= set(question or [N - 1])


@pytest.mark.parametrize("spans", [{"query": [9], "question": [8]}, {"question": [9]}])
def test_the_question_is_what_is_marked_else_the_last_token(spans):
    assert parts({"answer": [4], "sink": [0], **spans}, N)["question"] == [9]
    assert parts({"answer": [4], "sink": [0]}, N)["question"] == [N - 1]


def test_bars_are_those_of_each_map():
    """A1 of head 0 has half of its weight on the first token, of head 1 on the answer's tokens; A2 is uniform; λ is a half."""
    first = torch.zeros(4, N, N, dtype=torch.float64)
    first[0, :, 0] = np.log(N - 1)
    first[1, :, 4:6] = np.log((N - 2) / 2)
    reading = readings.allocation(capture_of(layer_of(first, lam=0.5), spans=SPANS))
    raw = reading.estimates["allocation"].sel(layer=0, normalisation="raw")
    uniform = np.array([1, 3, 2, 7, 3]) / N
    head0 = np.array([0.5, *np.array([3, 2, 7, 3]) / (2 * (N - 1))])
    np.testing.assert_allclose(raw.sel(map="A2").values, [uniform, uniform], rtol=1e-6)
    np.testing.assert_allclose(raw.sel(head=0, map="A1"), head0, rtol=1e-6)
    np.testing.assert_allclose(raw.sel(head=0, map="D"), head0 - uniform / 2, rtol=1e-6)
    np.testing.assert_allclose(reading.estimates["uniform"].sel(layer=0), uniform)
    both = raw.sel(map="A1", part="answer").values
    assert both == pytest.approx([1 / (N - 1), 0.5])
    over = reading.estimates.sel(map="A1", part="answer", normalisation="raw")
    assert [float(over["over_layers"]), float(over["spread"])] == pytest.approx([both.mean(), both.std(ddof=1)])
    assert over["over_heads"].attrs["averaged_over"] == "heads" and "mean over heads" in over["over_heads"].attrs["long_name"]
    share = reading.estimates["over_layers"].sel(map="D", part="answer", normalisation="share").item()
    assert f"mean over 2 heads: of |D| go {100 * share:.0f} % to the answer (" in reading.sentence


@pytest.mark.parametrize("model", [tiny.own("v1"), tiny.own("v2"), tiny.own("standard"), tiny.gpt_oss()], ids=str)
def test_shares_sum_to_one_and_bars_of_what_is_not_seen_are_missing(model):
    cap = diffscope.load(model).capture(tiny.ids(N), spans=SPANS)
    bars = readings.allocation(cap, queries=[0, 3, N - 1]).estimates["allocation"]
    maps = ["A1", "A2", "D"] if cap.differential else ["A1", "D"]
    for normalisation in ("share", "positive"):
        share = bars.sel(map=maps, query=[3, N - 1], normalisation=normalisation)
        np.testing.assert_allclose(share.sum("part"), 1, atol=1e-6)
    assert bars.sel(query=0).isnull().all()  # it sees itself alone
    assert bars.sel(query=3, part=["answer", "after", "question"]).isnull().all()
    assert cap.prompts[0].spans == {"sink": (0,), "answer": (4, 5), "query": (13, 14, 15)}


def test_prompts_of_a_batch_are_as_by_themselves():
    scope = diffscope.load(tiny.own("v1"))
    batch = scope.capture([tiny.ids(12), tiny.ids(N)], spans=[{"answer": [3]}, SPANS])
    together = readings.allocation(batch)
    for number in range(2):
        alone = readings.allocation(batch[number]).estimates["allocation"]
        np.testing.assert_array_equal(together.estimates["allocation"].sel(prompt=number), alone)
    of_each = [readings.bars({"": readings.allocation(batch[number]).estimates})["value"] for number in range(2)]
    of_both = readings.bars({"": together.estimates})
    assert set(of_both["low"].dims) == {"side", "part"}
    xr.testing.assert_allclose(of_both["value"], xr.concat(of_each, "prompt").mean("prompt"))
    assert together.sentence.startswith("At the last token of 2 prompts, mean over 8 heads: of |D| go")
    assert "100 %" not in together.sentence
    unlike = scope.capture([tiny.ids(12), tiny.ids(12)], spans=[{"answer": [1]}, {"answer": [3]}])  # nothing before the first
    assert readings.allocation(unlike).sentence.endswith("so that these do not sum to 100 %.")


def test_what_cannot_be_divided_is_said():
    cap = diffscope.load(tiny.own("v1")).capture(tiny.ids(N))
    with pytest.raises(SpanError, match="none is marked; give one"):
        readings.allocation(cap)
    with pytest.raises(DiffscopeError, match="no span 'needles' to take queries from; spans are sink"):
        readings.allocation(capture_of(layer_of(torch.zeros(2, N, N)), spans=SPANS), queries="needles")
    alone = capture_of(layer_of(torch.zeros(2, N, N)), spans=SPANS)
    assert "only one part of the prompt is seen" in readings.allocation(alone, 0).sentence
