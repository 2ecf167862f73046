"""``diffscope test`` and ``diffscope.hypotheses.test``: what they show, keep and refuse."""

import json

import pytest

from diffscope.cli import main
from diffscope.hypotheses import test as board_of
from diffscope.store import save_statistics


@pytest.fixture
def folder(cohort_of_rates, tmp_path):
    cohort_of_rates.attrs["recipe"] = json.dumps({"grid": {"template": " {city} {number}."}})
    save_statistics(cohort_of_rates, tmp_path / "cohort.nc", dated=False)
    return tmp_path


def test_the_command_shows_and_keeps(folder, capsys):
    command = ["test", "half-width", "top-k", "--cohort", str(folder)]
    assert main([*command, "--json", "--out", str(folder / "board.md")]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [test["verdict"] for test in shown["tests"]] == ["SP", "needs a cohort with an arm of top-k"]
    assert shown["tests"][0]["estimates"]["gap"]["state"] == "none" and shown["tests"][0]["rule"]
    assert shown["settings"]["template"] == " {city} {number}." and shown["summary"].startswith("Of 2 tests")
    assert "| half-width | SP |" in (folder / "board.md").read_text()
    assert main([*command, "--out", str(folder / "board.html")]) == 0
    text = capsys.readouterr().out
    assert "half-width" in text and "Of 2 tests: 1 as sparsification predicts" in text
    assert main(["test", "--list"]) == 0 and "noise-symmetry" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["nothing", "--model", "mini-diff"], "no test 'nothing'"),
        ([], "nothing to test"),
        (["--cohort", "nowhere"], "holds no cohort.nc"),
        (["--model", "mini-diff", "--out", "board.pdf"], "as '.pdf'"),
        (["sparsity", "--all", "--model", "mini-diff"], "--all is all tests"),
        (["--family", "runs/laptop"], "--family is called --cohort now"),
    ],
)
def test_the_command_refuses(arguments, words, capsys):
    assert main(["test", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_in_python_it_takes_one_test_by_name_and_seeds_of_the_cohort(folder):
    (verdict,) = board_of(cohort=folder, tests="half-width", seeds=[0, 1, 2])
    assert verdict.test.id == "half-width" and verdict.estimates["gain"].seeds == 3
