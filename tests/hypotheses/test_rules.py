"""Verdicts follow from estimates by the rules that were declared, and declarations that say nothing are refused."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from diffscope import tables
from diffscope.errors import DiffscopeError
from diffscope.evidence.heads import Table
from diffscope.figures import figure
from diffscope.hypotheses import TESTS, Pair, board, report, run, summary
from diffscope.hypotheses.accounts import ACCOUNTS, AGAINST, FOR, SILENT, WORDS
from diffscope.hypotheses.rules import (
    ABOVE,
    AS_NULL,
    BELOW,
    BETWEEN,
    BEYOND_MARGIN,
    BY,
    IDLE,
    NONE,
    OPEN,
    Cost,
    Quantity,
    state,
    words_by,
)
from diffscope.hypotheses.sentence import answers
from diffscope.hypotheses.sentence import word as word_of
from diffscope.hypotheses.statistics import Estimate, Sample
from diffscope.hypotheses.tests import FILE, linked, make_test, read_tests
from diffscope.hypotheses.verdict import Board, Verdict
from diffscope.storage.atomic import to_json


def of(value, low, high, null=(-1.0, 1.0), p=0.01):
    return Estimate(value, low, high, *null, p, 10, 1, 5, "")


@pytest.mark.parametrize(
    "estimate, p, expected",
    [
        (of(0.5, 0.3, 0.7), 0.01, ABOVE),
        (of(0.5, 0.3, 0.7), 0.06, BEYOND_MARGIN),
        (of(0.5, 0.3, 0.7, null=(0.8, 1.0)), 0.01, BEYOND_MARGIN),  # untrained models have more of it
        (of(0.5, -0.1, 1.1), 0.01, OPEN),
        (of(0.5, 0.3, 0.7, null=(0.4, 0.5)), 0.01, BEYOND_MARGIN),  # and hardly less
        (of(0.05, 0.01, 0.09), 0.01, NONE),  # not 0, and too small to matter
        (of(0.05, 0.01, 0.09), 0.06, AS_NULL),
        (of(0.15, 0.05, 0.25), 0.01, ABOVE),
        (of(-0.5, -0.7, -0.3), 0.01, BELOW),
    ],
)
def test_states(estimate, p, expected):
    assert state(estimate, p, 0.1) == expected


@pytest.mark.parametrize(
    "low, high, expected", [(-0.5, 0.5, NONE), (1.2, 2.5, BETWEEN), (-2.5, -1.2, BETWEEN), (0.5, 2.5, OPEN), (2.0, 6.0, ABOVE)]
)
def test_none_may_be_narrower_than_what_matters(low, high, expected):
    assert state(of((low + high) / 2, low, high, null=(0.0, 0.0)), 0.01, 3.0, 1.0) == expected


STATED = {  # intervals that show a state, with what matters at 1
    ABOVE: (2.0, 3.0),
    BELOW: (-3.0, -2.0),
    NONE: (-0.5, 0.5),
    AS_NULL: (-0.4, 0.4),
    BEYOND_MARGIN: (1.5, 2.5),
    OPEN: (-0.5, 2.0),
}


def came(**states):
    """Estimates that show these states."""
    return {name: of(sum(STATED[state]) / 2, *STATED[state]) for name, state in states.items()}, states


@pytest.mark.parametrize(
    "x, y, expected",
    [
        (ABOVE, ABOVE, FOR),
        (NONE, ABOVE, AGAINST),
        (AS_NULL, ABOVE, AGAINST),
        (BEYOND_MARGIN, ABOVE, OPEN),  # an effect, but no more than without training
        (BELOW, ABOVE, AGAINST),
        (OPEN, ABOVE, OPEN),
        (ABOVE, BELOW, AGAINST),
        (OPEN, OPEN, OPEN),
    ],
)
def test_a_word_follows_from_intervals(x, y, expected):
    test = declared({"NC": {"x": ABOVE, "y": ABOVE}})
    assert test.judge(*came(x=x, y=y)) == {"NC": expected, "SP": SILENT, "SH": SILENT}


ENDS = st.floats(-5, 5, allow_nan=False)
CHANCES = st.floats(0, 1)
PREDICTED = st.dictionaries(st.sampled_from("xyz"), st.sampled_from([ABOVE, BELOW, NONE]), min_size=1)
BOARDS = st.dictionaries(st.sampled_from(list(ACCOUNTS)), PREDICTED, min_size=1)


@given(BOARDS, st.tuples(*[st.tuples(ENDS, ENDS, ENDS)] * 3), st.tuples(*[CHANCES] * 3), st.floats(-2, 2) | st.none())
def test_no_account_is_borne_out_by_what_another_or_nothing_would_show(predictions, ends, p, cost):
    test = declared(predictions)
    estimates = {name: of(*(sorted(three)[i] for i in (1, 0, 2))) for name, three in zip("xyz", ends)}
    states = {name: state(estimates[name], each, 1.0) for name, each in zip("xyz", p)}
    words = test.judge(estimates, states, None if cost is None else Cost(cost, cost - 1, cost + 1))
    assert set(words) == set(ACCOUNTS) and set(words.values()) <= set(WORDS)
    for account, word in words.items():
        predicted = predictions.get(account, {})
        others = [theirs for other, theirs in predictions.items() if other != account]
        if word == FOR:
            effects = {name: wanted for name, wanted in predicted.items() if wanted != NONE}
            assert any(all(theirs.get(name) != wanted for theirs in others) for name, wanted in effects.items())
            for name, wanted in effects.items():
                assert estimates[name].low > 0 if wanted == ABOVE else estimates[name].high < 0
        if word == AGAINST:
            excluded = {ABOVE: lambda e: e.high < 1, BELOW: lambda e: e.low > -1, NONE: lambda e: e.low >= 1 or e.high <= -1}
            assert any(excluded[wanted](estimates[name]) for name, wanted in predicted.items())
        if not predicted or (cost is not None and cost < IDLE):
            assert word == SILENT


def test_that_there_is_nothing_is_for_nobody_and_its_failure_is_against():
    test = declared({"NC": {"x": ABOVE}, "SP": {"x": NONE}})
    assert test.judge(*came(x=NONE)) == {"NC": AGAINST, "SP": SILENT, "SH": SILENT}
    assert test.judge(*came(x=ABOVE)) == {"NC": FOR, "SP": AGAINST, "SH": SILENT}
    assert "no effect at all would look the same" in test.rule
    assert test.reasons(*came(x=NONE))["SP"] == "as it predicts, but no effect at all would look the same"


def test_what_all_predict_is_for_none_of_them():
    test = declared({account: {"x": ABOVE} for account in ACCOUNTS})
    assert set(test.judge(*came(x=ABOVE)).values()) == {SILENT} and not test.tells_apart
    assert set(test.judge(*came(x=NONE)).values()) == {AGAINST}
    assert test.reasons(*came(x=ABOVE))["NC"] == "as it predicts, but SP and SH predict the same"


def test_where_the_second_map_is_idle_there_is_nothing_to_explain():
    test = declared({"NC": {"x": ABOVE}})
    idle, dear, outcome = Cost(0.1, -0.2, 0.4), Cost(2.0, 1.0, 3.0), declared({"NC": {"x": ABOVE}}, inside=False)
    assert test.judge(*came(x=NONE), idle)["NC"] == SILENT and test.judge(*came(x=NONE), dear)["NC"] == AGAINST
    assert outcome.judge(*came(x=NONE), idle)["NC"] == AGAINST, "of whole models A2's cost says nothing"
    assert "without it the answer loses 0.1 nats (95 % −0.2 to 0.4)" in test.reasons(*came(x=NONE), idle)["NC"]
    assert TESTS["distractors"].quantities["standard"].margin == IDLE, "the smallest effect that matters in the primary"


class Costing:
    """Models of which it is known what their second map costs."""

    def __init__(self, value):
        self.a2_cost = value if value is None else Cost(value, value - 0.1, value + 0.1)


def test_a_verdict_carries_what_the_second_map_costs_there():
    alone, silent = Costing(2.0), Costing(None)
    assert board.cost_of(alone) == alone.a2_cost and board.cost_of(silent) is None
    assert board.cost_of(Pair(alone, silent)) == alone.a2_cost and board.cost_of([silent, alone]) is None
    several = board.cost_of([Costing(1.0), Costing(2.0), Costing(3.0)])
    assert (several.value, several.of) == (2.0, "A2") and several.low < 1 < 3 < several.high
    by_run = ("arm", "seed")
    runs = {"formation": (by_run, [[50.0, 75.0, 50.0, math.nan]]), "finished": (by_run, [[1, 1, 1, 1]])}
    costs = {"a2_cost": (by_run, [[1.0, 3.0, math.nan, -4.0]], {"of": "whole heads"})}  # the last run never formed
    cohort = xr.Dataset(runs | costs, {"arm": ["diff"]})
    assert (board.cost_of(cohort).value, board.cost_of(cohort).of) == (2.0, "whole heads")
    nothing = {name: of(0.0, -0.001, 0.001) for name in TESTS["noise-symmetry"].quantities}
    for cost, word, words in (
        (Cost(0.1, 0.0, 0.2), SILENT, "A2 is idle in these heads"),
        (Cost(4.0, 3.0, 5.0), AGAINST, "What A2 costs there: 4 nats (95 % 3 to 5)"),
        (Cost(4.0, 3.0, 5.0, "whole heads"), AGAINST, "for whole heads; for A2 alone not measured"),
        (Cost(0.1, 0.0, 0.2, "whole heads"), AGAINST, "for whole heads; for A2 alone not measured"),  # no bound on A2's
        (None, AGAINST, "What A2 costs there: not measured"),
    ):
        (verdict,) = run("noise-symmetry", finished={"noise-symmetry": board.Estimates(nothing, cost)})
        assert verdict.verdicts["NC"] == word and words in verdict.sentence and verdict.of[1:] in verdict.sentence
        again = Verdict.from_dict(json.loads(to_json(verdict.as_dict())), TESTS)
        assert (again.verdicts, again.a2_cost, again.sentence) == (verdict.verdicts, cost, verdict.sentence)
        told = summary([verdict])
        assert ("was not measured" in told) == (cost is None or cost.of != "A2") and ("is idle" in told) == (word == SILENT)


def test_a_test_that_takes_the_second_maps_out_is_idle_by_what_that_costs():
    """Heads that stand in for each other cost little one by one, and all of them together much."""
    for together, word in ((3.0, AGAINST), (0.1, SILENT)):
        values = {"x": Sample(np.array([[0.0, 0.01, -0.01]])), "y": Sample(together + np.array([[0.0, 0.01, -0.01]]))}
        test = declared({"NC": {"x": ABOVE}}, lambda models, values=values: values, without_a2="y")
        result = board.result_of(test, Costing(0.1 if word == AGAINST else 3.0))
        assert result.a2_cost.value == pytest.approx(together)
        assert test.judge(result, dict.fromkeys(result, NONE), result.a2_cost)["NC"] == word
    with pytest.raises(DiffscopeError, match="no quantity 'z2'"):
        declared({"NC": {"x": ABOVE}}, without_a2="z2")
    assert {id for id, test in TESTS.items() if test.without_a2} == {"signed-weights", "a2-content", "a2-signal"}


def test_a_test_says_once_what_its_heads_count_with():
    """The weights of the statistic are those of the heads that it is said to be of, whichever are chosen."""
    for test in TESTS.values():
        if not test.inside:
            continue
        for weights in BY:
            said = [words_by(words, weights) for words in (test.of, test.statistic)]
            of, statistic = ({way for way in BY.values() if way in words} for words in said)
            assert of <= statistic, test.id


def declared(predictions=None, measure=lambda models: {}, needs="model", **more):
    words = {"id": "x", "question": "Is it?", "asks": {"x": ABOVE}, "source": "", "statistic": "", "controls": (), "needs": needs}
    words["of"] = "all heads; the last query"
    quantities = {name: Quantity(name, 1.0) for name in "xyz"}
    return make_test(quantities=quantities, predictions=predictions, measure=measure, **{**words, **more})


def test_what_tells_nothing_apart_is_a_measurement():
    unable = declared({"NC": {"x": ABOVE}}, unable="the other has it too")
    assert "the other has it too" in unable.limits
    for measurement in (declared(), unable):
        assert measurement.kind == "measurement" and not measurement.judged and "no verdict" in measurement.rule
    assert declared({"NC": {"x": ABOVE}}).kind == "mechanism"


@pytest.mark.parametrize("predictions", [{"NC": {"w": ABOVE}}, {"NC": {"x": AS_NULL}}, {"noise": {"x": ABOVE}}])
def test_a_prediction_of_what_is_not_there_is_refused_when_it_is_declared(predictions):
    with pytest.raises(DiffscopeError, match="the test 'x' predicts"):
        declared(predictions)
    with pytest.raises(DiffscopeError, match="the test 'x' needs 'models'"):
        declared(needs="models")
    with pytest.raises(DiffscopeError, match="the test 'x' is of the kind 'main'"):
        declared(kind="main")
    with pytest.raises(DiffscopeError, match="the test 'x' does not say of which heads and queries it is"):
        declared({"NC": {"x": ABOVE}}, of="")


@pytest.mark.parametrize("wrong", [{"question": "D is sparser."}, {"asks": {}}, {"asks": {"w": ABOVE}}, {"asks": {"x": NONE}}])
def test_a_title_that_is_no_question_or_that_no_number_answers_is_refused(wrong):
    with pytest.raises(DiffscopeError, match="the test 'x' asks '.*' of .*; give a question"):
        declared(**wrong)


@pytest.mark.parametrize(
    "ends, expected",
    [
        ((-0.046, -0.06, -0.03), ("no", "yes")),
        ((0.046, 0.03, 0.06), ("yes", "no")),
        ((0.02, -0.01, 0.05), ("not told apart from 0",) * 2),
        ((0.0, 0.0, 0.0), ("not told apart from 0",) * 2),
        ((0.02, 0.0, 0.04), ("not told apart from 0",) * 2),
        ((math.nan,) * 3, ("not measured",) * 2),
        ((1.0, 0.1, math.inf), ("yes", "no")),
        ((-1.0, -math.inf, -0.1), ("no", "yes")),
        ((math.inf, 0.1, math.inf), ("yes", "no")),
        ((0.0, -math.inf, math.inf), ("not measured",) * 2),
    ],
)
def test_the_word_of_an_answer_is_that_of_its_interval(ends, expected):
    assert tuple(word_of(of(*ends), side) for side in (ABOVE, BELOW)) == expected


def test_an_answer_has_its_number_and_interval_and_says_where_untrained_models_show_as_much():
    test = declared(asks={"x": ABOVE, "y": BELOW, "z": ABOVE})
    beyond = of(-0.5, -0.75, -0.25, null=(-0.1, 0.1))
    estimates = {"x": beyond, "y": beyond, "z": replace(of(*[math.nan] * 3), why="fewer than two prompts or seeds have a value")}
    said = answers(test, estimates)
    assert said["yes"] == "y −0.5 (95 % −0.75 to −0.25)" and said["no"] == "x −0.5 (95 % −0.75 to −0.25)"
    assert said["not measured"] == "z fewer than two prompts or seeds have a value"
    assert (
        answers(declared(), {"x": of(-0.5, -0.75, -0.25)})["no"]
        == "−0.5 (95 % −0.75 to −0.25; within the range of untrained models)"
    )


def test_where_nothing_that_is_asked_was_taken_the_answer_says_so():
    said = answers(declared(asks={"x": ABOVE}), {"y": of(1.0, 0.5, 1.5)})
    assert list(said) == ["not measured"] and said["not measured"].startswith("because nothing was taken")


def test_the_conclusion_tells_each_comparison_apart():
    """Of two comparisons with different answers neither is the answer of the whole question."""
    ends = {"standard": of(-0.5, -0.7, -0.3), "double-width": of(-0.1, -0.3, 0.1, p=0.3)}
    estimates = {"formation": {name: ends.get(name, of(-0.5, -0.7, -0.3)) for name in TESTS["formation"].quantities}}
    said = summary(run(["formation"], finished=estimates))
    assert "earlier in DIFF? Beside standard attention yes (−0.5 octaves, 95 % −0.7 to −0.3" in said
    assert "; beside double-width not told apart from 0 (−0.1 octaves, 95 % −0.3 to 0.1" in said
    assert "Verdict: open; NC, SP and SH predict the same, so it could be for none of them alone, p " in said
    assert "the primary tests support none of the three accounts." in said and "against it: nothing" in said


def test_the_conclusion_says_account_by_account_what_the_cells_say():
    """A cell and a sentence are of one word, and no account is supported that no primary is for."""
    ids = ("distractors-or-length", "common-noise", "d-plus", "gradient-dynamics")
    value = {"distractors-or-length": 0.6, "common-noise": 8.0, "d-plus": 2.0, "gradient-dynamics": 0.5}
    estimates = {
        id: {name: of(value[id], value[id] * 0.9, value[id] * 1.1, null=(0, 0)) for name in TESTS[id].quantities} for id in ids
    }
    shown = run(list(ids), finished=dict(estimates))
    assert [tuple(verdict.verdicts.values()) for verdict in shown] == [
        (FOR, AGAINST, SILENT),
        (FOR, AGAINST, SILENT),
        (AGAINST, AGAINST, FOR),
        (AGAINST, SILENT, SILENT),
    ]
    said = summary(shown)
    assert "for it: distractors-or-length, common-noise; against it: d-plus, gradient-dynamics" in said
    assert "the primary tests support noise cancellation; they speak against sparsification" in said
    assert "mechanism tests, which are explored and do not decide, speak for signed heads" in said


def test_the_p_of_a_whole_test_stands_once_at_its_verdict():
    """Of a primary both comparisons have one p: under two intervals that exclude 0 it would read as two of them."""
    estimates = {"formation": {name: of(-0.5, -0.7, -0.3, p=0.0123) for name in TESTS["formation"].quantities}}
    (verdict,) = run(["formation"], finished=dict(estimates))
    words = "NC silent · SP silent · SH silent"  # all predict it
    assert verdict.p == pytest.approx(4 * 0.0123) and verdict.judged == f"{words} (p 0.0492 of the whole test, after Holm)"
    whole = (
        report.markdown([verdict], "").partition("## formation")[2].partition("## Together")[0],
        report.page([verdict], "").partition("<h2>formation")[2].partition("<h2>Together")[0],
    )
    for text in (repr(verdict), verdict._repr_html_(), Board([verdict])._repr_html_(), *whole):
        assert text.count("0.0492") == 1, text
    assert "0.0492" not in verdict.sentence and "0.0492" in verdict.judged
    assert "0.0492" in report.markdown([verdict], "").partition("## formation")[0]
    table = tables.board([verdict])
    assert sum("0.049" in cell for row in table.rows for cell in row) == 1 and "0.049" in table.rows[0][1]
    assert table.data["p_corrected"].isnull().all() and set(table.data["p_of_test"]) == {verdict.p}


def test_a_mistake_of_an_observer_names_the_test():
    with pytest.raises(KeyError) as caught:
        board.result_of(declared(measure=lambda models: models["mass"]), {})
    assert caught.value.__notes__ == ["raised while measuring the test 'x'"]
    for observed, predictions in (({"w": None}, None), ({}, {"NC": {"x": ABOVE}})):
        with pytest.raises(
            DiffscopeError, match="the test 'x' declares the quantities x, y, z, and (w|none) came of measuring it"
        ):
            board.result_of(declared(predictions, measure=lambda models, observed=observed: observed), {})


WORDS_AND_SOURCES = FILE.read_text(encoding="utf-8").partition("\n[tests.")[0]
OF_MODELS = """
[tests.x]
question = "Is it?"
asks = { d = "above" }
source = "{paper}"
statistic = "a share; {weighted}"
controls = ["{untrained}"]
needs = "model"
evidence = "sink_shares"
predicts.NC = { d = "above" }
of = "all heads"

[tests.x.quantities]
d = { label = "share", margin = 0.02 }
"""
OF_COHORTS = """
[tests.y]
question = "Is it?"
asks = { "{arm}" = "above" }
source = "{review}"
statistic = "log-odds"
controls = ["{same}"]
needs = "cohort"
arms = ["plus", "gated"]

[tests.y.quantities]
"{arm}" = { label = "{arm} ({words})", margin = 0.5, score = "log_odds", arm = "{arm}", other = "diff" }
"""


def read(text):
    tests = read_tests(WORDS_AND_SOURCES + text)
    for test in tests.values():
        test.measure.check()
    return tests


def test_a_declaration_is_read_with_its_words_filled_in():
    declared, of_arms = read(OF_MODELS)["x"], read(OF_COHORTS)["y"]
    assert (
        declared.source == "Differential Transformer (Ye et al., 2024)" and "{" not in declared.statistic + declared.controls[0]
    )
    assert declared.measure.places["d"]["evidence"] == "sink_shares.d" and declared.inside and declared.kind == "mechanism"
    assert of_arms.kind == "measurement" and dict(of_arms.asks) == {"plus": ABOVE, "gated": ABOVE}
    assert {name: quantity.label for name, quantity in of_arms.quantities.items()} == {
        "plus": "plus (A1 + λA2)",
        "gated": "gated (two softmax heads, one with a signed gate)",
    }


@pytest.mark.parametrize(
    "text, change, words",
    [
        (OF_MODELS, ("margin", "margins"), "quantity 'd' of the test 'x' lacks margin"),
        (OF_MODELS, ("margin = 0.02", 'margin = "small"'), "quantity 'd' of the test 'x' has margin = 'small'; give a number"),
        (OF_MODELS, ("margin", "unit = 1, margin"), "quantity 'd' of the test 'x' has the key 'unit', which means nothing"),
        (OF_MODELS, ("statistic =", "statistics ="), "the test 'x' lacks statistic"),
        (OF_MODELS, ("of =", "off ="), "the test 'x' has the key 'off', which means nothing"),
        (OF_MODELS, ("{weighted}", "{wieghted}"), r"the test 'x', statistic: .* holds a \{name\} that is no word.*'wieghted'"),
        (OF_MODELS, ('NC = { d = "above" }', 'NC = { e = "above" }'), "the test 'x' predicts NC: {'e': 'above'}"),
        (OF_MODELS, ("it?", "it."), "the test 'x' asks 'Is it.' of .*; give a question"),
        (
            OF_MODELS,
            ('"sink_shares"', '"sinks"'),
            "'d' of the test 'x' is read from 'sinks.d'; evidence has no such label",
        ),
        (OF_MODELS, ("margin", 'outcome = "zero", evidence = "pulls.push", margin'), "has to say where its number is"),
        (OF_MODELS, ("margin", 'heads = "best", margin'), "has heads = 'best'; it is answering or others"),
        (
            OF_MODELS,
            ('needs = "model"', 'needs = "checkpoints"'),
            "the test 'x' is over ''; of checkpoints give growth or late",
        ),
        (OF_MODELS, ('"model"', '"model"\nover = "growth"'), "the test 'x' is over 'growth'; of checkpoints give"),
        (
            OF_COHORTS,
            ('"log_odds"', '"odds"'),
            "'plus' of the test 'y' has to name score, arm and other; scores are log",
        ),
        (OF_COHORTS, ('"gated"', '"gate"'), "the test 'y' has arms 'gate'; there are standard"),
        (
            OF_COHORTS,
            ('arm = "{arm}"', 'arm = "{arm}s"'),
            "'plus' of the test 'y' compares 'pluss'; arms are diff, standard",
        ),
    ],
)
def test_a_declaration_that_says_what_nothing_reads_is_refused_in_one_line(text, change, words):
    with pytest.raises(DiffscopeError, match=words) as error:
        read(text.replace(*change, 1))
    assert "\n" not in str(error.value)


def test_every_number_of_the_declared_tests_is_somewhere():
    for test in TESTS.values():
        test.measure.check()


def test_what_was_not_checked_when_it_was_read_is_refused_before_it_measures():
    unknown = OF_MODELS.replace('"sink_shares"', '"sinks"', 1)
    test = read_tests(WORDS_AND_SOURCES + unknown)["x"]
    with pytest.raises(DiffscopeError, match="is read from 'sinks.d'; evidence has no such label"):
        test.measure(None)


def test_a_number_that_evidence_does_not_hold_is_named():
    held = Table({"d": xr.DataArray(np.ones((3, 1, 2)), dims=("prompt", "layer", "head"))})
    models = SimpleNamespace(differential=True, tables=lambda label, apart: ([held.apart(apart)], []))
    for place in ('evidence = "sink_shares.e"', 'evidence = "sink_shares.e", heads = "answering"'):
        test = read(OF_MODELS.replace("margin", f"{place}, margin", 1))["x"]
        assert board.result_of(test, models) == "evidence that holds sink_shares.e; of these models it holds d"


def test_every_declaration_is_whole():
    for test in TESTS.values():
        assert test.question and test.source and test.statistic and test.controls and test.rule, test.id
        assert all(quantity.margin > 0 for quantity in test.quantities.values()), test.id
        assert bool(test.judged) is (test.kind != "measurement") and bool(test.of) >= bool(test.judged), test.id


def test_a_board_says_what_is_measured_and_what_is_judged():
    estimates = {id: {name: of(-0.5, -0.7, -0.3) for name in TESTS[id].quantities} for id in ("amplifier", "information-flow")}
    board = run(list(estimates), finished=dict(estimates))
    assert [verdict.shown for verdict in board] == ["NC for · SP silent · SH silent", "measured"]
    assert "1 measured, without a verdict (information-flow)" in summary(board)
    text = report.markdown(board, "title")
    assert f"| information-flow | {TESTS['information-flow'].question} | no: −0.5 (95 % −0.7 to −0.3; " in text
    assert "## information-flow: measured" in text
    data = figure("board", board).data
    words = data["word"].values.tolist()  # two quantities of the rule, one that is measured
    assert words == [["for", "silent", "silent"], ["for", "silent", "silent"], ["", "", ""]]
    with pytest.raises(DiffscopeError, match="is of verdicts"):
        figure("board", [{"id": "noise-symmetry"}])


def test_the_page_escapes_what_it_shows():
    first, second = run(["gated", "top-k"])
    page = report.page([replace(first, lacks="<b>bold</b>"), replace(second, lacks="a <i>claim</i>")], "<script>")
    assert "<b>bold" not in page and "&lt;b&gt;bold" in page and "<i>" not in page and "<script>" not in page


def test_every_source_is_linked_as_the_docs_have_it():
    docs = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
    for test in TESTS.values():
        parts = list(linked(test.source))
        addresses = [address for _, address in parts if address]
        assert "".join(part for part, _ in parts) == test.source and addresses
        assert all(address in docs or address.startswith("https://github.com/microsoft/unilm/issues/1") for address in addresses)
    assert [part for part, address in linked("unilm issues 1637 and 1663; DIFF (2024)") if address] == ["1637", "1663"]
