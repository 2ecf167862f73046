"""The pages of a study are of that study, and where they no longer are it is said."""

from pathlib import Path

import pytest

from benchmarks import study_cells
from diffscope.errors import DiffscopeError
from diffscope.hypotheses.kept_study import shipped
from diffscope.hypotheses.study import open_study
from diffscope.lab.training.cohort import Cohort, collect
from diffscope.lab.training.recipe import Recipe
from diffscope.tables import numbers
from tests.studies import study as planted_study
from tools import study_pages

ROOT = Path(__file__).parents[1]
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


@pytest.mark.parametrize("name", shipped())
def test_the_documentation_is_of_the_shipped_study(name):
    assert not study_pages.outdated(open_study(name)), "python -m tools.study_pages"
