"""Sinks: the rate over heads, and the most attended key over queries."""

import math

import pytest
import torch

from diffscope.stats.spans import NORMALISATIONS, column_sums, denominators, most_attended, rate


def _sums(x, net, n, weights=None):
    below = denominators(x.abs().sum(-1), x.clamp_min(0).sum(-1), net)
    return column_sums(x, below, torch.tensor(n), weights)


def test_sink_rate_is_over_heads_of_the_mean_over_defined_queries():
    nan = math.nan
    mass = torch.tensor([[nan, 0.5, 0.2], [nan, 0.25, 0.25], [nan, 0.9, nan], [nan, nan, nan]])  # 0.35, 0.25, 0.9, none
    assert float(rate(mass)) == pytest.approx(2 / 3)
    assert math.isnan(float(rate(mass[3:])))


def test_column_sink_by_hand():
    """D of three queries; key 1 holds most in shares, key 0 in signed masses."""
    d = torch.tensor([[[0.5, 0.0, 0.0], [0.4, -0.6, 0.0], [0.4, -0.5, 0.1]]], dtype=torch.float64)
    net = torch.tensor([[0.5, -0.2, 0.0]], dtype=torch.float64)  # the last has no signed mass
    received = _sums(d, net, [1, 2, 3])
    measured = most_attended(received, torch.ones(3, dtype=torch.bool))
    mean, position = (dict(zip(NORMALISATIONS, values[0].tolist(), strict=True)) for values in measured)
    assert received[..., -1].tolist() == [[2, 2, 1, 2]]
    assert (position["share"], position["signed"], position["raw"]) == (1, 1, 0)
    assert mean["share"] == pytest.approx((0.6 + 0.5) / 2)
    assert mean["signed"] == pytest.approx(3.0)
    assert mean["positive"] == pytest.approx((1 + 0.8) / 2)


def test_the_last_key_does_not_win_by_its_own_diagonal():
    """Key 3 is seen by one query, which gives it 0.9; key 0 has 0.6 from all others."""
    a = torch.tensor([[[1.0, 0, 0, 0], [0.6, 0.4, 0, 0], [0.6, 0.2, 0.2, 0], [0.1, 0, 0, 0.9]]])
    mean, position = most_attended(_sums(a, torch.ones(1, 4), [1, 2, 3, 4]), torch.ones(4, dtype=torch.bool))
    assert position.eq(0).all()
    torch.testing.assert_close(mean, torch.full((1, 4), 1.3 / 3, dtype=torch.float64))


def test_column_sink_without_a_row_is_undefined():
    mean, position = most_attended(_sums(torch.ones(1, 1, 1), torch.ones(1, 1), [1]), torch.ones(1, dtype=torch.bool))
    assert mean.isnan().all() and position.isnan().all()


def test_a_query_that_stands_for_three_counts_thrice():
    x = torch.rand(2, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights, n = torch.tensor([1.0, 3, 1, 1]), [5, 5, 5, 5]
    repeated = [0, 1, 1, 1, 2, 3]
    expected = _sums(x[:, repeated], torch.ones(2, 6).double(), n + n[:2])
    torch.testing.assert_close(_sums(x, torch.ones(2, 4).double(), n, weights), expected)
    mass = torch.tensor([[0.1, 0.5, math.nan, 0.1], [0.5, 0.2, 0.2, math.nan]])  # 0.1 + 3·0.5 + 0.1 over 5; 1.3 over 5
    assert float(rate(mass, weights)) == 0.5 and float(rate(mass)) == 0.0
