"""The branches: against scipy, at the ends of the scale, and in float32 where digits are short."""

import math

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffscope.stats import branches as b
from diffscope.stats.heads import cmrr


@st.composite
def _pairs(draw):
    """Two rows of weights on 2 to 20 keys, zeros among them, each with some mass."""
    size = draw(st.integers(2, 20))
    weights = arrays.arrays(np.float64, size, elements=st.one_of(st.just(0.0), st.floats(1e-3, 1.0)))
    pair = draw(weights), draw(weights)
    for row in pair:
        row[draw(st.integers(0, size - 1))] = 0.5
    return tuple(torch.from_numpy(row / row.sum() * draw(st.floats(0.1, 1.0))) for row in pair)


@given(_pairs(), st.floats(-0.5, 2.0))
def test_branches_agree_with_other_libraries(pair, lam):
    a1, a2 = pair
    d, seen = a1 - lam * a2, torch.tensor(len(a1))
    x, y = a1.numpy(), a2.numpy()
    p, q = x / x.sum(), y / y.sum()
    cosine = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    best = np.linalg.lstsq(y[:, None], x, rcond=None)[0][0]
    expected = {
        b.cosine(a1, a2, seen): cosine,
        b.lambda_star(a1, a2): best,
        b.residual_noise(a1, d): np.linalg.norm(x - lam * y) / np.linalg.norm(x),
        b.residual_floor(a1, a2, seen): np.linalg.norm(x - best * y) / np.linalg.norm(x),
        b.rho(a1, a2): scipy.spatial.distance.braycurtis(x, y),
        b.overlap(a1, a2): 1 - scipy.spatial.distance.braycurtis(x, y),
        b.kl(a1, a2, seen): scipy.stats.entropy(p, q),
        b.kl(a2, a1, seen): scipy.stats.entropy(q, p),
        b.js(a1, a2, seen): (scipy.stats.entropy(p, (p + q) / 2) + scipy.stats.entropy(q, (p + q) / 2)) / 2,
        b.shape_overlap(a1, a2, seen): np.minimum(p, q).sum(),
        b.noise_gain(a1, d): np.abs(x - lam * y).sum() / x.sum(),
        b.signal_gain(a1, d): 1 - lam * y.sum() / x.sum(),
        b.selectivity(a1, d, torch.tensor(2.0)): np.abs(x - lam * y).sum() / 2 / x.sum(),
    }
    for measured, value in expected.items():
        assert float(measured) == pytest.approx(value, rel=1e-7, abs=1e-7)


@given(_pairs())
def test_bounds_hold_in_float32(pair):
    a1, a2 = (row.float() for row in pair)
    seen = torch.tensor(len(a1))
    for p, q in ((a1, a2), (a1, a1), (a1, a1 * (1 + 1e-6))):
        assert 0 <= float(b.js(p, q, seen)) <= math.log(2) + 1e-7
        assert float(b.kl(p, q, seen)) >= -1e-7
        assert -1e-7 <= float(b.cosine(p, q, seen)) <= 1 + 1e-6
        assert 0 <= float(b.rho(p, q)) <= 1 + 1e-6
        assert 0 <= float(b.overlap(p, q)) <= 1 + 1e-6
    assert float(b.js(a1, a2, seen)) == float(b.js(a2, a1, seen))


def test_disjoint_and_equal_branches():
    left, right, seen = torch.tensor([0.6, 0.2, 0.0]), torch.tensor([0.0, 0.0, 0.4]), torch.tensor(3)
    assert float(b.js(left, right, seen)) == pytest.approx(math.log(2))
    assert float(b.rho(left, right)) == 1 - float(b.overlap(left, right)) == 1
    assert float(b.shape_overlap(left, right, seen)) == float(b.cosine(left, right, seen)) == 0
    assert float(b.kl(left, right, seen)) == math.inf
    assert (float(b.js(left, left, seen)), float(b.rho(left, left)), float(b.overlap(left, left))) == (0, 0, 1)
    assert float(b.lambda_star(left, left)) == 1
    assert float(b.residual_floor(left, right, seen)) == 1


@pytest.mark.parametrize("scale", [1e-30, 1e-25, 1.0])
def test_direction_does_not_depend_on_how_little_mass_there_is(scale):
    a1, a2, seen = torch.tensor([3.0, 4.0]) * scale, torch.tensor([4.0, 3.0]), torch.tensor(2)
    assert float(b.cosine(a1, a2, seen)) == pytest.approx(24 / 25)
    assert float(b.lambda_star(a1, a2)) == pytest.approx(24 / 25 * scale)
    assert float(b.residual_noise(a1, 0.5 * a1)) == pytest.approx(0.5)
    assert float(b.js(a1, a2, seen)) == pytest.approx(float(b.js(a1.double() / scale, a2.double(), seen)), rel=1e-5)


def test_the_floor_keeps_its_digits_where_branches_agree():
    """At cosine = 1 - 5e-9 float32 has no digit left of 1 - cosine², but the floor is 1e-4."""
    a1, a2 = torch.tensor([1.0, 1e-4]), torch.tensor([1.0, 0.0])
    assert float(b.residual_floor(a1, a2, torch.tensor(2))) == pytest.approx(1e-4, rel=1e-3)


def test_one_key_has_no_direction_and_no_shape():
    a1, a2 = torch.tensor([0.3, 0.0]), torch.tensor([0.1, 0.0])
    for function in (b.cosine, b.residual_floor, b.kl, b.js, b.shape_overlap):
        assert math.isnan(float(function(a1, a2, torch.tensor(1))))
    assert float(b.rho(a1, a2)) == pytest.approx(0.5)
    assert float(b.lambda_star(a1, a2)) == pytest.approx(3.0)


@pytest.mark.parametrize("empty", [torch.zeros(3), torch.zeros(0)])
def test_a_set_without_mass_is_undefined(empty):
    full = torch.full_like(empty, 0.1)
    seen = torch.tensor(len(empty))
    for function in (b.cosine, b.residual_floor, b.kl, b.js, b.shape_overlap):
        assert math.isnan(float(function(empty, full, seen)))
        assert math.isnan(float(function(full, empty, seen)))
    values = [b.lambda_star(full, empty), b.residual_noise(empty, full), b.noise_gain(empty, full)]
    values += [b.signal_gain(empty, full), b.selectivity(empty, full, torch.tensor(1.0)), b.rho(empty, empty)]
    assert all(math.isnan(float(value)) for value in values)


@pytest.mark.parametrize("signed", [[0.9, 0.2, -0.1], [0.2, -0.5, 0.4]])
def test_two_branches_are_not_compared_where_one_has_a_negative_weight(signed):
    rows, signed = torch.tensor([[0.5, 0.3, 0.2], [0.0, 0.0, 1.0]]), torch.tensor([signed, [0.2, 0.3, 0.5]])
    seen = torch.tensor(3)
    for function in (b.cosine, b.residual_floor, b.kl, b.js, b.shape_overlap):
        for values in (function(rows, signed, seen), function(signed, rows, seen)):
            assert values.isnan().tolist() == [True, False], function.__name__
    for function in (b.lambda_star, b.rho, b.overlap):
        for values in (function(rows, signed), function(signed, rows)):
            assert values.isnan().tolist() == [True, False], function.__name__


def test_gain_is_part_of_what_went_in():
    a1, a2 = torch.tensor([0.3, 0.1]), torch.tensor([0.2, 0.2])
    d = 1.5 * a1 - 0.6 * a2
    for sign in (1, -1):  # the size of the gain counts
        measured = b.residual_noise(a1, sign * d, torch.tensor(sign * 1.5))
        assert float(measured) == pytest.approx(float(b.residual_noise(a1, a1 - 0.4 * a2)), rel=1e-6)


def test_common_mode_rejection_in_decibels():
    lam = torch.tensor([0.8, 1.0, 0.0, -1.0])
    torch.testing.assert_close(cmrr(lam), torch.tensor([13.06, math.inf, -6.02, -math.inf]), atol=0.005, rtol=0)
    assert float(cmrr(torch.tensor(1.6), 2.0)) == pytest.approx(13.06, abs=0.005)


def test_common_mode_rejection_of_a_negative_coefficient_is_of_the_sizes_of_both_gains():
    """As of any amplifier: at λ = −g nothing of the differential mode is left, beyond it comes through the other way round."""
    lam = torch.tensor([-0.5, -0.9, -1.0, -3.0])
    gains = [(0.25, 1.5), (0.05, 1.9), (0.0, 2.0), (1.0, 4.0)]  # of the differential and of the common mode, D = A1 − λ·A2
    expected = [20 * math.log10(differential / common) if differential else -math.inf for differential, common in gains]
    torch.testing.assert_close(cmrr(lam), torch.tensor(expected), rtol=1e-5, atol=0)
    d = lambda a1, a2, lam: a1 - lam * a2  # noqa: E731
    for (differential, common), each in zip(gains, lam.tolist()):
        assert abs(d(1, 1, each)) == pytest.approx(common) and abs(d(0.5, -0.5, each)) == pytest.approx(differential)
    assert math.isnan(float(cmrr(torch.tensor(0.0), 0.0)))
