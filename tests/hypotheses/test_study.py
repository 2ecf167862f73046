"""A study is kept, and is refused when its rules are no longer these."""

import json

import numpy as np
import pytest
import xarray as xr
from statsmodels.api import SurvfuncRight

from diffscope.cli import main
from diffscope.errors import CorruptFile, DiffscopeError
from diffscope.hypotheses import TESTS, Verdict, shipped
from diffscope.hypotheses.cohort_study import run_study
from diffscope.hypotheses.report import study_markdown
from diffscope.hypotheses.shipped import STUDY
from diffscope.hypotheses.study import open_study
from diffscope.hypotheses.study_tables import survival
from diffscope.storage.checksum import read_proven_json, write_proven_json
from diffscope.storage.statistics import save_statistics
from studies.laptop.calibration.simulate import planted_cohort
from studies.laptop.reproduce import alike
from tests.study_data import study as planted_study

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
    study = run_study(folder, tests=IDS)
    study.save(tmp_path / "study")
    again = open_study(tmp_path / "study")
    assert again.facts == json.loads(json.dumps(study.facts))
    assert alike(again.survival, study.survival)
    words, wanted = ([(verdict.shown, verdict.sentence) for verdict in result.boards["all seeds"]] for result in (again, study))
    assert words == wanted
    for name, estimate in study.boards["all seeds"][0].estimates.items():
        read = again.boards["all seeds"][0].estimates[name]
        assert read.value == pytest.approx(estimate.value, rel=1e-13)
        assert [left.what for left in read.leave_one_out] == [left.what for left in estimate.leave_one_out]
        lows, wanted = ([left.low for left in of.leave_one_out] for of in (read, estimate))
        assert len(lows) == 5 and lows == pytest.approx(wanted, rel=1e-13)
    assert study.boards["all seeds"][3].shown == "needs a differential model with a tokenizer for retrieval prompts"
    assert Verdict.from_dict(json.loads(json.dumps(study.boards["all seeds"][0].as_dict())), TESTS).corrected == pytest.approx(
        study.boards["all seeds"][0].corrected
    )


def test_other_rules_and_damage_are_refused(folder, tmp_path):
    path = run_study(folder, tests=IDS[:1]).save(tmp_path / "study")
    assert path.name == STUDY
    record = read_proven_json(path, "")
    for name in ("rule", "statistic"):
        write_proven_json(path, {**record, "boards": {"all seeds": [record["boards"]["all seeds"][0] | {name: "another"}]}})
        with pytest.raises(DiffscopeError, match="judged by another rule now"):
            open_study(tmp_path / "study")
    for rows in ([["diff", 2]], [["diff", 2, 2, 100, 100, None, "more"]]):
        write_proven_json(path, {**record, "survival": {**record["survival"], "rows": rows}})
        with pytest.raises(CorruptFile, match="is damaged"):
            open_study(tmp_path / "study")
    for text in ("{", "[1]", '{"boards": {}}', json.dumps({**record, "facts": None})):
        path.write_text(text)
        with pytest.raises(CorruptFile, match="carries no digest: it is damaged") as error:
            open_study(tmp_path / "study")
        assert "\n" not in str(error.value)
    with pytest.raises(DiffscopeError, match="no study in"):
        open_study(tmp_path / "nowhere")


def test_a_study_is_opened_by_its_name_once_it_is_shipped(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path)
    for name in (None, "laptop"):
        with pytest.raises(DiffscopeError, match="no study in .*; shipped: none") as error:
            open_study(name)
        assert "\n" not in str(error.value)
    planted_study().save(tmp_path / "laptop")
    assert shipped.shipped() == ["laptop"]
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
    evaluated = cohort.assign({**went_on, "retrieval": (("arm", "seed", "step"), np.zeros((3, 3, 2)))})
    continues = {"continued": {"never": {"arm": "diff"}}}  # an arm that continues another formed with that one
    for scored, recipe, formed in ((evaluated, continues, 3), (evaluated, {}, 0), (cohort.assign(went_on), {}, 3)):
        row = survival(scored.assign_attrs(recipe=json.dumps(recipe)))[1]
        assert row["formed"] == formed and (row["restricted_mean"] is None) == (formed == 3)
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
    assert main(["study", "run", "--cohort", str(folder), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "distractors-or-length" in shown and "seeds 0, 1, 2, 3, 4" in shown and "Corrections, at 0.05" in shown
    assert main(["study", "show", str(out), "--out", str(tmp_path / "b.md")]) == 0
    assert "distractors-or-length" in (tmp_path / "b.md").read_text() and "log-rank" in capsys.readouterr().out
    assert "## Runs" in (tmp_path / "b.md").read_text()
    for arguments, words in (
        (["study", "draw"], "choose show or run"),
        (["study", "run"], "needs a cohort"),
        (["study", "show", str(out), "--board", "mine"], "no board 'mine'"),
        (["study", "show", str(tmp_path)], "there is no study"),
        (["study", "show", str(out), "--cohort", str(folder), "--length", "64"], "takes no --cohort, --length; leave them out"),
        (["study", "run", str(out), "--claims"], "study run takes no FOLDER, --claims"),
        (["study", "show", str(out), "--claims", "--board", "all seeds"], "leave --board or --claims out"),
        (["study", "run", "--cohort", str(folder), "--out", str(tmp_path / "b.md")], "b.md is a file; give --out a folder"),
    ):
        assert main(arguments) == 2
        assert words in capsys.readouterr().err


def test_a_study_as_markdown_says_how_arms_were_trained_and_what_evidence_holds(tmp_path):
    study = open_study(planted_study().save(tmp_path).parent)
    lines = study_markdown(study, "all seeds").splitlines()
    assert sum(line.startswith("- Power: with 8 seeds an effect of") for line in lines) == 4
    assert "| diff | 0, 1, 2, 3, 4 | 0.004 | 702,000 | 5 | 4 | 350 | 412 | 0.25 |" in lines
    assert "| standard | 0.002 | 1.5 (700), 1.25 (725) | – (never), 2 (never) |" in lines
    assert "Runs that broke off: standard, seed 2: killed." in lines
    assert "| exact answers, one question | 0.5 (0.25 to 0.75); 5 | 0.125 (0.25 to 0.75); 5 |" in lines
    assert "| noise gain | – | 0.5; 2 |" in lines and "| formed | 0.5 (0.25 to 0.75); 5 | 0.5 (0.25 to 0.75); 5 |" in lines
    assert not any(line.startswith("### standard") for line in lines)


@pytest.mark.parametrize("name", ["planted", *shipped.shipped()])
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
