"""Figures of captures draw what the maps say, beside what attention would be that finds nothing."""

import functools

import numpy as np
import pytest

import diffscope
from diffscope import edits, figures
from diffscope.errors import DiffscopeError, SpanError
from diffscope.instruments.injection import with_a2_moved
from diffscope.stats.labels import UNIFORM
from tests import tiny

SPANS = {"answer": slice(5, 7), "query": [14, 15]}


def own(kind="v1", heads=3):
    return diffscope.load(tiny.own(kind, heads, num_hidden_layers=2, hidden_size=48))


@functools.cache
def capture(kind="v1", n=16, heads=3):
    return own(kind, heads).capture(tiny.ids(n), spans=SPANS)


@pytest.fixture(scope="module")
def cap():
    return capture()


@pytest.fixture(scope="module")
def two():
    return {"ours": capture(), "theirs": capture("standard")}


def drawn_on_both(figure):
    assert figure.plotly().data and figure.matplotlib().axes
    return figure


def row(cap, layer, head, query=-1):
    """D of one query, (key,)."""
    return cap.map("D", layer, head).values[query]


def test_the_five_bars_are_sums_of_the_maps_rows(two):
    figure = drawn_on_both(figures.allocation(two))
    parts = {"first token": [0], "before": [1, 2, 3, 4], "answer": [5, 6], "after": range(7, 14), "question": [14, 15]}
    for name, cap in two.items():
        heads = np.array([[abs(row(cap, layer, head)) for head in range(3)] for layer in (0, 1)])  # (layer, head, key)
        shares = heads / heads.sum(-1, keepdims=True)
        expected = np.stack([shares[..., list(at)].sum(-1) for at in parts.values()], -1)  # (layer, head, part)
        shown = figure.data.sel(series=name).isel(panel=0)
        assert shown["x"].values.tolist() == list(parts)
        np.testing.assert_allclose(shown["value"], expected.mean((0, 1)), rtol=1e-5)
        np.testing.assert_allclose(shown["low"], expected.min((0, 1)), rtol=1e-4)
        np.testing.assert_allclose(shown["high"], expected.max((0, 1)), rtol=1e-5)
        one = figures.allocation(two, layer=1, head=2).data.sel(series=name).isel(panel=0)
        np.testing.assert_allclose(one["value"], expected[1, 2], rtol=1e-5)
        layer = figures.allocation(two, layer=1).data.sel(series=name).isel(panel=0)
        np.testing.assert_allclose(layer["value"], expected[1].mean(0), rtol=1e-5)
        np.testing.assert_allclose(layer["high"], expected[1].max(0), rtol=1e-5)
    uniform = figure.data["value"].sel(series="uniform attention").isel(panel=0)
    np.testing.assert_allclose(uniform, np.array([len(at) for at in parts.values()]) / 16)


def test_bars_can_be_of_another_head_of_each_model(two):
    figure = figures.allocation(two, layer=(1, 0), head=(2, 1))
    for name, place in {"ours": (1, 2), "theirs": (0, 1)}.items():
        one = figures.allocation(two[name], layer=place[0], head=place[1]).data["value"].isel(series=0)
        np.testing.assert_array_equal(figure.data["value"].sel(series=name), one)
    assert "layer 1, head 2 of ours and layer 0, head 1 of theirs" in figure.caption
    with pytest.raises(DiffscopeError, match="layer is one for all, or one for each of 2"):
        figures.allocation(two, layer=(1, 0, 1))


def test_bars_of_a_batch_are_means_over_its_prompts(cap):
    batch = own().capture([tiny.ids(16), tiny.ids(12)], spans={"answer": slice(5, 7)})
    each = [figures.allocation(one).data["value"].isel(series=0).values for one in batch]
    np.testing.assert_allclose(figures.allocation(batch).data["value"].isel(series=0), np.mean(each, 0), rtol=1e-5)


def test_what_a_model_lacks_is_named_in_the_legend_and_not_drawn_as_nothing(two):
    figure = figures.allocation(two, map="A2")
    assert figure.data["series"].values.tolist() == ["ours", "theirs (undefined)", "uniform attention"]
    assert figure.data["value"].sel(series="theirs (undefined)").isnull().all()
    with pytest.raises(DiffscopeError, match="nothing to draw: A2 is undefined in every capture"):
        figures.allocation(two["theirs"], map="A2")


def test_heads_stand_behind_their_mean_and_beside_uniform_attention(two):
    figure = drawn_on_both(figures.statistic_by_layer(two, statistic=["entropy", "gini"]))
    for panel, (name, uniform) in enumerate({"entropy": np.log(16), "gini": 0.0}.items()):
        for model, cap in two.items():
            measured = cap.measure(name, queries=[-1])[name].sel(map="D").isel(query=0)
            shown = figure.data.sel(series=model).isel(panel=panel)
            np.testing.assert_array_equal(shown["points"], measured.values)
            np.testing.assert_allclose(shown["value"], measured.values.mean(-1), rtol=1e-6)
        control = figure.data.sel(series=UNIFORM).isel(panel=panel)
        np.testing.assert_allclose(control["value"], uniform, atol=1e-6)
    axes = figure.plotly().layout
    assert axes.yaxis2.matches is None and axes.yaxis2.showticklabels is None  # each panel has its own scale and says so


def test_means_over_queries_are_of_single_heads_first(cap):
    measured = cap.measure("entropy")["entropy"].sel(map="A2").mean("query")
    figure = figures.statistic_by_layer(cap, map="A2", query="mean")
    np.testing.assert_allclose(figure.data["points"].isel(series=0, panel=0), measured.values, rtol=1e-6)


def test_ranks_stand_beside_permuted_rows_and_the_uniform_map(two):
    figure = drawn_on_both(figures.statistic_by_layer(two, statistic="effective_rank", where={"definition": "r90"}))
    rank = two["ours"].measure("effective_rank")["effective_rank"].sel(definition="r90")
    for series, control in {"ours": "map", "ours: its rows permuted": "permuted"}.items():
        expected = rank.sel(ranked_map="lambda_A2", control=control).values
        shown = figure.data.sel(series=series).isel(panel=0)
        np.testing.assert_array_equal(shown["points"], expected)
        np.testing.assert_array_equal(shown["value"], np.median(expected, -1))
    # both have as many keys, and so one uniform map
    assert "uniform map" in figure.data["series"] and "r90" in figure.data.attrs["caption"]
    np.testing.assert_array_equal(
        figure.data["points"].sel(series="uniform map")[0], rank.sel(ranked_map="D", control="uniform").values
    )


def test_what_maps_share_stands_beside_the_same_with_other_heads_a2(cap):
    for moved, series in ((cap, "own A₂"), (None, "A₂ of other heads")):
        figure = drawn_on_both(figures.similarity(cap, statistic="overlap"))
        captures = [moved] if moved else [with_a2_moved(cap, by) for by in (1, 2)]
        overlap = [one.measure("overlap", queries=[-1])["overlap"].sel(span="irrelevant").values.ravel() for one in captures]
        shown = figure.data.sel(series=series).isel(panel=0)
        np.testing.assert_allclose(shown["value"], np.mean(overlap, 0), rtol=1e-6)
        np.testing.assert_allclose([shown["low"], shown["high"]], [np.min(overlap, 0), np.max(overlap, 0)], rtol=1e-6)
    by_layer = figures.statistic_by_layer(cap, statistic="overlap").data
    np.testing.assert_allclose(
        by_layer["value"].sel(series="A₂ of other heads").values.ravel(), np.mean(overlap, 0).reshape(2, 3).mean(-1), rtol=1e-6
    )


def test_several_captures_are_panels_and_those_without_a_second_map_are_told(two):
    figure = figures.similarity({**two, "again": two["ours"]})
    assert figure.data["panel"].values.tolist() == ["ours", "again"] and "Undefined: theirs." in figure.data.attrs["caption"]
    named = figures.statistic_by_layer([two["ours"], two["ours"]]).data["series"].values.tolist()
    assert named == ["DiffForCausalLM (1)", "DiffForCausalLM (2)", UNIFORM]
    pair = diffscope.Comparison(("a", "b"), tuple(two.values()))
    assert figures.statistic_by_layer(pair).data["series"].values.tolist() == ["a", "b", UNIFORM]


@pytest.mark.parametrize(
    "draw, words",
    [
        (lambda cap: figures.allocation(cap, head=1), "head 1 is of a layer; give layer= too"),
        (lambda cap: figures.allocation(cap, layer=7), "there is no layer 7; choose from 0, 1"),
        (lambda cap: figures.allocation(cap, map="A3"), "there is no map 'A3'; choose from A1, A2, D"),
        (lambda cap: figures.allocation([cap, "cap"]), r"of captures, and \? is a str"),
        (lambda cap: figures.allocation({}), "there is no capture to draw"),
        (lambda cap: figures.allocation(cap.measure("gini")), "of captures, not of a Dataset"),
        (lambda cap: figures.statistic_by_layer(cap, statistic="kurtosis"), "there is no statistic 'kurtosis'"),
        (lambda cap: figures.statistic_by_layer(cap, statistic="cmrr"), r"cmrr \[dB\] has no mean over heads"),
        (lambda cap: figures.statistic_by_layer(cap, statistic="sink_rate"), "sink_rate is of a layer"),
        (lambda cap: figures.statistic_by_layer(cap, statistic=[]), "no statistic was chosen"),
        (lambda cap: figures.similarity(cap, statistic="gini"), "none of the statistics that compare A1 and A2"),
        (lambda cap: figures.similarity(cap, span="nowhere"), "there is no span 'nowhere'"),
        (lambda cap: figures.similarity(capture("standard")), "undefined everywhere"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(cap, draw, words):
    with pytest.raises(DiffscopeError, match=words):
        draw(cap)


def test_bars_need_an_answer():
    with pytest.raises(SpanError, match="none is marked"):
        figures.allocation(diffscope.load(tiny.own("v1", 3, num_hidden_layers=2, hidden_size=48)).capture(tiny.ids(8)))


def test_captions_of_batches_name_no_query_of_the_first_prompt():
    batch = own().capture([tiny.ids(16), tiny.ids(12)], spans={"answer": slice(5, 7)})
    for choice, words in ({-1: "D, the last query of 2 prompts", 3: "D, query 3 of 2 prompts"}).items():
        assert words in figures.statistic_by_layer(batch, query=choice).caption
    assert "D, mean over 12 to 16 queries, then 2 prompts" in figures.statistic_by_layer(batch, query="mean").caption
    ranks = figures.statistic_by_layer(batch, statistic="effective_rank", where={"definition": "r90"}).caption
    assert "λ·A2, 2 prompts" in ranks or "λ·A₂, 2 prompts" in ranks
    assert "D, query 15." in figures.statistic_by_layer(batch[0]).caption


def test_the_mean_over_queries_is_of_the_same_keys_and_says_that_it_has_no_control(cap):
    figure = figures.statistic_by_layer(cap, statistic="overlap", query="mean")
    assert figure.data.attrs["selection"].startswith("irrelevant") and "overlap has no control" in figure.caption
    measured = cap.measure("overlap")["overlap"].sel(span="irrelevant").mean("query")
    np.testing.assert_allclose(figure.data["points"].isel(series=0, panel=0), measured, rtol=1e-6)
    assert "no control" not in figures.statistic_by_layer(cap, query="mean").caption


@pytest.mark.parametrize("draw", [figures.allocation, figures.statistic_by_layer, figures.similarity])
def test_the_last_query_is_a_word_too(cap, draw):
    assert draw(cap, query="last").data.identical(draw(cap, query=-1).data)
    with pytest.raises(DiffscopeError, match="there is no query 'first'; give a position, 'last'"):
        draw(cap, query="first")


def test_what_was_captured_under_edits_says_so(cap):
    model = own()
    with model.edit(edits.set_lambda(0.0)):
        edited = model.capture(tiny.ids(16), spans=SPANS)
    for draw in (figures.allocation, figures.statistic_by_layer, figures.amplifier):
        figure = draw(edited)
        assert figure.data.attrs["edits"] == "λ = 0" and "Under λ = 0. " in figure.caption
        assert "λ = 0 (cut)" in draw({"cut": edited, "whole": cap}).caption
        assert "edits" not in draw(cap).data.attrs
