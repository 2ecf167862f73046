"""Numbers are printed as they are read: in sentences by their size, in tables by what is uncertain in them."""

import math

import pytest

from diffscope import numbers
from diffscope.numbers import significant, with_interval, with_spread

PRINTED = [
    (numbers.percent, 0.764, "76 %"),
    (numbers.percent, 0.0, "0 %"),
    (numbers.percent, 0.0049, "under 1 %"),
    (numbers.percent, 0.005, "under 1 %"),
    (numbers.percent, 0.998, "over 99 %"),
    (numbers.percent, 1.0, "100 %"),
    (numbers.percent, -0.12, "−12 %"),
    (numbers.decimal, 0.968, ".97"),
    (numbers.decimal, 1.0, "1.00"),
    (numbers.decimal, -0.314, "−.31"),
    (numbers.decimal, -0.001, ".00"),
    (numbers.two_figures, 0.394, "0.39"),
    (numbers.two_figures, 0.999, "1.0"),
    (numbers.two_figures, 21.26, "21"),
    (numbers.two_figures, 4767.0, "4800"),
    (numbers.two_figures, -1.26, "−1.3"),
    (numbers.two_figures, 0.0, "0"),
    (numbers.duration, 7.4, "7 s"),
    (numbers.duration, 150.0, "2 min"),
    (numbers.duration, 9000.0, "2.5 h"),
    (numbers.short_duration, 0.351, "0.35 s"),
    (numbers.short_duration, 99.6, "100 s"),
]


@pytest.mark.parametrize("printed, value, text", PRINTED)
def test_numbers_are_printed_as_they_are_read(printed, value, text):
    assert printed(value) == text


@pytest.mark.parametrize(
    "nats, error, text",
    [
        (0.394, 0.12, "+0.39 ± 0.12 nats"),
        (-18.0, math.nan, "−18 nats"),
        (0.0, math.nan, "0 nats"),
        (-3e-6, 1e-6, "under 0.0001 nats"),
        (-3e-6, 0.2, "under 0.0001 ± 0.20 nats"),
        (-0.2, 1e-6, "−0.20 ± under 0.0001 nats"),
    ],
)
def test_changes_have_a_sign_and_rounding_has_none(nats, error, text):
    assert numbers.change_in_nats(nats, error) == text


def test_changes_are_alike_where_they_print_so():
    assert numbers.print_alike(-18.2, -17.9) and numbers.print_alike(3e-6, -7e-5) and numbers.print_alike(0.0, 1e-6)
    assert not numbers.print_alike(-18.2, 18.2) and not numbers.print_alike(0.11, 0.12) and not numbers.print_alike(2e-4, 0.0)


@pytest.mark.parametrize(
    "before, after, text",
    [
        (10.8, 1.6, "falls from 11 to 1.6"),
        (1.6, 10.8, "rises from 1.6 to 11"),
        (-1.0, -2.0, "falls from −1.0 to −2.0"),
        (1.601, 1.602, "stays at 1.6"),
        (2.0, -math.inf, "falls from 2.0 to minus infinity"),
    ],
)
def test_a_change_says_where_it_comes_from_and_where_it_goes(before, after, text):
    assert numbers.course(before, after) == text
    assert numbers.course(before, after, plural=True) == text.replace("s ", " ", 1)


@pytest.mark.parametrize("printed", [numbers.decimal, numbers.two_figures, numbers.decibels])
def test_what_has_no_end_has_a_sign(printed):
    assert printed(math.inf) == "infinite" and printed(-math.inf) == "minus infinity"


def test_long_lists_end_in_a_count():
    assert numbers.shortened(list("abcde")) == "a, b, c, d and e"
    assert numbers.shortened(list("abcdef")) == "a, b, c, d and 2 others"


def test_what_is_undefined_is_never_printed():
    for printed in (numbers.percent, numbers.decimal, numbers.two_figures, numbers.decibels, numbers.short_duration):
        with pytest.raises(ValueError, match="undefined"):
            printed(math.nan)


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
    assert significant(value) == shown


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


def test_numbers_that_follow_each_other_are_written_by_their_ends():
    assert numbers.runs([7, 0, 1, 2, 5]) == "0 to 2, 5 and 7"
    assert numbers.runs([3, 4, 8]) == "3, 4 and 8" and numbers.ranges([8, 3, 4, 4]) == "3–4, 8"
    assert numbers.numbered("layer", [2]) == "layer 2" and numbers.numbered("layer", range(4)) == "layers 0 to 3"
    assert numbers.runs([]) == numbers.ranges([]) == ""


def test_only_numbers_below_zero_have_a_minus():
    assert [numbers.decibels(value) for value in (-0.04, -0.06, 12.93)] == ["0.0", "−0.1", "12.9"]
