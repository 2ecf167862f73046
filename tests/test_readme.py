"""What the first pages say is true: their code runs, their links lead somewhere, their table names every family."""

import importlib
import re
import textwrap
from pathlib import Path

import pytest
import torch

import diffscope
from diffscope.edits import EDITS
from diffscope.families import FAMILIES
from diffscope.figures import FIGURES
from diffscope.hypotheses import Models, Settings
from diffscope.hypotheses.tests import FILE, read_tests
from diffscope.stats import rows
from diffscope.stats.statistic import DECLARED

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
SITE = [path for folder in ("", "evidence") for path in sorted((ROOT / "docs" / folder).glob("*.md"))]
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *SITE]
MADE = ("gallery/index.md", "api/index.md", "tutorials", "project")  # when the site is built


def test_the_first_commands_of_the_readme_start_the_app_and_run_the_tests_as_ci_does():
    block = re.search(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    commands = [line.partition("#")[0].strip() for line in block[1].splitlines()]
    assert commands == ["make app", "make test"]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert {"app", "test"} <= set(targets)
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert [line for line in script.splitlines() if re.search(r"\bmake\b", line)] == [
        f"tools/without_fonts.sh {commands[1]}",
        "make lint",
    ]


def test_the_code_of_the_readme_runs(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    monkeypatch.chdir(tmp_path)  # it writes files
    exec(compile("\n".join(blocks), str(README), "exec"), {})


def test_the_code_of_contributing_runs_where_it_says(tmp_path, capsys):
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = [textwrap.dedent(block) for block in re.findall(r"^ *```python\n(.*?)^ *```", page, re.S | re.M)]

    def names(start, *modules):
        """What the block that has this line defines, among the names of the files that it goes into."""
        block = next(block for block in blocks if re.search(rf"^{re.escape(start)}", block, re.M))
        scope = {name: value for module in modules for name, value in vars(importlib.import_module(module)).items()}
        exec(compile(block, start, "exec"), scope)
        return scope

    names("def concentration", "diffscope.stats.rows")
    try:
        statistic = DECLARED["concentration"]
        assert float(rows.of("concentration", torch.tensor([0.5, -0.25, 0.25]), 3)) == 0.375 and statistic.formula == "sum p²"
    finally:
        DECLARED.pop("concentration", None)
    scope, prompt = diffscope.load("mini-diff"), "The magic number: Paris 7421. The magic number: Paris"
    cap = scope.capture(prompt, spans={"answer": "7421"})
    try:
        edit = names("def temper_a2", "diffscope.attention.changes", "diffscope.edits.edits")["temper_a2"]
        with scope.edit(edit(**EDITS["temper_a2"].example)):
            assert float(abs(scope.capture(prompt).map("A2", 0, 0) - cap.map("A2", 0, 0)).max()) > 0.01
    finally:
        EDITS.pop("temper_a2", None)
    try:
        figure = names("def mass(")["mass"](cap, venue="neurips")
        assert figure.save(tmp_path / "mass.svg").exists() and figure.save(tmp_path / "mass.html").exists()
    finally:
        FIGURES.pop("mass", None)
    (declared,) = re.findall(r"```toml\n(\[tests\..*?)```", page, re.S)
    test = read_tests(FILE.read_text(encoding="utf-8") + declared)["sink-loses"]
    models = Models.open([scope], Settings(prompts=5, length=128, needles=2, untrained=3))
    assert test.judged == ("change",) and test.measure(models)["change"].values.shape == (1, 5)
    names('"""``diffscope next``')["command"](model="mini-diff", prompt=prompt)
    assert "next token" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_the_page_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    here = [link for link in links if "://" not in link and not link.endswith(MADE)]
    absent = [link for link in here if not (page.parent / link).exists()]
    assert not absent


def test_the_page_on_families_names_every_family():
    table = (ROOT / "docs" / "your_model.md").read_text(encoding="utf-8").split("\n## ")[1]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [name for cell in rows for name in re.findall(r"`([\w-]+)`", cell)]
    assert sorted(named) == sorted(family.name for family in FAMILIES)
