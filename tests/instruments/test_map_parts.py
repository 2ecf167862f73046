"""Maps taken apart: planted ones give what they are made of, and real ones what least squares by hand gives."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import diffscope
from diffscope import DiffscopeError, PromptError, edits
from diffscope.attention import blocks
from diffscope.attention.components import Mask
from tests import tiny
from tests.instruments.planted import capture_of, layer_of
from tests.layouts import vision

N = 96
T = torch.arange(N)
BEHIND = (T[:, None] - T).double()
few = settings(max_examples=8)


def drawn(seed, size=1.5, n=N):
    return torch.randn(n, n, generator=torch.Generator().manual_seed(seed)).double() * size


def by_key(seed, size=1.5):
    return drawn(seed, size)[:1].expand(N, N)


def taken_apart(second, prompts=5, head=0, first=lambda seed: drawn(1000 + seed), **more):
    """The anatomy of A2 of the first of some prompts, whose scores are those of (seed of the prompt)."""
    layers = [layer_of(torch.stack([first(seed), second(seed)]), **more) for seed in range(prompts)]
    parts = diffscope.instruments.anatomy(capture_of(*layers)).sel(map="A2", head=head, prompt=0, layer=0)
    return {name: dict(zip(parts["part"].values, values.values)) for name, values in parts.data_vars.items()}


PLANTED = {
    "uniform": (lambda seed: torch.zeros(N, N), "uniform"),
    "a steep comb": (lambda seed: BEHIND * math.log(0.7), "distance"),
    "a slow comb": (lambda seed: -0.5 * BEHIND.clamp_min(0).log1p(), "distance"),
    "every fourth key": (lambda seed: 2.0 * (BEHIND % 4 == 0), "distance"),
    "the key before": (lambda seed: 8.0 * (BEHIND == 1), "distance"),
    "a sink": (lambda seed: 5.0 * (T == 0).double().expand(N, N), "key"),
    "keys that differ": (by_key, "key"),
    "a copy": (lambda seed: drawn(1000 + seed), "other"),
    "content of its own": (drawn, "rest"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_maps_are_what_they_are_made_of(planted):
    """All that is not uniform is in the one part, alone, added and whatever the order; but a comb resembles growing keys."""
    second, part = PLANTED[planted]
    measured = taken_apart(second)
    left = 1 - measured["added"]["uniform"]
    assert (left < 1e-6) == (part == "uniform")
    for name, parts in measured.items():
        if part != "uniform":
            assert parts[part] > (0.95 if planted == "keys that differ" else 0.97) * left, name
        others = {other: share for other, share in parts.items() if other not in ("uniform", part)}
        assert max(others.values()) < 0.015, (name, others)


def test_a_sink_of_constant_mass_is_mostly_of_its_key():
    mass = torch.where(T == 0, 0.5, 0.5 / T.clamp_min(1)[:, None].double())
    measured = taken_apart(lambda seed: mass.log())
    assert measured["shapley"]["key"] > 0.85 * (1 - measured["shapley"]["uniform"])
    assert measured["shapley"]["distance"] < 0.01


def test_scores_of_distance_and_of_keys_together_are_explained_together():
    """Scores add and maps do not: the row of both is needed."""
    measured = taken_apart(lambda seed: by_key(seed) - 0.05 * BEHIND)
    assert measured["added"]["rest"] < 0.02
    assert measured["alone"]["distance"] + measured["alone"]["key"] < 0.98 * (1 - measured["added"]["uniform"])
    assert min(measured["shapley"]["distance"], measured["shapley"]["key"]) > 0.05


@pytest.mark.parametrize(
    "mask, comb",
    [
        (Mask("window", window=9), lambda seed: -0.5 * BEHIND.abs().log1p()),
        (Mask("full"), lambda seed: torch.where(BEHIND < 0, 0.4, 0.1) * -BEHIND.abs()),
        (Mask("given", visible=(BEHIND >= 0)[None] & (BEHIND % 3 != 2)[None]), lambda seed: -0.2 * BEHIND),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_distances_are_those_that_a_mask_lets_through(mask, comb):
    """A window, both sides, and holes."""
    layers = [layer_of(torch.stack([drawn(1000 + seed), comb(seed)]), mask=mask) for seed in range(3)]
    captures = [replace(capture_of(layer), prompts=capture_of(*layers).prompts[i : i + 1]) for i, layer in enumerate(layers)]
    parts = diffscope.instruments.anatomy(captures[0], captures[1]).sel(map="A2", head=0, layer=0)["added"]
    assert float(parts.sel(part="distance")) > 0.99 * (1 - float(parts.sel(part="uniform"))) > 0.01


def test_rows_do_not_explain_themselves():
    """Each query with a key of its own liking: of 12 tokens, what a key got from the query itself would explain much."""
    layers = [
        layer_of(torch.stack([*(drawn(2 * head + 100 * seed, 4, 12) for head in range(40))]).repeat(2, 1, 1)) for seed in range(2)
    ]
    measured = diffscope.instruments.anatomy(capture_of(*layers))["alone"].sel(map="A2").isel(prompt=0, layer=0).mean("head")
    assert float(measured.sel(part="key")) < 0.08
    assert float(measured.sel(part="distance")) < 0.08


@few
@given(st.integers(0, 10**6), st.floats(0.01, 6), st.integers(2, 12))
def test_parts_sum_to_one_and_none_is_negative(seed, size, n):
    layers = [layer_of(torch.stack([drawn(seed + i, size, n) for i in (2 * number, 2 * number + 1)])) for number in range(2)]
    measured = diffscope.instruments.anatomy(capture_of(*layers))
    for name in ("added", "shapley"):
        assert np.allclose(measured[name].sum("part"), 1, atol=1e-9)
    assert all(float(values.min()) > -1e-9 and float(values.max()) < 1 + 1e-9 for values in measured.data_vars.values())
    assert np.allclose(measured["alone"].sel(part="distance"), measured["added"].sel(part="distance"))
    moved = [replace(layer, scale=1.0, q=layer.q + 3.0) for layer in layers]  # the same to every score of a row
    again = diffscope.instruments.anatomy(capture_of(*moved))
    assert np.allclose(measured["shapley"], again["shapley"], atol=1e-6)


@pytest.mark.parametrize("name", ["v1", "v2", "diffllama", "gpt-oss"])
def test_real_maps_agree_with_least_squares_by_hand(name):
    """The uniform part, and the other map alone; with sink logits rows sum to less than 1."""
    model = {"diffllama": lambda: tiny.diffllama(kv=4), "gpt-oss": tiny.gpt_oss}.get(name, lambda: tiny.own(name))()
    cap = diffscope.load(model.double()).capture([tiny.ids(20), tiny.ids(20, seed=3), tiny.ids(9, seed=4)])
    measured = diffscope.instruments.anatomy(cap)
    assert measured["shapley"].dims == ("prompt", "layer", "head", "map", "part")
    for prompt, layer, head in ((0, 0, 1), (1, 1, 2), (2, 1, 3)):
        of_head = measured.sel(prompt=prompt, layer=layer, head=head)
        a1 = cap[prompt].map("A1", layer, head).values
        seen = np.tril(np.ones_like(a1)) - np.tril(np.ones_like(a1), -(cap.layers[layer].mask.window or 99))
        squares, targets, others = [], [], []
        a2 = cap[prompt].map("A2", layer, head).values if cap.differential else np.zeros_like(a1)
        for row in range(1, len(a1)):
            here = seen[row] > 0
            y, x = a1[row, here], a2[row, here]
            squares.append(y.sum() ** 2 / len(y) / (y**2).sum())
            targets.append((y - y.mean()) / np.linalg.norm(y))
            others.append((x - x.mean()) / np.linalg.norm(y))
        assert float(of_head["alone"].sel(map="A1", part="uniform")) == pytest.approx(np.mean(squares), rel=1e-9)
        if cap.differential:
            y, x = np.concatenate(targets), np.concatenate(others)
            explained = (x @ y) ** 2 / (x @ x) / len(targets)
            assert float(of_head["alone"].sel(map="A1", part="other")) == pytest.approx(explained, rel=1e-3, abs=1e-6)
        else:
            assert of_head["alone"].sel(map="A2").isnull().all() and "no second map" in measured["alone"].attrs["why"]
            known = of_head["added"].sel(map="A1", part=["uniform", "distance", "key", "rest"])
            assert float(known.sum()) == pytest.approx(1) and of_head["added"].sel(map="A1", part="other").isnull()


def test_blocks_and_batches_do_not_matter(monkeypatch):
    cap = diffscope.load(tiny.own("v1").double()).capture([tiny.ids(20, seed=seed) for seed in range(3)])
    done = []
    whole = diffscope.instruments.anatomy(cap, progress=lambda *at: done.append(at))
    assert done == [(number, 6) for number in range(1, 7)]
    assert np.allclose(diffscope.instruments.anatomy(cap[1], cap)["shapley"], whole["shapley"].sel(prompt=1))
    monkeypatch.setitem(blocks.BLOCK_BYTES, "cpu", 1)
    monkeypatch.setattr(blocks, "MIN_ROWS", 1)
    assert np.allclose(diffscope.instruments.anatomy(cap)["shapley"], whole["shapley"], atol=1e-9)


def test_shorter_prompts_help_and_one_token_says_nothing():
    scope = diffscope.load(tiny.own("v1").double())
    cap = scope.capture([tiny.ids(20), tiny.ids(20, seed=1), tiny.ids(9, seed=2), [5]])
    measured = diffscope.instruments.anatomy(cap)["added"]
    assert measured.sel(prompt=3).isnull().all() and measured.sel(prompt=[0, 1, 2]).notnull().all()
    without = diffscope.instruments.anatomy(cap[0], scope.capture([tiny.ids(20, seed=1)]))["added"]
    assert not np.allclose(without, measured.sel(prompt=0))


def test_a_map_of_zeros_has_no_parts():
    scope = diffscope.load(tiny.own("v1"))
    with scope.edit(edits.zero_a2(layers=0, heads=1)):
        cap = scope.capture([tiny.ids(9), tiny.ids(9, seed=1)])
    parts = diffscope.instruments.anatomy(cap).sel(layer=0)
    for values in parts.data_vars.values():
        assert values.sel(head=1, map="A2").isnull().all() and values.sel(head=0).notnull().all()


def test_images_of_one_size_are_other_prompts(timm):
    cap = diffscope.load(vision.tiny()).capture(torch.stack([vision.image(0), vision.image(1)]))
    assert np.allclose(diffscope.instruments.anatomy(cap)["added"].sum("part"), 1)
    with pytest.raises(PromptError, match="give some"):
        diffscope.instruments.anatomy(cap[0], cap[0])


def test_what_has_nothing_to_be_fitted_to_is_refused():
    scope = diffscope.load(tiny.own("v1"))
    cap = scope.capture(tiny.ids(20))
    for others in (None, cap, scope.capture([tiny.ids(20), tiny.ids(20)])):
        with pytest.raises(PromptError, match="give some: others=scope.capture"):
            diffscope.instruments.anatomy(cap, others)
    with pytest.raises(PromptError, match="of 19 tokens at most and cannot serve one of 20"):
        diffscope.instruments.anatomy(cap, scope.capture(tiny.ids(19, seed=1)))
    with pytest.raises(DiffscopeError, match="capture them with the same model"):
        diffscope.instruments.anatomy(cap, diffscope.load(tiny.own("standard")).capture(tiny.ids(20, seed=1)))
