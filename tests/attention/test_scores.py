"""Soft caps and sink logits: the same maps on every path, whatever asks for them."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from diffscope import edits
from diffscope.attention import blocks
from diffscope.attention.blocks import stream
from diffscope.attention.components import Mask, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.attention.stacking import can_stack, stack
from diffscope.attention.stored import from_tensors, to_tensors
from diffscope.edits.base import apply
from diffscope.proof.fidelity import deviation
from diffscope.stats import measure_layer
from diffscope.stats.maps import window
from diffscope.stats.measure import measure_layers, requests_of
from diffscope.stats.ranks import exact as rank
from diffscope.stats.registry import select
from tests import reference as slow
from tests.reference import Slow

N, HEADS, WINDOW = 30, 3, 11
MASKS = {
    "causal": Mask("causal"),
    "window": Mask("window", WINDOW),
    "given": Mask("given", visible=torch.ones(N, N, dtype=torch.bool).tril()[None]),
}


def _layer(mask="causal", differential=True, cap=1.5, sinks=True, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def random(count, size):
        return torch.randn(1, count, N, size, generator=generator, dtype=torch.float64).to(dtype)

    maps = 2 * HEADS if differential else HEADS
    pairing = Pairing.stripes(HEADS) if differential else Pairing.plain(HEADS)
    return LayerAttention(
        layer=0,
        family="test",
        q=random(maps, 8) * 2,
        k=random(maps, 8),
        v=random(HEADS, 5),
        scale=8**-0.5,
        pairing=pairing,
        lengths=(N,),
        mask=MASKS[mask],
        lam=torch.full((1, 1, 1), 0.4, dtype=dtype) if differential else None,
        soft_cap=cap,
        sink_logit=torch.linspace(-1, 3.5, maps, dtype=dtype) if sinks else None,
    )


def _by_hand(layer):
    """A1, A2 and D of all heads, each (head, query, key)."""
    plain = replace(layer, mask=Mask("causal")) if layer.mask.kind == "given" else layer
    table = Slow(plain)
    maps = zip(*(table.rows(head) for head in range(HEADS)))
    return [None if a[0] is None else np.stack(a) for a in maps]


@pytest.mark.parametrize("differential", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_every_path_gives_the_same_rows(mask, differential, monkeypatch):
    monkeypatch.setitem(blocks.BLOCK_BYTES, "cpu", 1)
    monkeypatch.setattr(blocks, "MIN_ROWS", 4)
    layer = _layer(mask, differential)
    expected = _by_hand(layer)
    assert (expected[0].sum(-1) < 0.999).any()

    def same(rows, at=slice(None), keys=slice(None)):
        for measured, a in zip((rows.a1, rows.a2, rows.d), expected):
            assert a is None or np.abs(measured.numpy() - a[:, at][..., keys]).max() < 1e-12

    same(layer.rows())
    of_blocks = [
        same(rows, rows.queries, slice(rows.start, rows.start + rows.a1.shape[-1]))
        for _, rows in stream(layer, None, lambda block, rows: rows, all_heads=True)
    ]
    assert len(of_blocks) > 5
    cached = replace(layer, q=layer.q[:, :, 20:], lengths=(10,))
    if mask != "given":
        same(cached.rows(), slice(20, None))
    part = window(layer, ["D"], [1], torch.tensor([29, 4]), torch.tensor([3, 0, 2]))["D"][0]
    assert np.abs(part.numpy() - expected[-1][1][[29, 4]][:, [3, 0, 2]]).max() < 1e-12
    if mask == "given":
        return
    other = _layer(mask, differential, seed=1)
    assert can_stack([layer, other], outputs=False) and not can_stack([layer, replace(other, soft_cap=None)], outputs=False)
    assert not can_stack([layer, replace(other, sink_logit=None)], outputs=False)
    both = stack([layer, other], outputs=False).rows()
    assert np.abs(both.a1[HEADS:].numpy() - _by_hand(other)[0]).max() < 1e-12
    measured = measure_layers(requests_of([layer, other], {}, None, None), select(["row_sum"]))
    assert np.allclose(measured[1].values["row_sum"], measure_layer(other, ["row_sum"])["row_sum"], equal_nan=True)


def test_the_proof_sees_them():
    layer = _layer()
    queries = torch.arange(N)
    target = layer.output()
    assert deviation(layer, queries, target) < 1e-12
    for wrong in (replace(layer, soft_cap=None), replace(layer, soft_cap=1.6), replace(layer, sink_logit=None)):
        assert deviation(wrong, queries, target) > 1e-3


def test_heads_that_share_a_map_share_its_sink_logit():
    layer = _layer()
    pairing = replace(layer.pairing, a1=torch.tensor([0, 0, 4]))
    shared = replace(layer, pairing=pairing)
    assert torch.equal(shared.rows().a1[0], shared.rows().a1[1])
    assert torch.equal(shared.rows().a1[0], layer.rows().a1[0])


def test_sink_logits_may_differ_from_prompt_to_prompt_and_query_to_query():
    layer = _layer(cap=None)
    sinks = torch.randn(2, 6, N, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    batch = replace(layer, q=layer.q.repeat(2, 1, 1, 1), sink_logit=sinks, lengths=(N, 19))
    for index, n in enumerate(batch.lengths):
        rows = batch.prompt(index).rows()
        scores = layer.logits()[:, :n, :n]
        whole = torch.cat([scores, sinks[index, :, :n, None]], -1).softmax(-1)[..., :-1]
        torch.testing.assert_close(rows.a1, whole[0::2])


def test_a_sink_logit_of_nothing_is_none():
    layer = _layer(sinks=False)
    same = replace(layer, sink_logit=torch.full((6,), -torch.inf, dtype=torch.float64))
    torch.testing.assert_close(same.rows().d, layer.rows().d)
    blind = replace(layer, mask=Mask("given", visible=torch.zeros(1, N, N, dtype=torch.bool)), sink_logit=same.sink_logit)
    assert (blind.rows().a1 == 0).all()


def test_gradients_flow_through_caps_and_sinks():
    def loss(q, sinks):
        return replace(_layer(), q=q, sink_logit=sinks).rows(queries=[7, 20]).d.square().sum()

    layer = _layer()
    q, sinks = layer.q.clone().requires_grad_(), layer.sink_logit.clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, (q[:, :, :, :1].detach().expand_as(q).clone().requires_grad_(), sinks), fast_mode=True)
    loss(layer.q, sinks).backward()
    assert sinks.grad.abs().min() > 0


def test_to_tensors_and_back_and_what_lacks_a_field_is_refused():
    layer = _layer()
    tensors, record = to_tensors(layer)
    again = from_tensors(LayerAttention, tensors, record)
    assert torch.equal(again.rows().d, layer.rows().d) and again.soft_cap == 1.5
    del tensors["sink_logit"]
    plain = from_tensors(LayerAttention, tensors, record | {"soft_cap": None})
    assert torch.equal(plain.rows().d, _layer(cap=None, sinks=False).rows().d)
    del record["soft_cap"]
    with pytest.raises(ValueError, match="soft_cap"):
        from_tensors(LayerAttention, tensors, record)


EDITS = {
    "A2 of rank 3": (
        edits.low_rank_a2(3, normalise=True),
        lambda a1, a2: (a1, slow.low_rank(a2, 3) * a2.sum(1, keepdims=True) / slow.low_rank(a2, 3).sum(1, keepdims=True)),
    ),
    "uniform A2": (edits.uniform_a2(), lambda a1, a2: (a1, slow.uniform(N) * a2.sum(1, keepdims=True))),
    "uniform A1": (edits.uniform_a1(), lambda a1, a2: (slow.uniform(N) * a1.sum(1, keepdims=True), a2)),
    "A2 rank 3": (edits.low_rank_a2(3), lambda a1, a2: (a1, slow.low_rank(a2, 3))),
    "A1 top-3": (edits.top_k_a1(3), lambda a1, a2: (slow.top_k(a1, 3), a2)),
}


@pytest.mark.parametrize("case", EDITS)
def test_edits_leave_to_sink_logits_what_is_theirs(case):
    edit, changed = EDITS[case]
    layer = _layer()
    rows = apply([edit], layer).rows()
    for head in range(HEADS):
        a1, a2 = changed(*Slow(layer).rows(head)[:2])
        assert np.abs(rows.a1[head].numpy() - a1).max() < 1e-12 and np.abs(rows.a2[head].numpy() - a2).max() < 1e-12
    if "rank" not in case:
        torch.testing.assert_close(rows.d.sum(-1), layer.rows().d.sum(-1))


def test_dropped_keys_leave_the_sink_logit():
    layer = _layer()
    rows = apply([edits.knock_out(range(20), range(20))], layer).rows()
    assert (rows.d[:, :20] == 0).all() and rows.d.isfinite().all() and (rows.a1[:, 20:].sum(-1) > 0).all()
    kept = apply([edits.drop_sink()], layer).rows()
    exact = np.stack([slow.softmax(slow.without(Slow(layer).scores(h, 1), [0]), Slow(layer).sinks(h, 1)) for h in range(HEADS)])
    assert np.abs(kept.a1.numpy() - exact).max() < 1e-12


def test_scores_are_quantised_as_they_enter_the_softmax():
    layer = _layer()
    rows = apply([edits.quantise_logits(6, per="row")], layer).rows()
    exact = [slow.softmax(slow.quantised(Slow(layer).scores(h, 2), 6)[0], Slow(layer).sinks(h, 2)) for h in range(HEADS)]
    assert np.abs(rows.a2.numpy() - np.stack(exact)).max() < 1e-12


@pytest.mark.parametrize("mask", ["causal", "window"])
def test_statistics_are_of_what_rows_put_on_keys(mask):
    layer = _layer(mask)
    a1, a2, d = _by_hand(layer)
    spans = {"sink": torch.tensor([0]), "answer": torch.tensor([24, 25])}
    measured = measure_layer(layer, ["row", "span", "branch", "logit_outliers"], spans=spans)
    row = measured.sel(query=N - 1)
    for name, a in (("A1", a1), ("A2", a2), ("D", d)):
        last = a[:, -1]
        p = np.abs(last) / np.abs(last).sum(-1, keepdims=True)
        at = row.sel(map=name)
        assert np.allclose(at["row_sum"], last.sum(-1)) and (np.abs(at["row_sum"]) < 0.999).all()
        assert np.allclose(at["entropy"], -(p * np.log(np.where(p > 0, p, 1))).sum(-1))
        assert np.allclose(at["participation"], 1 / (p**2).sum(-1))
        assert np.allclose(at["top_k_mass"].sel(k=5), np.sort(p)[:, -5:].sum(-1))
        mass, part = at["span_mass"].sel(span="answer"), last[:, [24, 25]]
        assert np.allclose(mass.sel(normalisation="raw"), part.sum(-1))
        assert np.allclose(mass.sel(normalisation="share"), p[:, [24, 25]].sum(-1))
        assert np.allclose(mass.sel(normalisation="signed"), part.sum(-1) / last.sum(-1))
    share = np.abs(d)[:, -1, 24:26].sum(-1) / np.abs(d)[:, -1].sum(-1)
    assert np.allclose(row["selectivity"].sel(span="answer"), share / (a1[:, -1, 24:26].sum(-1) / a1[:, -1].sum(-1)))
    if mask == "causal":  # the first key's mean mass over queries from 1 on
        received = (a1[:, 1:] / a1[:, 1:].sum(-1, keepdims=True)).mean(1).max(-1)
        assert np.allclose(measured["column_sink"].sel(map="A1", normalisation="share"), received)
    scores = np.abs([Slow(layer).scores(h, b) for h in range(HEADS) for b in (1, 2)])
    assert np.isclose(measured["logit_outliers"].sel(outlier="top_1"), scores[np.isfinite(scores)].max())


def test_ranks_without_a_map_are_those_of_the_map(monkeypatch):
    from diffscope.stats.ranks.statistic import layer_ranks

    monkeypatch.setattr(rank, "LARGEST", 1)
    layer = _layer()
    estimated = layer_ranks(layer)
    _, _, d = _by_hand(layer)
    for head in range(HEADS):
        exact = rank.ranks(torch.linalg.svdvals(torch.from_numpy(d[head])))
        torch.testing.assert_close(estimated.ranks[head, 2, :, 0], exact, rtol=0.05, atol=1e-6)


@dataclass
class Captured:
    """A capture, as far as an edit made of captures reads it."""

    layers: list[LayerAttention]


def test_a_positional_mean_is_of_shares_and_leaves_a_row_its_sum():
    layer = _layer()
    rows = apply([edits.positional_a2(Captured([layer]))], layer).rows()
    for head in range(HEADS):
        a2 = Slow(layer).a2(head)
        total = a2.sum(1, keepdims=True)
        assert np.abs(rows.a2[head].numpy() - slow.by_distance([a2 / total], N) * total).max() < 1e-12
