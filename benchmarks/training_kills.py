"""Kill a training with -9 at random moments, let it go on each time, and compare with one that nobody disturbed.

Its state is saved every 10 steps; a kill strikes at a random moment of the second after a random one of the next states.

    python benchmarks/training_kills.py --kills 10
    python benchmarks/training_kills.py --kills 5 --recipe studies/subtraction/sinks.toml

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
from benchmarks.training_kills import SEED, recipe
lab.SAVE_EVERY = 10
lab.train(recipe(*sys.argv[2:]), "diff", sys.argv[1], seed=SEED, threads=1)
"""
SEED = 900  # of no study


def recipe(name="laptop", text=None, steps=260):
    """A recipe with few steps: it does not form, and goes on all the same."""
    from diffscope.lab.training.beginnings import with_text
    from diffscope.lab.training.recipe import Recipe

    whole = with_text(Recipe.load(name), text and Path(text))
    count = len(whole.stages)
    stages = [replace(stage, steps=steps // count, formed=None) for stage in whole.stages]
    few = whole.evaluation and replace(whole.evaluation, prompts=20)
    return replace(whole, stages=tuple(stages), checkpoints=(50, 100, 200), evaluate_every=50, evaluation=few, keep_weights=False)


def start(out, *made_of):
    root = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(out), *made_of]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def saved(out):
    from safetensors import SafetensorError, safe_open

    path = out / "diff" / f"seed-{SEED}" / "state.safetensors"
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
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which kills strike")
    parser.add_argument("--recipe", default="laptop")
    parser.add_argument("--text", help="the folder of its corpus")
    options = parser.parse_args()
    made_of = [options.recipe, *([options.text] if options.text else [])]
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        calm, hunted = Path(folder) / "calm", Path(folder) / "hunted"
        began = time.monotonic()
        if start(calm, *made_of).wait():
            sys.exit("the undisturbed training failed")
        lasted = time.monotonic() - began
        print(f"undisturbed: {recipe(*made_of).steps} steps in {lasted:.0f} s")
        kills = 0
        while kills < options.kills:
            before, run = saved(hunted), start(hunted, *made_of)
            wanted = before + 10 * chance.randint(0, 4)
            while saved(hunted) < wanted and run.poll() is None:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 1.0 if wanted > before else 0.5 * lasted))
            if run.poll() is not None:  # it ended before it was struck: its last acts are done again
                (hunted / "diff" / f"seed-{SEED}" / "model.safetensors").unlink(missing_ok=True)
                continue
            run.send_signal(signal.SIGKILL)
            run.wait()
            kills += 1
            print(f"kill {kills}: began from step {before}, saved step {saved(hunted)} at the end")
        if start(hunted, *made_of).wait():
            sys.exit("the last training failed")
        files, weights, curves = same(*(out / "diff" / f"seed-{SEED}" for out in (calm, hunted)))
        print(f"{files} weight files bit-equal: {weights}; curves equal: {curves}")
        sys.exit(not (weights and curves))


if __name__ == "__main__":
    main()
