"""The Hypotheses page: a board of the model at hand or of a study, run with progress, stopped, and never a traceback."""

import json

import pytest
from small_models import PROMPT

from diffscope.cards import BUNDLED
from diffscope.hypotheses import TESTS, kept_study, study
from diffscope.hypotheses.kept_study import shipped
from diffscope.hypotheses.study import open_study
from tests.studies import study as planted_study


@pytest.fixture
def quick(monkeypatch):
    """Tests that are done at once, with estimates that are made up."""
    from diffscope.hypotheses import board
    from diffscope.hypotheses.inference import Estimate

    runs = []

    def result_of(test, subject):
        runs.append((test.id, subject is not None))
        if subject is None:
            return board.NEEDED[test.needs]
        numbers = (1.0, 0.5, 1.5, -0.1, 0.1, 0.001, 10, 1, 4, "as planted")
        return {name: Estimate(*numbers, layers=(0.25, 0.75)) for name in test.quantities}

    monkeypatch.setattr(board, "result_of", result_of)
    return runs


def page(app, board="a model"):
    test = app()
    test.switch_page("app_pages/hypotheses.py").run()
    test.selectbox(key="board").set_value(board).run()
    assert not test.exception, test.exception
    return test


def warnings_of(test):
    return " ".join(element.value.replace("\\", "") for element in test.warning)


def wanting_of(test):
    (expander,) = (element for element in test.expander if "not run" in element.label)
    return " ".join(element.value.replace("\\", "").replace("**", "") for element in expander.markdown)


def run_it(test):
    test.button(key="run").click().run()
    assert not test.exception, test.exception
    return test


def test_the_board_of_the_model_at_hand(app, folders, quick):
    test = page(app)
    test.selectbox(key="subject").set_value(str(folders["small-diff"]))
    test.selectbox(key="beside").set_value(str(folders["small-standard"])).run()
    assert not quick and test.button(key="stop").disabled
    run_it(test)
    board = test.dataframe[0].value
    assert board["verdict"][board["test"] == "noise-symmetry"].item() == "noise cancellation"
    assert board["verdict"][board["test"] == "signed-mask"].item().startswith("needs a trained cohort")
    assert board["verdict"][board["test"] == "information-flow"].item() == "measured"
    assert ("key-token-gain-pair", True) in quick and ("signed-mask", False) in quick
    (chart,) = (json.loads(element.proto.spec) for element in test.get("plotly_chart"))
    assert any("noise-symmetry: NC" in text for text in chart["layout"]["yaxis"]["ticktext"])
    assert test.button(key="run").disabled
    test.selectbox(key="test").set_value("sparsity").run()
    text = " ".join(element.value for element in test.markdown)
    assert "Claim" in text and "D is sparser than A1" in text and "Rule" in text and "Controls" in text
    assert "by layer" in test.caption[-1].value
    assert test.dataframe[-1].value["layer 1"].tolist() == ["0.75"] * len(TESTS["sparsity"].quantities)
    count = len(quick)
    test.run()
    assert len(quick) == count  # what is done is not done again


@pytest.mark.parametrize("name", ["planted", *shipped()])
def test_a_shipped_study_is_shown_whole(app, name, tmp_path, monkeypatch):
    if name == "planted":
        planted_study().save(tmp_path / name)
        monkeypatch.setattr(kept_study, "SHIPPED", tmp_path)
    test = page(app, f"{name} cohort, fresh seeds")
    assert test.dataframe[0].value["test"].tolist() == list(TESTS)
    assert any(", ".join(map(str, open_study(name).facts["fresh"])) in element.value for element in test.markdown)
    for chosen in TESTS:
        test.selectbox(key="test").set_value(chosen).run()
        assert not test.exception, test.exception


def test_without_a_shipped_study_the_page_says_what_is_known_of_it(app, monkeypatch, tmp_path):
    monkeypatch.setattr(kept_study, "SHIPPED", tmp_path)
    test = page(app)
    text = " ".join(element.value for element in test.info).replace("\\", "")
    assert kept_study.IN_PREPARATION in text and study.TAKEN_BACK in text
    assert test.selectbox(key="board").options == ["a model"]


def test_only_the_chosen_tests_run(app, folders, quick):
    test = page(app)
    test.multiselect(key="tests").set_value(["sparsity", "key-token-gain"]).run()
    run_it(test)
    assert [name for name, _ in quick] == ["sparsity", "key-token-gain"]
    assert test.dataframe[0].value["test"].tolist() == ["key-token-gain", "sparsity"]  # in the board's order
    assert any("Provisional" in element.value for element in test.caption)


def test_a_real_test_runs_on_a_real_model(app):
    test = page(app)
    test.selectbox(key="subject").set_value("a folder").run()
    test.text_input(key="subject-path").set_value(str(BUNDLED / "mini-diff"))
    test.number_input(key="prompts").set_value(10)
    test.number_input(key="untrained").set_value(3)
    test.multiselect(key="tests").set_value(["key-token-gain"]).run()
    run_it(test)
    assert test.dataframe[0].value["verdict"].item() == "measured"


def test_what_was_finished_when_it_was_stopped_is_kept(app, folders, quick, monkeypatch):
    from diffscope.errors import DiffscopeError
    from diffscope.hypotheses import board

    done = board.result_of

    def until(test, subject):
        if test.id == "sparsity":
            raise DiffscopeError("stopped here")
        return done(test, subject)

    monkeypatch.setattr(board, "result_of", until)
    test = page(app)
    test.multiselect(key="tests").set_value(["key-token-gain", "sparsity"]).run()
    run_it(test)
    assert "stopped here" in warnings_of(test)
    monkeypatch.setattr(board, "result_of", done)
    run_it(test)
    assert [name for name, _ in quick] == ["key-token-gain", "sparsity"]


def test_what_is_not_there_is_said(app, tmp_path):
    test = page(app)
    test.text_input(key="cohort").set_value(str(tmp_path)).run()
    run_it(test)
    assert "holds no cohort.nc" in warnings_of(test)
    test.selectbox(key="subject").set_value("a folder").run()
    test.text_input(key="subject-path").set_value("/nowhere").run()
    run_it(test)
    assert test.warning and not test.exception


def test_own_prompts_are_tested_and_what_they_lack_is_said(app, folders):
    test = page(app)
    text = f"Here is a story of towns by the sea and of their numbers. {PROMPT}"
    own = json.dumps({"name": "cat", "prompt": text, "answer": " 7421", "distractors": ["1983"], "spans": {"answer": "7421"}})
    test.file_uploader(key="own").set_value(("my.jsonl", own.encode(), "text/plain"))
    test.number_input(key="untrained").set_value(3)
    test.multiselect(key="tests").set_value(["key-token-gain", "gated"]).run()
    run_it(test)
    captions = " ".join(element.value.replace("\\", "") for element in test.caption)
    assert "prompts exactly" in captions or "answers at chance" in captions
    board = test.dataframe[0].value
    assert not board["verdict"][board["test"] == "key-token-gain"].item().startswith("needs")
    assert "a trained cohort (--cohort FOLDER): gated" in wanting_of(test)
    without = json.dumps({"name": "cat", "prompt": text, "answer": " 7421"})
    test.file_uploader(key="own").set_value(("my.jsonl", without.encode(), "text/plain")).run()
    run_it(test)
    assert "'cat' have none" in wanting_of(test)
    test.file_uploader(key="own").set_value(("my.jsonl", b"{", "text/plain")).run()
    run_it(test)
    assert "my.jsonl, line 1" in warnings_of(test) and not test.error and not test.exception
