"""What the site says is true: its code runs, its links lead somewhere, its pages are reached, and nothing public is left out."""

import ast
import importlib
import re
import sys
import warnings
from functools import cache
from pathlib import Path

import pytest

import diffscope
from tools.readme import run

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MADE = {"gallery/index.md", "api/index.md"}  # when the site is built, of what is tested elsewhere
PAGES = sorted(
    path
    for path in [*DOCS.glob("*.md"), *DOCS.glob("evidence/*.md")]
    if path.relative_to(DOCS).as_posix() not in MADE  # where somebody has built it
)
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```", re.S | re.M)
NOT_RUN = "# Not run when this page is tested: "
FEWER = {  # of which no page says how many it takes
    'layer=2, head=1, venue="icml")': 'layer=2, head=1, venue="icml", names=["D"], width=2.0)',
    'layer=2, head=1, venue="neurips")': 'layer=2, head=1, venue="neurips", names=["D"], width=2.0)',
    "examples = diffscope.tasks.examples()": "examples = diffscope.tasks.examples()[:2]",
    "head_types(scope, diffscope.tasks.examples())": "head_types(scope, diffscope.tasks.examples()[:2])",
    'text, spans={"answer": "7421"})\nprint(measured': 'text, spans={"answer": "7421"}, draws=4)\nprint(measured',
    "signal_to_noise(scope, example)": "signal_to_noise(scope, example, draws=4)",
    "other_prompts(scope, cap, 6)": "other_prompts(scope, cap, 3)",
    "max_steps=20": "max_steps=10",
    "(held_out=False)[:200]": "(held_out=False)[:60]",
    '"count": 3, "length": 128': '"count": 2, "length": 96',
}
#: pages whose code other tests run, with more than that it runs
ELSEWHERE = (
    ("edits.md", "edits/test_edits.py"),
    ("your_model.md", "families/test_register.py"),
    ("other_tools.md", "test_nnsight.py"),
    ("other_tools.md", "test_lens.py"),
)


@pytest.fixture(scope="module")
def extensions():
    """What docs/_ext holds, to import from."""
    sys.path.insert(0, str(DOCS / "_ext"))
    yield importlib.import_module
    sys.path.remove(str(DOCS / "_ext"))


def blocks(page, language="python"):
    """The blocks of code of a page, in order."""
    return [code for _, kind, code in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


@pytest.fixture(scope="module")
def loaded():
    """`diffscope.load` that opens each bundled model once for all pages."""
    real, kept = diffscope.load, {}

    def load(model, **options):
        if options or not isinstance(model, str):
            return real(model, **options)
        return kept[model] if model in kept else kept.setdefault(model, real(model))

    return load


TESTED_HERE = [page for page in PAGES if page.name not in {*dict(ELSEWHERE), "errors.md"} and blocks(page)]


@pytest.mark.parametrize("page", TESTED_HERE, ids=lambda page: page.name)
def test_the_code_of_the_page_runs(page, tmp_path, monkeypatch, loaded):
    monkeypatch.chdir(tmp_path)  # it writes files
    monkeypatch.setattr(diffscope, "load", loaded)
    source = "\n".join(code for code in blocks(page) if not code.startswith(NOT_RUN))
    for usual, fewer in FEWER.items():
        source = source.replace(usual, fewer)
    run(source, page.name, {})


def test_what_is_shortened_is_on_a_page():
    texts = ["\n".join(blocks(page)) for page in TESTED_HERE]
    assert all(any(usual in text for text in texts) for usual in FEWER)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_block_that_is_not_run_says_why(page):
    marked = [code.partition("\n")[0] for code in blocks(page) if "not run" in code.partition("\n")[0].lower()]
    assert all(len(line.removeprefix(NOT_RUN)) > 10 and line.startswith(NOT_RUN) for line in marked)


@pytest.mark.parametrize("page, test", ELSEWHERE)
def test_code_that_is_run_elsewhere_is_read_there(page, test):
    assert blocks(DOCS / page) and f'"{page}"' in (ROOT / "tests" / test).read_text(encoding="utf-8")


def sections(page):
    """What stands below each heading of the second level."""
    parts = re.split(r"^## (.+)\n", page.read_text(encoding="utf-8"), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def test_every_error_has_an_entry_and_no_entry_is_of_none():
    assert set(sections(DOCS / "errors.md")) == set(diffscope.errors.__all__)


def test_errors_are_raised_in_the_words_that_the_page_has(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "simplefilter", lambda *_, **__: None)  # of which an example is one
    page, names = DOCS / "errors.md", {}
    run(blocks(page)[0], page.name, names)
    raised = []
    for error, text in sections(page).items():
        code, message = (
            next((code for _, kind, code in BLOCK.findall(text) if kind == which), "") for which in ("python", "text")
        )
        if code.startswith(NOT_RUN):
            assert says(message.strip()), error
        elif message:
            with pytest.raises((diffscope.DiffscopeError, Warning)) as caught:
                run(code, page.name, names)
            assert type(caught.value).__name__ == error or error == "DiffscopeError"
            assert str(caught.value).startswith(message.strip())
            raised.append(error)
        elif code:
            run(code, page.name, names)
    assert len(raised) >= 7


@cache
def spoken():
    """Every text in the package, those with values in them with … in their place."""
    found = []
    for path in (ROOT / "diffscope").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def says(message):
    """Whether the package has these words, in this order, between values."""
    parts = [re.escape(part.strip()) for part in message.split("…") if part.strip()]
    return re.search("[^\n]*".join(parts), spoken()) is not None


def test_refusals_are_quoted_as_the_code_says_them():
    page = (DOCS / "your_model.md").read_text(encoding="utf-8").partition("\n## Why was my model refused?")[2]
    rows = re.findall(r"^\| `(.+?)` \|", page, re.M)
    assert len(rows) > 15
    assert not [row for row in rows if not says(row.replace("\\|", "|"))]


def test_every_public_name_has_a_page(extensions):
    api = extensions("api")
    pages = api.pages()
    modules = {f"diffscope.{name}" for name, home in diffscope._MODULES.items() if home == "diffscope"}
    assert modules <= set(api.MODULES)
    assert {f"diffscope.{name}" for name, home in diffscope._MODULES.items() if home != "diffscope"} <= set(pages)
    for module in modules:
        listed = getattr(importlib.import_module(module), "__all__", ())
        assert {f"{module}.{name}" for name in listed} <= set(pages)
    files = list(api.files().values())
    assert len({file.lower() for file in files}) == len(files)  # also where names of files do not tell case


def test_every_public_name_says_what_it_is(extensions):
    api = extensions("api")
    assert not [full for full in set(api.pages().values()) if not api.summary(full)]


def test_pages_are_reached_from_the_first(extensions):
    """Each page that is kept, and each that is made of a file elsewhere, stands in one tree of contents."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    entries = [line for tree in re.findall(r"```\{toctree\}\n(.*?)```", index, re.S) for line in tree.split() if line[0] != ":"]
    kept = {path.relative_to(DOCS).with_suffix("").as_posix() for path in PAGES} - {"index"}
    outside = {page.removesuffix(".md") for page in extensions("outside").PAGES.values()} - {"index"}
    made = {page.removesuffix(".md") for page in MADE}
    assert kept | outside | made <= set(entries) and len(entries) == len(set(entries))


def test_links_of_a_file_become_links_of_a_page(extensions):
    linked = extensions("outside").linked
    text = "[a](docs/edits.md#order) [b](benchmarks/RESULTS.md) [c](https://x.org/y) [d](#here) [e](LICENSE)"
    turned = "[a](../edits.md#order) [b](results.md) [c](https://x.org/y) [d](#here) [e](../../LICENSE)"
    assert linked(text, "CONTRIBUTING.md", "project/contributing.md") == turned
    assert linked("[n](../analyses)", "docs/hypotheses.md", "hypotheses.md") == "[n](tutorials.md)"
    named = "[edits.md](edits.md#order) [`benchmarks/RESULTS.md`](../benchmarks/RESULTS.md) [LICENSE](../LICENSE)"
    titled = "[](edits.md#order) [](project/results.md) [LICENSE](../LICENSE)"  # for which Sphinx writes the titles
    assert linked(named, "docs/study.md", "study.md") == titled


def test_a_dead_link_of_a_built_page_is_found(extensions, tmp_path):
    page = '<a href="b.html#x">1</a><a href="b.html#y">2</a><a href="c.html">3</a><script src="https://cdn.org/x.js"></script>'
    (tmp_path / "a.html").write_text(page + '<a href="https://x.org">4</a>')
    (tmp_path / "b.html").write_text('<p id="x">')
    assert extensions("links").faults(tmp_path) == [
        "a.html links to b.html#y, and there is no such place on that page",
        "a.html links to c.html, which is not there",
        "a.html loads https://cdn.org/x.js",
    ]


def test_a_card_of_a_tutorial_has_what_its_conclusion_prints(extensions):
    tutorials = extensions("tutorials")
    assert tutorials.shortened("One is\nso. Two.\n\nNot this.") == "One is so. Two."
    assert tutorials.shortened("erank   2 of 6\nstable  1 of 6") == "erank: 2 of 6. stable: 1 of 6."
    notebooks = {path.stem: tutorials.cells(path) for path in extensions("outside").notebooks()}
    assert all(tutorials.question(cells).endswith("?") for cells in notebooks.values())
    assert not [name for name, cells in notebooks.items() if not tutorials.answer(cells)]


ROOMS = (
    "attention",
    "capture",
    "conformance",
    "edits",
    "families",
    "models",
    "prompts",
    "proof",
    "scope",
    "stats",
    "storage",
    "tasks",
    "cards.py",
    "errors.py",
    "fields.py",
    "lens.py",
    "opening.py",
    "render.py",
)
PRONOUNS = {"What", "Which", "Those", "Who", "That"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_docstring_begins_with_a_verb_or_a_noun(room):
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    begins = [
        f"{path.relative_to(ROOT)}: {docstring.splitlines()[0]}"
        for path in (ROOT / "diffscope").glob(room if room.endswith(".py") else f"{room}/**/*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds) and (docstring := ast.get_docstring(node)) and docstring.split()[0].strip(",:") in PRONOUNS
    ]
    assert not begins, "\n".join(begins)


SCRIPTS = sorted((DOCS / "gallery").glob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_of_the_gallery_is_short_and_says_what_one_sees(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    title, blank, about = (ast.get_docstring(tree) + "\n\n").split("\n", 2)
    code = [node for node in tree.body[1:] if not isinstance(node, ast.Import | ast.ImportFrom)]
    assert title and not blank and len(about.split()) > 10
    assert len(code) <= 6 and isinstance(code[-1], ast.Assign) and code[-1].targets[0].id in ("figure", "table")
    assert {"figure", "table"} & set(re.findall(r"^(\w+) = ", path.read_text(encoding="utf-8"), re.M)) == {code[-1].targets[0].id}
    private = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")]
    assert not private
