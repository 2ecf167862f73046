"""Make everything of the study again from its runs: each part's dataset, what the report quotes, and its figures.

    python -m studies.subtraction.reproduce             # from runs.zip, in seconds
    python -m studies.subtraction.reproduce --check     # write nothing, and say which committed file would differ

Parts of which a run is missing are left out. A file is written only if it says something else than the committed one: numbers of
datasets are compared to a relative 1e-12, and recipe and origin word by word. No corpus is needed, since evidence is packed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.lab.training.cohort import Cohort
from diffscope.lab.training.runs import SCORES
from diffscope.storage.statistics import open_statistics, save_statistics
from studies.committed import ROOT, update
from studies.markdown import quoted
from studies.subtraction.evidence import gather
from studies.subtraction.pages import Parts, drawings, quotes
from studies.subtraction.preregister import check_declared, complete
from studies.subtraction.primaries import PARTS
from studies.subtraction.runs import unpack
from studies.subtraction.train import recipe_of

EVIDENCE = Path("studies", "subtraction", "evidence")
PAGES = Path("docs", "study")
REPORT = PAGES / "subtraction.md"
TOLERANCE = 1e-12
OF_RUNS = ("recipe", "made_by")  # attributes of a dataset that say what it is of


def finished_parts(runs: Path) -> dict[str, xr.Dataset]:
    """Return the datasets of the parts of which all runs are finished, by name.

    Raises
    ------
    DiffscopeError
        A part has other runs than are declared.
    """
    parts = {}
    for name in PARTS:
        recipe = recipe_of(name)
        arms = recipe.arms.keys() - set(PARTS[name].may_come_later)
        if all((runs / name / arm / f"seed-{seed}" / SCORES).is_file() for arm in arms for seed in recipe.seeds):
            parts[name] = complete(name, gather(name, Cohort(recipe, runs / name)))
    return parts


def make(parts: Parts, target: Path) -> None:
    """Make every file of the study from its parts, under the names that they have in the repository."""
    (target / EVIDENCE).mkdir(parents=True)
    (target / PAGES).mkdir(parents=True)
    for name, part in parts.items():
        save_statistics(part, target / EVIDENCE / f"{name}.nc", dated=False)
    report = (ROOT / REPORT).read_text(encoding="utf-8")
    (target / REPORT).write_text(quoted(report, quotes(parts)), encoding="utf-8")
    for name, figure in drawings(parts).items():
        figure.save(target / PAGES / f"subtraction_{name}.svg")


def alike(made: Path, there: Path) -> bool:
    """Whether two files say the same: of datasets the values and which runs they are of, of others every byte."""
    if made.suffix != ".nc":
        return made.read_bytes() == there.read_bytes()
    ours, theirs = open_statistics(made), open_statistics(there)
    try:
        xr.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=0)
    except AssertionError:
        return False
    return all(ours.attrs.get(name) == theirs.attrs.get(name) for name in OF_RUNS)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and say which committed file would differ")
    options = parser.parse_args()
    try:
        check_declared()
        with TemporaryDirectory() as home:
            runs, target = Path(home, "runs"), Path(home, "made")
            unpack(runs)
            make(finished_parts(runs), target)
            own = [*(ROOT / EVIDENCE).glob("*.nc"), *(ROOT / PAGES).glob("subtraction_*.svg")]
            update(target, alike, own, options.check)
    except DiffscopeError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
