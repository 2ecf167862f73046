"""A study is kept, goes on where it stopped, and is refused when its rules are no longer these."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from statsmodels.api import SurvfuncRight

import diffscope
from diffscope.cli import main
from diffscope.digests import read_proven_json, write_proven_json
from diffscope.errors import CorruptFile, DiffscopeError
from diffscope.hypotheses import TESTS, Settings, Verdict, board, kept_study, run
from diffscope.hypotheses.kept_study import FILE, WORDS, find, read_words, shipped
from diffscope.hypotheses.stored import open_cohort
from diffscope.hypotheses.study import FinishedTests, open_study, run_study, survival
from diffscope.hypotheses.study_report import markdown
from diffscope.store import save_statistics
from studies.laptop.calibration.simulate import planted_cohort
from tests.study_data import study as planted_study

PACKAGE = Path(diffscope.__file__).parent
IDS = ["signed-mask", "distractors-or-length", "formation", "noise-symmetry"]


@pytest.fixture
def folder(tmp_path):
    """A cohort without models: its own tests run, the others say what they need."""
    cohort = planted_cohort("NC", 5)
    cohort.attrs["recipe"] = json.dumps({"name": "planted", "grid": {"template": " {city} {number}."}})
    (tmp_path / "cohort").mkdir()
    save_statistics(cohort, tmp_path / "cohort" / "cohort.nc", dated=False)
    return tmp_path / "cohort"


def test_a_study_comes_back_as_it_was_kept(folder, tmp_path):
    study = run_study(folder, tmp_path / "study", fresh=[3, 4], tests=IDS)
    again = open_study(tmp_path / "study")
    assert again.facts == json.loads(json.dumps(study.facts)) and again.survival == study.survival
    words, wanted = ([(verdict.shown, verdict.sentence) for verdict in result.boards["all seeds"]] for result in (again, study))
    assert words == wanted
    assert [board[0].estimates["own"].seeds for board in study.boards.values()] == [5, 2]
    assert study.boards["all seeds"][3].shown == "needs a differential model with a tokenizer for retrieval prompts"
    assert Verdict.from_dict(json.loads(json.dumps(study.boards["all seeds"][0].as_dict())), TESTS).corrected == pytest.approx(
        study.boards["all seeds"][0].corrected
    )


def test_what_is_finished_is_not_run_again(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("diffscope.hypotheses.study.revision", lambda: "abc")
    run_study(folder, tmp_path / "study", tests=IDS[:2])
    ran = []
    monkeypatch.setattr(board, "result_of", lambda test, subject: ran.append(test.id) or "nothing more")
    study = run_study(folder, tmp_path / "study", tests=IDS[:3])
    assert ran == ["formation"] and study.boards["all seeds"][2].shown == "needs nothing more"
    run_study(folder, tmp_path / "study", tests=IDS[:1], settings=Settings(prompts=50))  # another question
    assert ran == ["formation", "signed-mask"]
    other = open_cohort(folder)
    other["formation"] = other["formation"] + 25
    save_statistics(other, folder / "cohort.nc", dated=False)  # other scores
    run_study(folder, tmp_path / "study", tests=IDS[:1])
    assert ran[2:] == ["signed-mask"]


@pytest.mark.parametrize("later, again", [("abc", False), ("abd", True), ("abc+", True)])
def test_what_other_code_has_finished_is_run_again(folder, tmp_path, monkeypatch, later, again):
    """Code with uncommitted changes may be other code each time."""
    ran = []
    result_of = board.result_of
    monkeypatch.setattr(board, "result_of", lambda test, subject: ran.append(test.id) or result_of(test, subject))
    for revision in ("abc+" if later == "abc+" else "abc", later):
        monkeypatch.setattr("diffscope.hypotheses.study.revision", lambda at=revision: at)
        study = run_study(folder, tmp_path / "study", tests=IDS[:1])
    assert ran == IDS[:1] * (1 + again) and study.facts["made_with"]["revision"] == later


def test_estimates_that_are_kept_are_the_same(folder, tmp_path):
    finished = FinishedTests(tmp_path / "parts", ["x"])
    fresh = run("formation", cohort=planted_cohort("NC", 4), finished=finished)
    again = run("formation", finished=FinishedTests(tmp_path / "parts", ["x"]))
    assert again[0].sentence == fresh[0].sentence and list(finished) == ["formation"]
    (path,) = (tmp_path / "parts").iterdir()
    path.write_text("{")
    assert "formation" not in finished  # half a file is none


def test_other_rules_and_damage_are_refused(folder, tmp_path):
    run_study(folder, tmp_path / "study", tests=IDS[:1])
    path = tmp_path / "study" / FILE
    record = read_proven_json(path, "")
    for name in ("rule", "statistic"):
        write_proven_json(path, {**record, "boards": {"all seeds": [record["boards"]["all seeds"][0] | {name: "another"}]}})
        with pytest.raises(DiffscopeError, match="judged by another rule now"):
            open_study(tmp_path / "study")
    write_proven_json(path, {**record, "facts": {"family": "planted"}})
    with pytest.raises(DiffscopeError, match='called a "cohort" now'):
        open_study(tmp_path / "study")
    path.write_text("{")
    with pytest.raises(CorruptFile, match="is damaged"):
        open_study(tmp_path / "study")
    with pytest.raises(DiffscopeError, match="no study in"):
        open_study(tmp_path / "nowhere")


def test_a_study_is_opened_by_its_name_once_it_is_shipped(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_study, "SHIPPED", tmp_path)
    for name in (None, "laptop"):
        with pytest.raises(DiffscopeError, match="no study is shipped.*diffscope train laptop.*diffscope study run") as error:
            open_study(name)
        assert "\n" not in str(error.value)
    planted_study().save(tmp_path / "laptop")
    assert shipped() == ["laptop"]
    for name in (None, "laptop", tmp_path / "laptop"):
        assert open_study(name).facts["recipe"] == "planted"
    with pytest.raises(DiffscopeError, match="no study in gpu; shipped: laptop"):
        open_study("gpu")


def test_survival_counts_runs_that_never_formed():
    formation = [[100.0, 200, np.nan], [np.nan] * 3, [300, 400, 500]]
    cohort = xr.Dataset(
        {"formation": (("arm", "seed"), formation), "finished": (("arm", "seed"), [[1, 1, 1], [1, 1, 1], [1, 1, 0]])},
        coords={"arm": ["diff", "never", "late"], "seed": range(3), "step": [25, 850]},
    )
    limited = survival(cohort.assign(formation_limit=500))  # of a run that had fewer steps to form in than to train
    assert [row["restricted_mean"] for row in limited] == pytest.approx([800 / 3, 500, 350])
    went_on = {"log_odds": (("arm", "seed", "x"), [[[np.nan]] * 3, [[1.0]] * 3, [[np.nan]] * 3])}
    for recipe in ({"continued": {"never": {"arm": "diff"}}}, {}):  # an arm that continues another formed with that one
        rows = survival(cohort.assign(went_on).assign_attrs(recipe=json.dumps(recipe)))
        assert rows[1] == {"arm": "never", "runs": 3, "formed": 3, "median": None, "restricted_mean": None, "p": None}
    diff, never, late = survival(cohort)
    assert (diff["runs"], diff["formed"], diff["median"], diff["p"]) == (3, 2, 200, None)
    assert diff["restricted_mean"] == pytest.approx(1150 / 3)
    assert (never["formed"], never["median"], never["restricted_mean"]) == (0, None, 850) and 0 < never["p"] < 0.2
    assert (late["runs"], late["formed"], late["median"]) == (2, 2, 400)  # fewer than half are left


@pytest.mark.parametrize("seed", range(10))
def test_the_median_step_is_that_of_kaplan_and_meier(seed):
    """An odd number of runs: statsmodels errs by rounding where exactly half are left."""
    rng = np.random.default_rng(seed)
    formation = np.where(rng.random((2, 7)) < 0.6, rng.integers(1, 9, (2, 7)) * 100.0, np.nan)
    coords = {"arm": ["diff", "standard"], "seed": range(7), "step": [0, 900]}
    cohort = xr.Dataset({"formation": (("arm", "seed"), formation), "finished": (("arm", "seed"), np.ones((2, 7)))}, coords)
    for row, steps in zip(survival(cohort), formation, strict=True):
        formed = np.isfinite(steps)
        oracle = SurvfuncRight(np.where(formed, steps, 900), formed.astype(int)).quantile(0.5)
        assert row["median"] == (oracle if np.isfinite(oracle) else None)


def test_the_command_runs_shows_and_refuses(folder, tmp_path, capsys):
    out = tmp_path / "study"
    assert main(["study", "run", "--cohort", str(folder), "--fresh", "4", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "distractors-or-length" in shown and "fresh: 4" in shown and "Corrections, at 0.05" in shown
    assert main(["study", "show", str(out), "--board", "fresh seeds", "--out", str(tmp_path / "b.md")]) == 0
    assert "distractors-or-length" in (tmp_path / "b.md").read_text() and "log-rank" in capsys.readouterr().out
    assert "## Runs" in (tmp_path / "b.md").read_text()
    for arguments, words in (
        (["study", "draw"], "choose show or run"),
        (["study", "run"], "needs a cohort"),
        (["study", "run", "--family", str(folder)], "--family is called --cohort now"),
        (["study", "show", str(out), "--board", "mine"], "no board 'mine'"),
        (["study", "show", str(tmp_path)], "there is no study"),
        (["study", "run", "--cohort", str(folder), "--fresh", "9"], "no seed 9"),
    ):
        assert main(arguments) == 2
        assert words in capsys.readouterr().err


def test_a_study_as_markdown_says_how_arms_were_trained_and_what_evidence_holds(tmp_path):
    study = open_study(planted_study().save(tmp_path).parent)
    lines = markdown(study, "all seeds").splitlines()
    assert sum(line.startswith("- Power: with 8 seeds an effect of") for line in lines) == 4
    assert "| diff | 0, 1, 2, 3, 4 | 0.004 | 702,000 | 5 | 4 | 350 | 412 | 0.25 |" in lines
    assert "| standard | 0.002 | 1.5 (700), 1.25 (725) | – (never), 2 (never) |" in lines
    assert "Runs that broke off: standard, seed 2: killed." in lines
    assert "| exact answers, one question | 0.5 (0.25 to 0.75); 5 | 0.125 (0.25 to 0.75); 5 |" in lines
    assert "| noise gain | – | 0.5; 2 |" in lines and "| formed | 0.5 (0.25 to 0.75); 5 | 0.5 (0.25 to 0.75); 5 |" in lines
    assert not any(line.startswith("### standard") for line in lines)


def test_what_is_shown_of_a_kept_study_needs_no_model_and_no_statistics(tmp_path):
    """`study show` takes ten times as long where it imports what measures; words of another revision it does not show."""
    path = planted_study().save(tmp_path)
    code = f"""
import sys
from diffscope.cli import main
assert main(["study", "show", {str(tmp_path)!r}]) == 0
wrong = {{"torch", "transformers", "transformer_lens", "scipy", "statsmodels", "xarray"}} & set(sys.modules)
assert not wrong, wrong
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout
    words = open_study(tmp_path).words()
    assert words.boards["all seeds"].sentences[0][:40] in " ".join(shown.split()) and "log-rank" in shown
    assert read_words(path) == words
    record = read_proven_json(path, "")
    for other in ({"diffscope": "0.0.1"}, {"revision": "0000000"}):
        write_proven_json(path, {**record, WORDS: record[WORDS] | other})
        assert read_words(path) is None and open_study(tmp_path).words() == words


@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize("here", ["0.1.0", "9.0"])
def test_the_words_of_shipped_studies_are_what_these_rules_say(name, here, monkeypatch):
    monkeypatch.setattr(kept_study, "__version__", here)
    assert read_words(find(name)) == open_study(name).words(), f"open the study {name} and save it again"


@pytest.mark.parametrize("name", ["planted", *shipped()])
def test_shipped_studies_are_of_these_rules(name, tmp_path):
    study = open_study(planted_study().save(tmp_path).parent if name == "planted" else name)
    for verdicts in study.boards.values():
        ids = [verdict.test.id for verdict in verdicts]
        assert ids and ids == [id for id in TESTS if id in ids]  # a test that is declared later is on no board yet
    for verdict in study.boards["all seeds"]:
        if verdict.estimates:
            judged = verdict.test.judge(verdict.estimates, verdict.states, verdict.a2_cost) if verdict.test.judged else {}
            assert verdict.verdicts == judged
        else:
            assert verdict.lacks and not verdict.verdicts
