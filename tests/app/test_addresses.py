"""Addresses of the seven pages that the dashboard had open what they opened, with every value that they name."""

import pytest
from looks import fine
from small_models import APP, PROMPT

OTHER, OWN = "a folder or a saved capture", "own text"
OWN_TEXT = {"example": OWN, "prompt": PROMPT, "answer": "7421"}


@pytest.fixture
def address(app, folders, small_run):
    """A function of an address of then, which returns the page that it opens."""
    from streamlit.testing.v1 import AppTest
    from streamlit.util import calc_hash

    names = {"DIFF": str(folders["small-diff"]), "STANDARD": str(folders["small-standard"]), "RUN": str(small_run)}

    def opened(page, query):
        test = AppTest.from_file(str(APP / "main.py"), default_timeout=120)
        test._page_hash = calc_hash(page)  # pages are known by their address, and a page that only leads on has no file
        for key, value in query.items():
            test.query_params[key] = names.get(value, value) if isinstance(value, str) else value
        fine(test.run())
        if page == "amplifier" and "amplifier-keys" in query:  # noise is injected on another page
            test.switch_page("app_pages/change.py").run()
            test.session_state["change-noise"] = True
            fine(test.run())
        return test

    return opened


def shown(value):
    """A widget's value as an address has it."""
    if isinstance(value, (list, tuple)):
        return [str(each) for each in value]
    return str(value)


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
    "intervene": ("intervene", {"intervene-of": "output", "intervene-why": "input", "distractors": "1983"}),
    "intervene: edits": ("intervene", {"edit": ["set_lambda:1:layers=0,2", "ablate_heads:layers=1:heads=0"]}),
    "amplifier: noise": (
        "amplifier",
        {
            "layer": "0",
            "head": "1",
            "query": "3",
            "amplifier-keys": "answer",
            "amplifier-sigma": "2",
            "amplifier-in": "this head",
            "amplifier-draw": "7",
        },
    ),
    "training": (
        "training",
        {"model": OTHER, "path": "RUN", "step": "4", "training-prompts": "20", "training-length": "64"} | OWN_TEXT,
    ),
    "hypotheses": (
        "hypotheses",
        {
            "hypotheses-board": "the model",
            "hypotheses-prompts": "33",
            "hypotheses-length": "96",
            "hypotheses-untrained": "5",
            "hypotheses-weights": "answer",
            "hypotheses-tests": ["noise-symmetry"],
            "hypotheses-beside": "none",
        },
    ),
    "hypotheses: a cohort": ("hypotheses", {"hypotheses-board": "a trained cohort", "hypotheses-cohort": "runs/none"}),
    "your_model: a folder": ("your_model", {"your_model-source": "a folder", "your_model-folder": "DIFF"}),
    "your_model: the hub": ("your_model", {"your_model-source": "the hub", "your_model-id": "org/none"}),
    "your_model: an upload": ("your_model", {"your_model-source": "an upload", "your_model-name": "mine"}),
    "your_model: the list": ("your_model", {"your_model-source": "the list", "your_model-listed": "STANDARD"}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_address_of_then_brings_back_every_value(address, folders, small_run, case):
    page, query = CASES[case]
    names = {"DIFF": str(folders["small-diff"]), "STANDARD": str(folders["small-standard"]), "RUN": str(small_run)}
    test = address(page, query)
    for key, value in query.items():
        new = key.replace("intervene-", "change-").replace("hypotheses-", "tests-")
        expected = value if isinstance(value, list) else names.get(value, value)
        found = shown(test.session_state[new])
        if key == "edit":
            assert len(found) == len(expected)
        elif isinstance(expected, list):
            assert found == expected, key
        else:
            assert found.casefold() in (expected.casefold(), f"{expected}.0"), key


def test_numbers_and_logits_are_parts_of_explore(address):
    assert address("amplifier", {}).session_state["part"] == "Numbers"
    assert address("amplifier", {"amplifier-part": "Logits"}).session_state["part"] == "Logits"
    assert address("your_model", {}).query_params["open"] in ("model", ["model"])


IN_WORDS = [
    ({"compare-edit": "λ = …", "compare-lambda": "0.5"}, ["set_lambda(0.5)"]),
    ({"compare-edit": "|D|"}, ["absolute_d()"]),
    ({"compare-edit": "gone"}, []),
    (
        {"compare-edit": "heads ablated", "compare-ablated": ["L0H1", "L1H0"]},
        ["ablate_heads(layers=[0], heads=[1])", "ablate_heads(layers=[1], heads=[0])"],
    ),
]


def test_an_edit_that_an_address_of_compare_has_in_words_is_stacked(address, monkeypatch):
    import edit_controls

    for query, stacked in IN_WORDS:
        with monkeypatch.context() as patch:
            patch.setattr(edit_controls.st, "query_params", QueryParams(query))
            assert edit_controls._in_words() == stacked
    assert address("compare", {"compare-by": "with and without an edit"} | query).session_state["edit"] == stacked


class QueryParams(dict):
    """Values of an address, of which one name may have several."""

    def get_all(self, key):
        return self[key]
