"""Fixtures that tests of several rooms share: bundled models with a capture, the command line, and pages of a browser."""

import pytest

from tools.browser import chromium


@pytest.fixture(scope="session")
def mini_diff():
    """The bundled DIFF model; tests leave it as it is."""
    import diffscope

    return diffscope.load("mini-diff")


@pytest.fixture(scope="session")
def mini_standard():
    """The bundled standard model; tests leave it as it is."""
    import diffscope

    return diffscope.load("mini-standard")


@pytest.fixture(scope="session")
def example():
    """The first of the bundled models' example prompts."""
    from diffscope.tasks import examples

    return examples()[0]


@pytest.fixture(scope="session")
def mini_capture(mini_diff, example):
    """A capture of the bundled DIFF model on the example, with its spans."""
    return mini_diff.capture(example.text, spans=example.spans)


@pytest.fixture(scope="session")
def tiny_capture():
    """A capture of 60 tokens of a tiny DIFF model."""
    import diffscope
    from tests import tiny

    return diffscope.load(tiny.own("v1")).capture(tiny.ids(60), spans={"answer": slice(3, 6)})


@pytest.fixture(scope="session")
def tiny_diff_folder(tmp_path_factory):
    """A saved folder with a tiny random DIFF V1 model and its tokenizer."""
    from tests import tiny

    folder = tmp_path_factory.mktemp("models") / "tiny-diff"
    tiny.own("v1").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def run(capsys):
    """Run the ``diffscope`` command with some arguments; returns its exit status, stdout and stderr."""
    from diffscope.cli import main

    def command(*arguments):
        status = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return command


@pytest.fixture(scope="module")
def open_page():
    """Open pages of a browser; no longer than for a module, since meanwhile nothing else can run an event loop."""
    with chromium() as opened:
        yield opened


@pytest.fixture
def new_page(open_page):
    """Open a page: width, height; ``page.problems`` lists errors of its console. It is closed after the test."""
    pages = []

    def opened(*size, **options):
        pages.append(open_page(*size, **options))
        pages[-1].set_default_timeout(60_000)
        return pages[-1]

    yield opened
    for page in pages:
        page.close()
