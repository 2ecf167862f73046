"""Write down what will be read, by which code and rule, before any run is read.

    python -m studies.subtraction.preregister

``preregistered.json`` holds, by part, the recipe, and every primary with its quantities, margins, predictions, correction and the
function that reads it. It is committed before the first reading, and ``studies.subtraction.read`` refuses to read by other
declarations.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import xarray as xr

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.rules import Test
from diffscope.lab.training.recipe import Recipe
from diffscope.storage.atomic import write_json
from studies.subtraction import evidence
from studies.subtraction.primaries import PARTS

HERE = Path(__file__).parent
FILE = HERE / "preregistered.json"
COPIES = [
    "first token's weight in A1, A2, |D| and net D at dormant queries and at triggers, by arm: does the subtraction take the "
    "sink away? (sink)",
    "which map carries the copied token at triggers: snr_by_head of A1·V and λA2·V; rejection with its ceiling",
    "loss on copies and excess risk on bigrams, of all six arms",
]
SECONDARY = {
    "mechanism": [
        "loss of the answer without A2, by layer; with the negative weights of D set to 0; with one A2 for all heads of a layer; "
        "with A2 added: lost_without_a2, lost_without_signs, lost_with_one_a2, lost_with_plus",
        "signal-to-noise gain by head, before and after the norm, and the ratio of A2·V alone: gain_by_head, snr_by_head",
        "rejection by injection beside its ceiling: rejection, rejection_ceiling",
        "onsets at 50, 80 and 90 % once, and of the mean of three evaluations over 90 %, beside the criterion of the recipe",
    ],
    "lookup": [
        "shared-a2 against DIFF in onset and log-odds: does one second map a layer do?",
        "log-odds by length and by distractors; what A2 costs by layer; signs by layer; gain; rejection with its ceiling",
    ],
    "text": [
        "rejection at all queries with its ceiling; loss of the planted lookup without A2, by layer; one A2 a layer",
        "onset of the planted lookup; loss on hits and on other tokens; loss on the other domain; standard attention",
    ],
    "sinks": COPIES,
    "sinks-tied": COPIES,
}
FILLER = {  # what stands in the prompts' text, and is exchanged for more of the same
    "mechanism": "held-out documentation strings",
    "lookup": "held-out documentation strings",
    "text": "held-out text of the corpus",
    "sinks": "sequences of the task",
    "sinks-tied": "sequences of the task",
}


def declarations() -> dict:
    """Return the declarations, by part, as JSON."""
    return {name: _of_part(name) for name in PARTS}


def _of_part(name: str) -> dict:
    recipe = Recipe.load(str(HERE / f"{name}.toml"))
    part = PARTS[name]
    return {
        "recipe": json.loads(json.dumps(recipe.as_dict())),
        "seeds": part.seeds,
        "correction": part.correction,
        "evidence": {
            "prompts": evidence.COUNT,
            "of gain and rejection": evidence.FEW,
            "tokens": evidence.LENGTH[name],
            "filler": FILLER[name],
        },
        "primaries": [_of_test(test) for test in part.tests],
        "secondary": SECONDARY[name],
        **({"may come later": list(part.may_come_later)} if part.may_come_later else {}),
    }


def _of_test(test: Test) -> dict:
    quantities = {
        key: {"label": quantity.label, "margin": quantity.margin, "no effect within": quantity.no_effect}
        for key, quantity in test.quantities.items()
    }
    return {
        "id": test.id,
        "question": test.question,
        "statistic": test.statistic,
        "of": test.of,
        "quantities": quantities,
        "predictions": {account: dict(predicted) for account, predicted in test.predictions.items()},
        "rule": test.rule,
        "limits": test.limits,
        "silent where A2 is idle": test.inside,
        "read by": f"{test.measure.__module__}.{test.measure.__name__}",
    }


def check_declared() -> None:
    """Raise unless the primaries and recipes are the ones that were written down.

    Raises
    ------
    DiffscopeError
    """
    if not FILE.is_file():
        raise DiffscopeError(f"{FILE} is not there; write it with: python -m studies.subtraction.preregister, and commit it")
    then = json.loads(FILE.read_text(encoding="utf-8"))
    now = declarations()
    changed = [name for name in now if then.get(name) != now[name]]
    if changed:
        raise DiffscopeError(f"{', '.join(changed)}: what is declared now is not what {FILE.name} says; read by its revision")


def complete(name: str, dataset: xr.Dataset) -> xr.Dataset:
    """Return the evidence of a part if it is of all runs that it declares and of no others.

    An arm that may come later is left out as long as one of its runs is missing.

    Raises
    ------
    DiffscopeError
    """
    declared = _of_part(name)["recipe"]
    of = json.loads(dataset.attrs.get("recipe", "{}"))
    if differing := sorted(field for field in declared | of if declared.get(field) != of.get(field)):
        raise DiffscopeError(
            f"the evidence of {name} is of runs by another recipe (it differs in {', '.join(differing)}); take it anew"
        )
    if (seeds := dataset["seed"].values.tolist()) != declared["seeds"]:
        raise DiffscopeError(
            f"the evidence of {name} is of the seeds {seeds}, and {declared['seeds']} are declared; leave out the others"
        )
    finished = dataset["finished"].reindex(arm=list(declared["arms"]), fill_value=0)
    later = [arm for arm in PARTS[name].may_come_later if not finished.sel(arm=arm).all()]
    needed = finished.drop_sel(arm=later)
    if int(needed.sum()) < needed.size:
        raise DiffscopeError(f"{int(needed.sum())} of {needed.size} runs are finished; a part is read once, when all are")
    return _without(dataset, later)


def _without(dataset: xr.Dataset, arms: list[str]) -> xr.Dataset:
    """Return the evidence of a part without some arms, and what it says of their runs."""
    made_by = json.loads(dataset.attrs.get("made_by", "{}"))
    kept = {run: facts for run, facts in made_by.items() if run.partition("/")[0] not in arms}
    without = dataset.drop_sel(arm=[arm for arm in arms if arm in dataset["arm"].values])
    return without.assign_attrs(made_by=json.dumps(kept, sort_keys=True)) if arms and made_by else without


def main() -> None:
    """Write the declarations."""
    try:
        write_json(FILE, declarations(), indent=1)
    except DiffscopeError as error:
        sys.exit(f"error: {error}")
    print(f"{FILE.name}: {sum(len(part.tests) for part in PARTS.values())} primaries of {len(PARTS)} parts; commit it")


if __name__ == "__main__":
    main()
