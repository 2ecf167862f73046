"""Redundancy: equal, disjoint and rotated heads, and sums over blocks."""

import math

import numpy as np
import pytest
import torch

from diffscope.stats.heads import head_cka, map_distance, map_gram


def _random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_equal_heads_are_at_distance_zero_and_disjoint_heads_at_one():
    a = torch.rand(1, 6, 5, generator=torch.Generator().manual_seed(0))
    equal = torch.cat([a, 3 * a])
    disjoint = torch.zeros(2, 6, 5)
    disjoint[0, :, :2], disjoint[1, :, 2:] = 1, 1
    assert abs(float(map_distance(map_gram(equal)))) < 1e-6
    assert float(map_distance(map_gram(disjoint))) == 1


def test_distance_is_the_mean_over_pairs_and_adds_over_blocks():
    x = _random(4, 9, 7)
    flat = x.flatten(1).numpy()
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    expected = np.mean([1 - unit[i] @ unit[j] for i in range(4) for j in range(i)])
    gram = sum(map_gram(block) for block in x.split(2, dim=1))
    np.testing.assert_allclose(float(map_distance(gram)), expected, rtol=1e-12)
    np.testing.assert_allclose(map_distance(torch.stack([gram, gram])).numpy(), [expected] * 2, rtol=1e-12)


def test_one_head_has_no_distance():
    assert math.isnan(float(map_distance(map_gram(_random(1, 3, 3)))))


def test_cka_is_that_of_the_centred_kernels():
    """Kornblith's other form, from (query, query) kernels; more queries than are centred at once."""
    y = _random(3, 1500, 2) + 5
    centring = np.eye(1500) - 1 / 1500
    kernels = [centring @ (head @ head.T).numpy() @ centring for head in y]
    expected = [[np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b) for b in kernels] for a in kernels]
    np.testing.assert_allclose(head_cka(y).numpy(), expected, rtol=1e-9)


def test_cka_ignores_rotation_scale_and_offset():
    y = _random(50, 4)
    rotation = torch.linalg.qr(_random(4, 4)).Q
    outputs = torch.stack([y, 7 * y @ rotation + 3])
    torch.testing.assert_close(head_cka(outputs), torch.ones(2, 2, dtype=torch.float64))


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 3.0] * 25)])
def test_a_head_whose_output_does_not_vary_has_no_alignment(weights):
    outputs = torch.randn(3, 50, 8, generator=torch.Generator().manual_seed(0))
    outputs[0] = outputs[0, 0]
    measured = head_cka(outputs, weights)
    assert measured[0].isnan().all() and not measured[1:, 1:].isnan().any()


def test_a_small_variation_about_a_large_mean_is_all_that_counts():
    generator = torch.Generator().manual_seed(0)
    varying = torch.randn(300, 8, generator=generator, dtype=torch.float64)
    outputs = torch.stack([1 + 1e-8 * varying, varying])
    assert float(head_cka(outputs)[0, 1]) == pytest.approx(1, abs=1e-6)
