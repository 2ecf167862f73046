"""Noise as an edit: its draws, whose they are, and where opposite signs cannot be."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import diffscope
from diffscope import DiffscopeError, edits
from tests import tiny

IDS = tiny.ids(20)


@pytest.fixture(scope="module")
def scope():
    return diffscope.load(tiny.own("v1").double())


def shifts(scope, *made, layer=0, map="A1"):
    """By how much an edit moves the scores of the last row, from a head's map, one key's shift being 0."""
    plain = np.log(scope.capture(IDS).map(map, layer, 1)[-1].values)
    with scope.edit(*made):
        edited = np.log(scope.capture(IDS).map(map, layer, 1)[-1].values)
    return edited - plain - (edited - plain)[0]


def test_the_draw_of_a_key_is_the_same_whatever_else_gets_noise(scope):
    """Another σ, mode or set of keys; but not another seed or layer."""
    some = shifts(scope, edits.inject_noise(1.0, keys=[3, 8], seed=1))
    assert np.flatnonzero(np.abs(some) > 1e-9).tolist() == [3, 8]
    more = shifts(scope, edits.inject_noise(2.0, "differential", keys=[3, 5, 8, 60], seed=1))
    assert np.allclose(more[[3, 8]], 2 * some[[3, 8]])
    second = shifts(scope, edits.inject_noise(1.0, "differential", keys=[3, 8], seed=1), map="A2")
    assert np.allclose(second, -some)
    assert not np.isclose(shifts(scope, edits.inject_noise(1.0, keys=[3, 8], seed=2))[3], some[3])
    first_alone = edits.inject_noise(1.0, keys=[3, 8], seed=1, layers=1)
    assert np.allclose(shifts(scope, first_alone), 0) and not np.isclose(shifts(scope, first_alone, layer=1)[3], some[3])


def test_copies_of_a_prompt_get_a_draw_each(scope):
    seeds = [4, 9]
    with scope.edit(edits.inject_noise(1.0, seed=seeds)):
        together = scope.capture([IDS, IDS])
        with pytest.raises(DiffscopeError, match="2 seeds are for as many prompts, and 3 run together"):
            scope.capture([IDS, IDS, IDS])
    for index, seed in enumerate(seeds):
        with scope.edit(edits.inject_noise(1.0, seed=seed)):
            assert np.allclose(together[index].map("D", 1, 2), scope.capture(IDS).map("D", 1, 2), atol=1e-12)


def test_a_map_cannot_get_noise_of_both_signs(scope):
    """One that is the A1 of a head and the A2 of the next; but an A2 that serves several heads gets one noise."""
    layer = scope.capture(IDS).layers[0]
    a1 = layer.pairing.a1
    crossed = replace(layer, pairing=replace(layer.pairing, a2=torch.roll(a1, 1)))
    shared = replace(layer, pairing=replace(layer.pairing, a2=layer.pairing.a2[:1].expand(4)))
    opposite = edits.inject_noise(1.0, "differential")
    with pytest.raises(DiffscopeError, match=r"in layer 0 map 0 is the A1 of a head and the A2 of a head"):
        opposite(crossed)
    edits.inject_noise(1.0, "common")(crossed)
    edits.inject_noise(1.0, "differential", heads=[0, 2])(crossed)
    a2 = opposite(shared).rows([19]).a2
    assert torch.equal(a2[0], a2[3]) and not torch.equal(a2, shared.rows([19]).a2)


@pytest.mark.parametrize(
    "asked, words",
    [
        (dict(sigma=-1.0), "standard deviation from 0"),
        (dict(sigma=float("nan")), "standard deviation from 0"),
        (dict(sigma=1.0, mode="both"), "mode='both'.*choose 'common' or 'differential'"),
        (dict(sigma=1.0, keys=[-1]), "positions from 0"),
        (dict(sigma=1.0, seed=-1), "whole numbers from 0 as seeds"),
        (dict(sigma=1.0, seed=1.5), "whole numbers from 0 as seeds"),
        (dict(sigma="much"), "standard deviation from 0"),
        (dict(sigma=1.0, keys="answer"), "token positions"),
    ],
)
def test_what_is_no_noise_is_one_clear_line(asked, words):
    with pytest.raises(DiffscopeError, match=words) as raised:
        edits.inject_noise(**asked)
    assert "\n" not in str(raised.value)
