"""The tests as data, each beside what observes it."""

from collections.abc import Sequence

from diffscope.errors import DiffscopeError
from diffscope.hypotheses.declared import (
    amplifier,
    cohort,
    gradient_dynamics,
    information_flow,
    instruments,
    key_tokens,
    low_rank,
    noise_symmetry,
    primary,
    robustness,
    signed_heads,
    sinks,
    sparsity,
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
    "checkpoints": "checkpoints along its training (--model FOLDER with checkpoints/, as diffscope train leaves them)",
    "cohort": "a trained cohort (--cohort FOLDER)",
}

RENAMED = {"lambda-star": "amplifier", "lambda-star-formation": "amplifier-training"}

_MODULES = (
    primary,
    noise_symmetry,
    amplifier,
    instruments,
    key_tokens,
    sparsity,
    sinks,
    low_rank,
    signed_heads,
    information_flow,
    gradient_dynamics,
    robustness,
    cohort,
)
_DECLARED = [value for module in _MODULES for value in vars(module).values() if isinstance(value, Declared)]
_ORDER = [(kind, needs) for kind in KINDS for needs in SUBJECTS]
TESTS: dict[str, Declared] = {test.id: test for place in _ORDER for test in _DECLARED if (test.kind, test.needs) == place}
PRIMARIES = tuple(id for id, test in TESTS.items() if test.kind == "primary")


def chosen(tests: str | Sequence[str] | None = None) -> list[Declared]:
    """Tests by id, all without any.

    Raises
    ------
    DiffscopeError
        There is no such test.
    """
    ids = [tests] if isinstance(tests, str) else list(tests or TESTS)
    for id in ids:
        if id in RENAMED:
            raise DiffscopeError(f"the test {id!r} is called {RENAMED[id]!r} now")
        if id not in TESTS:
            raise DiffscopeError(f"there is no test {id!r}; there are: {', '.join(TESTS)}")
    return [TESTS[id] for id in ids]
