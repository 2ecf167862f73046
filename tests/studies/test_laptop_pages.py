"""The pages of a study are of that study, and where they no longer are it is said."""

import re
from pathlib import Path

import pytest

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.kept_study import READ_AGAIN, shipped
from diffscope.hypotheses.study import open_study
from diffscope.lab.training.cohort import Cohort, collect
from diffscope.lab.training.recipe import Recipe
from diffscope.tables import numbers
from studies.laptop import cells as study_cells
from studies.laptop import first_layer, second_reading
from studies.laptop import pages as study_pages
from tests.study_data import study as planted_study

ROOT = Path(__file__).parents[2]
PAGE = "# Study\n\n<!-- conclusion -->\n<!-- end -->\n\ntext\n\n<!-- primaries -->\nof before\n<!-- end -->\n"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return open_study(planted_study().save(tmp_path_factory.mktemp("study")).parent)


def test_a_page_quotes_the_study_and_says_when_it_no_longer_does(study, tmp_path):
    (tmp_path / "study.md").write_text(PAGE)
    assert study_pages.outdated(study, tmp_path)[0] == "study.md"
    study_pages.write(study, tmp_path)
    page = (tmp_path / "study.md").read_text()
    assert not study_pages.outdated(study, tmp_path) and "of before" not in page and "text" in page
    formation = next(verdict for verdict in study.boards["all seeds"] if verdict.test.id == "formation")
    (row,) = (line for line in page.splitlines() if line.startswith("| formation: "))
    estimate = formation.estimates[next(iter(formation.corrected))]
    words = " | ".join(formation.verdicts.values())
    assert f"| {estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}] |" in row and row.endswith(
        f"| {words} | {numbers.plain(formation.p, 2)} | {formation.of} | – |"
    )
    assert (tmp_path / "study" / "answers.svg").is_file() and (tmp_path / "study" / "primary.svg").is_file()
    assert "## Runs" in (tmp_path / "study" / "all_seeds.md").read_text()
    for name in ("study.md", "study/claims.md"):
        (tmp_path / name).write_text((tmp_path / name).read_text().replace("DIFF", "diff"))
    assert study_pages.outdated(study, tmp_path) == ["study.md", "study/claims.md"]


def test_what_is_not_there_cannot_be_quoted(study):
    with pytest.raises(DiffscopeError, match="quotes 'mine'; there are conclusion, primaries"):
        study_pages.quoted("<!-- mine -->\n<!-- end -->\n", study_pages.quotes(study))


def test_the_cells_of_the_study_are_of_the_runs_that_were_kept():
    cohort = collect(Cohort(Recipe.load("laptop"), ROOT / "benchmarks" / "results" / "laptop"))
    assert (ROOT / "docs" / "study" / "cells.md").read_text(encoding="utf-8") == study_cells.page(cohort) + "\n"


def test_the_second_reading_is_of_the_runs_that_were_kept():
    page = second_reading.page(ROOT / "benchmarks" / "results" / "laptop")
    assert (ROOT / "docs" / "study" / "second_reading.md").read_text(encoding="utf-8") == page + "\n"


def cells(page, row):
    """The first numbers of the cells of the first such row on a page of the study."""
    text = (ROOT / "docs" / "study" / page).read_text(encoding="utf-8").replace("−", "-")
    line = next(line for line in text.splitlines() if line.startswith(f"| {row} |"))
    return [float(re.match(r"-?[\d.]+", cell.strip())[0]) for cell in line.split("|")[2:-1]]


def test_what_is_said_of_a_second_reading_is_what_its_pages_say():
    said = " ".join(READ_AGAIN["laptop"])
    _, a2 = cells("first_layer.md", "layer 0, head 0")
    needed, *idle = cells("first_layer.md", "without A2")
    assert f"({a2:.2f} of A2)" in said and f"{needed:.1f} nats" in said and max(map(abs, idle)) < 0.05
    share, cost = (cells("second_reading.md", f"{words}, share (%)")[0] for words in second_reading.WEIGHTS[:2])
    assert f"{share:.0f} % of A1's mass on the answer" in said and f"on average {cost:.0f} % of what heads cost" in said
    leads = [-lead for share in ("50", "80", "90") for lead in cells("second_reading.md", f"{share} % once")[:2]]
    assert f"({min(leads):.2f} to {max(leads):.2f} octaves)" in said


def test_the_second_map_of_the_bundled_model_is_needed_where_it_looks_at_the_token_before():
    scope = first_layer.diffscope.load(first_layer.MODEL)
    prompts = first_layer.prompts_for(scope, 4)
    masses = first_layer.before_the_number(scope, prompts)
    assert masses["A2"][:, 0, 0].mean() > 0.9 and masses["A1"][:, 0].max() < 0.2
    rises = {words: [each.mean() for each in by_layer] for words, by_layer in first_layer.rises(scope, prompts, 3)}
    for words in ("without A2", "negative weights of D set to 0"):
        first, *others = rises[words]
        assert first > 5 and max(map(abs, others)) < 0.2, words
    assert max(map(abs, rises["one A2 for the layer's heads, their mean"])) < 0.5
    assert max(map(abs, rises["λ = 1"])) < 0.5


def test_a_reader_in_a_hurry_reads_for_a_minute():
    page = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    hurry = re.sub(r"<!--.*?-->|A[12]\b", "", page.partition("## In a hurry")[2].partition("\n## ")[0])
    assert len(re.findall(r"[^\W\d_][\w’'-]*", hurry)) <= 250
    assert len(re.findall(r"\d+(?:\.\d+)?", hurry)) <= 25


@pytest.mark.parametrize("name", shipped())
def test_the_documentation_is_of_the_shipped_study(name):
    assert not study_pages.outdated(open_study(name)), "python -m studies.laptop.pages"
