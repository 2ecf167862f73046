"""Noise on both inputs of a head: what is known in closed form, what a slow computation gives, and what is refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import diffscope
from diffscope import DiffscopeError, PromptError, SpanError, edits
from diffscope.attention import blocks
from diffscope.instruments.injection import with_a2_moved
from tests import tiny
from tests.instruments.planted import capture_of, layer_of
from tests.reference import Slow

few = settings(max_examples=12)
IDS = tiny.ids(20)
SPANS = {"answer": [4, 5], "query": [17, 18, 19]}


def scores(*seeds, n=24, size=1.0):
    return torch.stack([torch.randn(n, n, generator=torch.Generator().manual_seed(seed)).double() * size for seed in seeds])


@few
@given(st.integers(0, 99), st.floats(0.05, 3.0))
def test_without_a_second_map_in_the_difference_it_is_0_db_exactly(seed, sigma):
    measured = diffscope.instruments.cmrr_by_injection(
        capture_of(layer_of(scores(seed, seed + 1), lam=0.0)), sigmas=[sigma], draws=3
    )
    assert (measured["cmrr_injected"].sel(span="irrelevant") == 0).all()


@few
@given(st.integers(0, 99), st.floats(0.05, 3.0))
def test_equal_maps_that_are_wholly_subtracted_reject_all_of_it(seed, sigma):
    cap = capture_of(layer_of(scores(seed, seed), lam=1.0))
    measured = diffscope.instruments.cmrr_by_injection(cap, sigmas=[sigma], draws=3).sel(span="irrelevant")
    assert np.isposinf(measured["cmrr_injected"]).all() and (measured["change_differential"] > 0).all()


@few
@given(st.integers(0, 99), st.floats(0.0, 0.98))
def test_small_noise_on_equal_maps_gives_the_ratio_of_gains(seed, lam):
    """That of ``cmrr`` and 6.02 dB, since +n and -n differ by 2n."""
    cap = capture_of(layer_of(scores(seed, seed), lam=lam))
    measured = diffscope.instruments.cmrr_by_injection(cap, sigmas=[1e-4], draws=4).sel(span="irrelevant", sigma=1e-4)
    expected = 20 * math.log10((1 + lam) / (1 - lam))
    assert float(measured["cmrr_injected"].squeeze()) == pytest.approx(expected, abs=0.01)
    nominal = float(cap.measure("cmrr", queries=[-1])["cmrr"].squeeze())
    assert expected == pytest.approx(nominal + 20 * math.log10(2), abs=1e-3)


def test_maps_on_different_keys_reject_nothing():
    """Of twelve pairs on even and on odd keys; spread over the same keys, unrelated maps would reject a little."""
    even = torch.where(torch.arange(64) % 2 == 0, 0.0, -30.0)
    squares = {"change_common": 0.0, "change_differential": 0.0}
    for seed in range(12):
        first, second = scores(seed, seed + 50, n=64, size=2)
        layer = layer_of(torch.stack([first + even, second + even.roll(1)]), lam=0.8)
        measured = diffscope.instruments.cmrr_by_injection(capture_of(layer), spans=["irrelevant"], sigmas=[0.5], draws=64)
        squares = {name: total + float(measured[name].squeeze() ** 2) for name, total in squares.items()}
    assert abs(10 * math.log10(squares["change_differential"] / squares["change_common"])) < 0.7


def by_hand(layer, query, keys, sigma, draws, opposite):
    """Root mean square over draws of what noise changes in each head's D·V at one query."""
    slow = Slow(layer)
    sizes = np.zeros((slow.heads, draws))
    for draw in range(draws):
        drawn = np.random.default_rng([draw, layer.layer]).standard_normal(slow.n)
        noise = np.zeros(slow.n)
        noise[keys] = sigma * drawn[keys]
        for head in range(slow.heads):

            def noisy(table, head, branch, noise=noise):
                return table - noise if opposite and branch == 2 else table + noise

            change = slow.rows(head, scores=noisy)[2][query] - slow.rows(head)[2][query]
            out = change @ slow.v[int(layer.pairing.value_of_head[head])]
            sizes[head, draw] = np.sum(out**2)
    return np.sqrt(sizes.mean(1))


REAL = {
    "v1-grouped": lambda: tiny.own("v1", kv_heads=2),
    "plus": lambda: tiny.own("plus", kv_heads=2),
    "shared-a2": lambda: tiny.own("shared_a2", kv_heads=2),
    "v2": lambda: tiny.own("v2"),
    "diffllama-grouped": lambda: tiny.diffllama(kv=4),
    "gemma2": lambda: tiny.gemma2(),
    "gpt-oss": lambda: tiny.gpt_oss(),
}


@pytest.mark.parametrize("name", REAL)
def test_real_models_give_what_noise_by_hand_gives(name):
    """Shared keys, a λ a token, soft caps, windows and sink logits."""
    cap = diffscope.load(REAL[name]().double()).capture(IDS, spans=SPANS)
    measured = diffscope.instruments.cmrr_by_injection(cap, queries=[-2], sigmas=[0.7], draws=3).squeeze("sigma")
    for layer in cap.layers:
        of_layer = measured.sel(layer=layer.layer, span="irrelevant")
        common, opposite = (by_hand(layer, 18, cap.key_sets["irrelevant"], 0.7, 3, mode) for mode in (False, True))
        assert np.allclose(of_layer["change_common"], common, rtol=1e-8)
        if layer.differential:
            assert np.allclose(of_layer["change_differential"], opposite, rtol=1e-8)
            assert np.allclose(of_layer["cmrr_injected"], 20 * np.log10(opposite / common), atol=1e-6)
        else:
            assert np.allclose(of_layer["change_differential"], common, rtol=1e-8)
            assert of_layer["cmrr_injected"].isnull().all()
    assert ("one map" in measured["cmrr_injected"].attrs.get("why", "")) == (not cap.differential)


def test_a_draw_is_that_of_the_edit():
    scope = diffscope.load(tiny.own("v1").double())
    cap = scope.capture(IDS, spans=SPANS)
    plain = cap.layers[0].prompt(0).head_outputs([19])
    measured = (
        diffscope.instruments.cmrr_by_injection(cap, spans=["irrelevant"], sigmas=[0.7], draws=1, seed=5).isel(layer=0).squeeze()
    )
    for mode in ("common", "differential"):
        with scope.edit(edits.inject_noise(0.7, mode, cap.key_sets["irrelevant"], seed=5)):
            noisy = scope.capture(IDS).layers[0].prompt(0).head_outputs([19])
        assert np.allclose(measured[f"change_{mode}"], (noisy - plain).norm(dim=-1)[:, 0], rtol=1e-8)


@few
@given(st.integers(0, 99), st.floats(0.0, 1.0))
def test_maps_of_one_shape_are_at_their_ceiling(seed, lam):
    measured = diffscope.instruments.cmrr_by_injection(capture_of(layer_of(scores(seed, seed), lam=lam)), sigmas=[0.5], draws=3)
    at = measured.sel(span="irrelevant")
    assert np.allclose(at["change_common_ceiling"], at["change_common"], rtol=1e-9, atol=1e-15)
    assert np.allclose(at["change_differential_ceiling"], at["change_differential"], rtol=1e-9)


def test_the_ceiling_is_of_a_second_map_with_the_first_ones_shape_and_its_own_mass():
    """Against maps made by hand: A2' on X is A1 there, scaled to what A2 has there; elsewhere A2."""
    layer = layer_of(scores(3, 4, size=1.5), lam=0.7)
    cap = capture_of(layer, spans={"answer": [5, 6]})
    measured = diffscope.instruments.cmrr_by_injection(cap, spans=["irrelevant"], sigmas=[0.6], draws=3).squeeze()
    keys = cap.key_sets["irrelevant"]
    rows = layer.rows([23])
    shaped = rows.a2.clone()
    shaped[..., keys] = rows.a1[..., keys] * rows.a2[..., keys].sum() / rows.a1[..., keys].sum()
    made = scores(3, 4, size=1.5)
    made[1, -1] = shaped[0, 0].log()
    expected = diffscope.instruments.cmrr_by_injection(
        capture_of(layer_of(made, lam=0.7), spans={"answer": [5, 6]}), spans=["irrelevant"], sigmas=[0.6], draws=3, ceiling=False
    ).squeeze()
    assert np.allclose(measured["cmrr_ceiling"], expected["cmrr_injected"], rtol=1e-9)
    assert np.allclose(measured["change_common_ceiling"], expected["change_common"], rtol=1e-9)
    assert float(measured["cmrr_ceiling"]) > float(measured["cmrr_injected"]) and "cmrr_ceiling" not in expected


@pytest.mark.parametrize("name", REAL)
def test_real_models_have_a_ceiling_where_two_maps_are_theirs(name):
    scope = diffscope.load(REAL[name]().double())
    cap = scope.capture(IDS, spans=SPANS)
    ceiling = diffscope.instruments.cmrr_by_injection(cap, sigmas=[0.5], draws=2)["cmrr_ceiling"].sel(span="irrelevant")
    assert np.isfinite(ceiling).all() if cap.differential else ceiling.isnull().all()
    if cap.differential:
        with scope.edit(edits.uniform_a2()):
            edited = scope.capture(IDS, spans=SPANS)
        assert diffscope.instruments.cmrr_by_injection(edited, sigmas=[0.5], draws=2)["cmrr_ceiling"].isnull().all()


def test_queries_count_alike_and_blocks_do_not_matter(monkeypatch):
    cap = diffscope.load(tiny.own("v2").double()).capture([tiny.ids(13), IDS], spans=[{"answer": [3]}, SPANS])
    whole = diffscope.instruments.cmrr_by_injection(cap, queries="answer", sigmas=[0.5, 1.0], draws=3)
    assert whole["cmrr_injected"].dims == ("prompt", "layer", "head", "sigma", "span")
    assert whole["cmrr_injected"].sel(prompt=0, span="query").isnull().all()
    monkeypatch.setitem(blocks.BLOCK_BYTES, "cpu", 1)
    monkeypatch.setattr(blocks, "MIN_ROWS", 1)
    split = diffscope.instruments.cmrr_by_injection(cap, queries="answer", sigmas=[0.5, 1.0], draws=3)
    assert np.allclose(whole["change_common"], split["change_common"], rtol=1e-10, equal_nan=True)
    alone = [diffscope.instruments.cmrr_by_injection(cap[1], queries=[at], sigmas=[0.5], draws=3) for at in (4, 5)]
    mean = np.sqrt(sum(each["change_common"] ** 2 for each in alone) / 2)
    assert np.allclose(whole["change_common"].sel(prompt=1, sigma=[0.5]), mean.sel(span=whole.span), rtol=1e-8)


def test_rows_in_which_no_noise_comes_out_are_undefined():
    cap = diffscope.load(tiny.own("v1")).capture(IDS, spans=SPANS)
    assert diffscope.instruments.cmrr_by_injection(cap, queries=[0], draws=2)["cmrr_injected"].isnull().all()  # sees itself alone
    assert diffscope.instruments.cmrr_by_injection(cap, queries=[3], draws=2)["cmrr_injected"].sel(span="answer").isnull().all()


def test_the_error_is_the_spread_over_seeds():
    cap = capture_of(layer_of(scores(3, 3) + scores(5, 6), lam=0.8))
    each = [
        diffscope.instruments.cmrr_by_injection(cap, spans=["irrelevant"], sigmas=[0.5], seed=100 * seed) for seed in range(60)
    ]
    decibels = np.array([float(one["cmrr_injected"].squeeze()) for one in each])
    errors = np.array([float(one["cmrr_injected_error"].squeeze()) for one in each])
    assert 0.75 < np.sqrt((errors**2).mean()) / decibels.std(ddof=1) < 1.25
    one_draw = diffscope.instruments.cmrr_by_injection(cap, sigmas=[0.5], draws=1)
    assert one_draw["cmrr_injected_error"].isnull().all()


def test_the_pairing_control_gives_heads_the_second_map_of_another():
    cap = diffscope.load(tiny.own("v1")).capture(IDS)
    moved = with_a2_moved(cap)
    for head in range(4):
        assert np.array_equal(moved.map("A2", 1, head), cap.map("A2", 1, (head + 1) % 4))
        assert np.array_equal(moved.map("A1", 1, head), cap.map("A1", 1, head))
    changed = diffscope.instruments.cmrr_by_injection(moved, draws=2)["cmrr_injected"]
    assert (changed != diffscope.instruments.cmrr_by_injection(cap, draws=2)["cmrr_injected"]).sel(span="irrelevant").all()
    for by in (0, 4, -8):
        with pytest.raises(DiffscopeError, match="its own second map again"):
            with_a2_moved(cap, by)
    with pytest.raises(DiffscopeError, match="no layer of this capture has two second maps"):
        with_a2_moved(diffscope.load(tiny.own("standard")).capture(IDS))


@pytest.mark.parametrize(
    "asked, words",
    [
        (dict(sigmas=[0.0]), "numbers above 0"),
        (dict(sigmas=[]), "numbers above 0"),
        (dict(spans=["needle"]), "no span 'needle'; spans are"),
        (dict(queries=[20]), "outside the prompt"),
        (dict(queries="needle"), "no span 'needle' to take queries from"),
        (dict(queries=[]), "no query was chosen"),
        (dict(draws=0), "draws are a whole number from 1"),
        (dict(seed=-1), "seed is a whole number from 0"),
    ],
)
def test_what_cannot_be_asked_is_one_clear_line(asked, words):
    cap = diffscope.load(tiny.own("v1")).capture(IDS)
    with pytest.raises(DiffscopeError, match=words) as raised:
        diffscope.instruments.cmrr_by_injection(cap, **asked)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("attention", ["v1", "standard"])
def test_lost_log_odds_are_those_of_edited_runs_one_by_one(attention):
    scope = diffscope.load(tiny.own(attention).double())
    lost = diffscope.instruments.log_odds_under_noise(scope, IDS, 7, [8, 9, 9], spans=SPANS, sigmas=[0.5], draws=3, seed=2)

    def log_odds(*made):
        with scope.edit(*made), torch.no_grad():
            logits = scope.model(torch.tensor([IDS])).logits[0, -1]
        return float(logits[7] - torch.log(torch.exp(logits[8]) + torch.exp(logits[9])))

    keys = scope.encode(IDS, SPANS).span_positions()["irrelevant"]
    by_mode = []
    for mode in ("common", "differential"):
        each = np.array([log_odds() - log_odds(edits.inject_noise(0.5, mode, keys, seed)) for seed in (2, 3, 4)])
        by_mode.append(each)
        measured = lost.sel(mode=mode, sigma=0.5)
        assert float(measured["log_odds_lost"]) == pytest.approx(each.mean(), rel=1e-6, abs=1e-9)
        assert float(measured["log_odds_lost_error"]) == pytest.approx(each.std(ddof=1) / math.sqrt(3), rel=1e-6, abs=1e-9)
    more = by_mode[0] - by_mode[1]  # draw by draw
    assert float(lost["lost_to_common_more"].squeeze()) == pytest.approx(more.mean(), rel=1e-6, abs=1e-9)
    assert float(lost["lost_to_common_more_error"].squeeze()) == pytest.approx(
        more.std(ddof=1) / math.sqrt(3), rel=1e-6, abs=1e-9
    )
    assert float(lost["log_odds"]) == pytest.approx(log_odds(), rel=1e-9)
    common, opposite = lost["log_odds_lost"].squeeze()
    assert (float(common) == float(opposite)) == (attention == "standard")


def test_log_odds_that_mean_nothing_are_refused():
    scope = diffscope.load(tiny.own("v1"))
    for distractors in ([], [7, 8]):
        with pytest.raises(PromptError, match="not the answer's own"):
            diffscope.instruments.log_odds_under_noise(scope, IDS, 7, distractors)
    with pytest.raises(SpanError, match="no span 'needles'"):
        diffscope.instruments.log_odds_under_noise(scope, IDS, 7, [8], span="needles")
