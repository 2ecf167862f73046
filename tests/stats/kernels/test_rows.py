"""The kernels' sums are those of plain float64 rows, for every mask, pairing, dtype and shape."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffscope.attention.components import Mask, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.stats.kernels import rows
from diffscope.stats.moments import NEAR_ZERO, QUANTILES, TOP_K

ALL = set(rows.MOMENTS)


def _layer(q, k, *, a2=None, key_of_map=None, mask=None, lam=0.8, gain=1.0, scale=None, lead=0):
    """A layer of queries (map, query, d) and keys (key map, lead + query, d); head h's first map is map h."""
    maps, tokens, d = q.shape
    heads = maps if a2 is None else maps - int(a2.max()) - 1 + int(a2.min())
    lam, gain = (torch.as_tensor(x, dtype=torch.float32).expand(1, heads, tokens) for x in (lam, gain))
    return LayerAttention(
        layer=0,
        family="test",
        q=q[None],
        k=k[None],
        v=torch.zeros(1, heads, lead + tokens, 2, dtype=q.dtype),
        scale=scale or d**-0.5,
        mask=mask or Mask("causal"),
        pairing=Pairing(
            a1=torch.arange(heads),
            a2=a2,
            key_of_map=torch.arange(maps) if key_of_map is None else key_of_map,
            value_of_head=torch.arange(heads),
        ),
        lam=lam,
        gain=gain,
        lam_fp32=lam,
        lam_init=None,
        norm=None,
        post_scale=1.0,
        lengths=(tokens,),
    )


def _random(seed, dtype=torch.float32, heads=2, share=1, groups=1, tokens=70, lead=0, d=16, sharpness=1.5, lam=None, **fields):
    """Random attention: `share` heads to an A2 (0: no A2), `groups` maps to a key map, λ per token unless given."""
    generator = torch.Generator().manual_seed(seed)
    a2 = heads + torch.arange(heads) // share if share else None
    maps = heads if a2 is None else int(a2.max()) + 1
    key_of_map = torch.arange(maps) // groups
    q = torch.randn(maps, tokens, d, generator=generator) * sharpness
    k = torch.randn(int(key_of_map.max()) + 1, lead + tokens, d, generator=generator)
    lam = torch.rand(1, heads, tokens, generator=generator) * 1.5 if lam is None else lam
    return _layer(q.to(dtype), k.to(dtype), a2=a2, key_of_map=key_of_map, lam=lam, lead=lead, **fields)


def _check(layer, queries, found, loose=1.0):
    """Compare with float64 rows; `loose` scales tolerances, which are those of scores of about ten in float32."""
    exact = {name: getattr(layer, name).double() for name in ("q", "k", "lam", "gain")}
    held = replace(layer, **exact).rows(queries)
    seen = layer.visible(queries)
    assert found.keys() == ({"A1", "D"} if held.a2 is None else {"A1", "A2", "D"})
    for name, x in (("A1", held.a1), ("A2", held.a2), ("D", held.d)):
        if x is not None:
            _check_map(name, x, seen, found[name], loose)


def _close(what, found, exact, rtol, atol):
    torch.testing.assert_close(found.double(), exact, rtol=rtol, atol=atol, msg=lambda text: f"{what}: {text}")


def _check_map(name, x, seen, found, loose):
    size, n = x.abs(), seen.sum(-1)
    total, rtol, atol = size.sum(-1), 1e-5 * loose, 1e-6 * loose
    sums = {
        "total": total,
        "net": x.sum(-1),
        "squares": size.square().sum(-1),
        "logs": torch.xlogy(size, size).sum(-1),
        "negative": (-x).clamp_min(0).sum(-1),
    }
    for moment, value in sums.items():
        _close(f"{name} {moment}", found[moment], value, rtol, atol)
    _close(f"{name} roots", found["roots"], size.sqrt().sum(-1), 1e-4 * loose, 1e-4 * loose)
    # Counts and positions may differ where float32 cannot tell.
    unsure, several = atol * size.amax(-1, keepdim=True), n > 1
    assert ((x < -unsure).sum(-1) <= found["negatives"]).all() and (found["negatives"] <= (x < unsure).sum(-1)).all()
    at_peak = size.gather(-1, found["peak"].long()[..., None])
    assert (at_peak >= size.amax(-1, keepdim=True) - atol).all(), f"{name} peak"
    edge = NEAR_ZERO * total[..., None] / n[:, None]
    few, many = (((size < edge * (1 + sign * 1e-4 * loose) + sign * unsure) & seen).sum(-1) for sign in (-1, 1))
    assert ((few <= found["small"]) & (found["small"] <= many)).all(), f"{name} small"
    ascending = size.masked_fill(~seen, -1).sort(-1).values  # what is not seen comes first
    rank = (torch.tensor(QUANTILES, dtype=torch.float64) * n[:, None] - 1e-9).ceil().long() + (len(seen[0]) - n)[:, None] - 1
    exact = {
        "quantiles": ascending.gather(-1, rank.expand(len(x), -1, -1)),
        "top": torch.stack([ascending[..., -k:].clamp_min(0).sum(-1) for k in TOP_K], -1),
        "gini": _gini(ascending.clamp_min(0), n),
    }
    for moment, value in exact.items():
        off = (found[moment] - value).abs() - found[f"{moment}_width"] / 2
        assert (off <= atol + 1e-4 * loose * value)[:, several].all(), f"{name} {moment} off its bracket by {off.max():.1e}"
    assert (found["top_width"][..., 0] == 0).all()
    assert (found["gini_width"] < 2.0**-4 / 4 + 1e-3).all()


def _gini(ascending, n):
    ranks = torch.arange(1, ascending.shape[-1] + 1, dtype=torch.float64) - (ascending.shape[-1] - n)[:, None]
    return ((2 * ranks - n[:, None] - 1) * ascending).sum(-1) / (n * ascending.sum(-1))


@st.composite
def _cases(draw):
    heads, tokens = draw(st.sampled_from([1, 2, 3])), draw(st.integers(1, 40))  # a tile has 32 queries and 32 keys
    kind = draw(st.sampled_from(["causal", "window", "full"]))
    window = draw(st.integers(1, 60)) if kind == "window" else None
    layer = _random(
        draw(st.integers(0, 99)),
        draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
        heads=heads,
        share=draw(st.sampled_from([0, 1, heads])),
        groups=draw(st.sampled_from([1, 2])),
        tokens=tokens,
        lead=draw(st.sampled_from([0, 40])),
        d=draw(st.sampled_from([16, 24, 64])),
        mask=Mask(kind, window),
        gain=draw(st.sampled_from([1.0, 1.7])),
    )
    queries = draw(st.permutations(range(tokens)))[: draw(st.integers(1, tokens))]
    return layer, torch.tensor(queries), draw(st.sampled_from([50, 2**14]))


@pytest.mark.parametrize(
    "cap, sink, share, dtype",
    [
        (2.0, None, 1, torch.float32),
        (None, 3.0, 1, torch.float32),
        (50.0, -9.0, 0, torch.float32),
        (1.0, 12.0, 2, torch.bfloat16),
    ],
)
def test_scores_may_be_capped_and_share_a_row_with_a_sink_logit(moments, cap, sink, share, dtype):
    layer = _random(5, dtype, share=share, tokens=45, mask=Mask("window", 31), gain=1.3)
    sinks = None if sink is None else torch.linspace(sink - 2, sink + 2, layer.q.shape[1]).to(dtype)
    layer = replace(layer, soft_cap=cap, sink_logit=sinks)
    queries = torch.tensor([44, 0, 17, 30, 31])
    measured = moments(layer, queries, ALL)
    _check(layer, queries, measured, loose=5.0)
    assert sinks is None or (measured["A1"]["total"] < 1 - 1e-6).any()


@settings(max_examples=10)
@given(case=_cases())
def test_sums_are_those_of_the_maps(moments, case):
    layer, queries, scratch = case
    measured = moments(layer, queries, ALL, scratch=scratch)
    _check(layer, queries, measured, loose=5.0)


def _integers(low, high, *shape, seed=0):
    """Whole numbers, whose products float32 has exactly."""
    return torch.randint(low, high + 1, shape, generator=torch.Generator().manual_seed(seed)).float()


EXTREMES = {
    "scores of 10⁴, one key has all": {"q": 100, "k": 25},
    "scores of 10⁴ that differ by a few": {"q": 1, "k": 2, "common": 10_000},
    "scores of -10⁴ that differ by a few": {"q": 1, "k": 2, "common": -10_000},
    "most weights underflow": {"q": 8, "k": 3},
    "no second map left": {"q": 1, "k": 1, "lam": 0.0},
    "more is taken away than was there": {"q": 1, "k": 1, "lam": 2.5},
    "negative λ": {"q": 1, "k": 1, "lam": -0.5},
    "every row sees one key": {"q": 1, "k": 1, "mask": Mask("window", 1)},
}


@pytest.mark.parametrize("case", EXTREMES.values(), ids=EXTREMES)
def test_extreme_rows(moments, case):
    fields = dict(case)
    high, common = fields.pop("k"), fields.pop("common", 0)
    q, k = _integers(-fields["q"], fields.pop("q"), 4, 64, 16), _integers(-high, high, 4, 64, 16, seed=1)
    if common:  # what a score has beside its few units is the same for all keys
        q[..., 0], k[..., 0] = common / 10, 10
    layer = _layer(q, k, a2=torch.tensor([2, 3]), scale=1.0, **fields)
    queries = torch.tensor([0, 1, 2, 31, 32, 33, 62, 63])  # about the edge of a tile of keys, and rows that may grow after it
    measured = moments(layer, queries, ALL)
    _check(layer, queries, measured)
    nan = {(name_of_map, name) for name_of_map, held in measured.items() for name, x in held.items() if x.isnan().any()}
    assert not nan


def test_of_equals_the_first_is_the_peak(moments):
    layer = _layer(torch.zeros(2, 40, 16), torch.zeros(2, 40, 16), a2=torch.tensor([1]), mask=Mask("window", 20))
    queries = torch.arange(40)
    measured = moments(layer, queries, {"peak", "gini", "top"})
    for name in ("A1", "A2", "D"):
        assert measured[name].keys() == {"peak", "gini", "gini_width", "top", "top_width"}
        assert (measured[name]["peak"][0] == (queries - 19).clamp_min(0)).all()
        assert (measured[name]["gini"] - measured[name]["gini_width"] / 2 <= 1e-12).all()


def test_a_row_of_zeros_has_no_order(moments):
    layer = _random(3, heads=1, tokens=40, lam=1.0)
    layer = replace(layer, q=layer.q[:, [0, 0]], k=layer.k[:, [0, 0]])
    measured = moments(layer, torch.arange(40), ALL)
    d = measured["D"]
    assert all((d[name] == 0).all() for name in ("total", "net", "squares", "logs", "roots", "negative", "negatives"))
    assert all(d[name].isnan().all() for name in ("gini", "gini_width", "quantiles", "top", "small"))


def test_what_is_not_finite_stays_so(moments):
    layer = _random(4, heads=1, tokens=40)
    layer.k[0, 0, 35] = torch.inf
    measured = moments(layer, torch.arange(40), ALL)
    for name_of_map in ("A1", "D"):
        for name in rows.MOMENTS:
            if name not in ("peak", "negatives") and (name_of_map, name) != ("A1", "negative"):
                assert measured[name_of_map][name][0, 35:].isnan().all(), (name_of_map, name)
                assert measured[name_of_map][name][0, :35].isfinite().all(), (name_of_map, name)


def test_what_no_kernel_can_serve_is_refused(monkeypatch):
    monkeypatch.setattr(rows, "_interpreted", lambda: True)
    layer = _random(0)
    assert rows.reason_unsupported(layer) is None
    refused = {
        "holds 2 prompts": replace(layer, lengths=(70, 70)),
        "changed": replace(layer, changes=("some",)),
        "rounded": replace(layer, score_dtype=torch.bfloat16),
        "'given'": replace(layer, mask=Mask("given", visible=torch.ones(1, 70, 70, dtype=torch.bool))),
        "float64": replace(layer, q=layer.q.double(), k=layer.k.double()),
        "keys torch.float16": replace(layer, k=layer.k.half()),
        "8 dimensions": replace(layer, q=layer.q[..., :8], k=layer.k[..., :8]),
        "272 dimensions": replace(layer, q=layer.q.repeat(1, 1, 1, 17), k=layer.k.repeat(1, 1, 1, 17)),
        "scale": replace(layer, scale=0.0),
        "see no key": replace(layer, k=layer.k[:, :, 1:]),
    }
    for reason, other in refused.items():
        assert reason in rows.reason_unsupported(other)
    monkeypatch.setattr(rows, "_interpreted", lambda: False)
    assert "CUDA" in rows.reason_unsupported(layer)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("d", [64, 128, 192])
@pytest.mark.parametrize("mask", [Mask("causal"), Mask("window", 700), Mask("full")], ids=lambda mask: mask.kind)
def test_sums_of_long_rows(moments, dtype, d, mask):
    layer = _random(1, dtype, heads=4, share=2, groups=2, tokens=4096, d=d, mask=mask, gain=1.2)
    queries = torch.cat([torch.arange(3), torch.randperm(4096, generator=torch.Generator().manual_seed(0))[:300]])
    measured = moments(layer, queries, ALL, scratch=1000)
    _check(layer, queries, measured, loose=5.0)
