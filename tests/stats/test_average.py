"""One rule of averaging: what is left out, what is a median, what a sample's average is worth, and that everybody follows it."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import diffscope
from diffscope.cli import main
from diffscope.errors import DiffscopeError
from diffscope.figures import figure
from diffscope.lab.sweep import _measured, _of_prompt
from diffscope.stats import STATISTICS
from diffscope.stats.averaging import average, averaged, error_end, finite_mean, finite_median, mean_over_prompts
from diffscope.stats.sample import STRATUM, WEIGHT, QuerySample
from diffscope.tasks import TextPrompt


def _array(values, drawn=None, name="entropy", dims=("head", "query")):
    labels = {}
    if drawn is not None:
        labels = {WEIGHT: ("query", drawn.weight.numpy()), STRATUM: ("query", drawn.stratum.numpy())}
    return xr.DataArray(values, dims=dims, coords=labels, name=name, attrs={"units": "nats"})


def test_what_is_undefined_or_infinite_is_left_out_and_counted():
    values = _array([[1.0, np.inf, 3.0], [np.nan, 4.0, -np.inf], [np.nan] * 3])
    mean = average(values.to_dataset())["entropy"]
    np.testing.assert_array_equal(mean, [2.0, 4.0, np.nan])
    assert mean.attrs["units"] == "nats" and mean.attrs["averaged"] == "mean" and mean.attrs["averaged_over"] == "queries"
    assert (mean.attrs["undefined_left_out"], mean.attrs["infinite_left_out"]) == (4, 2)
    over = average(values.to_dataset(), over=["head", "query"])["entropy"]
    assert float(over) == 3.0 and over.attrs["averaged_over"] == "queries, then heads"
    assert over.attrs["undefined_left_out"] == 4, "a head without a value is not counted again"
    assert averaged(values).words == [
        "3 queries (4 undefined values and 2 infinite values left out)",
        "3 heads (1 undefined value left out)",
    ]
    assert "(4 undefined or missing values and" in averaged(values.expand_dims("prompt")).words[0]


def test_queries_then_heads_then_layers():
    values = _array([[[1.0, np.nan], [3.0, 5.0]], [[7.0, 7.0], [np.nan, np.nan]]], dims=("layer", "head", "query"))
    for dims in (["layer", "head", "query"], ["query", "head", "layer"]):
        assert float(averaged(values, dims).values) == (((1 + 4) / 2) + 7) / 2


def test_ratios_without_a_bound_have_medians():
    unbounded = {"lambda_star", "residual_noise", "noise_gain", "signal_gain", "selectivity"}
    assert unbounded == {name for name, s in STATISTICS.items() if s.averaged == "median" and "query" in s.dims}
    median = average(_array([[1.0, 2.0, 236.0, np.inf]], name="lambda_star").to_dataset())["lambda_star"]
    assert median.item() == 2.0 and median.attrs["averaged"] == "median"
    assert averaged(_array([[1.0, 2.0, 9.0]], name="lambda_star"), by="mean").values.item() == 4.5 - 0.5


def test_positions_are_left_out_and_refused_by_name():
    dataset = xr.merge([_array([[1.0, 2.0]], name=name) for name in ("argmax", "gini")], combine_attrs="drop")
    assert set(average(dataset)) == {"gini"}
    with pytest.raises(DiffscopeError, match="argmax .* is not averaged"):
        averaged(dataset["argmax"])
    with pytest.raises(DiffscopeError, match="no average over 'seed'"):
        averaged(dataset["gini"], ["seed"])


@given(st.lists(st.one_of(st.floats(-9, 9), st.just(np.nan), st.just(np.inf)), min_size=4, max_size=9))
def test_a_weighted_median_of_equal_weights_is_the_median(values):
    labels = {WEIGHT: ("query", np.full(len(values), 2.5)), STRATUM: ("query", np.arange(len(values)) // 2)}
    array = xr.DataArray([values], dims=("head", "query"), coords=labels, name="lambda_star")
    finite = np.array(values)[np.isfinite(values)]
    expected = np.median(finite) if len(finite) else np.nan
    np.testing.assert_allclose(averaged(array, ["query"]).values.values, [expected])


def test_estimates_are_unbiased_and_their_errors_are_honest():
    """Rows that drift, jump and partly have no value: 600 samples of 20 from 230."""
    random = np.random.default_rng(0)
    n, position = 230, np.arange(230)
    truth = np.stack([np.sin(position / 40) + 0.2 * random.normal(size=n), random.exponential(size=n) * (1 + position / n)])
    truth[1, random.random(n) < 0.3] = np.nan
    drawn = [QuerySample(20, seed).draw(n) for seed in range(600)]
    assert all(torch.equal(each.weight, drawn[0].weight) and torch.equal(each.stratum, drawn[0].stratum) for each in drawn)
    samples = truth[:, np.stack([each.queries for each in drawn])]  # (row, sample, query): every sample as one more head
    samples = _array(samples.reshape(-1, 20), drawn[0])
    for by, exact in (("mean", np.nanmean(truth, 1)), ("median", np.nanmedian(truth, 1))):
        estimates = averaged(samples, ["query"], by)
        middles, errors = (getattr(estimates, part).values.reshape(2, 600).T for part in ("values", "error"))
        bias = 4 * middles.std(0) / np.sqrt(600) if by == "mean" else 0.5 * middles.std(0)
        assert (np.abs(middles.mean(0) - exact) < bias).all()
        honesty = np.sqrt((errors**2).mean(0)) / middles.std(0)  # of a median of few queries, on the safe side
        assert ((honesty > 0.85) & (honesty < (1.15 if by == "mean" else 1.5))).all()
        anywhere = getattr(np, f"nan{by}")(truth[:, random.random((600, n)).argsort(1)[:, :20]], -1)
        assert middles[:, 0].std() < anywhere[0].std() / 1.5, "a drift with position costs a stratified sample little"


def test_the_standard_error_by_hand():
    drawn = QuerySample(4).draw(10)  # two stretches of five, two queries from each
    mean, error, words = averaged(_array(np.array([[1.0, 3.0, 10.0, 14.0]]), drawn), ["query"])
    assert mean.item() == 7.0 and words == ["a sample of 4 queries"]
    assert error.item() == pytest.approx(np.sqrt((5**2 * (1 - 2 / 5) / 2 * 2 + 5**2 * (1 - 2 / 5) / 2 * 8) / 10**2))
    assert mean.attrs["units"] == error.attrs["units"] == "nats" and "mean of entropy" in error.attrs["long_name"]


def test_heads_share_the_queries_of_a_sample():
    drawn = QuerySample(4).draw(10)
    values = np.array([[1.0, 3.0, 10.0, 14.0], [3.0, 1.0, 14.0, 10.0]])  # what one head has more the other has less
    assert averaged(_array(values, drawn)).error.item() == 0.0


def test_what_was_measured_whole_has_no_error():
    assert averaged(_array([[1.0, 2.0, np.nan]])).error is None


def test_everybody_averages_alike(monkeypatch, tmp_path, capsys):
    """diffscope.average, the command line, the figure and a sweep on [1, inf, 3]."""
    scope = diffscope.load("mini-diff")
    cap = scope.capture("one two three four", spans={"answer": [1]})
    dataset = cap.measure("kl_12")
    dataset["kl_12"][:] = np.nan
    dataset["kl_12"].loc[{"query": dataset["query"][-3:]}] = xr.DataArray([1.0, np.inf, 3.0], dims="query")
    for owner in (diffscope.Capture, diffscope.Scope):
        monkeypatch.setattr(owner, "measure", lambda *args, **how: dataset)
    mean = diffscope.average(dataset)["kl_12"]
    assert (mean == 2).all() and mean.attrs["infinite_left_out"] == mean.size
    cap.save(tmp_path / "cap.dscope")
    assert main(["measure", str(tmp_path / "cap.dscope"), "--statistics", "kl_12", "--json"]) == 0
    entry = json.loads(capsys.readouterr().out)["statistics"]["kl_12"]
    assert np.array_equal(entry["values"], mean) and entry["infinite_left_out"] == mean.size
    drawn = figure("heads", cap, statistic="kl_12", query="mean").data
    assert (drawn["kl_12"] == 2).all() and "infinite values left out" in drawn.attrs["selection"]
    prompt = TextPrompt("it", cap.text, {}, None)
    spec = {"statistics": ["kl_12"], "queries": "all"}
    (measured,) = _measured(scope, [("it", prompt)], spec)
    swept = _of_prompt(scope, prompt, measured, spec)
    assert swept["kl_12"].equals(mean)


def test_what_was_averaged_before_is_averaged_on_without_its_errors():
    values = _array(np.arange(24.0).reshape(2, 12), SimpleNamespace(weight=torch.full((12,), 3.0), stratum=torch.zeros(12)))
    dataset = values.where(values != 5).to_dataset(name="entropy")
    twice, once = average(average(dataset), "head"), average(dataset, ["query", "head"])
    assert set(twice) == {"entropy"} and set(once) == {"entropy", "entropy_se"}
    assert float(twice["entropy"]) == float(once["entropy"])
    assert twice["entropy"].attrs["averaged_over"] == "queries, then heads" and twice["entropy"].attrs["undefined_left_out"] == 1
    with pytest.raises(DiffscopeError, match="no average over 'querry'"):
        average(dataset, "querry")


@pytest.mark.parametrize("by", ["mean", "median"])
def test_a_stratum_of_one_row_has_no_standard_error(by):
    values = _array(np.arange(5.0)[None], SimpleNamespace(weight=torch.full((5,), 10.0), stratum=torch.tensor([0, 0, 1, 1, 2])))
    assert averaged(values, ["query"], by).error.isnull().all()


def test_middles_leave_out_what_is_not_finite():
    values = np.array([[1.0, np.nan, 4.0], [np.inf, 2.0, 8.0], [np.nan, np.nan, np.nan], [1, 2, 9]])
    np.testing.assert_array_equal(finite_mean(values), [2.5, 5, np.nan, 4])
    np.testing.assert_array_equal(finite_median(values), [2.5, 5, np.nan, 2])
    assert np.isnan(finite_median(values[:, :0])).all() and np.isnan(finite_mean(values[:, :0])).all()


def test_averages_over_prompts_have_an_error_by_the_rule_of_the_values():
    values = xr.DataArray([[1.0, 2.0, np.inf, 6.0], [3.0, np.nan, np.nan, np.nan]], dims=("head", "prompt"))
    np.testing.assert_array_equal(mean_over_prompts(values), [3, 3])
    np.testing.assert_array_equal(mean_over_prompts(values, "median"), [2, 3])
    low, high = (error_end(values, "mean", side) for side in (-1, 1))
    np.testing.assert_allclose(high - low, [2 * np.std([1, 2, 6], ddof=1) / np.sqrt(3), np.nan])
    np.testing.assert_array_equal([error_end(values, "median", side) for side in (-1, 1)], [[1.5, np.nan], [4, np.nan]])


def test_prompts_are_averaged_after_layers():
    values = xr.DataArray([[1.0, np.nan], [4.0, 8.0]], dims=("prompt", "layer"), name="gini")
    mean = average(values.to_dataset(), ["prompt", "layer"])["gini"]
    assert mean.item() == (1 + (4 + 8) / 2) / 2 and mean.attrs["averaged_over"] == "layers, then prompts"
