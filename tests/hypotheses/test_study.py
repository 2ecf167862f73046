"""A study is kept, goes on where it stopped, and is refused when its rules are no longer these."""

import json

import numpy as np
import pytest
import xarray as xr

from diffscope.cli import main
from diffscope.errors import CorruptFile, DiffscopeError
from diffscope.hypotheses import TESTS, board, run
from diffscope.hypotheses.api import open_cohort
from diffscope.hypotheses.planted import planted_cohort
from diffscope.hypotheses.study import FILE, Kept, open_study, run_study, shipped, survival
from diffscope.store import save_statistics

IDS = ["half-width", "distractors-length", "formation", "noise-symmetry"]


@pytest.fixture
def folder(tmp_path):
    """A cohort without models: its own tests run, the others say what they need."""
    cohort = planted_cohort("NC", 5, 1.5)
    cohort.attrs["recipe"] = json.dumps({"name": "planted", "grid": {"template": " {city} {number}."}})
    (tmp_path / "cohort").mkdir()
    save_statistics(cohort, tmp_path / "cohort" / "cohort.nc", dated=False)
    return tmp_path / "cohort"


def test_a_study_comes_back_as_it_was_kept(folder, tmp_path):
    made = run_study(folder, tmp_path / "study", fresh=[3, 4], ids=IDS)
    again = open_study(tmp_path / "study")
    assert again.facts == json.loads(json.dumps(made.facts)) and again.survival == made.survival
    assert [[one.verdict, one.sentence] for one in again.boards["all seeds"]] == [
        [one.verdict, one.sentence] for one in made.boards["all seeds"]
    ]
    assert made.boards["all seeds"][0].estimates["gain"].seeds == 5 and made.boards["fresh seeds"][0].estimates["gain"].seeds == 2
    assert made.boards["all seeds"][3].verdict == "needs a differential model with a tokenizer for retrieval prompts"
    assert board.Verdict.from_dict(json.loads(json.dumps(made.boards["all seeds"][0].as_dict()))).adjusted == pytest.approx(
        made.boards["all seeds"][0].adjusted
    )


def test_what_is_finished_is_not_run_again(folder, tmp_path, monkeypatch):
    run_study(folder, tmp_path / "study", ids=IDS[:2])
    ran = []
    monkeypatch.setattr(board, "_found", lambda test, subject: ran.append(test.id) or "nothing more")
    study = run_study(folder, tmp_path / "study", ids=IDS[:3])
    assert ran == ["formation"] and study.boards["all seeds"][2].verdict == "needs nothing more"
    run_study(folder, tmp_path / "study", ids=IDS[:1], prompts=50)  # another question
    assert ran == ["formation", "half-width"]
    other = open_cohort(folder)
    other["formation"] = other["formation"] + 25
    save_statistics(other, folder / "cohort.nc", dated=False)  # other scores
    run_study(folder, tmp_path / "study", ids=IDS[:1])
    assert ran[2:] == ["half-width"]


def test_estimates_that_are_kept_are_the_same(folder, tmp_path):
    kept = Kept(tmp_path / "parts", ["x"])
    fresh = run(["formation"], cohort=planted_cohort("NC", 4, 1.0), kept=kept)
    again = run(["formation"], kept=Kept(tmp_path / "parts", ["x"]))
    assert again[0].sentence == fresh[0].sentence and list(kept) == ["formation"]
    (found,) = (one for one in (tmp_path / "parts").iterdir())
    found.write_text("{")
    assert "formation" not in kept  # half a file is none


def test_other_rules_and_damage_are_refused(folder, tmp_path):
    run_study(folder, tmp_path / "study", ids=IDS[:1])
    path = tmp_path / "study" / FILE
    record = json.loads(path.read_text())
    for name in ("rule", "statistic"):
        path.write_text(json.dumps({**record, "boards": {"all seeds": [record["boards"]["all seeds"][0] | {name: "another"}]}}))
        with pytest.raises(DiffscopeError, match="judged by another rule now"):
            open_study(tmp_path / "study")
    path.write_text("{")
    with pytest.raises(CorruptFile, match="is damaged"):
        open_study(tmp_path / "study")
    with pytest.raises(DiffscopeError, match="no study in"):
        open_study(tmp_path / "nowhere")


def test_survival_counts_runs_that_never_formed():
    formation = [[100.0, 200, np.nan], [np.nan] * 3, [300, 400, 500]]
    cohort = xr.Dataset(
        {"formation": (("arm", "seed"), formation), "finished": (("arm", "seed"), [[1, 1, 1], [1, 1, 1], [1, 1, 0]])},
        coords={"arm": ["diff", "never", "late"], "seed": range(3), "step": [25, 850]},
    )
    diff, never, late = survival(cohort)
    assert (diff["runs"], diff["formed"], diff["median"], diff["p"]) == (3, 2, 200, None)
    assert diff["restricted_mean"] == pytest.approx(1150 / 3)
    assert (never["formed"], never["median"], never["restricted_mean"]) == (0, None, 850) and 0 < never["p"] < 0.2
    assert (late["runs"], late["formed"], late["median"]) == (2, 2, 400)  # fewer than half are left


def test_the_command_runs_shows_and_refuses(folder, tmp_path, capsys):
    out = tmp_path / "study"
    assert main(["study", "run", "--cohort", str(folder), "--fresh", "4", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "distractors-length" in said.out and "fresh: 4" in said.out and "Of 26 tests" in said.out.replace("\n", " ")
    assert main(["study", "show", str(out), "--board", "fresh seeds", "--out", str(tmp_path / "b.md")]) == 0
    assert "distractors-length" in (tmp_path / "b.md").read_text() and "log-rank" in capsys.readouterr().out
    for arguments, words in (
        (["study", "draw"], "choose show or run"),
        (["study", "run"], "needs a cohort"),
        (["study", "show", str(out), "--board", "mine"], "no board 'mine'"),
        (["study", "show", str(tmp_path)], "there is no study"),
        (["study", "run", "--cohort", str(folder), "--fresh", "9"], "no seed 9"),
    ):
        assert main(arguments) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("name", shipped())
def test_shipped_studies_are_of_these_rules(name):
    study = open_study(name)
    assert all([one.test.id for one in found] == list(TESTS) for found in study.boards.values())
    assert not any(one.verdict.startswith("needs ") for one in study.boards["all seeds"])
