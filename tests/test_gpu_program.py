"""What waits for a GPU is one program that goes on where it stopped; small, it runs on a CPU."""

import json
import os
import runpy
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import gpu
from tests.forked import begun, ended
from tests.stats.kernels import interpreting

HOME = Path(__file__).parents[1]


def test_what_it_runs_is_there():
    for item in gpu.ITEMS:
        for command in filter(None, (item.command, item.small)):
            module, *options = shlex.split(command)
            assert find_spec(module), module
            assert all((HOME / option).exists() for option in options if option.startswith("tests/")), command


def run_small(command, said):
    """Run a command for ``python -m`` where Triton interprets; what it says goes to a file."""
    with open(said, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    interpreting.prepare()
    os.chdir(HOME)
    sys.argv = command.split()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


@pytest.mark.slow
def test_every_item_runs_small(tmp_path):
    pytest.importorskip("triton")
    for item in filter(lambda item: item.small, gpu.ITEMS):
        process = begun(run_small, item.small.format(out=tmp_path), tmp_path / "said.txt")
        status = ended(process, 300)
        process.kill()  # what hangs goes on otherwise
        said = (tmp_path / "said.txt").read_text(errors="replace")
        assert status == 0, f"{item.name} ended with {status}: {said[-2000:]}"
    assert {"costs", "proof"} <= set(json.loads((tmp_path / "results.json").read_text()))


def test_what_is_done_is_kept_and_not_done_again(tmp_path, monkeypatch, capsys):
    (tmp_path / "says.py").write_text("import sys\nprint('said', *sys.argv[1:])")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    items = gpu.Item("first", "fails", "says {out}"), gpu.Item("on a GPU alone", "says", None), gpu.Item("last", "fails", "says")
    monkeypatch.setattr(gpu, "ITEMS", items)
    command = ["gpu", "--quick", "--minutes", "9", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", command)
    assert gpu.main() == 0 and "first: at most 120 s" in capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert {name: (found["state"], found["text"]) for name, found in record.items()} == {
        "first": ("done", f"said {tmp_path / 'out'}\n"),
        "last": ("done", "said\n"),
    }
    monkeypatch.setattr(sys, "argv", [*command, "--copy", str(tmp_path / "copy")])
    assert gpu.main() == 0 and capsys.readouterr().out == ""


class TimedFromItsFirstWord(subprocess.Popen):
    """A process whose time limit begins when it has printed something."""

    def __init__(self, *args, stdout, **options):
        super().__init__(*args, stdout=stdout, **options)
        self.printed = Path(stdout.name)

    def wait(self, timeout=None):
        while timeout and self.poll() is None and not self.printed.read_text():
            time.sleep(0.01)
        return super().wait(timeout)


def test_an_item_over_its_time_is_stopped_and_tried_again(tmp_path, monkeypatch, request):
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as what runs in a shell's background has it
    (tmp_path / "waits.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(gpu.subprocess, "Popen", TimedFromItsFirstWord)
        found = gpu.run(gpu.Item("waits", "waits", None, 0.5), "waits", tmp_path, 10.0)
    assert found["state"] == "over time" and found["text"].startswith("begun\n") and "KeyboardInterrupt" in found["text"]
    (tmp_path / "waits.py").write_text("raise SystemExit(3)")
    assert gpu.run(gpu.Item("waits", "waits", None, 30.0), "waits", tmp_path, 30.0)["state"] == "failed with 3"


def test_finished_runs_go_to_another_machine_without_weights(tmp_path):
    run, earlier, out = tmp_path / "earlier" / "cohort" / "diff" / "seed-0", tmp_path / "earlier", tmp_path / "out"
    run.mkdir(parents=True)
    for name in ("scores.nc", "run.json", "model.safetensors"):
        (run / name).write_bytes(b"a run")
    (run.parent / "seed-1").mkdir()
    (run.parent / "seed-1" / "run.json").write_text("{}")
    (earlier / "gpu.json").write_text("{}")
    gpu.pack(earlier)
    with tarfile.open(earlier / "cohort.tar") as archive:
        assert sorted(archive.getnames()) == ["cohort/diff/seed-0/run.json", "cohort/diff/seed-0/scores.nc"]
    gpu.take_up(earlier, out)
    assert (out / "cohort" / "diff" / "seed-0" / "scores.nc").read_bytes() == b"a run" and (out / "gpu.json").is_file()
