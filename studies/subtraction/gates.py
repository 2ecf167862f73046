"""What λ became in models of ``sinks``, and how many rows of D are 0 altogether: looked at after the part was read.

    python -m studies.subtraction.gates FOLDER

takes the runs of DIFF and D⁺ whose weights are in the folder that the study was trained into, and prints a table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from diffscope import numbers
from diffscope.lab.training.run import WEIGHTS
from diffscope.render import pipe_table
from diffscope.scope import load
from studies.subtraction.evidence import task_of

ARMS = ("diff", "d-plus")
QUERIES = ("dormant", "triggers")


def of_run(folder: Path, seed: int) -> tuple[float, ...]:
    """Return λ of a model's only layer, and the share of its rows of D that are 0, at dormant queries and at triggers."""
    scope = load(folder)
    prompts = task_of("sinks", scope, seed).prompts
    (layer,) = scope.capture([prompt.ids for prompt in prompts]).layers
    empty = []
    for name in QUERIES:
        rows = [layer.prompt(index).rows(prompt.spans[name]).d for index, prompt in enumerate(prompts)]  # (head, query, key)
        empty.append(float(np.mean([(each == 0).all(-1).double().mean().item() for each in rows])))
    return float(layer.lam.mean()), *empty


def table(home: Path) -> str:
    """List λ and empty rows by arm: the least and the largest over seeds."""
    rows = []
    for arm in ARMS:
        folders = sorted(home.glob(f"sinks/{arm}/seed-*/{WEIGHTS}"))
        if folders:
            found = np.array([of_run(path.parent, int(path.parent.name.removeprefix("seed-"))) for path in folders])
            ends = (f"{numbers.two_figures(of.min())} to {numbers.two_figures(of.max())}" for of in found.T)
            rows.append((arm, str(len(found)), *ends, *(numbers.two_figures(of) for of in found.mean(0)[1:])))
    means = tuple(f"their mean, {name}" for name in QUERIES)
    return pipe_table(("arm", "seeds", "λ", *(f"empty rows of D, {name}" for name in QUERIES), *means), rows)


def main() -> None:
    """Print the table of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    print(table(parser.parse_args().folder))


if __name__ == "__main__":
    main()
