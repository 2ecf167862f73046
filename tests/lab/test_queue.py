"""A queue makes each result once and wholly, wherever it is made, and whatever is killed."""

import errno
import json
import os
import random
import signal
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch

from diffscope.errors import DiffscopeError
from diffscope.lab.items import Item, Outcome, lock
from diffscope.lab.queue import run
from diffscope.storage.atomic import disk_is_full, unfinished_folder
from tests.forked import begun, ended

ITEMS = [Item(f"results/{number}.txt", {"number": number}) for number in range(6)]
ON_LINUX = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
ALL_DONE = Outcome(tuple(ITEMS), {}, ())


# Work, for processes to import


def wait_until(holds):
    """Wait until something holds, two minutes at most."""
    ends = time.monotonic() + 120
    while not holds() and time.monotonic() < ends:
        time.sleep(0.01)


def write(spec, target, log=None):
    """Write a result, and a line in a log for each time that it is made."""
    values = torch.randn(20_000, generator=torch.Generator().manual_seed(spec["number"]))
    target.write_text(f"{spec['number']} {values.sum().item()!r} {torch.get_num_threads()} threads")
    if log:
        with open(log, "a") as file:
            file.write(f"{spec['number']}\n")


def write_slowly(spec, target, log):
    target.write_text("half of it")
    time.sleep(0.1)
    write(spec, target, log)


def write_all_but_the_last(spec, target, log, workers):
    """Write slowly, say which process does it, and wait in the last item until killed."""
    (Path(workers) / str(os.getpid())).touch()
    if spec == ITEMS[-1].spec:
        target.write_text("half of it")
        (Path(workers) / "in the last").touch()
        time.sleep(600)
    write_slowly(spec, target, log)


def write_who(spec, target, begun, processes):
    """Write which process made a result, once each of them has begun as many as this one."""
    (Path(begun) / f"{os.getpid()}-{spec['number']}").touch()
    own = len(list(Path(begun).glob(f"{os.getpid()}-*")))
    wait_until(lambda: len(os.listdir(begun)) >= own * processes)
    target.write_text(str(os.getpid()))


def fail_at_2(spec, target, how):
    target.write_text("half of it")
    if spec["number"] == 2:
        how()
    write(spec, target)


def refuse():
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


def hold(folder, name, release):
    with lock(folder, name):
        (Path(folder) / "held").touch()
        while not Path(release).exists():
            time.sleep(0.01)


def contents(folder):
    """Return results by name; None for what is unfinished."""
    return {path.name: path.read_bytes() if path.is_file() else None for path in (Path(folder) / "results").iterdir()}


# Where it is done


def test_every_way_of_running_gives_the_same_bytes(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert run(ITEMS, write, tmp_path / "here") == ALL_DONE
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert run(ITEMS, write, tmp_path / "processes", processes=2) == ALL_DONE
    here = contents(tmp_path / "here")
    assert len(here) == 6 and all(b"1 threads" in text for text in here.values())
    assert here == contents(tmp_path / "processes")


def test_what_is_there_is_not_done_again(tmp_path):
    log = tmp_path / "log"
    work = partial(write, log=str(log))
    run(ITEMS[:3], work, tmp_path)
    assert run([*ITEMS, *ITEMS], work, tmp_path) == ALL_DONE
    assert sorted(log.read_text().split()) == list("012345")


@pytest.mark.parametrize("processes", [None, 2])
def test_progress_counts_what_this_run_has_to_do(tmp_path, processes):
    run(ITEMS[:2], write, tmp_path)
    seen = []
    run(ITEMS, write, tmp_path, processes=processes, progress=lambda *report: seen.append(report))
    assert seen[0] == (0, 4, "") and seen[-1] == (4, 4, "") and seen == sorted(seen)
    assert processes or seen == [(n, 4, "") for n in range(5)]


def test_a_process_takes_neighbours_so_that_a_model_stays_loaded(tmp_path):
    many = [Item(f"results/{number:02}.txt", {"number": number}) for number in range(20)]
    here = tmp_path / "begun"
    here.mkdir()
    run(many, partial(write_who, begun=str(here), processes=2), tmp_path, processes=2)
    makers = [contents(tmp_path)[f"{number:02}.txt"] for number in range(20)]
    assert len(set(makers)) == 2
    assert sum(one != other for one, other in pairwise(makers)) == 1


def test_two_runs_at_once_do_each_item_once_and_wait_for_each_other(tmp_path):
    work = partial(write_slowly, log=str(tmp_path / "log"))
    both = [begun(run, ITEMS, work, tmp_path) for _ in range(2)]
    assert run(ITEMS, work, tmp_path) == ALL_DONE
    assert [ended(process) for process in both] == [0, 0]
    assert sorted((tmp_path / "log").read_text().split()) == list("012345")


def test_the_item_of_another_run_that_is_killed_is_made_by_this_one(tmp_path):
    tmp_path.joinpath("log").touch()
    other = begun(hold, tmp_path, ITEMS[0].place, tmp_path / "never")
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    waiting = begun(run, ITEMS[:2], partial(write, log=str(tmp_path / "log")), tmp_path)
    while "1" not in (tmp_path / "log").read_text():
        time.sleep(0.01)
    assert "0" not in (tmp_path / "log").read_text() and waiting.is_alive()
    other.kill()
    assert ended(waiting) == 0 and sorted((tmp_path / "log").read_text().split()) == ["0", "1"]


# What goes wrong


@pytest.mark.parametrize(
    "how, cause, processes",
    [(refuse, "the model is not there", None), (stumble, "ZeroDivisionError: division by zero", 2)],
)
def test_a_failure_is_kept_with_its_cause_and_tried_again(tmp_path, processes, how, cause):
    outcome = run(ITEMS, partial(fail_at_2, how=how), tmp_path, processes=processes)
    assert outcome.failed == {ITEMS[2].place: cause} and len(outcome.done) == 5 and not outcome.waiting
    record = json.loads((tmp_path / "failed/results/2.txt.json").read_text())
    assert record["spec"] == {"number": 2} and how.__name__ in record["details"]
    assert set(contents(tmp_path)) == {Path(item.place).name for item in outcome.done}
    assert run(ITEMS, write, tmp_path) == ALL_DONE
    assert not [path for path in (tmp_path / "failed").rglob("*") if path.is_file()]


def test_a_process_that_is_killed_costs_only_its_item(tmp_path):
    outcome = run(ITEMS, partial(fail_at_2, how=die), tmp_path, processes=2)
    assert outcome.failed == {ITEMS[2].place: "its process was killed by SIGKILL; was there memory enough?"}
    assert len(outcome.done) == 5
    assert run(ITEMS, write, tmp_path) == ALL_DONE
    assert len(contents(tmp_path)) == 6  # what it had begun is gone


def test_processes_that_cannot_start_are_one_line(tmp_path, monkeypatch):
    script = tmp_path / "script.py"  # without a guard, every process runs it again
    script.write_text("from tests.lab.test_queue import *\nrun(ITEMS, write, 'out', processes=1)\n")
    main = ModuleType("__main__")
    main.__file__ = str(script)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DiffscopeError) as raised:
        run(ITEMS, write, "out", processes=1)
    assert str(raised.value) == (
        "a worker process ended with status 1 before it could begin; a script needs if __name__ == '__main__'"
    )


@pytest.mark.parametrize("processes", [None, 2])
def test_a_full_disk_stops_everything_in_one_line(tmp_path, processes):
    with pytest.raises(DiffscopeError, match="no space is left for .*; what is complete stays there") as raised:
        run(ITEMS, partial(fail_at_2, how=fill), tmp_path, processes=processes)
    assert "\n" not in str(raised.value)
    finished = [name for name in contents(tmp_path) if not name.startswith(".")]
    assert len(finished) < 6 and "2.txt" not in finished
    assert run(ITEMS, write, tmp_path) == ALL_DONE


def test_words_of_a_full_disk():
    assert disk_is_full(RuntimeError("Error while serializing: No space left on device (os error 28)"))
    assert not disk_is_full(OSError(errno.EACCES, "Permission denied"))


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
@pytest.mark.parametrize("processes", [None, 2])
def test_a_file_system_without_locks_is_one_line(tmp_path, monkeypatch, code, processes):
    def flock(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(DiffscopeError, match=r"queue.lock cannot be locked \(.*\); give a folder .* with flock"):
        run(ITEMS, write, tmp_path, processes=processes)
    assert not (tmp_path / "results").exists()


def test_no_process_at_all_is_refused(tmp_path):
    with pytest.raises(DiffscopeError, match="processes = 0 does no work; give 1 or more"):
        run(ITEMS, write, tmp_path, processes=0)


def test_a_failure_that_another_run_mends_meanwhile_is_none(tmp_path, monkeypatch):
    run(ITEMS[2:3], partial(fail_at_2, how=refuse), tmp_path)
    read = Path.read_text

    def mend_first(path, **options):
        path.unlink()
        return read(path, **options)

    monkeypatch.setattr(Path, "read_text", mend_first)
    assert Outcome.of(ITEMS[2:3], tmp_path) == Outcome((), {}, (ITEMS[2],))


def test_work_that_makes_nothing_has_failed(tmp_path):
    outcome = run(ITEMS[:1], lambda spec, target: None, tmp_path)
    assert "FileNotFoundError" in outcome.failed[ITEMS[0].place]


# Killed


def alive(pid):
    """Return whether a process runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def all_end(processes):
    """Return whether processes end within 20 seconds."""
    ends = time.monotonic() + 20
    while any(map(alive, processes)) and time.monotonic() < ends:
        time.sleep(0.01)
    return not any(map(alive, processes))


def test_what_a_killed_process_left_beside_a_result_is_removed(tmp_path):
    run(ITEMS[:2], write, tmp_path)
    left = unfinished_folder(ITEMS[0].result(tmp_path))
    left.mkdir()
    (left / "plain-file").touch()
    cause = tmp_path / "failed" / f"{ITEMS[0].place}.json"
    cause.parent.mkdir(parents=True)
    cause.touch()
    with lock(tmp_path, ITEMS[0].place):  # by whoever has just moved the result to its place
        run(ITEMS[:2], write, tmp_path)
        assert left.exists()
    run(ITEMS[:2], write, tmp_path)
    assert len(contents(tmp_path)) == 2 and not cause.exists()


@ON_LINUX
def test_workers_of_a_killed_run_end_and_resumed_it_loses_and_repeats_nothing(tmp_path):
    at_work = tmp_path / "at work"
    at_work.mkdir()
    work = partial(write_all_but_the_last, log=str(tmp_path / "log"), workers=str(at_work))
    draw = random.Random(0)
    seen = {}
    for reached in (partial(len, seen), (at_work / "in the last").exists):
        (at_work / "in the last").unlink(missing_ok=True)
        process = begun(run, ITEMS, work, tmp_path, processes=2)
        while process.is_alive() and not reached():
            seen |= {path.name: path.stat() for path in tmp_path.glob("results/[!.]*.txt")}
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.1))
        process.kill()
        assert ended(process) == -signal.SIGKILL
        workers = [int(path.name) for path in at_work.iterdir() if path.name.isdecimal()]
        assert workers and all_end(workers)
    assert run(ITEMS, write, tmp_path) == ALL_DONE
    run(ITEMS, write, tmp_path / "undisturbed")
    assert contents(tmp_path) == contents(tmp_path / "undisturbed")
    for name, stat in seen.items():  # the same files still: what was complete was not made again
        now = (tmp_path / "results" / name).stat()
        assert (now.st_ino, now.st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)


def test_what_a_killed_run_had_begun_is_cleared_away(tmp_path):
    final = ITEMS[0].result(tmp_path)
    unfinished_folder(final).mkdir(parents=True)
    (unfinished_folder(final) / final.name).write_text("half of it")
    (unfinished_folder(final) / "notes").write_text("beside it")
    assert run(ITEMS[:1], write, tmp_path).done
    assert list(contents(tmp_path)) == [final.name]


# GPUs


@pytest.mark.gpu
def test_the_gpu_of_a_process_is_that_of_its_number(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    run(ITEMS[:2], write_gpu, tmp_path, gpus=True)
    assert set(contents(tmp_path).values()) == {str(1 % torch.cuda.device_count()).encode()}


def write_gpu(spec, target):
    target.write_text(str(torch.cuda.current_device()))


# Ray


@pytest.mark.slow
def test_a_ray_worker_that_is_killed_costs_only_its_item(tmp_path, workers_find_tests):
    outcome = run(ITEMS[1:4], partial(fail_at_2, how=die), tmp_path, ray="local", processes=1)
    assert list(outcome.failed) == [ITEMS[2].place] and "Ray worker died" in outcome.failed[ITEMS[2].place]
    assert outcome.done == (ITEMS[1], ITEMS[3])


def write_node(spec, target, nodes):
    """Write a result, and which node of the cluster made it, once both have begun."""
    import ray

    (Path(nodes) / ray.get_runtime_context().get_node_id()).touch()
    wait_until(lambda: len(os.listdir(nodes)) == 2)
    write(spec, target)


@pytest.mark.slow
def test_two_nodes_of_a_ray_cluster_give_the_same_bytes(tmp_path, two_nodes):
    (tmp_path / "nodes").mkdir()
    outcome = run(ITEMS, partial(write_node, nodes=tmp_path / "nodes"), tmp_path / "ray", ray=two_nodes.address)
    assert outcome == ALL_DONE and len(list((tmp_path / "nodes").iterdir())) == 2
    run(ITEMS, write, tmp_path / "here")
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DiffscopeError, match=r"pip install 'diffscope-attention\[cluster\]'"):
        run(ITEMS, write, tmp_path, ray="local")
