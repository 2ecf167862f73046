"""Log-sum-exp identities against sums over the rows themselves, in float64."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffscope.attention.layer import Mask, Pairing
from diffscope.errors import DiffscopeError
from diffscope.stats.formulas import branches
from diffscope.stats.logsumexp import AVAILABLE, moments

ALL = frozenset().union(*AVAILABLE.values())
SPANS = (torch.tensor([0]), torch.tensor([2, 3, 4]), torch.tensor([], dtype=torch.int64))


def expected(layer, spans=SPANS, queries=None):
    """Everything in AVAILABLE, from the rows."""
    rows = layer.rows(queries)
    found = {"D": of_rows(rows.d, spans), "A1": of_rows(rows.a1, spans)}
    if rows.a2 is None:
        return found
    found["A2"] = of_rows(rows.a2, spans)
    p, q, seen = rows.a1, rows.a2, rows.n.expand(rows.a1.shape[:-1])
    shared = (p.sqrt() * q.sqrt()).sum(-1)
    found["pair"] = {
        "dot": (p * q).sum(-1),
        "cosine": branches.cosine(p, q, seen),
        "bhattacharyya": torch.where(seen > 1, shared, torch.nan),
        "kl_12": branches.kl(p, q, seen),
        "kl_21": branches.kl(q, p, seen),
    }
    return found


def of_rows(x, spans):
    size = x.abs()
    return {
        "total": size.sum(-1),
        "net": x.sum(-1),
        "squares": x.square().sum(-1),
        "logs": torch.special.xlogy(size, size).sum(-1),
        "roots": size.sqrt().sum(-1),
        "negative": (-x).clamp_min(0).sum(-1),
        "negatives": (x < 0).sum(-1).to(x.dtype),
        "received": x.sum(1),
        "span_net": torch.stack([x[..., keys].sum(-1) for keys in spans], dim=-1),
    }


def check(layer, tolerance, reference=None, **how):
    """`moments` gives what AVAILABLE promises, and it is right."""
    right = expected(reference or layer, queries=how.get("queries"))
    found = moments(layer, ALL, SPANS, **how)
    assert found.keys() == right.keys()
    for name, values in found.items():
        assert values.keys() == AVAILABLE[name]
        for moment, value in values.items():
            assert value.dtype == layer.dtype
            torch.testing.assert_close(
                value.double(),
                right[name][moment],
                rtol=tolerance,
                atol=tolerance,
                equal_nan=True,
                msg=lambda m, at=f"{name} {moment}": f"{at}: {m}",
            )


def as_double(layer):
    """The same inputs, bit for bit, in float64."""
    return replace(layer, **{name: getattr(layer, name).double() for name in ("q", "k", "v", "lam", "gain")})


@st.composite
def layers(draw, make_layer):
    """Layers with every mask, grouped keys, shared maps, any λ and gain, and keys before the first query."""
    heads, tokens = draw(st.integers(1, 3)), draw(st.integers(6, 18))
    mask = draw(st.sampled_from([Mask("causal"), Mask("full"), Mask("window", 1), Mask("window", 4), Mask("window", 40)]))
    lam = draw(st.sampled_from([0.0, 0.8, 1.7, "token"]))
    if lam == "token":
        lam = torch.linspace(-0.5, 1.5, heads * tokens, dtype=torch.float64).view(1, heads, tokens)
    differential = draw(st.integers(0, 3)) > 0
    layer = make_layer(tokens, heads, mask=mask, lam=lam, gain=draw(st.sampled_from([1.0, 0.6])), differential=differential)
    maps = layer.q.shape[1]
    pairing = layer.pairing
    if draw(st.booleans()):  # keys shared by neighbouring maps
        groups = (maps + 1) // 2
        pairing = replace(pairing, key_of_map=torch.arange(maps) // 2)
        layer = replace(layer, k=layer.k[:, :groups])
    if differential and draw(st.booleans()):  # one A2 for all heads, as in grouped differential attention
        pairing = replace(pairing, a2=torch.full((heads,), maps - 1))
    cached = draw(st.sampled_from([0, 3]))
    layer = replace(layer, pairing=pairing, q=layer.q[:, :, cached:], lengths=(tokens - cached,))
    if layer.lam.shape[-1] > 1:
        layer = replace(layer, lam=layer.lam[..., cached:])
    return layer


@given(st.data(), st.sampled_from([None, "rows"]))
def test_every_moment(make_layer, data, kernel):
    layer = data.draw(layers(make_layer))
    check(layer, 1e-10, kernel=kernel)


@given(st.data(), st.sampled_from(["some", "run"]))
def test_chosen_queries(make_layer, data, which):
    layer = data.draw(layers(make_layer))
    check(layer, 1e-10, queries=torch.tensor([layer.n_queries - 1, 0, 1] if which == "some" else [1, 2]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", ["sdpa", "rows", "flex"])
def test_float32_and_less_is_computed_in_float32(make_layer, dtype, kernel):
    layer = make_layer(40, 2, dtype=dtype, lam=0.7)
    check(layer, 1e-5, as_double(layer), kernel=kernel)


@pytest.mark.parametrize("kernel", ["sdpa", "rows"])
def test_near_one_hot_rows(make_layer, kernel):
    """Scores of nearly two hundred leave five digits of an exponential."""
    layer = make_layer(60, 2, dtype=torch.float32)
    layer = replace(layer, scale=layer.scale * 25, q=layer.q[:, :, 20:], lengths=(40,))
    assert layer.logits()[layer.logits().isfinite()].abs().max() > 150
    found, right = moments(layer, ALL, SPANS, kernel=kernel), expected(as_double(layer))
    for name, values in found.items():
        for moment, value in values.items():
            assert not (value.isnan() ^ right[name][moment].isnan()).any()
            finite = right[name][moment].isfinite()
            torch.testing.assert_close(value[finite].double(), right[name][moment][finite], rtol=2e-4, atol=2e-4)
    assert (found["A1"]["squares"] <= 1).all() and (found["A1"]["logs"] <= 0).all()


def test_only_what_is_wanted(make_layer):
    layer = make_layer(8, 2)
    assert moments(layer, {"net", "cosine"}, maps={"A1", "pair"}).keys() == {"A1", "pair"}
    assert {name: set(values) for name, values in moments(layer, {"squares", "kl_12"}).items()} == {
        "A1": {"squares"},
        "A2": {"squares"},
        "D": {"squares"},
        "pair": {"kl_12"},
    }


def test_refusals_say_why(make_layer):
    layer = make_layer(8, 2)
    seen = torch.ones(1, 8, 8, dtype=torch.bool)
    for reason, other in {
        "rounded its scores": replace(layer, score_dtype=torch.bfloat16),
        "entry by entry": replace(layer, mask=Mask("given", visible=seen)),
        "changed mid-forward": replace(layer, changes=(object(),)),
        "2 prompts": replace(layer, lengths=(8, 8)),
        "no sliding window": replace(layer, mask=Mask("window", 3)),
    }.items():
        with pytest.raises(DiffscopeError, match=reason):
            moments(other, {"squares"}, kernel="sdpa")
    with pytest.raises(DiffscopeError, match="gini, top cannot be had"):
        moments(layer, {"squares", "top", "gini"})
    with pytest.raises(DiffscopeError, match="A3 cannot be had"):
        moments(layer, {"squares"}, maps={"A3"})


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["sdpa", "rows", "flex"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu(make_layer, dtype, kernel):
    layer = make_layer(100, 2, dtype=dtype)
    right = expected(as_double(layer))
    tensors = {name: getattr(layer, name).cuda() for name in ("q", "k", "v", "lam", "gain")}
    pairing = Pairing(*(x.cuda() for x in vars(layer.pairing).values()))
    found = moments(replace(layer, **tensors, pairing=pairing), ALL, SPANS, kernel=kernel)
    for name, values in found.items():
        for moment, value in values.items():
            torch.testing.assert_close(value.cpu().double(), right[name][moment], rtol=5e-5, atol=5e-5, equal_nan=True)
