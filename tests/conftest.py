"""What all tests share."""

import gc
import os
import sys

import pytest

from tools.browser import CHROMIUM, chromium

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

LONGEST = ("test_analyses.py", "test_gpu_program.py")  # so that no process is left with one of them at the end


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
    gc.enable()


def pytest_collection_modifyitems(items):
    """Run the longest files first; skip browser tests without Chromium, gpu tests without CUDA."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
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
def browser_profile(tmp_path_factory):
    """Where the browser keeps its cache from module to module."""
    return tmp_path_factory.mktemp("browser")


@pytest.fixture(scope="module")
def open_page(browser_profile):
    """What opens pages of a browser; no longer than a module has it, since meanwhile nothing else can run an event loop."""
    with chromium(browser_profile) as opened:
        yield opened


@pytest.fixture
def new_page(open_page):
    """What opens a page: width, height; ``page.problems`` are what its console complains of. It is closed after the test."""
    pages = []

    def opened(*size, **options):
        pages.append(open_page(*size, **options))
        return pages[-1]

    yield opened
    for page in pages:
        page.close()


@pytest.fixture(scope="session")
def tiny_diff_folder(tmp_path_factory):
    """A saved folder with a tiny random DIFF V1 model and its tokenizer."""
    from tests import tiny

    folder = tmp_path_factory.mktemp("models") / "tiny-diff"
    tiny.own("v1").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder
