"""What heads count with when a number is said of a whole model, in words: by what they cost the answer, or by where A1 looks."""

from __future__ import annotations

from typing import Literal

Weights = Literal["knock-out", "a2", "answer"]

KNOCK_OUT: Weights = "knock-out"
A2: Weights = "a2"
ANSWER: Weights = "answer"
#: how heads are weighted, by name; the first is the first view of every mechanism
BY: dict[str, str] = {
    KNOCK_OUT: "weighted by what the answer's loss rises by without each",
    A2: "weighted by what the answer's loss rises by without A2 of each",
    ANSWER: "weighted by A1's mass on the answer",
}
#: how a statistic is said to be of a whole model, where nothing else is chosen
WEIGHTED = f"mean over heads, {BY[KNOCK_OUT]}"
SECOND = f"heads {BY[ANSWER]}"


def words_by(words: str, weights: str) -> str:
    """Return what a test declares, in words that are of the first view, with heads weighted otherwise."""
    return words.replace(BY[KNOCK_OUT], BY[weights]) if weights else words
