"""The study is made again from its runs, its pages are of that study, and where they no longer are it is said."""

import json
import re
import shutil
from pathlib import Path

import pytest

from diffscope import numbers
from diffscope.errors import DiffscopeError
from diffscope.hypotheses.cohort_study import run_study
from diffscope.hypotheses.shipped import STUDY
from diffscope.hypotheses.study import open_study, packed_board
from diffscope.lab.training.cohort import DATASET, Cohort, collect
from diffscope.lab.training.recipe import Recipe
from diffscope.storage.statistics import save_statistics
from studies.laptop import first_layer, reproduce, second_reading
from studies.laptop import pages as study_pages
from studies.laptop.runs import RUNS, pack, unpack
from studies.markdown import quoted
from tests.study_data import study as planted_study

ROOT = Path(__file__).parents[2]
PAGE = "# Study\n\n<!-- conclusion -->\n<!-- end -->\n\ntext\n\n<!-- primaries -->\nof before\n<!-- end -->\n"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return open_study(planted_study().save(tmp_path_factory.mktemp("study")).parent)


@pytest.fixture(scope="module")
def committed():
    return open_study(ROOT / reproduce.HOME)


def test_a_test_of_each_kind_of_subject_comes_out_as_committed(laptop_runs, tmp_path, committed):
    """Estimates to a relative 1e-12; of all tests with --full."""
    folder = shutil.copytree(laptop_runs / "laptop", tmp_path / "laptop")
    cohort = collect(Cohort(Recipe.load("laptop"), folder))
    save_statistics(cohort, folder / DATASET, dated=False)
    ids = {verdict.test.needs: verdict.test.id for verdict in committed.boards["all seeds"] if verdict.estimates}.values()
    made, there = (
        {row["id"]: row["estimates"] for row in packed_board(study.boards["all seeds"]) if row["id"] in ids}
        for study in (open_study(run_study(folder, list(ids)).save(tmp_path / "made").parent), committed)
    )
    assert len(made) == 4 and all(reproduce.alike(made[id], there[id]) for id in ids)
    assert reproduce.cells.page(cohort) + "\n" == (ROOT / reproduce.PAGES / "cells.md").read_text(encoding="utf-8")


def test_pages_are_those_of_the_committed_study(committed):
    for name, text in study_pages.pages(committed).items():
        assert text == (ROOT / reproduce.PAGES / name).read_text(encoding="utf-8"), "python -m studies.laptop.reproduce"
    for name in study_pages.QUOTING:
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert quoted(page, study_pages.quotes(committed)) == page


@pytest.mark.full
def test_what_is_made_of_the_runs_is_what_is_committed(laptop_runs, tmp_path):
    """Every estimate to a relative 1e-12, every page and figure byte by byte."""
    runs = shutil.copytree(laptop_runs, tmp_path / "runs")
    reproduce.make(runs, tmp_path / "made")
    made = {path.name for path in (tmp_path / "made").rglob("*.*")}
    assert {STUDY, "power.json", "study.md", "all_seeds.md", "cells.md", "first_layer.md", "text.md", "primary.svg"} <= made
    assert not list(reproduce.differing(tmp_path / "made")), "python -m studies.laptop.reproduce"


def test_another_number_differs_and_rounding_does_not(tmp_path):
    committed = json.loads((ROOT / reproduce.HOME / STUDY).read_text(encoding="utf-8"))
    (target := tmp_path / reproduce.HOME).mkdir(parents=True)
    for factor, names in ((1, []), (1 + 1e-13, []), (1 + 1e-9, [reproduce.HOME / STUDY])):
        changed = json.loads(json.dumps(committed))
        changed["boards"]["all seeds"][0]["estimates"]["standard"]["value"] *= factor
        (target / STUDY).write_text(json.dumps(changed), encoding="utf-8")
        assert list(reproduce.differing(tmp_path)) == names
    facts = dict(reversed(committed["facts"].items()))
    (target / STUDY).write_text(json.dumps({**committed, "facts": facts}), encoding="utf-8")
    assert list(reproduce.differing(tmp_path)) == [reproduce.HOME / STUDY]  # pages are in the order of the file
    (tmp_path / reproduce.PAGES).mkdir(parents=True)
    (tmp_path / reproduce.PAGES / "new.md").write_text("new")
    assert reproduce.PAGES / "new.md" in list(reproduce.differing(tmp_path))


def test_runs_are_packed_byte_for_byte_as_they_were(laptop_runs, tmp_path):
    names = pack(laptop_runs, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == RUNS.read_bytes()
    assert "laptop/diff/seed-0/evidence.nc" in names and "laptop/tuning/rate-0.001/diff/seed-100/scores.nc" in names
    with pytest.raises(DiffscopeError, match="laptop is there already"):
        unpack(laptop_runs)
    with pytest.raises(DiffscopeError, match="holds no runs; train them with: diffscope train laptop"):
        pack(tmp_path, tmp_path / "none.zip")
    assert not (tmp_path / "none.zip").exists()


def test_a_page_quotes_the_study(study):
    page = quoted(PAGE, study_pages.quotes(study))
    assert "of before" not in page and "text" in page and quoted(page, study_pages.quotes(study)) == page
    formation = next(verdict for verdict in study.boards["all seeds"] if verdict.test.id == "formation")
    (row,) = (line for line in page.splitlines() if line.startswith("| formation: "))
    estimate = formation.estimates[next(iter(formation.corrected))]
    words = " | ".join(formation.verdicts.values())
    assert f"| {estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}] |" in row and row.endswith(
        f"| {words} | {numbers.significant(formation.p, 2)} | {formation.of} | – |"
    )
    assert {"answers", "primary"} <= set(study_pages.drawings(study))
    assert "## Runs" in study_pages.pages(study)["all_seeds.md"]


def test_what_is_not_there_cannot_be_quoted(study):
    with pytest.raises(DiffscopeError, match="quotes 'mine'; there are conclusion, primaries"):
        quoted("<!-- mine -->\n<!-- end -->\n", study_pages.quotes(study))


def cells(page, row):
    """The first numbers of the cells of the first such row on a page of the study."""
    text = (ROOT / "docs" / "study" / page).read_text(encoding="utf-8").replace("−", "-")
    line = next(line for line in text.splitlines() if line.startswith(f"| {row} |"))
    return [float(re.match(r"-?[\d.]+", cell.strip())[0]) for cell in line.split("|")[2:-1]]


def test_what_is_said_of_a_second_reading_is_what_its_pages_say():
    said = " ".join(second_reading.NOTES)
    _, a2 = cells("first_layer.md", "layer 0, head 0")
    needed, *idle = cells("first_layer.md", "without A2")
    assert f"({a2:.2f} of A2)" in said and f"{needed:.1f} nats" in said and max(map(abs, idle)) < 0.05
    share, cost = (cells("second_reading.md", f"{words}, share (%)")[0] for words in second_reading.WEIGHTS[:2])
    assert f"{share:.0f} % of A1's mass on the answer" in said
    assert f"on average {cost:.0f} % of what heads cost is lost in the first layer" in said
    leads = [-lead for share in ("50", "80", "90") for lead in cells("second_reading.md", f"{share} % once")[:2]]
    assert f"({min(leads):.2f} to {max(leads):.2f} octaves)" in said


def test_the_report_has_the_rows_of_the_first_layers_page():
    report, page = ((ROOT / "docs" / "study" / name).read_text(encoding="utf-8") for name in ("report.md", "first_layer.md"))
    table = report.partition("| rise of the answer's loss (nats) |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(table) == 3 and not [row for row in table if row not in page.splitlines()]


def test_the_second_map_of_the_bundled_model_is_needed_where_it_looks_at_the_token_before():
    scope = first_layer.diffscope.load(first_layer.MODEL)
    prompts = first_layer.prompts_for(scope, 2)
    masses = first_layer.before_the_number(scope, prompts)
    assert masses["A2"][:, 0, 0].mean() > 0.9 and masses["A1"][:, 0].max() < 0.2
    rises = {words: [each.mean() for each in by_layer] for words, by_layer in first_layer.rises(scope, prompts, 2)}
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
