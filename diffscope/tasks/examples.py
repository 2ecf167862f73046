"""A few retrieval prompts as text, ready to look at with any model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from diffscope.tasks.retrieval import Prompt, Retrieval

FILE = Path(__file__).parent / "examples.json"
# (tokens for the bundled tokenizer, needles, depth of the queried one)
KINDS = ((96, 2, 0.5), (128, 4, 0.0), (128, 4, 0.5), (256, 4, 0.25), (256, 4, 1.0), (256, 6, 0.5))


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


def as_example(task: Retrieval, prompt: Prompt, name: str) -> Example:
    """A generated prompt as text with character ranges, one a run of neighbouring tokens."""
    pieces = [task.tokenizer.decode([token]) for token in prompt.ids[1:]]  # without <bos>
    ends = np.concatenate([[0, 0], np.cumsum([len(piece) for piece in pieces])])  # of each token, <bos> included
    ranges = {}
    for span in ("answer", "needles", "query"):
        at = np.array(prompt.spans[span], dtype=int)
        runs = np.split(at, np.flatnonzero(np.diff(at) != 1) + 1) if len(at) else []
        ranges[span] = [[int(ends[run[0]]), int(ends[run[-1] + 1])] for run in runs]
    return Example(name, "".join(pieces), ranges, task.tokenizer.decode(prompt.answer).strip())


def write_examples(task: Retrieval, seed: int = 7) -> None:
    """Draw the examples anew."""
    rng = np.random.default_rng(seed)
    drawn = []
    for length, needles, depth in KINDS:
        prompt = task.prompt(length, needles, rng, depth)
        name = f"{length} tokens, {needles} needles, answer at {round(100 * depth)} %"
        drawn.append(asdict(as_example(task, prompt, name)))
    FILE.write_text(json.dumps(drawn, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
