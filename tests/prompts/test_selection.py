"""Queries, keys and heads as users choose them: names of spans, "last", slices, positions and numbers."""

import numpy as np
import pytest
import torch

from diffscope import DiffscopeError
from diffscope.prompts.selection import checked_query, indices_among, token_positions

SPANS = {"answer": [3, 4], "sink": [0]}


@pytest.mark.parametrize(
    "choice, positions",
    [
        (None, [0, 1, 2, 3, 4, 5]),
        ("last", [5]),
        ("answer", [3, 4]),
        (slice(None, None, -2), [5, 3, 1]),
        (slice(-2, 100), [4, 5]),
        (slice(4, 4), []),
        (-1, [5]),
        ([5, 0, -2], [5, 0, 4]),
        ([], []),
    ],
)
def test_choices_are_positions(choice, positions):
    found = token_positions(choice, SPANS, 6)
    assert found.dtype == torch.int64 and found.tolist() == positions
    assert token_positions("last", {"last": [1]}, 6).tolist() == [1]  # a span of that name comes first


@pytest.mark.parametrize(
    "choice, words",
    [
        ("anser", "there is no span 'anser' to take keys from"),
        (slice(0, 4, 0), "is no slice of tokens: slice step cannot be zero"),
        (slice(0.5, None), "is no slice of tokens"),
        ([0.5], "whole numbers in one row"),
        ([1j], "whole numbers in one row"),
        ([True, False], "whole numbers in one row"),
        ([[0], [1]], "whole numbers in one row"),
        ([0, 6], "outside the prompt's tokens 0 to 5"),
        (-7, "outside the prompt's tokens 0 to 5"),
    ],
)
def test_other_choices_are_one_line(choice, words):
    with pytest.raises(DiffscopeError, match=words) as raised:
        token_positions(choice, SPANS, 6, "keys")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("query", [np.array([1, 2]), "middle", 1.5, True])
def test_other_queries_are_one_line(query):
    with pytest.raises(DiffscopeError, match="there is no query .*; give a position, 'last', or 'mean'"):
        checked_query(query, "mean")


@pytest.mark.parametrize(
    "choice, heads", [(None, (0, 1, 4)), (4, (4,)), ([4, 0, 4], (4, 0, 4)), ([], ()), (torch.tensor(1), (1,))]
)
def test_heads_are_one_number_or_several(choice, heads):
    assert indices_among("head", choice, [0, 1, 4]) == heads


@pytest.mark.parametrize(
    "choice, words",
    [
        (2, "no effect: there is no head 2"),
        (-1, "there is no head -1"),
        ("0", "whole numbers, such as 3 or .*, and not '0'"),
        (0.5, "and not 0.5"),
        ([0, 0.5], "and not "),
    ],
)
def test_other_heads_are_one_line(choice, words):
    with pytest.raises(DiffscopeError, match=words):
        indices_among("head", choice, [0, 1, 4], "no effect")
