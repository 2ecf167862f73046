"""What the report quotes is what the datasets of the parts say, and parts that are not trained are said not to be read."""

import json
import re

import numpy as np
import pytest
import xarray as xr

from diffscope.storage.statistics import save_statistics
from studies import committed
from studies.committed import ROOT
from studies.markdown import quoted
from studies.subtraction import pages, reproduce
from studies.subtraction.primaries import PARTS
from studies.subtraction.reproduce import EVIDENCE, REPORT, alike, finished_parts
from studies.subtraction.runs import pack, unpack
from studies.subtraction.train import recipe_of

SEEDS = 4
STEPS = [25, 50, 75]


def mechanism(diverged=()):
    """Eight numbers a head, of which the costs of the two heads change places from seed to seed."""
    rng = np.random.default_rng(0)
    dims = ("arm", "seed", "layer", "head")
    costs = np.array([[1.0, 5.0], [7.0, 3.0], [1.0, 5.0], [7.0, 3.0]])[None, :, None, :].repeat(2, 2)  # (arm, seed, layer, head)
    values = {
        "lost_without_a2_of_head": (dims, costs),
        "previous_token_a1": (dims, costs / 100),
        "previous_token_a2": (dims, costs / 10),
    }
    values |= {name: (dims[:3], rng.normal(4.0, 0.1, (1, SEEDS, 2))) for name in pages.LOSSES}
    values["gain_by_head"] = ((*dims, "a2", "norm"), rng.normal(size=(1, SEEDS, 2, 2, 3, 2)))
    values["snr_by_head"] = ((*dims, "output"), rng.normal(size=(1, SEEDS, 2, 2, 2)))
    values |= {name: (dims, np.full((1, SEEDS, 2, 2), 0.5)) for name in ("rejection", "rejection_ceiling")}
    values["a2_cost_where_told"] = (dims[:2], np.full((1, SEEDS), 6.0))
    curves = np.array([[[0.1, 0.95, 1.0]] * (SEEDS - 1) + [[0.0, 0.2, 0.3]]])  # the last never gets there
    values |= {"retrieval": (("arm", "seed", "step"), curves), "finished": (dims[:2], np.ones((1, SEEDS)))}
    coords = {"arm": ["diff"], "seed": range(SEEDS), "layer": [0, 1], "head": [0, 1], "step": STEPS, "norm": ["before", "after"]}
    facts = [{"revision": revision, "processor": "EPYC"} for revision in ("def", "abc")]
    attrs = {"made_by": json.dumps({f"diff/seed-{seed}": [fact] for seed, fact in enumerate(facts)})}
    part = xr.Dataset(values, {**coords, "a2": ["own", "uniform", "next head"], "output": ["A1", "lambda_A2"]}, attrs)
    for seed in diverged:
        for name in part.data_vars:
            if name not in ("finished", "retrieval"):
                part[name].loc[{"seed": seed}] = np.nan
    return part


def lookup():
    """DIFF and two other arms, of which `standard-norm` has one map, and DIFF finds the lookup in half as many steps."""
    costs = np.array([[[1.0, 5.0]], [[7.0, 3.0]], [[1.0, 5.0]], [[7.0, 3.0]]])  # (seed, layer, head)
    costs = np.stack([costs, costs / 10, np.full_like(costs, np.nan)])  # (arm, seed, layer, head)
    dims = ("arm", "seed", "layer", "head")
    found = np.array([[1.0, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 1]])[:, None].repeat(SEEDS, 1)  # (arm, seed, step)
    odds = np.array([6.0, 5.0, 8.0])[:, None, None, None] + np.arange(2.0)  # (arm, seed, length, distractors)
    odds = odds.repeat(SEEDS, 1).repeat(2, 2)
    odds[:, :, 0, 1] = np.nan  # no room in the short prompts
    values = {
        "lost_without_a2_of_head": (dims, costs),
        "previous_token_a1": (dims, np.nan_to_num(costs / 100, nan=0.5)),
        "previous_token_a2": (dims, costs / 10),
        "retrieval": (("arm", "seed", "step"), found),
        "log_odds": (("arm", "seed", "length", "distractors", "prompt"), odds[..., None]),
    }
    near = np.array([1.0, 0.25, 0.75])  # of so many near-duplicates
    unknown = np.array([[0.1, 0.3], [0.5, 0.7]])  # (question, distractors)
    values |= {
        "exact_match": (values["log_odds"][0], np.where(np.isnan(odds), np.nan, 0.5)[..., None]),
        "exact_match_near": (("arm", "seed", "near", "prompt"), np.tile(near[:, None], (3, SEEDS, 1, 1))),
        "says_unknown": (("arm", "seed", "question", "distractors", "prompt"), np.tile(unknown[..., None], (3, SEEDS, 1, 1, 1))),
        "text": (("arm", "seed", "token"), np.tile([2.0, 4.0], (3, SEEDS, 1))),
        "rate": ("arm", [0.004, 0.002, 0.001]),
        "tuning_formation": (("arm", "rate_tried", "tuning_seed"), [[[np.nan, 200.0], [300.0, 250.0]]] * 3),
    }
    coords = {"arm": ["diff", "plus", "standard-norm"], "seed": range(SEEDS), "layer": [0], "head": [0, 1], "near": [0, 2, 6]}
    coords |= {"question": ["answerable", "unanswerable"], "token": ["hit", "other"], "rate_tried": [0.002, 0.004]}
    steps = {"step": [50, 75, 100, 200], "length": [96, 512], "distractors": [8, 48]}
    values |= {"finished": (dims[:2], np.ones((3, SEEDS))), "formation_limit": 400.0}
    return xr.Dataset(values, coords | steps)


def text():
    """DIFF and `plus` on running text, of which DIFF is better by 0.5 nats on held-out text and worse on the other domain."""
    losses = np.array([[[3.0, 4.5, 4.0], [5.0, 7.0, 6.0]], [[3.0, 5.5, 4.5], [5.0, 6.0, 5.5]]])  # (arm, domain, token)
    by_domain = losses[:, None].repeat(SEEDS, 1)
    curves = np.array([[9.0, np.nan, 4.0], [8.0, np.nan, 5.0]])[:, None].repeat(SEEDS, 1)  # (arm, seed, step)
    values = {
        "text": (("arm", "seed", "token"), by_domain[:, :, 0]),
        "text_by_domain": (("arm", "seed", "domain", "token"), by_domain),
        "held_out_loss": (("arm", "seed", "step"), curves),
        "rate": ("arm", [0.004, 0.002]),
        "tuning_area": (("arm", "rate_tried", "tuning_seed"), [[[5.0, 6.0], [4.0, 5.0]], [[4.0, 4.5], [np.inf, 5.0]]]),
    }
    coords = {"arm": ["diff", "plus"], "seed": range(SEEDS), "step": STEPS, "rate_tried": [0.002, 0.004]}
    return xr.Dataset(values, coords | {"domain": ["held_out", "other_domain"], "token": ["hit", "other", "all"]})


def cells(table, *lead):
    """Return the cells of a row behind those that it begins with."""
    (row,) = (line for line in table.splitlines() if line.startswith(f"| {' | '.join(lead)} |"))
    return [cell.strip() for cell in row.strip("|").split("|")][len(lead) :]


def test_heads_are_put_in_the_order_of_their_cost_seed_by_seed():
    table = pages.by_head(mechanism())
    assert cells(table, "0", "1.")[:3] == ["6.0 [4.2, 7.8]", "0.060 [0.042, 0.078]", "0.60 [0.42, 0.78]"]
    assert cells(table, "0", "2.")[0] == "2.0 [0.2, 3.8]"


def test_a_seed_without_a_model_is_counted_and_left_out_of_means():
    part = mechanism(diverged=[3])
    assert cells(pages.runs({"mechanism": part}), "mechanism") == ["diff", "4", "4", "1", "abc, def", "EPYC"]
    assert cells(pages.by_layer(part), "diff", "0")[0].endswith(", 3 seeds")
    assert cells(pages.by_head(part), "0", "1.")[0].endswith(", 3 seeds")


def test_a_head_is_the_costliest_of_its_own_seed_and_an_arm_with_one_map_has_its_first():
    table = pages.by_costliest_head(lookup())
    assert cells(table, "diff", "0")[:3] == ["6.0 [4.2, 7.8]", "0.060 [0.042, 0.078]", "0.60 [0.42, 0.78]"]
    assert cells(table, "standard-norm", "0") == ["–", "–", "–", "0.500 [0.500, 0.500]"]


def test_an_arm_that_is_later_or_worse_than_diff_is_told_by_its_sign():
    table = pages.against_others(lookup())
    assert cells(table, "plus") == ["−2.00 [−2.00, −2.00]", "1.00 [1.00, 1.00]"]
    assert cells(table, "standard-norm")[1] == "−2.00 [−2.00, −2.00]"


def test_scores_of_an_arm_are_of_the_prompts_that_their_words_name():
    row = cells(pages.lookups(lookup()), "plus", "0.002")
    means = [float(cell.partition(" ")[0]) for cell in row]
    assert means == pytest.approx([5.33, 0.5, 0.5, 0.6, 4.0])  # log-odds: 5, 5 and 6 in the cells of the grid


def test_losses_on_text_are_of_all_held_out_tokens_unless_the_column_says_which():
    means = [cell.partition(" ")[0] for cell in cells(pages.losses(text()), "plus", "0.002")]
    assert means == ["4.50", "−0.500", "3.00", "5.50", "5.50"]
    assert cells(pages.losses(text()), "diff", "0.004")[1] == "–"


def test_the_training_loss_of_a_rate_is_the_mean_over_seeds_unless_one_diverged():
    assert cells(pages.by_tuning_loss(text()), "diff") == ["5.500", "4.500", "0.004"]
    assert cells(pages.by_tuning_loss(text()), "plus") == ["4.250", "diverged", "0.002"]


def test_held_out_loss_is_drawn_as_that_of_diff_minus_the_arms_where_it_was_measured(monkeypatch):
    monkeypatch.setattr(pages, "verdicts", lambda name, part: [])
    drawn = pages.drawings({"text": text()})["text"].data
    assert drawn["series"].values.tolist() == ["plus"] and drawn["x"].values.tolist() == [25, 75]
    assert drawn["value"].sel(series="plus").values.tolist() == [[1.0, -1.0]]  # (panel, step)


def test_runs_that_found_the_lookup_are_counted_by_rate():
    assert cells(pages.by_rate(lookup()), "diff") == ["1 of 2", "2 of 2", "0.004"]


def test_log_odds_are_drawn_of_lengths_that_hold_all_numbers_of_distractors():
    part = lookup()
    part["log_odds"].loc[{"arm": "standard-norm"}] = np.nan  # which never finds the lookup
    drawn = pages.drawings({"lookup": part})["lookup"].data
    assert pages.whole_lengths(part) == [512] and drawn["series"].values.tolist() == ["diff", "plus"]
    assert drawn["value"].sel(series="plus").values.tolist() == [[5.0, 6.0]]  # (panel, distractors)


def test_cells_of_the_grid_that_were_not_scored_are_left_out():
    rows = pages.by_cell(lookup()).splitlines()[2:]
    assert [row.split(" | ")[:2] for row in rows] == [["| 96", "8"], ["| 512", "8"], ["| 512", "48"]]
    assert cells("\n".join(rows), "512", "48") == ["7.00 [7.00, 7.00]", "6.00 [6.00, 6.00]", "9.00 [9.00, 9.00]"]


def test_a_run_that_never_finds_the_lookup_is_said_beside_the_onsets_of_the_others():
    table = pages.by_criterion(mechanism())
    assert cells(table, "90 % once") == ["50 (50 to 50), never: 1"]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([100, 120] + [np.inf] * 6, "median: never (100 to 120), never: 6"),
        ([100, 120, 140, np.nan], "130 (100 to 140), diverged: 1"),
        ([100, np.inf, np.nan, np.nan], "median: never (100 to 100), never: 1, diverged: 2"),
        ([np.inf, np.inf], "never: 2"),
    ],
)
def test_runs_that_never_get_there_or_diverge_are_the_last_of_the_median(steps, words):
    assert pages.steps_in_words(np.array(steps)) == words


def test_an_interval_is_of_the_seeds_that_have_a_model():
    rises = mechanism()["lost_without_a2"].sel(arm="diff")
    np.testing.assert_allclose(pages.half_widths(rises.where(rises["seed"] != 3)), pages.half_widths(rises.drop_sel(seed=3)))


def sink(values):
    """The first token's weight in models of two heads, of which others have four: A1, and the share of |D| as it is given."""
    share = np.full((len(values), 1, 4), np.nan)  # (seed, layer, head)
    share[:, 0, :2] = values
    first = np.full_like(share, np.nan)
    first[:, 0, :2] = 0.5
    dims = ("map", "seed", "layer", "head")
    return xr.DataArray(np.stack([first, share]), {"map": ["A1", "D"], "seed": range(len(values))}, dims)


def test_a_model_has_the_mean_of_all_its_heads_or_none():
    means = pages.over_heads(sink([[0.2, 0.4], [0.2, np.nan]]))
    np.testing.assert_allclose(means.sel(map="D"), [0.3, np.nan])
    np.testing.assert_allclose(means.sel(map="A1"), 0.5)


def test_primaries_stand_in_their_order_and_those_of_untrained_parts_are_not_read():
    listed, _, table = pages.primaries({"mechanism": mechanism()}).partition("\n\n")
    questions = [f"`{name}`: {test.question}" for name, part in PARTS.items() for test in part.tests]
    assert listed.splitlines() == [f"{number}. {question}" for number, question in enumerate(questions, 1)]
    rows = [row for row in table.splitlines()[2:] if not row.startswith("|  |")]
    assert [row.split(" | ")[0] for row in rows] == [f"| {number}." for number in range(1, len(questions) + 1)]
    of_mechanism, of_lookup = rows[:2]
    assert "not read" not in of_mechanism and "| 79 % |" in of_mechanism
    assert "| not read |" in of_lookup and "88 % to 93 %" in of_lookup
    runs = pages.runs({"mechanism": mechanism()})
    assert cells(runs, "text")[2] == "not all trained yet, so not read"


@pytest.mark.parametrize(("missing", "read"), [("shared-a2", True), ("plus", False)])
def test_a_part_is_quoted_once_all_runs_that_its_primaries_compare_are_there(tmp_path, monkeypatch, missing, read):
    recipe = recipe_of("lookup")
    for arm in recipe.arms:
        for seed in recipe.seeds:
            (folder := tmp_path / "lookup" / arm / f"seed-{seed}").mkdir(parents=True)
            if (arm, seed) != (missing, recipe.seeds[-1]):
                (folder / "scores.nc").touch()
    monkeypatch.setattr(reproduce, "gather", lambda name, cohort: name)
    monkeypatch.setattr(reproduce, "complete", lambda name, part: part)
    assert list(finished_parts(tmp_path)) == ["lookup"] * read


def test_what_is_quoted_of_copies_is_the_last_evaluation_that_is_defined():
    values = xr.DataArray([[0.1, 0.4, np.nan], [0.2, 0.5, 0.6]], {"seed": [0, 1], "step": STEPS}, ("seed", "step"))
    assert pages.last(values).values.tolist() == [0.4, 0.6]


@pytest.mark.parametrize(("factor", "same"), [(1.0, True), (1 + 1e-14, True), (1 + 1e-9, False)])
@pytest.mark.parametrize("size", [1.0, 1e-11])
def test_datasets_are_alike_up_to_rounding(tmp_path, factor, same, size):
    one = mechanism()
    costs = one["lost_without_a2"] * size
    save_statistics(one.assign(lost_without_a2=costs), tmp_path / "one.nc")
    save_statistics(one.assign(lost_without_a2=costs * factor), tmp_path / "other.nc")
    assert alike(tmp_path / "one.nc", tmp_path / "other.nc") is same


def test_datasets_of_other_runs_are_not_alike(tmp_path):
    save_statistics(mechanism(), tmp_path / "one.nc")
    save_statistics(mechanism().assign_attrs(made_by="{}"), tmp_path / "other.nc")
    assert not alike(tmp_path / "one.nc", tmp_path / "other.nc")


@pytest.mark.parametrize("check", [True, False])
def test_what_differs_is_copied_and_what_is_no_longer_made_is_named(tmp_path, monkeypatch, capsys, check):
    home, made = tmp_path / "repository", tmp_path / "made"
    for folder, files in ((home, ("a.svg", "old.svg", "same.svg")), (made, ("a.svg", "same.svg", "new.svg"))):
        folder.mkdir()
        for name in files:
            (folder / name).write_text(name if name == "same.svg" else folder.name)
    monkeypatch.setattr(committed, "ROOT", home)
    with pytest.raises(SystemExit):
        committed.update(made, lambda one, other: one.read_text() == other.read_text(), home.glob("*.svg"), check)
    assert capsys.readouterr().out.splitlines() == ["a.svg", "new.svg", "old.svg is no longer made; remove it"]
    assert (home / "a.svg").read_text() == ("repository" if check else "made") and (home / "new.svg").exists() is not check


def test_the_report_is_that_of_the_runs_that_are_kept(tmp_path, monkeypatch):
    """Tables to the last digit that is printed, datasets to rounding; figures are compared by the command itself."""
    assert unpack(tmp_path / "runs")
    parts = finished_parts(tmp_path / "runs")
    assert list(parts) == sorted((path.stem for path in (ROOT / EVIDENCE).glob("*.nc")), key=list(PARTS).index)
    report = (ROOT / REPORT).read_text(encoding="utf-8")
    assert quoted(report, pages.quotes(parts)) == report, "python -m studies.subtraction.reproduce"
    for name, part in parts.items():
        save_statistics(part, tmp_path / f"{name}.nc", dated=False)
        assert alike(tmp_path / f"{name}.nc", ROOT / EVIDENCE / f"{name}.nc")
    (tmp_path / "runs" / "text" / "plus" / "seed-0" / "scores.nc").unlink()
    monkeypatch.setattr(reproduce, "gather", lambda name, cohort: parts[name])
    assert parts.keys() - finished_parts(tmp_path / "runs").keys() == {"text"}  # of which a run is missing


def test_the_report_can_be_read_in_a_minute():
    hurry = (ROOT / REPORT).read_text(encoding="utf-8").partition("## In a hurry")[2].partition("\n## ")[0]
    hurry = re.sub(r"A[12]\b", "", hurry)
    assert len(re.findall(r"[^\W\d_][\w’'-]*", hurry)) <= 250 and len(re.findall(r"\d+(?:\.\d+)?", hurry)) <= 12


def test_a_run_that_chose_a_rate_is_packed_at_once_and_another_with_its_evidence(tmp_path):
    folders = {name: tmp_path / "lookup" / name for name in ("tuning/rate-0.004/plus/seed-100", "plus/seed-0", "plus/seed-1")}
    for folder in folders.values():
        folder.mkdir(parents=True)
        for name in ("scores.nc", "model.safetensors"):
            (folder / name).write_bytes(b"")
    (folders["plus/seed-1"] / "evidence.nc").write_bytes(b"")
    assert pack(tmp_path, tmp_path / "runs.zip") == 2
    assert unpack(tmp_path / "again", tmp_path / "runs.zip") == 2
    assert not (tmp_path / "again" / "lookup" / "plus" / "seed-0").exists()
