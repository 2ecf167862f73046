"""Where others come in: nothing without the token, no path and no hub, and nothing from elsewhere on any page."""

import asyncio
import hashlib
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from looks import at_rest
from small_models import HOSTILE, PROMPT

from tools.browser import ROOT, faults, foreign_requests, settle

TOKEN = "a-token-of-this-start"
COOKIE = f"diffscope-{hashlib.sha256(TOKEN.encode()).hexdigest()[:8]}"
OTHER, OWN = "a folder or a saved capture", "own text"


@pytest.fixture
def models(folders, tmp_path):
    """A folder of models: two that lie in it, and others that links only seem to put there."""
    home = tmp_path / "shelf"
    shutil.copytree(folders["small-diff"], home / "team" / "mine")
    shutil.copytree(folders["small-standard"], home / "plain")
    (home / "linked").symlink_to(folders["small-diff"])
    shutil.copytree(folders["small-diff"], home / "half")
    (home / "half" / "model.safetensors").unlink()
    (home / "half" / "model.safetensors").symlink_to(folders["small-diff"] / "model.safetensors")
    shutil.copytree(folders["small-diff"], home / "no-weights", ignore=shutil.ignore_patterns("*.safetensors"))
    shutil.copytree(folders["small-diff"], home / ".hidden")
    return home


@pytest.fixture
def shared(app, models, monkeypatch):
    monkeypatch.setenv("DIFFSCOPE_TOKEN", TOKEN)
    monkeypatch.setenv("DIFFSCOPE_MODELS", str(models))
    return app


def words(test):
    return " ".join(element.value.replace("\\", "") for kind in (test.warning, test.info, test.markdown) for element in kind)


@pytest.mark.parametrize("query", [{}, {"token": ""}, {"token": "wrong"}, {"token": TOKEN[:-1]}, {"token": f"{TOKEN}\u00e9"}])
def test_without_the_token_there_is_one_line_and_nothing_else(shared, query):
    test = shared(**query)
    assert not test.exception and len(test.info) == 1 and "address with its token" in test.info[0].value
    others = (test.selectbox, test.text_area, test.markdown, test.button, test.caption, test.get("bidi_component"))
    assert not any(len(elements) for elements in others)


def test_who_has_the_token_is_let_in_and_stays_in(shared):
    test = shared(token=TOKEN)
    assert not test.exception and test.get("bidi_component") and TOKEN in test.query_params["token"]
    del test.query_params["token"]  # as when another page is opened
    test.selectbox(key="model").set_value("open a model…").run()
    assert not test.exception and TOKEN in test.query_params["token"]


def test_a_folder_that_is_called_like_a_bundled_model_is_offered_beside_it(app, folders, monkeypatch):
    app()
    catalog, home = sys.modules["catalog"], folders["small-standard"]
    monkeypatch.setattr(catalog, "bundled", lambda: {home.name: {"name": home.name}})
    monkeypatch.setattr(catalog, "rules", lambda: replace(sys.modules["access"].rules(), models=home))
    assert [catalog.resolve(name) for name in catalog.cards()] == [home.name, str(home)]


def test_models_of_the_folder_are_offered_by_name_and_no_other(shared, models, folders):
    test = shared(token=TOKEN)
    names = test.selectbox(key="model").options
    assert names == [*map(str, folders.values()), "shelf/plain", "shelf/team/mine", "open a model…"]
    test.selectbox(key="model").set_value("shelf/team/mine").run()
    assert not test.exception and test.get("bidi_component") and str(models) not in words(test)
    assert not any(str(models) in code.value for code in test.code)


PATHS = [
    {"model": OTHER, "path": "/etc"},
    {"model": "/etc"},
    {"model": "shelf/../../etc"},
    {"model": "shelf/linked"},
    {"model": "org/model"},
    {"your_model-source": "a folder", "your_model-folder": "/etc"},
]


def test_an_address_opens_no_path(shared):
    def check(test):
        assert not test.exception and "etc" not in words(test)
        assert not any(field.key in ("path", "your_model-folder", "your_model-id") for field in test.text_input)

    for query in PATHS:
        test = shared(token=TOKEN, **query)
        check(test)
    test.selectbox(key="model").set_value("open a model…").run()
    check(test)


@pytest.mark.parametrize(
    "name", ["/etc", "org/model", "shelf/linked", "shelf/half", "shelf/../shelf/plain", "/tmp/diffscope-upload-x/../y"]
)
def test_a_page_that_asks_for_another_model_is_refused(shared, name):
    from streamlit.testing.v1 import AppTest

    def ask(name):
        from cache import saved, scope, stamp_of
        from messages import show_errors

        with show_errors():
            scope(name, stamp_of(name))
        with show_errors():
            saved(name, 0.0)

    test = AppTest.from_function(ask, args=(name,), default_timeout=60).run()
    assert not test.exception and len(test.warning) == 2
    assert all("opens the models that it lists" in warning.value for warning in test.warning)


def test_trainings_below_the_folder_are_followed_and_tested_by_name(shared, models, small_run):
    shutil.copytree(small_run, models / "team" / "runs" / "seed-0")
    named = "shelf/team/runs/seed-0"
    test = shared("training", token=TOKEN, model=named)
    assert not test.exception and test.select_slider(key="step").options == ["0", "4", "10 (the end)"]
    test.number_input(key="training-prompts").set_value(10)
    test.number_input(key="training-length").set_value(96).run()
    at_rest(test.button(key="training-ask").click().run())
    assert "copying any number of the text" in words(test)
    test.switch_page("app_pages/tests.py").run()
    assert test.selectbox(key="tests-board").options[-1] == "the model"  # shipped studies, and no cohort of the server's
    test.selectbox(key="tests-board").set_value("the model").run()
    test.number_input(key="tests-prompts").set_value(10)
    test.number_input(key="tests-untrained").set_value(3)
    test.multiselect(key="tests-tests").set_value(["sparsity", "sinks-training"]).run()
    at_rest(test.button(key="tests-run").click().run())
    assert "measured" in next(row.label for row in test.expander if "Is D sparser than A1" in row.label)
    assert "three checkpoints of a training at least" in words(test)  # its two were found
    texts = [*test.markdown, *test.caption, *test.warning, *test.code]
    assert any(named in text.value.replace("\\", "") for text in texts) and not any(str(models) in text.value for text in texts)


def test_prompts_have_a_length(shared, monkeypatch):
    test = shared(token=TOKEN, example=OWN, prompt="a " * 30)
    assert test.get("bidi_component")
    cache = sys.modules["cache"]
    monkeypatch.setattr(cache, "rules", lambda: replace(sys.modules["access"].rules(), tokens=10))
    test.text_area(key="prompt").set_value("b " * 30).run()
    assert "and 10 are taken here" in words(test)


PASTES = {
    "markup": HOSTILE,
    "right to left": "שלום \u202e עולם \u202c مرحبا",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301",
    "CJK": "数字は7421です。한국어",
    "spaces": f"a{' ' * 10_000}b",
    "NUL": "a\x00b\x1b[31m\u2028\ufeff",
    "a megabyte": "word " * 200_000,
}


def test_any_paste_is_shown_or_refused_in_a_line(app):
    test = app(example=OWN, prompt=PROMPT)
    for name, text in PASTES.items():
        test.text_area(key="prompt").set_value(text).run()
        assert not test.exception, name
        refused = [("shorten it" in warning.value) for warning in test.warning] == [True]
        assert test.get("bidi_component") or refused, name


# the door


def at_the_door(path="/", query="", cookie="", kind="http"):
    """What the door sends, and whether it let through."""
    from server import Door

    through, sent = [], []

    async def inside(scope, receive, send):
        through.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    headers = [(b"cookie", cookie.encode("latin-1"))] if cookie else []
    scope = {"type": kind, "path": path, "query_string": query.encode(), "headers": headers}
    asyncio.run(Door(inside)(scope, None, send))
    return bool(through), sent


def test_the_door_lets_nothing_through_without_the_token(shared):
    for refused in ({}, {"query": "token=wrong"}, {"cookie": f"{COOKIE}=wrong"}, {"cookie": f"{COOKIE}=\xff; ;;="}):
        through, sent = at_the_door("/_stcore/upload_file/a/b", **refused)
        assert not through and sent[0]["status"] == 403 and b"token" in sent[1]["body"]
    through, sent = at_the_door("/_stcore/stream", kind="websocket")
    assert not through and sent == [{"type": "websocket.close", "code": 1008}]
    through, sent = at_the_door(query=f"a=b&token={TOKEN}")
    assert through and any(b"HttpOnly" in value for name, value in sent[0]["headers"] if name == b"set-cookie")
    assert at_the_door("/_stcore/stream", cookie=f"a=b; {COOKIE}={TOKEN}", kind="websocket")[0]
    assert at_the_door("/_stcore/health")[0]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def status(address):
    try:
        with urlopen(address, timeout=60) as answer:
            return answer.status
    except HTTPError as error:
        return error.code


# in a browser


@pytest.mark.browser
@pytest.mark.slow
def test_the_shared_dashboard_in_a_browser(new_page, models):
    options = ["--share", "--host", "127.0.0.1", "--port", free_port(), "--models", str(models)]
    command = [sys.executable, "-m", "diffscope", "app", *options]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **quiet) as server:
        try:
            address = server.stdout.readline().split()[3]
            home, _, query = address.partition("/?")
            assert status(home) == status(f"{home}/?token=wrong") == status(f"{home}/_stcore/host-config") == 403
            stranger = new_page(800, 600)
            stranger.goto(f"{home}/change")
            assert "its token" in stranger.inner_text("body") and stranger.locator("[data-testid=stApp]").count() == 0
            page = new_page(1300, 900)
            asked = foreign_requests(page, home)
            shown = urlencode({"model": "shelf/team/mine", "example": OWN, "prompt": PROMPT, "answer": "7421"})
            page.goto(f"{home}/change?{query}&{shown}")
            settle(page)
            page.get_by_text("A₂ → 0").or_(page.get_by_text("λ × 0")).first.wait_for()
            assert not [fault for fault in faults(page) if "red box" in fault]
            assert query in page.url
            page.goto(f"{home}/?open=model")  # by the cookie
            settle(page)
            page.get_by_text("Your model is in").wait_for()
            assert page.get_by_text("Your model is in").count() == 1 and page.get_by_text("a folder", exact=True).count() == 0
            assert asked == []
        finally:
            server.terminate()
