"""What the report quotes is what the datasets of the parts say, and parts that are not trained are said not to be read."""

import json
import re

import numpy as np
import pytest
import xarray as xr

from diffscope.storage.statistics import save_statistics
from studies.committed import ROOT
from studies.markdown import quoted
from studies.subtraction import pages
from studies.subtraction.primaries import PARTS
from studies.subtraction.reproduce import EVIDENCE, REPORT, alike, finished_parts
from studies.subtraction.runs import pack, unpack

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


def test_a_run_that_never_finds_the_lookup_is_said_beside_the_onsets_of_the_others():
    table = pages.by_criterion(mechanism())
    assert cells(table, "90 % once") == ["50 (50 to 50), never: 1"]


def test_primaries_stand_in_their_order_and_those_of_untrained_parts_are_not_read():
    rows = pages.primaries({"mechanism": mechanism()}).splitlines()[2:]
    questions = [test.question for part in PARTS.values() for test in part.tests]
    assert [row.split(" | ")[1] for row in rows if not row.startswith("|  |")] == questions
    of_mechanism, of_lookup = rows[:2]
    assert "not read" not in of_mechanism and "| 79 % |" in of_mechanism
    assert of_lookup.count("not read") == 3 and "88 % to 93 %" in of_lookup
    runs = pages.runs({"mechanism": mechanism()})
    assert cells(runs, "text")[2] == "not all trained yet, so not read"


def test_what_is_quoted_of_copies_is_the_last_evaluation_that_is_defined():
    values = xr.DataArray([[0.1, 0.4, np.nan], [0.2, 0.5, 0.6]], {"seed": [0, 1], "step": STEPS}, ("seed", "step"))
    assert pages.last(values).values.tolist() == [0.4, 0.6]


@pytest.mark.parametrize(("factor", "same"), [(1.0, True), (1 + 1e-14, True), (1 + 1e-9, False)])
def test_datasets_are_alike_up_to_rounding(tmp_path, factor, same):
    one = mechanism()
    save_statistics(one, tmp_path / "one.nc")
    save_statistics(one.assign(lost_without_a2=one["lost_without_a2"] * factor), tmp_path / "other.nc")
    assert alike(tmp_path / "one.nc", tmp_path / "other.nc") is same


def test_the_report_is_that_of_the_runs_that_are_kept(tmp_path):
    """Tables to the last digit that is printed, datasets to rounding; figures are compared by the command itself."""
    assert unpack(tmp_path / "runs")
    parts = finished_parts(tmp_path / "runs", None)
    report = (ROOT / REPORT).read_text(encoding="utf-8")
    assert quoted(report, pages.quotes(parts)) == report, "python -m studies.subtraction.reproduce"
    for name, part in parts.items():
        save_statistics(part, tmp_path / f"{name}.nc", dated=False)
        assert alike(tmp_path / f"{name}.nc", ROOT / EVIDENCE / f"{name}.nc")


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
