"""Run everything that waits for a GPU as one program that goes on where it stopped: ``make gpu``.

    python -m benchmarks.gpu --minutes 30                       # all of it, into runs/gpu
    python -m benchmarks.gpu --minutes 9.5 --copy OUT           # as far as that goes, and what came of it into OUT
    python -m benchmarks.gpu --quick                            # the same on a CPU, small: does every item run?

Needs what diffscope and its tests need, triton too, and downloads nothing. Each item is a command in a process of its own with
a limit of its own. What is done is kept after each item, and not done again by the same command; an item that failed or ran
over its limit is tried again. ``gpu.json`` says what became of each, ``gpu.txt`` what they printed, ``results.json`` and
``RESULTS.md`` what the benchmarks measured, ``cohort.tar`` holds the runs that were trained. ``--earlier`` takes up those of
another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import NamedTuple

from diffscope.storage.atomic import write_text

HOME = Path(__file__).parents[1]
FILES = ("gpu.json", "gpu.txt", "results.json", "RESULTS.md", "cohort.tar")
RUN_FILES = ("run.json", "config.json", "scores.nc", "evidence.nc")
MOST_BYTES = 16 * 2**20  # of a file that is copied
LEAST, LEAVE = 20.0, 30.0  # seconds with which an item is still begun, and that an item has to end when it is interrupted
PYTEST = "pytest -m gpu -q -p no:cacheprovider -o filterwarnings=default "
MARKED = "tests/stats tests/capture/test_capture.py tests/models/test_models.py tests/edits/test_edits.py tests/lab/test_train.py"
FLASH = "eager sdpa flex_attention flash_attention_2"


class Item(NamedTuple):
    """A command for ``python -m`` on a GPU, the same small on a CPU (None: left out there), and the seconds that it may take."""

    name: str
    command: str
    small: str | None
    seconds: float = 120.0


# By worth: what stands first is what nothing else can answer.
ITEMS = (
    Item("flash-attn", PYTEST + "tests/families/test_flash.py", None),
    Item("tests", PYTEST + MARKED, None, 240.0),
    Item(
        "fidelity at 2K",
        f"benchmarks.proof --part fidelity --device cuda --lengths 2048 --dtypes float32 bfloat16 --implementations {FLASH} "
        f"--out {{out}}",
        "benchmarks.proof --part fidelity --quick --out {out}",
    ),
    Item(
        "kernels",
        "benchmarks.costs --part kernels --device cuda --out {out}",
        "benchmarks.costs --part kernels --quick --out {out}",
    ),
    Item(
        "a 3B shape", "benchmarks.costs --part big --device cuda --out {out}", "benchmarks.costs --part big --quick --out {out}"
    ),
    Item(
        "float32 proof",
        "benchmarks.costs --part proof --device cuda --out {out}",
        "benchmarks.costs --part proof --quick --out {out}",
    ),
    Item(
        "ranks at 64K",
        "benchmarks.costs --part ranks --device cuda --length 65536 --out {out}",
        "benchmarks.costs --part ranks --quick --out {out}",
        90.0,
    ),
    Item(
        "beside other tools",
        "benchmarks.engine --part random --device cuda --lengths 1024 4096 16384 65536 --seconds 20 --repeats 3 --out {out}",
        None,
        180.0,
    ),
    Item("families", "benchmarks.conformance_tables --part families --device cuda --quick", None, 90.0),
    Item(
        "training",
        "diffscope train gpu --arm diff --arm standard --arm double-width --device cuda --out {out}/cohort",
        None,
        float("inf"),
    ),
)


def run(item: Item, command: str, out: Path, seconds: float) -> dict:
    """Run one item in a process group of its own, which is interrupted and then killed when its time is over."""
    path = os.pathsep.join(filter(None, (str(HOME), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    start, printed = time.monotonic(), out / "item.txt"
    with open(printed, "w", encoding="utf-8") as file:
        streams = {"stdout": file, "stderr": subprocess.STDOUT, "start_new_session": True}
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # if it is ignored here (nohup), it would be there
        process = subprocess.Popen([sys.executable, "-m", *command.format(out=out).split()], cwd=HOME, env=environment, **streams)
        signal.signal(signal.SIGINT, before)
        try:
            status = process.wait(min(seconds, item.seconds))
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(process.pid, signal.SIGINT)  # a training keeps its state
            try:
                process.wait(LEAVE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    text = printed.read_text(encoding="utf-8")
    printed.unlink()
    state = "done" if status == 0 else "over time" if status is None else f"failed with {status}"
    return {"state": state, "seconds": round(time.monotonic() - start, 1), "command": command, "text": text}


def pack(out: Path) -> None:
    """Put the finished runs of the training into one file, without weights."""
    finished = [path.parent for path in (out / "cohort").glob("**/seed-*/scores.nc")]
    if finished:
        with tarfile.open(out / "cohort.tar", "w") as archive:
            for path in (folder / name for folder in finished for name in RUN_FILES):
                if path.is_file():
                    archive.add(path, arcname=str(path.relative_to(out)))


def take_up(earlier: Path, out: Path) -> None:
    """Copy what another machine did, unless something has been done here."""
    if not (out / "gpu.json").is_file():
        copy(earlier, out)
        if (out / "cohort.tar").is_file():
            with tarfile.open(out / "cohort.tar") as archive:
                archive.extractall(out, filter="data")


def copy(source: Path, target: Path) -> None:
    """Copy the results; say which files are too large."""
    target.mkdir(parents=True, exist_ok=True)
    for path in (source / name for name in FILES if (source / name).is_file()):
        if path.stat().st_size > MOST_BYTES:
            print(f"left out: {path.name} has {path.stat().st_size:,} bytes, at most {MOST_BYTES:,} are copied")
        else:
            shutil.copyfile(path, target / path.name)


def main() -> int:
    """Run every item that is not done yet; exit 1 if any is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="by default runs/gpu, or runs/gpu-quick")
    parser.add_argument("--earlier", type=Path, default=HOME / "benchmarks" / "results" / "gpu", help="results to take up")
    parser.add_argument("--copy", type=Path, help="a folder that gets the results")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--quick", action="store_true", help="everything small, on a CPU")
    parser.add_argument("--only", nargs="+", metavar="ITEM", help=f"some of: {', '.join(item.name for item in ITEMS)}")
    options = parser.parse_args()
    if not options.quick:
        import torch

        if not torch.cuda.is_available():
            sys.exit("error: there is no CUDA device; --quick tries everything small on a CPU")
    if unknown := set(options.only or ()) - {item.name for item in ITEMS}:
        sys.exit(f"error: there is no item {min(unknown)!r}; --help lists them")
    end = time.monotonic() + 60 * options.minutes
    out = (options.out or Path("runs/gpu-quick" if options.quick else "runs/gpu")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    if not options.quick:
        take_up(options.earlier, out)
    record = json.loads((out / "gpu.json").read_text(encoding="utf-8")) if (out / "gpu.json").is_file() else {}
    wanted = [
        (item, item.small if options.quick else item.command) for item in ITEMS if item.name in (options.only or [item.name])
    ]
    wanted = [(item, command) for item, command in wanted if command]
    for item, command in wanted:
        done, left = record.get(item.name, {}), end - time.monotonic()
        if (done.get("state"), done.get("command")) == ("done", command) or left < LEAST:
            continue
        print(f"{item.name}: at most {min(left, item.seconds):.0f} s", flush=True)
        record[item.name] = run(item, command, out, left)
        print(f"  {record[item.name]['state']}, {record[item.name]['seconds']} s", flush=True)
        write_text(out / "gpu.json", json.dumps(record, indent=1))
        write_text(out / "gpu.txt", "\n".join(f"==== {name}\n{found['text']}" for name, found in record.items()))
        pack(out)
        if options.copy:
            copy(out, options.copy)
    return not all(record.get(item.name, {}).get("state") == "done" for item, _ in wanted)


if __name__ == "__main__":
    sys.exit(main())
