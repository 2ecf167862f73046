"""The main arms of the `gpu` cohort, as far as the time goes: ``python -m benchmarks.gpu_training --out runs/gpu --seconds 900``.

Learning rates first, then the runs, seed by seed, with their evidence; the folder is the one that ``diffscope train gpu --out
runs/gpu/cohort --device cuda`` goes on in. It needs no command line's libraries. Exit status 0 when all of it is finished.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from diffscope.evidence import take as of_run
from diffscope.hypotheses.cohort_evidence import take_evidence
from diffscope.lab.training.cohort import Cohort
from diffscope.lab.training.grid import Grid
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.stages import Stage
from diffscope.lab.training.train_cohort import train_cohort
from diffscope.store import save_statistics

ARMS = ("diff", "standard", "double-width")


def tiny(recipe: Recipe) -> Recipe:
    """The same in a few steps of a small model, in float32 and not compiled."""
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 320}
    arms = {}
    for name in ARMS:
        heads = 2 if name != "standard" else 4
        arms[name] = recipe.arms[name] | {"num_attention_heads": heads, "num_key_value_heads": heads}
    first = Stage(10, ((2, 64),), 0.1, (2, 3), 5, warmup=2, template=recipe.stages[0].template)
    return replace(
        recipe,
        name="gpu-tiny",
        seeds=(0,),
        vocab_size=400,
        model=recipe.model | small,
        arms=arms,
        minor=None,
        continued={},
        then=None,
        tuning=replace(recipe.tuning, rates=(1e-3,), seeds=(100,), steps=10),
        checkpoints=(),
        evaluate_every=5,
        stages=(first, replace(first, steps=3, warmup=1)),
        grid=Grid(lengths=(128, 160), distractors=(0, 3), prompts=5, template=recipe.grid.template),
        evaluation=replace(recipe.evaluation, lengths=(64,), distractors=(0, 1), prompts=10),
        precision="float32",
        compiled=False,
    )


def little_evidence(folder: Path, recipe: Recipe, seed: int) -> None:
    """As :func:`take_evidence`, of few short prompts and with one untrained model."""
    with patch.multiple(of_run, LENGTH=128, DISTRACTORS=(4,), PROMPTS=10, TEXTS=2):
        evidence = of_run.evidence_of_run(folder, recipe.grid.template, seed, untrained=1)
    save_statistics(evidence, folder / of_run.EVIDENCE, dated=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    recipe = Recipe.load("gpu")
    recipe = tiny(recipe) if options.tiny else recipe
    cohort = Cohort(recipe, options.out / "cohort", arms=ARMS[:1] if options.tiny else ARMS, device=options.device)

    def progress(done: int, total: int, words: str) -> None:
        if time.monotonic() > end:
            raise KeyboardInterrupt  # as a person would: what was begun goes on from its last state another time

    with suppress(KeyboardInterrupt):
        train_cohort(cohort, evidence=little_evidence if options.tiny else take_evidence, progress=progress)
    outcome = cohort.outcome()
    print(f"{len(outcome.done)} runs are finished, {len(outcome.waiting)} left")
    for name, why in outcome.failed.items():
        print(f"failed: {name}: {why}")
    return bool(outcome.waiting or outcome.failed)


if __name__ == "__main__":
    sys.exit(main())
