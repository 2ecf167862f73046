"""What stands in the tables is what was measured, with the interval that the caption names."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from scipy import stats as scipy_stats

import diffscope
from diffscope import DiffscopeError, edits, tables
from diffscope.numbers import significant, with_interval, with_spread
from tests import tiny
from tests.study_data import study as planted_study

PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12], [20, 21, 22, 23, 24, 25], [30, 31, 5, 6, 7, 8, 9]]


@pytest.fixture(scope="module")
def scopes():
    return diffscope.load(tiny.own("v1")), diffscope.load(tiny.own("standard"))


def cell(table, row, column):
    found = [line for line in table.rows if line[: len(row)] == row]
    assert len(found) == 1
    return found[0][table.header.index(column)]


def test_of_one_prompt_a_value_stands_beside_the_spread_over_heads(scopes):
    comparison = diffscope.compare(*scopes, PROMPTS[0])
    table = tables.statistics(comparison, ["entropy", "cmrr", "lambda_star"], queries="last")
    first, second = comparison.names
    entropy = scopes[0].capture(PROMPTS[0]).measure("entropy")["entropy"].sel(map="D").values[..., -1]  # (layer, head)
    assert cell(table, ("entropy [nats]", "D"), first) == with_spread(entropy.mean(), entropy.std(ddof=1))
    assert cell(table, ("entropy [nats]", "A2"), second) == "–"
    assert "standard deviation over heads" in table.caption and "Left out" in table.caption and "cmrr" in table.caption
    row = table.data.query(f"statistic == 'entropy' and map == 'D' and model == {first!r}").iloc[0]
    assert row["value"] == pytest.approx(entropy.mean()) and row["n"] == entropy.size
    ratio = table.data[table.data["statistic"] == "lambda_star"].iloc[0]
    assert ratio["interval"] == "quartiles of heads" and "medians" in table.caption


def test_of_several_prompts_it_has_the_interval_over_prompts(scopes):
    batch = scopes[0].capture(PROMPTS)
    table = tables.statistics({"ours": batch}, "gini", by_layer=True, map="A1")
    values = [one.measure("gini")["gini"].sel(map="A1", layer=1).mean("query").mean("head").item() for one in batch]
    low, high = scipy_stats.t.interval(0.95, 2, np.mean(values), scipy_stats.sem(values))
    assert cell(table, ("gini", "layer 1, A1"), "ours") == with_interval(np.mean(values), low, high)
    assert "95 % interval over 3 prompts" in table.caption and "5 to 7 queries that have a value" in table.caption
    assert tables.statistics(batch.measure("gini"), by_layer=True, map="A1").rows == table.rows


def test_of_several_prompts_a_ratio_is_a_median_beside_the_quartiles_of_prompts(scopes):
    batch = scopes[0].capture(PROMPTS)
    table = tables.statistics(batch, "noise_gain", queries="last", span="irrelevant")
    measured = [one.measure("noise_gain", queries=[-1])["noise_gain"].sel(span="irrelevant").isel(query=0) for one in batch]
    values = [float(one.median("head").median("layer")) for one in measured]
    row = table.data.iloc[0]
    np.testing.assert_allclose(row[["value", "low", "high"]].tolist(), np.quantile(values, [0.5, 0.25, 0.75]))
    assert row["interval"] == "quartiles of prompts" and "quartiles of 3 prompts, beside a median" in table.caption
    assert "Student" not in table.caption


def test_a_caption_names_layers_heads_and_queries_that_may_be_a_part(scopes):
    capture = scopes[0].capture(PROMPTS[0], spans={"answer": slice(2, 4)})
    assert ", query 7." in tables.statistics(capture, "gini", queries="last").caption
    assert ", queries 2 and 3." in tables.statistics(capture, "gini", queries="answer").caption
    assert "quer" not in tables.statistics(capture, "gini").caption.partition(".")[0]
    part = capture.measure("gini", queries=slice(0, 4)).sel(layer=[1], head=[0, 2])
    assert ", layer 1, heads 0 and 2, queries 0 to 3." in tables.statistics(part).caption


def test_lengths_and_queries_are_those_of_all_models(scopes):
    captures = {"short": scopes[0].capture(PROMPTS[1]), "long": scopes[0].capture(PROMPTS[0])}
    caption = tables.statistics(captures, "entropy").caption
    assert "on one prompt of 6 to 8 tokens" in caption and "Means over 5 to 7 queries that have a value" in caption


def test_layers_and_heads_are_chosen_by_their_numbers(scopes):
    capture = scopes[0].capture(PROMPTS[0])
    entropy = capture.measure("entropy")["entropy"].sel(map="A1", layer=1)
    table = tables.statistics(capture, "entropy", map="A1", layer=1, head=[0, 2])
    assert table.data["value"].tolist() == pytest.approx([float(entropy.sel(head=[0, 2]).mean())])
    assert ", layer 1, heads 0 and 2." in table.caption
    for label in (7, "1"):
        with pytest.raises(DiffscopeError, match=f"no layer {label!r}; choose from 0, 1"):
            tables.statistics(capture, "entropy", layer=label)


def test_edits_of_one_side_are_told_of_that_side(scopes):
    with scopes[0].edit(edits.set_lambda(0.0)):
        cut = scopes[0].capture(PROMPTS[0])
    whole = scopes[0].capture(PROMPTS[0])
    for subject in ({"cut": cut, "whole": whole}, diffscope.Comparison(("cut", "whole"), (cut, whole))):
        assert "under λ = 0 (cut)." in tables.statistics(subject, "gini").caption
    assert "under λ = 0." in tables.statistics(cut, "gini").caption


def test_one_value_alone_has_a_dash_that_is_explained(scopes):
    lone = diffscope.load(tiny.own("v1", heads=1, num_hidden_layers=1)).capture(PROMPTS[0])
    table = tables.statistics(lone, "gini", queries="last", map="D")
    assert table.rows[0][-1].endswith("± –") and "– after ±" in table.caption


def test_what_cannot_be_tabled_is_refused(scopes):
    capture = scopes[0].capture(PROMPTS[0])
    for words, ask in {
        "no map 'A3'": lambda: tables.statistics(capture, "gini", map="A3"),
        "has a span": lambda: tables.statistics(capture, "gini", span="answer"),
        "no measured statistic 'entropy'": lambda: tables.statistics(capture.measure("gini"), "entropy"),
        "choose others": lambda: tables.statistics(capture, "cmrr"),
        "not of a Scope": lambda: tables.statistics(scopes[0], "gini"),
        "readings.depths gives": lambda: tables.depths(capture.measure("gini")),
        "diffscope.check gives": lambda: tables.conformance("mini-diff"),
        "list of verdicts": lambda: tables.board([]),
    }.items():
        with pytest.raises(DiffscopeError, match=words):
            ask()


def test_depths_are_those_of_the_reading():
    scope = diffscope.load("mini-diff")
    estimates = diffscope.readings.depths(scope, [72], prompts=2, distractors=1).estimates
    table = tables.depths({"ours": estimates, "again": estimates}, normalisation="raw")
    given = estimates["mass_of_prompt"].sel(length=72, depth=0.5, map="D", span="answer", normalisation="raw").values
    half = scipy_stats.t.ppf(0.975, 1) * scipy_stats.sem(given)
    assert cell(table, ("ours", "72", "answer"), "50 %") == with_spread(given.mean(), half)
    low, high = (float(estimates[name].sel(length=72, depth=0.5)) for name in ("exact_low", "exact_high"))
    assert cell(table, ("again", "72", "95 %"), "50 %") == f"{low:.2f}–{high:.2f}"
    assert "raw of D" in table.caption and "then 2 prompts" in table.caption
    alone = estimates.assign(mass_se=estimates["mass_se"] * np.nan).assign_attrs(prompts=1)
    assert cell(tables.depths(alone), ("72", "answer"), "0 %").endswith("± –") and "of one prompt" in tables.depths(alone).caption
    missing = estimates.assign(mass_of_prompt=estimates["mass_of_prompt"].where(estimates["prompt"] == 0))
    assert (tables.depths(missing, rows=["answer"]).data["n"] == 1).all()
    irrelevant = [row[1] for row in tables.depths(alone).rows]
    assert irrelevant == ["answer", "irrelevant tokens", "exact", "95 %"]
    sinks = tables.depths(estimates, rows=["sink"])
    assert [row[1] for row in sinks.rows] == ["sink"] and "exact" not in sinks.caption + sinks.notes[0]
    with pytest.raises(DiffscopeError, match="no span 'nowhere'"):
        tables.depths(estimates, rows=["nowhere"])
    cut = tables.depths({"ours": estimates, "cut": estimates.assign_attrs(edits="λ = 0")})
    assert cut.caption.endswith("Under λ = 0 (cut).")
    longer = xr.concat([estimates, estimates.assign_coords(length=[96])], "length")
    both = tables.depths({"ours": longer, "again": estimates})
    assert {row[1] for row in both.rows} == {"72"}  # the length that both have
    with pytest.raises(DiffscopeError, match="no prompts of 96 tokens were run"):
        tables.depths({"ours": longer, "again": estimates}, length=96)
    with pytest.raises(DiffscopeError, match=r"other prompts \(distractors: 1 and 3\)"):
        tables.depths({"ours": estimates, "again": estimates.assign_attrs(distractors=3)})
    with pytest.raises(DiffscopeError, match="no prompts of 99 tokens"):
        tables.depths(estimates, length=99)


def test_conformance_has_a_row_a_layer():
    report = diffscope.check(tiny.own("v1"))
    table = tables.conformance(report)
    assert [row[0] for row in table.rows] == ["0", "1"] and {row[-1] for row in table.rows} == {"pass"}
    assert table.data["error"].tolist() == [report.errors[0], report.errors[1]]
    assert "passed" in table.caption
    standard = tables.conformance(diffscope.check(tiny.standard("llama")))
    assert standard.rows[0][3:5] == ("–", "–"), "it has no λ"


def test_a_board_has_every_quantity_of_every_test():
    verdicts = planted_study().boards["all seeds"]
    table = tables.board(verdicts)
    assert len(table.rows) == sum(max(1, len(verdict.estimates)) for verdict in verdicts)
    first = next(verdict for verdict in verdicts if verdict.test.kind == "primary")
    label = next(iter(first.test.quantities.values())).label
    asked = f"{first.test.question} (p {significant(first.p, 2)})"
    words = tuple(first.verdicts.values())
    said = "no" if first.test.asks[next(iter(first.test.quantities))] == "below" else "yes"
    assert table.rows[0][:9] == (first.test.id, asked, *words, first.test.of, label, "1.00 [0.50, 1.50]", said)
    assert {row[9] for row in table.rows[:2]} == {"–"}, "p of the whole test stands at its question alone"
    assert {"NC", "SP", "SH", "of", "a2_cost"} <= set(table.data) and "Silent: it predicts nothing here" in table.caption
    assert set(table.data["test"]) == {verdict.test.id for verdict in verdicts}
    assert "95 % interval, as planted. Answer: " in table.caption
    of_two_models = tables.board([first, first])
    assert [row[0] for row in of_two_models.rows].count(first.test.id) == of_two_models.data["number"].nunique() == 2
    quantity = next(iter(first.estimates))
    crossed = replace(first.estimates[quantity], interval="seeds and prompts, crossed")
    changed = [replace(first, estimates={**first.estimates, quantity: crossed}), *(one for one in verdicts if one is not first)]
    caption = tables.board(changed).caption
    assert f"seeds and prompts, crossed ({first.test.id})" in caption and "as planted (" in caption


def test_one_statistic_has_its_maps_side_by_side_and_counts_what_it_leaves_out(scopes):
    measured = scopes[0].capture(PROMPTS[0]).measure(["entropy", "argmax", "head_cka"])
    table = tables.statistic(measured["entropy"])
    assert table.header == ("layer", "A1", "A2", "D") and "undefined values left out" in table.caption
    expected = measured["entropy"].sel(map="D").mean("query").mean("head")
    np.testing.assert_allclose(table.data["D"], expected)
    by_head = tables.statistic(measured["entropy"].isel(query=[-1]), over="query")
    assert len(by_head.rows) == expected.size * measured.sizes["head"] and "over" not in by_head.caption
    assert by_head.caption.startswith("entropy [nats], query 7") and set(by_head.data["query"]) == {7}
    of_all = tables.statistic(measured["entropy"], over=("query", "head", "layer"))
    np.testing.assert_allclose(of_all.data["D"], [expected.mean()])
    assert len(tables.statistic(measured["entropy"].sel(map="D"), over=("query", "head", "layer")).rows) == 1
    with pytest.raises(DiffscopeError, match="choose one query"):
        tables.statistic(measured["argmax"])
    last = measured["argmax"].isel(query=[-1])
    np.testing.assert_array_equal(tables.statistic(last).data["A1"], last.sel(map="A1").values.ravel())
    assert len(tables.statistic(measured["head_cka"], over=()).rows) == measured["head_cka"].size  # every pair
