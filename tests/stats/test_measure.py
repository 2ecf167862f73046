"""The engine: the same numbers as from whole maps, one block at a time, and only what was asked for."""

import math
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from diffscope.attention import blocks
from diffscope.attention.blocks import Workers
from diffscope.attention.changes import DropKeys
from diffscope.attention.layer import LayerAttention, Mask
from diffscope.errors import DiffscopeError, SpanError
from diffscope.stats import KINDS, STATISTICS, measure_layer, moments
from diffscope.stats.dataset import agreed
from diffscope.stats.measure import measure_layers, requests_of
from diffscope.stats.ranks import exact as rank
from diffscope.stats.registry import LABELS, select
from tests.stats import logsumexp
from tests.stats.test_row_statistics import _oracle

SPANS = {
    "sink": torch.tensor([0]),
    "answer": torch.tensor([5, 6, 7]),
    "context": torch.tensor([1, 2, 3, 4, *range(8, 24)]),
}
BY_QUERY = [name for name, statistic in STATISTICS.items() if "query" in statistic.dims]


@pytest.fixture(scope="module")
def layer(make_layer):
    return make_layer()


@pytest.fixture(scope="module")
def whole(layer):
    """Everything about a layer, from one block."""
    return measure_layer(layer, ["all"], spans=SPANS)


def _taken(layer, statistics, **how):
    return measure_layers(requests_of([layer], SPANS, None, None), select(statistics), **how)[0]


@contextmanager
def blocks_of(rows):
    """Blocks of so many rows, of one head where heads are not compared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(blocks.BLOCK_BYTES, "cpu", 1)
        patch.setattr(blocks, "MIN_ROWS", rows)
        yield


def _softmax(logits, visible):
    weights = np.where(visible, np.exp(logits - logits.max()), 0)
    return weights / weights.sum(-1, keepdims=True)


def test_every_statistic_is_as_the_table_says(whole):
    assert set(whole) == set(STATISTICS)
    for name, values in whole.items():
        statistic = STATISTICS[name]
        assert values.dims == statistic.dims
        assert (values.attrs["units"], values.attrs["long_name"]) == (statistic.units, statistic.description)
        assert values.attrs["definition"] == statistic.formula
        assert values.notnull().any(), name
        for dim in set(values.dims) & set(LABELS):
            assert tuple(values[dim].values) == tuple(LABELS[dim])
    assert list(whole["span"].values) == list(SPANS)


@pytest.mark.parametrize("rows", [1, 5])
def test_blocks_do_not_change_the_result(layer, whole, rows):
    with blocks_of(rows):
        xr.testing.assert_allclose(measure_layer(layer, ["all"], spans=SPANS), whole, rtol=1e-12)


@pytest.mark.parametrize("mask", [Mask("causal"), Mask("window", window=6), Mask("full")], ids=lambda mask: mask.kind)
def test_values_against_maps_made_by_hand(make_layer, mask):
    layer = make_layer(mask=mask, lam=0.7)
    query, key = np.arange(24)[:, None], np.arange(24)[None, :]
    visible = {"causal": key <= query, "window": (key <= query) & (key > query - 6), "full": key >= 0}[mask.kind]
    visible = np.broadcast_to(visible, (24, 24))
    logits = layer.scale * (layer.q[0] @ layer.k[0].mT).numpy()
    a1, a2 = _softmax(logits[2], visible), _softmax(logits[3], visible)  # head 1
    d = a1 - 0.7 * a2
    names = ["entropy", "span_mass", "overlap", "js", "effective_rank", "logit_outliers"]
    measured = measure_layer(layer, names, spans=SPANS).sel(head=1)
    row = measured.sel(query=20)
    answer = [5, 6, 7]
    share = np.abs(d[20]) / np.abs(d[20]).sum()
    np.testing.assert_allclose(row["entropy"].values, [scipy.stats.entropy(a) for a in (a1[20], a2[20], share)])
    if mask.kind != "window":
        expected = [d[20, answer].sum(), share[answer].sum(), d[20, answer].sum() / 0.3]
        expected.append(d[20, answer].clip(0).sum() / d[20].clip(0).sum())
        np.testing.assert_allclose(row["span_mass"].sel(span="answer", map="D").values, expected)
        overlap = 1 - np.abs(a1 - a2)[20, answer].sum() / (a1 + a2)[20, answer].sum()
        np.testing.assert_allclose(row["overlap"].sel(span="answer"), overlap)
    else:
        assert row[["span_mass", "overlap", "js"]].sel(span="answer").isnull().all().to_array().all()
    sigma = np.linalg.svd(visible / visible.sum(-1, keepdims=True), compute_uv=False)
    uniform = measured["effective_rank"].sel(ranked_map="D", definition="stable_rank", control="uniform")
    np.testing.assert_allclose(uniform, np.sum(sigma**2) / sigma[0] ** 2)
    seen = np.sort(np.abs(logits[:, visible]).ravel())
    result = measured["logit_outliers"].sel(outlier=["top_3", "median"])
    np.testing.assert_allclose(result, [seen[-3], np.median(seen)])


def test_chosen_queries_are_those_of_the_whole(layer, whole):
    some = measure_layer(layer, BY_QUERY, spans=SPANS, queries=[23, 4])
    xr.testing.assert_allclose(some, whole[BY_QUERY].sel(query=[23, 4]), rtol=1e-12)


def test_float32_agrees_with_float64(make_layer, whole):
    single = measure_layer(make_layer(dtype=torch.float32), ["all"], spans=SPANS)
    for name in whole:
        np.testing.assert_allclose(single[name], whole[name], rtol=2e-3, atol=2e-5, err_msg=name)


def test_standard_attention_says_why_it_has_no_second_map(make_layer):
    measured = measure_layer(make_layer(differential=False), ["all"], spans=SPANS)
    for name, values in measured.items():
        if "map" in values.dims:
            assert values.sel(map="A2").isnull().all() and "A2 is NaN" in values.attrs["why"]
            xr.testing.assert_equal(values.sel(map="D", drop=True), values.sel(map="A1", drop=True))
            assert values.sel(map="D").notnull().any()
        elif STATISTICS[name].kind == "branch" or name in ("lambda", "cmrr"):
            assert values.isnull().all() and values.attrs["why"]
    assert measured["effective_rank"].sel(ranked_map="lambda_A2").isnull().all()
    assert not any("why" in measured[name].attrs for name in ("head_cka", "logit_outliers"))


DROPPED = (DropKeys((0, 1, 2), (18,), None, (1, 2), "kept"),)


@pytest.mark.parametrize("changed, seen", [((), range(6)), (DROPPED, range(5))])
def test_the_largest_logits_are_of_visible_keys_alone(make_layer, changed, seen):
    """A sliding window of 3 keys and a large sink logit: larger scores lie beyond the window, and no key has the sink logit."""
    layer = make_layer(mask=Mask("window", window=3))
    maps = layer.q.shape[1]
    layer = replace(
        layer,
        q=torch.ones_like(layer.q[..., :1]),
        k=torch.arange(23.0, -1, -1, dtype=torch.float64)[:, None].expand(1, maps, 24, 1),  # the first key's are the largest
        scale=1.0,
        sink_logit=torch.full((maps,), 1000.0, dtype=torch.float64),
        changes=changed,
    )
    values = measure_layer(layer, ["logit_outliers"], queries=[20, 23])["logit_outliers"]  # which see keys 18 to 20 and 21 to 23
    top, median = (float(values.sel(outlier=label)) for label in ("top_1", "median"))
    assert (top, median) == (max(seen), np.median(list(seen)))


def test_the_first_query_says_nothing(whole):
    for name in set(BY_QUERY) - {"row_sum", "lambda", "cmrr"}:
        assert whole[name].sel(query=0).isnull().all(), name


def test_rows_of_d_sum_to_gain_less_lambda(make_layer):
    lam = np.array([0.3, 0.5, 1.4])
    sums = measure_layer(make_layer(lam=torch.from_numpy(lam).reshape(1, 3, 1), gain=1.5), ["row_sum", "lambda", "cmrr"])
    np.testing.assert_allclose(sums["row_sum"].sel(map="D", query=9), 1.5 - lam)
    np.testing.assert_allclose(sums["row_sum"].sel(map="A2"), 1)
    values = sums["lambda"].sel(query=9, lambda_value=["used", "init", "minus_init"])
    np.testing.assert_allclose(values, np.stack([lam, [0.2] * 3, lam - 0.2], -1))
    np.testing.assert_allclose(sums["cmrr"].sel(query=9), 20 * np.log10((1.5 + lam) / 2 / (1.5 - lam)))


def test_lambda_before_its_cast_is_kept_apart(make_layer):
    layer = make_layer(lam=torch.full((1, 1, 1), 0.8).bfloat16(), dtype=torch.float32)
    object.__setattr__(layer, "lam_fp32", torch.full((1, 1, 1), 0.8))
    used, fp32 = measure_layer(layer, ["lambda"])["lambda"].sel(head=0, query=3, lambda_value=["used", "fp32"]).values
    assert (used, fp32) == (0.80078125, pytest.approx(0.8, abs=1e-7))


def test_a_scalar_lambda_cancels_in_the_rank_of_lambda_a2(make_layer):
    by_token = torch.linspace(0.1, 1.5, 24, dtype=torch.float64).expand(1, 3, 24)
    rank = {
        name: measure_layer(make_layer(lam=lam), ["effective_rank"])["effective_rank"]
        for name, lam in {"scalar": 0.8, "other scalar": 0.3, "by token": by_token}.items()
    }
    subtracted = {name: values.sel(ranked_map="lambda_A2", control="map") for name, values in rank.items()}
    np.testing.assert_allclose(subtracted["scalar"], subtracted["other scalar"])
    assert np.abs(subtracted["by token"] / subtracted["scalar"] - 1).max() > 0.01
    assert "cancels" in rank["scalar"].attrs["lambda"] and "does not cancel" in rank["by token"].attrs["lambda"]


def test_sinks_are_averaged_over_queries_then_heads(make_layer):
    layer = make_layer()
    layer.k[0, :, 0] = 0
    layer.q[0, :4, :, 0], layer.k[0, :4, 0, 0] = 6, 6  # heads 0 and 1 look at the first key
    measured = measure_layer(layer, ["sink_rate", "column_sink", "column_sink_position", "sink_mass"])
    assert float(measured["sink_rate"].sel(map="A1", sink_set="S", normalisation="share")) == pytest.approx(2 / 3)
    assert measured["column_sink_position"].sel(map="A1", normalisation="share", head=[0, 1]).values.tolist() == [0, 0]
    mean = measured["sink_mass"].sel(sink_set="S").mean("query")
    heads = [0, 1]
    np.testing.assert_allclose(measured["column_sink"].sel(map="A2", head=heads), mean.sel(map="A2", head=heads))
    assert measured["sink_rate"].attrs["averaged_over"] == "queries, then heads"
    against = measure_layer(make_layer(lam=5.0), ["column_sink", "column_sink_position"], queries=[1])  # sees two keys of 24
    raw = {name: values.sel(map="D", normalisation="raw") for name, values in against.items()}
    assert raw["column_sink"].min() < 0 and set(raw["column_sink_position"].values.tolist()) <= {0, 1}


def test_the_sink_of_the_request_is_used(layer):
    moved = measure_layer(layer, ["sink_mass"], spans={"sink": torch.tensor([2])})["sink_mass"].sel(sink_set="S")
    same = measure_layer(layer, ["span_mass"], spans={"third": torch.tensor([2])})["span_mass"].sel(span="third")
    np.testing.assert_array_equal(moved, same)


class _Spy:
    """Counts the rows of logits that are computed and the largest block of rows; serves several threads."""

    def __init__(self, monkeypatch):
        self.maps, self.sizes = 0, []
        logits, rows = LayerAttention.logits, LayerAttention.rows

        def counted(layer, *args, **kwargs):
            values = logits(layer, *args, **kwargs)
            self.maps += values.shape[0] * values.shape[1]
            return values

        def sized(layer, *args, **kwargs):
            values = rows(layer, *args, **kwargs)
            self.sizes.append(values.a1.numel())
            return values

        monkeypatch.setattr(LayerAttention, "logits", counted)
        monkeypatch.setattr(LayerAttention, "rows", sized)


def test_each_map_is_computed_once_and_one_block_at_a_time(layer, monkeypatch):
    spy = _Spy(monkeypatch)
    with blocks_of(5):
        measure_layer(layer, ["row", "span", "branch", "map_distance", "head_cka"], spans=SPANS)
    assert spy.maps == 6 * 24
    seen = [(5, 24), (5, 19), (5, 14), (5, 9), (4, 4)]  # rows of each block and keys up to its last query, from the end
    assert spy.sizes == [3 * rows * keys for rows, keys in seen]


@pytest.mark.parametrize("mask", [Mask("causal"), Mask("window", 6), Mask("full")], ids=lambda mask: mask.kind)
def test_leaving_out_later_keys_changes_nothing(make_layer, mask, monkeypatch):
    """Key sets and a sink that early blocks do not reach, queries in any order, blocks of one row and of several."""
    layer = make_layer(mask=mask)
    spans = {
        "sink": torch.tensor([9]),
        "late": torch.arange(18, 22),
        "apart": torch.tensor([2, 5, 23]),
        "first": torch.tensor([0]),
    }
    wanted = ["row", "span", "branch", "map_distance", "head_cka", "column_sink", "sink_rate"]
    requested = ([7, 0, 23, 11, 3], 16), (None, 5), (None, 1)  # queries, rows of a block

    def measured():
        for queries, rows in requested:
            with blocks_of(rows):
                yield measure_layer(layer, wanted, spans=spans, queries=queries)

    trimmed = list(measured())
    monkeypatch.setattr(LayerAttention, "visible_rows", LayerAttention.rows)
    for some, whole in zip(trimmed, measured()):
        xr.testing.assert_allclose(some, whole, rtol=1e-12, atol=1e-14)


def test_what_needs_no_map_computes_none(layer, monkeypatch):
    spy = _Spy(monkeypatch)
    assert set(measure_layer(layer, ["lambda", "cmrr"])) == {"lambda", "cmrr"}
    assert spy.maps == 0


def test_what_several_statistics_are_made_of_is_taken_once_a_block(layer, monkeypatch):
    logarithms, log = [], np.log
    monkeypatch.setattr(moments.np, "log", lambda x, out: logarithms.append(x.shape) or log(x, out=out))
    measure_layer(layer, ["entropy", "entropy_normalised", "effective_tokens", "span_mass"], spans=SPANS)
    assert logarithms == [(3, 3, 24, 24)]  # A1, A2, |D| of all heads together
    measure_layer(layer, ["gini", "near_zero"])
    assert len(logarithms) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_stands_for_its_statistics(kind):
    assert [statistic.kind for statistic in select(kind)] == [kind] * len(select(kind)) != []
    assert set(select(kind)) <= set(select("all")) == set(STATISTICS.values())


def test_by_default_the_row_statistics(layer):
    assert set(measure_layer(layer)) == {name for name, statistic in STATISTICS.items() if statistic.kind == "row"}
    ranks = ["effective_rank", "effective_rank_error", "rank_residual", "rank_residual_error"]
    assert list(measure_layer(layer, ["gini", "rank", "gini"])) == ["gini", *ranks]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(statistics=["ginni"]), "did you mean gini"),
        (dict(statistics=["zzz"]), "choose from entropy, "),
        (dict(queries=[24]), "outside the prompt's tokens 0 to 23"),
        (dict(queries=1.5), "whole numbers in one row"),
        (dict(queries={}), "whole numbers in one row"),
        (dict(queries=[]), "no query"),
    ],
)
def test_errors_say_what_to_do(layer, arguments, message):
    with pytest.raises(DiffscopeError, match=message):
        measure_layer(layer, **arguments)


def test_an_unknown_name_is_a_value_error_too(layer):
    with pytest.raises(ValueError):
        measure_layer(layer, ["ginni"])


@pytest.mark.parametrize("keys", [[24], [-25]])
def test_a_span_outside_of_the_prompt_is_refused(layer, keys):
    with pytest.raises(SpanError, match="'answer': positions .* outside the prompt's tokens 0 to 23"):
        measure_layer(layer, ["span_mass"], spans={"answer": keys})


def test_ranks_of_long_prompts_are_estimated_and_say_so(make_layer, monkeypatch):
    layer = make_layer(tokens=200, heads=2)
    exact = measure_layer(layer, "rank")
    error = exact["effective_rank_error"]
    assert (error.drop_sel(control=["permuted", "ratio_permuted"]) == 0).all()
    assert (error.sel(control="permuted", definition="erank") > 0).all() and "estimated" not in exact["effective_rank"].attrs
    monkeypatch.setattr(rank, "LARGEST", 128)
    measured = measure_layer(layer, "rank")
    for name in ("effective_rank", "rank_residual"):
        assert "matrix-free" in measured[name].attrs["estimated"]
        off = np.abs(measured[name] - exact[name])
        if name == "effective_rank":  # its permutations are others
            off = off.sel(control=["map", "uniform"])
        known = off.notnull()
        assert known.mean() > 0.8
        error = measured[f"{name}_error"].broadcast_like(measured[name])
        assert not (off > 1.5 * error + 1e-6 * exact[name]).any()


def test_an_empty_span_is_undefined(layer):
    measured = measure_layer(layer, ["span_mass", "branch"], spans={"answer": []})
    assert all(values.isnull().all() for values in measured.values())


def test_one_value_cannot_stand_for_several_prompts(layer):
    with pytest.raises(ValueError, match="2 prompts"):
        measure_layer(type(layer)(**{**vars(layer), "lengths": (24, 24)}), ["gini"])


@pytest.mark.gpu
def test_a_gpu_measures_the_same(make_layer, whole):
    layer = make_layer()
    moved = {name: getattr(layer, name).cuda() for name in ("q", "k", "v", "lam", "gain", "lam_fp32")}
    pairing = type(layer.pairing)(*(getattr(layer.pairing, name).cuda() for name in vars(layer.pairing)))
    on_gpu = type(layer)(**{**vars(layer), **moved, "pairing": pairing})
    xr.testing.assert_allclose(measure_layer(on_gpu, ["all"], spans=SPANS), whole, rtol=1e-9)
    assert math.isfinite(float(measure_layer(on_gpu, ["gini"])["gini"].sel(head=0, map="D", query=5)))


def test_residuals_are_of_the_second_map_itself(make_layer):
    """A λ of each token does not cancel: the residual of λ·A2 is another number."""
    lam = torch.linspace(0.1, 1.5, 24, dtype=torch.float64).expand(1, 3, 24)
    layer = make_layer(lam=lam)
    measured = measure_layer(layer, ["rank_residual"])["rank_residual"]
    rows = layer.rows(heads=[1])
    for name, a in {"A1": rows.a1, "A2": rows.a2, "D": rows.d}.items():
        u, s, v = np.linalg.svd(a[0].numpy())
        left = np.linalg.norm(a[0].numpy() - u[:, :4] * s[:4] @ v[:4]) / np.linalg.norm(a[0].numpy())
        assert float(measured.sel(head=1, map=name, rank=4)) == pytest.approx(left, rel=1e-6), name


def test_positions_and_decibels_have_no_mean():
    not_averaged = {name for name, statistic in STATISTICS.items() if statistic.averaged == "not"}
    assert not_averaged == {name for name, statistic in STATISTICS.items() if statistic.units in ("position", "dB")}


def test_threads_and_their_number_change_nothing(make_layer, monkeypatch):
    """Sums over blocks too, whichever thread is faster; and torch is left as it was."""
    monkeypatch.setattr("diffscope.attention.blocks.MIN_PARALLEL_VALUES", 0)
    layer, before = make_layer(tokens=60, dtype=torch.float32), torch.get_num_threads()
    wanted = ["row", "span", "branch", "map_distance", "head_cka"]
    with blocks_of(1):
        alone = _taken(layer, wanted)
    for count in (2, 3):
        with Workers(count) as workers, blocks_of(1):
            together = _taken(layer, wanted, workers=workers)
            assert workers._pool is not None
        for name, values in alone.values.items():
            np.testing.assert_array_equal(together.values[name], values, err_msg=name)
    assert torch.get_num_threads() == before


def test_results_come_in_the_order_of_the_tasks_and_errors_come_through():
    def slow_first(number):
        def task(workspace):
            time.sleep(0.05 if number == 0 else 0)
            if number == 7:
                raise DiffscopeError("seven")
            return number, torch.get_num_threads(), torch.is_grad_enabled()

        return task

    with Workers(2) as workers:
        assert list(workers.run(map(slow_first, range(6)))) == [(number, 1, False) for number in range(6)]
        with pytest.raises(DiffscopeError, match="seven"):
            list(workers.run(map(slow_first, range(20))))


def test_the_default_blocks_give_what_small_ones_give(make_layer):
    """Several heads a block, one head a block, more rows than fit: all but rounding."""
    layer = make_layer(tokens=300, heads=5)
    whole = _taken(layer, ["row", "sink_rate", "map_distance"])
    for rows in (3, 16):
        with blocks_of(rows):
            measured = _taken(layer, ["row", "sink_rate", "map_distance"])
        for name, values in whole.values.items():
            np.testing.assert_allclose(measured.values[name], values, rtol=1e-9, atol=1e-12, err_msg=name)


@given(
    st.integers(3, 40),
    st.sampled_from([Mask("causal"), Mask("full")]),
    st.sampled_from([0.0, 0.7, 1.0, 1.6]),
    st.sampled_from([0, 2]),
    st.floats(0.01, 8),
    st.integers(0, 3),
)
def test_rows_agree_with_log_sum_exp_identities(make_layer, tokens, mask, lam, cached, sharpness, seed):
    layer = make_layer(tokens=tokens, mask=mask, lam=lam, gain=0.9, seed=seed)
    layer = replace(layer, q=layer.q[:, :, cached:] * sharpness, lengths=(tokens - cached,))
    names = ["entropy", "effective_tokens", "participation", "hoyer", "pseudo_norm"]
    of_pair = logsumexp.of_pair(layer)
    measured = measure_layer(layer, [*names, *of_pair], spans={"every": torch.arange(tokens)})
    n = layer.mask.counts(torch.arange(layer.n_queries), tokens, cached).double()
    several = (n > 1).numpy()
    for name, maps in (("A1", layer.pairing.a1), ("A2", layer.pairing.a2)):
        oracle = logsumexp.of_branch(logsumexp.Branch(layer, maps), n)
        for statistic in names:
            values = measured[statistic].sel(map=name).values[:, several]
            np.testing.assert_allclose(values, oracle[statistic][:, several], rtol=1e-6, atol=1e-9, err_msg=statistic)
    for statistic, values in of_pair.items():
        np.testing.assert_allclose(
            measured[statistic].sel(span="every").values[:, several], values[:, several], rtol=1e-6, atol=1e-7, err_msg=statistic
        )


def test_a_back_end_that_cannot_serve_says_why(layer):
    for name in ("fast", "stock"):
        with pytest.raises(DiffscopeError, match="choose from blocks, triton"):
            measure_layer(layer, "lambda", backend=name)
    pytest.importorskip("triton")
    with pytest.raises(DiffscopeError, match="not on a CUDA device; take 'blocks'"):
        measure_layer(layer, "gini", backend="triton")


def test_what_is_said_of_layers_is_true_of_all_of_them():
    printed = [{"units": "1", "error_bound": 0.1, "backend": "triton"}, {"units": "1", "error_bound": 0.3}, {"units": "1"}]
    names = ["layer 0", "layer 1", "layer 2"]
    assert agreed(printed, names) == {"units": "1", "error_bound": 0.3, "backend": "layer 0: triton"}
    assert agreed([{"why": "a"}, {}, {"why": "a"}], names)["why"] == "layer 0, layer 2: a"
    assert agreed([{"why": "a"}, {"why": "b"}, {"why": "b"}], names)["why"] == "layer 0: a; layer 1, layer 2: b"


def test_a_gain_without_a_second_map_is_refused(make_layer):
    with pytest.raises(DiffscopeError, match="one map and a gain"):
        measure_layer(make_layer(differential=False, gain=1.7), "gini")


@st.composite
def _hard_layers(draw, make_layer):
    """Masks with blind rows, heads that share maps, λ by token around 0 and 1, near-one-hot rows."""
    tokens, heads = draw(st.integers(2, 30)), draw(st.integers(1, 3))
    seed = draw(st.integers(0, 10_000))
    generator = torch.Generator().manual_seed(seed)
    kind = draw(st.sampled_from(["causal", "window", "full", "given"]))
    visible = torch.rand(1, tokens, tokens, generator=generator) < 0.4
    visible[0, :: draw(st.integers(2, 5))] = False  # padding: rows that see nothing
    argument = {"visible": visible} if kind == "given" else {"window": draw(st.integers(1, 6))} if kind == "window" else {}
    lam = torch.rand(1, heads, tokens, generator=generator).double() * 2
    lam[..., : draw(st.integers(0, tokens))] = draw(st.sampled_from([0.0, 1.0, 1.6]))
    layer = make_layer(tokens=tokens, heads=heads, mask=Mask(kind, **argument), lam=lam, seed=seed)
    pairing = replace(layer.pairing, key_of_map=layer.pairing.key_of_map // draw(st.integers(1, 2)))
    if draw(st.booleans()):  # one second map for all heads
        pairing = replace(pairing, a2=pairing.a2[:1].expand(heads).clone())
    return replace(layer, q=layer.q * draw(st.sampled_from([0.0, 1.0, 30.0, 1000.0])), pairing=pairing)


@given(st.data())
def test_blocks_agree_with_rows_one_by_one(make_layer, data):
    """The engine, in float64 and float32, against definitions in numpy on rows made one by one."""
    layer = data.draw(_hard_layers(make_layer))
    names = ["entropy", "participation", "gini", "hoyer", "pseudo_norm", "near_zero", "negative_share"]
    single = replace(layer, q=layer.q.float(), k=layer.k.float(), v=layer.v.float())
    measured = {}
    for item in (layer, single):
        with blocks_of(data.draw(st.integers(1, 9))):
            measured[item.dtype] = measure_layer(item, [*names, "row_sum"])
    held = {
        dtype: {name: values.transpose("head", "map", "query").values for name, values in dataset[names].items()}
        for dtype, dataset in measured.items()
    }
    offset = layer.n_keys - layer.n_queries
    for head in range(layer.n_heads):
        for query in range(layer.n_queries):
            seen = layer.mask.rows(torch.tensor([query]), layer.n_keys, offset)[0].numpy()
            of_head = [int(x[head]) for x in (layer.pairing.a1, layer.pairing.a2)]
            scores = [
                layer.scale * (layer.k[0, int(layer.pairing.key_of_map[m])] @ layer.q[0, m, query]).numpy() for m in of_head
            ]
            a1, a2 = (_softmax(s[seen], np.ones(seen.sum(), bool)) if seen.any() else np.zeros(0) for s in scores)
            for number, row in enumerate((a1, a2, a1 - float(layer.lam[0, head, query]) * a2)):
                at = head, number, query
                exact, rounded = ({name: x[at] for name, x in held[dtype].items()} for dtype in (torch.float64, torch.float32))
                if len(row) < 2 or not np.abs(row).sum() > 1e-9:
                    if len(row) < 2:
                        assert np.isnan(list(exact.values())).all()
                    continue
                oracle, size = _oracle(row), np.abs(row)
                edge = np.abs(size / size.sum() * len(row) - 0.1).min() < 1e-4  # near_zero may fall to either side
                for statistic in names:
                    if statistic == "near_zero" and edge:
                        continue
                    assert exact[statistic] == pytest.approx(oracle[statistic], rel=1e-6, abs=1e-7), (statistic, at)
                    if size.sum() > 0.05:  # of what cancels, float32 keeps the digits of the terms
                        loose = 2e-2 if float(abs(scores[0]).max()) > 100 else 2e-4
                        assert rounded[statistic] == pytest.approx(oracle[statistic], rel=loose, abs=loose), (statistic, at)


@pytest.mark.parametrize(
    "choice, words",
    [
        ({"spans": {"a": torch.arange(24) < 3}}, r"numpy\.flatnonzero"),
        ({"spans": {"a": [1, 1]}}, "names a position twice"),
        ({"spans": {"a": [-1, 23]}}, "names a position twice"),
        ({"spans": {"a": [1.5]}}, "whole numbers in one row"),
        ({"queries": torch.arange(24) > 20}, r"numpy\.flatnonzero"),
        ({"queries": "answer"}, "no span 'answer'"),
    ],
)
def test_positions_that_would_be_read_as_others_are_refused(layer, choice, words):
    with pytest.raises(DiffscopeError, match=words):
        measure_layer(layer, ["entropy", "span_mass"], **choice)


def test_positions_count_from_the_end_as_well(layer):
    ends = measure_layer(layer, ["entropy", "span_mass"], spans={"a": [-1], "all": None}, queries=[-1, 0])
    named = measure_layer(layer, ["entropy", "span_mass"], spans={"a": [23], "all": range(24)}, queries=[23, 0])
    assert ends.identical(named)


@pytest.mark.parametrize("names", [5, [5], [["entropy"]]])
def test_statistics_are_named_by_texts(layer, names):
    with pytest.raises(DiffscopeError, match="chosen by their names"):
        measure_layer(layer, names)
