"""Figures of a study show every seed, means and intervals of its arms, and refuse what it does not have."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from diffscope import figures
from diffscope.cli import main
from diffscope.errors import DiffscopeError
from diffscope.figures.tests import quantities
from diffscope.hypotheses.study_tables import arm_results
from studies.laptop.calibration.simulate import MAIN, planted_cohort
from tests.study_data import study as planted_study

ARMS = [*MAIN, "scalar", "gated", "top-8"]  # of all that there are


@pytest.fixture(scope="module")
def cohort():
    cohort = planted_cohort("NC", 6, others=3).sel(arm=ARMS)
    cohort["formation"][list(cohort["arm"].values).index("diff"), 2] = np.nan
    for name in ("log_odds", "exact_match"):
        cohort[name].loc[{"arm": "diff", "seed": 2}] = np.nan
    return cohort


@pytest.fixture(scope="module")
def outcomes(cohort):
    return arm_results(cohort)


@pytest.fixture(scope="module")
def study(outcomes):
    row = {"arm": "diff", "low": None, "high": None, "seeds": 2}
    noise = "common-mode rejection on irrelevant tokens, σ = "
    lam = {**row, "quantity": "λ", "layer": 1}
    described = [
        *({**lam, "step": step, "value": 1.5} for step in (0, 25, "end")),
        {**lam, "step": "formed", "value": 2.5},
        {**lam, "arm": "scalar", "step": 100, "value": 3.0},
        *({**row, "quantity": f"{noise}{sigma} (dB)", "step": "end", "layer": None, "value": 3.0} for sigma in ("2", "0.1")),
        {**row, "quantity": f"{noise}2, above that with another head's A2 (dB)", "step": "end", "layer": None, "value": 1.0},
    ]
    return SimpleNamespace(facts={"recipe": "planted"}, outcomes=outcomes, described=described)


def test_outcomes_are_of_every_seed_with_students_interval_over_them(cohort, outcomes):
    rows = {(row["arm"], row["quantity"], row["length"], row["distractors"]): row for row in outcomes}
    steps = cohort["formation"].sel(arm="diff").fillna(cohort["formation_limit"])
    row = rows["diff", "formation", None, None]
    assert row["never"] == [2] and row["runs"] == 6 and list(row["each"].values()) == steps.values.tolist()
    assert row["value"] == pytest.approx(np.exp(np.log(steps).mean())) and row["low"] is row["high"] is None  # one was given up
    steps = np.log(cohort["formation"].sel(arm="standard"))
    interval = stats.t.interval(0.95, 5, steps.mean(), stats.sem(steps))
    row = rows["standard", "formation", None, None]
    assert [row["value"], row["low"], row["high"]] == pytest.approx(np.exp([steps.mean(), *interval])) and not row["never"]
    cell = cohort["log_odds"].sel(arm="diff", length=256, distractors=24).mean("prompt").dropna("seed")
    row = rows["diff", "log_odds", 256, 24]
    assert row["never"] == [2] and row["runs"] == 6
    assert row["each"] == pytest.approx({str(seed): value for seed, value in zip([0, 1, 3, 4, 5], cell.values)})
    assert [row["low"], row["high"]] == pytest.approx(stats.t.interval(0.95, 4, cell.mean(), stats.sem(cell)))
    assert ("diff", "log_odds", 128, 48) not in rows and ("top-8", "formation", None, None) not in rows
    many = cohort["log_odds"].sel(arm="gated", distractors=[24, 48], seed=0).mean("prompt").mean("length").mean()
    assert rows["gated", "answers", None, None]["each"]["0"] == pytest.approx(float(many))
    assert len(rows["gated", "exact", 512, 8]["each"]) == 3 and json.dumps(outcomes)


def test_outcomes_of_two_seeds_have_no_interval():
    assert {row["low"] for row in arm_results(planted_cohort("neither", 2).sel(arm=["diff", "gated"]))} == {None}


def test_arms_and_cells_are_drawn_with_their_seeds(study):
    rows = {row["arm"]: row for row in study.outcomes if row["quantity"] == "formation"}
    data = figures.study(study, quantity="formation", arms=["standard", "diff"]).data.squeeze()
    assert data["x"].values.tolist() == ["standard", "diff (5 of 6)"] and data.attrs["references"] == {"given up": 2000}
    for label, row in zip(data["x"].values, (rows["standard"], rows["diff"])):
        drawn = data.sel(x=label)
        known = [np.nan if row[name] is None else row[name] for name in ("value", "low", "high")]
        np.testing.assert_array_equal([float(drawn[name]) for name in ("value", "low", "high")], known)
        assert drawn["points"].values.tolist() == list(row["each"].values())
    cells = figures.study(study, quantity="log_odds")
    assert cells.data["series"].values.tolist() == ["diff (5 of 6)", "standard", "double-width", "signed"]
    (row,) = [
        row
        for row in study.outcomes
        if (row["arm"], row["quantity"]) == ("diff", "log_odds")
        and row["each"]
        and row["length"] == 512
        and row["distractors"] == 8
    ]
    drawn = cells.data.sel(panel="512 tokens", series="diff (5 of 6)", x=8)
    assert float(drawn["value"]) == row["value"] and np.isnan(drawn["points"].sel(point="seed 2"))
    low, high = figures.study(study).plotly().layout.yaxis.range
    assert 0 < low < min(row["low"] for row in study.outcomes if row["quantity"] == "answers") and high > low + 1
    assert "planted cohort" in cells.caption and cells.matplotlib() and cells.plotly()


def test_what_evidence_describes_is_drawn_along_steps_and_strengths(study):
    lam = figures.study(study, quantity="lambda").data
    assert lam["x"].values.tolist() == ["0", "25", "100", "formed", "end"]
    np.testing.assert_array_equal(lam.sel(panel="diff", series="layer 1")["value"], [1.5, 1.5, np.nan, 2.5, 1.5])
    np.testing.assert_array_equal(lam.sel(panel="scalar", series="layer 1")["value"], [np.nan, np.nan, 3, np.nan, np.nan])
    noise = figures.study(study, quantity="rejection").data
    assert noise["x"].values.tolist() == [0.1, 2.0]
    np.testing.assert_array_equal(noise["value"].squeeze(), [[3, 3], [np.nan, 1]])


def test_an_arm_that_never_formed_is_there_and_says_so():
    cohort = planted_cohort("neither", 6).sel(arm=["standard", "diff"])
    failed = {"arm": "standard"}
    for name in ("formation", "log_odds", "exact_match"):
        cohort[name].loc[failed] = np.nan
    study = SimpleNamespace(facts={"recipe": "planted"}, outcomes=arm_results(cohort), described=[])
    formation = figures.study(study, quantity="formation").data.squeeze().sel(x="standard (0 of 6)")
    assert float(formation["value"]) == pytest.approx(2000) and np.isnan(formation["low"]) and (formation["points"] == 2000).all()
    for quantity in ("answers", "log_odds", "exact"):
        data = figures.study(study, quantity=quantity).data
        failed = data.sel({"x" if quantity == "answers" else "series": "standard (0 of 6)"})
        assert failed["value"].isnull().all() and data["value"].notnull().any()


def test_a_share_is_never_said_to_be_more_than_all_and_no_distractors_are_drawn():
    cohort = planted_cohort("neither", 6).sel(arm=["standard", "diff"]).assign_coords(distractors=[0, 24, 48])
    cohort["exact_match"][:, 0] *= 0.9
    outcomes = arm_results(cohort)
    rows = [row for row in outcomes if row["quantity"] == "exact"]
    assert max(row["high"] for row in rows) == 1.0 > max(row["value"] for row in rows)
    study = SimpleNamespace(facts={"recipe": "planted"}, outcomes=outcomes, described=[])
    figure = figures.study(study, quantity="exact")
    assert figure.style["log"] == "" and figure.data["x"].values.tolist() == [0, 24, 48]


def test_what_a_study_does_not_have_is_said(study):
    assert quantities(study) == ["answers", "formation", "log_odds", "exact", "lambda", "rejection"]
    for subject, choices, words in (
        (study, {"quantity": "speed"}, "no quantity 'speed'; choose from answers"),
        (study, {"arms": ["diff", "mine"]}, "no answers of mine; it has it of"),
        (study, {"quantity": "formation", "arms": ["diff", "top-8"]}, "no formation of top-8.*continues another"),
        (study, {"quantity": "rejection", "arms": "standard"}, "no rejection of standard"),
        (SimpleNamespace(facts={}, outcomes=[], described=[]), {}, "it has none; run it anew"),
        (SimpleNamespace(facts={}, outcomes=study.outcomes[:1], described=[]), {}, "no answers; .* it has formation"),
        ({}, {}, "of a study"),
    ):
        with pytest.raises(DiffscopeError, match=words):
            figures.study(subject, **choices)


def test_the_command_draws_a_study_from_its_folder(tmp_path, capsys):
    planted_study().save(tmp_path)
    out = tmp_path / "formation.json"
    given = ["figure", str(tmp_path), "--kind", "study", "--quantity", "formation", "--arms", "diff,signed", "--out", str(out)]
    assert main(given) == 0, capsys.readouterr().err
    data = json.loads(out.read_text())
    assert data["coords"]["x"]["data"] == ["diff", "signed"] and data["attrs"]["cohort"] == "planted"
    assert main(["figure", str(tmp_path / "none"), "--kind", "study", "--out", str(out)]) == 2
    assert "there is no study in" in capsys.readouterr().err
