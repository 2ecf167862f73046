"""Verdicts follow from estimates by the rules that were declared, and what predicts nothing is measured."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from diffscope import tables
from diffscope.errors import DiffscopeError
from diffscope.figures import figure
from diffscope.hypotheses import TESTS, Measurement, Test, board, report, run, summary
from diffscope.hypotheses.answered import answers, word
from diffscope.hypotheses.declared.sources import linked
from diffscope.hypotheses.inference import Estimate
from diffscope.hypotheses.rules import ABOVE, ALIKE, BELOW, BETWEEN, FAR, NONE, OPEN, Quantity, declare, state
from diffscope.hypotheses.verdicts import Board


def of(value, low, high, null=(-1.0, 1.0), p=0.01):
    return Estimate(value, low, high, *null, p, 10, 1, 5, "")


@pytest.mark.parametrize(
    "estimate, p, expected",
    [
        (of(0.5, 0.3, 0.7), 0.01, ABOVE),
        (of(0.5, 0.3, 0.7), 0.06, FAR),
        (of(0.5, 0.3, 0.7, null=(0.8, 1.0)), 0.01, FAR),  # untrained models have more of it
        (of(0.5, -0.1, 1.1), 0.01, OPEN),
        (of(0.5, 0.3, 0.7, null=(0.4, 0.5)), 0.01, FAR),  # and hardly less
        (of(0.05, 0.01, 0.09), 0.01, NONE),  # not 0, and too small to matter
        (of(0.05, 0.01, 0.09), 0.06, ALIKE),
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


@pytest.mark.parametrize(
    "states, expected",
    [
        ((ABOVE, ABOVE), "NC"),
        ((NONE, ABOVE), "neither"),
        ((ALIKE, ABOVE), "neither"),
        ((FAR, ABOVE), "inconclusive"),  # an effect, but no more than without training
        ((BELOW, ABOVE), "neither"),
        ((OPEN, ABOVE), "inconclusive"),
        ((ABOVE, BELOW), "neither"),
        ((OPEN, OPEN), "inconclusive"),
    ],
)
def test_a_verdict_follows_from_states(states, expected):
    test = declared({"NC": {"x": ABOVE, "y": ABOVE}, "SP": {"x": NONE, "y": ABOVE, "z": BELOW}})
    assert test.judge(dict(zip(("x", "y", "z"), (*states, ABOVE)))) == expected


def declared(predictions=None, observe=lambda models: {}, needs="model", **more):
    words = {"id": "x", "question": "Is it?", "asks": {"x": ABOVE}, "source": "", "statistic": "", "controls": (), "needs": needs}
    return declare(quantities={name: Quantity(name, 1.0) for name in "xyz"}, predictions=predictions, **{**words, **more})(
        observe
    )


def test_what_both_predict_is_both_and_what_tells_nothing_apart_is_a_measurement():
    both = declared({"NC": {"x": ABOVE}, "SP": {"x": ABOVE}})
    assert both.judge({"x": ABOVE}) == "both" and not both.tells_apart
    unable = declared({"NC": {"x": ABOVE}}, unable="the other has it too")
    assert "the other has it too" in unable.limits
    for measurement in (declared(), unable):
        assert isinstance(measurement, Measurement) and not isinstance(measurement, Test) and not measurement.judged
    assert not isinstance(both, Measurement)


@pytest.mark.parametrize("predictions", [{"NC": {"w": ABOVE}}, {"NC": {"x": ALIKE}}, {"noise": {"x": ABOVE}}])
def test_a_prediction_of_what_is_not_there_is_refused_when_it_is_declared(predictions):
    with pytest.raises(DiffscopeError, match="the test 'x' predicts"):
        declared(predictions)
    with pytest.raises(DiffscopeError, match="the test 'x' needs 'models'"):
        declared(needs="models")
    with pytest.raises(DiffscopeError, match="the test 'x' is of the kind 'main'"):
        declared(kind="main")


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
    assert tuple(word(of(*ends), side) for side in (ABOVE, BELOW)) == expected


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
    ends = {"standard": of(-0.5, -0.7, -0.3), "double-width": of(0.1, -0.1, 0.3, p=0.3)}
    estimates = {"formation": {name: ends.get(name, of(-0.5, -0.7, -0.3)) for name in TESTS["formation"].quantities}}
    said = summary(run(["formation"], finished=estimates))
    assert "earlier in DIFF? Beside standard attention yes (−0.5 octaves, 95 % −0.7 to −0.3" in said
    assert "; beside double-width not told apart from 0 (0.1 octaves, 95 % −0.1 to 0.3" in said
    assert "Verdict: inconclusive, p " in said


def test_the_p_of_a_whole_test_stands_once_at_its_verdict():
    """Of a primary both comparisons have one p: under two intervals that exclude 0 it would read as two of them."""
    estimates = {"formation": {name: of(-0.5, -0.7, -0.3, p=0.0123) for name in TESTS["formation"].quantities}}
    (verdict,) = run(["formation"], finished=dict(estimates))
    assert verdict.p == pytest.approx(4 * 0.0123) and verdict.judged == "both (p 0.0492 of the whole test, after Holm)"
    whole = (
        report.markdown([verdict], "").partition("## formation")[2].partition("## Together")[0],
        report.page([verdict], "").partition("<h2>formation")[2].partition("<h2>Together")[0],
    )
    for text in (repr(verdict), verdict._repr_html_(), Board([verdict])._repr_html_(), *whole):
        assert text.count("0.0492") == 1, text
    assert "0.0492" not in verdict.sentence and "0.0492" in report.words([verdict]).rows[0][-1]
    assert "0.0492" in report.markdown([verdict], "").partition("## formation")[0]
    table = tables.board([verdict])
    assert sum("0.049" in cell for row in table.rows for cell in row) == 1 and "0.049" in table.rows[0][2]
    assert table.data["p_corrected"].isnull().all() and set(table.data["p_of_test"]) == {verdict.p}


def test_a_mistake_of_an_observer_names_the_test():
    with pytest.raises(KeyError) as caught:
        board.result_of(declared(observe=lambda models: models["mass"]), {})
    assert "observes the test 'x'" in caught.value.__notes__[0]
    for observed, predictions in (({"w": None}, None), ({}, {"NC": {"x": ABOVE}})):
        with pytest.raises(DiffscopeError, match="the test 'x' declares the quantities x, y, z, and .* observed (w|none)"):
            board.result_of(declared(predictions, observe=lambda models, observed=observed: observed), {})


def test_every_declaration_is_whole():
    for test in TESTS.values():
        assert test.question and test.source and test.statistic and test.controls and test.rule, test.id
        assert all(quantity.margin > 0 for quantity in test.quantities.values()), test.id
        assert bool(test.judged) is isinstance(test, Test), test.id


def test_a_board_says_what_is_measured_and_what_is_judged():
    estimates = {id: {name: of(-0.5, -0.7, -0.3) for name in TESTS[id].quantities} for id in ("amplifier", "information-flow")}
    board = run(list(estimates), finished=dict(estimates))
    assert [(verdict.verdict, verdict.shown) for verdict in board] == [("NC", "NC"), (None, "measured")]
    assert "1 measured, without a verdict (information-flow)" in summary(board)
    text = report.markdown(board, "title")
    assert f"| information-flow | {TESTS['information-flow'].question} | no: −0.5 (95 % −0.7 to −0.3; " in text
    assert "## information-flow: measured" in text
    data = figure("board", board).data
    assert data["verdict"].values.tolist() == ["NC", "NC", "measured"]  # two quantities of the rule, one that is measured
    with pytest.raises(DiffscopeError, match="is of verdicts"):
        figure("board", [{"id": "noise-symmetry"}])


def test_the_page_escapes_what_it_shows():
    first, second = run(["gated", "top-k"])
    page = report.page([replace(first, verdict="needs <b>bold</b>"), replace(second, sentence="a <i>claim</i>")], "<script>")
    assert "<b>bold" not in page and "&lt;b&gt;bold" in page and "<i>" not in page and "<script>" not in page


def test_every_source_is_linked_as_the_docs_have_it():
    docs = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
    for test in TESTS.values():
        parts = list(linked(test.source))
        addresses = [address for _, address in parts if address]
        assert "".join(part for part, _ in parts) == test.source and addresses
        assert all(address in docs or address.startswith("https://github.com/microsoft/unilm/issues/1") for address in addresses)
    assert [part for part, address in linked("unilm issues 1637 and 1663; DIFF (2024)") if address] == ["1637", "1663"]
