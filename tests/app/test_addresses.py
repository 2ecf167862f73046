"""An address brings back every value that it names, and a model that is saved over is another one."""

import os
import shutil
from dataclasses import replace

import pytest
from looks import fine
from small_models import PROMPT

OTHER, OWN = "a folder or a saved capture", "own text"
OWN_TEXT = {"example": OWN, "prompt": PROMPT, "answer": "7421"}


CASES = {
    "explore: span": (
        "explore",
        {
            "layer": "0",
            "head": "1",
            "query": "3",
            "pictures": "false",
            "question": "Where does it look?",
            "statistic": "span_mass",
            "map": "A1",
            "span": "irrelevant",
            "normalisation": "raw",
            "rows": "mean of all",
        },
    ),
    "explore: sink": ("explore", {"statistic": "sink_mass", "sink_set": "first_four", "map": "A2"}),
    "explore: largest, of a folder": (
        "explore",
        {"model": OTHER, "path": "DIFF", "question": "How spread out is it?", "statistic": "top_k_mass", "k": "5"} | OWN_TEXT,
    ),
    "explore: quantile": ("explore", {"question": "How spread out is it?", "statistic": "quantiles", "quantile": "0.99"}),
    "sidebar: chat": ("explore", {"example": "a chat", "chat": "user: hello", "chat-answer": "hello"}),
    "explore: λ, with spans": (
        "explore",
        OWN_TEXT
        | {
            "spans": ["mine:1-2", "other:3-4"],
            "question": "What does the subtraction change?",
            "statistic": "lambda",
            "lambda_value": "init",
        },
    ),
    "explore: numbers": ("explore", {"part": "Numbers", "layer": "0", "head": "1"}),
    "compare: two models": (
        "compare",
        {
            "compare-by": "two models",
            "compare-model": "STANDARD",
            "compare-layer": "0",
            "compare-head": "1",
            "compare-heads": "the heads above",
            "compare-map": "A1",
            "compare-normalisation": "raw",
            "compare-lengths": ["256"],
            "compare-prompts": "7",
            "compare-distractors": "2",
        },
    ),
    "compare: a folder": ("compare", {"compare-model": OTHER, "compare-model-path": "STANDARD"}),
    "compare: two prompts": (
        "compare",
        {
            "compare-by": "two prompts",
            "compare-example": OWN,
            "compare-prompt": PROMPT,
            "compare-answer": "7421",
            "compare-same": "False",
        },
    ),
    "compare: two checkpoints": (
        "compare",
        {"compare-by": "two checkpoints", "model": OTHER, "path": "RUN", "compare-step": "4"} | OWN_TEXT,
    ),
    "change": (
        "change",
        {
            "change-of": "output",
            "change-why": "input",
            "distractors": "1983",
            "edit": ["set_lambda(1, layers=[0, 2])", "ablate_heads(layers=[1], heads=[0])"],
        },
    ),
    "change: noise": (
        "change",
        {"amplifier-keys": "answer", "amplifier-sigma": "2", "amplifier-in": "this head", "amplifier-draw": "7"},
    ),
    "training": (
        "training",
        {"model": OTHER, "path": "RUN", "step": "4", "training-prompts": "20", "training-length": "64"} | OWN_TEXT,
    ),
    "tests": (
        "tests",
        {
            "tests-board": "the model",
            "tests-prompts": "33",
            "tests-length": "96",
            "tests-untrained": "5",
            "tests-weights": "answer",
            "tests-tests": ["noise-symmetry"],
            "tests-beside": "none",
        },
    ),
    "tests: a cohort": ("tests", {"tests-board": "a trained cohort", "tests-cohort": "runs/none"}),
    "your_model: a folder": ("explore", {"open": "model", "your_model-source": "a folder", "your_model-folder": "DIFF"}),
    "your_model: the hub": ("explore", {"open": "model", "your_model-source": "the hub", "your_model-id": "org/none"}),
    "your_model: an upload": ("explore", {"open": "model", "your_model-source": "an upload", "your_model-name": "mine"}),
    "your_model: the list": ("explore", {"open": "model", "your_model-source": "the list", "your_model-listed": "STANDARD"}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_address_brings_back_every_value(app, folders, small_run, case):
    page, query = CASES[case]
    names = {"DIFF": str(folders["small-diff"]), "STANDARD": str(folders["small-standard"]), "RUN": str(small_run)}
    query = {key: value if isinstance(value, list) else names.get(value, value) for key, value in query.items()}
    opened = ["change-noise"] if case == "change: noise" else []  # noise is injected where its row is open
    test = fine(app(page, opened=opened, **query))
    for key, expected in query.items():
        if key == "open":  # of no widget: the panel over the page
            continue
        found = test.session_state[key]
        if isinstance(expected, list):
            assert list(map(str, found)) == expected, key
        else:
            assert str(found).casefold() in (expected.casefold(), f"{expected}.0"), key


def test_of_another_prompt_the_tokens_that_a_view_had_chosen_are_dropped(app):
    from streamlit.testing.v1 import AppTest

    def page():
        from types import SimpleNamespace

        import streamlit as st
        from url_state import save_view_state, view_state

        if "run" not in st.session_state:
            save_view_state("view", {"scale": "root", "locked": {"rows": [3], "columns": []}})
        st.session_state["run"] = True
        st.json(view_state("view", SimpleNamespace(all_prompts=[SimpleNamespace(ids=st.session_state.get("ids", [5, 6, 7]))])))

    def looks(test):
        return fine(test.run()).json[0].value

    test = AppTest.from_function(page)
    assert "locked" in looks(test) and "locked" in looks(test)
    test.session_state["ids"] = [5, 6]
    assert looks(test) == looks(test) == '{"scale": "root"}'


def test_a_model_that_is_saved_over_is_another_one(app, folders, tmp_path):
    from cache import stamp_of
    from sidebar import Subject

    name, weights = str(tmp_path / "model"), tmp_path / "model" / "model.safetensors"
    shutil.copytree(folders["small-diff"], name)
    before, stamp = Subject(name, prompt=PROMPT), stamp_of(name, weights=True)
    key = before.key
    os.utime(weights, (0, 0))  # older ones are put in their place
    assert before.key == key and replace(before, spans={"answer": "7421"}).stamp == before.stamp  # what is shown is of one model
    assert Subject(name, prompt=PROMPT).key != key and stamp_of(name, weights=True) != stamp
    stamp = stamp_of(name, weights=True)
    os.utime(tmp_path / "model" / "config.json", (0, 0))
    assert stamp_of(name, weights=True) != stamp
    assert replace(before, model=str(folders["small-diff"])).stamp == stamp_of(str(folders["small-diff"]))


def test_the_python_of_a_subject_has_the_spans_that_could_be_marked(app, folders):
    from sidebar import Subject

    codes = [
        Subject(str(folders["small-diff"]), prompt=PROMPT, spans={"answer": answer}).code() for answer in ("7421", "nowhere")
    ]
    assert "spans={'answer': '7421'}" in codes[0] and "spans={}" in codes[1]
