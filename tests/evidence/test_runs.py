"""The evidence of a run is what its model says, and tests read it in place of the model."""

import json
import shutil
from importlib.metadata import version

import numpy as np
import pytest
import xarray as xr

import diffscope
from diffscope import tables
from diffscope.errors import DiffscopeError
from diffscope.evidence import run_file, runs
from diffscope.evidence.last_query import last_query_of
from diffscope.evidence.quantities import OF_ATTRIBUTION, OF_FLOWS, OF_INJECTION, OF_LAST_QUERY, amplifier, shared_noise
from diffscope.evidence.take import PARTS
from diffscope.hypotheses import Settings, gathering, run
from diffscope.hypotheses.cohort_study import run_study
from diffscope.hypotheses.stored import (
    cohort_variables,
    open_checkpoints,
    open_runs,
    stored_models,
    with_evidence,
)
from diffscope.hypotheses.study import ALL, WEIGHTS
from diffscope.hypotheses.study_tables import descriptives
from diffscope.hypotheses.subjects import Pair
from diffscope.lab.training.run import revision, save_checkpoint
from diffscope.storage.statistics import save_statistics
from diffscope.tasks import Retrieval
from diffscope.tasks.retrieval import TEMPLATE
from diffscope.tasks.sampling import controlled
from studies.laptop.calibration.simulate import planted_cohort
from tests import tiny

EXPLAINED = ("a uniform row explains", "the distance explains", "the key explains", "A1 explains", "nothing of these explains")


@pytest.fixture(scope="module")
def cohort(tmp_path_factory, tokenizer):
    """Two seeds of two tiny arms, one run with a checkpoint."""
    home = tmp_path_factory.mktemp("cohort")
    patch = pytest.MonkeyPatch()
    patch.setattr(runs, "PROMPTS", 4)
    patch.setattr(runs, "FEW", 2)
    patch.setattr(runs, "DISTRACTORS", (4,))
    patch.setattr(runs, "LENGTH", 96)
    patch.setattr(runs, "TEXTS", 2)
    patch.setattr(runs, "UNTRAINED", 3)
    for arm, attention in (("diff", "v1"), ("standard", "standard")):
        for seed in (0, 1):
            folder = home / arm / f"seed-{seed}"
            weights = seed + 2  # with which each model loses something without one of its heads
            model = tiny.own(attention, vocab_size=len(tokenizer), heads=2, num_hidden_layers=1, seed=weights)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            if arm == "diff":
                save_checkpoint(model, folder / "checkpoints" / "step-000000")
                save_checkpoint(model, folder / "checkpoints" / "step-000010")
            runs.store_run(folder, seed=seed, arm=arm)
    yield home
    patch.undo()


def test_evidence_is_what_the_model_says(cohort):
    folder = cohort / "diff" / "seed-1"
    kept = run_file.open_evidence(folder / run_file.EVIDENCE)
    scope = diffscope.load(folder)
    task = Retrieval(scope.tokenizer, held_out=True)
    prompts = controlled(task, 4, 96, 4, (runs.FIRST_SEED, 1), slots=4)
    last_query = last_query_of([scope.capture([prompt.ids for prompt in prompts]).layers], prompts)
    for name in ("sharing", "difference", "kind"):
        live = shared_noise(last_query)[name].mean("prompt").values
        np.testing.assert_allclose(kept["value"].sel(quantity=f"shared_noise.{name}")[-1, 0], live, rtol=1e-4)
    live = amplifier(last_query)["noise_gain"].mean("prompt")
    table = open_runs([folder / run_file.EVIDENCE], "answer").tables("amplifier")[0][0]
    assert float(table.mean("noise_gain")[0]) == pytest.approx(np.average(live, weights=last_query.answering), rel=1e-4)
    assert kept["step"].values.tolist() == [0, 10, 11]
    size = (folder / run_file.EVIDENCE).stat().st_size
    assert size < 200_000 and runs.store_run(folder, seed=1, arm="diff").read_bytes() == (folder / run_file.EVIDENCE).read_bytes()


def test_tests_read_what_was_kept(cohort):
    paths = [sorted((cohort / arm).glob(f"seed-*/{run_file.EVIDENCE}")) for arm in ("diff", "standard")]
    diff, standard = map(open_runs, paths)
    verdicts = run(
        model=diff, pair=Pair(diff, standard), checkpoints=[open_checkpoints(cohort / "diff/seed-0" / run_file.EVIDENCE)]
    )
    estimates = {verdict.test.id: verdict.estimates for verdict in verdicts}
    for id in ("noise-symmetry", "amplifier", "common-mode-injection", "sparsity-pair", "noise-symmetry-training"):
        assert estimates[id], [verdict.sentence for verdict in verdicts if verdict.test.id == id]
    assert estimates["noise-symmetry"]["sharing"].seeds == 2
    stored, baseline = ([run_file.open_evidence(path) for path in of_arm] for of_arm in paths)
    ends = [dataset["outcome"][:, -1].mean("distractors") for dataset in stored]
    lost = [float(end.sel(measure="lost_common") - end.sel(measure="lost_differential")) for end in ends]
    assert estimates["common-mode-injection"]["lost"].value == pytest.approx(np.mean(lost), rel=1e-5)
    primary = cohort_variables(run_file.at_step(stored[0]))
    expected = np.average(primary["cmrr_over_paired_by_head"], weights=primary["answer_mass"])
    assert float(primary["cmrr_over_paired"]) == pytest.approx(expected, rel=1e-5)
    assert np.isnan(cohort_variables(run_file.at_step(baseline[0]))["cmrr_over_paired"])
    for evidence in (stored[0], baseline[0]):
        end = evidence["value"].isel(step=-1).mean("distractors")
        for name, label, middle in (("share", "answer_mass.share", np.mean), ("signed", "answer_mass.signed", np.median)):
            plain = cohort_variables(run_file.at_step(evidence))[f"alike_{name}"]
            assert float(plain) == pytest.approx(float(middle(end.sel(quantity=label).values)), rel=1e-5)


def test_what_no_evidence_holds_is_asked_of_the_models_at_hand(cohort, tmp_path):
    folder = tmp_path / "cohort"
    shutil.copytree(cohort, folder)
    dataset = planted_cohort("NC", 3).sel(arm=["diff", "standard"]).drop_vars("cmrr_over_paired")
    dataset.attrs["recipe"] = json.dumps({"name": "planted", "grid": {"template": TEMPLATE}})
    save_statistics(dataset, folder / "cohort.nc", dated=False)
    few = Settings(prompts=5, length=96, untrained=3, weights="answer")
    ids = ["low-rank-noise", "information-flow", "sparsity-pair", "redundancy-importance"]
    study = run_study(folder, ids, settings=few)
    ranks, flow, _, redundancy = study.boards[ALL]
    assert set(ranks.estimates) == set(ranks.test.quantities)  # what edits came to was kept
    ends = [run_file.open_evidence(folder / f"diff/seed-{seed}" / run_file.EVIDENCE)["outcome"][:, -1] for seed in (0, 1)]
    assert ranks.estimates["low_5"].value == pytest.approx(np.mean([end.sel(measure="low_5") for end in ends]), rel=1e-5)
    assert redundancy.shown.startswith("needs open models") and "knock_out" not in flow.estimates
    live = study.boards[WEIGHTS]  # the third seed has no models
    assert [verdict.test.id for verdict in live] == [ids[1], ids[3]]
    assert all({each.seeds for each in verdict.estimates.values()} == {2} for verdict in live)
    assert "knock_out" in live[0].estimates
    answers = tables.claims(study).data.set_index(["claim", "quantity"])["answer"]
    assert (answers["redundancy"] != "not measured").all() and (answers["quantisation"] == "not measured").all()
    dataset["formation"][0, 0] = np.nan  # one of the two formed: no pairs are left to be compared
    dataset["log_odds"][0, 0] = np.nan
    save_statistics(dataset, folder / "cohort.nc", dated=False)
    assert list(run_study(folder, ids, settings=few).boards) == [ALL]


def test_what_else_the_evidence_holds_is_described_of_formed_seeds(cohort):
    dataset = planted_cohort("NC", 2).sel(arm=["diff", "standard"])
    dataset.attrs["recipe"] = json.dumps({"checkpoints": [10], "evaluate_every": 4})
    dataset["formation"][:] = 6.0  # so the second of two evaluations was at step 10
    both = [run_file.open_evidence(cohort / f"diff/seed-{seed}" / run_file.EVIDENCE) for seed in (0, 1)]
    rows = {(row["arm"], row["quantity"], row["step"], row["layer"]): row for row in descriptives(cohort, dataset)}
    lam = [float(evidence["lam"][1].mean("distractors")[0]) for evidence in both]
    assert rows["diff", "λ", 10, 0]["value"] == rows["diff", "λ", "formed", 0]["value"] == pytest.approx(np.mean(lam))
    assert {step for _, quantity, step, _ in rows if quantity == "λ"} == {0, 10, "formed", "end"}
    averaged = dataset.assign_attrs(recipe=json.dumps({"checkpoints": [10], "evaluate_every": 4, "formed_by": "mean of three"}))
    averaged["formation"] = averaged["formation"].copy(data=np.full(averaged["formation"].shape, 10.0))  # the last of the three
    of_mean = {(row["arm"], row["quantity"], row["step"], row["layer"]): row for row in descriptives(cohort, averaged)}
    assert of_mean["diff", "λ", "formed", 0] == rows["diff", "λ", "formed", 0]
    right = [float(evidence["outcome"].sel(measure="two_questions_right")[-1].mean()) for evidence in both]
    two = rows["diff", "exact answers, two questions", "end", None]
    assert two["value"] == pytest.approx(np.mean(right)) and two["seeds"] == 2 and two["low"] is None
    parts = [rows["diff", f"share of A2 that {words}", "end", 0]["value"] for words in EXPLAINED]
    assert sum(parts) == pytest.approx(1, abs=1e-4)
    sink = "share of the first token in |D|, heads alike"
    assert ("standard", sink, "end", 0) in rows and ("standard", "noise gain", "end", 0) not in rows
    shares = [run_file.open_evidence(cohort / f"standard/seed-{seed}" / run_file.EVIDENCE)["value"][:, -1] for seed in (0, 1)]
    plain = np.mean([share.sel(quantity="sink_shares.d").mean(("distractors", "head"))[0] for share in shares])
    assert rows["standard", sink, "end", 0]["value"] == pytest.approx(plain)
    dataset["formation"][0, 0] = np.nan
    dataset["log_odds"][0, 0] = np.nan
    alone = {(row["arm"], row["quantity"], row["step"]): row for row in descriptives(cohort, dataset)}
    assert alone["diff", "λ", "formed"]["value"] == pytest.approx(lam[1]) and alone["diff", "λ", "formed"]["seeds"] == 1


def test_untrained_models_are_made_like_each_step(cohort):
    kept = run_file.open_evidence(cohort / "diff/seed-0" / run_file.EVIDENCE)
    at_the_end = {read.__name__ for read in (*OF_INJECTION, *OF_ATTRIBUTION)}
    names = {read.__name__ for read in (*OF_LAST_QUERY, *OF_FLOWS)} | at_the_end
    assert {str(name).partition(".")[0] for name in kept["quantity"].values} == {*names, "share_when"}
    for name in sorted(names):
        of = [quantity for quantity in kept["quantity"].values if str(quantity).startswith(f"{name}.")]
        steps = slice(None) if name not in at_the_end else slice(-1, None)
        assert kept["null"].sel(quantity=of).isel(step=steps).notnull().all("untrained").any("quantity").all(), name
    series = open_checkpoints(cohort / "diff/seed-0" / run_file.EVIDENCE, "answer")
    null = kept["null"].sel(quantity="shared_noise.sharing").isel(distractors=0)
    expected = [null[(model + place) % 3, place] for model in range(3) for place in range(3)]  # another one at each step
    assert [float(table.values["sharing"].item()) for table in series.tables("shared_noise")[1]] == expected


def test_evidence_of_an_annealed_model_is_of_its_end(tmp_path, tokenizer):
    model = tiny.own("top_k", vocab_size=len(tokenizer), heads=2, top_keys=4)
    model.save_pretrained(tmp_path)
    save_checkpoint(model, tmp_path / "checkpoints" / "step-000010")
    (tmp_path / "metrics.jsonl").write_text('{"step": 20}\n')
    assert runs._checkpoint_names(tmp_path) == {20: str(tmp_path)}


def scores(formed):
    """Those of two arms, (arm, seed)."""
    table = (("arm", "seed"), np.where(formed, 300.0, np.nan))
    finished = (("arm", "seed"), np.ones((2, 3)))
    return xr.Dataset({"formation": table, "finished": finished}, {"arm": ["diff", "standard"], "seed": [0, 1, 2]})


def test_a_cohort_reads_the_evidence_of_its_runs(cohort, tmp_path):
    """Arms with other numbers of heads, and a seed whose evidence is missing."""
    home = shutil.copytree(cohort, tmp_path / "cohort")
    path = home / "standard/seed-0" / run_file.EVIDENCE
    wide = run_file.open_evidence(path)
    wide = xr.concat([wide, wide.isel(head=slice(1))], "head", data_vars="minimal")
    save_statistics(wide, path, dated=False)
    read = with_evidence(scores(np.ones((2, 3))), home)
    for seed in (0, 1):
        alone = cohort_variables(run_file.at_step(run_file.open_evidence(home / f"diff/seed-{seed}" / run_file.EVIDENCE)))
        of_diff = read.sel(arm="diff", seed=seed)
        assert float(of_diff["cmrr_over_paired"]) == float(alone["cmrr_over_paired"])
        assert of_diff["answer_mass"].values[:, :2].tolist() == alone["answer_mass"].values.tolist()
        assert np.isnan(of_diff["answer_mass"].values[:, 2]).all()
    assert read.sizes["head"] == 3 and np.isnan(read["cmrr_over_paired"].sel(seed=2)).all()
    save_statistics(wide.assign_attrs(revision="another"), path, dated=False)  # by which nothing is judged
    assert with_evidence(scores(np.ones((2, 3))), home).identical(read)
    for other in (wide.assign_attrs(format=run_file.EVIDENCE_FORMAT + 1), wide.drop_attrs(deep=False)):
        save_statistics(other, path, dated=False)
        with pytest.raises(DiffscopeError, match=r"standard/seed-0/evidence.nc has format .* take it anew with: diffscope train"):
            with_evidence(scores(np.ones((2, 3))), home)
        assert run_file.outdated(home) == ["standard/seed-0"]


@pytest.mark.parametrize("swapped", ["diff/seed-1", "standard/seed-0"])
def test_evidence_of_another_run_is_refused(cohort, tmp_path, swapped):
    home = shutil.copytree(cohort, tmp_path / "cohort")
    shutil.copy(home / swapped / run_file.EVIDENCE, home / "diff/seed-0" / run_file.EVIDENCE)
    with pytest.raises(DiffscopeError, match=rf"diff/seed-0/evidence.nc is the evidence of another run \({swapped}\); put it"):
        with_evidence(scores(np.ones((2, 3))), home)


def test_only_formed_runs_are_tested_by_their_evidence(cohort):
    both, pair, series = stored_models(cohort, scores([[1, 1, 0], [0, 1, 1]]))
    assert both.seeds == (0, 1) and pair.seeds == pair.standard.seeds == (1,) and [of.seeds for of in series] == [(0,), (1,)]
    (one, none, _) = stored_models(cohort, scores([[0, 1, 1], [1, 0, 1]]))
    assert one.seeds == (1,) and none is None
    assert stored_models(cohort, scores([[0, 0, 1], [1, 1, 1]])) is None


def test_settings_that_stored_evidence_does_not_follow_are_named(cohort, monkeypatch):
    recipe = json.dumps({"grid": {"template": TEMPLATE}})
    monkeypatch.setattr(gathering, "open_cohort", lambda folder: scores(np.ones((2, 3))).assign_attrs(recipe=recipe))
    notes = [gathering.gather(cohort=cohort, settings=of).notes for of in (Settings(weights="answer"), Settings(length=512))]
    assert notes == [[], [f"models are read from the evidence in {cohort}, whose prompts and untrained models stand"]]


def test_evidence_says_its_format_and_who_took_it(cohort):
    assert run_file.outdated(cohort) == []
    (cohort / "diff/seed-0" / run_file.EVIDENCE).rename(cohort / "aside")
    assert run_file.outdated(cohort) == ["diff/seed-0"]
    (cohort / "aside").rename(cohort / "diff/seed-0" / run_file.EVIDENCE)
    kept = run_file.open_evidence(cohort / "diff/seed-0" / run_file.EVIDENCE).attrs
    assert kept["format"] == run_file.EVIDENCE_FORMAT and kept["revision"] == revision() and kept["torch"] == version("torch")


def test_what_evidence_does_not_hold_is_missing(cohort):
    stored = open_runs(sorted((cohort / "diff").glob(f"seed-*/{run_file.EVIDENCE}")))
    assert stored.tables("shared_noise")[0][0].values
    with pytest.raises(DiffscopeError, match="open models, since evidence"):
        stored.tables("tails")
    assert stored.outcomes("bits_4") == {}


@pytest.mark.parametrize("cohort", ["laptop", "laptop-text"])
def test_every_label_of_shipped_evidence_is_one_that_is_declared(laptop_runs, cohort):
    path = laptop_runs / cohort / "diff" / "seed-0" / "evidence.nc"
    labels = run_file.open_evidence(path)
    names = {str(name) for dim in ("quantity", "end_quantity") for name in labels[dim].values}
    declared = {label for part in PARTS.values() for label in part.labels}
    assert {name.partition(".")[0] for name in names} <= declared | {"noise_sweep", "parts_of_maps", "share_when"}
    assert {f"share_when.{name}" for name in ("right", "wrong")} <= names or "text" in path.parents[2].name
