"""What the first pages say is true: their code prints what they say, their links lead somewhere, their numbers are right."""

import importlib
import json
import math
import re
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import diffscope
from diffscope.edits import EDITS
from diffscope.families import FAMILIES
from diffscope.figures import FIGURES
from diffscope.hypotheses import Models, Settings
from diffscope.hypotheses.intervals import students_t
from diffscope.hypotheses.study import ALL, open_study
from diffscope.hypotheses.tests import FILE, read_tests
from diffscope.numbers import minus
from diffscope.stats import STATISTICS, rows
from diffscope.stats.statistic import DECLARED
from diffscope.storage.statistics import open_statistics
from studies.subtraction.primaries import held_out_loss
from tools import readme

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
SITE = [path for folder in ("", "evidence") for path in sorted((ROOT / "docs" / folder).glob("*.md"))]
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *SITE]
MADE = ("gallery/index.md", "api/index.md", "tutorials", "project")  # when the site is built


def test_the_first_commands_of_the_readme_start_the_app_and_run_the_tests_as_ci_does():
    first, *others = readme.blocks(README, "sh")
    commands = [line.partition("#")[0].strip() for line in first.splitlines() if line]
    assert not others and commands == ["make app", "make test", "pip install -c constraints.txt .", "diffscope app"]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert {"app", "test"} <= set(targets)
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert [line for line in script.splitlines() if re.search(r"\bmake\b", line)] == [
        f"tools/without_fonts.sh {commands[1]}",
        "make lint",
    ]


def test_the_code_of_the_readme_prints_what_the_readme_says(tmp_path, monkeypatch, capsys):
    """In this process; a release runs it in one of its own (tools/release.py)."""
    assert [text is not None for _, text in readme.examples(README)] == [True, False, True]
    monkeypatch.setattr(sys, "argv", ["readme.py", str(README)])
    monkeypatch.chdir(tmp_path)  # to come back from where it goes
    assert readme.main() == 0, capsys.readouterr().out


def test_other_output_than_the_page_gives_is_found(tmp_path):
    blocks = [("python", "a = 2\nprint('one', a)"), ("text", "one\n2"), ("python", "print(a + 1)"), ("text", "4")]
    page = tmp_path / "page.md"
    page.write_text("\n".join(f"```{kind}\n{code}\n```\n" for kind, code in blocks))
    (fault,) = readme.faults(page)
    assert "says\n4" in fault and "prints\n3" in fault


def test_code_of_the_readme_is_no_wider_than_a_page_of_the_repository_shows():
    lines = [line for kind in ("python", "text", "sh") for block in readme.blocks(README, kind) for line in block.splitlines()]
    assert max(map(len, lines)) <= 88


def test_the_numbers_of_the_readme_are_those_of_the_pages_that_it_links_to():
    page = README.read_text(encoding="utf-8")
    assert "[Forty statistics](docs/statistics.md)" in page and len(STATISTICS) == 40
    own = {"standard", "diffscope"}
    assert "[Eighteen implementations of differential attention]" in page and len(FAMILIES) - len(own) == 18
    table = (ROOT / "docs" / "evidence" / "transformers.md").read_text(encoding="utf-8")
    equal, refused = map(int, re.search(r"In all (\d+) equal, (\d+) refused", table).groups())
    assert f"\n{equal} of the [{equal + refused} causal language models that were tried](docs/evidence/transformers.md)" in page


def interval(value, low, high, digits=1):
    """A number with its interval, as the README has them."""
    first, least, most = (minus(f"{float(each):.{digits}f}") for each in (value, low, high))
    return first, f"{least} to {most}"


def test_every_finding_of_the_readme_has_the_numbers_of_its_own_test():
    found = " ".join(README.read_text(encoding="utf-8").partition("## What was found")[2].partition("\n## ")[0].split())
    study = open_study()
    estimates = {verdict.test.id: verdict.estimates for verdict in study.boards[ALL]}
    noise, lead = estimates["common-noise"]["diff"], estimates["distractors"]
    over_other, about_other = interval(noise.value, noise.low, noise.high, 2)
    page = (ROOT / "docs" / "study" / "second_reading.md").read_text(encoding="utf-8")
    rejected = float(re.search(r"\| common-mode rejection \(dB\) \| ([\d.]+) \[", page)[1])
    assert round(1 - 10 ** (-rejected / 10), 1) == 0.1 and round(math.exp(lead["standard"].value)) == 3
    ahead, about = interval(lead["standard"].value, lead["standard"].low, lead["standard"].high)
    of_wide = ", ".join(interval(lead["double-width"].value, lead["double-width"].low, lead["double-width"].high))
    text = estimates["text-loss"]["standard_other"]  # standard attention minus DIFF
    worse, about_worse = interval(-text.value, -text.high, -text.low, 2)
    lookup = open_statistics(ROOT / "studies" / "subtraction" / "evidence" / "mechanism.nc").sel(arm="diff")
    most = max(float(abs(lookup[f"lost_without_{what}"].sel(layer=[1, 2])).max()) for what in ("a2", "signs"))
    lookup = lookup.sel(layer=0)
    needed, unsigned = (float(lookup[f"lost_without_{what}"].mean()) for what in ("a2", "signs"))
    assert bool((lookup["previous_token_a2"].max("head") > 0.5).all()) and lookup.sizes["seed"] == 8
    assert f"{needed:.1f}" == f"{unsigned:.1f}"
    loss = held_out_loss(open_statistics(ROOT / "studies" / "subtraction" / "evidence" / "text.nc"))
    (low, high), _, _ = students_t((apart := loss.sel(arm="diff") - loss.sel(arm="plus")).values)
    of_text, about_text = interval(float(apart.mean()), low, high, 3)
    plus = json.loads((ROOT / "studies" / "subtraction" / "gates.json").read_text(encoding="utf-8"))["lookup"]["plus"]
    assert len(plus) == 8 and all(model["lambda"][0] > 0 for model in plus)  # of A1 − λ·A2
    said = (
        f"of {sum(map(len, study.facts['arms'].values()))} small models",
        f"removes {rejected:.1f} dB, a tenth of its power; with another head's A2 it removes as much "
        f"(difference {over_other} dB, 95 % {about_other})",
        "In [eight of eight models](docs/study/subtraction.md) a head of the first layer (layer 0) looks with A2",
        "Without A2 in that layer, or without the negative weights of D there, the model no longer answers: "
        f"its loss rises by {needed:.1f} nats",
        f"In other layers A2 does next to nothing ({math.ceil(most * 100) / 100:.2f} nats at most)",
        "All eight models that began by adding A2 ended by subtracting it in the first layer",
        f"(difference {of_text} nats a token, {about_text})",
        f"three times those of standard attention with maps of the same width ({ahead} nats, {about})",
        f"those with as many heads ({of_wide})",
        f"its loss is {worse} nats a token higher than that of the first ({about_worse})",
    )
    assert not [phrase for phrase in said if phrase not in found]
    for phrase in said:
        found = found.replace(phrase, "")
    assert not re.findall(r"\d+", re.sub(r"\bA2\b|\]\(.*?\)", "", found))


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


@pytest.mark.parametrize("page", PAGES[:4], ids=lambda page: page.name)
def test_the_links_of_the_page_lead_to_headings(page):
    """Of pages that are read in the repository; where the site links to is checked when it is built."""
    links = re.findall(r"\]\(([^):]+\.md)#([^)]+)\)", page.read_text(encoding="utf-8"))
    headings = {link: re.findall(r"^#+ (.+)", (page.parent / link).read_text(encoding="utf-8"), re.M) for link, _ in links}
    places = {
        link: [re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines] for link, lines in headings.items()
    }
    assert not [f"{link}#{place}" for link, place in links if place not in places[link]]


def test_the_page_on_families_names_every_family():
    table = (ROOT / "docs" / "your_model.md").read_text(encoding="utf-8").split("\n## ")[1]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [name for cell in rows for name in re.findall(r"`([\w-]+)`", cell)]
    assert sorted(named) == sorted(family.name for family in FAMILIES)
