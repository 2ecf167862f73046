"""Which tests can be run on a model, and what the others lack."""

from __future__ import annotations

from dataclasses import dataclass

from diffscope.errors import DiffscopeError
from diffscope.hypotheses import TESTS, Settings
from diffscope.hypotheses.gathering import steps_of

FEW = 5  # prompts that are made up to see whether they can be: one at each depth
SERIES = 3  # checkpoints of a training
GIVEN = {
    "model": "Tests: choose it as the model.",
    "pair": "Tests: choose the standard model that it is matched with beside it. Both need the same tokenizer.",
    "checkpoints": "Put the checkpoints of its training into checkpoints/step-N of its folder, as diffscope train leaves them.",
    "cohort": "Tests: give the folder of a cohort that diffscope train made.",
}
LACKING = {
    "model": "nothing",
    "pair": "a standard model beside it",
    "checkpoints": f"{SERIES} checkpoints along its training",
    "cohort": "a trained cohort",
}


@dataclass(frozen=True)
class Readiness:
    """What one kind of tests needs, and whether a model has it.

    Attributes
    ----------
    needs : str
        As tests declare it.
    tests : dict of str to str
        Claims by id.
    lacks : str
        Empty where nothing is lacking.
    how : str
        How to run them, or to give what is lacking.
    """

    needs: str
    tests: dict[str, str]
    lacks: str
    how: str


def readiness(scope, path: str, differential: bool) -> list[Readiness]:
    """What each kind of tests lacks on a model, by what was read of it."""
    lacks = {needs: "" if words == "nothing" else words for needs, words in LACKING.items()}
    how = dict(GIVEN)
    if len(steps_of(path)) >= SERIES:
        lacks["checkpoints"] = ""
        how["checkpoints"] = how["model"]
    own = lacking_of_model(scope, differential)
    if own is not None:
        for needs in ("model", "checkpoints"):
            lacks[needs], how[needs] = own
        if scope.tokenizer is None or scope.crosses:
            lacks["pair"], how["pair"] = own
    of_needs = {needs: {id: test.question for id, test in TESTS.items() if test.needs == needs} for needs in lacks}
    return [Readiness(needs, of_needs[needs], lacks[needs], how[needs]) for needs in lacks]


def lacking_of_model(scope, differential: bool) -> tuple[str, str] | None:
    """What a model itself lacks for the tests that need no other, and how to give it; None where it is nothing."""
    if scope.crosses:
        return "one side: they are of tokens that look at one another", "Look at its maps in Explore, or measure them in Python."
    if scope.tokenizer is None:
        return "a tokenizer: prompts are text", "Put its tokenizer.json beside the weights, and open it again."
    if not differential:
        return (
            "a second map: this is standard attention",
            "Choose it on Tests as the standard model beside a differential one.",
        )
    try:
        Settings(prompts=FEW).prompts_for(scope)
    except DiffscopeError as error:
        return f"prompts that can be made for its tokenizer ({error})", "Give prompts of your own, below and on Tests."
    return None
