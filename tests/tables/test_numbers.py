"""Numbers are rounded to what is uncertain in them, and say so where they have no uncertainty."""

import math

import pytest

from diffscope.tables.numbers import plain, with_interval, with_spread


@pytest.mark.parametrize(
    "value, shown",
    [
        (0.12345, "0.123"),
        (-0.12345, "−0.123"),
        (123.45, "123"),
        (12345.6, "12346"),
        (0.000012345, "1.23·10⁻⁵"),
        (1.5e12, "1.50·10¹²"),
        (0.0, "0"),
        (7, "7"),
        (-7, "−7"),
        (math.nan, "–"),
        (math.inf, "–"),
        (None, "–"),
    ],
)
def test_a_number_alone_has_three_digits(value, shown):
    assert plain(value) == shown


@pytest.mark.parametrize(
    "value, low, high, shown",
    [
        (0.12345, 0.10123, 0.14567, "0.123 [0.101, 0.146]"),
        (1234.5, 1011.2, 1457.8, "1230 [1010, 1460]"),
        (-0.5, -0.50499, 0.00001, "−0.50 [−0.50, 0.00]"),  # no zero with a minus, and no digit beyond half the width
        (0.5, 0.40041, 0.59959, "0.50 [0.40, 0.60]"),  # 0.0996 to two digits is 0.10
        (27.0, 27.0, 27.0, "27.0 [27.0, 27.0]"),
        (0.5, math.nan, math.nan, "0.500 [–]"),
        (math.nan, 0.0, 1.0, "–"),
    ],
)
def test_an_interval_has_two_digits_of_half_its_width(value, low, high, shown):
    assert with_interval(value, low, high) == shown


@pytest.mark.parametrize(
    "value, spread, shown",
    [(1.5434, 0.8804, "1.54 ± 0.88"), (27.4, 12.3, "27 ± 12"), (0.5, math.nan, "0.500 ± –"), (0.0, 0.0, "0 ± 0")],
)
def test_a_spread_has_two_digits(value, spread, shown):
    assert with_spread(value, spread) == shown
