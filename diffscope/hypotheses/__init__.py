"""Tests of how differential attention works: declared as data before anything is measured, judged by one rule.

Method: docs/hypotheses.md. A public name is imported when it is first used: a study is shown without what takes evidence.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "board": ("run",),
    "conclusion": ("lacking", "summary"),
    "gathering": ("gather", "test"),
    "rules": ("Test",),
    "settings": ("Settings",),
    "subjects": ("Models", "Pair"),
    "tests": ("TESTS",),
    "verdict": ("Verdict",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'diffscope.hypotheses' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"diffscope.hypotheses.{_MODULE_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
