"""Tests of how differential attention works: declared as data before anything is measured, judged by one rule.

Method: docs/hypotheses.md. A public name is imported when it is first used: a study is shown without what takes evidence.
"""

from diffscope.lazily import lazily

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
__getattr__, __dir__, __all__ = lazily(__name__, {name: module for module, names in _MODULES.items() for name in names})
