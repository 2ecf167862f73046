"""Write down what a study will be made of, before it is read: ``python -m studies.laptop.preregister runs/laptop``.

The file, ``preregistered.json``, is committed before ``diffscope study run``: the revision, which names the rules and all other
code, the format of the evidence, a digest of the data, and which runs are finished, failed or missing. It has no scores.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from pathlib import Path

from diffscope.errors import DiffscopeError
from diffscope.evidence.run_file import EVIDENCE, EVIDENCE_FORMAT, outdated
from diffscope.lab.training.cohort import Cohort
from diffscope.lab.training.recipe import Recipe
from diffscope.storage.atomic import write_json

FILE = Path(__file__).with_name("preregistered.json")
STATES = ("finished", "failed", "missing")
ROOT = Path(__file__).parents[2]


def reading(run: Path, recipe: Recipe, revision: str) -> dict:
    """Return which runs of a cohort there are, by arm, without a score.

    Parameters
    ----------
    run : Path
        The folder that ``diffscope train`` trains into.
    recipe : Recipe
    revision : str
        Of the code, without uncommitted changes.

    Raises
    ------
    DiffscopeError
        Evidence of a run is of another format than this, or missing.
    """
    if others := outdated(run):
        raise DiffscopeError(f"the evidence of {', '.join(others)} is of another format, or is missing; take it first")
    cohort = Cohort(recipe, run)
    outcome = cohort.outcome()
    done = {item.place for item in outcome.done}
    arms: dict[str, dict[str, list[int]]] = {arm: {state: [] for state in STATES} for arm in recipe.arms}
    for item in cohort.planned():
        if "tuning" not in item.spec:
            state = "finished" if item.place in done else "failed" if item.place in outcome.failed else "missing"
            arms[item.spec["arm"]][state].append(item.spec["seed"])
    return {
        "recipe": recipe.name,
        "revision": revision,
        "evidence_format": EVIDENCE_FORMAT,
        "rates": cohort.rates(),
        "data": _digest(run, [item.result(run) for item in outcome.done]),
        "arms": arms,
    }


def _digest(run: Path, results: list[Path]) -> str:
    """Digest of what finished runs came to, and of their evidence."""
    digest = hashlib.sha256()
    for path in sorted([*results, *run.glob(f"*/seed-*/{EVIDENCE}")]):
        digest.update(path.relative_to(run).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def revision() -> str:
    """Return the revision of this checkout.

    Raises
    ------
    DiffscopeError
        Something is not committed.
    """
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if changed:
        raise DiffscopeError("there are uncommitted changes; commit them, so that the rules have a revision")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return head.stdout.strip()


def main() -> None:
    """Write the list as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--recipe", help="name or .toml file of what it was trained by; by default the name of the folder")
    options = parser.parse_args()
    try:
        table = reading(options.run, Recipe.load(options.recipe or options.run.name), revision())
        write_json(options.out, table, indent=1)
    except DiffscopeError as error:
        sys.exit(f"error: {error}")
    counts = (f"{sum(len(of_arm[state]) for of_arm in table['arms'].values())} {state}" for state in STATES)
    print(f"runs: {', '.join(counts)}; commit {options.out}")


if __name__ == "__main__":
    main()
