"""What is read off a histogram brackets what the row itself has."""

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffscope.stats.kernels import histogram
from tests.stats.kernels import interpreting

SETTINGS = settings(max_examples=10)
LEVELS, SIZES = (0.1, 0.5, 0.9, 0.99, 1.0), (1, 2, 5, 10)


@pytest.fixture(scope="session")
def read(interpreted):
    """What the histograms of rows (key,) of float32 magnitudes tell of each, made here bin by bin and value by value."""

    def of(*rows_and_limits):
        rows, limits = zip(*rows_and_limits)
        bins, lowest = histogram.empty(torch.tensor(limits))
        for row, of_row, first in zip(rows, bins, lowest.tolist()):
            for number in row.view(np.int32).tolist():
                place = (number >> histogram.SHIFT) - first
                if place >= 0:
                    of_row[place] += (1 << histogram.COUNT) + number % (1 << histogram.SHIFT)
        measured = interpreted(interpreting.read, bins, lowest, torch.tensor([len(row) for row in rows]), LEVELS, SIZES)
        return [{name: x[i].numpy() for name, x in measured.items()} for i in range(len(rows))]

    return of


def _gini(row):
    ascending, n = np.sort(row.astype(np.float64)), len(row)
    return (2 * np.arange(1, n + 1) - n - 1) @ ascending / (n * ascending.sum())


VALUE = st.one_of(
    st.floats(0, 1, width=32), st.floats(0.5, 0.53125, width=32), st.sampled_from([0.0, 2.0**-100, 2.0**-63, 1.0, 0.5])
)
ROW = arrays.arrays(np.float32, st.integers(1, 60), elements=VALUE)


@SETTINGS
@given(rows=st.lists(st.tuples(ROW, st.sampled_from([0, -20, 3])), min_size=6, max_size=6))
def test_brackets_hold_the_exact_values(read, rows):
    rows = [(np.ldexp(row, exponent), exponent) for row, exponent in rows]
    for (row, exponent), measured in zip(rows, read(*((row, 2.0**exponent) for row, exponent in rows))):
        _check(row, exponent, measured)


def _check(row, exponent, measured):
    ascending = np.sort(row.astype(np.float64))
    exact = {
        "quantiles": ascending[[max(int(np.ceil(q * len(row) - 1e-9)), 1) - 1 for q in LEVELS]],
        "top": np.array([ascending[-k:].sum() for k in SIZES]),
    }
    if ascending.sum() > 0:
        exact["gini"] = _gini(row)
        assert measured["gini"] - measured["gini_width"] / 2 > -1e-11 and measured["gini"] + measured["gini_width"] / 2 < 1
    for name, value in exact.items():
        assert (np.abs(value - measured[name]) <= measured[f"{name}_width"] / 2 * (1 + 1e-12) + 1e-15 * value).all(), name
    smallest = 2.0 ** (exponent - histogram.OCTAVES + 1)
    assert (measured["quantiles_width"] <= np.maximum(exact["quantiles"] / 2**histogram.BITS, smallest)).all()


def test_the_width_is_that_of_the_method(read):
    """2⁻ᵇ/4 of the largest bin's share at most, and next to nothing where values are far apart."""
    even = np.linspace(0.5, 1, 4000, endpoint=False, dtype=np.float32)
    apart = np.ldexp(np.float32(1), -np.arange(40)).astype(np.float32)
    of_even, of_apart = read((even, 1.0), (apart, 1.0))
    assert 1e-5 < of_even["gini_width"] <= 2.0**-histogram.BITS / 4 / 8
    assert of_apart["gini_width"] < 1e-11


def test_rows_at_their_limit_stay_in_the_bins(read):
    """Rounding may carry a weight above the largest possible; the bin above is there for that."""
    over = np.array([1 + 1e-6, 0.25], dtype=np.float32)
    assert read((over, 1.0))[0]["top"][1] == pytest.approx(over.sum(), rel=1e-12)
