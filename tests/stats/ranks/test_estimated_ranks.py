"""Effective ranks of maps that are never held, against those of all singular values."""

import math

import pytest
import torch

from diffscope.attention.layer import Mask
from diffscope.stats.collect import Request
from diffscope.stats.ranks import estimated, statistic
from diffscope.stats.ranks import exact as rank
from diffscope.stats.ranks.exact import LABELS
from diffscope.stats.ranks.implicit_map import ImplicitMaps
from diffscope.stats.ranks.lanczos import Lanczos
from tests.stats.ranks.test_implicit_map import times

NAMES = ("A1", "D", "permuted D")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Matrices this small are slower on several threads, and far slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _attending(layer, kind):
    """The layer with keys and queries that make maps of one kind."""
    q, k = layer.q.clone(), layer.k.clone()
    if kind == "diffuse":
        q, k = q * 0.3, k * 0.3
    elif kind == "sharp":
        q = q * 5
    elif kind == "sink":
        q[..., 0], k[..., 0], k[:, :, 0] = 6, 0, 0
        k[:, :, 0, 0] = 6
    elif kind == "local":
        turn = torch.arange(layer.n_keys, dtype=q.dtype)[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.03], dtype=q.dtype)
        where = 3 * torch.cat([turn.cos(), turn.sin()], dim=-1)
        q, k = 0.2 * q + where, 0.2 * k + where
    return type(layer)(**{**vars(layer), "q": q, "k": k})


def _truth(layer, names, seed=0):
    every = torch.eye(layer.n_keys, dtype=layer.dtype)
    held = times(ImplicitMaps(layer, 0, seed), dict.fromkeys(names, every))
    sigma = {name: rank.singular_values(a) for name, a in held.items()}
    return {name: torch.cat([rank.ranks(s), rank.rank_residual(s)]) for name, s in sigma.items()}


def _estimated(layer, names, **constants):
    """Return estimates of the first head, made with other constants of the module."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in constants.items():
            patch.setattr(estimated, name, value)
        return estimated.estimate(ImplicitMaps(layer, 0), names)


def _values(estimate):
    return torch.cat([estimate.ranks, estimate.residuals]), torch.cat([estimate.ranks_error, estimate.residuals_error])


@pytest.mark.parametrize("kind", ["diffuse", "random", "sharp", "sink", "local"])
def test_the_truth_is_within_the_half_width(make_layer, kind):
    """Three standard errors hold in 99 of 100 cases, so one in the hundreds of values here may be outside, by little."""
    layer = _attending(make_layer(tokens=300, heads=1, dtype=torch.float32), kind)
    truth, excess, close = _truth(layer, NAMES), [], []
    for seed in range(2):
        for tolerance in (0.3, 0.04):  # after few sweeps, and after many
            measured = _estimated(layer, NAMES, TOLERANCE=tolerance, WIDTH=16, SEED=seed)
            for name, estimate in measured.items():
                value, error = _values(estimate)
                excess.append((value - truth[name]).abs() / (error + 1e-9 * truth[name]))
                close.append((value / truth[name] - 1).abs())
                assert ((error <= tolerance * value) | (value == 0))[~value.isnan()].all()  # 0 is 0 within rounding
                assert value[: len(rank.DEFINITIONS)].isfinite().all()  # of a residual below 1e-3, rounding leaves little
    excess, close = torch.stack(excess).nan_to_num(0), torch.stack(close)  # (case, label)
    assert (excess <= 1).double().mean() >= 0.99
    assert excess.max() < 1.5
    energies = [LABELS.index(name) for name in ("erank_energy", "participation", "stable_rank")]
    assert close[1::2, energies].max() < 0.02


def _degenerate(layer, kind):
    """The layer with a first map of next to one weight a row, and 0.2 of a uniform second map."""
    n, generator = layer.n_keys, torch.Generator().manual_seed(5)
    turn = torch.arange(n)[:, None] * 3 * torch.rand(32, generator=generator)
    size, noise = {"previous token": (0.75, 0.3), "only the previous token": (0.9, 0.3)}.get(kind, (3, 0))
    before = turn if kind == "self" else turn - turn[1]
    q, k = (size * torch.cat([x.cos(), x.sin()], dim=-1) for x in (before, turn))
    q, k = (x + noise * torch.randn(n, 64, generator=generator) for x in (q, k))
    q, k = (torch.stack([x, torch.zeros_like(x)])[None] for x in (q, k))  # (1, map, token, width)
    return type(layer)(**{**vars(layer), "q": q, "k": k, "scale": 1.0})


@pytest.mark.parametrize("kind", ["previous token", "only the previous token", "self", "window of one", "sink"])
def test_the_truth_of_equal_singular_values_is_within_the_half_width(make_layer, kind):
    """A run finds a value that is there hundreds of times only as often as its block is wide; NaN would be honest too."""
    mask = Mask("window", window=1) if kind == "window of one" else Mask("causal")
    layer = make_layer(tokens=512, heads=1, dtype=torch.float32, lam=0.2, mask=mask)
    layer = _attending(layer, kind) if kind == "sink" else _degenerate(layer, kind)
    names = ("permuted A1",) if kind == "sink" else ("A1", "D", "permuted A1")  # a sink itself has no equal values
    truth, excess = _truth(layer, names), []
    for seed in range(2):
        for tolerance in (0.3, 0.04):
            measured = _estimated(layer, names, TOLERANCE=tolerance, WIDTH=32, SEED=seed)
            for name, estimate in measured.items():
                value, error = _values(estimate)
                excess.append((value - truth[name]).abs() / (error + 1e-6 * truth[name]))
    excess = torch.stack(excess).nan_to_num(0)
    assert (excess <= 1).double().mean() >= 0.99
    assert excess.max() < 1.5


def test_the_two_quadratures_lie_on_the_two_sides_of_the_truth(make_layer):
    """For each random vector by itself, where no chance is left."""
    layer = make_layer(tokens=120, heads=1)
    maps, d = ImplicitMaps(layer, 0), layer.rows().d[0]
    run = Lanczos(maps, 12, 5, torch.Generator().manual_seed(0))
    for _ in range(5):
        run.add(*maps.gram({"D": run.block})["D"])
    nodes, weights, others, other_weights, _ = run.quadratures()
    start = torch.randn(120, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values, vectors = torch.linalg.eigh(d.T @ d)
    for f in (torch.sqrt, torch.special.entr):
        truth = (vectors.T @ start).square().T @ f(values.clamp_min(0))  # (probe,)
        assert (weights.T @ f(nodes) > truth).all()
        assert (other_weights.T @ f(others) < truth).all()
    assert others[-1] < 1e-9 * others[0]


def test_a_spectrum_seen_whole_is_exact(make_layer):
    layer = make_layer(tokens=288, heads=1)
    truth = _truth(layer, ["A1"])["A1"]
    value, error = _values(_estimated(layer, ["A1"], TOLERANCE=1e-6, WIDTH=48)["A1"])
    torch.testing.assert_close(value, truth, rtol=1e-6, atol=0)
    assert (error <= 1e-6 * value).all()


@pytest.mark.parametrize("sink", [True, False])
def test_maps_of_rank_one_and_zero(make_layer, sink):
    """All weight on one key, or the same on all: what is off the first vectors is rounding, and must not count."""
    layer = make_layer(tokens=288, heads=1, dtype=torch.float32, lam=1.0, mask=Mask("causal") if sink else Mask("full"))
    q, k = torch.zeros_like(layer.q), torch.zeros_like(layer.k)
    if sink:
        q[..., 0], k[:, :, 0, 0] = 1, 1000
    layer = type(layer)(**{**vars(layer), "q": q, "k": k})
    measured = _estimated(layer, ["A1", "D"])
    assert measured["A1"].ranks == pytest.approx(torch.ones(5, dtype=torch.float64), rel=0.01)
    assert measured["A1"].residuals.eq(0).all() and not measured["A1"].why  # 0 as far as rounding tells
    assert measured["A1"].sweeps < 6  # ends where only rounding is left
    assert measured["D"].ranks.isnan().all() and measured["D"].residuals.isnan().all()
    assert set(measured["D"].why) == set(LABELS)


def test_what_is_not_close_enough_is_nan_and_says_why(make_layer):
    layer = make_layer(tokens=288, heads=1, dtype=torch.float32)
    measured = _estimated(layer, ["A1"], TOLERANCE=0.01, SWEEPS=3, WIDTH=16)["A1"]
    erank = LABELS.index("erank")
    assert measured.sweeps == 3
    assert math.isnan(measured.ranks[erank]) and not math.isnan(measured.ranks[LABELS.index("stable_rank")])
    assert "after 3 sweeps, 1% asked" in measured.why["erank"] and "stable_rank" not in measured.why
    assert set(measured.why) == {
        label for label, value in zip(LABELS, _values(measured)[0].tolist(), strict=True) if value != value
    }


def test_a_later_look_does_not_replace_a_closer_one(make_layer, monkeypatch):
    layer = make_layer(tokens=288, heads=1, dtype=torch.float32)
    looks = iter([(5.0, 1.0), (9.0, 2.0), (math.nan, math.nan), (6.0, 0.5)])
    monkeypatch.setattr(estimated, "CHECKED_AFTER", (1, 2, 3))
    monkeypatch.setattr(estimated, "_values", lambda *_: torch.tensor([next(looks)] * len(LABELS), dtype=torch.float64))
    seen = []
    monkeypatch.setattr(
        estimated, "_within", lambda values, *_, within=estimated._within: seen.append(values[0].tolist()) or within(values, *_)
    )
    measured = _estimated(layer, ["A1"], TOLERANCE=0.01, SWEEPS=4, WIDTH=16)["A1"]
    assert seen == [[5, 1], [5, 1], [5, 1], [6, 0.5]]
    assert measured.ranks_error.eq(0.5).all() and measured.why["erank"] == "within 8% after 4 sweeps, 1% asked"


def test_what_no_map_can_have_is_refused(make_layer, monkeypatch):
    layer = make_layer(tokens=288, heads=1, dtype=torch.float32)
    for impossible in ((0.5, 0.01), (400.0, 1.0), (50.0, math.inf)):
        monkeypatch.setattr(estimated, "_by_quadrature", lambda *_, found=impossible: found)
        found = _estimated(layer, ["A1"], SWEEPS=3)["A1"]
        assert found.ranks[:3].isnan().all() and found.ranks[3].isfinite()
        assert found.why["erank"] == "no possible value and bound after 3 sweeps"


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("limit", [299, 4096])
def test_a_map_that_is_not_finite_has_no_rank_and_says_why(make_layer, wrong, limit, monkeypatch):
    monkeypatch.setattr(rank, "LARGEST", limit)
    layer = make_layer(tokens=300, heads=1, dtype=torch.float32)
    k = layer.k.clone()
    k[0, 0, 50] = wrong
    request = Request(type(layer)(**{**vars(layer), "k": k}), {}, torch.arange(300))
    assert statistic.effective_rank(request)[0, [0, 2], :, 0].isnan().all()
    assert statistic.effective_rank(request)[0, 1, :, 0].isfinite().all()
    assert statistic.rank_residual(request)[0, [0, 2]].isnan().all()
    assert "the map is not finite" in statistic.attrs_of_ranks(request)["unknown"]


@pytest.mark.parametrize("queries", [1, 2, 40])
def test_few_queries_on_a_long_cache_have_exact_ranks(make_layer, queries, monkeypatch):
    whole_prompt = make_layer(tokens=300, heads=1, dtype=torch.float32)
    layer = type(whole_prompt)(**{**vars(whole_prompt), "q": whole_prompt.q[:, :, -queries:], "lengths": (queries,)})
    truth = _truth(layer, ("A1", "D"))
    draws = torch.stack([_truth(layer, ("permuted D",), seed)["permuted D"] for seed in range(rank.DRAWS)])
    monkeypatch.setattr(rank, "LARGEST", 100)
    measured = statistic.layer_ranks(layer)
    assert not measured.why and measured.ranks_error[..., [0, 1, 3]].eq(0).all()
    torch.testing.assert_close(measured.ranks[0, 0, :, 0], truth["A1"][: len(rank.DEFINITIONS)], rtol=1e-6, atol=0)
    torch.testing.assert_close(measured.ranks[0, 2, :, 2], draws.mean(0)[: len(rank.DEFINITIONS)], rtol=1e-6, atol=0)
    spread = (draws.var(0) / rank.DRAWS).sqrt()[: len(rank.DEFINITIONS)]
    torch.testing.assert_close(measured.ranks_error[0, 2, :, 2], spread, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(measured.residuals[0, 2], truth["D"][len(rank.DEFINITIONS) :], rtol=1e-6, atol=1e-6)
    assert statistic.bytes_of_estimates(layer) > 0


@pytest.mark.parametrize("queries", [600, 300])
def test_the_uniform_map_of_a_full_mask_is_known(make_layer, queries):
    layer = make_layer(tokens=600, heads=1, mask=Mask("full"))
    layer = type(layer)(**{**vars(layer), "q": layer.q[:, :, :queries], "lengths": (queries,)})
    known = statistic._estimated_uniform(layer)
    sigma = rank.singular_values(rank.uniform_map(layer.visible()))
    torch.testing.assert_close(known.ranks, rank.ranks(sigma))
    assert known.residuals.eq(0).all() and known.ranks_error.eq(0).all()


def test_the_forecast_bounds_what_the_runs_hold_and_groups_of_maps_change_nothing(make_layer, monkeypatch):
    layer = make_layer(tokens=300, heads=1, dtype=torch.float32)
    assert statistic.bytes_of_estimates(layer) == 0
    monkeypatch.setattr(rank, "LARGEST", 299)
    run = Lanczos(ImplicitMaps(layer, 0), 64, 4, torch.Generator())
    held = sum(x.nbytes for x in (run._basis, run._images))
    together, item = statistic.layer_ranks(layer), estimated.bytes_of_one(layer)
    assert held < item
    assert statistic.bytes_of_estimates(layer) == 6 * item  # A1, A2 (lambda_A2 is that, scaled) and D, and all three permuted
    monkeypatch.setattr(statistic, "MAX_BYTES_OF_RUNS", 2 * item)
    assert statistic.bytes_of_estimates(layer) == 2 * item
    apart = statistic.layer_ranks(layer)
    assert ((apart.ranks - together.ranks).abs() <= apart.ranks_error + together.ranks_error)[~apart.ranks.isnan()].all()
    assert torch.equal(apart.ranks.isnan(), together.ranks.isnan())


def _decomposed(layer):
    """Return exact ranks and residuals, with the permutations that the estimates use."""
    uniform = rank.estimate(rank.uniform_map(layer.visible()).to(layer.dtype))
    every = torch.eye(layer.n_keys, dtype=layer.dtype)
    ranked = ["A1", "lambda_A2", "D"] if layer.differential else ["A1"]
    plain = ["A1", "A2", "D"] if layer.differential else ["A1"]
    ranks, residuals = [], []
    for head in range(layer.n_heads):
        maps = times(ImplicitMaps(layer, head), {name: every for name in {*ranked, *plain}})
        draws = []
        for draw in range(rank.DRAWS):
            permuted = ImplicitMaps(layer, head, seed=head + draw * layer.n_heads)
            draws.append(times(permuted, {f"permuted {name}": every for name in ranked}))
        of = {
            name: rank.beside_controls(
                rank.estimate(maps[name]), uniform, [rank.estimate(each[f"permuted {name}"]) for each in draws]
            )[0]
            for name in ranked
        }
        left = {name: rank.estimate(maps[name]).residuals for name in plain}
        nothing = torch.full_like(of["A1"], math.nan), torch.full_like(left["A1"], math.nan)
        ranks.append(torch.stack([of["A1"], of.get("lambda_A2", nothing[0]), of.get("D", of["A1"])]))
        residuals.append(torch.stack([left["A1"], left.get("A2", nothing[1]), left.get("D", left["A1"])]))
    return torch.stack(ranks), torch.stack(residuals)


@pytest.mark.parametrize("kind", ["scalar", "by token", "window", "standard"])
def test_a_layer_above_the_limit_has_the_same_statistics_within_their_errors(make_layer, kind, monkeypatch):
    tokens = 240 if kind == "window" else 160  # the ranks of a window's maps are higher
    lam = torch.linspace(0.2, 0.9, tokens).view(1, 1, tokens) if kind == "by token" else 0.8
    mask = Mask("window", window=20) if kind == "window" else Mask("causal")
    layer = make_layer(tokens=tokens, heads=2, dtype=torch.float32, lam=lam, mask=mask, differential=kind != "standard")
    exact = statistic.layer_ranks(layer)
    assert exact.sweeps == 0 and exact.ranks_error[..., [0, 1, 3]].nan_to_num().eq(0).all()
    truth = _decomposed(layer)
    torch.testing.assert_close(exact.ranks[..., [0, 1, 3]], truth[0][..., [0, 1, 3]], rtol=1e-4, atol=0, equal_nan=True)
    torch.testing.assert_close(exact.residuals, truth[1], rtol=1e-4, atol=1e-6, equal_nan=True)
    monkeypatch.setattr(rank, "LARGEST", tokens - 1)
    monkeypatch.setattr(estimated, "HELD_UP_TO", 128)
    monkeypatch.setattr(estimated, "WIDTH", 32)
    request = Request(layer, {}, torch.arange(tokens))
    measured = statistic.effective_rank(request), statistic.rank_residual(request)
    errors = statistic.effective_rank_error(request), statistic.rank_residual_error(request)
    for value, expected, error in zip(measured, truth, errors, strict=True):
        assert value.shape == expected.shape == error.shape
        assert torch.equal(value.isnan(), expected.isnan())
        assert ((value - expected).abs() <= 1.3 * error + 1e-5 * expected.abs())[~value.isnan()].all()
    monkeypatch.setattr(estimated, "TOLERANCE", 1e-9)
    monkeypatch.setattr(estimated, "SWEEPS", 1)
    assert statistic.layer_ranks(layer).why[0].startswith("head 0, A1: ")


def test_a_map_of_zeros_says_that_it_is_zero_whether_exact_or_estimated(make_layer, monkeypatch):
    layer = make_layer(tokens=300, heads=1, lam=0.0)
    for limit in (300, 299):
        monkeypatch.setattr(rank, "LARGEST", limit)
        request = Request(layer, {}, torch.arange(300))
        assert statistic.effective_rank(request)[0, 1, :, 0].isnan().all()
        assert "head 0, lambda_A2: the map is zero; " in statistic.attrs_of_ranks(request)["unknown"]
