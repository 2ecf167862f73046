"""Products with maps that are never held, against the same maps held."""

import itertools
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffscope.attention import blocks
from diffscope.attention.layer import Mask
from diffscope.errors import DiffscopeError
from diffscope.stats.ranks import exact as rank
from diffscope.stats.ranks.implicit_map import ImplicitMaps

SEEN = torch.rand(40, 40, generator=torch.Generator().manual_seed(3)) < 0.6
MASKS = {
    "causal": Mask("causal"),
    "window": Mask("window", window=7),
    "full": Mask("full"),
    "given": Mask("given", visible=SEEN.fill_diagonal_(True)[None]),
}


def times(maps, x):
    """A·X of several maps."""
    return {name: image for name, (image, _) in maps.gram(x).items()}


def _held(layer, head):
    rows, visible = layer.rows(heads=[head]), layer.visible()
    a1, a2, d = rows.a1[0], rows.a2[0], rows.d[0]
    return {"A1": a1, "A2": a2, "lambda_A2": rows.lam[0, :, None] * a2, "D": d, "uniform": rank.uniform_map(visible)}


def _by_token(tokens=40):
    return torch.linspace(0.2, 0.9, 3 * tokens, dtype=torch.float64).view(1, 3, tokens)


@pytest.mark.parametrize("kind", MASKS)
def test_products_are_those_of_the_maps(make_layer, kind, monkeypatch):
    monkeypatch.setitem(blocks.BLOCK_BYTES, "cpu", 1)  # several blocks
    layer = make_layer(tokens=40, mask=MASKS[kind], lam=_by_token())
    maps, held = ImplicitMaps(layer, 1), _held(layer, 1)
    x = {name: torch.randn(40, 3, dtype=torch.float64) for name in held}
    gram, energy = maps.gram(x), maps.frobenius2([*held, "permuted D"])
    for name, a in held.items():
        torch.testing.assert_close(times(maps, x)[name], a @ x[name])
        torch.testing.assert_close(maps.transposed(x)[name], a.T @ x[name])
        torch.testing.assert_close(gram[name], (a @ x[name], a.T @ (a @ x[name])))
        assert energy[name] == pytest.approx(float(a.square().sum()))
    assert energy["permuted D"] == energy["D"]
    assert maps.frobenius2(name for name in energy) == energy


@pytest.mark.parametrize("kind", MASKS)
def test_a_permuted_row_has_the_weights_of_the_row_on_the_keys_it_sees(make_layer, kind):
    layer = make_layer(tokens=40, mask=MASKS[kind])
    maps, held = ImplicitMaps(layer, 2), _held(layer, 2)
    every = torch.eye(40, dtype=torch.float64)
    moved = times(maps, {f"permuted {name}": every for name in ("A1", "lambda_A2", "D")})
    for name in ("A1", "lambda_A2", "D"):
        permuted = moved[f"permuted {name}"]
        assert permuted[~layer.visible()].eq(0).all()
        torch.testing.assert_close(permuted.sort(-1).values, held[name].sort(-1).values)
    torch.testing.assert_close(moved["permuted D"], moved["permuted A1"] - moved["permuted lambda_A2"])
    assert not torch.equal(moved["permuted A1"], held["A1"])
    again = times(maps, {"permuted A1": every})["permuted A1"]
    assert torch.equal(again, moved["permuted A1"])
    other = times(ImplicitMaps(layer, 2, seed=9), {"permuted A1": every})["permuted A1"]
    assert not torch.equal(other, again)


@given(st.integers(0, 2**31), st.integers(5, 30))
def test_every_key_of_a_row_is_equally_likely_to_move_anywhere(make_layer, seed, tokens):
    """The permutation of the last row over many seeds would be far from uniform if shift and factor were tied together."""
    layer = make_layer(tokens=tokens, heads=1)
    landed = torch.zeros(tokens)
    for each in range(200):
        maps = ImplicitMaps(layer, 0, seed=seed + each)
        landed += maps._source(layer.visible()[-1:], slice(tokens - 1, tokens))[0] == 1
    assert landed.sum() == 200
    assert landed.max() < 200 / tokens + 6 * (200 / tokens) ** 0.5


def test_ranks_of_permuted_maps_are_those_of_uniformly_random_permutations(make_layer):
    layer = make_layer(tokens=256, heads=1, dtype=torch.float64)
    visible, a = layer.visible(), layer.rows(heads=[0]).a1[0]
    every, ours, theirs = torch.eye(256, dtype=torch.float64), [], []
    for seed in range(12):
        ours.append(times(ImplicitMaps(layer, 0, seed), {"permuted A1": every})["permuted A1"])
        theirs.append(rank.permute_visible(a, visible, torch.Generator().manual_seed(seed)))
    ours, theirs = (torch.stack([rank.ranks(rank.singular_values(x)) for x in maps]) for maps in (ours, theirs))
    spread = (ours.var(0) + theirs.var(0)).div(12).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 4 * spread + 0.002 * theirs.mean(0)).all()
    assert ((ours.mean(0) / theirs.mean(0) - 1).abs()[:3] < 0.015).all()


def test_a_cache_has_keys_before_the_first_query(make_layer):
    whole = make_layer(tokens=30)
    layer = type(whole)(**{**vars(whole), "q": whole.q[:, :, 18:], "lengths": (12,)})
    maps, x = ImplicitMaps(layer, 0), torch.randn(30, 2, dtype=torch.float64)
    assert maps.shape == (12, 30)
    torch.testing.assert_close(times(maps, {"D": x})["D"], times(ImplicitMaps(whole, 0), {"D": x})["D"][18:])
    assert maps.transposed({"permuted D": x[:12]})["permuted D"].shape == (30, 2)


def test_what_is_no_map_is_refused(make_layer):
    x = torch.zeros(24, 1, dtype=torch.float64)
    for wrong in ("A3", "permuted", "permuted permuted A1"):
        with pytest.raises(ValueError, match="there is no map"):
            times(ImplicitMaps(make_layer(), 0), {wrong: x})
    standard = ImplicitMaps(make_layer(differential=False), 0)
    for name, permuted in itertools.product(("A2", "lambda_A2"), ("", "permuted ")):
        with pytest.raises(ValueError, match="no second map"):
            standard.gram({permuted + name: x})


def test_tf32_is_seen_by_either_setting_of_torch():
    """In a process of its own, because the settings are the process's."""
    script = """
import torch
from diffscope.attention.precision import tf32_allowed
seen = [tf32_allowed()]
for precision in ("high", "highest"):
    torch.set_float32_matmul_precision(precision)
    seen.append(tf32_allowed())
for precision in ("tf32", "ieee"):
    torch.backends.cuda.matmul.fp32_precision = precision
    seen.append(tf32_allowed())
assert seen == [False, True, False, True, False], seen
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_tf32_is_refused_on_a_gpu(make_layer):
    layer = make_layer(dtype=torch.float32)
    layer = type(layer)(**{**vars(layer), "q": layer.q.cuda(), "k": layer.k.cuda()})
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(DiffscopeError, match="TF32"):
            ImplicitMaps(layer, 0)
    finally:
        torch.set_float32_matmul_precision(before)
