"""What differs most: matched heads and means, in closed form, and a control that knows chance from a difference."""

import numpy as np
import pytest
import torch
import xarray as xr

import diffscope
from diffscope import DiffscopeError, edits, readings
from diffscope.readings.comparison import chance_in_words
from tests import tiny
from tests.instruments.planted import capture_of, layer_of

IDS = tiny.ids(14)
SPANS = {"answer": [4, 5]}


def measured(model, **statistics):
    """What ``measure`` might have given, of values (layer, head)."""
    variables = {name: (("layer", "head"), np.array(values, float)) for name, values in statistics.items()}
    return xr.Dataset(variables, attrs={"model": model}).assign_coords(
        layer=range(len(next(iter(statistics.values())))), head=range(len(next(iter(statistics.values()))[0]))
    )


def entries(reading, **where):
    chosen = reading.estimates
    for name, value in where.items():
        chosen = chosen.isel(entry=(chosen[name] == value).values)
    return chosen


def test_matched_heads_are_compared_one_by_one():
    scores = torch.zeros(4, 8, 8)
    one, other = (capture_of(layer_of(scores, lam=lam)) for lam in ([0.5, 0.5], [0.5, 0.9]))
    reading = readings.differences(one, other, statistics="lambda", matched=True)
    top = reading.estimates.isel(entry=0)
    unit = np.sqrt(0.08 / 2)  # no spread on one side, a variance of 0.08 on the other
    assert int(top["head"]) == 1 and float(top["difference"]) == pytest.approx(-0.4)
    assert float(top["spread"]) == pytest.approx(unit) and float(top["standardised"]) == pytest.approx(-0.4 / unit)
    assert "L0H1: the coefficient of A2, 0.50 against 0.90" in reading.sentence
    assert reading.estimates["by_chance"].isnull().all()


def test_an_edit_of_one_head_is_found_there():
    scope = diffscope.load(tiny.own("v1"))
    plain = scope.capture(IDS, spans=SPANS)
    with scope.edit(edits.scale_lambda(0.1, layers=[1], heads=[2])):
        changed = scope.capture(IDS, spans=SPANS)
    reading = readings.differences(plain, changed)
    moved = entries(reading).isel(entry=(abs(reading.estimates["difference"]) > 1e-6).values)
    assert set(zip(moved["layer"].values.tolist(), moved["head"].values.tolist())) == {(1, 2)}
    assert "(λ × 0.1" in reading.sentence or "λ" in reading.estimates.attrs["second"]
    assert readings.differences(plain, plain).sentence.startswith("Nothing differs between")


@pytest.mark.parametrize("other, matched", [("mini-diff@308", 1), ("mini-diff", 1), ("mini-standard", 0)])
def test_heads_of_checkpoints_are_matched_and_of_models_not(other, matched):
    one, second = (measured(name, gini=[[0.1, 0.3]]) for name in ("mini-diff", other))
    assert readings.differences(one, second).estimates.attrs["matched"] == matched


def test_means_over_heads_are_compared_where_heads_cannot_be():
    """Medians of a ratio without a bound, means of the rest; heads of other numbers; positions left out by name."""
    one = measured("a", gini=[[0.1, 0.3]], noise_gain=[[1, 3]], argmax=[[1, 2]])
    other = measured("b", gini=[[0.5, 0.6, 1.0]], noise_gain=[[1, 2, 90]], argmax=[[1, 2, 3]])
    reading = readings.differences(one, other)
    gini, gain = (entries(reading, statistic=name) for name in ("gini", "noise_gain"))
    assert gini["difference"].item() == pytest.approx(0.2 - 0.7)
    assert [gini["heads_first"].item(), gini["heads_second"].item()] == [2, 3]
    assert gini["spread"].item() == pytest.approx(np.sqrt((0.02 + 0.14) / 3))
    assert gain["difference"].item() == 0 and gain["averaged"].item() == "median"
    assert reading.estimates.attrs["left_out"] == "argmax"
    with pytest.raises(DiffscopeError, match="none can be matched"):
        readings.differences(one, other, matched=True)


def test_chance_is_told_from_a_difference():
    """Heads of one distribution on both sides, and the same with one layer of one model moved by six of their spreads."""
    rng = np.random.default_rng(3)
    one, other = (measured(model, gini=rng.normal(size=(6, 8)), hoyer=rng.normal(size=(6, 8))) for model in "ab")
    alike = readings.differences(one, other)
    assert "; no more than exchanging heads at random gives" in alike.sentence
    other["gini"][2] += 6
    apart = readings.differences(one, other)
    top = apart.estimates.isel(entry=0)
    assert (top["statistic"].item(), int(top["layer"])) == ("gini", 2) and "; more than exchanging" in apart.sentence
    assert chance_in_words(alike.estimates).startswith("no statistic differs more than")
    assert chance_in_words(apart.estimates).startswith(f"in layer 2 {top['what'].item()} differs more than")
    matched = readings.differences(one, other, matched=True)
    assert chance_in_words(matched.estimates) == ""  # heads that are matched are not exchanged
    assert (np.diff(abs(apart.estimates["standardised"].values)) <= 0).all()


def test_a_standard_model_lacks_what_is_of_two_maps():
    scopes = diffscope.load(tiny.own("v1")), diffscope.load(tiny.own("standard"))
    comparison = diffscope.compare(*scopes, IDS, SPANS)
    reading = readings.differences(comparison, statistics=["span_mass", "overlap", "lambda", "map_distance"])
    assert reading.estimates.attrs["on_one_side"] == "overlap, lambda" and reading.estimates.attrs["left_out"] == "map_distance"
    assert not any("A2" in what for what in reading.estimates["what"].values)
    difference = comparison.difference("span_mass", queries=[-1])["span_mass"].sel(normalisation="share", map="D", span="answer")
    mine = entries(reading, what="attention on each key set: D, answer, share of |D|").sortby("layer")
    np.testing.assert_allclose(mine["difference"], difference.squeeze(), rtol=1e-5)


def test_prompts_of_any_length_and_batches_are_compared():
    scope = diffscope.load(tiny.own("v1"))
    pair = [scope.capture(tiny.ids(n), spans=SPANS) for n in (12, 20)]
    assert readings.differences(*pair).estimates.attrs["matched"] == 0  # of two modules of one class, by their names
    batch = scope.capture([tiny.ids(12), tiny.ids(20)], spans=SPANS)
    first = entries(readings.differences(batch, pair[0], matched=True), what="Gini index: D", layer=1, head=3)
    ginis = [one.measure("gini", queries=[-1])["gini"].sel(layer=1, head=3, map="D").item() for one in pair]
    assert first["difference"].item() == pytest.approx(np.mean(ginis) - ginis[0], rel=1e-5)


def test_what_cannot_be_compared_is_one_clear_line():
    one = measured("a", gini=[[0.1]])
    for arguments, words in (
        ((one,), "a difference is between two"),
        ((one, measured("b", hoyer=[[0.1]])), "no statistic of a layer in common"),
        ((one, 3), "not of a int"),
    ):
        with pytest.raises(DiffscopeError, match=words):
            readings.differences(*arguments)
    with pytest.raises(DiffscopeError, match="choose from raw, share"):
        readings.differences(one, one, normalisation="net")
    assert "has no spread to compare it with" in readings.differences(one, measured("b", gini=[[0.5]])).sentence
    alike = {"gini": [[0.1, 0.3]]}  # beside a λ that is one number, which is changed
    reading = readings.differences(measured("a", **alike, hoyer=[[0.2, 0.2]]), measured("b", **alike, hoyer=[[0.5, 0.5]]))
    assert "has no spread to compare it with" in reading.sentence
