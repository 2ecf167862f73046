"""A stratified sample of queries: who is drawn, and what the tool makes of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diffscope
from diffscope.errors import DiffscopeError
from diffscope.stats.sample import WEIGHT, QuerySample
from tests import tiny


@given(st.integers(3, 400), st.integers(2, 60), st.integers(0, 5))
def test_every_stretch_is_drawn_from_and_the_sample_stands_for_all_queries(n, rows, seed):
    drawn = QuerySample(rows, seed).draw(n)
    if n <= rows:
        assert drawn is None
        return
    queries, stratum, weight = (part.numpy() for part in drawn)
    assert len(queries) == len(set(queries)) == rows and queries[0] >= 0 and queries[-1] < n
    assert (np.diff(queries) > 0).all() and np.isclose(weight.sum(), n)
    sizes = np.bincount(stratum, weight)
    assert sizes.max() - sizes.min() < 1 + 1e-9
    assert all(np.floor(n * h / len(sizes)) <= q < np.floor(n * (h + 1) / len(sizes)) for q, h in zip(queries, stratum))


def test_a_sample_of_one_is_refused():
    with pytest.raises(DiffscopeError, match="no standard error"):
        QuerySample(1)


@pytest.fixture(scope="module")
def scope():
    return diffscope.load(tiny.own("v1"))


def test_a_sample_holds_rows_of_the_whole_and_says_so(scope):
    whole, sample = scope.measure(tiny.ids(40), "row"), scope.measure(tiny.ids(40), "row", queries=QuerySample(12, seed=3))
    assert sample.sizes["query"] == 12 and "12 of 40 queries" in sample.attrs["sampled"]
    for name in whole:
        np.testing.assert_allclose(sample[name], whole[name].sel(query=sample["query"]), rtol=1e-5, atol=1e-6, err_msg=name)
    averaged = diffscope.average(sample)
    assert {"entropy", "entropy_se", "gini_se"} <= set(averaged) and "query" not in averaged.dims
    assert (averaged["entropy_se"] > 0).all()
    assert not any(name.endswith("_se") for name in diffscope.average(whole))


def test_a_prompt_no_longer_than_the_sample_is_measured_whole(scope):
    assert scope.measure(tiny.ids(12), "gini", queries=QuerySample(12)).identical(scope.measure(tiny.ids(12), "gini"))


def test_means_inside_a_definition_weigh_the_queries(scope):
    """A sample of all queries but one, whose stretches are of unequal length."""
    capture = scope.capture(tiny.ids(7))
    sampled = capture.measure(["column_sink", "row_sum"], queries=QuerySample(6))
    weights = sampled[WEIGHT].values
    assert set(weights) == {1.0, 1.5}
    rows = np.stack([capture.map("A1", 1, 0).values[int(q)] for q in sampled["query"]])  # (query, key)
    several = sampled["query"].values > 0
    expected = (rows * weights[:, None])[several].sum(0) / weights[several].sum()
    measured = sampled["column_sink"].sel(layer=1, head=0, map="A1", normalisation="raw")
    assert float(measured) == pytest.approx(expected.max(), rel=1e-5)


def test_a_batch_of_several_lengths_is_not_sampled(scope):
    with pytest.raises(DiffscopeError, match="one length"):
        scope.measure([tiny.ids(20), tiny.ids(21)], "gini", queries=QuerySample(6))
    both = scope.measure([tiny.ids(20), tiny.ids(20)], "gini", queries=QuerySample(6))
    assert (both.sizes["prompt"], both.sizes["query"]) == (2, 6) and both[WEIGHT].dims == ("query",)


def test_what_has_no_queries_of_its_own_says_that_it_was_sampled_too(scope):
    assert "8 of 40" in scope.measure(tiny.ids(40), ["column_sink"], queries=QuerySample(8)).attrs["sampled"]
    averaged = diffscope.average(scope.measure(tiny.ids(40), ["argmax", "gini"], queries=QuerySample(8)))
    assert set(averaged) == {"gini", "gini_se"}


def test_a_sample_of_numpy_numbers_is_that_of_python_s():
    assert repr(QuerySample(np.int64(12), np.int64(3))) == repr(QuerySample(12, 3))


@pytest.mark.parametrize("wrong", [{"rows": 12.5}, {"rows": "12"}, {"seed": -1}, {"seed": 0.5}])
def test_a_sample_is_made_of_whole_numbers(wrong):
    with pytest.raises(DiffscopeError, match="whole numbers"):
        QuerySample(**wrong)


@pytest.mark.parametrize("wrong", [[True, False], [1.9], [[1, 2], [3, 4]], [[1], [2, 3]], ["a"], np.ones(40, bool)])
def test_positions_are_whole_numbers(scope, wrong):
    with pytest.raises(DiffscopeError, match="whole numbers"):
        scope.measure(tiny.ids(40), "gini", queries=wrong)


def test_a_batch_names_each_query_once(scope):
    with pytest.raises(DiffscopeError, match="each once"):
        scope.measure([tiny.ids(5), tiny.ids(8)], "gini", queries=[-1, 4])
