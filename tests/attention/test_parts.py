"""Masks and pairings that cannot be are refused; maps go by their names."""

import pytest
import torch

import diffscope
from diffscope.attention.components import Mask, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.stats.maps import window
from tests import tiny


@pytest.mark.parametrize(
    "fields",
    [("window",), ("given",), ("causal", 2), ("full", 3), ("window", 2, torch.ones(1, 2, 2).bool()), ("sliding", 2)],
    ids=lambda fields: str(fields[:2]),
)
def test_a_mask_that_says_two_things_is_refused(fields):
    with pytest.raises(ValueError, match="no mask is"):
        Mask(*fields)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Pairing.plain(6, 4),
        lambda: Pairing.halves(6, 4),
        lambda: Pairing.stripes(3, 2, shared_keys=True),
        lambda: Pairing.grouped(4, 2, 4),
        lambda: Pairing.grouped(5, 2),
        lambda: Pairing.plain(4, 0),
    ],
)
def test_heads_that_cannot_be_shared_out_evenly_are_refused(make):
    with pytest.raises(ValueError, match="does not divide"):
        make()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("heads, seconds, groups", [(8, 4, 2), (6, 2, 2), (6, 2, 1), (4, 4, 2)])
def test_a_second_map_looks_at_the_keys_of_the_heads_it_serves(heads, seconds, groups, shared):
    pairing = Pairing.grouped(heads, seconds, groups, shared_keys=shared)
    assert sorted({*pairing.a1.tolist(), *pairing.a2.tolist()}) == list(range(heads + seconds))
    for first, second, value in zip(pairing.a1, pairing.a2, pairing.value_of_head):
        keys = pairing.key_of_map[first], pairing.key_of_map[second]
        assert keys == ((value, value) if shared else (2 * value, 2 * value + 1))


def test_an_unknown_map_is_not_the_subtracted_one():
    layer = diffscope.load(tiny.own("v1")).capture(tiny.ids(8)).layers[0]
    for name in ("noise", "a2", "uniform"):
        with pytest.raises(ValueError, match="there is no map"):
            window(layer, [name], [0], torch.arange(3), torch.arange(3))


def test_a_second_map_without_lambda_is_refused():
    q, k, v = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), torch.zeros(1, 1, 3, 4)
    with pytest.raises(ValueError, match="has a λ"):
        LayerAttention(0, "test", q, k, v, 0.5, Pairing.stripes(1), (3,))
