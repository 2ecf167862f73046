"""Row moments by compiled functions are those of plain rows in float64, for every mask, pairing, dtype and shape."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffscope.attention import blocks as places
from diffscope.attention.components import Mask
from diffscope.attention.workers import Workers
from diffscope.errors import DiffscopeError
from diffscope.stats import backends, compiled_rows
from diffscope.stats.definitions import ROW
from diffscope.stats.engine import measure, measure_layers
from diffscope.stats.formulas import row_sums
from tests.kernels.test_rows import _random

pytest.importorskip("numba")
MOMENTS = {*compiled_rows.SUMS, "net", "gini", "small", "top", "quantiles"}
COUNTS = {"negatives", "small", "peak"}  # of which a float32 difference may move one


def _exact(layer):
    tensors = {name: getattr(layer, name).double() for name in ("q", "k", "lam", "gain")}
    return replace(layer, **tensors, sink_logit=None if layer.sink_logit is None else layer.sink_logit.double())


def _compare(layer, queries, workers=1):
    assert compiled_rows.reason_unsupported(layer) is None
    with Workers(workers) as pool:
        found = compiled_rows.moments(layer, queries, MOMENTS, pool, lambda share: None)
    rows = _exact(layer).rows(queries)
    exact = row_sums.of_maps(rows, MOMENTS)  # (map, head, query, ...)
    several = rows.n > 1
    for name in MOMENTS:
        values = exact[name].transpose(0, 1)[:, :, several]
        ours = found[name].double()[:, :, several]
        if name in COUNTS:
            signed = torch.stack([rows.a1] if rows.a2 is None else [rows.a1, rows.a2, rows.d], dim=1)[:, :, several]
            size = signed.abs()
            if name == "peak":  # as large as the largest, where two are alike
                at = size.gather(-1, ours.long()[..., None])
                torch.testing.assert_close(at, size.amax(-1, keepdim=True), rtol=1e-5, atol=1e-7)
            elif name == "negatives":  # but for what float32 takes for 0
                assert ((signed < -1e-7).sum(-1) <= ours).all() and (ours <= (signed < 1e-7).sum(-1)).all()
            else:
                assert ((ours - values).abs() <= 1).all(), name
        else:
            torch.testing.assert_close(ours, values, rtol=2e-5, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    tokens=st.integers(1, 200),
    lead=st.sampled_from([0, 0, 7]),
    heads=st.integers(1, 4),
    share=st.sampled_from([0, 1, 2]),
    mask=st.sampled_from([Mask("causal"), Mask("full"), Mask("window", 5), Mask("window", 64)]),
    cap=st.sampled_from([None, 3.0]),
    sinks=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    sharpness=st.sampled_from([0.0, 1.5, 8.0]),
    elements=st.sampled_from([64, 2**12, 2**21]),
)
def test_moments_are_those_of_plain_rows(seed, tokens, lead, heads, share, mask, cap, sinks, dtype, sharpness, elements):
    layer = _random(
        seed,
        dtype,
        heads=heads,
        share=share,
        tokens=tokens,
        lead=lead,
        sharpness=sharpness,
        mask=mask,
        gain=0.9 if share else 1.0,
    )
    sink = torch.randn(1, layer.q.shape[1], 1) if sinks else None
    layer = replace(layer, soft_cap=cap, sink_logit=sink)
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randperm(tokens, generator=generator)[: 1 + seed % tokens]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(places.ELEMENTS, "compiled", elements)
        patch.setattr(places, "LEAST_ROWS", 2)
        patch.setattr(compiled_rows, "TOO_LITTLE", 0)
        _compare(layer, queries, workers=1 + seed % 2)


def test_a_row_longer_than_a_part_keeps_its_digits():
    """Parts of 1,024 keys are added up in float64, and ranks go on from part to part."""
    layer = _random(0, heads=1, tokens=3000, sharpness=0.5)
    _compare(layer, torch.tensor([1023, 1024, 1025, 2999]))


def test_extreme_scores_are_zeros_and_no_nan():
    """e^-1000 is 0, not the least number that there is; nor does 0 · −∞ make a NaN of an entropy."""
    layer = _random(1, heads=1, tokens=40, sharpness=400.0)
    _compare(layer, torch.arange(40))


def test_a_nan_among_the_scores_is_told():
    layer = _random(2, heads=2, tokens=30)
    layer.q[0, 0, 11, 3] = torch.nan
    values = measure(layer, list(ROW), backend="compiled")
    for name in ("near_zero", "argmax"):
        assert np.isnan(values[name].sel(map=["A1", "D"]).values[0, :, 11]).all()
    assert np.isnan(values["entropy"].sel(map="A1").values[0, 11]) and np.isnan(values["gini"].sel(map="D").values[0, 11])
    assert np.isfinite(values["entropy"].sel(map="A1").values[0, 12]) and np.isfinite(values["entropy"].values[1, :, 1:]).all()


def test_long_rows_take_it_by_themselves_and_others_can_ask(monkeypatch):
    layer = _random(3, heads=2, tokens=64)
    assert backends.chosen(layer, None, 64) == "blocks"
    assert backends.chosen(layer, "compiled", 64) == "compiled"
    monkeypatch.setattr(backends, "WORTH_COMPILING", 2 * 64 * 64)
    assert backends.chosen(layer, None, 64) == "compiled" and backends.chosen(layer, "blocks", 64) == "blocks"
    measured = measure(layer, ["gini", "cosine"], spans={"every": torch.arange(64)})
    plain = measure(layer, ["gini", "cosine"], spans={"every": torch.arange(64)}, backend="blocks")
    assert measured["gini"].attrs["backend"] == "compiled" and "backend" not in measured["cosine"].attrs
    np.testing.assert_allclose(measured["gini"], plain["gini"], rtol=1e-5)
    np.testing.assert_array_equal(measured["cosine"], plain["cosine"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda layer: replace(layer, q=layer.q.double(), k=layer.k.double()), "in float64"),
        (lambda layer: replace(layer, score_dtype=torch.bfloat16), "rounded to half precision"),
        (lambda layer: replace(layer, mask=Mask("given", visible=torch.ones(1, 64, 64, dtype=torch.bool))), "no rule"),
    ],
)
def test_what_it_cannot_serve_it_refuses_or_leaves_to_blocks(change, reason):
    layer = change(_random(4, heads=1, tokens=64))
    assert backends.chosen(layer, None, 10**9) == "blocks"
    with pytest.raises(DiffscopeError, match=f"{reason}; take 'blocks'"):
        measure(layer, "gini", backend="compiled")


def test_a_numba_that_cannot_be_imported_is_left_alone(monkeypatch):
    """It refuses a numpy that is newer than it knows, with an ImportError."""

    def refuse(name):
        raise ImportError("Numba needs NumPy 2.3 or less. Got NumPy 2.9.\nmore")

    layer = _random(5, heads=1, tokens=64)
    monkeypatch.setattr(compiled_rows, "import_module", refuse)
    compiled_rows._without_numba.cache_clear()
    try:
        monkeypatch.setattr(backends, "WORTH_COMPILING", 0)
        assert "backend" not in measure(layer, "gini")["gini"].attrs
        with pytest.raises(DiffscopeError, match="cannot be imported .Numba needs NumPy 2.3 or less. Got NumPy 2.9.."):
            measure(layer, "gini", backend="compiled")
    finally:
        compiled_rows._without_numba.cache_clear()


def test_the_way_does_not_depend_on_the_company(monkeypatch):
    """Layers and prompts that are measured together are as one with many heads; the way is that of each by itself."""
    layers = [replace(_random(seed, heads=2, tokens=64), layer=seed) for seed in range(4)]
    monkeypatch.setattr(backends, "WORTH_COMPILING", 3 * 64 * 64)
    assert all("backend" not in each.attrs["gini"] for each in measure_layers(layers, ["gini"]))
    assert "backend" not in measure(layers[0], "gini", elements=2**12)["gini"].attrs
