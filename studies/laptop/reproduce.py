"""Make everything of the study again from its runs: the study, its pages and their figures.

    python -m studies.laptop.reproduce                  # from runs.zip, in minutes
    python -m studies.laptop.reproduce --check          # write nothing, and say which committed file would differ
    python -m studies.laptop.reproduce --train runs     # train all runs first, in days; the same command goes on where it stopped

A file is written only if it says something else than the committed one: numbers of the study are compared to a relative 1e-12,
so that versions of Python and PyTorch that round otherwise change no file.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.cohort_study import run_study
from diffscope.hypotheses.shipped import POWER, STUDY
from diffscope.hypotheses.study import WEIGHTS, Study, open_board, open_study, packed_board
from diffscope.lab.training.cohort import DATASET, Cohort, collect
from diffscope.lab.training.recipe import Recipe
from diffscope.storage.atomic import write_json
from diffscope.storage.statistics import save_statistics
from studies import committed
from studies.committed import ROOT
from studies.laptop import cells, first_layer, pages, second_reading, text
from studies.laptop.calibration import power
from studies.laptop.results import read_result, write_result
from studies.laptop.runs import COHORTS, pack, unpack
from studies.markdown import quoted

HOME = Path("studies", "laptop")
DOCS = Path("docs")
PAGES = DOCS / "study"
WITH_WEIGHTS = "with_weights"  # the result that has the board of the seeds with weights
TOLERANCE = 1e-12
OF_SECOND_STUDY = "subtraction_"  # how the names of its figures begin, which are in the same folder


def make(runs: Path, target: Path) -> None:
    """Make every file of the study from its runs, under the names that they have in the repository.

    Parameters
    ----------
    runs : Path
        Holds the folder ``laptop``, as training leaves it or as it is unpacked.
    target : Path
        An empty folder.
    """
    folder = runs / COHORTS[0]
    cohort = collect(Cohort(Recipe.load(COHORTS[0]), folder))
    save_statistics(cohort, folder / DATASET, dated=False)
    study_of(folder).save(target / HOME)
    study = open_study(target / HOME)
    write_json(target / HOME / POWER, power.sentences(read_result("power")), indent=1)
    texts = {
        **pages.pages(study),
        "cells.md": cells.page(cohort) + "\n",
        "second_reading.md": second_reading.page(folder, cohort) + "\n",
        "first_layer.md": first_layer.page(),
        "text.md": text.page(read_result("text")),
    }
    (target / PAGES).mkdir(parents=True)
    for name, words in texts.items():
        (target / PAGES / name).write_text(words, encoding="utf-8")
    for name in pages.QUOTING:
        page = (ROOT / DOCS / name).read_text(encoding="utf-8")
        (target / DOCS / name).write_text(quoted(page, pages.quotes(study)), encoding="utf-8")
    for name, figure in pages.drawings(study).items():
        figure.save(target / PAGES / f"{name}.svg")


def study_of(folder: Path) -> Study:
    """Run the study of a cohort, with what was found of it by hand.

    The board of the seeds with weights is the one that was made when they were at hand, if they no longer are.
    """
    study = run_study(folder)
    if WEIGHTS not in study.boards:
        study.boards[WEIGHTS] = open_board(read_result(WITH_WEIGHTS))
    return replace(study, notes=list(second_reading.NOTES))


def train(runs: Path, processes: int) -> None:
    """Train both cohorts, what is missing of them, pack their runs, and read what is no longer known without weights."""
    for name in COHORTS:
        command = ["train", name, "--out", str(runs / name), "--processes", str(processes)]
        subprocess.run([sys.executable, "-m", "diffscope", *command], check=True)
    pack(runs)
    write_result("text", text.run(runs / COHORTS[1]))


def differing(target: Path) -> Iterator[Path]:
    """Yield the names of the files in a folder that say something else than those of the repository."""
    return committed.differing(target, _alike)


def _alike(made: Path, there: Path) -> bool:
    if made.name == STUDY:
        ours, theirs = ({**json.loads(path.read_bytes()), "diffscope_digest": ""} for path in (made, there))
        return alike(ours, theirs)
    return made.read_bytes() == there.read_bytes()


def alike(one: Any, other: Any) -> bool:
    """Whether two values of JSON are equal, in the order in which pages show them; numbers to :data:`TOLERANCE`."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return one == other


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and say which committed file would differ")
    parser.add_argument("--train", type=Path, metavar="FOLDER", help="train the runs into this folder first")
    parser.add_argument("--processes", type=int, default=2, help="that train; by default 2")
    options = parser.parse_args()
    try:
        with TemporaryDirectory() as home:
            runs, target = Path(home, "runs"), Path(home, "made")
            if options.train:
                runs = options.train
                train(runs, options.processes)
            else:
                unpack(runs)
            make(runs, target)
            if options.train:
                write_result(WITH_WEIGHTS, packed_board(open_study(target / HOME).boards[WEIGHTS]))
            own = (path for path in (ROOT / PAGES).glob("*.svg") if not path.name.startswith(OF_SECOND_STUDY))
            committed.update(target, _alike, own, options.check)
    except DiffscopeError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
