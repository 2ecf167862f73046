"""The tests as data, each beside what observes it."""

from collections.abc import Sequence

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.declared import (
    checkpoints,
    cohort,
    information_flow,
    low_rank,
    one_model,
    pair,
    primary,
    robustness,
)
from diffscope.hypotheses.rules import Declared

SUBJECTS = {
    "model": ("model", "models"),
    "pair": ("pair", "pairs"),
    "checkpoints": ("series of checkpoints", "series"),
    "cohort": ("seed", "seeds"),
}
KINDS = {"primary": "Primary tests", "mechanism": "Mechanism tests", "measurement": "Measurements"}
NEEDED = {
    "model": "a differential model with a tokenizer for retrieval prompts",
    "pair": "a standard model beside it (--baseline NAME)",
    "checkpoints": "checkpoints along its training, of one model",
    "cohort": "a trained cohort (--cohort FOLDER)",
}

_MODULES = (primary, one_model, low_rank, pair, checkpoints, information_flow, robustness, cohort)
_DECLARED = [value for module in _MODULES for value in vars(module).values() if isinstance(value, Declared)]
_ORDER = [(kind, needs) for kind in KINDS for needs in SUBJECTS]
TESTS: dict[str, Declared] = {test.id: test for place in _ORDER for test in _DECLARED if (test.kind, test.needs) == place}


def chosen(tests: str | Sequence[str] | None = None) -> list[Declared]:
    """Tests by id, all without any.

    Raises
    ------
    DiffscopeError
        There is no such test.
    """
    ids = [tests] if isinstance(tests, str) else list(tests or TESTS)
    for id in ids:
        if id not in TESTS:
            raise DiffscopeError(f"there is no test {id!r}; there are: {', '.join(TESTS)}")
    return [TESTS[id] for id in ids]
