"""A few retrieval prompts as text, ready to look at with any model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parent / "examples.json"


@dataclass(frozen=True)
class Example:
    """A prompt as text.

    Attributes
    ----------
    name : str
    prompt : str
    spans : dict of str to list of [start, stop]
        Character ranges of ``answer``, ``needles`` and ``query``.
    answer : str
        What should come next.
    """

    name: str
    prompt: str
    spans: dict[str, list[list[int]]]
    answer: str


def examples() -> list[Example]:
    """The examples that come with diffscope; the same text on every machine."""
    return [Example(**fields) for fields in json.loads(FILE.read_text(encoding="utf-8"))]
