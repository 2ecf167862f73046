"""Shards: each is done once and wholly, wherever it is done, and whatever is killed."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from diffscope.errors import DiffscopeError
from diffscope.files import unfinished_folder
from diffscope.lab.jobs.job import Failure, Job, locked
from diffscope.lab.jobs.processes import Here, Processes
from diffscope.lab.jobs.ray_cluster import OnRay
from diffscope.lab.queue import Outcome, Rank, Shard, _next_for, result, run
from tests.lab.forked import begun, ended

SHARDS = [Shard({"number": number}) for number in range(6)]


# Work, for processes to import


def write(spec, target, log=None):
    """A result, and a line in a log for each time that it is made."""
    values = torch.randn(20_000, generator=torch.Generator().manual_seed(spec["number"]))
    target.write_text(f"{spec['number']} {values.sum().item()!r} {torch.get_num_threads()} threads")
    if log:
        with open(log, "a") as file:
            file.write(f"{spec['number']}\n")


def write_slowly(spec, target, log):
    target.write_text("half of it")
    time.sleep(0.1)
    write(spec, target, log)


def fail_at_2(spec, target, how):
    target.write_text("half of it")
    if spec["number"] == 2:
        how()
    write(spec, target)


def tell_origin(spec, target):
    """How many threads the process has that this one is a fork of, and a variable of the environment."""
    target.write_text(f"{len(os.listdir(f'/proc/{os.getppid()}/task'))} {os.environ['ORIGIN']}")


def say():
    raise DiffscopeError("the model\nis not there")


def stumble():
    raise ZeroDivisionError("division by zero")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def fill():
    try:
        raise OSError(errno.ENOSPC, "No space left on device")
    except OSError as error:
        raise RuntimeError("while saving") from error


def count_up(spec, target, folder):
    """Long work: a folder of its own remembers how far it came, and the result is a summary."""
    state = Path(folder) / f"{spec['number']}"
    for step in range(int(state.read_text()) if state.exists() else 0, 5):
        if step == spec.get("stops") and not (state.parent / "stopped").exists():
            (state.parent / "stopped").touch()
            raise MemoryError
        state.write_text(str(step + 1))
        with open(state.parent / "steps", "a") as file:
            file.write(f"{step}\n")
    target.write_text(state.read_text())


def take_lock(path):
    with locked(path):
        pass


def contents(folder):
    """Results by name; None for what is unfinished."""
    paths = [path for path in (Path(folder) / "shards").iterdir() if path.name != ".lock"]
    return {path.name: path.read_bytes() if path.is_file() else None for path in paths}


# What a shard is


def test_an_id_never_changes():
    spec = {
        "model": "mini-diff@50",
        "prompts": {"task": "retrieval", "länge": 128},
        "statistics": ["gini"],
        "dtype": None,
        "x": 0.1,
    }
    assert Shard(spec).id == Shard(dict(reversed(spec.items())), affinity="mini-diff").id == "0c3a521a46b41486"
    assert Shard({**spec, "x": 0.2}).id != Shard(spec).id


def test_what_json_cannot_say_is_no_spec():
    with pytest.raises(ValueError):
        assert Shard({"x": float("nan")}).id


# Where it is done


def test_every_way_of_running_gives_the_same_bytes(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(SHARDS, write, tmp_path / "here", suffix=".txt")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    run(SHARDS, write, tmp_path / "processes", Processes(2), suffix=".txt")
    first = run(SHARDS, write, tmp_path / "ranks", rank=Rank(1, 2), suffix=".txt")
    assert [shard.spec["number"] for shard in first.waiting] == [0, 2, 4]
    both = run(SHARDS, write, tmp_path / "ranks", rank=Rank(0, 2), suffix=".txt")
    assert both == Outcome(tuple(SHARDS), {}, ())
    here = contents(tmp_path / "here")
    assert len(here) == 6 and all(b"1 threads" in text for text in here.values())
    assert here == contents(tmp_path / "processes") == contents(tmp_path / "ranks")


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forks of another process on Linux alone")
def test_workers_are_forks_of_a_process_of_one_thread_and_know_the_environment_as_it_is(tmp_path, monkeypatch):
    for number in range(2):
        monkeypatch.setenv("ORIGIN", str(number))
        run(SHARDS[: number + 1], tell_origin, tmp_path, Processes(1), suffix=".txt")
    assert sorted(contents(tmp_path).values()) == [b"1 0", b"1 1"]


def test_what_is_there_is_not_done_again(tmp_path):
    log = tmp_path / "log"
    work = partial(write, log=str(log))
    run(SHARDS[:3], work, tmp_path, suffix=".txt")
    outcome = run([*SHARDS, *SHARDS], work, tmp_path, suffix=".txt")
    assert sorted(log.read_text().split()) == list("012345") and outcome.done == tuple(SHARDS)


def test_progress_counts_what_this_run_has_to_do(tmp_path):
    run(SHARDS[:2], write, tmp_path, suffix=".txt")
    seen = []
    run(SHARDS, write, tmp_path, suffix=".txt", progress=lambda *report: seen.append(report))
    assert seen == [(n, 4, "") for n in (0, 1, 2, 3, 4)]


def test_a_worker_stays_with_its_affinity_and_then_takes_one_that_nobody_has():
    todo = [Shard({"n": n}, affinity) for n, affinity in enumerate("aabbcc")]
    assert _next_for("b", todo, ["a", "b"]) == 2
    assert _next_for("", todo, ["a", ""]) == 2
    assert _next_for("b", todo[:2], ["a", "b"]) == 0


def test_two_runs_at_once_do_each_shard_once(tmp_path):
    work = partial(write_slowly, log=str(tmp_path / "log"))
    both = [begun(run, SHARDS, work, tmp_path, suffix=".txt") for _ in range(2)]
    assert [ended(process) for process in both] == [0, 0]
    assert sorted((tmp_path / "log").read_text().split()) == list("012345")


# What goes wrong


@pytest.mark.parametrize(
    "how, cause, where",
    [
        (say, "the model is not there", Here()),
        (stumble, "ZeroDivisionError: division by zero", Processes(2)),
    ],
)
def test_a_failure_is_kept_with_its_cause_and_tried_again(tmp_path, where, how, cause):
    outcome = run(SHARDS, partial(fail_at_2, how=how), tmp_path, where, suffix=".txt")
    assert outcome.failed == {SHARDS[2].id: cause} and len(outcome.done) == 5 and not outcome.waiting
    record = json.loads((tmp_path / "failed" / f"{SHARDS[2].id}.json").read_text())
    assert record["spec"] == {"number": 2} and how.__name__ in record["details"]
    assert set(contents(tmp_path)) == {f"{shard.id}.txt" for shard in outcome.done}
    again = run(SHARDS, write, tmp_path, suffix=".txt")
    assert again == Outcome(tuple(SHARDS), {}, ()) and not list((tmp_path / "failed").iterdir())


def test_a_worker_that_is_killed_costs_only_its_shard(tmp_path):
    outcome = run(SHARDS, partial(fail_at_2, how=die), tmp_path, Processes(2), suffix=".txt")
    assert outcome.failed == {SHARDS[2].id: "its worker process was killed by SIGKILL; was there memory enough?"}
    assert len(outcome.done) == 5
    assert run(SHARDS, write, tmp_path, suffix=".txt").done == tuple(SHARDS)
    assert len(contents(tmp_path)) == 6  # what it had begun is gone


def test_workers_that_cannot_start_are_one_line(tmp_path):
    script = tmp_path / "script.py"  # without a guard, every worker would run it again
    script.write_text(
        "from tests.lab.test_shards import *\n"
        "from diffscope.errors import DiffscopeError\n"
        "try:\n    run(SHARDS, write, 'out', Processes(1))\n"
        "except DiffscopeError as error:\n    sys.stdout.write(f'{error}')\n"
    )
    done = subprocess.run([sys.executable, script], env=environment(), cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "a worker process ended with status 1 before it could begin; a script needs if __name__ == '__main__'"


@pytest.mark.parametrize("where", [Here(), Processes(2)], ids=["here", "processes"])
def test_a_full_disk_stops_everything_in_one_line(tmp_path, where):
    with pytest.raises(DiffscopeError, match="no space is left for .*; what is complete is kept") as told:
        run(SHARDS, partial(fail_at_2, how=fill), tmp_path, where, suffix=".txt")
    assert "\n" not in str(told.value)
    finished = [name for name in contents(tmp_path) if not name.startswith(".")]
    assert 1 <= len(finished) < 5 and f"{SHARDS[2].id}.txt" not in finished
    assert run(SHARDS, write, tmp_path, suffix=".txt").done == tuple(SHARDS)


def test_words_of_a_full_disk():
    assert Failure.of(RuntimeError("Error while serializing: No space left on device (os error 28)")).disk_full
    assert not Failure.of(OSError(errno.EACCES, "Permission denied")).disk_full


def test_long_work_goes_on_where_it_was_stopped(tmp_path):
    shards = [Shard({"number": 0, "stops": 3}), Shard({"number": 1})]
    work = partial(count_up, folder=str(tmp_path))
    assert list(run(shards, work, tmp_path, suffix=".json").failed.values()) == ["MemoryError"]
    assert run(shards, work, tmp_path, suffix=".json").done == tuple(shards)
    assert sorted((tmp_path / "steps").read_text().split()) == sorted("01234" * 2)


def test_work_that_makes_nothing_has_failed(tmp_path):
    outcome = run(SHARDS[:1], lambda spec, target: None, tmp_path)
    assert "FileNotFoundError" in outcome.failed[SHARDS[0].id]


def test_a_worker_that_does_not_see_the_folder_says_so(tmp_path):
    failure = Job(write, {"number": 0}, tmp_path / "nowhere" / "x.txt", 1).attempt()
    assert "share its file system" in failure.cause


# Killed


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]), "OMP_NUM_THREADS": "1"}


def workers_of(pid):
    return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid):
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
def test_killed_anywhere_and_resumed_nothing_is_lost_or_done_twice(tmp_path):
    script = (
        "from functools import partial\nfrom diffscope.lab.jobs.processes import Processes\n"
        "from diffscope.lab.queue import run\nfrom tests.lab import test_shards as t\n"
        f"if __name__ == '__main__': run(t.SHARDS, partial(t.write_slowly, log={str(tmp_path / 'log')!r}), {str(tmp_path)!r}, "
        "Processes(2), suffix='.txt')"
    )
    (tmp_path / "script.py").write_text(script)
    draw = random.Random(0)
    seen = {}
    for _ in range(2):
        process = subprocess.Popen([sys.executable, tmp_path / "script.py"], env=environment(), start_new_session=True)
        while len(workers_of(process.pid)) < 2 and process.poll() is None:
            time.sleep(0.01)
        begun = len(seen)
        while process.poll() is None and len(seen) == begun:  # some shard is done
            seen |= {path.name: path.stat() for path in tmp_path.glob("shards/[!.]*.txt")}
            time.sleep(0.01)
        workers = workers_of(process.pid) if process.poll() is None else []
        time.sleep(draw.uniform(0, 0.1))
        process.kill()
        process.wait()
        ends = time.monotonic() + 60  # a worker that is still importing hears of it afterwards
        while any(map(alive, workers)) and time.monotonic() < ends:
            time.sleep(0.01)
        assert not any(map(alive, workers))
    outcome = run(SHARDS, write, tmp_path, suffix=".txt")
    assert outcome == Outcome(tuple(SHARDS), {}, ())
    run(SHARDS, write, tmp_path / "undisturbed", suffix=".txt")
    assert contents(tmp_path) == contents(tmp_path / "undisturbed")
    for name, before in seen.items():  # the same files still: what was complete was not made again
        now = (tmp_path / "shards" / name).stat()
        assert (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_what_a_killed_run_had_begun_is_cleared_away(tmp_path):
    final = result(tmp_path, SHARDS[0], ".txt")
    unfinished_folder(final).mkdir(parents=True)
    (unfinished_folder(final) / final.name).write_text("half of it")
    (unfinished_folder(final) / "notes").write_text("beside it")
    assert run(SHARDS[:1], write, tmp_path, suffix=".txt").done
    assert list(contents(tmp_path)) == [final.name]


def test_a_lock_is_for_one_result_only(tmp_path):
    with locked(tmp_path / "a"):
        assert ended(begun(take_lock, tmp_path / "b")) == 0


# Ranks


ARRAY = {"SLURM_ARRAY_TASK_ID": "6", "SLURM_ARRAY_TASK_MIN": "2", "SLURM_ARRAY_TASK_MAX": "8", "SLURM_ARRAY_TASK_STEP": "2"}
ARRAY |= {"SLURM_ARRAY_TASK_COUNT": "4"}
SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_LOCALID": "1"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    "text, variables, expected",
    [
        ("2/3", SRUN, Rank(2, 3)),
        ("auto", SRUN, Rank(1, 3, 1)),
        ("auto", TORCHRUN, Rank(5, 8, 1)),
        ("auto", TORCHRUN | SRUN, Rank(5, 8, 1)),
        ("auto", ARRAY, Rank(2, 4)),
        ("auto", ARRAY | SRUN, Rank(7, 12, 1)),
        ("auto", ARRAY | {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, Rank(2, 4)),
        (
            "auto",
            {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_MAX": "1"}
            | {"SLURM_ARRAY_TASK_COUNT": "2"},
            Rank(1, 2),
        ),
    ],
)
def test_ranks(text, variables, expected):
    assert Rank.of(text, variables) == expected


@pytest.mark.parametrize(
    "text, variables, words",
    [
        ("auto", {}, "finds no rank"),
        ("auto", {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, "finds no rank"),
        ("auto", ARRAY | {"SLURM_ARRAY_TASK_COUNT": "3"}, "not evenly spaced"),
        ("auto", {"SLURM_ARRAY_TASK_ID": "1"}, "not evenly spaced"),
        ("3/3", {}, "no rank 3 of 3"),
        ("first", {}, "neither auto nor"),
        ("1/x", {}, "neither auto nor"),
        ("-1/2", {}, "neither auto nor"),
    ],
)
def test_ranks_that_are_none(text, variables, words):
    with pytest.raises(DiffscopeError, match=words):
        Rank.of(text, variables)


def test_all_ranks_of_an_array_have_work_of_their_own():
    numbers = []
    for task in range(2, 9, 2):
        for local in range(3):
            rank = Rank.of("auto", ARRAY | SRUN | {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_PROCID": str(local)})
            numbers += range(20)[rank.index :: rank.world]
    assert sorted(numbers) == list(range(20))


# Ray


@pytest.mark.slow
def test_a_ray_worker_that_is_killed_costs_only_its_shard(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])  # workers have to find this file
    outcome = run(SHARDS, partial(fail_at_2, how=die), tmp_path / "ray", OnRay("local", 2), suffix=".txt")
    assert list(outcome.failed) == [SHARDS[2].id] and "Ray worker died" in outcome.failed[SHARDS[2].id]
    run(SHARDS, write, tmp_path / "here", suffix=".txt")
    here = contents(tmp_path / "here")
    assert {name: here[name] for name in contents(tmp_path / "ray") if not name.startswith(".")} == {
        name: text for name, text in here.items() if not name.startswith(SHARDS[2].id)
    }


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DiffscopeError, match=r"pip install 'diffscope-attention\[cluster\]'"):
        run(SHARDS, write, tmp_path, OnRay())
