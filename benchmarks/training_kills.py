"""Kill a training with -9 at random moments, let it go on each time, and compare with one that nobody disturbed.

Its state is saved every 10 steps; a kill strikes at a random moment of the second after a random one of the next states.

    python benchmarks/training_kills.py --kills 10

Prints at which step each kill struck, and whether weights, checkpoints and curves are equal bit by bit in the end.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

RUN = """
import sys
from diffscope.lab.training import train as lab
from benchmarks.training_kills import recipe
lab.SAVE_EVERY = 10
lab.train(recipe(), "diff", sys.argv[1], threads=1)
"""


def recipe(steps=260):
    """The laptop cohort's DIFF arm, with few steps: it does not form, and goes on all the same."""
    from diffscope.lab.training.recipe import Recipe

    laptop = Recipe.load("laptop")
    first, second = laptop.stages
    stages = (
        replace(first, steps=steps // 2, shapes=((16, 44),), formed=None),
        replace(second, steps=steps - steps // 2, shapes=((8, 192),)),
    )
    return replace(laptop, stages=stages, checkpoints=(50, 100, 200))


def start(out):
    root = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen([sys.executable, "-W", "ignore", "-c", RUN, str(out)], env=environment, stderr=subprocess.DEVNULL)


def saved(out):
    from safetensors import SafetensorError, safe_open

    path = out / "diff" / "seed-0" / "state.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            return json.loads(file.metadata()["place"])["done"]
    except (FileNotFoundError, SafetensorError):
        return 0


def same(left, right):
    """Whether two finished runs are equal in everything but the time they took."""
    files = sorted(path.relative_to(left) for path in left.rglob("*.safetensors") if path.name == "model.safetensors")
    weights = all((left / file).read_bytes() == (right / file).read_bytes() for file in files)
    curves = [
        [
            {k: v for k, v in json.loads(line).items() if k != "seconds"}
            for line in (run / "metrics.jsonl").read_text().splitlines()
        ]
        for run in (left, right)
    ]
    return len(files), weights, curves[0] == curves[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        calm, hunted = Path(folder) / "calm", Path(folder) / "hunted"
        began = time.monotonic()
        if start(calm).wait():
            sys.exit("the undisturbed training failed")
        lasted = time.monotonic() - began
        print(f"undisturbed: {recipe().steps} steps in {lasted:.0f} s")
        kills = 0
        while kills < options.kills:
            before, run = saved(hunted), start(hunted)
            wanted = before + 10 * chance.randint(0, 4)
            while saved(hunted) < wanted and run.poll() is None:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 1.0 if wanted > before else 0.5 * lasted))
            if run.poll() is not None:  # it ended before it was struck: its last acts are done again
                (hunted / "diff" / "seed-0" / "model.safetensors").unlink(missing_ok=True)
                continue
            run.send_signal(signal.SIGKILL)
            run.wait()
            kills += 1
            print(f"kill {kills}: began from step {before}, saved step {saved(hunted)} at the end")
        if start(hunted).wait():
            sys.exit("the last training failed")
        files, weights, curves = same(calm / "diff" / "seed-0", hunted / "diff" / "seed-0")
        print(f"{files} weight files bit-equal: {weights}; curves equal: {curves}")
        sys.exit(not (weights and curves))


if __name__ == "__main__":
    main()
