"""A cohort is trained, scored, put together, reported and kept, and what fails or is missing is named."""

import json
import platform
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
import xarray as xr
from safetensors.torch import load_file

import diffscope
from diffscope.cli import main, training_report
from diffscope.cli import train as train_command
from diffscope.errors import DiffscopeError
from diffscope.evidence import run_file, runs
from diffscope.lab.items import Item, note_failure
from diffscope.lab.training import cohort as cohort_module
from diffscope.lab.training import run as run_module
from diffscope.lab.training import train_cohort as training
from diffscope.lab.training.board import events
from diffscope.lab.training.cohort import Cohort, collect, progress_by_arm, remaining_in_words, summary
from diffscope.lab.training.formation import formation
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.runs import chosen_rates, run_folder, unformed
from diffscope.lab.training.stages import FORMED_IN_ALL, Stage
from diffscope.lab.training.train_cohort import train_cohort
from diffscope.storage import provenance as store
from diffscope.storage.statistics import open_statistics
from diffscope.tasks import Retrieval
from diffscope.tasks.log_odds import logits_of
from diffscope.tasks.sampling import DEPTHS
from diffscope.tasks.scoring import answers
from studies.laptop import preregister as reading
from tests.lab.small_recipes import FORMING, PIECE, train


@pytest.fixture(autouse=True)
def little_evidence(monkeypatch):
    """What the command takes of every run, on few prompts."""
    for name, value in (("PROMPTS", 4), ("FEW", 2), ("DISTRACTORS", (4,)), ("LENGTH", 128), ("TEXTS", 2)):
        monkeypatch.setattr(runs, name, value)


def test_prompts_that_cannot_be_drawn_are_known_before_the_training(tmp_path):
    for change, words in (("[96, 20]", "do not fit 20 tokens"), ("[96, 300]", "has 256 positions")):
        (tmp_path / "small.toml").write_text(PIECE.replace("lengths = [96, 128]", f"lengths = {change}"))
        recipe = Recipe.load(str(tmp_path / "small.toml"))
        with pytest.raises(DiffscopeError, match=words):
            train_cohort(Cohort(recipe, tmp_path / "out"))
        assert not (tmp_path / "out" / "diff").exists()


def test_evidence_that_a_model_cannot_read_is_known_before_the_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(runs, "LENGTH", 256)
    (tmp_path / "small.toml").write_text(PIECE)
    assert main(["train", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out")]) == 2
    assert "'diff' has 256 positions, and evidence is taken on prompts of 2" in capsys.readouterr().err
    assert not (tmp_path / "out" / "diff").exists()


@pytest.fixture(scope="module")
def cohort_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cohort")
    (folder / "small.toml").write_text(PIECE)
    recipe = Recipe.load(str(folder / "small.toml"))
    outcome = train_cohort(Cohort(recipe, folder / "out"), tensorboard=True)
    return recipe, folder / "out", outcome


def test_a_cohort_is_trained_scored_and_put_together(cohort_run):
    recipe, out, outcome = cohort_run
    assert len(outcome.done) == 4 and not outcome.failed
    dataset = collect(Cohort(recipe, out))
    assert dataset["exact_match"].dims == ("arm", "seed", "length", "distractors", "prompt")
    assert dataset["arm"].values.tolist() == ["diff", "standard"] and dataset["seed"].values.tolist() == [0, 1]
    assert dataset["retrieval"].sel(step=[5, 10, 12]).notnull().all() and dataset["step"].values.tolist() == [5, 10, 12]
    for arm, seed in (("diff", 0), ("standard", 1)):
        lines = (out / arm / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
        losses = dataset["answer_loss"].sel(arm=arm, seed=seed).values.tolist()
        assert [json.loads(line)["answer_loss"] for line in lines] == losses
        scope = diffscope.load(out / arm / f"seed-{seed}")
        task = Retrieval(scope.tokenizer).with_template(recipe.grid.template)
        prompts = [task.controlled(128, 3, [30_000, seed, i], slots=3, depth=DEPTHS[i]) for i in range(5)]
        answered = answers(logits_of(scope.model), prompts)
        cell = dataset.sel(arm=arm, seed=seed, length=128, distractors=3)
        assert cell["exact_match"].values.tolist() == answered.right.tolist()
        assert cell["log_odds"].values == pytest.approx(answered.log_odds, abs=1e-4)
    first = dataset["exact_match"].sel(seed=0)
    assert not np.isnan(first).any() and set(dataset["question"].values) == {"answerable", "unanswerable"}
    rows = summary(dataset)
    means = dataset["exact_match"][0].mean(("length", "distractors", "prompt")).to_series().to_dict()
    assert [row["arm"] for row in rows] == ["diff", "standard"] and rows[0]["exact_match"] == pytest.approx(means)
    assert abs(rows[1]["parameters"] / rows[0]["parameters"] - 1) < 0.01


def test_a_finished_cohort_is_not_trained_again(cohort_run):
    recipe, out, _ = cohort_run
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    train_cohort(Cohort(recipe, out))
    train(recipe, "diff", out, seed=1)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}


def scalars(folder):
    """What TensorBoard reads, by tag and step: a file's first record may tell it to leave out what earlier files say."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    data = b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
    values = {}
    while data:  # TFRecord: length, its checksum, the event, its checksum
        length = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]
        if event.HasField("session_log") and event.session_log.status == SessionLog.START:
            values = {(tag, step): value for (tag, step), value in values.items() if step < event.step}
        values.update({(value.tag, event.step): value.simple_value for value in event.summary.value})
    return values


def test_metrics_reach_tensorboard(cohort_run):
    _, out, _ = cohort_run
    values = scalars(out / "tensorboard" / "diff" / "seed-0")
    rows = [json.loads(line) for line in (out / "diff" / "seed-0" / "metrics.jsonl").read_text().splitlines()]
    assert values[("retrieval", 10)] == pytest.approx(rows[1]["retrieval"])
    assert [values[("answer_loss", row["step"])] for row in rows] == pytest.approx([row["answer_loss"] for row in rows])


def test_a_monitor_watches_the_run_and_leaves_its_weights_alone(cohort_run, tmp_path):
    recipe, out, _ = cohort_run
    values = scalars(out / "tensorboard" / "diff" / "seed-0")
    kept = diffscope.open(out / "diff" / "seed-0" / "monitor")
    assert kept["step"].values.tolist() == [1, 2, 5, 10]
    mean = kept["lambda"].sel(lambda_value="used", layer=0, step=10).mean("head")
    assert values["diffscope/lambda/layer_0/mean", 10] == pytest.approx(float(mean), rel=1e-6)
    unwatched, watched = (load_file(train(recipe, "diff", at) / "model.safetensors") for at in (tmp_path, out))
    assert all(torch.equal(unwatched[name], watched[name]) for name in watched)


def test_events_lost_with_a_kill_are_written_again(cohort_run, tmp_path):
    recipe, out, _ = cohort_run
    again = shutil.copytree(out / "diff" / "seed-0", tmp_path / "diff" / "seed-0")
    (again / "model.safetensors").unlink()
    with events(tmp_path / "tensorboard" / "diff" / "seed-0") as write:  # of a step that the resumed run does not log
        write(11, {"answer_loss": 1.0})
    train(recipe, "diff", tmp_path, tensorboard=True)
    assert scalars(tmp_path / "tensorboard" / "diff" / "seed-0") == scalars(out / "tensorboard" / "diff" / "seed-0")


def test_seeds_of_earlier_commands_stay_in_the_dataset(cohort_run, tmp_path):
    _, out, _ = cohort_run
    shutil.copytree(out, tmp_path / "out")
    path = tmp_path / "one.toml"
    path.write_text(PIECE.replace("seeds = [0, 1]", "seeds = [0]"))
    assert main(["train", str(path), "--arm", "diff", "--out", str(tmp_path / "out")]) == 0
    dataset = open_statistics(tmp_path / "out" / "cohort.nc")
    assert dataset["seed"].values.tolist() == [0, 1] and (dataset["finished"] == 1).all()
    assert json.loads(dataset.attrs["made_by"])["standard/seed-1"][0]["torch"] == torch.__version__


def test_a_run_that_fails_is_named_and_evidence_is_taken_of_the_others(tmp_path, capsys, monkeypatch):
    taken = []  # tests/evidence/test_runs.py takes evidence; here it matters of which run
    monkeypatch.setattr(runs, "store_run", lambda *run, arm: taken.append((*run, arm)))
    (tmp_path / "small.toml").write_text(PIECE)
    command = ["train", str(tmp_path / "small.toml"), "--arm", "diff", "--out", str(tmp_path / "out")]
    recipe = replace(Recipe.load(str(tmp_path / "small.toml")), stages=(Stage(1, ((2, 64),), 0.1, (2, 3), 5, warmup=1),))
    train(recipe, "diff", tmp_path / "out")  # in the way
    assert main([*command, "--seed", "0"]) == 2
    assert "failed: diff, seed 0: " in capsys.readouterr().err
    assert main([*command, "--seed", "1"]) == 0  # that one did not fail
    assert taken == [(tmp_path / "out/diff/seed-1", " {city} {number}.", 1, "diff")]


def test_a_missing_device_is_one_line_before_anything_runs(tmp_path):
    (tmp_path / "small.toml").write_text(PIECE)
    recipe = Recipe.load(str(tmp_path / "small.toml"))
    with pytest.raises(DiffscopeError, match="'tpu' is unknown"):
        train_cohort(Cohort(recipe, tmp_path / "out", device="tpu"))
    assert not (tmp_path / "out").exists()


def test_a_run_that_fails_is_reported_and_the_others_go_on(tmp_path):
    (tmp_path / "small.toml").write_text(PIECE.replace("seeds = [0, 1]", "seeds = [0]").replace("steps = 12", "steps = 2"))
    recipe = Recipe.load(str(tmp_path / "small.toml"))
    train(replace(recipe, learning_rate=1.0), "diff", tmp_path / "out")  # in the way
    outcome = train_cohort(Cohort(recipe, tmp_path / "out"))
    assert [run.spec["arm"] for run in outcome.done] == ["standard"]
    assert ["begun with another recipe" in cause for cause in outcome.failed.values()] == [True]
    dataset = collect(Cohort(recipe, tmp_path / "out"))
    assert dataset["finished"].values.tolist() == [[0], [1]] and "diff, seed 0: " in dataset.attrs["failed"]
    assert np.isnan(dataset["exact_match"].sel(arm="diff")).all()
    (row,) = summary(dataset)
    assert row["arm"] == "standard" and row["missing"] == []


def test_a_cohort_on_the_command_line(cohort_run, tmp_path, capsys):
    _, out, _ = cohort_run
    path = str(out.parent / "small.toml")
    assert main(["train", path, "--out", str(out), "--report", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [row["formation"] for row in printed["arms"]] == [{"0": None, "1": None}] * 2 and not printed["failed"]
    assert main(["figure", str(out), "--kind", "cohort", "--out", str(tmp_path / "f.png")]) == 0
    assert (tmp_path / "f.png").stat().st_size > 10_000 and capsys.readouterr()
    dataset = open_statistics(out / "cohort.nc")
    assert dataset["exact_match"].sizes == {"arm": 2, "seed": 2, "length": 2, "distractors": 2, "prompt": 5}
    curves = open_statistics(out / "metrics.parquet")
    assert np.array_equal(curves["text_loss"], dataset["text_loss"])
    assert main(["train", path, "--out", str(out), "--report"]) == 0
    assert "formed at step" in capsys.readouterr().out
    for arguments, words in (
        (["--table"], "'RECIPE'"),
        ([path, "--arm", "none", "--out", str(tmp_path)], "has no arm 'none'"),
        ([path], "needs --out"),
        ([path, "--report", "--out", str(tmp_path)], "no run in"),
        ([path, "--status", "--out", path], "is a file; give --out a folder"),
        ([path, "--status", "--report", "--out", str(out)], "--status and --report exclude each other"),
        (["", "--table"], "no recipe ''"),
        *(([path, "--table", "--learning-rate", rate], "has to be above 0") for rate in ("-1", "0", "nan", "inf")),
    ):
        assert main(["train", *arguments]) == 2
        assert words in capsys.readouterr().err


def test_json_is_all_that_a_training_prints(cohort_run, capsys):
    _, out, _ = cohort_run
    assert main(["train", str(out.parent / "small.toml"), "--out", str(out), "--json"]) == 0
    assert [row["arm"] for row in json.loads(capsys.readouterr().out)["arms"]] == ["diff", "standard"]


def test_a_report_is_of_the_runs_that_are_named_with_the_causes_of_failures(cohort_run, tmp_path, capsys):
    _, out, _ = cohort_run
    again = shutil.copytree(out, tmp_path / "out")
    (again / "diff/seed-0/scores.nc").unlink()
    cause = "one thing; standard, seed 1: and another"
    note_failure(again, Item("diff/seed-0/scores.nc", {}), cause)
    command = ["train", str(out.parent / "small.toml"), "--out", str(again), "--report", "--json"]
    assert main([*command, "--arm", "diff"]) == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert [(row["arm"], list(row["formation"]), row["missing"]) for row in told["arms"]] == [("diff", ["1"], [0])]
    assert told["failed"] == {"diff, seed 0": cause} and "1 of 2 runs are finished" in shown.err
    assert main([*command, "--seed", "1"]) == 0
    assert [list(row["formation"]) for row in json.loads(capsys.readouterr().out)["arms"]] == [["1"], ["1"]]


def test_evidence_is_taken_anew_of_the_runs_that_are_named_and_of_this_recipe(cohort_run, tmp_path, capsys, monkeypatch):
    _, out, _ = cohort_run
    taken = []
    monkeypatch.setattr(runs, "store_cohort_run", lambda folder, recipe, seed: taken.append((folder, seed)))
    command = ["train", str(out.parent / "small.toml"), "--recompute-evidence", "--out"]
    assert main([*command, str(out), "--arm", "diff", "--seed", "1"]) == 0 and taken == [(out / "diff/seed-1", 1)]
    (tmp_path / "other.toml").write_text(PIECE.replace("weight_decay = 0.05", "weight_decay = 0.06"))
    assert main(["train", str(tmp_path / "other.toml"), *command[2:], str(out)]) == 2
    assert "begun with another recipe (it differs in weight_decay)" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "none")]) == 2 and "there is no folder" in capsys.readouterr().err
    assert len(taken) == 1


@pytest.fixture
def followed(tmp_path):
    """A recipe after which another is trained, which lies beside it."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "next.toml").write_text(PIECE.replace('"small"', '"after"'))
    (tmp_path / "recipes" / "first.toml").write_text('then = "next.toml"\n' + PIECE)
    return str(tmp_path / "recipes" / "first.toml")


def test_the_cohort_that_comes_next_is_found_beside_its_recipe_and_counted(followed, tmp_path, capsys, monkeypatch):
    command = ["train", followed, "--out", str(tmp_path / "out")]
    assert main([*command, "--status", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["left"] == 8 and {row["recipe"] for row in told["arms"]} == {"small", "after"}
    assert main([*command, "--status"]) == 0
    assert capsys.readouterr().err == "small: 4 runs are left\nafter: 4 runs are left\n"
    trained = []
    monkeypatch.setattr(train_command, "_train_cohort", lambda wanted, how, quiet: trained.append(wanted.out) or 1)
    assert main(command) == 2 and trained == [tmp_path / "out", tmp_path / "out" / "after"]
    assert f"2 runs failed, see {trained[0] / 'failed'} and {trained[1] / 'failed'}; " in capsys.readouterr().err
    assert main([*command, "--arm", "diff", "--learning-rate", "1"]) == 2 and len(trained) == 3  # without what comes next


def test_what_the_next_cohort_lacks_is_known_before_the_first_is_trained(followed, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(train_command, "_train_cohort", refuse)
    command = ["train", followed, "--out", str(tmp_path / "out")]
    assert main([*command, "--learning-rate", "1e-3"]) == 2
    assert "--learning-rate does not reach after, which is trained too" in capsys.readouterr().err
    following = tmp_path / "recipes" / "next.toml"
    following.write_text('corpus = "abc"\n' + following.read_text())
    assert main(command) == 2 and "'after' trains on the corpus abc; give its folder" in capsys.readouterr().err
    assert main([*command, "--text", str(tmp_path)]) == 2  # which is meant for it, and has no corpus
    assert "leave out --text" not in capsys.readouterr().err
    assert main([*command, "--status", "--learning-rate", "1e-3"]) == 0  # by files alone
    following.unlink()
    assert main(command) == 2 and f"no recipe '{following}'" in capsys.readouterr().err


def test_formation_is_the_first_of_two_evaluations_in_a_row(cohort_run):
    recipe, _, _ = cohort_run
    recipe = replace(recipe, stages=(replace(recipe.stages[0], formed=0.9), recipe.stages[0]))

    def formed_at(*shares, stages=(0,) * 9):
        rows = [
            {"step": 10 * i, "stage": stage} | ({} if s is None else {"retrieval": s})
            for i, (s, stage) in enumerate(zip(shares, stages))
        ]
        return formation(rows, recipe)

    assert formed_at(0.9, 0.5, 0.9, None, 1.0, 1.0) == 20
    assert formed_at(0.9, 0.8, 0.9, None) is None and formed_at() is None
    assert formed_at(0.9, 0.9, stages=(0, 1)) is None  # in two stages
    assert formed_at(0.8, 0.94, 0.94, stages=(0, 1, 1)) is None and formed_at(0.8, 0.95, 0.95, stages=(0, 1, 1)) == 10


@pytest.fixture(scope="module")
def forming(tmp_path_factory):
    """A cohort whose rates are chosen, of which one arm goes on from what another had learned."""
    folder = tmp_path_factory.mktemp("forming")
    (folder / "small.toml").write_text(FORMING)
    recipe = Recipe.load(str(folder / "small.toml"))
    counts = []
    outcome = train_cohort(Cohort(recipe, folder / "out"), progress=lambda done, total, note: counts.append((done, total)))
    return Cohort(recipe, folder / "out"), outcome, counts


def test_each_arm_gets_the_rate_with_the_least_loss(forming):
    cohort, outcome, counts = forming
    assert len(outcome.done) == 8 + 5 and not outcome.failed
    done, totals = zip(*counts)
    assert list(done) == sorted(done) and set(totals) == {13 * cohort.recipe.steps} and done[-1] == totals[-1]
    table = cohort.tuning()
    for arm in ("diff", "standard"):
        for rate in (1e-3, 4e-3):
            for seed in (100, 101):
                rows = (cohort.out / f"tuning/rate-{rate:g}/{arm}/seed-{seed}/metrics.jsonl").read_text().splitlines()
                (area,) = [row["answer_loss"] for row in map(json.loads, rows) if row["step"] == 10]
                assert float(table["tuning_area"].sel(arm=arm, rate=rate, tuning_seed=seed)) == pytest.approx(area)
    best = table["tuning_area"].mean("tuning_seed").idxmin("rate").to_series().to_dict()
    assert cohort.rates() == best
    dataset = collect(cohort)
    assert dataset["rate"].to_series().to_dict() == best | {"top-2": best["standard"]}
    assert np.isnan(dataset["log_odds"].sel(length=96, distractors=20)).all() and dataset["finished"].sum() == 5
    assert dataset["log_odds"].sel(arm="diff", distractors=3).notnull().all()


def test_a_continued_arm_begins_with_what_the_other_had_learned(forming):
    cohort, _, _ = forming
    begun = load_file(cohort.out / "top-2/seed-1/checkpoints/step-000000/model.safetensors")
    left = load_file(cohort.out / "standard/seed-1/checkpoints/step-000012/model.safetensors")
    assert begun.keys() == left.keys() and all(torch.equal(begun[name], left[name]) for name in left)
    assert diffscope.load(cohort.out / "top-2/seed-1").model.config.top_keys == 2
    rows = [json.loads(line) for line in (cohort.out / "top-2/seed-1/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 8 and {row["stage"] for row in rows} == {1}


def test_a_run_that_does_not_form_ends_and_is_censored(forming, tmp_path):
    cohort, _, _ = forming
    first = replace(cohort.recipe.stages[0], formed=1.0, steps=10)
    recipe = replace(cohort.recipe, stages=(first, cohort.recipe.stages[1]), tuning=None, seeds=(1,))
    never = Cohort(recipe, tmp_path / "never", arms=("standard", "top-2"))
    assert not train_cohort(never).failed
    dataset = collect(never).sel(seed=1)
    for arm in ("standard", "top-2"):
        run = dataset.sel(arm=arm)
        assert run["finished"] == 1 and np.isnan(run["formation"]) and dataset["formation_limit"] == 10
    assert "log_odds" not in dataset and not (never.out / "top-2/seed-1/model.safetensors").exists()
    lowered = replace(recipe, stages=(replace(first, formed=1e-9), recipe.stages[1]), seeds=(2,))
    assert lowered.stages[0].formed  # any share but none: these models answer nothing


def test_a_run_that_diverges_failed_and_is_not_missing(tmp_path, capsys):
    (tmp_path / "small.toml").write_text(
        PIECE.replace("seeds = [0, 1]", "seeds = [0]").replace("4e-3", "1e30").replace("evaluate_every = 5", "evaluate_every = 1")
    )
    cohort = Cohort(Recipe.load(str(tmp_path / "small.toml")), tmp_path / "out")
    outcome = train_cohort(cohort)
    assert len(outcome.done) == 2 and not outcome.failed
    dataset = collect(cohort)
    assert (dataset["finished"] == 1).all() and np.isnan(dataset["formation"]).all() and "log_odds" not in dataset
    rows = (tmp_path / "out/diff/seed-0/metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == dataset["step"].values.tolist() and len(rows) < 12
    assert main(["train", str(tmp_path / "small.toml"), "--out", str(cohort.out), "--report"]) == 0
    assert "never" in capsys.readouterr().out


def test_a_continued_arm_says_which_weights_are_lost(forming, tmp_path):
    cohort, _, _ = forming
    out = shutil.copytree(cohort.out, tmp_path / "out", ignore=shutil.ignore_patterns("top-2", "tuning"))
    (out / "standard/seed-1/formed.safetensors").unlink()
    recipe = replace(cohort.recipe, tuning=None, learning_rate=cohort.rates()["standard"])
    with pytest.raises(DiffscopeError, match="has no formed.safetensors, with which top-2 begins; remove that folder"):
        train(recipe, "top-2", out, seed=1)


def test_what_is_left_is_estimated_from_the_runs_that_are_done(forming, tmp_path):
    cohort, _, _ = forming
    assert remaining_in_words(progress_by_arm(cohort)) == "nothing is left"
    assert remaining_in_words(progress_by_arm(replace(cohort, out=tmp_path))) == "13 runs are left"
    begun = {(row.arm, row.tuning): row.seconds for row in progress_by_arm(replace(cohort, out=tmp_path), step=1.0)}
    assert begun["diff", True] == 4 * 10 and begun["diff", False] == 2 * 20 and begun["top-2", False] == 8  # its second stage
    half = replace(cohort, out=shutil.copytree(cohort.out, tmp_path / "half"))
    diff = [run for run in cohort.runs() if run.spec["arm"] == "diff"]
    diff[1].result(half.out).unlink()
    spent = [json.loads((run_folder(half.out, run) / "metrics.jsonl").read_text().splitlines()[-1])["seconds"] for run in diff]
    rows = {(row.arm, row.tuning): row for row in progress_by_arm(half)}
    assert rows["diff", False].left == 1 and rows["diff", False].seconds == pytest.approx(max(0.0, spent[0] - spent[1]))
    assert remaining_in_words(rows.values(), 2).startswith("1 run is left, about ") and "of 2 processes" in remaining_in_words(
        rows.values(), 2
    )


def test_the_status_of_a_cohort_is_told_from_its_files(forming, tmp_path, capsys):
    cohort, _, _ = forming
    half = shutil.copytree(cohort.out, tmp_path / "half")
    for name in ("diff/seed-1", "top-2/seed-1"):
        (half / name / "scores.nc").unlink()
    shutil.rmtree(half / "top-2/seed-1")
    before = sorted(half.rglob("*"))
    command = ["train", str(cohort.out.parent / "small.toml"), "--out", str(half), "--status"]
    assert main([*command, "--json", "--processes", "2"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = {(row["arm"], row["tuning"]): row for row in told["arms"]}
    assert set(rows) == {("diff", True), ("standard", True), ("diff", False), ("standard", False), ("top-2", False)}
    assert (rows["diff", True]["done"], rows["diff", True]["left"]) == (4, 0)
    assert (rows["diff", False]["done"], rows["diff", False]["left"], told["left"]) == (1, 1, 2)
    (under_way,) = rows["diff", False]["under_way"]
    assert under_way["run"] == "diff, seed 1" and (under_way["step"], under_way["steps"]) == (20, 20)
    assert rows["top-2", False]["under_way"] == [] and rows["top-2", False]["done"] == 0
    last = json.loads((half / "diff/seed-0/metrics.jsonl").read_text().splitlines()[-1])
    spent = json.loads((half / "diff/seed-1/metrics.jsonl").read_text().splitlines()[-1])["seconds"]
    assert rows["diff", False]["hours_left"] == pytest.approx(max(0.0, last["seconds"] - spent) / 2 / 3600)
    assert told["hours_left"] == pytest.approx(sum(row["hours_left"] for row in told["arms"]))
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "diff, seed 1: step 20" in shown.out and "2 runs are left" in shown.err
    assert sorted(half.rglob("*")) == before  # no lock, and nothing written


def tuning_runs_of(**arms):
    """What tuning runs came to: by arm the areas and formations (rate, seed)."""
    areas, formed = (np.array([arm[part] for arm in arms.values()], dtype=float) for part in (0, 1))
    dims = ("arm", "rate", "tuning_seed")
    coords = {"arm": list(arms), "rate": [1e-3, 2e-3], "tuning_seed": [100, 101]}
    return xr.Dataset({"tuning_area": (dims, areas), "tuning_formation": (dims, formed)}, coords)


def test_rates_may_have_to_form_with_all_seeds():
    never = np.nan
    table = tuning_runs_of(
        all_form=([[0.9, 0.9], [0.5, 0.5]], [[10, 20], [10, never]]),
        none_forms=([[0.9, 0.9], [0.5, 0.5]], [[never, never], [never, never]]),
        most=([[0.5, 0.5], [0.9, 0.9]], [[never, never], [10, never]]),
        diverges=([[0.9, np.inf], [1.5, 1.5]], [[10, never], [10, never]]),
    )
    assert set(chosen_rates(table).values()) == {2e-3, 1e-3} and chosen_rates(table)["all_form"] == 2e-3
    rates = chosen_rates(table, FORMED_IN_ALL)
    assert rates == {"all_form": 1e-3, "none_forms": 2e-3, "most": 2e-3, "diverges": 2e-3}
    assert unformed(table, rates) == {"none_forms": 0, "most": 1, "diverges": 1}


def test_seeds_that_choose_a_rate_are_not_used_again(forming, tmp_path):
    with pytest.raises(DiffscopeError, match="seeds .101. choose the rates in .tuning., and are not used again"):
        Cohort(forming[0].recipe, tmp_path, seeds=(0, 101))


def test_an_arm_that_forms_with_no_seed_is_named(forming, capsys):
    cohort, _, _ = forming
    strict = replace(cohort, recipe=replace(cohort.recipe, tuning=replace(cohort.recipe.tuning, rule=FORMED_IN_ALL)))
    training_report.tell_unformed(strict)
    told = capsys.readouterr().err
    assert "diff forms at no rate of [tuning] with all 2 seeds; its rate is the one at which most do, 0 of 2" in told


def test_scores_without_models_count_as_finished_runs(forming, tmp_path):
    cohort, _, _ = forming
    there = replace(cohort, out=tmp_path / "kept")
    for item in cohort.planned():
        item.result(there.out).parent.mkdir(parents=True)
        shutil.copy(item.result(cohort.out), item.result(there.out))
    assert not there.outcome().waiting and there.rates() == cohort.rates()
    assert collect(there)["log_odds"].identical(collect(cohort)["log_odds"])
    shutil.rmtree(there.out / "top-2")
    (cause,) = train_cohort(there).failed.values()
    assert "top-2 continues standard" in cause and "has no model; remove that folder to train it again" in cause
    shutil.rmtree(there.out / "standard/seed-1")
    assert not train_cohort(there).failed
    assert collect(there)["log_odds"].identical(collect(cohort)["log_odds"])


@pytest.fixture
def other_versions(monkeypatch):
    """Every program in another version than any that a run was made with."""
    monkeypatch.setattr(store, "VERSION", "9.1")
    monkeypatch.setattr(store, "version", lambda package: "9.2")
    monkeypatch.setattr(run_module, "VERSION", "9.1")
    monkeypatch.setattr(cohort_module, "revision", lambda: "another")
    monkeypatch.setattr(torch, "__version__", "9.2")
    monkeypatch.setattr(transformers, "__version__", "9.2")
    monkeypatch.setattr(platform, "python_version", lambda: "3.99.0")


def refuse(*_, **__):
    raise AssertionError("nothing may be trained or scored")


@pytest.mark.parametrize("name, count", [("laptop", 182), ("laptop-text", 27)])
def test_kept_runs_are_found_whatever_the_versions(name, count, laptop_runs, other_versions):
    cohort = Cohort(Recipe.load(name), laptop_runs / name)
    outcome = cohort.outcome()
    assert len(outcome.done) == count and not outcome.waiting and not outcome.failed
    assert len(cohort.results()) == count  # and each says that it is of this recipe


def test_kept_runs_go_on_under_other_versions_and_the_command_says_so(laptop_runs, tmp_path, other_versions, monkeypatch, capsys):
    kept = shutil.copytree(laptop_runs / "laptop-text", tmp_path / "kept")
    monkeypatch.setattr(training, "train_run", refuse)
    monkeypatch.setattr(training, "score", refuse)
    for command in ([], ["--report"]):
        assert main(["train", "laptop-text", "--out", str(kept), *command]) == 0
        told = capsys.readouterr()
        assert "diffscope 0.1.0 (9.1 here), Python 3.11.7 (3.99.0 here), torch 2.13.0+cpu (9.2 here)" in told.err
        assert "revision ac1f5b4 (another here)" in told.err
    assert "9 of 9 runs are finished" in told.err and "text loss: repeated" in told.out


@pytest.mark.parametrize(
    "change, words",
    [
        ({"weight_decay": 0.06}, "was begun with another recipe (it differs in weight_decay)"),
        ({"grid": "prompts"}, "was scored on other prompts (it differs in grid)"),
    ],
)
def test_kept_runs_are_not_taken_for_those_of_another_recipe(laptop_runs, tmp_path, change, words, monkeypatch):
    kept = shutil.copytree(laptop_runs / "laptop", tmp_path / "kept")
    monkeypatch.setattr(training, "train_run", refuse)
    recipe = Recipe.load("laptop")
    if "grid" in change:
        change = {"grid": replace(recipe.grid, prompts=recipe.grid.prompts + 1)}
    other = Cohort(replace(recipe, **change), kept)
    before = sorted(kept.rglob("*"))
    for use in (train_cohort, collect):
        with pytest.raises(DiffscopeError) as error:
            use(other)
        assert words in str(error.value) and "\n" not in str(error.value)
    assert sorted(kept.rglob("*")) == before


@pytest.mark.parametrize(
    "source, target, words",
    [
        ("diff/seed-1", "diff/seed-0", "(seed 1 instead of seed 0)"),
        ("standard/seed-0", "diff/seed-0", "(arm standard, rate 0.002 instead of arm diff, rate 0.004)"),
        ("tuning/rate-0.001/diff/seed-100", "tuning/rate-0.002/diff/seed-100", "(rate 0.001 instead of rate 0.002)"),
    ],
)
def test_a_result_of_another_run_is_refused(laptop_runs, tmp_path, source, target, words):
    kept = shutil.copytree(laptop_runs / "laptop", tmp_path / "kept")
    shutil.copy(kept / source / "scores.nc", kept / target / "scores.nc")
    with pytest.raises(DiffscopeError) as error:
        Cohort(Recipe.load("laptop"), kept).results()
    assert f"{target}/scores.nc is the result of another run {words}; " in str(error.value) and "\n" not in str(error.value)


def test_what_a_study_will_be_made_of_is_written_down_without_scores(forming, tmp_path, monkeypatch):
    cohort, _, _ = forming
    copy = shutil.copytree(cohort.out, tmp_path / "copy")
    with pytest.raises(DiffscopeError, match="diff/seed-0.*or is missing"):  # nothing took its evidence
        reading.reading(copy, cohort.recipe, "abc")
    monkeypatch.setattr(reading, "outdated", lambda folder: [])
    run = next(run for run in cohort.runs() if run.spec["arm"] == "diff")
    run.result(copy).unlink()
    table = reading.reading(copy, cohort.recipe, "abc")
    seed = run.spec["seed"]
    assert table["arms"]["diff"]["missing"] == [seed] and seed not in table["arms"]["diff"]["finished"]
    assert table["arms"]["standard"]["missing"] == [] and table["rates"] == cohort.rates() and table["revision"] == "abc"
    assert table["arms"]["diff"]["failed"] == [] and table["evidence_format"] == run_file.EVIDENCE_FORMAT
    assert table["data"] != reading.reading(cohort.out, cohort.recipe, "abc")["data"]


def test_progress_shows_rates_and_formation_and_no_scores(forming, capsys):
    cohort, _, _ = forming
    assert main(["train", str(cohort.out.parent / "small.toml"), "--out", str(cohort.out)]) == 0
    shown = capsys.readouterr()
    assert "nothing is left" in shown.err and "as standard, which it continues" in shown.out
    assert "yes" in shown.out and "log-odds" not in shown.out and "text loss" not in shown.out


def test_evidence_is_taken_of_a_finished_run(tmp_path):
    (tmp_path / "small.toml").write_text(PIECE.replace("seeds = [0, 1]", "seeds = [3]"))
    recipe = Recipe.load(str(tmp_path / "small.toml"))

    def evidence(folder, recipe, seed):
        (folder / "taken").write_text(f"{seed} {recipe.learning_rate} {(folder / 'model.safetensors').is_file()}")

    train_cohort(Cohort(recipe, tmp_path / "out", arms=("diff",)), evidence=evidence)
    assert (tmp_path / "out/diff/seed-3/taken").read_text() == "3 0.004 True"
