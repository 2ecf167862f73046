"""Estimates: intervals, nulls and p as textbooks have them, and words where there are none."""

import json
import warnings
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from scipy import stats
from statsmodels.stats.multitest import multipletests

from diffscope.evidence.heads import Table
from diffscope.hypotheses.intervals import benjamini_hochberg, crossed, holm, sign_flip_test, students_t
from diffscope.hypotheses.measure import beside_untrained, heads_in_words, of_heads
from diffscope.hypotheses.rules import OPEN, Place, Quantity, decisive, state
from diffscope.hypotheses.sentence import decided
from diffscope.hypotheses.statistics import Estimate, Sample, estimate, head_changes
from diffscope.hypotheses.subjects import Models


def test_a_spread_that_is_rounding_is_none():
    values = np.array([[0.1, 0.2], [0.2, 0.1], [0.15, 0.15]])
    assert estimate(Sample(values)).p == 0.25 and estimate(Sample(values, np.full(4, 0.15))).p == 1


def test_a_seed_without_values_is_left_out():
    values = np.array([[1.0, 3.0], [np.nan, np.nan], [2.0, 4.0]])
    assert estimate(Sample(values)).seeds == 2


def test_seeds_that_are_left_out_are_named():
    values = np.array([[2.0, 4.0], [np.inf, np.nan], [8.0, 2.0]])
    result = estimate(Sample(values, prompts="nested", seeds=(4, 7, 9), note="of heads"))
    assert result.note == "left out, as undefined: seed 7; of heads" and result.seeds == 2


def test_what_is_infinite_is_left_out_of_every_mean():
    """The logarithm of a ratio with nothing below its line, of one head on one prompt."""
    array = xr.DataArray(np.ones((3, 2, 2)), dims=("prompt", "layer", "head"))
    array[0, 1, 0], array[1, 1, 1] = np.inf, -np.inf
    observed = beside_untrained([Table({"gain": array})], [], "gain")
    assert observed.layers.tolist() == [1, 1] and observed.values.tolist() == [[1, 1, 1]]
    assert estimate(Sample(np.array([[1.0, 3.0, np.inf], [2.0, 4.0, 3.0]]))).value == 2.5


def test_several_seeds_with_prompts_of_their_own_are_students_t_over_their_means():
    result = estimate(Sample(np.array([[1.0, 3.0], [2.0, 4.0], [5.0, 7.0]]), prompts="nested"))
    wanted = stats.ttest_1samp([2.0, 3.0, 6.0], 0)
    interval = wanted.confidence_interval()
    assert (result.value, result.p) == pytest.approx((11 / 3, wanted.pvalue))
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high))
    assert (result.seeds, result.prompts) == (3, 2)


def test_one_seed_is_a_permutation_of_signs():
    result = estimate(Sample(np.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])))
    assert result.p == pytest.approx(2 / 64) and result.low > 0 and result.value == 3.5  # two of 2^6 signs are as far out
    assert estimate(Sample(np.array([[-1.0, 1.0]]))).p == 1


def test_p_against_untrained_models_is_uniform_where_nothing_was_trained():
    rng = np.random.default_rng(0)
    p = [estimate(Sample(np.full((1, 2), rng.normal()), rng.normal(size=5))).p for _ in range(400)]
    assert stats.kstest(p, "uniform").pvalue > 0.01
    seeds = estimate(Sample(np.array([[3.0, 3.0], [4.0, 4.0]]), np.array([0.0, 1.0, 2.0, 1.0])))
    wanted = stats.ttest_ind([3, 4], [0, 1, 2, 1], equal_var=False)
    assert seeds.p == pytest.approx(wanted.pvalue)
    assert 3.5 - seeds.null_high == pytest.approx(wanted.confidence_interval().low)  # one t gives both


@pytest.mark.parametrize(
    "observed, why",
    [
        (Sample(np.full((1, 5), np.nan)), "fewer than two prompts"),
        (Sample(np.array([[1.0, np.nan]])), "fewer than two prompts"),
        (Sample(np.ones((1, 5)), np.array([1.0, np.nan, 2.0])), "fewer than three untrained"),
    ],
)
def test_what_cannot_be_estimated_is_nan_and_says_why(observed, why):
    result = estimate(observed)
    assert np.isnan([result.value, result.low, result.p]).all() and why in result.why
    assert state(result, result.p, 0.1) == OPEN


def test_corrections_are_those_of_statsmodels():
    assert holm([0.01, 0.04, float("nan"), 0.03]) == pytest.approx([0.03, 0.06, np.nan, 0.06], nan_ok=True)  # by hand
    p = np.random.default_rng(0).random(12) ** 3
    for ours, method in ((holm, "holm"), (benjamini_hochberg, "fdr_bh")):
        assert ours(p) == pytest.approx(multipletests(p, method=method)[1])


def test_the_sign_flip_test_enumerates_all_signs():
    means = np.array([0.5, 0.9, 1.3, 0.2, 0.7, 0.4, -0.1, 0.6])
    assert sign_flip_test(means) == 4 / 256  # the sum is reached by these signs and where −0.1 is flipped, and by the opposite
    wanted = stats.permutation_test((means,), np.mean, permutation_type="samples", n_resamples=256).pvalue
    assert sign_flip_test(means) == pytest.approx(wanted)
    many = np.random.default_rng(0).normal(0.4, 1, 30)
    assert sign_flip_test(many) == pytest.approx(stats.ttest_1samp(many, 0).pvalue, rel=0.2)
    five = estimate(Sample(np.arange(1.0, 6)[:, None], prompts="nested"))
    assert five.p == five.least_p == 2 / 32 and "cannot give a p below 0.062" in five.method
    assert five.p_t == pytest.approx(stats.ttest_1samp(np.arange(1, 6), 0).pvalue)


def test_crossed_prompts_are_a_sample_too():
    """What the draw of prompts does to all seeds alike is in the crossed interval and not in that over seeds."""
    rng = np.random.default_rng(0)
    covered = {"crossed": 0, "nested": 0}
    for _ in range(400):
        values = rng.normal(size=(6, 1)) * 0.3 + rng.normal(size=(1, 5)) + rng.normal(size=(6, 5))
        for name in covered:
            result = estimate(Sample(values, prompts=name))
            covered[name] += result.low < 0 < result.high
    assert 0.91 < covered["crossed"] / 400 < 0.99 and covered["nested"] / 400 < 0.75
    values[range(1, 5), range(4)] = np.nan  # one prompt alone has a value in every seed
    gaps = estimate(Sample(values, prompts="crossed"))
    assert np.isnan(gaps.value) and gaps.why == "fewer than two prompts have a value in every seed"


def test_crossed_without_an_effect_of_prompts_is_students_t():
    values = np.array([[1.0, 1.2, 0.9], [2.1, 1.7, 2.2], [3.0, 3.3, 2.6], [2.0, 2.1, 2.4]])
    values -= values.mean(0)  # all prompts alike
    values += np.arange(4.0)[:, None]
    for ours, wanted in zip(crossed(values), students_t(values.mean(1))):
        assert ours == pytest.approx(wanted)


def test_a_head_that_is_left_out_is_named_by_its_layer_in_the_model():
    class Hybrid(Models):
        """An open model of whose layers two have attention."""

        scopes = [SimpleNamespace(layer_numbers=[1, 5])]

    values = xr.DataArray(np.arange(8.0).reshape(2, 2, 2), dims=("prompt", "layer", "head"))
    subject = Hybrid([xr.Dataset(attrs={"prompts": "alike"})], ["hybrid"])
    sample = of_heads(subject, ([Table({"gain": values})], []), Place(evidence="heads.gain"))
    assert [left.what for left in estimate(sample).leave_one_out] == ["L1H0", "L1H1", "L5H0", "L5H1"]


def test_heads_that_a_layer_lacks_are_not_counted():
    """Tables are filled up with NaN where a layer has fewer heads."""
    heads, answering = np.array([[[0.1, 0.4], [0.3, np.nan]]]), np.array([[[0.5, 0.0], [0.0, np.nan]]])
    words = heads_in_words(Sample(np.ones((1, 3)), heads=heads, answering=answering), "gain")
    assert words.endswith("heads 0.1 to 0.4; 1 heads that answer 0.1; 2 heads of the others 0.35")


def test_what_one_seed_decides_is_said():
    quantity = Quantity("x", 0.5)
    values = np.array([1.0, 1.2, 0.9, 1.1, 1.0, -2.5])[:, None]
    result = estimate(Sample(values, prompts="nested", seeds=(0, 1, 2, 3, 4, 9)))
    assert [left.what for left in decisive(result, quantity)] == ["seed 9"]
    assert decided(result, quantity).startswith("left open by seed 9 (without it 1.04, ")
    without = next(left for left in result.leave_one_out if left.what == "seed 9")
    assert without.value == pytest.approx(1.04) and without.p == 2 / 32
    steady = estimate(Sample(values[:5], prompts="nested"))
    assert decisive(steady, quantity) == [] and len(steady.leave_one_out) == 5
    few = estimate(Sample(np.array([1.0, 1.1, 0.9, -1.0])[:, None], prompts="nested"))
    assert len(few.leave_one_out) == 4 and decisive(few, quantity) == []  # of so few any one decides
    again = Estimate.from_json(json.loads(json.dumps(asdict(result))))
    assert again == result


def test_what_one_head_decides_is_said():
    quantity = Quantity("x", 0.1)
    heads = np.array([[[0.0, 1.2], [0.0, 0.0]]])  # (seed, layer, head)
    values = np.full((1, 8), heads.mean()) + np.linspace(-0.05, 0.05, 8)
    result = estimate(Sample(values, heads=heads))
    assert result.low > 0.2
    assert [left.what for left in decisive(result, quantity)] == ["L0H1"]
    assert decided(result, quantity).startswith("decided by L0H1 (without it 0, ")
    several = estimate(Sample(np.full((6, 1), 0.3) + np.linspace(-0.05, 0.05, 6)[:, None], heads=np.repeat(heads, 6, 0)))
    raises = next(left for left in several.leave_one_out if "raises" in left.what)
    assert raises.value == pytest.approx(0.0, abs=1e-12) and decisive(several, quantity) == [raises]


def test_a_mean_over_heads_without_each_of_them():
    rng = np.random.default_rng(0)
    heads = rng.normal(size=(2, 3, 4))
    heads[0, 1, 2] = np.nan
    heads[1, 2, 1:] = np.nan  # a layer of one head
    weights = rng.random(heads.shape)
    for given in (None, weights):
        changes = head_changes(heads, given)
        for place in np.ndindex(heads.shape):
            fewer = heads.copy()
            fewer[place] = np.nan
            change = _mean(fewer, given)[place[0]] - _mean(heads, given)[place[0]]
            wanted = np.nan if np.isnan(heads[place]) else change
            assert changes[place] == pytest.approx(wanted, nan_ok=True), place


def _mean(heads, weights):
    if weights is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.nanmean(np.nanmean(heads, 2), 1)
    return [np.average(of[np.isfinite(of)], weights=by[np.isfinite(of)]) for of, by in zip(heads, weights)]
