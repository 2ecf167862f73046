"""A sweep is what measuring one prompt after the other gives, however it is run, and whatever is killed or broken on the way."""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

import diffscope
from diffscope.cli import main
from diffscope.errors import DiffscopeError, ModelNotFound
from diffscope.lab import sweep as module
from diffscope.lab.items import lock
from diffscope.lab.plan import Plan, fingerprint
from diffscope.lab.prompt_sets import TASKS, prompt_sets
from diffscope.lab.sweep import sweep
from diffscope.models.folders import checkpoints_as_trained, locate
from diffscope.models.loading import load_tokenizer
from diffscope.stats.averaging import average
from diffscope.stats.sample import QuerySample
from diffscope.storage import provenance as store
from diffscope.storage.provenance import NAMES, provenance
from diffscope.storage.statistics import open_statistics
from diffscope.tasks import Backcopy, Retrieval
from diffscope.tasks.sampling import draw
from diffscope.tasks.training_sentence import template_of
from tests import tiny
from tests.forked import begun, ended

PLAN = """
models = ["mini-diff", "mini-standard"]
checkpoints = "all"
statistics = ["entropy", "span_mass", "overlap", "effective_rank"]
per_shard = 2

[[prompts]]
task = "retrieval"
count = 3
length = 64

[[prompts]]
task = "controlled"
count = 1
length = 96
distractors = [0, 3]
"""


def made_of(name):
    """Of a bundled model its layers and heads, the steps of its checkpoints and its last step."""
    (card,) = (card for card in diffscope.models.bundled() if card["name"] == name)
    curves = json.loads((Path(card["path"]) / "card.json").read_text(encoding="utf-8"))["curves"]
    return card["layers"], card["heads"], card["checkpoints"], curves[-1]["step"]


def retrieval(scope):
    return Retrieval(scope.tokenizer, template=template_of(scope.name))


MINI, STANDARD = made_of("mini-diff"), made_of("mini-standard")
STEPS = sorted({*MINI[2], MINI[3], STANDARD[3]})
CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x20000  # of <linux/sched.h>; os.unshare comes with Python 3.12
NOT_ALLOWED = 77  # the status with which a test says that it is skipped, as for automake


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    path.write_text(PLAN)
    return Plan.load(path)


@pytest.fixture(scope="module")
def swept(plan, tmp_path_factory):
    """The sweep in this process, and its folder."""
    out = tmp_path_factory.mktemp("sweep") / "here"
    return sweep(plan, out), out


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A plan of eight shards of two models, and the folder of its sweep in this process."""
    out = tmp_path_factory.mktemp("few") / "here"
    plan = small(models=["mini-diff", "mini-standard"], prompts={"task": "retrieval", "count": 4, "length": 96})
    assert len(sweep(plan, out).outcome.done) == 8
    return plan, out


def files(folder):
    """Return every file below a folder, byte for byte; lock files, which are empty, apart."""
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
    return {name: content for name, content in contents.items() if not name.startswith(".locks")}


def small(**changes):
    """A plan of little: one model, two shards."""
    prompts = {"task": "retrieval", "count": 2, "length": 96}
    return Plan.of({"models": "mini-diff", "prompts": prompts, "statistics": "gini", "per_shard": 1, **changes})


@pytest.fixture
def run(capsys):
    def run(*arguments):
        status = main(["sweep", *map(str, arguments)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


# The result


def test_the_dataset_holds_what_each_prompt_gives_by_itself(swept, plan):
    dataset = open_statistics(swept[0].dataset)
    layers, heads = (max(sizes) for sizes in zip(MINI[:2], STANDARD[:2]))
    expected = {"model": 2, "step": len(STEPS), "prompt": 5, "layer": layers, "head": heads}
    assert dict(dataset.sizes) | expected == dict(dataset.sizes)
    assert "query" not in dataset.sizes and "failed" not in dataset.attrs
    for model, step, opened in (("mini-diff", 0, "mini-diff@0"), ("mini-standard", STANDARD[3], "mini-standard")):
        scope = diffscope.load(opened)
        task = retrieval(scope)
        of_task = draw(task, 3, 64, 4, 0)[2], task.controlled(96, 3, [0, 0], depth=0.0)
        for index, prompt in zip((2, 4), of_task):
            spans = {name: at for name, at in prompt.spans.items() if name != "sink"}
            expected = scope.measure(prompt.ids, plan.statistics, spans=spans, queries=[-1]).isel(query=0)
            part = dataset.sel(model=model, step=step, prompt=index)
            for name in plan.statistics:
                same = expected[name].reindex_like(part[name])
                assert np.allclose(part[name].transpose(*same.dims), same, atol=1e-6, equal_nan=True), (model, index, name)
            assert float(part["depth"]) == prompt.depth and float(part["tokens"]) == len(prompt.ids)


def test_prompts_that_cannot_run_together_run_one_by_one(tmp_path, monkeypatch):
    """Memory may hold one prompt and not sixteen; and a batch that is refused says nothing of which prompt it was."""
    plan = small(models=["mini-diff"], prompts={"task": "retrieval", "count": 4, "length": 96}, per_shard=4)
    together = open_statistics(sweep(plan, tmp_path / "together").dataset)
    contents = []
    original = diffscope.Scope.measure

    def alone(scope, content, *args, **options):
        contents.append(content)
        if isinstance(content, list):
            raise torch.OutOfMemoryError("not enough")
        return original(scope, content, *args, **options)

    monkeypatch.setattr(diffscope.Scope, "measure", alone)
    one_by_one = open_statistics(sweep(plan, tmp_path / "alone").dataset)
    assert any(isinstance(content, list) for content in contents)
    xr.testing.assert_allclose(together.drop_vars("fidelity_worst"), one_by_one.drop_vars("fidelity_worst"), atol=1e-5)


def test_a_standard_model_has_no_second_map(swept):
    dataset = open_statistics(swept[0].dataset)
    entropy = dataset["entropy"].sel(model="mini-standard", step=STANDARD[3])
    assert entropy.sel(map="A2").isnull().all() and entropy.sel(map="D").notnull().all()
    others = [step for step in STEPS if step != STANDARD[3]]
    assert dataset["entropy"].sel(model="mini-standard", step=others).isnull().all()  # it has no checkpoints
    assert dataset["overlap"].sel(model="mini-standard").isnull().all()
    assert "mini-standard: standard attention has no second map" in dataset["entropy"].attrs["why"]


def test_prompts_are_labelled_by_what_they_were_drawn_with(swept):
    dataset = open_statistics(swept[0].dataset)
    assert dataset["length"].values.tolist() == [64, 64, 64, 96, 96]
    assert dataset["distractors"].values[3:].tolist() == [0, 3] and dataset["distractors"][:3].isnull().all()
    assert dataset["prompt_name"].values.tolist() == [*(f"retrieval {i}" for i in range(3)), "controlled 0", "controlled 0"]
    assert json.loads(dataset.attrs["plan"])["models"] == ["mini-diff", "mini-standard"]


def test_models_of_other_layers_and_heads_stand_side_by_side(tmp_path, tiny_diff_folder):
    file = tmp_path / "prompts.jsonl"
    rows = [
        {"prompt": "The city in the text"},
        {"prompt": "Return the answer, once", "spans": {"asked": "answer"}, "name": "second"},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    models = ["mini-diff", str(tiny_diff_folder)]
    plan = Plan.of({"models": models, "prompts": {"file": str(file)}, "statistics": ["span_mass", "gini"], "queries": "all"})
    dataset = open_statistics(sweep(plan, tmp_path / "out").dataset)
    assert dict(dataset.sizes) | {"model": 2, "prompt": 2, "layer": MINI[0], "head": 4} == dict(dataset.sizes)
    gini = dataset["gini"].sel(map="D")
    assert (
        gini.sel(model="mini-diff", head=[2, 3]).isnull().all() and gini.sel(model=models[1], layer=slice(2, None)).isnull().all()
    )
    mass = dataset["span_mass"].sel(span="asked", map="D", normalisation="share", head=0, layer=0)
    assert mass.isel(prompt=0).isnull().all() and mass.isel(prompt=1).notnull().all()
    assert dataset["prompt_name"].values[1] == "second"


@pytest.mark.parametrize("queries, rows", [("all", None), ("query", "query"), ("sample:8", QuerySample(8))])
def test_means_over_queries(tmp_path, queries, rows):
    plan = small(statistics=["gini", "kl_12", "argmax", "cmrr", "column_sink_position"], queries=queries)
    assert plan.left_out == ["argmax", "cmrr"]
    dataset = open_statistics(sweep(plan, tmp_path).dataset)
    assert "argmax" not in dataset and "column_sink_position" in dataset and dataset.attrs["left_out"] == "argmax, cmrr"
    assert queries in dataset.attrs["averaged_over"]
    scope = diffscope.load("mini-diff")
    prompt = draw(retrieval(scope), 2, 96, 4, 0)[1]
    spans = {name: at for name, at in prompt.spans.items() if name != "sink"}
    measured = scope.measure(prompt.ids, ["gini", "kl_12"], spans=spans, queries=rows)
    expected = average(measured)
    for name in expected:
        means = dataset[name].sel(prompt=1, model="mini-diff").transpose(*expected[name].dims)
        assert np.allclose(means, expected[name], atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("suffix", [".nc", ".parquet"])
def test_other_formats(tmp_path, suffix):
    path = sweep(small(), tmp_path, suffix=suffix).dataset
    assert path == tmp_path / f"dataset{suffix}" and open_statistics(path).sizes["prompt"] == 2


# Equal however it is run


@pytest.mark.slow
def test_two_processes_give_the_same_bytes(few, tmp_path):
    plan, out = few
    sweep(plan, tmp_path / "processes", processes=2)
    assert files(out) == files(tmp_path / "processes")


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_bytes(few, tmp_path):
    plan, out = few
    options = ["--model=mini-diff", "--model=mini-standard", "--statistics=gini", "--prompts=retrieval:count=4,length=96"]
    with lock(tmp_path / "out", plan.shards("cpu")[-1].item.place):  # so that it is killed before the last shard is made
        process = begun(main, ["sweep", *options, "--per-shard=1", f"--out={tmp_path / 'out'}"])
        while process.is_alive() and not list(tmp_path.glob("out/shards/[!.]*")):
            time.sleep(0.01)
        process.kill()
        assert ended(process) == -signal.SIGKILL
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("out/shards/[!.]*")}
    assert before and len(before) < 8
    sweep(plan, tmp_path / "out")
    assert files(out) == files(tmp_path / "out")
    assert before == {name: (tmp_path / "out" / "shards" / name).stat().st_mtime_ns for name in before}


@pytest.mark.parametrize("stage", ["begun", "written"])
def test_ctrl_c_says_that_it_goes_on(run, tmp_path, monkeypatch, stage):
    def interrupted(spec, target, device):
        if stage == "written":
            target.write_text("all of it")
        raise KeyboardInterrupt

    monkeypatch.setattr("diffscope.lab.sweep.measure", interrupted)
    options = ("--model", "mini-diff", "--statistics", "gini", "--prompts", "retrieval:count=2,length=96")
    assert run(*options, "--out", tmp_path) == (130, "", "stopped; what is complete is kept, and the same command goes on\n")
    assert not list((tmp_path / "shards").iterdir())


@pytest.fixture(scope="module")
def two_shards(tmp_path_factory):
    """The folder of a sweep, and the command line that goes on with it anywhere."""
    folder = tmp_path_factory.mktemp("two shards")
    command = ("--model=mini-diff", "--statistics=gini", "--prompts=retrieval:count=2,length=96", "--per-shard=1")
    assert main(["sweep", *command, f"--out={folder}"]) == 0
    return folder, command


@pytest.mark.parametrize("program", ["diffscope", "python", "torch"])
def test_a_sweep_under_other_versions_is_neither_done_anew_nor_mixed_unasked(run, two_shards, tmp_path, monkeypatch, program):
    folder, command = two_shards
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    command = (*command, f"--out={tmp_path}")
    kept, removed = sorted(tmp_path.glob("shards/*.nc"))
    before = kept.read_bytes()
    first = provenance(False)[program]
    change = {
        "diffscope": (store, "VERSION", "9.9"),
        "python": (store.platform, "python_version", lambda: "9.9"),
        "torch": (store, "version", lambda package: "9.9" if package == "torch" else version(package)),
    }
    monkeypatch.setattr(*change[program])
    words = f"{NAMES.get(program, program)} {first} (9.9 here)"
    status, _, err = run(*command)
    assert (
        status == 0
        and f"Shards were measured with other versions: {words}. They are not measured again." in err
        and removed.exists()
        and kept.read_bytes() == before
    )
    assert open_statistics(tmp_path / "dataset.zarr").attrs["measured_with"] == words
    removed.unlink()
    status, _, err = run(*command)
    assert status == 2 and f"holds shards that were measured with {words}" in err and err.count("\n") == 1
    assert not removed.exists()
    status, _, err = run(*command, "--plan-changed")
    both = words.replace(" (", " and 9.9 (")
    assert (
        status == 0
        and f"Shards were measured with other versions: {both}" in err
        and removed.exists()
        and kept.read_bytes() == before
    )
    attrs = open_statistics(tmp_path / "dataset.zarr").attrs
    assert attrs[program] == "9.9" and attrs["measured_with"] == both


# What goes wrong


@pytest.fixture
def broken(tmp_path):
    """A folder whose weights are cut off."""
    folder = tmp_path / "broken"
    tiny.own().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:1000])
    return folder


def test_a_shard_that_fails_is_told_and_the_rest_goes_on(run, broken, tiny_diff_folder, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": "a city"}) + "\n" + json.dumps({"prompt": "long text " * 40, "name": "the long one"}))
    models = [f"--model={name}" for name in ("mini-diff", tiny_diff_folder, broken)]
    command = (*models, "--prompts", file, "--statistics", "gini", "--per-shard", 1, "--out", tmp_path / "out", "--json")
    status, out, err = run(*command)
    printed = json.loads(out)
    assert status == 2 and printed["done"] == 3 and len(printed["failed"]) == 3
    assert err.splitlines()[-1].startswith("error: 3 of 6 shards failed, see ")
    assert "the long one: the prompt has" in err and "truncated or damaged" in err
    dataset = open_statistics(printed["dataset"])
    gini = dataset["gini"].sel(map="D", layer=0, head=0)
    assert gini.notnull().values.tolist() == [[True, True], [True, False], [False, False]]
    assert "the long one" in dataset.attrs["failed"] and "broken" in dataset.attrs["failed"]

    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("out/shards/*.nc")}
    shutil.copyfile(tiny_diff_folder / "model.safetensors", broken / "model.safetensors")
    status, out, _ = run(*command)
    assert status == 2 and json.loads(out)["done"] == 4
    assert before == {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("out/shards/*.nc") if path.name in before}


def test_where_everything_fails_there_is_no_dataset(run, broken, tmp_path):
    status, out, _ = run(
        "--model", broken, "--prompts", ownfile(tmp_path), "--statistics", "gini", "--out", tmp_path / "out", "--json"
    )
    assert status == 2 and json.loads(out)["dataset"] is None and not list(tmp_path.glob("out/dataset*"))


def ownfile(folder):
    file = folder / "own.jsonl"
    file.write_text(json.dumps({"prompt": "a city"}))
    return file


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's namespaces")
def test_a_full_disk_is_one_line(tmp_path):
    status = ended(begun(sweep_into_100_kilobytes, tmp_path), 300)
    if status == NOT_ALLOWED:
        pytest.skip("needs a mount namespace of its own")
    assert status == 2
    said = (tmp_path / "said").read_text()
    assert said.startswith("error: no space is left for ") and said.count("\n") == 1, said
    complete = [name for name in (tmp_path / "listed").read_text().split() if not name.startswith(".")]
    assert 1 <= len(complete) < 10


def sweep_into_100_kilobytes(folder):
    """Sweep in a mount namespace of its own; write down what it says and which shards there are at the end."""
    if fork := os.fork():  # a fork has one thread; with more, unshare refuses
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]))
    full = folder / "full"
    full.mkdir()
    if not mounted(full):
        sys.exit(NOT_ALLOWED)
    sweeping = "sweep --model mini-diff --statistics row,span_mass --prompts retrieval:count=10,length=96 --per-shard 1 --out"
    with open(folder / "said", "w") as said, contextlib.redirect_stderr(said):
        status = main([*sweeping.split(), str(full / "out")])
    (folder / "listed").write_text("\n".join(os.listdir(full / "out" / "shards")))
    sys.exit(status)


def mounted(full):
    """Mount a disk of 100 kilobytes in a namespace of its own; return whether this is allowed."""
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None).unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0:
        return False
    try:
        for name, content in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path("/proc/self", name).write_text(content)
    except PermissionError:
        return False
    return subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "none", full]).returncode == 0


def test_a_changed_plan_is_refused_and_with_changed_only_what_is_new_is_measured(tmp_path):
    before = sweep(small(), tmp_path)
    earlier = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("shards/*.nc")}
    more = small(prompts={"task": "retrieval", "count": 3, "length": 96})
    with pytest.raises(DiffscopeError, match=r"another plan \(it differs in prompts\).*--plan-changed"):
        sweep(more, tmp_path)
    assert open_statistics(before.dataset).sizes["prompt"] == 2
    after = sweep(more, tmp_path, changed=True)
    assert open_statistics(after.dataset).sizes["prompt"] == 3
    now = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("shards/*.nc")}
    assert len(now) == 3 and earlier.items() <= now.items()
    assert sweep(more, tmp_path).outcome == after.outcome


@pytest.mark.parametrize("plan", ["[1", "[1, 2]", "7"])
def test_a_folder_of_something_else_is_refused_and_left_as_it_is(tmp_path, plan):
    (tmp_path / "plan.json").write_text(plan)
    for changed in (False, True):
        with pytest.raises(DiffscopeError, match="plan.json is not the plan of a sweep"):
            sweep(small(), tmp_path, changed=changed)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"] and (tmp_path / "plan.json").read_text() == plan


def test_other_weights_are_measured_anew(tmp_path):
    for seed in (0, 1):
        tiny.own(seed=seed).save_pretrained(tmp_path / "model")
        tiny.tokenizer().save_pretrained(tmp_path / "model")
        plan = small(models=str(tmp_path / "model"), prompts={"file": str(ownfile(tmp_path))})
        swept = sweep(plan, tmp_path / "out")
        assert len(list(tmp_path.glob("out/shards/*.nc"))) == seed + 1
        expected = diffscope.load(tmp_path / "model").measure("a city", ["gini"], queries=[-1])["gini"].isel(query=0)
        gini = open_statistics(swept.dataset)["gini"].isel(model=0, prompt=0)
        assert np.allclose(gini.transpose(*expected.dims), expected, equal_nan=True)


def test_statistics_of_another_format_are_measured_anew(tmp_path, monkeypatch):
    """The name of a statistic may stay where its meaning changes, as that of `overlap` did."""
    sweep(small(), tmp_path)
    before = {path.name for path in tmp_path.glob("shards/*.nc")}
    monkeypatch.setattr("diffscope.lab.plan.STATISTICS_FORMAT", 0)
    assert not sweep(small(), tmp_path).outcome.failed
    assert len({path.name for path in tmp_path.glob("shards/*.nc")} - before) == len(before)


def test_fingerprints_see_every_byte_of_large_files(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    seen = set()
    large = 20 * 2**20
    for content in (bytes(1000), bytes(1001), bytes(large), bytes(300_000) + b"\1" + bytes(large - 300_001)):
        (folder / "model.safetensors").write_bytes(content)
        seen.add(fingerprint(str(folder)))
    assert len(seen) == 4 and fingerprint(str(folder)) in seen


def test_a_run_folder_has_its_checkpoints(tmp_path):
    """The last checkpoint and the model itself are one step."""
    folder = tmp_path / "run@home"
    tiny.own().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    for seed, step in enumerate((0, 30, 60)):
        tiny.own(seed=seed).save_pretrained(folder / "checkpoints" / f"step-{step:06d}")
    (folder / "checkpoints" / ".unfinished-step-000090").mkdir()
    every = small(models=str(folder), checkpoints="all", prompts={"file": str(ownfile(tmp_path))})
    assert [subject.opened for subject in every.subjects] == [f"{folder}@0", f"{folder}@30", str(folder)]
    assert [subject.step for subject in every.subjects] == [0, 30, 60]
    dataset = open_statistics(sweep(every, tmp_path / "out").dataset)
    expected = diffscope.load(f"{folder}@30").measure("a city", ["gini"], queries=[-1])["gini"].isel(query=0)
    gini = dataset["gini"].isel(model=0, prompt=0).sel(step=30)
    assert np.allclose(gini.transpose(*expected.dims), expected, equal_nan=True)
    assert not np.allclose(gini, dataset["gini"].isel(model=0, prompt=0).sel(step=0), equal_nan=True)
    with pytest.raises(ModelNotFound, match="no checkpoint 90; choose from 0, 30, 60"):
        small(models=str(folder), checkpoints=[90]).shards("cpu")
    with pytest.raises(ModelNotFound, match="no checkpoint '90'"):
        locate(f"{folder}@90")
    assert checkpoints_as_trained(tmp_path) == {}  # as of a pipeline, which has its configuration elsewhere
    (folder / "metrics.jsonl").write_text('{"step": 70}\n')  # the training went on after its last checkpoint
    assert [subject.step for subject in small(models=str(folder), checkpoints="all").subjects] == [0, 30, 60, 70]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attention": "top_k", "top_keys": 2}))  # k may have been another
    assert [subject.step for subject in small(models=str(folder), checkpoints="all").subjects] == [70]


@pytest.mark.parametrize("task", TASKS)
def test_the_first_of_many_prompts_are_those_of_few(task):
    """So that a longer plan keeps the shards of a shorter one."""
    tokenizer = Backcopy().tokenizer if task == "backcopy" else load_tokenizer(locate("mini-diff")[0], False)
    few, many = (prompt_sets({"task": task, "length": 128, "count": count})[0].prompts(tokenizer) for count in (3, 7))
    for left, right in zip(few, many[:3], strict=True):
        assert (left.ids, left.answer, left.spans, left.city) == (right.ids, right.answer, right.spans, right.city)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"modles": "mini-diff"}, "no field 'modles'"),
        ({"models": []}, "has no 'models'; it needs"),
        ({"models": ["mini-diff", "mini-diff"]}, "twice"),
        ({"models": "mini-dif"}, "no model 'mini-dif'"),
        ({"checkpoints": [7]}, f"no checkpoint 7; choose from {', '.join(map(str, [*MINI[2], MINI[3]]))}"),
        ({"checkpoints": "first"}, "checkpoints is none of"),
        ({"checkpoints": []}, "checkpoints is none of"),
        ({"statistics": ["ginny"]}, "did you mean gini"),
        ({"statistics": "argmax", "queries": "all"}, "argmax cannot be averaged over queries"),
        ({"queries": "anwser"}, "no span 'anwser'"),
        ({"queries": "sample:1"}, "no standard error"),
        ({"queries": 3}, "strings; write them in quotes"),
        ({"statistics": [1]}, "strings; write them in quotes"),
        ({"per_shard": 0}, "per_shard"),
        ({"dtype": "float7"}, "float7"),
        ({"dtype": 7}, "7"),
        ({"prompts": "prompts.jsonl"}, "is a table"),
        ({"prompts": {"task": "singing"}}, "no task 'singing'"),
        ({"prompts": {"task": "graded", "grade": ["city", "cities"]}}, "no grade 'cities' of evidence"),
        ({"prompts": {"task": "retrieval", "lenght": 96}}, "no field 'lenght'"),
        ({"prompts": {"task": "retrieval", "length": "long"}}, "no whole number"),
        ({"prompts": {"task": "retrieval", "count": 0}}, "no whole number, or too small"),
        ({"prompts": {"task": "retrieval", "length": True}}, "no whole number"),
        ({"prompts": {"task": ["retrieval"]}}, "no task"),
        ({"prompts": {"task": "retrieval", "template": "magic {city}"}}, "has to hold"),
        ({"prompts": {"task": "retrieval", "template": " {number} of {city}."}}, "has to hold"),
        ({"prompts": {"task": "retrieval", "template": " {city} {x} {number}."}}, "no other braces"),
        ({"prompts": {"task": "controlled", "near": 2}}, "neither true nor false"),
        ({"checkpoints": [[1]]}, "checkpoints is none of"),
        ({"prompts": {"task": "retrieval", "length": []}}, "no prompts"),
        ({"prompts": {"task": "retrieval", "length": 20}}, "do not fit"),
        ({"prompts": {"file": "nowhere.jsonl"}}, "nowhere.jsonl"),
        ({"prompts": {"file": "nowhere.jsonl", "count": 2}}, "no field 'count'"),
    ],
    ids=str,
)
def test_a_plan_that_cannot_be_is_one_line_before_anything_runs(changes, words, tmp_path):
    with pytest.raises(DiffscopeError, match=words) as told:
        sweep(small(**changes), tmp_path / "out")
    assert "\n" not in str(told.value) and not (tmp_path / "out").exists()


def test_a_dataset_of_what_has_been_replaced_goes_before_it_is_measured_anew(tmp_path, monkeypatch):
    scope = diffscope.load("mini-diff")
    for part in (scope.model, scope.tokenizer):
        part.save_pretrained(tmp_path / "model")
    plan = small(models=str(tmp_path / "model"))
    out = tmp_path / "out"
    dataset = sweep(plan, out).dataset
    scope.model.model.embed_tokens.weight.data *= 2
    scope.model.save_pretrained(tmp_path / "model")
    measure = module.measure
    monkeypatch.setattr(module, "measure", lambda *args, **how: seen.append(dataset.exists()) or measure(*args, **how))
    seen = []
    assert sweep(plan, out).dataset == dataset and dataset.exists() and seen == [False, False]


def test_prompts_may_have_a_template_of_their_own(tmp_path):
    table = {"task": "controlled", "count": 2, "length": 64, "distractors": [0, 2], "slots": 4, "template": " {city} {number}."}
    swept = sweep(small(models="mini-diff", prompts=table), tmp_path)
    dataset = open_statistics(swept.dataset)
    assert dataset["distractors"].values.tolist() == [0, 0, 2, 2] and set(dataset["template"].values) == {" {city} {number}."}
    prompt = prompt_sets(table)[1].prompts(diffscope.load("mini-diff").tokenizer)[0]
    assert len(prompt.ids) == 64 and len(prompt.spans["query"]) == 1 and len(prompt.spans["needles"]) == 8


# The command


def test_a_dry_run_shows_shards_and_size(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(PLAN)
    status, out, err = run("plan.toml", "--dry-run")
    subjects = len(MINI[2]) + 2  # the checkpoints of one model, and the last steps of both
    assert (status, err) == (0, "") and f"{4 * subjects} shards of up to 2 prompts" in out and "mini-standard" in out
    assert [path.name for path in tmp_path.iterdir()] == ["plan.toml"]
    printed = json.loads(run("plan.toml", "--dry-run", "--json", "--statistics", "gini", "--per-shard", 100)[1])
    assert len(printed["shards"]) == 3 * subjects and printed["shards"][0]["shard"] == "mini-diff@0, prompts 0 to 2"
    rows = (len(MINI[2]) + 1) * MINI[0] * MINI[1] + STANDARD[0] * STANDARD[1]  # steps, layers and heads of either model
    assert printed["mebibytes"] == pytest.approx(rows * 5 * 3 * 4 / 2**20)  # prompts, maps, bytes


def test_options_are_a_plan(run, tmp_path):
    options = ("--model", "mini-diff", "--checkpoints", MINI[2][1], "--statistics", "gini", "--queries", "answer")
    status, out, err = run(*options, "--prompts", "retrieval:count=1,length=96", "--out", tmp_path, "--format", "csv")
    assert (status, out) == (0, "") and "1 of 1 shards are done, dataset in" in err
    assert open_statistics(tmp_path / "dataset.csv")["gini"].sizes["step"] == 1


@pytest.mark.parametrize(
    "arguments, says",
    [
        ([], "--out"),
        (["--out", "x"], "'models'"),
        (["nowhere.toml", "--out", "x"], "nowhere.toml"),
        (["plan.txt", "--out", "x"], "no TOML file"),
        (["--model", "mini-diff", "--statistics", "gini", "--prompts", "retrieval:count=two", "--out", "x"], "TASK:FIELD=NUMBER"),
        (["--model", "mini-diff", "--statistics", "gini", "--prompts", "p.jsonl", "--out", "x"], "p.jsonl"),
        (["--model", "mini-diff", "--statistics", "gini", "--prompts", "retrieval:count=²", "--out", "x"], "TASK:FIELD=NUMBER"),
        (["--checkpoints", "soon", "--out", "x"], "--checkpoints"),
        (["--checkpoints", "²", "--out", "x"], "--checkpoints"),
        (["--out", "plan.txt"], "plan.txt is a file; give --out a folder"),
        (["--processes", "0", "--out", "x"], "--processes"),
        (["nowhere.toml", "--out", "x"], "nowhere.toml cannot be read"),
        (
            ["--model", "mini-diff", "--statistics", "gini", "--prompts", "retrieval", "--ray", "localhost:1", "--out", "x"],
            "no Ray cluster",
        ),
        (
            ["--model", "mini-diff", "--statistics", "gini", "--prompts", "retrieval:length=96", "--device", "tpu", "--out", "x"],
            "tpu",
        ),
    ],
    ids=str,
)
def test_bad_arguments_are_one_line(run, arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "--ray" in arguments:
        pytest.importorskip("ray")
    (tmp_path / "plan.txt").write_text("models: mini-diff")
    status, out, err = run(*arguments)
    assert (status, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1 and says in err, err
