"""Outliers: exact against a sort, however the numbers are cut into blocks."""

import math

import hypothesis.extra.numpy as arrays
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffscope.stats.outliers import LABELS, TOP, order_statistics, outliers, streamed_outliers


def _expected(values):
    size = np.sort(np.abs(values).astype(np.float64))[::-1]
    return [*(size[k - 1] if k <= len(size) else math.nan for k in TOP), np.median(size)]


@given(
    st.one_of(
        arrays.arrays(np.float32, st.integers(1, 300), elements=st.floats(-1e4, 1e4, width=32)),
        arrays.arrays(np.float64, st.integers(1, 300), elements=st.floats(-1e4, 1e4)),
        arrays.arrays(np.float32, st.integers(1, 300), elements=st.sampled_from([0.0, -0.0, 1.0, -1.0, 1.0000001])),
    ),
    st.integers(1, 120),
)
def test_outliers_are_exact_whatever_the_blocks(values, block):
    x = torch.from_numpy(values)
    expected = _expected(values)
    np.testing.assert_array_equal(outliers(x).numpy(), expected)
    np.testing.assert_array_equal(streamed_outliers(lambda: x.split(block)).numpy(), expected)


def test_many_values_share_their_leading_digits():
    """Normal numbers fill few of the 65,536 first bins; the second pass has to tell them apart."""
    x = torch.randn(40, 50, 101, generator=torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(outliers(x).numpy(), _expected(x.numpy().ravel()))
    ordered = x.flatten().abs().sort().values
    ranks = [0, 1, 12345, x.numel() - 1]
    assert order_statistics(lambda: x.flatten().split(7919), ranks) == ordered[ranks].tolist()


def test_nothing_has_no_outliers():
    assert outliers(torch.empty(0)).isnan().all() and len(LABELS) == len(TOP) + 1


def test_half_precision_is_exact():
    x = torch.randn(501, generator=torch.Generator().manual_seed(0)).bfloat16()
    np.testing.assert_array_equal(outliers(x).numpy(), _expected(x.float().numpy()))
