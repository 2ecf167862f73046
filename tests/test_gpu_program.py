"""What waits for a GPU runs on a machine that has little installed: everything small, on a CPU, and goes on where it stopped."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks import gpu

HOME = Path(__file__).parents[1]
# What no bare machine has.
ABSENT = (
    "datasets",
    "hypothesis",
    "matplotlib",
    "nnsight",
    "plotly",
    "pyarrow",
    "ray",
    "rich",
    "statsmodels",
    "streamlit",
    "tensorboardX",
    "timm",
    "transformer_lens",
    "typer",
    "zarr",
)
HIDING = f"""
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, *where):
        return None if name.partition(".")[0] in {ABSENT!r} else self.finder.find_spec(name, *where)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


# The program, whose items begin with what takes longest to import; of what is measured nothing is imported yet. Processes that
# an item would spawn are forks of it; that what they are told can be sent to another interpreter, test_benchmarks.py sees.
FORKING = """
import multiprocessing
import os
import runpy
import subprocess
import sys
import time
import torch
import transformers.models.diffllama.modeling_diffllama
import xarray
from benchmarks import gpu

POPEN, FORKS = subprocess.Popen, multiprocessing.get_context("fork")
OURS = []  # ends of pipes, which a fork has too, so that nobody would see them closed
os.register_at_fork(after_in_child=lambda: [end.close() for end in OURS])

class Context:
    Process = FORKS.Process

    @staticmethod
    def Pipe():
        ours, theirs = FORKS.Pipe()
        OURS.append(ours)
        return ours, theirs

class Forked:
    def __init__(self, command, cwd, env, stdout, stderr, start_new_session):
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            return
        status = 1
        try:
            os.setsid()
            os.environ.update(env)
            subprocess.Popen = POPEN
            multiprocessing.get_context = lambda method: Context
            for stream in (1, 2):
                os.dup2(stdout.fileno(), stream)
            sys.argv = command[2:]
            runpy.run_module(command[2], run_name="__main__", alter_sys=True)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            os._exit(status)
    def wait(self, timeout):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        os.killpg(self.pid, 9)
        os.waitpid(self.pid, 0)
        self.pid = 0
        raise subprocess.TimeoutExpired("it", timeout)
    def poll(self):
        return None if self.pid else 0

subprocess.Popen = Forked
sys.exit(gpu.main())
"""


def run(folder, *options, forking=False):
    path = os.pathsep.join((str(folder / "hiding"), *filter(None, (os.environ.get("PYTHONPATH"),))))
    program = ["-c", FORKING] if forking else ["-m", "benchmarks.gpu"]
    command = [sys.executable, *program, "--tiny", "--device", "cpu", "--out", str(folder / "out"), *options]
    environment = os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=HOME, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_every_item_runs_where_little_is_installed(tmp_path):
    """One in an interpreter of its own, as all are; the others in forks of one, which does not import torch for each."""
    pytest.importorskip("triton")
    (tmp_path / "hiding").mkdir()
    (tmp_path / "hiding" / "sitecustomize.py").write_text(HIDING)
    begun = run(tmp_path, "--only", "a 3B shape at 8K", "--minutes", "2")
    assert begun.returncode == 0 and "| tests | not begun |" in begun.stdout, begun.stdout + begun.stderr
    first = json.loads((tmp_path / "out" / "gpu.json").read_text())["items"]
    whole = run(tmp_path, "--minutes", "9", "--copy", str(tmp_path / "copy"), forking=True)
    record = json.loads((tmp_path / "out" / "gpu.json").read_text())
    failed = {name: found["text"][-2000:] for name, found in record["items"].items() if found["state"] != "done"}
    assert not failed, failed
    assert whole.returncode == 0 and set(record["items"]) == {item.name for item in gpu.items(tiny=True)}, (
        whole.stdout + whole.stderr
    )
    assert record["items"]["a 3B shape at 8K"] == first["a 3B shape at 8K"]  # done once
    assert "a 3B shape at 8K: at most" not in whole.stdout and "ranks at 64K: at most" in whole.stdout
    files = sorted(path.name for path in (tmp_path / "copy").iterdir())
    assert files == sorted(gpu.FILES) and all(path.stat().st_size <= gpu.MOST_BYTES for path in (tmp_path / "copy").iterdir())
    with tarfile.open(tmp_path / "copy" / "cohort.tar") as archive:
        names = archive.getnames()
    assert "cohort/diff/seed-0/evidence.nc" in names


def test_an_item_over_its_time_is_stopped_and_tried_again(tmp_path, monkeypatch):
    (tmp_path / "waits.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = gpu.run(gpu.Item("waits", "waits", "", "", 3.0), tmp_path, 10.0, tiny=True)
    assert found["state"] == "over time" and found["text"] == "begun\n" and found["seconds"] < 6
    (tmp_path / "waits.py").write_text("raise SystemExit(3)")
    assert gpu.run(gpu.Item("waits", "waits", "", "", 30.0), tmp_path, 30.0, tiny=True)["state"] == "failed with 3"


def test_results_of_another_machine_are_taken_up(tmp_path):
    earlier, out = tmp_path / "earlier", tmp_path / "out"
    (earlier / "cohort" / "diff" / "seed-0").mkdir(parents=True)
    (earlier / "cohort" / "diff" / "seed-0" / "scores.nc").write_bytes(b"a run")
    (earlier / "gpu.json").write_text('{"items": {}}')
    with tarfile.open(earlier / "cohort.tar", "w") as archive:
        archive.add(earlier / "cohort", arcname="cohort")
    out.mkdir()
    gpu.take_up(earlier, out)
    assert (out / "cohort" / "diff" / "seed-0" / "scores.nc").read_bytes() == b"a run" and (out / "gpu.json").is_file()
