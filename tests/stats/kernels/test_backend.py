"""The engine on Triton's kernels: what it says is what blocks of rows say, within the bounds that it states."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffscope.attention.components import Mask
from diffscope.stats import measure_layer
from diffscope.stats.backends import row_statistics
from diffscope.stats.collect import Request
from diffscope.stats.kernels import rows as kernels
from diffscope.stats.registry import select
from tests.stats.kernels import interpreting
from tests.stats.kernels.test_rows import _random

BRACKETED = ("gini", "quantiles", "top_k_mass")
ROUNDING = {"entropy": 1e-5, "effective_tokens": 1e-4}


@given(
    seed=st.integers(0, 99),
    mask=st.sampled_from([Mask("causal"), Mask("full"), Mask("window", 9)]),
    share=st.integers(0, 2),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    lam=st.sampled_from([None, 0.0, 1.0, 1.7]),
)
@settings(max_examples=5)
def test_statistics_from_kernels_are_those_of_blocks(interpreted, seed, mask, share, dtype, lam):
    lam = lam if lam is None else torch.tensor(lam)
    layer = _random(seed, dtype=dtype, mask=mask, share=share, lam=lam, tokens=40)
    queries = [0, 33, 3, 39, 38, 12]
    measured = interpreted(measure_layer, layer, ["row", "span_mass"], queries=queries, backend="triton")
    plain = measure_layer(layer, ["row", "span_mass"], queries=queries)
    assert set(measured) == set(plain) and "backend" not in measured["span_mass"].attrs
    assert measured["entropy"].attrs["backend"] == "triton"
    for name in plain:
        off = np.abs(measured[name] - plain[name])
        allowed = measured[name].attrs.get("error_bound", 0) + 2e-5 * np.abs(plain[name]).max() + 1e-6
        assert ("error_bound" in measured[name].attrs) == (name in BRACKETED)
        if name in ("argmax", "negative_count", "near_zero"):  # a weight on an edge may fall to either side of it
            assert (off > allowed).mean() < 0.05, name
            continue
        assert measured[name].isnull().equals(plain[name].isnull()), name
        assert not (off > allowed).any(), (name, float(off.max()), float(allowed))
    if layer.differential and lam is None:
        assert 0 < measured["gini"].attrs["error_bound"] < 0.02


@pytest.mark.parametrize(
    "moment, wrong",
    [
        ("total", interpreting.slightly_more),
        ("squares", interpreting.slightly_more),
        ("logs", interpreting.slightly_more),
        ("gini", interpreting.one_more),
        ("quantiles", interpreting.one_more),
        ("top", interpreting.one_more),
        ("peak", interpreting.one_more),
        ("small", interpreting.one_more),
        ("negatives", interpreting.one_more),
    ],
)
def test_kernels_that_differ_are_left_for_blocks_with_one_warning(interpreted, moment, wrong):
    layer = _random(0, tokens=16)
    (first, second), caught = interpreted(interpreting.measured_with_wrong_kernels, layer, moment, wrong)
    assert first.identical(second) and "backend" not in first["gini"].attrs
    np.testing.assert_allclose(first["entropy"], measure_layer(layer, "row")["entropy"], atol=1e-5)
    assert len(caught) == 1 and f"{moment} of A" in caught[0] and "blocks of rows" in caught[0]


def test_kernels_that_fail_are_left_for_blocks_with_one_warning(interpreted):
    found, caught = interpreted(interpreting.measured_with_wrong_kernels, _random(0, tokens=20), "total", None)
    assert all("backend" not in each["gini"].attrs for each in found)
    assert len(caught) == 1 and "they fail (PassManager::run failed)" in caught[0]


def test_a_bracket_without_an_end_is_no_bound_of_zero(monkeypatch):
    """Rows of zeros, whose brackets are undefined, take no part in the bound; an infinite bracket is the bound."""
    layer = _random(0, tokens=20)
    width = torch.tensor([0.25, math.nan, 0.5]).expand(layer.n_heads, 3).clone()

    def computed(layer, queries, wanted, **options):
        known = {name: torch.ones(layer.n_heads, 3, dtype=torch.float64) for name in wanted}
        return {name: known | {"gini_width": width} for name in ("A1", "A2", "D")}

    monkeypatch.setattr(kernels, "moments", computed)
    request = Request(layer, {}, torch.arange(3))
    assert row_statistics(request, select(["gini"]))[1]["gini"]["error_bound"] == 0.25
    width[0, 0] = math.inf
    assert row_statistics(request, select(["gini"]))[1]["gini"]["error_bound"] == math.inf


@pytest.mark.parametrize("name", ["k", "lam"])
def test_a_layer_that_is_not_finite_is_left_for_blocks(interpreted, name):
    """Before its layout was compared, which it does not spoil, and afterwards."""
    layer = _random(0, tokens=20, d=24 if name == "k" else 40)  # layouts that no other test compares
    broken = replace(layer, **{name: getattr(layer, name).clone()})
    getattr(broken, name)[0, 0, 9] = torch.nan
    said = [interpreted(measure_layer, each, "gini", backend="triton")["gini"].attrs for each in (broken, layer, broken)]
    assert ["backend" in attrs for attrs in said] == [False, True, False]


@pytest.mark.parametrize(
    "fields",
    [
        {"soft_cap": 2.0, "mask": Mask("window", 31)},
        {"sink_logit": torch.linspace(-1, 3, 4), "mask": Mask("full")},
        {"pairing": None},
        {"dtype": torch.float16, "lam": 1.0},
    ],
)
def test_right_kernels_pass_the_comparison_on_every_layout(interpreted, fields):
    fields = dict(fields)
    made = {name: fields.pop(name) for name in ("dtype", "lam") if name in fields}
    layer = _random(3, tokens=34, share=0 if "pairing" in fields else 1, **made)
    layer = replace(layer, **{name: value for name, value in fields.items() if value is not None})
    assert interpreted(measure_layer, layer, "gini", backend="triton")["gini"].attrs["backend"] == "triton"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_kernels_are_the_default(interpreted):
    layer = _random(0, tokens=3000, d=64, heads=4)
    measured, plain = interpreted(measure_layer, layer, "row"), measure_layer(layer, "row")
    assert measured["entropy"].attrs["backend"] == "triton"
    np.testing.assert_allclose(measured["entropy"], plain["entropy"], atol=1e-4)
    assert np.nanmax(np.abs(measured["gini"] - plain["gini"])) <= measured["gini"].attrs["error_bound"] + 1e-5
