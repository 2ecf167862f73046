"""The Hypotheses page: what can be said, by a study or the model at hand, run with progress, stopped, and never a traceback."""

import json
import math
import threading

import pytest
from looks import at_rest, fine, shown
from small_models import PROMPT

from diffscope import tables
from diffscope.cards import BUNDLED
from diffscope.hypotheses import TESTS
from diffscope.hypotheses import shipped as shipped_files
from diffscope.hypotheses.shipped import SHIPPED, shipped
from diffscope.hypotheses.study import ALL, open_study
from diffscope.storage.statistics import save_statistics
from tests.contradictions import of_row
from tests.figures.test_figures import trained
from tests.study_data import study as planted_study

FOLDER = "a folder or a saved capture"
PRIMARIES = [f"primary-{id}-method" for id, declared in TESTS.items() if declared.kind == "primary"]  # rows of the page


@pytest.fixture
def quick(monkeypatch):
    """Tests that are done at once, with estimates that are made up."""
    from diffscope.hypotheses import board
    from diffscope.hypotheses.statistics import Estimate

    runs = []

    def result_of(test, subject):
        runs.append((test.id, subject is not None))
        if subject is None:
            return board.NEEDED[test.needs]
        numbers = (1.0, 0.5, 1.5, -0.1, 0.1, 0.001, 10, 1, 4, "as planted")
        return {name: Estimate(*numbers, layers=(0.25, 0.75)) for name in test.quantities}

    monkeypatch.setattr(board, "result_of", result_of)
    return runs


def page(app, board="the model", /, opened=(), **query):
    return fine(app("tests", opened=opened, **{"tests-board": board} | query))


def run_it(test):
    """Begin, and wait until nothing runs."""
    return at_rest(fine(test.button(key="tests-run").click().run()))


def charts(test):
    """The labels of the rows of each chart."""
    specs = [json.loads(element.proto.spec) for element in test.get("plotly_chart")]
    return [[note["text"] for note in spec["layout"].get("annotations", [])] for spec in specs]


def rows(test):
    """What stands on the rows of tests: a verdict, a question and its answer, by the test's id."""
    labels = [element.label.replace("\\", "") for element in test.expander]
    return {id: label for id, declared in TESTS.items() for label in labels if f" {declared.question}" in label}


def opened(test, *ids):
    """The page with some rows open."""
    for id in ids:
        test.session_state[f"test-{id}"] = True
    return fine(test.run())


def test_the_board_of_the_model_at_hand_whose_rows_open_where_they_stand(app, folders, quick):
    test = page(app)
    assert test.selectbox(key="tests-beside").value == str(folders["small-standard"])
    assert all(":gray-badge[not run yet]" in label for label in rows(test).values())
    assert len(rows(test)) == sum(declared.kind != "primary" for declared in TESTS.values())
    assert not quick and not test.get("progress")
    run_it(test)
    labels = rows(test)
    assert (
        ":gray-badge[**noise cancellation ✓ for**] :gray-badge[sparsification silent] :gray-badge[signed heads silent]"
        in labels["noise-symmetry"]
    )
    assert ":gray-badge[not run]" in labels["signed-mask"] and ":gray-badge[measured]" in labels["information-flow"]
    assert ("key-token-gain-pair", True) in quick and ("signed-mask", False) in quick
    assert f"{TESTS['sinks'].question} **no:** 1 (95 % 0.5 to 1.5) :gray[" in labels["sinks"]
    assert any("<b>noise-symmetry</b>" in label for label in charts(test)[-1]) and "against" in charts(test)[-1]
    assert not [button for button in test.button if button.key == "tests-run"]
    count = len(quick)
    test.run()
    assert len(quick) == count  # what is done is not done again
    assert TESTS["sparsity"].statistic not in shown(test.markdown)
    opened(test, "sparsity")
    text = shown(test.markdown)
    assert all(words in text for words in (TESTS["sparsity"].statistic, TESTS["sparsity"].rule, *TESTS["sparsity"].controls))
    assert "https://arxiv.org/abs/2505.16333" in text and "Verdict" in text
    assert any("<b>sparsity: measured</b>" in labels[0] for labels in charts(test))
    layers = next(frame.value for frame in test.dataframe if "layer 1" in frame.value)
    assert layers["layer 1"].tolist() == ["0.75"] * len(TESTS["sparsity"].quantities)


def test_a_standard_model_that_learned_something_else_is_not_put_beside_it(app, monkeypatch):
    import diffscope.models

    first, standard = diffscope.models.bundled()
    of_text = {**standard, "name": "of-text", "task": "text"}
    cards = [first, {**first, "name": "other", "sentence": "CITY N."}, {**standard, "sentence": "CITY N."}, of_text]
    monkeypatch.setattr(diffscope.models, "bundled", lambda: cards)
    test = page(app)
    assert test.selectbox(key="tests-beside").value == "none"
    fine(test.selectbox(key="model").select("other").run())  # nor does it stay so
    assert test.selectbox(key="tests-beside").value == standard["name"]
    fine(test.selectbox(key="model").select(first["name"]).run())
    assert test.selectbox(key="tests-beside").value == "none"


def test_the_python_of_a_board_has_the_tests_that_were_chosen(app):
    import board

    chosen = board.TestRequest("mini-diff", "", "", 40, 160, 24, "knock-out", None, ("noise-symmetry",))
    assert "tests=['noise-symmetry']" in chosen.code()


def test_a_standard_model_is_refused_before_anything_runs(app, folders):
    test = page(app, model=str(folders["small-standard"]))
    assert any(
        "small-standard is standard attention, and tests need a second map" in each.value.replace("\\", "") for each in test.info
    )
    assert "can be run" not in shown(test.markdown) and not [button for button in test.button if button.key == "tests-run"]


@pytest.mark.parametrize("name", ["planted", *shipped()])
def test_a_shipped_study_is_shown_whole(app, name, tmp_path, monkeypatch):
    if name == "planted":
        planted_study().save(tmp_path / name)
        (tmp_path / "laptop").symlink_to(SHIPPED / "laptop")  # its claims and power
        monkeypatch.setattr(shipped_files, "SHIPPED", tmp_path)
    kept = open_study(name)
    which = list(kept.boards)[-1 if name == "planted" else 0]
    test = page(app, f"{name} cohort, {which}", opened=PRIMARIES)
    seeds = ", ".join(map(str, max(kept.facts["arms"].values(), key=len)))
    assert any((seeds if which == ALL else which) in element.value for element in test.markdown)
    formation = next(verdict for verdict in kept.boards[which] if verdict.test.id == "formation")
    metrics = {metric.label.replace("\\", ""): metric for metric in test.metric}
    for quantity in formation.corrected:
        metric = metrics[TESTS["formation"].quantities[quantity].label]
        estimate = formation.estimates[quantity]
        numbers = [
            f"{getattr(estimate, name):.3g}".replace("-", "−") for name in ("value", "low", "high", "null_low", "null_high")
        ]
        value, low, high, null_low, null_high = numbers
        assert metric.value == value and f"{low} to {high}" in metric.delta
        assert f"{null_low} to {null_high}" in metric.delta and " p " not in metric.delta
    judged = [verdict for verdict in kept.boards[which] if not math.isnan(verdict.p)]
    for verdict in judged:
        assert shown(test.markdown).count(verdict.test.question) > 0
    assert shown(test.markdown).count("of the whole test, after Holm") == len(judged), "once, at each verdict"
    for verdict in kept.boards[which]:
        if verdict.test.id in rows(test):
            assert of_row(rows(test)[verdict.test.id], verdict) == []
        else:
            (card,) = (
                each.value for each in test.markdown if each.value.startswith("**") and verdict.test.question in each.value
            )
            assert of_row(card.replace("\\", ""), verdict) == []
    assert "Not decided yet" not in shown(test.info)
    assert any("small points are seeds" in text.value for text in test.caption)
    (claims,) = (table.value for table in test.dataframe if "published" in table.value.columns)
    assert claims.values.tolist() == [list(row) for row in tables.claims(kept).rows]
    opened(test, *rows(test))


def test_every_primary_says_what_it_would_find(app):
    test = page(app, opened=PRIMARIES)
    assert shown(test.caption).count("planted cohorts") == 4


def test_only_the_chosen_tests_run(app, quick):
    test = page(app)
    test.multiselect(key="tests-tests").set_value(["sparsity", "key-token-gain"]).run()
    run_it(test)
    assert [name for name, _ in quick] == ["sparsity", "key-token-gain"]
    assert list(rows(test)) == ["key-token-gain", "sparsity"]  # in the board's order


def test_a_real_test_runs_on_a_real_model(app):
    test = page(app)
    test.selectbox(key="model").set_value(FOLDER).run()
    test.text_input(key="path").set_value(str(BUNDLED / "mini-diff"))
    test.number_input(key="tests-prompts").set_value(10)
    test.number_input(key="tests-untrained").set_value(3)
    test.multiselect(key="tests-tests").set_value(["key-token-gain"]).run()
    run_it(test)
    assert ":gray-badge[measured]" in rows(test)["key-token-gain"]
    assert "answers 100.0% of 10 prompts" in shown(test.caption)


def test_progress_moves_and_a_stop_takes_effect_within_a_test_and_keeps_what_is_done(app, quick, monkeypatch):
    from diffscope.hypotheses import board

    done = board.result_of
    within, check_cancelled = threading.Event(), threading.Event()

    def slow(test, subject):
        if test.id != "sparsity":
            return done(test, subject)
        subject.source.tell(1, 4, "reading")
        within.set()
        assert check_cancelled.wait(60)
        subject.source.tell(2, 4, "reading")
        raise AssertionError("it went on")

    monkeypatch.setattr(board, "result_of", slow)
    test = page(app)
    test.multiselect(key="tests-tests").set_value(["key-token-gain", "sparsity"]).run()
    fine(test.button(key="tests-run").click().run())
    assert within.wait(60)
    fine(test.run())
    (bar,) = test.get("progress")
    assert "1 of 2 tests are done · sparsity: reading, 1 of 4" in bar.proto.text.replace("\\", "") and bar.proto.value == 50
    assert ":gray-badge[measured]" in rows(test)["key-token-gain"]  # shown while the other runs
    assert "Provisional" in shown(test.caption)
    test.switch_page("app_pages/explore.py").run()
    test.switch_page("app_pages/tests.py").run()
    assert test.get("progress")  # it goes on while the reader is elsewhere
    fine(test.button(key="tests-run-stop").click().run())
    check_cancelled.set()
    assert not at_rest(test).warning
    monkeypatch.setattr(board, "result_of", done)
    run_it(test)
    assert [name for name, _ in quick] == ["key-token-gain", "sparsity"]


def test_what_is_not_there_is_said(app, tmp_path):
    test = page(app, "a trained cohort")
    assert "folder of a trained cohort" in shown(test.info)
    test.text_input(key="tests-cohort").set_value(str(tmp_path)).run()
    run_it(test)
    assert "holds no cohort.nc" in shown(test.warning)
    save_statistics(trained(), tmp_path / "cohort.nc")
    fine(test.run())
    assert any("diff (50, 75)" in element.proto.spec for element in test.get("plotly_chart")) and not test.warning
    test = page(app, model=FOLDER, path="/nowhere")
    assert "no folder or file '/nowhere'" in shown(test.warning) and not test.get("progress")


def test_a_trained_cohort_answers_the_primary_tests(app, tmp_path):
    from studies.laptop.calibration.simulate import planted_cohort

    cohort = planted_cohort("NC", 8)
    cohort.attrs["recipe"] = json.dumps({"grid": {"template": " {city} {number}."}})
    save_statistics(cohort, tmp_path / "cohort.nc")
    test = page(app, "a trained cohort", opened=PRIMARIES)
    test.text_input(key="tests-cohort").set_value(str(tmp_path))
    test.multiselect(key="tests-tests").set_value(["formation", "common-noise"]).run()
    run_it(test)
    assert len(test.metric) == 3 and "Taken together: the primary tests" in shown(test.markdown)
    assert "What A2 costs there: not measured" in shown(test.caption)


def test_own_prompts_are_tested_and_what_they_lack_is_said(app):
    test = page(app)
    text = f"Here is a story of towns by the sea and of their numbers. {PROMPT}"
    own = json.dumps({"name": "cat", "prompt": text, "answer": " 7421", "distractors": ["1983"], "spans": {"answer": "7421"}})
    test.file_uploader(key="tests-own").set_value(("my.jsonl", own.encode(), "text/plain"))
    test.number_input(key="tests-untrained").set_value(3)
    test.multiselect(key="tests-tests").set_value(["key-token-gain", "gated"]).run()
    run_it(test)
    assert "too few prompts to tell it from chance" in shown(test.caption)  # one with distractors
    assert ":gray-badge[measured]" in rows(test)["key-token-gain"]
    assert "a trained cohort (--cohort FOLDER): gated" in shown(test.markdown).replace("*", "")
    without = json.dumps({"name": "cat", "prompt": text, "answer": " 7421"})
    test.file_uploader(key="tests-own").set_value(("my.jsonl", without.encode(), "text/plain")).run()
    run_it(test)
    assert "'cat' has none" in shown(test.markdown)
    many = "".join(json.dumps({"prompt": f"{n} is", "answer": " it"}) + "\n" for n in range(201))
    test.file_uploader(key="tests-own").set_value(("many.jsonl", many.encode(), "text/plain")).run()
    assert "prompts of many.jsonl" in test.button(key="tests-run").label.replace("\\", "")
    run_it(test)
    assert "many.jsonl has 201 prompts, and 200 are taken here" in shown(test.warning)
    test.file_uploader(key="tests-own").set_value(("my.jsonl", b"{", "text/plain")).run()
    fine(test.button(key="tests-run").click().run())
    assert "my.jsonl, line 1" in shown(test.warning) and not test.error
