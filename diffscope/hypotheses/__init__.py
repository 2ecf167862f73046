"""Tests of how differential attention works: declared as data before anything is measured, judged by one rule.

Method: docs/hypotheses.md. A public name is imported when it is first used: what is kept of a study is shown without the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

#: every public name and the module that it is in
_NAMES = {
    "TESTS": "tests",
    "Declared": "rules",
    "Measurement": "rules",
    "Models": "subjects",
    "Pair": "subjects",
    "Settings": "settings",
    "Test": "rules",
    "Verdict": "verdict",
    "gather": "gathering",
    "lacking": "gathering",
    "run": "board",
    "summary": "conclusion",
    "test": "gathering",
}

__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'diffscope.hypotheses' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"diffscope.hypotheses.{_NAMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})


if TYPE_CHECKING:  # the same names, for editors and type checkers
    from diffscope.hypotheses.board import run as run
    from diffscope.hypotheses.conclusion import summary as summary
    from diffscope.hypotheses.gathering import gather as gather
    from diffscope.hypotheses.gathering import lacking as lacking
    from diffscope.hypotheses.gathering import test as test
    from diffscope.hypotheses.rules import Declared as Declared
    from diffscope.hypotheses.rules import Measurement as Measurement
    from diffscope.hypotheses.rules import Test as Test
    from diffscope.hypotheses.settings import Settings as Settings
    from diffscope.hypotheses.subjects import Models as Models
    from diffscope.hypotheses.subjects import Pair as Pair
    from diffscope.hypotheses.tests import TESTS as TESTS
    from diffscope.hypotheses.verdict import Verdict as Verdict
