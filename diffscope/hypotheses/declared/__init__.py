"""The tests as data, each beside what observes it."""

from collections.abc import Sequence

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.declared import checkpoints, cohort, information_flow, low_rank, one_model, pair, robustness
from diffscope.hypotheses.rules import Test

OBSERVERS = {
    "model": one_model.TESTS | low_rank.TESTS | information_flow.TESTS,
    "pair": pair.TESTS | information_flow.PAIRS | robustness.PAIRS,
    "checkpoints": checkpoints.TESTS | information_flow.CHECKPOINTS,
    "cohort": cohort.TESTS,
}
TESTS: dict[str, Test] = {test.id: test for tests in OBSERVERS.values() for test in tests}
SUBJECTS = {
    "model": ("model", "models"),
    "pair": ("pair", "pairs"),
    "checkpoints": ("series of checkpoints", "series"),
    "cohort": ("seed", "seeds"),
}
NEEDED = {
    "model": "a differential model with a tokenizer for retrieval prompts",
    "pair": "a standard model beside it (--baseline NAME)",
    "checkpoints": "checkpoints along its training, of one model",
    "cohort": "a trained cohort (--cohort FOLDER)",
}


def chosen(ids: Sequence[str]) -> list[Test]:
    """Tests by id; all without any."""
    if unknown := [one for one in ids if one not in TESTS]:
        raise DiffscopeError(f"there is no test {unknown[0]!r}; there are: {', '.join(TESTS)}")
    return [TESTS[one] for one in ids or TESTS]
