"""Everything that waits for a GPU, as one program that goes on where it stopped: ``make gpu``.

    python -m benchmarks.gpu --minutes 30                                  # all of it, into runs/gpu
    python -m benchmarks.gpu --minutes 9.5 --copy OUT                      # as far as that goes, and what came of it into OUT
    python -m benchmarks.gpu --tiny --device cpu                           # the same on a CPU, small: does every item run?

Needs torch, transformers, triton, xarray, safetensors, numpy, scipy and pytest, and downloads nothing. Items are ordered by
worth: captures of models on flash-attn, the other tests marked gpu, the fidelity table, kernels against float64 with the layer
of 64K tokens, a model of a 3B shape; then the costs of proofs, ranks, the families and the comparison with other tools; and
training, with all the minutes that are left. Each runs in a process of its own with a limit of its own. What is done is kept
after each, and not done again by the same command; an item that failed or ran over its limit is tried again. What came of them
are gpu.json, gpu.txt with all that they printed, gpu.md with the table, engine.json, and cohort.tar, the finished runs of the
training; `--earlier` takes up those of another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

from diffscope.files import write_text

HOME = Path(__file__).parents[1]
FILES = ("gpu.json", "gpu.txt", "gpu.md", "engine.json", "cohort.tar")
MOST_BYTES = 16 * 2**20  # of a file that comes back
SHOWN = 12  # last lines of what an item printed, in the table
LEAST = 20.0  # seconds with which an item is still begun
MARGIN = 30.0  # seconds before its end at which training stops by itself: it looks at the clock from step to step
FLASH = "tests/families/test_flash.py"
MARKED = (
    "tests/kernels",
    "tests/stats/test_implicit_map.py",
    "tests/stats/test_engine.py",
    "tests/stats/test_pooling.py",
    "tests/test_capture.py",
    "tests/models/test_models.py",
    "tests/edits/test_edits.py",
    "tests/lab/test_train.py",
)


@dataclass(frozen=True)
class Item:
    """One thing to run.

    Attributes
    ----------
    name : str
    module : str
        What ``python -m`` runs.
    options : str
        For a GPU; {out} is the folder of results, {seconds} what is left.
    tiny : str or None
        For ``--tiny``; None where another item tries the same there.
    seconds : float
        The most that it may take; infinite where it takes what is left.
    """

    name: str
    module: str
    options: str
    tiny: str | None
    seconds: float = 120.0


PYTEST = "-m gpu -q -p benchmarks.bare -p no:cacheprovider -o minversion=7 -o filterwarnings=default "
IMPLEMENTATIONS = "eager sdpa flex_attention flash_attention_2"
ITEMS = (
    Item("flash-attn", "pytest", PYTEST + FLASH, PYTEST + FLASH),
    Item("tests", "pytest", PYTEST + " ".join(MARKED), PYTEST + " ".join(MARKED), 240.0),
    Item(
        "fidelity at 2K",
        "benchmarks.fidelity",
        f"--device cuda --lengths 2048 --dtypes float32 bfloat16 --implementations {IMPLEMENTATIONS}",
        "--lengths 32 --dtypes float32 bfloat16 --implementations sdpa --no-layouts",
    ),
    Item("kernels", "benchmarks.costs", "--lengths 2048 8192 65536", "--device cpu --lengths 20 --heads 2 --repeats 1"),
    Item(
        "a 3B shape at 8K",
        "benchmarks.large",
        "--device cuda --dtype bfloat16 --length 8192",
        "--layers 2 --hidden 64 --heads 2 --length 64",
    ),
    Item("float32 proof at 2K", "benchmarks.float32_proof", "--device cuda --length 2048", "--length 64", 60.0),
    Item(
        "ranks at 64K",
        "benchmarks.ranks",
        "--device cuda --length 65536 --no-exact",
        "--length 256 --kinds diffuse",
        90.0,
    ),
    Item(
        "beside other tools",
        "benchmarks.engine",
        "--device cuda --lengths 1024 4096 16384 65536 --seconds 20 --repeats 3 --out {out}/engine.json",
        "--lengths 64 --repeats 1 --methods diffscope --no-bundled --out {out}/engine.json",
        180.0,
    ),
    Item("families", "benchmarks.conformance_tables", "--device cuda", "--first 2", 90.0),
    Item("float32 proof at 16K", "benchmarks.float32_proof", "--device cuda --length 16384", None, 90.0),
    Item(
        "fidelity at 16K",
        "benchmarks.fidelity",
        "--device cuda --lengths 16384 --dtypes float32 bfloat16 --implementations sdpa flex_attention flash_attention_2",
        None,
    ),
    Item(
        "training",
        "benchmarks.gpu_training",
        "--out {out} --seconds {seconds} --device cuda",
        "--out {out} --seconds {seconds} --tiny",
        float("inf"),
    ),
)


def device_in_words(device: str) -> dict:
    """What it ran on."""
    import torch
    import transformers

    facts = {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
    if device == "cuda" and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        memory = f"{properties.total_memory / 2**30:.0f} GiB"
        facts |= {"device": properties.name, "memory": memory, "cuda": torch.version.cuda, "cores": os.cpu_count()}
    else:
        facts |= {"device": "cpu", "cores": os.cpu_count()}
    return facts


def run(item: Item, out: Path, seconds: float, tiny: bool) -> dict:
    """One item in a process of its own, which ends with its children when its time is over."""
    words = options_of(item, tiny).format(out=out, seconds=max(1, int(seconds - MARGIN)))
    path = os.pathsep.join(filter(None, (str(HOME), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if tiny:
        environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    start = time.monotonic()
    with open(out / "item.txt", "w+", encoding="utf-8") as printed:
        process = subprocess.Popen(
            [sys.executable, "-m", item.module, *words.split()],
            cwd=HOME,
            env=environment,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(min(seconds, item.seconds))
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        printed.seek(0)
        text = printed.read()
    (out / "item.txt").unlink()
    state = "done" if status == 0 else "over time" if status is None else f"failed with {status}"
    return {
        "state": state,
        "seconds": round(time.monotonic() - start, 1),
        "command": command_of(item, tiny),
        "text": text,
    }


def command_of(item: Item, tiny: bool) -> str:
    """What it runs, with places for what differs from time to time."""
    return f"python -m {item.module} {options_of(item, tiny)}".rstrip()


def options_of(item: Item, tiny: bool) -> str:
    return (item.tiny or "") if tiny else item.options


def items(tiny: bool) -> list[Item]:
    """Those that are run."""
    return [item for item in ITEMS if not tiny or item.tiny is not None]


def is_done(item: Item, record: dict) -> bool:
    """Whether it was done, by the command that it has now."""
    found = record["items"].get(item.name, {})
    return found.get("state") == "done" and found.get("command") == command_of(item, record["tiny"])


def table(record: dict) -> str:
    """What came of every item, in Markdown."""
    lines = ["# Small, on a CPU\n" if record["tiny"] else "# On a GPU\n", "| item | state | seconds | on |", "|---|---|---|---|"]
    for item in ITEMS:
        found = record["items"].get(item.name, {"state": "not begun", "seconds": "", "facts": {}})
        facts = ", ".join(f"{name} {value}" for name, value in found["facts"].items())
        lines.append(f"| {item.name} | {found['state']} | {found['seconds']} | {facts} |")
    for item in ITEMS:
        if item.name in record["items"]:
            text = record["items"][item.name]["text"].rstrip().splitlines()
            lines += [f"\n## {item.name}\n", f"`{record['items'][item.name]['command']}`\n", "```", *text[-SHOWN:], "```"]
    return "\n".join(lines) + "\n"


def keep(out: Path, record: dict) -> None:
    """Everything so far, each file complete or as it was."""
    write_text(out / "gpu.json", json.dumps(record, indent=1))
    printed = (f"==== {name}\n{found['text']}" for name, found in record["items"].items())
    write_text(out / "gpu.txt", "\n".join(printed))
    write_text(out / "gpu.md", table(record))


def pack(out: Path) -> None:
    """The finished runs of the training as one file."""
    from tools.keep_runs import keep_runs

    if any((out / "cohort").glob("**/seed-*/scores.nc")):
        keep_runs(out / "cohort", out / "kept", MOST_BYTES)
        with tarfile.open(out / "cohort.tar", "w") as archive:
            archive.add(out / "kept", arcname="cohort")


def take_up(earlier: Path, out: Path) -> None:
    """What another machine did, where nothing has been done here."""
    if (out / "gpu.json").is_file():
        return
    for name in FILES:
        if (earlier / name).is_file():
            shutil.copyfile(earlier / name, out / name)
    if (out / "cohort.tar").is_file():
        with tarfile.open(out / "cohort.tar") as archive:
            archive.extractall(out, filter="data")


def copy(out: Path, target: Path) -> None:
    """What came of it, into another folder; says which files are too large."""
    target.mkdir(parents=True, exist_ok=True)
    for path in (out / name for name in FILES):
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            print(f"left out: {path.name} has {path.stat().st_size:,} bytes, at most {MOST_BYTES:,} are copied")
        elif path.is_file():
            shutil.copyfile(path, target / path.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="by default runs/gpu, or runs/gpu-tiny")
    parser.add_argument("--earlier", type=Path, default=HOME / "benchmarks" / "results" / "gpu", help="results to take up")
    parser.add_argument("--copy", type=Path, help="a folder that gets what came of it, at most eight files of 16 MiB")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="everything small: does it run?")
    parser.add_argument("--only", nargs="+", metavar="ITEM", help=f"some of: {', '.join(item.name for item in ITEMS)}")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    facts = device_in_words(options.device)
    if options.device == "cuda" and facts["device"] == "cpu":
        sys.exit("error: there is no CUDA device; --tiny --device cpu tries everything small")
    if (options.device == "cpu") != options.tiny:
        sys.exit("error: on a CPU only --tiny is of use, and --tiny only there")
    out = (options.out or Path("runs/gpu-tiny" if options.tiny else "runs/gpu")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    if not options.tiny:
        take_up(options.earlier, out)
    kept = json.loads((out / "gpu.json").read_text(encoding="utf-8")) if (out / "gpu.json").is_file() else {"items": {}}
    if kept.get("tiny", options.tiny) != options.tiny:
        sys.exit(f"error: {out} holds what was run {'small' if kept['tiny'] else 'in full'}; choose another folder with --out")
    record = {"tiny": options.tiny, "items": kept["items"]}
    if unknown := set(options.only or ()) - {item.name for item in ITEMS}:
        sys.exit(f"error: there is no item {min(unknown)!r}")
    wanted = [item for item in items(options.tiny) if item.name in (options.only or [item.name])]
    for item in wanted:
        left = end - time.monotonic()
        if is_done(item, record) or left < LEAST:
            continue
        print(f"{item.name}: at most {min(left, item.seconds):.0f} s", flush=True)
        record["items"][item.name] = {**run(item, out, left, options.tiny), "facts": facts}
        keep(out, record)
        if options.copy:
            copy(out, options.copy)
        print(f"  {record['items'][item.name]['state']}, {record['items'][item.name]['seconds']} s", flush=True)
    keep(out, record)
    pack(out)
    if options.copy:
        copy(out, options.copy)
    print((out / "gpu.md").read_text(encoding="utf-8").partition("\n## ")[0])
    return not all(is_done(item, record) for item in wanted)


if __name__ == "__main__":
    sys.exit(main())
