"""A few retrieval prompts as text, ready to look at with any model."""

from __future__ import annotations

from pathlib import Path

from diffscope.tasks.user_files import TextPrompt, read_prompts

FILE = Path(__file__).parent / "examples.json"


def examples() -> list[TextPrompt]:
    """The examples that come with diffscope, with the spans ``answer``, ``needles`` and ``query``; the same on every machine."""
    return list(read_prompts(FILE))
