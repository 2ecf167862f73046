"""Tests of how differential attention works: declared as data before anything is looked at, judged by one rule.

Definitions: SCIENCE.md, sections 4 and 5; method: docs/hypotheses.md.
"""

from diffscope.hypotheses.api import gather, test
from diffscope.hypotheses.board import run
from diffscope.hypotheses.declared import TESTS
from diffscope.hypotheses.subjects import Asked, Pair, Subject
from diffscope.hypotheses.verdicts import Verdict, together

__all__ = ["TESTS", "Asked", "Pair", "Subject", "Verdict", "gather", "run", "test", "together"]
