"""Tests of how differential attention works: declared as data before anything is looked at, judged by one rule.

Definitions: SCIENCE.md, sections 4 and 5; method: docs/hypotheses.md.
"""

from diffscope.hypotheses.board import TESTS, Verdict, run, together
from diffscope.hypotheses.gather import gather, test
from diffscope.hypotheses.subjects import Asked, Pair, Subject

__all__ = ["TESTS", "Asked", "Pair", "Subject", "Verdict", "gather", "run", "test", "together"]
