"""Effective ranks: known spectra, numpy's SVD, and the two controls."""

import math

import numpy as np
import pytest
import torch

from diffscope.stats.ranks import exact as rank


def _named(sigma):
    return dict(zip(rank.DEFINITIONS, rank.ranks(torch.as_tensor(sigma, dtype=torch.float64)).tolist(), strict=True))


def _softmax_map(tokens, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    visible = torch.ones(tokens, tokens).tril().bool()
    logits = 2 * torch.randn(tokens, tokens, generator=generator)
    return logits.masked_fill(~visible, -torch.inf).softmax(-1).to(dtype), visible


def test_known_spectra():
    assert _named([2.0] * 10) == pytest.approx(dict.fromkeys(rank.DEFINITIONS, 10.0) | {"r90": 9})
    assert _named([3.0, 0.0, 0.0]) == pytest.approx(dict.fromkeys(rank.DEFINITIONS, 1.0))
    two_levels = _named([3.0, 1.0, 1.0])  # shares 0.6, 0.2, 0.2; of the energy 9/11, 1/11, 1/11
    assert two_levels["erank"] == pytest.approx(math.exp(-0.6 * math.log(0.6) - 0.4 * math.log(0.2)))
    assert two_levels["erank_energy"] == pytest.approx(math.exp(-9 / 11 * math.log(9 / 11) - 2 / 11 * math.log(1 / 11)))
    assert two_levels["participation"] == pytest.approx(121 / 83)
    assert two_levels["stable_rank"] == pytest.approx(11 / 9)
    assert two_levels["r90"] == 2


def test_a_map_of_zeros_has_no_rank():
    assert all(math.isnan(value) for value in _named([0.0, 0.0]).values())
    assert rank.rank_residual(torch.zeros(3, dtype=torch.float64)).isnan().all()


@pytest.mark.parametrize("tokens, figure", [(256, 48), (512, 71), (1024, 103)])
def test_the_uniform_causal_map_has_an_erank_of_about_the_root_of_its_size(tokens, figure):
    uniform = rank.uniform_map(torch.ones(tokens, tokens).tril().bool())
    sigma = rank.singular_values(uniform.float())
    erank = _named(sigma)["erank"]
    assert erank == pytest.approx(figure, abs=0.51)
    by_numpy = np.linalg.svd(uniform.numpy(), compute_uv=False) if tokens <= 512 else sigma.numpy()
    p = by_numpy / by_numpy.sum()
    assert erank == pytest.approx(np.exp(-np.sum(p * np.log(p))), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [slice(None), slice(100, 120), slice(0, 120)])
def test_singular_values_are_those_of_numpy(dtype, rows):
    a = _softmax_map(120, dtype)[0][rows]
    expected = np.linalg.svd(a.double().numpy(), compute_uv=False)
    np.testing.assert_allclose(rank.singular_values(a).numpy(), expected, rtol=0, atol=1e-7)
    np.testing.assert_allclose(rank.singular_values(a.T).numpy(), expected, rtol=0, atol=1e-7)


def test_a_sink_has_rank_one_in_every_definition():
    """All weight on the first key: the Gram matrix must not fill the empty directions with noise."""
    sink = torch.zeros(300, 300)
    sink[:, 0] = 1
    assert _named(rank.singular_values(sink)) == pytest.approx(dict.fromkeys(rank.DEFINITIONS, 1.0), rel=1e-3)


def test_residual_is_that_of_the_truncated_svd():
    a = _softmax_map(40, torch.float64)[0]
    u, s, v = torch.linalg.svd(a)
    residual = rank.rank_residual(s)
    for r, value in zip(rank.RESIDUAL_RANKS, residual, strict=True):
        truncated = u[:, :r] * s[:r] @ v[:r]
        torch.testing.assert_close(value, torch.linalg.norm(a - truncated) / torch.linalg.norm(a), atol=1e-9, rtol=1e-9)


def test_permuting_moves_weights_among_visible_keys_only():
    a, visible = _softmax_map(50)
    visible &= ~torch.ones(50, 50).tril(-20).bool()  # a window: not only leading keys
    a = a * visible
    permuted = rank.permute_visible(a, visible, torch.Generator().manual_seed(1))
    assert permuted[~visible].eq(0).all()
    torch.testing.assert_close(permuted.sort(-1).values, a.sort(-1).values)
    assert (permuted != a).any(-1)[5:].all()
    assert torch.equal(permuted, rank.permute_visible(a, visible, torch.Generator().manual_seed(1)))
    assert not torch.equal(permuted, rank.permute_visible(a, visible, torch.Generator().manual_seed(2)))


def test_permutations_are_uniform():
    """A one-hot row lands on each of its visible keys equally often, and never stays by preference."""
    a = torch.zeros(4000, 5)
    a[:, 1] = 1
    visible = torch.tensor([True, True, False, True, True]).expand(4000, 5)
    landed = rank.permute_visible(a, visible, torch.Generator().manual_seed(0)).mean(0)
    torch.testing.assert_close(landed, torch.tensor([0.25, 0.25, 0, 0.25, 0.25]), atol=0.03, rtol=0)


def test_controls_stand_beside_the_map():
    a, visible = _softmax_map(64)
    of_map, of_uniform = rank.estimate(a), rank.estimate(rank.uniform_map(visible).to(a.dtype))
    values, errors = rank.beside_controls(of_map, of_uniform, rank.permuted_estimates(a, visible, 0))
    table = dict(zip(rank.CONTROLS, values.T, strict=True))
    torch.testing.assert_close(table["map"], rank.ranks(rank.singular_values(a)))
    uniform = rank.ranks(rank.singular_values(rank.uniform_map(visible)))
    torch.testing.assert_close(table["uniform"], uniform, rtol=1e-5, atol=0)
    torch.testing.assert_close(table["ratio_uniform"], table["map"] / table["uniform"])
    torch.testing.assert_close(table["ratio_permuted"], table["map"] / table["permuted"])
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([rank.ranks(rank.singular_values(rank.permute_visible(a, visible, generator))) for _ in range(3)])
    torch.testing.assert_close(table["permuted"], draws.mean(0))
    spread = ((draws - draws.mean(0)).square().sum(0) / 2 / 3).sqrt()  # standard error of the mean of three
    of = dict(zip(rank.CONTROLS, errors.T, strict=True))
    torch.testing.assert_close(of["permuted"], spread)
    torch.testing.assert_close(of["ratio_permuted"] / table["ratio_permuted"], spread / draws.mean(0))
    assert all(of[name].eq(0).all() for name in ("map", "uniform", "ratio_uniform")) and (spread > 0).sum() >= 4


def test_the_mean_of_many_permuted_maps_is_within_its_error():
    """Of 20 means of three draws, nearly all are within four standard errors of the mean of 120."""
    a, visible = _softmax_map(64)
    generator = torch.Generator().manual_seed(0)
    many = torch.stack([rank.ranks(rank.singular_values(rank.permute_visible(a, visible, generator))) for _ in range(120)])
    means, errors = [], []
    of_map, uniform = rank.estimate(a), rank.estimate(rank.uniform_map(visible).to(a.dtype))
    for seed in range(20):
        values, spread = rank.beside_controls(of_map, uniform, rank.permuted_estimates(a, visible, seed))
        means.append(values[:4, 2])
        errors.append(spread[:4, 2])
    off = (torch.stack(means) - many[:, :4].mean(0)).abs()
    assert (off <= 4 * torch.stack(errors)).double().mean() > 0.85
