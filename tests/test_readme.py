"""What the first pages say is true: their code runs, their links lead somewhere, their table names every family."""

import re
from pathlib import Path

import pytest

from diffscope.families import FAMILIES

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "concepts.md"], ids=lambda page: page.name)
def test_the_code_of_the_page_runs(page, tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    monkeypatch.chdir(tmp_path)  # it writes files
    exec(compile("\n".join(blocks), str(page), "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_the_page_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    absent = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not absent


def test_the_readme_names_every_family():
    table = README.read_text(encoding="utf-8").partition("## What it reads")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [name for cell in rows for name in re.findall(r"`([\w-]+)`", cell)]
    assert sorted(named) == sorted(family.name for family in FAMILIES)
