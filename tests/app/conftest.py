"""Two small models, one differential and one standard, and the app on them."""

import functools
import os
import sys
from importlib.machinery import SourceFileLoader

import pytest
from small_models import APP, example, save_model, save_run

from tools.browser import dashboard

#: modules whose caches hold what was read of models: what they return depends on files and prompts, whether they return it on
#: the server's rules
READ = ("background", "cache", "edit_results")


@pytest.fixture(scope="session", autouse=True)
def packages_looked_through_once():
    """Streamlit looks through all installed packages for parts of pages whenever an AppTest starts, which takes a second."""
    from streamlit.components.v2 import manifest_scanner

    with pytest.MonkeyPatch.context() as patch:
        scan = functools.cache(manifest_scanner.scan_component_manifests)
        patch.setattr(manifest_scanner, "scan_component_manifests", scan)
        yield


@pytest.fixture(scope="session", autouse=True)
def settings_of_the_command():
    """What ``diffscope app`` sets of a script's run: no rewriting of each page for display, and no statistics of its calls."""
    from streamlit import config

    names = ("runner.magicEnabled", "browser.gatherUsageStats")
    before = {name: config.get_option(name) for name in names}
    for name in names:
        config.set_option(name, False)
    yield
    for name, value in before.items():
        config.set_option(name, value)


@pytest.fixture(scope="session", autouse=True)
def code_compiled_once():
    """Each AppTest compiles its pages, and what lies beside them is imported anew for each test: their code stays the same."""
    from streamlit.runtime.scriptrunner.script_cache import ScriptCache
    from streamlit.testing.v1 import local_script_runner

    pages, code_of = ScriptCache(), SourceFileLoader.get_code
    compiled = functools.cache(lambda path, name: code_of(SourceFileLoader(name, path), name))

    def get_code(loader, name):
        return compiled(loader.path, name) if loader.path.startswith(str(APP)) else code_of(loader, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_script_runner, "ScriptCache", lambda: pages)
        patch.setattr(SourceFileLoader, "get_code", get_code)
        yield


@pytest.fixture(scope="session", autouse=True)
def scripts_waited_for():
    """AppTest looks a thousand times a second whether a script has ended, which takes from the script what it looks for."""
    from streamlit.testing.v1 import local_script_runner

    def wait(runner, timeout=3):
        runner._script_thread.join(timeout)
        if runner._script_thread.is_alive():
            runner.request_stop()
            raise RuntimeError(f"the script of a page ran for more than {timeout} seconds")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_script_runner, "require_widgets_deltas", wait)
        yield


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {
        "small-diff": save_model(root / "small-diff", "v1", 3),
        "small-standard": save_model(root / "small-standard", "standard", 2),
    }


@pytest.fixture(scope="session")
def small_run(tmp_path_factory):
    """The folder of a small model with checkpoints, as a training leaves it."""
    return save_run(tmp_path_factory.mktemp("runs") / "seed-0")


@pytest.fixture
def monitored(tmp_path):
    """A function that measures further steps of one training, in the folder ``out/monitor``, with an alarm at each."""
    import torch

    from diffscope.monitoring import Monitor
    from tests import tiny

    model = tiny.own(hidden_size=32, intermediate_size=32).train()
    options = dict(every=1, budget=None, path=tmp_path / "out" / "monitor", strict=True)
    monitor = Monitor(
        model, [tiny.ids(20)], ["lambda", "overlap", "entropy", "logit_outliers"], **options, maps=[(1, 0)], maps_every=2
    )
    monitor.alert("entropy", above=0.0, map="A1")

    def go_on(*steps, told=True):
        for step in steps:
            monitor.step(step, **({"loss": 4.0 - step} if told else {}))
            monitor.rules[-1]._out = frozenset()  # it is told again
            with torch.no_grad():
                model.model.layers[0].self_attn.lambda_q1 += 0.1

    return go_on


@pytest.fixture(scope="session")
def home():
    """The address of a dashboard that runs, as it is, for all tests with a browser."""
    with dashboard() as (address, _):
        yield address


def forget(all_of_it=False):
    """Forget what the app keeps for all sessions; what it read of models only where `all_of_it` is to go."""
    import streamlit as st
    from streamlit.runtime.caching.cache_resource_api import _resource_caches

    of_all = _resource_caches._function_caches.get(None, {})
    read = [key for key, cache in of_all.items() if cache.display_name.startswith(tuple(f"{name}." for name in READ))]
    kept = {} if all_of_it else {key: of_all.pop(key) for key in read}
    st.cache_resource.clear()
    _resource_caches._function_caches[None] = kept


@pytest.fixture
def app(folders, request):
    """The app as a function of a page and a query string's values; its models and examples are the small ones.

    What it read of a model is kept for the next test, unless a test changes what reads it.
    """
    from streamlit.testing.v1 import AppTest

    import diffscope.models
    import diffscope.tasks

    kinds = {"small-diff": "v1", "small-standard": "standard"}
    cards = [
        {"name": str(folders[name]), "path": str(folders[name]), "attention": kinds[name], "checkpoints": []} for name in kinds
    ]
    known = {"retrieval": [example("Two cities"), example("Again")], "text": []}
    changed = "monkeypatch" in request.fixturenames or bool({"DIFFSCOPE_TOKEN", "DIFFSCOPE_MODELS"} & os.environ.keys())
    monkeypatch = request.getfixturevalue("monkeypatch")  # which is in those names from now on
    monkeypatch.setattr(diffscope.models, "bundled", lambda: cards, raising=False)
    monkeypatch.setattr(diffscope.tasks, "examples", lambda kind="retrieval": known[kind])
    monkeypatch.syspath_prepend(str(APP))
    forget(all_of_it=changed)

    def start(page="explore", /, opened=(), **query):
        test = AppTest.from_file(str(APP / "main.py"), default_timeout=120)
        test.session_state["_charts-known"] = True  # no browser says that it has drawn the maps
        if page != "explore":  # which is at no address of its own
            test.switch_page(f"app_pages/{page}.py")
        for key in opened:  # rows of the page that are open from the start
            test.session_state[key] = True
        for key, value in query.items():
            test.query_params[key] = value
        return test.run()

    yield start
    if "background" in sys.modules:
        sys.modules["background"].stop_all()  # jobs end before the modules that they run are taken away
    forget(all_of_it=changed)
    for name in [name for name, module in sys.modules.items() if str(APP) in str(getattr(module, "__file__", ""))]:
        sys.modules.pop(name, None)
