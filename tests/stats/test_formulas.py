"""Formulas on arrays of any origin: closed forms, both kinds of array, ranges, and what a capture measures."""

import doctest
import math

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import assume, given
from hypothesis import strategies as st

import diffscope
from diffscope.errors import DiffscopeError
from diffscope.stats import STATISTICS, formulas
from diffscope.stats.moments import TOP_K

ROW = {name: statistic for name, statistic in STATISTICS.items() if statistic.kind == "row"}
UNIFORM = {"entropy": math.log(8), "entropy_normalised": 1, "effective_tokens": 8, "participation": 8, "gini": 0, "hoyer": 0}
UNIFORM |= {"pseudo_norm": 8, "near_zero": 0, "negative_share": 0, "negative_count": 0, "row_sum": 1, "argmax": 0}
ONE_HOT = {"entropy": 0, "entropy_normalised": 0, "effective_tokens": 1, "participation": 1, "gini": 1 - 1 / 8, "hoyer": 1}
ONE_HOT |= {"pseudo_norm": 1, "near_zero": 7 / 8, "negative_share": 1, "negative_count": 1, "row_sum": -1, "argmax": 5}


@pytest.mark.parametrize("name", UNIFORM)
def test_closed_forms_of_a_uniform_row_and_of_one_negative_key(name):
    maps = np.stack([np.full((2, 8), 1 / 8), -np.eye(8)[[5, 5]]])  # (map, query, key)
    measured = getattr(formulas, name)(maps)
    assert isinstance(measured, np.ndarray) and measured.shape == (2, 2)
    np.testing.assert_allclose(measured, [[UNIFORM[name]] * 2, [ONE_HOT[name]] * 2], atol=1e-12)


@pytest.mark.parametrize("name", ROW)
def test_both_kinds_of_array_and_a_mask(name):
    """What a row does not see is left out whatever stands there; a tensor gives a tensor."""
    random = np.random.default_rng(0)
    a, causal = random.normal(size=(3, 12, 12)), np.tri(12, dtype=bool)
    function = getattr(formulas, name)
    masked = function(a, visible=causal)
    assert np.array_equal(function(np.where(causal, a, 0), causal), masked, equal_nan=True)
    np.testing.assert_array_equal(masked[:, -1], function(a)[:, -1])
    tensors = function(torch.from_numpy(a).float(), torch.from_numpy(causal))
    assert tensors.dtype == (torch.float64 if name == "argmax" else torch.float32)
    np.testing.assert_allclose(tensors, masked, rtol=1e-4, atol=1e-6)
    assert ROW[name].formula in function.__doc__ and function.__name__ == name


def test_lists_and_labelled_windows():
    maps = np.array([[0.25, 0.75], [0.5, 0.5]])
    labelled = xr.DataArray(maps, dims=("query", "key"))
    for of in (formulas.entropy, lambda a: formulas.span_mass(a, [0])):
        np.testing.assert_array_equal(of(maps.tolist()), of(maps))
        np.testing.assert_array_equal(of(labelled), of(maps))
    np.testing.assert_array_equal(formulas.cosine(labelled, labelled[::-1]), formulas.cosine(maps, maps[::-1]))
    with pytest.raises(DiffscopeError, match="a map is an array"):
        formulas.entropy("0.25 0.75")


def _bound(text, n):
    exact = {"0": 0, "1": 1, "2": 2, "n": n, "ln n": math.log(n), "ln 2": math.log(2), "1/n": 1 / n, "1 - 1/n": 1 - 1 / n}
    exact |= {"inf": math.inf, "-inf": -math.inf, "keys - 1": n - 1, "k/n": np.array(TOP_K) / n}
    return exact[text]


@given(arrays.arrays(np.float64, (2, 13), elements=st.one_of(st.just(0.0), st.floats(-1, 1).map(lambda x: round(x, 4)))))
def test_values_are_within_their_ranges(rows):
    assume((np.abs(rows).sum(-1) > 0).all())
    for name, words in ROW.items():
        values = getattr(formulas, name)(rows)
        least, most = (_bound(text, 13) for text in words.range)
        assert not np.isnan(values).any(), name
        assert (values >= least - 1e-9).all() and (values <= most + 1e-9).all(), name


def test_what_a_capture_measures():
    cap = diffscope.load("mini-diff").capture("one two three four five", spans={"answer": [2, 3]})
    a1, a2, d = (cap.map(name, layer=1, head=1).values for name in ("A1", "A2", "D"))
    causal = np.tri(len(d), dtype=bool)
    branch = ["cosine", "lambda_star", "residual_noise", "noise_gain", "overlap", "js"]
    measured = cap.measure(["row", "span_mass", *branch]).sel(layer=1, head=1)
    for name in ROW:
        result = getattr(formulas, name)(d, causal)
        np.testing.assert_allclose(result, measured[name].sel(map="D"), rtol=1e-4, atol=1e-5, err_msg=name)
    mass = formulas.span_mass(d, np.array([2, 3]), causal)
    np.testing.assert_allclose(mass, measured["span_mass"].sel(map="D", span="answer"), rtol=1e-4, atol=1e-5)
    rows = slice(3, None)  # those that see both keys
    on_span = {"a1": a1[rows, 2:4], "a2": a2[rows, 2:4], "d": d[rows, 2:4]}
    for name in branch:
        first = "d" if name in ("residual_noise", "noise_gain") else "a2"
        result = getattr(formulas, name)(on_span["a1"], on_span[first])
        expected = measured[name].sel(span="answer")[rows]
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_ranks_of_an_array():
    sigma = formulas.singular_values(np.diag([3.0, 1.0, 0.0]))
    np.testing.assert_allclose(sigma, [3, 1, 0], atol=1e-12)
    assert formulas.ranks(sigma)[3] == pytest.approx(10 / 9) and formulas.rank_residual(sigma)[0] == pytest.approx(0.1**0.5)
    np.testing.assert_allclose(formulas.uniform_map(np.tri(2, dtype=bool)), [[1, 0], [0.5, 0.5]])


def test_the_example():
    assert doctest.testmod(formulas).failed == 0


@pytest.mark.parametrize("keys", [[True, True, False], [1, 1], [2, -1], [1.7], [9]])
def test_what_is_no_position_of_a_key_is_refused(keys):
    with pytest.raises(DiffscopeError, match=r"numpy\.flatnonzero|outside"):
        formulas.span_mass(np.full((3, 3), 1 / 3), np.array(keys))


def test_arrays_by_name_reversed_ones_and_numbers():
    a = np.array([[0.7, 0.2, 0.1]])
    assert isinstance(formulas.rho(a1=a, a2=a), np.ndarray) and formulas.entropy(a[:, ::-1]) == pytest.approx(formulas.entropy(a))
    for lam in (0.8, np.float64(0.8), np.array(0.8)):
        assert np.shape(formulas.cmrr(lam)) == () and formulas.cmrr(lam) == pytest.approx(20 * math.log10(0.9 / 0.2))
    assert formulas.cmrr(0) == formulas.cmrr(np.array([0, 1]))[0] == pytest.approx(20 * math.log10(0.5))
    assert formulas.cosine(a.tolist(), [[0, 1, 1]]) == formulas.cosine(a, np.array([[0.0, 1.0, 1.0]]))
    sigma = np.array([3.0, 1.0])
    assert formulas.rank_residual(sigma.tolist(), ranks=(1,)) == formulas.rank_residual(sigma)[:1]


def test_half_precision_is_computed_in_float32():
    a1, a2 = np.random.default_rng(0).dirichlet(np.full(2000, 0.1), size=(2, 8)).astype(np.float16)
    for name in ("cosine", "kl", "js", "overlap", "lambda_star", "noise_gain"):
        of_half, of_float = (getattr(formulas, name)(a1.astype(kind), a2.astype(kind)) for kind in (np.float16, np.float32))
        assert of_half.dtype == np.float32 and np.array_equal(of_half, of_float), name
    halves = formulas.cosine(torch.from_numpy(a1), torch.from_numpy(a2))
    assert np.array_equal(halves, formulas.cosine(a1, a2))
