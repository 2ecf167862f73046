"""Tests of how differential attention works: declared as data before anything is measured, judged by one rule.

Method: docs/hypotheses.md.
"""

from diffscope.hypotheses.api import gather, lacking, test
from diffscope.hypotheses.board import run
from diffscope.hypotheses.conclusion import summary
from diffscope.hypotheses.declared import TESTS
from diffscope.hypotheses.rules import Declared, Measurement, Test
from diffscope.hypotheses.subjects import Models, Pair, Settings
from diffscope.hypotheses.verdicts import Verdict

__all__ = [
    "TESTS",
    "Declared",
    "Measurement",
    "Models",
    "Pair",
    "Settings",
    "Test",
    "Verdict",
    "gather",
    "lacking",
    "run",
    "summary",
    "test",
]
