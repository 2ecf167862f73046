"""Write down what a study will be made of, before it is read: ``python tools/reading.py runs/laptop benchmarks/results/laptop``.

The file, ``reading.json`` in the second folder, is committed before ``diffscope study run``: the revision, the digests of the
rules and of the code that takes evidence, which runs are finished, which formed, failed or are missing. It has no scores.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from diffscope.errors import DiffscopeError
from diffscope.files import write_json
from diffscope.hypotheses.evidence.code import code_digest
from diffscope.hypotheses.evidence.of_run import outdated
from diffscope.hypotheses.kept_study import rules_digest
from diffscope.hypotheses.study import source_digest
from diffscope.lab.jobs.shards import Outcome
from diffscope.lab.training.cohort import Cohort
from diffscope.lab.training.recipe import Recipe
from diffscope.lab.training.runs import name

FILE = "reading.json"
ROOT = Path(__file__).parents[1]


def reading(run: Path, recipe: Recipe, revision: str) -> dict:
    """What there is of a cohort, by arm, without a score.

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
        Evidence of a run was taken by other code than this.
    """
    if others := outdated(run):
        raise DiffscopeError(f"the evidence of {', '.join(others)} was taken by other code, or is missing; take it anew first")
    cohort = Cohort(recipe, run)
    outcome = Outcome.of(cohort.planned(), run, ".nc")
    done = {shard.id for shard in outcome.done}
    arms: dict[str, dict[str, list[int]]] = {arm: {"finished": [], "missing": []} for arm in recipe.arms}
    for shard in cohort.planned():
        if "tuning" not in shard.spec:
            arms[shard.spec["arm"]]["finished" if shard.id in done else "missing"].append(shard.spec["seed"])
    return {
        "recipe": recipe.name,
        "revision": revision,
        "rules": rules_digest(),
        "code": source_digest(),
        "evidence": code_digest(),
        "rates": cohort.rates(),
        "arms": arms,
        "failed": sorted(name(shard) for shard in cohort.planned() if shard.id in outcome.failed),
    }


def revision() -> str:
    """The revision of this checkout.

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
    parser.add_argument("target", type=Path)
    parser.add_argument("--recipe", help="name or .toml file of what it was trained by; by default the name of the folder")
    options = parser.parse_args()
    try:
        table = reading(options.run, Recipe.load(options.recipe or options.run.name), revision())
        write_json(options.target / FILE, table, indent=1)
    except DiffscopeError as error:
        sys.exit(f"error: {error}")
    finished = sum(len(of_arm["finished"]) for of_arm in table["arms"].values())
    missing = sum(len(of_arm["missing"]) for of_arm in table["arms"].values())
    print(f"{finished} finished runs, {missing} missing, {len(table['failed'])} failed: {options.target / FILE}; commit it")


if __name__ == "__main__":
    main()
