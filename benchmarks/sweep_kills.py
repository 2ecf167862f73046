"""A sweep killed with -9 at random moments and resumed: is anything lost, done twice, or other than without a kill?

    python benchmarks/sweep_kills.py --kills 20 --processes 2 --seed 0

The same command is started again and again in one folder and killed after a random number of shards, at a random moment of the
second that follows; a folder that is finished is compared with an undisturbed sweep, byte for byte, and the next one begun. Then
the same plan runs in one process and, where ray is installed, on a local cluster of Ray. The exit status says if all is well.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PLAN = """
models = ["mini-diff", "mini-standard"]
checkpoints = "all"
statistics = ["entropy", "gini", "span_mass", "overlap"]
queries = "all"
per_shard = 2

[prompts]
task = "retrieval"
count = 6
length = 128
"""
PATIENCE = 10.0  # seconds that workers have to notice that nobody waits for them


def start(folder: Path, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "diffscope", "sweep", "plan.toml", "--out", str(folder), *more]
    with open(folder.parent / "errors", "w") as errors:  # no pipe: workers that outlive their parent would hold it open
        return subprocess.Popen(command, cwd=folder.parent, stderr=errors)


def finish(folder: Path, *more: str) -> float:
    """Run a sweep to its end; returns the seconds it took."""
    began = time.monotonic()
    if start(folder, *more).wait():
        sys.exit((folder.parent / "errors").read_text())
    return time.monotonic() - began


def files(folder: Path) -> dict[str, bytes]:
    """Everything in the folder but the lock files, which are empty."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def done(folder: Path) -> dict[str, tuple[int, int]]:
    """Complete shards, and which files they are."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob("shards/[!.]*")}


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def kill_once(folder: Path, shards: int, wait: float, more: tuple[str, ...]) -> tuple[bool, float]:
    """Start the sweep and kill it; whether it was still running, and for how long its workers outlived it."""
    goal, process = len(done(folder)) + shards, start(folder, *more)
    while process.poll() is None and len(done(folder)) < goal:
        time.sleep(0.01)
    time.sleep(wait)
    workers = children(process.pid)
    process.kill()
    killed, began = process.wait() < 0, time.monotonic()
    if process.returncode > 0:
        sys.exit((folder.parent / "errors").read_text())
    while any(map(running, workers)) and time.monotonic() - began < PATIENCE:
        time.sleep(0.005)
    return killed, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw, more = random.Random(options.seed), ("--processes", str(options.processes))
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        (place / "plan.toml").write_text(PLAN)
        took = finish(place / "undisturbed", *more)
        reference = files(place / "undisturbed")
        print(f"undisturbed on {options.processes} processes: {len(done(place / 'undisturbed'))} shards in {took:.0f} s")
        wrong = kills = folders = 0
        longest, folder, seen = 0.0, None, {}
        while kills < options.kills or folder:
            if folder is None:
                folder, seen, folders = place / f"killed-{folders}", {}, folders + 1
            if kills < options.kills:
                killed, outlived = kill_once(folder, draw.randrange(16), draw.random(), more)
                kills, longest = kills + killed, max(longest, outlived)
            else:
                killed = False
                finish(folder, *more)
            now = done(folder)
            redone = sum(now.get(name) != file for name, file in seen.items())
            torn = sum(reference.get(f"shards/{name}") != (folder / "shards" / name).read_bytes() for name in now)
            seen, wrong = seen | now, wrong + redone + torn
            unfinished = len(list(folder.glob("shards/.unfinished*")))
            print(
                f"kill {kills:2}: {len(now):3} shards complete, {unfinished} begun, {redone} lost or done twice, {torn} damaged"
            )
            if not killed:
                equal = files(folder) == reference
                wrong += not equal
                print(f"  finished, {'equal to the undisturbed sweep' if equal else 'NOT EQUAL'}, all files byte for byte")
                folder = None
        print(f"{kills} kills in {folders} folders; workers outlived their parent by at most {longest:.2f} s")
        ways = {"one process": (), "Ray, 2 actors": ("--ray", "local", "--processes", "2")}
        for index, (way, how) in enumerate(ways.items()):
            if "--ray" in how and importlib.util.find_spec("ray") is None:
                print(f"{way}: not tried, ray is not installed")
                continue
            took = finish(place / f"way-{index}", *how)
            equal = files(place / f"way-{index}") == reference
            wrong += not equal
            print(f"{way}: {'equal' if equal else 'NOT EQUAL'}, {took:.0f} s")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
