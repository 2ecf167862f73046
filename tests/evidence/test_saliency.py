"""Flow and gradients of maps: closed forms, and autograd as the judge."""

import pytest
import torch

from diffscope.evidence.saliency import alignment, descent_of_rho, flow_share, on_scores, rho_gradient


def test_a_flow_is_weight_times_gradient():
    d = torch.tensor([0.5, -0.25, 0.25, 0.0])
    gradient = torch.tensor([1.0, -2.0, 4.0, 100.0])
    assert flow_share(d, gradient, torch.tensor([False, True, False, True])) == pytest.approx(0.25)  # 0.5 of 2
    assert flow_share(d, 0 * gradient, torch.ones(4, dtype=torch.bool)).isnan()


def test_gradients_on_scores_and_of_rho_are_autograds():
    torch.manual_seed(0)
    scores = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)  # branch, head, key
    keys = torch.tensor([1, 0, 1, 1, 0, 1, 1], dtype=torch.bool)
    a1, a2 = scores.softmax(-1)
    rho = ((a1 - a2).abs() * keys).sum(-1) / ((a1 + a2) * keys).sum(-1)
    (wanted,) = torch.autograd.grad(rho.sum(), scores)
    measured = [on_scores(a, g) for a, g in zip((a1, a2), rho_gradient(a1, a2, keys))]
    torch.testing.assert_close(torch.stack(measured), wanted)


def test_descent_goes_along_rho_or_against_it():
    torch.manual_seed(0)
    along = torch.randn(3, 5), torch.randn(3, 5)
    same, against = (tuple(sign * x for x in along) for sign in (1, -1))
    assert descent_of_rho(against, along) == pytest.approx(torch.ones(3)) and descent_of_rho(same, along)[0] == pytest.approx(-1)
    assert alignment(torch.zeros(2), torch.ones(2)).isnan()
