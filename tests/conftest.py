"""What all tests share."""

import gc
import os
import sys

import hypothesis
import pytest

from tools.browser import CHROMIUM

pytest_plugins = ["tests.fixtures"]

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

# A failure is the same on every machine, and none comes by chance.
hypothesis.settings.register_profile("same every time", deadline=None, max_examples=40, derandomize=True, database=None)
hypothesis.settings.load_profile("same every time")

LONGEST = (  # so that no process is left with one of them at the end
    "test_browser.py",
    "test_analyses.py",
    "test_queue.py",
    "test_sweep.py",
    "test_docs.py",
    "test_gpu_program.py",
    "test_conformance.py",
    "test_runs.py",
    "test_golden.py",
)
OBJECTS = 20_000  # new ones after which the youngest are looked through for garbage


def pytest_addoption(parser):
    """Add ``--full``: what is rare is shown as often, and as large, as it takes to believe it."""
    parser.addoption("--full", action="store_true", help="run what shows a rare property in full, for minutes")


@pytest.fixture(scope="session")
def full(request):
    """Return whether a test may take minutes."""
    return request.config.getoption("--full")


@pytest.fixture(autouse=True)
def own_main():
    """Streamlit's AppTest leaves its script behind as ``__main__``, which a process that is spawned later would run."""
    before = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = before


def pytest_collection():
    """While everything is imported nothing becomes garbage, and to look for it takes a fifth of the time."""
    gc.disable()


def pytest_collection_finish():
    """What is imported stays to the end, and need not be looked through again."""
    gc.freeze()
    gc.set_threshold(OBJECTS)
    gc.enable()


def pytest_collection_modifyitems(config, items):
    """Run the longest files first; skip browser tests without Chromium, gpu tests without CUDA, full ones unless asked for."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
    if not config.getoption("--full"):
        _skip(items, "full", "needs --full")
    if CHROMIUM is None:
        _skip(items, "browser", "needs Chromium")
    if any(item.get_closest_marker("gpu") for item in items):
        import torch

        if not torch.cuda.is_available():
            _skip(items, "gpu", "needs a CUDA device")


def _skip(items, marker, reason):
    for item in items:
        if item.get_closest_marker(marker):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def laptop_runs(tmp_path_factory):
    """The runs of the shipped study, in the folders laptop and laptop-text: a test that changes any copies them first."""
    from studies.laptop.runs import unpack

    folder = tmp_path_factory.mktemp("runs")
    unpack(folder)
    return folder
