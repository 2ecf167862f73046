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


def statistic_by(statistic: str, weights: str) -> str:
    """A statistic in words, which are of the first view as they are declared, with heads weighted otherwise."""
    return statistic.replace(BY[KNOCK_OUT], BY[weights]) if weights else statistic
