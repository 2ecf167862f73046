"""Numbers in sentences."""

import math

import pytest

from diffscope.readings import words
from diffscope.readings.noise import decibels

PRINTED = [
    (words.percent, 0.764, "76 %"),
    (words.percent, 0.0, "0 %"),
    (words.percent, 0.0049, "under 1 %"),
    (words.percent, 0.998, "over 99 %"),
    (words.percent, 1.0, "100 %"),
    (words.percent, -0.12, "−12 %"),
    (words.decimal, 0.968, ".97"),
    (words.decimal, 1.0, "1.00"),
    (words.decimal, -0.314, "−.31"),
    (words.decimal, -0.001, ".00"),
    (words.figures, 0.394, "0.39"),
    (words.figures, 0.999, "1.0"),
    (words.figures, 21.26, "21"),
    (words.figures, 4767.0, "4800"),
    (words.figures, -1.26, "−1.3"),
    (words.figures, 0.0, "0"),
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
    assert words.change_in_nats(nats, error) == text


def test_changes_are_alike_where_they_print_so():
    assert words.alike(-18.2, -17.9) and words.alike(3e-6, -7e-5) and words.alike(0.0, 1e-6)
    assert not words.alike(-18.2, 18.2) and not words.alike(0.11, 0.12) and not words.alike(2e-4, 0.0)


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
    assert words.course(before, after) == text
    assert words.course(before, after, plural=True) == text.replace("s ", " ", 1)


@pytest.mark.parametrize("printed", [words.decimal, words.figures, decibels])
def test_what_has_no_end_has_a_sign(printed):
    assert printed(math.inf) == "infinite" and printed(-math.inf) == "minus infinity"


def test_long_lists_end_in_a_count():
    assert words.shortened(list("abcde")) == "a, b, c, d and e"
    assert words.shortened(list("abcdef")) == "a, b, c, d and 2 others"


def test_what_is_undefined_is_never_printed():
    for printed in (words.percent, words.decimal, words.figures):
        with pytest.raises(ValueError, match="undefined"):
            printed(math.nan)
