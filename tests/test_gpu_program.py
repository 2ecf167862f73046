"""What waits for a GPU is one program that goes on where it stopped; small, it runs on a CPU."""

import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import gpu

HOME = Path(__file__).parents[1]


def test_what_it_runs_is_there():
    for item in gpu.ITEMS:
        for command in filter(None, (item.command, item.small)):
            module, *options = shlex.split(command)
            assert find_spec(module), module
            assert all((HOME / option).exists() for option in options if option.startswith("tests/")), command


@pytest.mark.slow
def test_every_item_runs_small_and_once(tmp_path):
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.gpu", "--quick", "--minutes", "9", "--out", str(tmp_path / "out")]
    first = subprocess.run(command, cwd=HOME, env=environment, capture_output=True, text=True)
    record = json.loads((tmp_path / "out" / "gpu.json").read_text())
    failed = {name: found["text"][-2000:] for name, found in record.items() if found["state"] != "done"}
    assert first.returncode == 0 and not failed, failed or first.stderr
    assert list(record) == [item.name for item in gpu.ITEMS if item.small]
    assert {"costs", "proof"} <= set(json.loads((tmp_path / "out" / "results.json").read_text()))
    again = subprocess.run(
        [*command, "--copy", str(tmp_path / "copy")], cwd=HOME, env=environment, capture_output=True, text=True
    )
    assert again.returncode == 0 and again.stdout == ""


def test_an_item_over_its_time_is_stopped_and_tried_again(tmp_path, monkeypatch, request):
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as what runs in a shell's background has it
    (tmp_path / "waits.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = gpu.run(gpu.Item("waits", "waits", None, 3.0), "waits", tmp_path, 10.0)
    assert found["state"] == "over time" and found["text"].startswith("begun\n") and found["seconds"] < 20
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
