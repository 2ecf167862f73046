"""A few prompts as text, ready to look at with any model."""

from __future__ import annotations

from pathlib import Path

from diffscope.errors import PromptError
from diffscope.tasks.files import TextPrompt, read_prompts

FILE = Path(__file__).parent / "examples.json"
TEXTS = Path(__file__).parent / "examples_of_text.json"
FILES = {"retrieval": FILE, "text": TEXTS}


def examples(kind: str = "retrieval") -> list[TextPrompt]:
    """The examples that come with diffscope, with the spans ``answer``, ``needles`` and ``query``; the same on every machine.

    Parameters
    ----------
    kind : {"retrieval", "text"}
        Questions whose answers stand in the text, or plain text that ends before a token which it gives away: what the last two
        tokens were followed by where they stood before.

    Raises
    ------
    PromptError
        There is no such kind.
    """
    if kind not in FILES:
        raise PromptError(f"there are no examples of {kind!r}; there are {', '.join(FILES)}")
    return list(read_prompts(FILES[kind]))
