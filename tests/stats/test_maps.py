"""Maps in bins are those of whole maps cut into bins, whatever the mask, the block and the number of threads."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import diffscope
from diffscope import edits
from diffscope.attention import blocks
from diffscope.attention.blocks import Workers
from diffscope.attention.components import Mask, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.errors import DiffscopeError
from diffscope.stats import measure_layer
from diffscope.stats.maps import bins, window
from diffscope.views import tokens as token_strip
from tests import tiny

NAMES = ("A1", "A2", "lambda_A2", "D", "share")


def layer_of(n, keys, mask, per_token, seed, cap=None, sinks=False):
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if mask.kind == "given":
        seen = random(1, n, keys) > 0.5
        seen[..., 0] = True
        mask = replace(mask, visible=seen)
    return LayerAttention(
        layer=0,
        family="test",
        q=random(1, 6, n, 4),
        k=random(1, 6, keys, 4),
        v=random(1, 3, keys, 2),
        scale=1.0,
        pairing=Pairing.stripes(3),
        lengths=(n,),
        mask=mask,
        lam=random(1, 3, n if per_token else 1),
        soft_cap=cap,
        sink_logit=torch.linspace(-1, 2, 6, dtype=torch.float64) if sinks else None,
    )


MASKS = [Mask(), Mask("window", 5), Mask("full"), Mask("given", visible=torch.ones(1, 1, 1).bool())]


def whole(layer, name):
    """A map of all heads, (head, query, key)."""
    rows = layer.rows()
    maps = {"A1": rows.a1, "A2": rows.a2, "lambda_A2": rows.lam[..., None] * rows.a2, "D": rows.d}
    return (maps[name] if name != "share" else rows.d.abs() / rows.d.abs().sum(-1, keepdim=True)).numpy()


def in_bins(values, seen, width):
    """Bins of a map (head, query, key) one by one, and which have a visible cell."""
    heads, n, keys = values.shape
    result = np.zeros((heads, -(-n // width), -(-keys // width)))
    visible = np.zeros(result.shape[1:], dtype=bool)
    for i in range(result.shape[1]):
        for j in range(result.shape[2]):
            rows, columns = slice(i * width, (i + 1) * width), slice(j * width, (j + 1) * width)
            visible[i, j] = seen[rows, columns].any()
            for head in range(heads):
                cells = values[head, rows, columns]
                result[head, i, j] = cells.flat[np.abs(cells).argmax()]
    return result, visible


@contextmanager
def blocks_of(nbytes):
    """Cut rows into blocks of so many bytes, which are computed by threads however little there is to do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(blocks.BLOCK_BYTES, "cpu", nbytes)
        patch.setattr(blocks, "MIN_ROWS", 2)
        patch.setattr(blocks, "MIN_PARALLEL_VALUES", 0)
        with Workers(2) as workers:
            yield workers


@given(
    n=st.integers(1, 40),
    before=st.integers(0, 9),
    mask=st.sampled_from(MASKS),
    size=st.integers(1, 45),
    per_token=st.booleans(),
    capped=st.booleans(),
    nbytes=st.sampled_from([1, 20_000, 2**26]),
    seed=st.integers(0, 99),
)
def test_bins_are_those_of_whole_maps(n, before, mask, size, per_token, capped, nbytes, seed):
    layer = layer_of(n, n + before, mask, per_token, seed, cap=1.5 if capped else None, sinks=capped)
    width = -(-(n + before) // size)
    with blocks_of(nbytes) as workers:
        found = bins(layer, NAMES, [2, 0], size, workers=workers)
    assert found.width == width
    seen = layer.visible().numpy()
    for name in NAMES:
        expected, visible = in_bins(whole(layer, name)[[2, 0]], seen, width)
        np.testing.assert_allclose(np.abs(found.maps[name].numpy()), np.abs(expected), rtol=0, atol=1e-12)
        clear = np.abs(expected) > 1e-9
        assert (np.sign(found.maps[name].numpy()) == np.sign(expected))[clear].mean() > 0.99 if clear.any() else True
        assert np.array_equal(found.visible.numpy(), visible)


@settings(max_examples=30)
@given(
    mask=st.sampled_from(MASKS),
    n=st.integers(2, 80),
    per_token=st.booleans(),
    nbytes=st.sampled_from([1, 2**26]),
    seed=st.integers(0, 99),
)
def test_windows_are_pieces_of_whole_maps(mask, n, per_token, nbytes, seed):
    rng = np.random.default_rng(seed)
    layer = layer_of(n, n + seed % 3, mask, per_token, seed)
    queries, keys = (torch.from_numpy(rng.permutation(size)[: size // 2 + 1]) for size in (n, n + seed % 3))
    with blocks_of(nbytes) as workers:
        found = window(layer, NAMES, [1, 2], queries, keys, workers)
    for name in NAMES:
        expected = whole(layer, name)[[1, 2]][:, queries][:, :, keys]
        np.testing.assert_allclose(found[name].numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", ["v1", "v2", "standard"])
def test_marginals_are_those_of_measure(attention):
    capture = diffscope.load(tiny.own(attention)).capture(tiny.ids(70))
    names = ["A1", "D"] if attention == "standard" else ["A1", "A2", "lambda_A2", "D"]
    found = capture.pooled_maps(1, size=16, names=names, marginals=True)
    maps = capture.maps(1, names=names)
    for name in names:
        assert found[f"received_{name}"].values == pytest.approx(maps[name].sum("query").values, abs=1e-5)
    entropy = measure_layer(capture.layers[1], ["entropy"])["entropy"]
    for name in ("A1", "D") if attention == "standard" else ("A1", "A2", "D"):
        assert np.allclose(found[f"entropy_{name}"], entropy.sel(map=name), atol=1e-5, equal_nan=True)


@settings(max_examples=30)
@given(
    n=st.integers(2, 40),
    mask=st.sampled_from(MASKS),
    size=st.integers(1, 45),
    per_token=st.booleans(),
    sinks=st.booleans(),
    nbytes=st.sampled_from([20_000, 2**26]),
    seed=st.integers(0, 99),
)
def test_shares_are_of_the_rows_own_sums(n, mask, size, per_token, sinks, nbytes, seed):
    layer = layer_of(n, n, mask, per_token, seed, sinks=sinks)
    with blocks_of(nbytes) as workers:
        found = bins(layer, NAMES, None, size, shares=True, workers=workers)
    for name in NAMES:
        values = whole(layer, name)
        mass = np.abs(values).sum(-1)
        np.testing.assert_allclose(found.mass[name].numpy(), mass, rtol=1e-9)
        expected, _ = in_bins(values / mass[..., None], layer.visible().numpy(), found.width)
        shares = found.shares[name].numpy()
        np.testing.assert_allclose(np.abs(shares), np.abs(expected), rtol=0, atol=1e-9)
        if found.width == 1:
            np.testing.assert_allclose(shares, expected, rtol=0, atol=1e-9)


def test_the_strongest_keys_are_those_of_the_rows():
    capture = diffscope.load(tiny.own("v1")).capture(tiny.ids(200))
    links = capture.strongest("D", 1, [2, 0], queries=[199, 3, 150], count=5)
    values = capture.maps(1, [2, 0], queries=[199, 3, 150], names=["D"])["D"].values
    order = np.argsort(-np.abs(values), axis=-1)[..., :5]
    for head in range(2):
        for row, seen in enumerate((200, 4, 151)):
            count = min(5, seen)
            assert links["key"].values[head, row, :count].tolist() == order[head, row, :count].tolist()
            assert (links["key"].values[head, row, count:] == -1).all()
    taken = np.take_along_axis(values, order, -1)
    assert links["weight"].values == pytest.approx(np.where(links["key"] >= 0, taken, 0), abs=1e-7)
    assert links["mass"].values == pytest.approx(np.abs(values).sum(-1), rel=1e-5)
    with pytest.raises(DiffscopeError, match="count is a whole number of keys from 1, and not 0"):
        capture.strongest("D", 1, count=0)


def test_changed_maps_may_be_signed():
    scope = diffscope.load(tiny.own("v1"))
    with scope.edit(edits.normalise_d()):
        layer = scope.capture(tiny.ids(30)).layers[0]
    found = bins(layer, ("A1", "D"), None, 7)
    rows = layer.rows()
    for name, values in (("A1", rows.a1), ("D", rows.d)):
        expected, _ = in_bins(values.double().numpy(), layer.visible().numpy(), found.width)
        assert found.maps[name].numpy() == pytest.approx(expected, abs=1e-6)


def test_a_row_of_zeros_has_shares_of_0_whoever_is_asked():
    scope = diffscope.load(tiny.own("v1"))
    with scope.edit(edits.set_lambda(5.0), edits.d_plus()):
        capture = scope.capture(tiny.ids(14))
    empty = (capture.map("D", 0, 0) == 0).all("key")
    share, links = capture.map("share", 0, 0), capture.strongest("share", 0, [0])
    assert empty.any() and not empty.all()
    np.testing.assert_allclose(share.sum("key"), ~empty, atol=1e-6)
    np.testing.assert_array_equal(share, capture.pooled_map("share", 0, 0))
    np.testing.assert_allclose(links["mass"].isel(head=0), ~empty, atol=1e-6)
    row = int(empty.values.argmax())
    assert token_strip.data(capture, 0, 0, row)["shares"] == [None] * 14  # no share to colour


def test_padding_has_no_share():
    layer = layer_of(12, 12, MASKS[3], False, 0)
    seen = torch.ones(12, 12, dtype=torch.bool).tril()
    seen[:2] = False
    layer = replace(layer, mask=replace(layer.mask, visible=seen[None]))
    found = bins(layer, ("share",), None, 4, marginals=True)
    assert not found.maps["share"].isnan().any() and not found.visible[0, 1:].any()
    assert found.received["share"].sum(1).tolist() == pytest.approx([10.0] * 3)


def test_thumbnails_are_pooled_maps_of_every_head():
    capture = diffscope.load(tiny.own("v1")).capture([tiny.ids(20), tiny.ids(50, seed=2)])
    small = capture[1].thumbnails(size=6)
    assert small.dims == ("layer", "head", "query", "key") and small.shape == (2, 4, 6, 6)
    one = capture[1].pooled_map("D", 1, 3, size=6)
    assert np.array_equal(small.sel(layer=1, head=3), one) and small.attrs["bin"] == one.attrs["bin"] == 9


def test_a_pooled_map_without_bins_is_refused():
    capture = diffscope.load(tiny.own("v1")).capture(tiny.ids(10))
    with pytest.raises(DiffscopeError, match="size is a whole number of bins from 1, and not 0"):
        capture.pooled_maps(0, size=0)


@pytest.mark.gpu
@pytest.mark.parametrize("attention", ["v1", "v2", "standard"])
def test_a_gpu_gives_the_same_pictures(attention):
    model = tiny.own(attention)
    on_cpu = diffscope.load(model).capture(tiny.ids(90))
    on_gpu = diffscope.load(model.to("cuda")).capture(tiny.ids(90))
    expected, found = (capture.pooled_maps(1, size=16, marginals=True) for capture in (on_cpu, on_gpu))
    for name, values in expected.items():
        assert np.allclose(np.abs(found[name]), np.abs(values), atol=1e-4, equal_nan=True), name
    expected, found = (capture.maps(1, queries=slice(30, 60)) for capture in (on_cpu, on_gpu))
    assert all(np.allclose(found[name], values, atol=1e-5) for name, values in expected.items())
