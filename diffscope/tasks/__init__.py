"""Prompts with exact spans: multi-needle retrieval over real text, and a few ready examples of it."""

from diffscope.tasks.examples import Example, examples
from diffscope.tasks.retrieval import Prompt, Retrieval

__all__ = ["Example", "Prompt", "Retrieval", "examples"]
