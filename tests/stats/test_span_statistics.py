"""Masses on key sets: each normalisation by hand, and where a mass says nothing."""

import math

import pytest
import torch

from diffscope.stats.collect import Columns, take
from diffscope.stats.spans import NORMALISATIONS, denominators, mass

ROW = torch.tensor([0.5, -0.1, 0.3, -0.2, 0.0], dtype=torch.float64)  # four visible keys, sum 0.5, absolute sum 1.1


def _below(x, net):
    return denominators(x.abs().sum(-1), x.clamp_min(0).sum(-1), net)


def _mass(x, keys, net, n, seen):
    below = _below(x, torch.tensor(net, dtype=x.dtype))
    values = mass(x, [Columns(torch.tensor(keys), torch.tensor(seen))], below, torch.tensor(n))
    return dict(zip(NORMALISATIONS, values[0].tolist(), strict=True))


def test_each_normalisation_by_hand():
    assert _mass(ROW, [0, 3], 0.5, 4, 2) == pytest.approx({"raw": 0.3, "share": 0.7 / 1.1, "signed": 0.6, "positive": 0.5 / 0.8})


def test_signed_mass_needs_a_net_and_positive_mass_something_positive():
    near_one = _mass(ROW, [0, 3], 0.0009, 4, 2)
    assert math.isnan(near_one["signed"]) and not math.isnan(near_one["positive"])
    assert not math.isnan(_mass(ROW, [0, 3], -0.0011, 4, 2)["signed"])
    negative = _mass(-ROW.abs(), [0], -1.1, 4, 1)
    assert math.isnan(negative["positive"]) and negative["share"] == pytest.approx(0.5 / 1.1)


@pytest.mark.parametrize("keys, n, seen", [([4], 4, 0), ([0, 1, 2, 3], 4, 4), ([], 4, 0)])
def test_a_set_of_which_a_row_sees_nothing_or_nothing_else_has_no_mass(keys, n, seen):
    columns = Columns(torch.tensor(keys, dtype=torch.int64), torch.tensor(seen))
    values = mass(ROW, [columns], _below(ROW, torch.tensor(0.5)), torch.tensor(n))
    assert values.isnan().all()


def test_shares_of_a_partition_sum_to_one_by_head_and_query():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 6, generator=generator, dtype=torch.float64)  # (head, query, key)
    parts = [Columns(torch.tensor(keys), torch.full((3,), len(keys))) for keys in ([0], [1, 4], [2, 3, 5])]
    masses = mass(x, parts, _below(x, x.sum(-1)), torch.full((3,), 6))
    assert masses.shape == (2, 3, 3, 4)
    torch.testing.assert_close(masses.sum(-2)[..., 1:], torch.ones(2, 3, 3, dtype=torch.float64))


def test_consecutive_keys_are_a_view():
    x = torch.arange(12.0).reshape(2, 6)
    assert take(x, slice(2, 5)).data_ptr() == x[:, 2:].data_ptr()
    assert take(x, torch.tensor([0, 2])).tolist() == [[0, 2], [6, 8]]
    assert take(x, torch.tensor([3, 2])).tolist() == [[3, 2], [9, 8]]
