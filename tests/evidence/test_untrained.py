"""Untrained models are compared as if they were trained: with scores as far apart, and with the same λ and gain."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import diffscope
from diffscope.attention.components import Mask
from diffscope.evidence.untrained import match_of, matched
from tests import tiny


@pytest.mark.parametrize("window", [None, 4])
def test_scores_are_as_far_apart_on_the_keys_that_the_last_query_sees(window):
    trained, other = (diffscope.load(tiny.own("v1", seed=seed)).capture(tiny.ids(12)).layers[0] for seed in (0, 1))
    if window is not None:
        trained, other = (replace(layer, mask=Mask("window", window)) for layer in (trained, other))
    spread = [
        layer.logits([11]).double()[:, 0, 12 - (window or 12) :].std(-1) for layer in (trained, matched(other, match_of(trained)))
    ]
    assert np.allclose(*spread, rtol=1e-5) and not np.allclose(spread[0], other.logits([11])[:, 0, -4:].std(-1), rtol=1e-2)


def test_what_the_first_map_is_multiplied_by_is_the_same():
    trained, other = (diffscope.load(tiny.own("v1", seed=seed)).capture(tiny.ids(12)).layers[0] for seed in (0, 1))
    gain = torch.linspace(0.3, 0.9, trained.n_heads * 12).reshape(1, trained.n_heads, 12)
    alike = matched(other, match_of(replace(trained, gain=gain)))
    assert torch.allclose(alike.gain.expand(1, other.n_heads, 12)[..., -1], gain[..., -1])
    assert torch.allclose(alike.rows([11]).d.sum(-1)[:, 0], gain[0, :, -1] - trained.lam.expand(1, other.n_heads, 12)[0, :, -1])
